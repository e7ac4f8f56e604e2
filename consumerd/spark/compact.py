# SPDX-License-Identifier: Apache-2.0
"""The job ``compact``: merges small files into larger sorted ones, and vacuums all tables.

In each folder of a table (a topic's day), files below half of the target size are merged, neighbours by offset first,
into sorted files of about that size. Larger files stay as they are. A commit adds as many rows as it removes. Readers
of older versions keep their files until ``keep_ms`` after the commit that removed them.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.config.job import JobSettings
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.snapshot import is_filled_by_stream
from consumerd.spark.table.transaction import Table, Transaction
from consumerd.spark.table.vacuum import Vacuumed, vacuum
from consumerd.spark.table_commands import find_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "compact"
SORT_BY: Final = ("incarnation", "broker", "partition", "offset", "index")
"""Columns to sort by, as far as a table has them."""
GROUPS_AT_ONCE: Final = 32
"""New files per commit, each written by one task."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGroup:
    """Files of one folder that are merged into one."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows in all of them."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Result of compacting a table. Sizes in bytes."""

    table: str
    removed: int = 0
    added: int = 0
    rows: int = 0
    size_before: int = 0
    size_after: int = 0
    version: int = 0


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Compact and vacuum every table of the pipeline, and those below its path that streams fill. See ``job.Run``."""
    bronze, compact = settings.pipeline.bronze, settings.pipeline.compact
    done: list[Compacted] = []
    removed: list[Vacuumed] = []
    named = settings.tables()
    for name, table in find_tables(settings).items():
        if name not in named and not is_filled_by_stream(table.snapshot()):
            continue
        progress.step(f"compacting {table.path}")
        file_settings = FileSettings(compression=bronze.compression, level=bronze.compression_level)
        done.append(
            compact_table(
                spark,
                table,
                target_bytes=compact.target_bytes,
                min_files=compact.min_files,
                settings=file_settings,
                progress=progress,
            )
        )
        progress.step(f"removing what was replaced in {table.path}")
        now_ms = time.time_ns() // 1_000_000
        removed.append(vacuum(table, keep_ms=compact.keep_ms, keep_log_ms=compact.keep_log_ms, now_ms=now_ms))
    numbers = {
        "tables": len(done),
        "files_replaced": sum(one.removed for one in done),
        "files_made": sum(one.added for one in done),
        "rows": sum(one.rows for one in done),
        "replaced_bytes": sum(one.size_before for one in done),
        "made_bytes": sum(one.size_after for one in done),
        "files_vacuumed": sum(one.replaced + one.abandoned for one in removed),
        "vacuumed_bytes": sum(one.size for one in removed),
        "log_files_expired": sum(one.expired for one in removed),
    }
    notes = () if done else ("there is no table yet",)
    return Summary(numbers=numbers, notes=notes)


def compact_table(
    spark: Sessions,
    table: Table,
    *,
    target_bytes: int,
    progress: Progress,
    min_files: int = 2,
    settings: FileSettings | None = None,
) -> Compacted:
    """Compact one table, in as many commits as it takes.

    Beside other jobs: what they append meanwhile stays; where one of them has compacted the same files, it is planned
    anew, a few times. Raises TableConflict after these, TableError, OSError, and what Spark raises where a task fails.
    """
    done = Compacted(table=str(table.path))
    conflicts = 0
    while True:
        snapshot = table.snapshot()
        groups = plan_groups(list(snapshot.files.values()), target_bytes=target_bytes, min_files=min_files)
        if not groups:
            return done
        try:
            for part in _parts(groups):
                done = _add(done, _compact(spark(), table, part, settings or FileSettings()))
                progress.done(done.removed, sum(len(group.files) for group in groups), "files")
        except TableConflict:
            conflicts += 1
            if conflicts == _TRIES:
                raise
            continue
        return done


def plan_groups(files: Sequence[DataFile], *, target_bytes: int, min_files: int) -> list[MergeGroup]:
    """Return groups of files to merge: two or more of one folder, neighbours in sort order. Pure."""
    folders: defaultdict[tuple[str, ...], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.size < target_bytes / 2:
            folders[file.values].append(file)
    groups: list[MergeGroup] = []
    for _, small in sorted(folders.items()):
        if len(small) >= min_files:
            groups += _pack(sorted(small, key=_place), target_bytes)
    return groups


def _pack(files: Sequence[DataFile], target_bytes: int) -> Iterator[MergeGroup]:
    part: list[DataFile] = []
    for file in files:
        if part and sum(one.size for one in part) + file.size > target_bytes:
            if len(part) > 1:
                yield MergeGroup(files=tuple(part))
            part = []
        part.append(file)
    if len(part) > 1:
        yield MergeGroup(files=tuple(part))


def _place(file: DataFile) -> tuple[object, ...]:
    """Return a file's sort key."""
    lows = [file.bounds[name].low if name in file.bounds else None for name in SORT_BY]
    return (
        *(
            (low is not None, str(low) if name == "incarnation" else low or 0)
            for name, low in zip(SORT_BY, lows, strict=True)
        ),
        file.path,
    )


def _parts(groups: Sequence[MergeGroup]) -> Iterator[Sequence[MergeGroup]]:
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        yield groups[first : first + GROUPS_AT_ONCE]


def _compact(spark: SparkSession, table: Table, groups: Sequence[MergeGroup], settings: FileSettings) -> Compacted:
    old = [file for group in groups for file in group.files]
    name = hashlib.sha256("\n".join(file.path for file in old).encode()).hexdigest()[:32]
    with table.begin(plan=name, job=JOB, operation=Operation.COMPACT) as transaction:
        gone = [file.path for file in old if file.path not in transaction.base.files]
        if gone:
            raise TableConflict(f"{table.path / gone[0]} was replaced by another job while this one made its plan")
        frame = _sorted_rows(spark, transaction, groups)
        bounds = sorted({name for file in old for name in file.bounds})
        new = write_frame(transaction, frame, bounds=bounds, settings=settings)
        before, after = sum(file.rows for file in old), sum(file.rows for file in new)
        if before != after:
            raise TableError(
                f"{table.path}: {len(old)} files hold {after} rows, the log says {before}; nothing was changed"
            )
        transaction.remove(file.path for file in old)
        transaction.add(new)
        commit = transaction.commit()
    return Compacted(
        table=str(table.path),
        removed=len(old),
        added=len(new),
        rows=after,
        size_before=sum(file.size for file in old),
        size_after=sum(file.size for file in new),
        version=commit.version,
    )


def _sorted_rows(spark: SparkSession, transaction: Transaction, groups: Sequence[MergeGroup]) -> DataFrame:
    """Return the groups' rows, each group sorted in a Spark partition of its own."""
    table = transaction.table
    schema = table.schema(transaction.base)
    frames = [read_files(spark, table, group.files, schema).coalesce(1) for group in groups]
    order = [name for name in SORT_BY if name in frames[0].columns]
    ordered = [frame.sortWithinPartitions(*order) if order else frame for frame in frames]
    return functools.reduce(lambda left, right: left.unionByName(right), ordered)


def _add(done: Compacted, part: Compacted) -> Compacted:
    return Compacted(
        table=done.table,
        removed=done.removed + part.removed,
        added=done.added + part.added,
        rows=done.rows + part.rows,
        size_before=done.size_before + part.size_before,
        size_after=done.size_after + part.size_after,
        version=part.version,
    )
