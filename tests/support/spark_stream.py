# SPDX-License-Identifier: Apache-2.0
"""A stream with Spark in a process of its own, which can be killed: from a topic into Parquet files, or into another topic.

``python -m tests.support.spark_stream JOB`` takes a file with a :class:`StreamJob`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.support.spark_reads import start_session
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """Read with ``source``, as the format ``consumerd`` is told it, until nothing is left.

    What is read goes into Parquet files below ``folder``, which also holds the checkpoint, or to brokers where ``sink`` says so.
    """

    folder: str
    source: Mapping[str, str]
    sink: Mapping[str, str] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        """What is left of the query when it is killed."""
        return Path(self.folder) / "checkpoint"

    @property
    def table(self) -> Path:
        """The Parquet files."""
        return Path(self.folder) / "table"

    def triggers(self) -> tuple[int, int]:
        """Return how many triggers have begun, and how many are done."""
        begun, done = (
            sum(name.name.isdecimal() for name in folder.iterdir()) if folder.exists() else 0
            for folder in (self.checkpoint / "offsets", self.checkpoint / "commits")
        )
        return begun, done


class StreamProcess:
    """A job that runs; leaving the block kills whatever is left of it."""

    def __init__(self, job: StreamJob) -> None:
        self.job = job
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "job.json"
        self._log = folder / "job.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._file.write_text(json.dumps(dataclasses.asdict(self.job)))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_stream", str(self._file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.job.folder,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def wait(self, timeout_s: float = 240.0) -> None:
        """Wait until all is read. Raises RuntimeError, with the end of what the process has said."""
        assert self._process is not None
        if code := self._process.wait(timeout_s):
            raise RuntimeError(f"ended with {code}:\n{self.log()[-6000:]}")

    def wait_for_trigger(self, number: int, timeout_s: float = 120.0) -> None:
        """Wait until so many triggers have been begun and the last of them is not done. Raises as :meth:`wait`, TimeoutError."""

        def is_in_it() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"ended before it was in trigger {number}:\n{self.log()[-6000:]}")
            begun, done = self.job.triggers()
            return begun >= number and begun > done

        wait_until(is_in_it, f"trigger {number} is under way", timeout_s)

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM; Python workers end when the JVM does. Idempotent."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """Return what the process has said."""
        return self._log.read_text(errors="replace")


def main() -> None:
    """Run a job to its end."""
    job = StreamJob(**json.loads(Path(sys.argv[1]).read_text()))
    spark = start_session("local[2]", {})
    try:
        frame = spark.readStream.format("consumerd").options(**job.source).load()
        writer = frame.writeStream.option("checkpointLocation", str(job.checkpoint)).trigger(availableNow=True)
        if job.sink:
            query = writer.format("consumerd").options(**job.sink).start()
        else:
            query = writer.format("parquet").start(str(job.table))
        query.awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
