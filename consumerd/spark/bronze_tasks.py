# SPDX-License-Identifier: Apache-2.0
"""Plans executed by Spark's tasks: returned as a DataFrame, or copied into a table's files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from consumerd.landing.filesystem import FileSystem
from consumerd.landing.plan import LandingPlan, PlannedFile
from consumerd.spark.bronze_rows import FOLDERS, FilePiece, read_piece
from consumerd.spark.bronze_schema import SCHEMA, FilesDamaged
from consumerd.spark.job import Sessions
from consumerd.spark.landed_rows import DamagedFile, LandedContent
from consumerd.spark.table.commit import DataFile, encode_file, parse_file
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.transaction import Transaction

TASK_BYTES: Final = 128 << 20
"""Bytes of landed files that a task copies, about, if there is enough for all cores."""
SMALLEST_TASK_BYTES: Final = 8 << 20
_RETURNED: Final = "damaged boolean, content string"


def bronze_rows(
    spark: SparkSession, plan: LandingPlan, tabled: Sequence[DataFile] = (), home: Path | None = None
) -> DataFrame:
    """Return a plan's rows as a DataFrame with all columns of bronze.

    Args:
        tabled: the table's files.
        home: the table's folder.
    """
    groups = plan_tasks(plan, tabled, home, cores=spark.sparkContext.defaultParallelism)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in _own_pieces(groups, batches):
            yield from (part.with_folders() for part in read_piece(piece))

    return spark.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(read, SCHEMA)


def copy_rows(spark: Sessions, transaction: Transaction, plan: LandingPlan, settings: FileSettings) -> list[DataFile]:
    """Copy a plan's rows into staged files, in Spark's tasks. Raises FilesDamaged, OSError."""
    tabled = list(transaction.base.files.values())
    session = spark()
    groups = plan_tasks(plan, tabled, transaction.table.path, cores=session.sparkContext.defaultParallelism)
    copy = _make_copier(groups, str(transaction.staging), transaction.attempt, settings)
    returned = session.range(0, len(groups), 1, len(groups)).mapInArrow(copy, _RETURNED).collect()
    damaged = [json.loads(row["content"]) for row in returned if row["damaged"]]
    if damaged:
        raise FilesDamaged({one["path"]: one["reason"] for one in damaged})
    return [parse_file(json.loads(row["content"])) for row in returned]


def plan_tasks(
    plan: LandingPlan, tabled: Sequence[DataFile], home: Path | None, *, cores: int
) -> list[tuple[FilePiece, ...]]:
    """Divide a plan into consecutive pieces for tasks, of about the same size each. Raises OSError."""
    pieces = list(_make_pieces(plan, tabled, home))
    sizes = [Path(piece.content.path).stat().st_size for piece in pieces]
    total = sum(sizes)
    wanted = max(math.ceil(total / TASK_BYTES), min(2 * cores, math.ceil(total / SMALLEST_TASK_BYTES)), 1)
    groups: dict[int, list[FilePiece]] = {}
    before = 0
    for piece, size in zip(pieces, sizes, strict=True):
        groups.setdefault((before + size // 2) * wanted // max(total, 1), []).append(piece)
        before += size
    return [tuple(group) for group in groups.values()]


def _make_pieces(plan: LandingPlan, tabled: Sequence[DataFile], home: Path | None) -> Iterator[FilePiece]:
    given: dict[object, list[PlannedFile]] = {}
    for planned in plan.files:
        earlier = given.setdefault(planned.log, [])
        contested = planned.contested
        yield FilePiece(
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
        partition=planned.log.topic_partition,
        extension=planned.extension,
        count=planned.metadata.count,
        sha256=planned.metadata.sha256,
    )


def _find_tabled(planned: PlannedFile, tabled: Sequence[DataFile], home: Path | None) -> Iterator[str]:
    """Yield the table's files that may hold some of a planned file's contested offsets."""
    low, high = planned.contested.spans[0].start, planned.contested.spans[-1].end
    for file in tabled:
        offsets, partitions = file.bounds.get("offset"), file.bounds.get("partition")
        if file.values[:1] != (escape_value(planned.log.topic),):
            continue
        # a file without bounds (another writer has put it together) may hold anything
        if (offsets is None or (int(offsets.low) < high and low <= int(offsets.high))) and (
            partitions is None or int(partitions.low) <= planned.log.partition.number <= int(partitions.high)
        ):
            assert home is not None
            yield str(home / file.path)


def _make_copier(
    groups: Sequence[tuple[FilePiece, ...]], staging: str, attempt: str, settings: FileSettings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that copies a task's pieces and yields ``_RETURNED``."""

    def copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prefix = f"{attempt}-{_context().taskAttemptId():05d}"
        copied = copy_pieces(_own_pieces(groups, batches), Path(staging), prefix=prefix, settings=settings)
        contents = [json.dumps({"path": error.path, "reason": error.reason}) for error in copied.damaged]
        contents += [json.dumps(encode_file(file)) for file in copied.files]
        flags = pa.array([True] * len(copied.damaged) + [False] * len(copied.files), pa.bool_())
        yield pa.RecordBatch.from_arrays([flags, pa.array(contents, pa.string())], names=["damaged", "content"])

    return copy


@dataclass(frozen=True, slots=True)
class CopiedPieces:
    """Result of one task: its staged files, or the damaged files that it has met."""

    files: tuple[DataFile, ...]
    damaged: tuple[DamagedFile, ...]


def copy_pieces(
    pieces: Iterable[FilePiece], staging: Path, *, prefix: str, settings: FileSettings, files: FileSystem | None = None
) -> CopiedPieces:
    """Copy one task's pieces into staged files. Needs no Spark. Raises OSError, pyarrow's ArrowException.

    Args:
        prefix: beginning of the files' names, unique for the attempt of the task.
        files: the file system, which makes them durable.
    """
    writer = PartitionedWriter(staging, prefix=prefix, partition_by=FOLDERS, settings=settings, files=files)
    damaged: list[DamagedFile] = []
    try:
        for piece in pieces:
            try:
                for part in read_piece(piece):
                    # almost always one day: columns for the writer to divide by would cost a tenth of the copy
                    if part.folders is None:
                        writer.append(part.with_folders())
                    else:
                        writer.append_part(part.folders, part.rows)
            except DamagedFile as error:
                damaged.append(error)
        staged = [] if damaged else writer.finish()
    finally:
        writer.abort()
    return CopiedPieces(tuple(staged), tuple(damaged))


def _own_pieces(groups: Sequence[tuple[FilePiece, ...]], batches: Iterable[pa.RecordBatch]) -> Iterator[FilePiece]:
    """Yield the pieces of this task. Its input rows have no meaning."""
    for _ in batches:
        pass
    if groups:
        yield from groups[_context().partitionId()]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # this runs in tasks only
    return context
