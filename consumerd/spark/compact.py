# SPDX-License-Identifier: Apache-2.0
"""The job ``compact``: merges small files into larger sorted ones, and vacuums all tables.

In each folder of a table (bronze: a topic's day), files smaller than half of the target size are merged with their
neighbours by offset. Larger files stay as they are. A commit removes as many rows as it adds.

Example, with a target of 128 MiB: a folder has files of 100, 50, 40, 30 and 20 MiB. The four files below 64 MiB are
sorted by offset; the first three fill one new file of 120 MiB, and the last one waits for more.

Vacuum then removes replaced files, ``keep_ms`` after the commit that replaced them. Until then readers of older
versions can use them.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.config.job import JobSettings
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.table.commit import DataFile, Operation, cut_files, rows_of
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.snapshot import is_filled_by_stream
from consumerd.spark.table.transaction import Table, Transaction, retry_conflicts
from consumerd.spark.table.vacuum import Vacuumed, vacuum
from consumerd.spark.table_commands import find_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "compact"
"""Name of the job in the table's commits."""
SORT_BY: Final = ("incarnation", "broker", "partition", "offset", "index")
"""Columns that a new file is sorted by, as far as the table has them."""
GROUPS_AT_ONCE: Final = 32
"""New files per commit. Each is written by one task."""

MergeGroup = tuple[DataFile, ...]
"""Files of one folder of a table that are merged into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Result of compacting one table: numbers of files and rows, sizes in bytes.

    ``removed`` files with ``size_before`` bytes were replaced by ``added`` files with ``size_after`` bytes. ``rows`` is
    the number of rows in them.
    """

    removed: int = 0
    added: int = 0
    rows: int = 0
    size_before: int = 0
    size_after: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            removed=self.removed + other.removed,
            added=self.added + other.added,
            rows=self.rows + other.rows,
            size_before=self.size_before + other.size_before,
            size_after=self.size_after + other.size_after,
        )


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Merge small files of the pipeline's tables, and remove replaced files.

    Tables that streams fill below the pipeline's path are among them. Returns the summary. Raises ConfigError,
    TableError, OSError, and Spark's exceptions.
    """
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
    """Compact one table, in as many commits as needed.

    Rows that other jobs append meanwhile stay. If another job has replaced the same files, the rest is planned again.

    Args:
        target_bytes: approximate size of new files.
        min_files: smallest number of small files in a folder that are worth merging.

    Raises TableConflict if other jobs keep replacing the same files, TableError, OSError, and Spark's exceptions if a
    task fails.
    """
    done: list[Compacted] = []

    def compact() -> None:
        groups = plan_groups(list(table.snapshot().files.values()), target_bytes=target_bytes, min_files=min_files)
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            part = groups[first : first + GROUPS_AT_ONCE]
            done.append(_compact(spark(), table, part, settings or FileSettings()))
            progress.done(sum(one.removed for one in done), sum(map(len, groups)), "files")

    retry_conflicts(compact)
    return sum(done, Compacted())


def plan_groups(files: Sequence[DataFile], *, target_bytes: int, min_files: int) -> list[MergeGroup]:
    """Return groups of small files to merge, each into about ``target_bytes``. Pure.

    Only files below half of ``target_bytes`` count as small, and only folders with at least ``min_files`` of them are
    merged. A group has at least two files of one folder, next to each other in sort order.
    """
    folders: defaultdict[tuple[str, ...], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.size < target_bytes / 2:
            folders[file.values].append(file)
    groups: list[MergeGroup] = []
    for _, small in sorted(folders.items()):
        if len(small) >= min_files:
            parts = cut_files(sorted(small, key=_sort_key), target_bytes)
            groups += [part for part in parts if len(part) > 1]  # a single file needs no merge
    return groups


def _sort_key(file: DataFile) -> tuple[object, ...]:
    """Return a file's sort key: its lower bounds. Files without bounds come first."""
    lows = [file.bounds[name].low if name in file.bounds else None for name in SORT_BY]
    return (
        *(
            (low is not None, str(low) if name == "incarnation" else low or 0)
            for name, low in zip(SORT_BY, lows, strict=True)
        ),
        file.path,
    )


def _compact(spark: SparkSession, table: Table, groups: Sequence[MergeGroup], settings: FileSettings) -> Compacted:
    old = [file for group in groups for file in group]
    name = hashlib.sha256("\n".join(file.path for file in old).encode()).hexdigest()[:32]
    with table.begin(plan=name, job=JOB, operation=Operation.COMPACT) as transaction:
        transaction.expect(old)
        frame = _sorted_rows(spark, transaction, groups)
        bounds = sorted({name for file in old for name in file.bounds})
        new = write_frame(transaction, frame, bounds=bounds, settings=settings)
        before, after = rows_of(old), rows_of(new)
        if before != after:
            raise TableError(
                f"{table.path}: {len(old)} files hold {after} rows, the log says {before}; nothing was changed"
            )
        transaction.remove(file.path for file in old)
        transaction.add(new)
        transaction.commit()
    return Compacted(
        removed=len(old),
        added=len(new),
        rows=after,
        size_before=sum(file.size for file in old),
        size_after=sum(file.size for file in new),
    )


def _sorted_rows(spark: SparkSession, transaction: Transaction, groups: Sequence[MergeGroup]) -> DataFrame:
    """Return the groups' rows, each group sorted in a Spark partition of its own."""
    table = transaction.table
    schema = table.schema(transaction.base)
    frames = [read_files(spark, table, group, schema).coalesce(1) for group in groups]
    order = [name for name in SORT_BY if name in frames[0].columns]
    ordered = [frame.sortWithinPartitions(*order) if order else frame for frame in frames]
    return functools.reduce(lambda left, right: left.unionByName(right), ordered)
