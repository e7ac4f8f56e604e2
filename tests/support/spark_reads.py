# SPDX-License-Identifier: Apache-2.0
"""Reads with Spark in a process of its own, and what was read as Parquet files: for a session, a pyspark or a master that is
not the one of the tests' own process, which can have but one session.

``python -m tests.support.spark_reads JOB`` takes a file with what :func:`run_reads` was asked for. With ``--serve`` it goes
on: it takes reads from its input, one a line, and answers each with a line (:class:`SparkReader`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from tests.support.served_process import end_served

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

EXECUTOR: Final = "executor"
"""A column that a marked read has besides: what tells executors apart."""

REFUSED: Final = "refused"
"""Another: whether executors were refused what is the driver's own (``tests/support/executor_guard``)."""

_ROOT: Final = Path(__file__).resolve().parents[2]


class SparkFailed(Exception):
    """The process ended with an error; carries the end of what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRead:
    """Read ``format`` with ``options``, as a stream until nothing is left if so wanted, into the folder ``to``.

    ``marked`` adds the columns :data:`EXECUTOR` and :data:`REFUSED`.
    """

    format: str
    options: Mapping[str, str]
    to: str
    streaming: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """Statements of SQL and then reads, one after the other, and the session for them.

    ``settings`` come over those that all such sessions have.
    """

    reads: Sequence[SparkRead]
    statements: Sequence[str] = ()
    master: str = "local[2]"
    settings: Mapping[str, str] = field(default_factory=dict)


def run_reads(
    job: SparkJob, folder: Path, *, environment: Mapping[str, str] | None = None, timeout_s: float = 120.0
) -> list[Any]:
    """Carry out a job in a process, and return the schema of each read, as Spark's JSON says it.

    The process works in ``folder``. Raises SparkFailed, and subprocess.TimeoutExpired.
    """
    command, given = _prepare(job, folder, environment)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=given,
        cwd=folder,
    )
    if done.returncode != 0:
        raise SparkFailed(f"ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-6000:]}")
    schemas: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return schemas


class SparkReader:
    """A process whose session reads what it is asked for, one after the other. ``with`` starts and ends it.

    It works in ``folder``, and carries out the job's statements and reads first.
    """

    def __init__(self, job: SparkJob, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        command, given = _prepare(job, folder, environment)
        self._said = folder / "said"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*command, "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=given,
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        end_served(self._process)

    def read(self, read: SparkRead) -> None:
        """Have one read done; waits for it. Raises SparkFailed."""
        requests = self._pipe(self._process.stdin)
        with contextlib.suppress(OSError):  # it has ended; what it said is told below
            requests.write(f"{json.dumps(dataclasses.asdict(read))}\n")
            requests.flush()
        answer = self._pipe(self._process.stdout).readline()
        if not answer:
            raise SparkFailed(f"ended with {self._process.wait()}:\n{self._said.read_text()[-6000:]}")
        if failure := json.loads(answer):
            raise SparkFailed(failure)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _prepare(job: SparkJob, folder: Path, environment: Mapping[str, str] | None) -> tuple[list[str], Mapping[str, str]]:
    """Write a job down; return the command that carries it out, and its environment."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.json"
    file.write_text(json.dumps(dataclasses.asdict(job)))
    given = dict(os.environ if environment is None else environment)
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (given.get("PYTHONPATH"), str(_ROOT))))
    return [sys.executable, "-m", "tests.support.spark_reads", str(file)], given


def main() -> None:
    """Carry out a job, and print the schemas as one line of JSON; or answer reads from now on."""
    fields = json.loads(Path(sys.argv[1]).read_text())
    job = SparkJob(**{**fields, "reads": [SparkRead(**read) for read in fields["reads"]]})
    spark = start_session(job.master, job.settings)
    try:
        for statement in job.statements:
            spark.sql(statement).collect()
        schemas = [_read(spark, number, read) for number, read in enumerate(job.reads)]
        if sys.argv[2:] == ["--serve"]:
            _serve(spark, len(schemas))
            return
    finally:
        spark.stop()
    sys.stdout.write(f"{json.dumps(schemas)}\n")


def _serve(spark: SparkSession, first: int) -> None:
    """Read what each line of the input asks for; answer with an empty text, or with what went wrong."""
    for number, line in enumerate(sys.stdin, first):
        failure = ""
        try:
            _read(spark, number, SparkRead(**json.loads(line)))
        except Exception:  # noqa: BLE001 - told to whoever asked, whatever Spark raises
            failure = traceback.format_exc()[-6000:]
        sys.stdout.write(f"{json.dumps(failure)}\n")
        sys.stdout.flush()


def start_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start a session that knows the format ``consumerd``."""
    from consumerd.spark import local_session, register

    ours = {
        "spark.sql.shuffle.partitions": "2",
        # as other readers of Parquet expect them; Spark's own choice changed between its releases
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    spark = local_session("tests", master=master, settings={**ours, **settings})
    register(spark)
    return spark


def _read(spark: SparkSession, number: int, read: SparkRead) -> Any:
    reader = spark.readStream if read.streaming else spark.read
    frame = reader.format(read.format).options(**read.options).load()
    schema = json.loads(frame.schema.json())
    if read.marked:
        frame = _marked(frame)
    if read.streaming:
        checkpoint = str(Path(read.to).with_name(f"checkpoint-{number}"))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(read.to).awaitTermination()
    else:
        frame.write.parquet(read.to)
    return schema


def _marked(frame: DataFrame) -> DataFrame:
    from pyspark.sql.types import BooleanType, LongType, StructField, StructType

    added = [StructField(EXECUTOR, LongType()), StructField(REFUSED, BooleanType())]
    return frame.mapInArrow(_make_marker(), StructType([*frame.schema.fields, *added]))


def _make_marker() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        # the parent of a worker is the daemon that forks all workers of an executor
        parent, refused = os.getppid(), _is_refused()
        for batch in batches:
            marks = [pa.array([parent] * len(batch), pa.int64()), pa.array([refused] * len(batch), pa.bool_())]
            yield pa.RecordBatch.from_arrays([*batch.columns, *marks], names=[*batch.schema.names, EXECUTOR, REFUSED])

    return mark


def _is_refused() -> bool:
    try:
        os.listdir(os.environ["CONSUMERD_DRIVERS_OWN"])  # noqa: PTH208
    except PermissionError:
        return True
    return False


if __name__ == "__main__":
    main()
