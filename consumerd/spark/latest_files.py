# SPDX-License-Identifier: Apache-2.0
"""Changes of a table ``latest``, merged file by file with Arrow: rows that stay never go through the JVM.

Each task looks its files' keys up among the changed rows, which all tasks read from the staging folder. Where a changed row
is newer, the table's row goes; where the table's row is newer, the changed row is lost.

Example: 10 million keys in 40 files, 100,000 changed rows. A task reads the key and the place of a file's 250,000 rows, finds
2,500 changed keys among them, and rewrites the file without these rows. The changed rows were written once, before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from consumerd.spark.table.commit import DataFile, encode_file
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.rewriting import rewrite_without

MERGED: Final = "replaced string, file string, lost array<bigint>"
"""Schema of what tasks return: the path of a file to be replaced, the new one as JSON (null: no row is left), and the
numbers of changed rows that are older than the table's.
"""
LARGEST_KEYS: Final = 64 << 20
"""Limit in bytes of all changed keys, which each task holds in memory."""

_PLACE: Final = ("incarnation", "broker", "partition", "offset", "index", "timestamp", "landed")
_LEAST: Final = np.iinfo(np.int64).min
"""Stands for null, which is smaller than each value."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Places:
    """What decides which of two records with one key is newer; all columns have one row a record."""

    partition: tuple[Numbers, Numbers]
    within: tuple[Numbers, ...]
    """Order of records of one partition: truncation, offset, index."""
    among: tuple[Numbers, ...]
    """Order of records of different partitions: timestamp or landing time, truncation, offset, partition."""

    @classmethod
    def of(cls, rows: pa.Table) -> _Places:
        broker, partition, offset, index = (_numbers(rows[name]) for name in ("broker", "partition", "offset", "index"))
        cut = _truncations(rows["incarnation"])
        moment = _numbers(pc.coalesce(*(_microseconds(rows[name]) for name in ("timestamp", "landed"))))
        return cls((broker, partition), (cut, offset, index), (moment, cut, offset, partition))

    def take(self, rows: Numbers) -> _Places:
        broker, partition = (column[rows] for column in self.partition)
        return _Places(
            (broker, partition),
            tuple(column[rows] for column in self.within),
            tuple(column[rows] for column in self.among),
        )

    def newer_than(self, others: _Places) -> npt.NDArray[np.bool_]:
        """Tell for each record whether it is newer than the other one in its row."""
        same = np.logical_and(*(mine == other for mine, other in zip(self.partition, others.partition, strict=True)))
        return np.where(same, _is_greater(self.within, others.within), _is_greater(self.among, others.among))


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Keys and places of the changed rows, each key once."""

    keys: pa.Array
    places: _Places

    def compare(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """Return the numbers of the table's rows that are older than a changed row of their key, and of changed rows that
        are not newer than the table's.
        """
        found = pc.index_in(_cast(rows["key"], self.keys.type), value_set=self.keys)
        hits = np.flatnonzero(pc.is_valid(found).to_numpy())
        changed = found.drop_null().to_numpy().astype(np.int64)
        newer = self.places.take(changed).newer_than(_Places.of(rows.take(pa.array(hits))))
        return hits[newer], changed[~newer]


def read_changed(paths: Sequence[Path]) -> ChangedRows | None:
    """Read keys and places of changed rows from Parquet files, in the files' order.

    Returns None for keys that are merged by Spark alone: nested ones, floating-point numbers, those of more than
    ``LARGEST_KEYS`` bytes, and keys that occur twice (in two partitions). Raises OSError, ArrowException.
    """
    size = 0
    for path in paths:
        footer = pq.read_metadata(path)
        if not is_comparable(footer.schema.to_arrow_schema().field("key").type):
            return None
        for group in map(footer.row_group, range(footer.num_row_groups)):
            columns = map(group.column, range(group.num_columns))
            size += sum(column.total_uncompressed_size for column in columns if column.path_in_schema == "key")
    if size > LARGEST_KEYS:
        return None
    rows = pa.concat_tables(_read(path) for path in paths).combine_chunks()
    keys = rows["key"].combine_chunks()
    if pc.count_distinct(keys).as_py() != len(keys):
        return None
    return ChangedRows(keys, _Places.of(rows))


def is_comparable(kind: pa.DataType) -> bool:
    """Tell whether Arrow finds keys of a type as Spark compares them: -0.0 and 0.0 are one key to Spark alone."""
    return not (pa.types.is_nested(kind) or pa.types.is_floating(kind))


def make_merger(
    table: Path, changed: Sequence[Path], *, staging: Path, attempt: str, settings: FileSettings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that merges changed rows into files, and yields ``MERGED``.

    Its input has the paths of files in one column, relative to ``table``. Files keep their columns and the order of their
    rows.
    """

    def merge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        rows = read_changed(changed)
        assert rows is not None
        for number, path in enumerate(path for batch in batches for path in batch[0].to_pylist()):
            prefix = f"{attempt}-{task:05d}-{number:05d}"
            gone, lost = compare_file(table / path, rows)
            files: list[DataFile] = []
            if len(gone):
                files = rewrite_without(table / path, gone, staging=staging, prefix=prefix, settings=settings)
            yield from _encode(path if len(gone) else None, files, lost)

    return merge


def compare_file(path: Path, changed: ChangedRows) -> tuple[Numbers, Numbers]:
    """Compare a file's rows as :meth:`ChangedRows.compare` does, by their numbers in the file.

    Another writer may have written the file. Raises OSError, ArrowException.
    """
    gone, lost, first = [], [], 0
    with pq.ParquetFile(path) as parquet:
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=["key", *_PLACE], use_threads=False).combine_chunks()
            rows = _complete(rows)
            older, not_newer = changed.compare(rows)
            gone.append(older + first)
            lost.append(not_newer)
            first += len(rows)
    none = np.empty(0, np.int64)
    return np.concatenate([none, *gone]), np.concatenate([none, *lost])


def _encode(replaced: str | None, files: Sequence[DataFile], lost: Numbers) -> Iterator[pa.RecordBatch]:
    if replaced is None and not len(lost):
        return
    texts: list[str | None] = [json.dumps(encode_file(file)) for file in files] or [None]
    losses = [lost.tolist(), *([[]] * (len(texts) - 1))]
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([replaced] * len(texts), pa.string()),
            pa.array(texts, pa.string()),
            pa.array(losses, pa.list_(pa.int64())),
        ],
        names=["replaced", "file", "lost"],
    )


def _read(path: Path) -> pa.Table:
    return pq.read_table(path, columns=["key", *_PLACE], use_threads=False)


def _complete(rows: pa.Table) -> pa.Table:
    """Return a file's rows with all columns: other writers may leave out those that have nulls alone."""
    for name in ("key", *_PLACE):
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows)))
    return rows


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column of a file that another writer may have written.

    Spark's Delta writes timestamps as INT96, which Arrow reads as nanoseconds. They are cut to microseconds, as by Spark.
    """
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))


def _microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return _cast(_cast(column, pa.timestamp("us", getattr(column.type, "tz", None))), pa.int64())


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.cast(pa.int64()).fill_null(int(_LEAST)).to_numpy(), np.int64)


def _truncations(incarnations: pa.ChunkedArray) -> Numbers:
    """Return the truncation number of each: 2 for ``7.2``, 0 for ``7``."""
    encoded = incarnations.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    numbers = [int(text.partition(".")[2] or 0) for text in encoded.dictionary.to_pylist()]
    of_rows: Numbers = np.asarray(numbers, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return of_rows


def _is_greater(mine: Sequence[Numbers], others: Sequence[Numbers]) -> npt.NDArray[np.bool_]:
    """Compare row by row, first by the first columns, then by those that follow."""
    greater = np.zeros(len(mine[0]), np.bool_)
    equal = np.ones(len(mine[0]), np.bool_)
    for one, other in zip(mine, others, strict=True):
        greater |= equal & (one > other)
        equal &= one == other
    return greater
