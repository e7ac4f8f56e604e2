"""The job ``bronze``: a table that holds each landed record once.

What is new is a matter of names and footers: a plan (``landing.plan``) says which file gives which offsets, given what the
table's commits cover. Spark's tasks copy these rows from file to file, as Arrow, with no shuffle; the commit that adds their
files to the table says what it covers. A run that dies leaves the table as it was, or with some of its commits; the next one
plans by what they cover. Rows of one identity (topic, incarnation, partition, offset, index) are in the table once, however often
and wherever they have landed.

A file that is damaged is left out and told of, again in each run, until it is restored or removed; another chain that has
its records gives them.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Bronze
from consumerd.spark.bronze_rows import FOLDERS, Piece, read_piece, with_folders
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.landed_rows import DamagedFile, LandedContent
from consumerd.spark.landing.coverage import NOTHING, Coverage
from consumerd.spark.landing.footers import read_new
from consumerd.spark.landing.plan import LandingPlan, PlannedFile, plan_landing
from consumerd.spark.landing.scan import scan_landing
from consumerd.spark.landing.values import Landing
from consumerd.spark.table.commit import DataFile, Operation, encode_file, parse_file
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, escape_value
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, create_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "bronze"
BOUNDS: Final = ("incarnation", "partition", "offset", "timestamp", "landed")

SCHEMA: Final = StructType(
    [
        StructField("incarnation", StringType()),
        StructField("broker", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("next_offset", LongType()),
        StructField("index", IntegerType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("landed", TimestampType()),
        StructField("topic", StringType()),
        StructField("day", DateType()),
    ]
)
"""Columns of bronze. ``landed`` is when the file was written by which a record came; ``broker`` is of 0.7's partitions only;
``timestamp_type`` is null where the landed file does not say (JSON lines).
"""

TASK_BYTES: Final = 128 << 20
"""How much of landed files a task copies, about, when there is enough for all cores."""
SMALLEST_TASK_BYTES: Final = 8 << 20
_TRIES: Final = 3
_RETURNED: Final = "damaged boolean, content string"


class FilesDamaged(Exception):
    """Tasks have met files that are not what their metadata say; nothing was committed. ``reasons`` by path."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a commit has taken over."""

    version: int
    rows: int
    files: int


class Target(Protocol):
    """A table that bronze is kept in."""

    @property
    def place(self) -> str:
        """Where it is."""

    def covered(self) -> Coverage:
        """Return what it holds already. Raises ConsumerdError, OSError."""

    def take(self, spark: Sessions, plan: LandingPlan) -> Taken:
        """Carry out a plan made by what :meth:`covered` said last, in one commit.

        Raises FilesDamaged, TableConflict, and what Spark raises where a task fails.
        """


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Take over what has landed since the last run. See ``job.Run``."""
    bronze = settings.pipeline.bronze
    target = open_target(settings.location("bronze"), bronze)
    return take_over(
        spark,
        settings.landing_roots(),
        target,
        topics=settings.landing_topics(),
        commit_bytes=bronze.commit_bytes,
        progress=progress,
    )


def open_target(place: str, bronze: Bronze) -> Target:
    """Return the table at a place, which is made if there is none. Raises ConsumerdError, OSError."""
    table = create_table(place, name=JOB, schema=SCHEMA.json(), partition_by=FOLDERS)
    return ParquetTarget(
        table, FileSettings(compression=bronze.compression, level=bronze.compression_level, bounds=BOUNDS)
    )


def take_over(
    spark: Sessions,
    roots: Sequence[str | Path],
    target: Target,
    *,
    progress: Progress,
    topics: Iterable[str] | None = None,
    commit_bytes: int = 2 << 30,
) -> Summary:
    """Take over what of a landing zone a table does not hold yet, in commits of about ``commit_bytes`` of landed data.

    Raises ConfigError where a root is none, TableConflict where other jobs commit the same all the time, ConsumerdError, OSError,
    and what Spark raises where a task fails.
    """
    started = time.monotonic()
    wanted = None if topics is None else frozenset(topics)
    damage: dict[str, str] = {}
    taken: list[Taken] = []
    conflicts = 0
    while True:
        progress.step("reading names and footers")
        covered = target.covered()
        landing = _mark_damaged(read_new(scan_landing(roots, topics=wanted), covered), damage)
        plan = plan_landing(landing, covered)
        try:
            for part in _split(plan, commit_bytes):
                progress.step(
                    f"copying {sum(file.metadata.count for file in part.files)} rows of {len(part.files)} files"
                )
                taken.append(target.take(spark, part))
                progress.done(sum(one.files for one in taken), len(plan.files), "files")
            break
        except FilesDamaged as found:
            damage |= found.reasons
        except TableConflict:
            conflicts += 1
            if conflicts == _TRIES:
                raise
    return _summarize(target, landing, plan, taken, time.monotonic() - started)


def bronze_rows(
    spark: SparkSession, plan: LandingPlan, tabled: Sequence[DataFile] = (), home: Path | None = None
) -> DataFrame:
    """Return the rows that a plan gives as a frame with all columns of bronze. ``tabled`` are the table's files below ``home``."""
    groups = plan_tasks(plan, tabled, home, cores=spark.sparkContext.defaultParallelism)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in _own_pieces(groups, batches):
            for part in read_piece(piece):
                yield with_folders(part)

    return spark.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(read, SCHEMA)


class ParquetTarget:
    """See Target: a transactional table of Parquet files."""

    def __init__(self, table: Table, settings: FileSettings) -> None:
        self._table = table
        self._settings = settings
        self._planned_from = NOTHING

    @property
    def place(self) -> str:
        """See Target."""
        return str(self._table.path)

    def covered(self) -> Coverage:
        """See Target."""
        self._planned_from = self._table.snapshot().covered
        return self._planned_from

    def take(self, spark: Sessions, plan: LandingPlan) -> Taken:
        """See Target."""
        with self._table.begin(plan=_name(plan), job=JOB, operation=Operation.APPEND) as transaction:
            if transaction.base.covered != self._planned_from:
                raise TableConflict(
                    f"{self.place}: version {transaction.base.version} was committed while this run made its plan"
                )
            if plan.files:
                transaction.add(self._copy(spark(), plan, transaction.base, transaction.staging, transaction.attempt))
            counts = {"files_taken": len(plan.files), "files_passed": sum(map(_size, plan.passed.taken.values()))}
            commit = transaction.commit(covered=plan.adds, counts=counts)
        self._planned_from |= plan.adds
        return Taken(version=commit.version, rows=commit.rows, files=len(plan.files))

    def _copy(
        self, spark: SparkSession, plan: LandingPlan, base: Snapshot, staging: Path, attempt: str
    ) -> list[DataFile]:
        """Have a plan's rows copied by Spark's tasks. Raises FilesDamaged."""
        tabled = list(base.files.values())
        groups = plan_tasks(plan, tabled, self._table.path, cores=spark.sparkContext.defaultParallelism)
        copy = _make_copier(groups, str(staging), attempt, self._settings)
        returned = spark.range(0, len(groups), 1, len(groups)).mapInArrow(copy, _RETURNED).collect()
        damaged = [json.loads(row["content"]) for row in returned if row["damaged"]]
        if damaged:
            raise FilesDamaged({one["path"]: one["reason"] for one in damaged})
        return [parse_file(json.loads(row["content"])) for row in returned]


def plan_tasks(
    plan: LandingPlan, tabled: Sequence[DataFile], home: Path | None, *, cores: int
) -> list[tuple[Piece, ...]]:
    """Divide a plan among tasks: each has a run of its files, all of about the same size. Raises OSError."""
    pieces = list(_make_pieces(plan, tabled, home))
    sizes = [Path(piece.content.path).stat().st_size for piece in pieces]
    total = sum(sizes)
    wanted = max(math.ceil(total / TASK_BYTES), min(2 * cores, math.ceil(total / SMALLEST_TASK_BYTES)), 1)
    groups: dict[int, list[Piece]] = {}
    before = 0
    for piece, size in zip(pieces, sizes, strict=True):
        groups.setdefault((before + size // 2) * wanted // max(total, 1), []).append(piece)
        before += size
    return [tuple(group) for group in groups.values()]


def _make_pieces(plan: LandingPlan, tabled: Sequence[DataFile], home: Path | None) -> Iterator[Piece]:
    given: dict[object, list[PlannedFile]] = {}
    for planned in plan.files:
        earlier = given.setdefault(planned.log, [])
        contested = planned.contested
        yield Piece(
            content=_content(planned),
            topic=planned.log.topic,
            incarnation=str(planned.log.incarnation),
            broker=planned.log.partition.broker,
            partition=planned.log.partition.number,
            ranges=None if planned.whole else planned.ranges,
            contested=contested,
            earlier=tuple(_content(other) for other in earlier if contested & (other.ranges | other.contested)),
            tabled=tuple(_find_tabled(planned, tabled, home)) if contested else (),
        )
        earlier.append(planned)


def _content(planned: PlannedFile) -> LandedContent:
    return LandedContent(
        path=planned.path,
        extension=planned.extension,
        count=planned.metadata.count,
        sha256=planned.metadata.sha256,
    )


def _find_tabled(planned: PlannedFile, tabled: Sequence[DataFile], home: Path | None) -> Iterator[str]:
    """Yield the table's files that may hold some of a planned file's contested offsets."""
    low, high = planned.contested.spans[0].start, planned.contested.spans[-1].end
    for file in tabled:
        offsets, partitions = file.bounds.get("offset"), file.bounds.get("partition")
        if file.values[:1] != (escape_value(planned.log.topic),) or offsets is None or partitions is None:
            continue
        if (
            int(offsets.low) < high
            and low <= int(offsets.high)
            and int(partitions.low) <= planned.log.partition.number <= int(partitions.high)
        ):
            assert home is not None
            yield str(home / file.path)


def _make_copier(
    groups: Sequence[tuple[Piece, ...]], staging: str, attempt: str, settings: FileSettings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task does, for ``mapInArrow``: copy its pieces, return files, or damage, as ``_RETURNED``."""

    def copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _context().taskAttemptId()
        prefix = f"{attempt}-{task:05d}"
        writer = PartitionedWriter(Path(staging), prefix=prefix, partition_by=FOLDERS, settings=settings)
        damaged: list[DamagedFile] = []
        try:
            for piece in _own_pieces(groups, batches):
                try:
                    for part in read_piece(piece):
                        writer.append_part((escape_value(part.topic), part.day.isoformat()), part.rows)
                except DamagedFile as error:
                    damaged.append(error)
            files = [] if damaged else writer.finish()
        finally:
            writer.abort()
        contents = [json.dumps({"path": error.path, "reason": error.reason}) for error in damaged]
        contents += [json.dumps(encode_file(file)) for file in files]
        flags = pa.array([True] * len(damaged) + [False] * len(files), pa.bool_())
        yield pa.RecordBatch.from_arrays([flags, pa.array(contents, pa.string())], names=["damaged", "content"])

    return copy


def _own_pieces(groups: Sequence[tuple[Piece, ...]], batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    """Yield the pieces of the task that this is; its input is a row that says nothing."""
    for _ in batches:
        pass
    if groups:
        yield from groups[_context().partitionId()]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # this runs in tasks only
    return context


def _split(plan: LandingPlan, commit_bytes: int) -> Iterator[LandingPlan]:
    """Yield the plan's parts; none where there is nothing to commit. Raises OSError."""
    if plan.is_empty:
        if plan.passed.taken:
            yield plan
        return
    sizes = sum(Path(planned.path).stat().st_size for planned in plan.files)
    rows = sum(planned.metadata.count for planned in plan.files)
    yield from plan.split(max(1, rows * commit_bytes // max(1, sizes)))


def _mark_damaged(landing: Landing, damage: Mapping[str, str]) -> Landing:
    """Return the zone with what tasks have found out about files."""
    if not damage:
        return landing
    chains = [
        replace(
            chain,
            files=tuple(
                replace(file, metadata=None, damage=f"{file.path} {damage[file.path]}") if file.path in damage else file
                for file in chain.files
            ),
        )
        for chain in landing.chains
    ]
    return replace(landing, chains=tuple(chains))


def _name(plan: LandingPlan) -> str:
    """Return a plan's name, by what the table covers after it: a table covers nothing twice, so no two have the same."""
    return hashlib.sha256(json.dumps(plan.adds.encode(), sort_keys=True).encode()).hexdigest()[:32]


def _size(ranges: Iterable[object]) -> int:
    return sum(1 for _ in ranges)


def _summarize(target: Target, landing: Landing, plan: LandingPlan, taken: Sequence[Taken], seconds: float) -> Summary:
    rows = sum(one.rows for one in taken)
    numbers = {
        "table": target.place,
        "rows": rows,
        "files_landed": landing.file_count,
        "files_taken": sum(one.files for one in taken),
        "files_damaged": len(plan.damaged),
        "commits": len(taken),
        "version": taken[-1].version if taken else None,
        "elapsed_s": round(seconds, 3),
        "rows_per_s": round(rows / seconds) if rows and seconds else 0,
    }
    return Summary(
        numbers=numbers,
        findings=tuple(str(finding) for finding in plan.damaged),
        notes=() if rows else ("nothing new has landed",),
    )
