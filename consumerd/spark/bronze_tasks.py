# SPDX-License-Identifier: Apache-2.0
"""Copies landed records into new files of the table ``bronze``, in Spark's tasks.

A plan (``landing.plan``) names the rows. Tasks get consecutive parts of it, of about the same number of bytes each.

Example: a plan of 1 GiB on 4 cores becomes 8 tasks of 128 MiB; one of 40 MiB becomes 5 tasks of 8 MiB.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from consumerd.landing.filesystem import FileSystem
from consumerd.landing.plan import LandingPlan, PlannedFile
from consumerd.spark.bronze_rows import FOLDERS, FilePiece, read_piece
from consumerd.spark.job import Sessions
from consumerd.spark.landed_rows import DamagedFile, LandedContent
from consumerd.spark.table.commit import DataFile, encode_file, parse_file
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.task_rows import divide_by_size
from consumerd.spark.table.transaction import Transaction
from consumerd.spark.tasks import find_task, run_shares

TASK_BYTES: Final = 128 << 20
"""Approximate bytes of landed files that a task copies, in plans that are large enough."""
SMALLEST_TASK_BYTES: Final = 8 << 20
"""Smallest approximate bytes per task.

A small plan is not divided further, even if cores are free.
"""
_RESULT: Final = "damaged boolean, content string"
"""Schema of the rows that tasks return.

``content`` is JSON: a damaged file and the reason, or a staged file.
"""


class FilesDamaged(Exception):
    """Raised if landed files contradict their metadata; then nothing was committed.

    ``reasons`` has one text for each path.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


def copy_rows(spark: Sessions, transaction: Transaction, plan: LandingPlan, settings: FileSettings) -> list[DataFile]:
    """Copy a plan's rows from landed files into new files of ``transaction``, in Spark's tasks.

    Returns the new files, which are not part of the table before the commit. Raises FilesDamaged, OSError.
    """
    table_files = list(transaction.base.files.values())
    session = spark()
    groups = plan_tasks(plan, table_files, transaction.table.path, cores=session.sparkContext.defaultParallelism)
    copy = functools.partial(_copy, transaction.staging, transaction.attempt, settings)
    returned = run_shares(session, groups, copy, _RESULT).collect()
    damaged = [json.loads(row["content"]) for row in returned if row["damaged"]]
    if damaged:
        raise FilesDamaged({one["path"]: one["reason"] for one in damaged})
    return [parse_file(json.loads(row["content"])) for row in returned]


def plan_tasks(
    plan: LandingPlan, table_files: Sequence[DataFile], table_folder: Path, *, cores: int
) -> list[tuple[FilePiece, ...]]:
    """Return groups of consecutive landed files to copy, one group per Spark task.

    Raises OSError.

    Args:
        plan: the offsets to take from each landed file.
        table_files: files of the table, to be compared where two files may have the same record.
        table_folder: folder of the table.
        cores: number of tasks that run at the same time.
    """
    pieces = list(_make_pieces(plan, table_files, table_folder))
    sizes = [Path(piece.content.path).stat().st_size for piece in pieces]
    total = sum(sizes)
    wanted = max(math.ceil(total / TASK_BYTES), min(2 * cores, math.ceil(total / SMALLEST_TASK_BYTES)), 1)
    return divide_by_size(pieces, sizes, wanted)


def _make_pieces(plan: LandingPlan, table_files: Sequence[DataFile], table_folder: Path) -> Iterator[FilePiece]:
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
            table_files=tuple(_find_table_files(planned, table_files, table_folder)) if contested else (),
        )
        earlier.append(planned)


def _content(planned: PlannedFile) -> LandedContent:
    return LandedContent(
        path=planned.file.path,
        partition=planned.log.topic_partition,
        extension=planned.extension,
        count=planned.metadata.count,
        sha256=planned.metadata.sha256,
    )


def _find_table_files(planned: PlannedFile, table_files: Sequence[DataFile], table_folder: Path) -> Iterator[str]:
    """Yield the table's files that may have a planned file's contested offsets."""
    low, high = planned.contested.spans[0].start, planned.contested.spans[-1].end
    for file in table_files:
        offsets, partitions = file.bounds.get("offset"), file.bounds.get("partition")
        if file.values[:1] != (escape_value(planned.log.topic),):
            continue
        # a file without bounds, of another writer, may have any offset
        if (offsets is None or (int(offsets.low) < high and low <= int(offsets.high))) and (
            partitions is None or int(partitions.low) <= planned.log.partition.number <= int(partitions.high)
        ):
            yield str(table_folder / file.path)


def _copy(staging: Path, attempt: str, settings: FileSettings, pieces: Sequence[FilePiece]) -> Iterator[pa.RecordBatch]:
    """Copy a task's pieces; yield ``_RESULT``."""
    copied = copy_pieces(pieces, staging, prefix=f"{attempt}-{find_task():05d}", settings=settings)
    contents = [json.dumps({"path": error.path, "reason": error.reason}) for error in copied.damaged]
    contents += [json.dumps(encode_file(file)) for file in copied.files]
    flags = pa.array([True] * len(copied.damaged) + [False] * len(copied.files), pa.bool_())
    yield pa.RecordBatch.from_arrays([flags, pa.array(contents, pa.string())], names=["damaged", "content"])


@dataclass(frozen=True, slots=True)
class CopiedPieces:
    """Result of one copying task: its new files, or the damaged files it met."""

    files: tuple[DataFile, ...]
    damaged: tuple[DamagedFile, ...]


def copy_pieces(
    pieces: Iterable[FilePiece], staging: Path, *, prefix: str, settings: FileSettings, files: FileSystem | None = None
) -> CopiedPieces:
    """Copy the rows of one task's landed files into staged files. Needs no Spark.

    Args:
        staging: folder of the transaction that the task works for.
        prefix: prefix of the new files' names, unique for the attempt of the task.
        files: file system to write with; tests pass a faulty one.

    Raises OSError, pyarrow's ArrowException.
    """
    writer = PartitionedWriter(staging, prefix=prefix, partition_by=FOLDERS, settings=settings, files=files)
    damaged: list[DamagedFile] = []
    with closing(writer):
        for piece in pieces:
            try:
                for part in read_piece(piece):
                    # Nearly always all rows are of one day. Then the writer needs no folder columns to divide by,
                    # which would cost a tenth of the copy's time.
                    if part.folders is None:
                        writer.append(part.with_folders())
                    else:
                        writer.append_part(part.folders, part.rows)
            except DamagedFile as error:
                damaged.append(error)
        staged = [] if damaged else writer.finish()  # with damage, nothing is committed
    return CopiedPieces(tuple(staged), tuple(damaged))
