# SPDX-License-Identifier: Apache-2.0
"""A Spark session in a process of its own, which does one order after another.

``python -m bench.spark.session SETTINGS`` reads orders as lines of JSON. It answers each with a line: the result or the
error. :class:`Session` starts and uses such a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final, Self

from bench.spark.processes import tree_processor_s
from bench.spark.works import WORKS, Done, Order
from tests.support.served_process import end_served

_ROOT: Final = Path(__file__).resolve().parents[2]


class SessionFailed(Exception):
    """A piece of work failed, or the process ended. The message holds the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Cost of one piece of work.

    Attributes:
        seconds: wall time.
        processor_s: CPU time of the driver, the JVM and the Python workers together.
        rows: number of rows.
        size: bytes of memory or disk, in cases that have a target for them.
    """

    seconds: float
    processor_s: float
    rows: int
    size: int | None = None


class Session:
    """A session with ``local[2]``, as a context manager; ``folder`` is its own."""

    def __init__(self, folder: Path, settings: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "bench.spark.session", json.dumps(dict(settings))]
        given = dict(os.environ if environment is None else environment)
        path = os.pathsep.join(filter(None, (given.get("PYTHONPATH"), str(_ROOT))))
        self._environment = {**given, "PYTHONPATH": path}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                env=self._environment,
            )
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._process is not None
        end_served(self._process)

    def do(self, order: Order) -> tuple[Reading, Done]:
        """Have a piece of work done; return its cost and its result. Raises SessionFailed."""
        assert self._process is not None
        before = tree_processor_s(self._process.pid)
        pipe = self._pipe(self._process.stdin)
        pipe.write(f"{json.dumps(asdict(order))}\n")
        pipe.flush()
        done = Done.parse(self._answer())
        spent = tree_processor_s(self._process.pid) - before
        return Reading(seconds=done.ended - done.began, processor_s=spent, rows=done.rows), done

    def _answer(self) -> dict[str, object]:
        assert self._process is not None
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise SessionFailed(f"ended with {self._process.wait()}:\n{(self._folder / 'log').read_text()[-3000:]}")
        answer: dict[str, object] = json.loads(line)
        if "failed" in answer:
            raise SessionFailed(str(answer["failed"]))
        return answer

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def main() -> None:
    """Start a session, report that, and do all orders until standard input ends."""
    from consumerd.spark import local_session, register

    spark = local_session("bench", master="local[2]", driver_memory="2g", settings=json.loads(sys.argv[1]))
    register(spark)
    _tell({})
    for line in sys.stdin:
        fields = json.loads(line)
        try:
            done = WORKS[fields["work"]](spark, Order(**fields))
        except Exception:  # noqa: BLE001 - any error is reported, and the next order may work
            _tell({"failed": traceback.format_exc()[-3000:]})
        else:
            _tell(asdict(done))
    spark.stop()


def _tell(answer: Mapping[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
