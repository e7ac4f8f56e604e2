# SPDX-License-Identifier: Apache-2.0
"""Merges changed rows into a table ``latest``, file by file with Arrow.

Rows that do not change never pass through the JVM. The changed rows are written once, to the staging folder. Each task
reads their keys, and looks up the keys of some of the table's files among them. If the changed row is newer, the
table's row is removed; if the table's row is newer, the changed row is dropped.

Example: 10 million keys in 40 files, and 100,000 changed rows. A task reads the key columns of a file's 250,000 rows,
finds 2,500 changed keys among them, and rewrites the file without these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.table.files import REPLACED, encode_replaced
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.rewriting import rewrite_without
from consumerd.spark.table.task_rows import read_row_groups
from consumerd.spark.tasks import find_task

MERGED: Final = f"{REPLACED}, dropped array<bigint>"
"""Schema of the rows that merging tasks return.

``dropped`` has the numbers of changed rows that are dropped, because the table's row is newer or the same.
"""
MAX_KEYS_BYTES: Final = 64 << 20
"""Limit of the bytes of all changed keys, which each task holds in memory."""

_COLUMNS: Final = ("key", "incarnation", "broker", "partition", "offset", "index", "timestamp", "landed")
"""Columns that a merge reads: the key, and what decides which record is newer."""
_NULL: Final = np.iinfo(np.int64).min
"""Stands for null, which sorts before all values."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _RecordOrder:
    """Columns that decide which of two records with one key is newer.

    Attributes:
        partition: broker and partition.
        within: order of records of one partition: truncation, offset, index.
        among: order of records of different partitions: timestamp or landing time, truncation, offset, partition.
    """

    partition: tuple[Numbers, Numbers]
    within: tuple[Numbers, ...]
    among: tuple[Numbers, ...]

    @classmethod
    def of(cls, rows: pa.Table) -> _RecordOrder:
        broker, partition, offset, index = (_numbers(rows[name]) for name in ("broker", "partition", "offset", "index"))
        cut = _truncations(rows["incarnation"])
        moment = _numbers(pc.coalesce(*(_microseconds(rows[name]) for name in ("timestamp", "landed"))))
        return cls((broker, partition), (cut, offset, index), (moment, cut, offset, partition))

    def take(self, rows: Numbers) -> _RecordOrder:
        broker, partition = (column[rows] for column in self.partition)
        return _RecordOrder(
            (broker, partition),
            tuple(column[rows] for column in self.within),
            tuple(column[rows] for column in self.among),
        )

    def newer_than(self, others: _RecordOrder) -> npt.NDArray[np.bool_]:
        """Return a mask of the records that are newer than those of the same row."""
        same = np.logical_and(*(mine == other for mine, other in zip(self.partition, others.partition, strict=True)))
        return np.where(same, _is_greater(self.within, others.within), _is_greater(self.among, others.among))


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Keys and order of new rows for a table ``latest``, one per key.

    ``order`` has, for each row, the values by which the newer of two records is found.
    """

    keys: pa.Array
    order: _RecordOrder

    def compare(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """Compare rows of the table with the changed rows of the same keys.

        Returns two lists of row numbers: rows of ``rows`` that are older than the changed row, and changed rows that
        are not newer than the table's row. Numbers count from 0, in ``rows`` and in the changed rows.
        """
        # null for rows whose key has not changed
        found = pc.index_in(_cast(rows["key"], self.keys.type), value_set=self.keys)
        hits = np.flatnonzero(pc.is_valid(found).to_numpy())
        changed = found.drop_null().to_numpy().astype(np.int64)
        newer = self.order.take(changed).newer_than(_RecordOrder.of(rows.take(pa.array(hits))))
        return hits[newer], changed[~newer]


def read_changed(paths: Sequence[Path]) -> ChangedRows | None:
    """Return keys and order of a table's changed rows, from Parquet files.

    The table is one of latest values. Rows are numbered from 0 through all files. Returns None if Arrow cannot merge
    these keys: nested keys, floating-point keys, more than ``MAX_KEYS_BYTES`` bytes of keys, or a key that occurs twice
    (in two partitions). Raises OSError, ArrowException.
    """
    groups, size = [], 0
    for path in paths:
        for rows in _read_groups(path):
            size += rows["key"].nbytes
            if size > MAX_KEYS_BYTES or not is_comparable(rows["key"].type):
                return None
            groups.append(rows)
    rows = pa.concat_tables(groups).combine_chunks()
    keys = rows["key"].combine_chunks()
    if pc.count_distinct(keys).as_py() != len(keys):
        return None
    return ChangedRows(keys, _RecordOrder.of(rows))


def is_comparable(kind: pa.DataType) -> bool:
    """Return True if Arrow finds equal keys of a type exactly as Spark does.

    False for nested and floating-point types. Example: -0.0 and 0.0 are the same key for Spark, and different keys for
    Arrow.
    """
    return not (pa.types.is_nested(kind) or pa.types.is_floating(kind))


def make_merger(
    table: Path, changed: Sequence[Path], *, staging: Path, attempt: str, settings: FileSettings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that merges changed rows into files of ``latest``.

    The function takes batches with one column, paths of the table's files relative to ``table``. It rewrites each file
    without the rows that a changed row replaces, and yields the results with the columns ``MERGED``.

    Args:
        changed: Parquet files with the changed rows.
        staging: folder of the new files.
        attempt: beginning of the new files' names.
    """

    def merge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = find_task()
        rows = read_changed(changed)
        assert rows is not None
        for number, path in enumerate(path for batch in batches for path in batch[0].to_pylist()):
            prefix = f"{attempt}-{task:05d}-{number:05d}"
            gone, dropped = compare_file(table / path, rows)
            numbers = pa.scalar(dropped.tolist(), pa.list_(pa.int64()))
            if len(gone):
                files = rewrite_without(table / path, gone, staging=staging, prefix=prefix, settings=settings)
                yield encode_replaced(path, files, dropped=numbers)
            elif len(dropped):
                yield encode_replaced(None, (), dropped=numbers)

    return merge


def compare_file(path: Path, changed: ChangedRows) -> tuple[Numbers, Numbers]:
    """Compare the rows of a table's file with the changed rows of the same keys.

    Returns two lists of row numbers: rows of the file that are older than the changed row, and changed rows that are
    not newer than the file's row. Numbers count from 0. Another program may have written the file. Raises OSError,
    ArrowException.
    """
    gone, dropped, first = [], [], 0
    for rows in _read_groups(path):
        older, not_newer = changed.compare(_complete(rows))
        gone.append(older + first)
        dropped.append(not_newer)
        first += len(rows)
    none = np.empty(0, np.int64)
    return np.concatenate([none, *gone]), np.concatenate([none, *dropped])


def _read_groups(path: Path) -> Iterator[pa.Table]:
    """Return a file's columns ``_COLUMNS``, row group by row group."""
    return map(pa.Table.combine_chunks, read_row_groups(path, _COLUMNS))


def _complete(rows: pa.Table) -> pa.Table:
    """Add missing columns as null: other writers may omit a column of nulls."""
    for name in _COLUMNS:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows)))
    return rows


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column of a file that another writer may have written.

    Delta on Spark may write timestamps as INT96, which Arrow reads as nanoseconds. They are truncated to microseconds,
    as Spark does.
    """
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))


def _microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return _cast(_cast(column, pa.timestamp("us", getattr(column.type, "tz", None))), pa.int64())


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.cast(pa.int64()).fill_null(int(_NULL)).to_numpy(), np.int64)


def _truncations(incarnations: pa.ChunkedArray) -> Numbers:
    """Return the number of truncations of each incarnation: 2 for ``7.2``, 0 for ``7``."""
    encoded = incarnations.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    numbers = [int(text.partition(".")[2] or 0) for text in encoded.dictionary.to_pylist()]
    of_rows: Numbers = np.asarray(numbers, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return of_rows


def _is_greater(mine: Sequence[Numbers], others: Sequence[Numbers]) -> npt.NDArray[np.bool_]:
    """Compare tuples of numbers, one per row, in lexicographic order."""
    greater = np.zeros(len(mine[0]), np.bool_)
    equal = np.ones(len(mine[0]), np.bool_)
    for one, other in zip(mine, others, strict=True):
        greater |= equal & (one > other)
        equal &= one == other
    return greater
