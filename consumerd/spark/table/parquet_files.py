# SPDX-License-Identifier: Apache-2.0
"""Parquet files of one task: one for each combination of partition values that it meets.

Rows come as Arrow record batches, keep their order within a file, and are collected until they fill a row group. Files
are durable when ``finish`` returns them. Blocks. Needs no Spark, so any process can write.

Many days in random order
    A file is opened when its first row group is written; until then it takes only the memory of its rows. So the number
    of days is not limited. A batch of many days is first collected in a window, and divided later: divided at once, it
    would become batches of a row or two, each of which takes some 50 times the memory of its values.

    Example: 400 MB of rows, of 2,000 days in random order. Every 32 MiB the window is divided, about 16 KB per day. At
    128 MiB no day has collected 2 MiB, the least that is worth a row group, so the rows of all days are spilled to
    disk. ``finish`` writes one file of 200 KB per day, each from four batches: three spilled, one in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd import failpoints
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.landing.landed_columns import repeats
from consumerd.spark.table.commit import Bounds, DataFile, Scalar
from consumerd.spark.table.folder_values import NULL_VALUE, escape_value
from consumerd.spark.table.spilled_rows import SpilledBatch, SpilledRows

ROW_GROUP_BYTES: Final = 32 << 20
"""Size of a row group in Arrow memory: a file that has collected as much writes one."""
MAX_COLLECTED_BYTES: Final = 128 << 20
"""Limit of the memory of all collected rows of a task.

Above it, the file with the most rows writes a row group. If even that file has collected less than a 64th of the limit,
all rows are spilled to disk instead.
"""
WINDOW_BYTES: Final = 32 << 20
"""Size of the window: rows of batches with many partition values, collected before they are divided."""
MAX_OPEN_FILES: Final = 64
"""Limit of open Parquet files.

Above it, the open file with the least collected bytes is finished. Later rows of the same day begin a second file.
"""
BATCH_OVERHEAD_BYTES: Final = 8 << 10
"""Memory that a batch takes besides its values, about: buffers of at least 64 bytes, and their objects."""

_MAX_PARTS_WITHOUT_WINDOW: Final = 8
"""Number of partition values in a batch up to which it is divided at once."""
_MAX_BOUND_CHARS: Final = 256
"""Length of a text above which the log keeps no bound of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Options of written Parquet files: compression, and columns with bounds.

    Attributes:
        level: compression level of zstd.
        bounds: columns whose smallest and largest values go into ``DataFile.bounds``.
    """

    compression: str = "zstd"
    level: int | None = 1
    bounds: tuple[str, ...] = ()

    @property
    def compression_level(self) -> int | None:
        """Compression level of zstd; None for a compression without levels."""
        return self.level if self.compression == "zstd" else None


class PartitionedWriter:
    """Writes a task's rows into Parquet files, one for each combination of partition values.

    Args:
        folder: in which the files are written, in folders of their partition values.
        prefix: beginning of their names, unique for the attempt of the task.
        partition_by: columns of texts, days or whole numbers, which go into folder names instead of files.
        files: the file system, which makes them durable.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prefix: str,
        partition_by: Sequence[str],
        settings: FileSettings | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._partition_by = tuple(partition_by)
        self._settings = settings or FileSettings()
        self._files: FileSystem = OsFileSystem() if files is None else files
        self._window: list[pa.RecordBatch] = []
        self._window_bytes = 0
        self._growing: dict[tuple[str, ...], _GrowingFile] = {}
        self._held_bytes = 0
        self._spilled = SpilledRows(folder, prefix=prefix)
        self._done: list[DataFile] = []
        self._count = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Write rows into the files of their partition values.

        Raises OSError, pyarrow's ArrowException; then only :meth:`close` may be called.
        """
        if len(batch) == 0:
            return
        if not self._window:
            parts = _divide(batch, self._partition_by)
            if len(parts) <= _MAX_PARTS_WITHOUT_WINDOW:
                for part in parts:
                    self._take(part.values, part.rows())
                return
        # while the window has rows, all further rows go through it, because rows of one day must keep their order
        self._window.append(batch)
        self._window_bytes += batch.nbytes
        if self._window_bytes >= WINDOW_BYTES:
            self._divide_window()

    def append_part(self, values: tuple[str, ...], rows: pa.RecordBatch) -> None:
        """Write rows that share their partition values.

        Args:
            values: of the partition columns, escaped as in folder names.
            rows: without the partition columns.

        Raises OSError, pyarrow's ArrowException; then only :meth:`close` may be called.
        """
        self._divide_window()
        self._take(values, rows)

    def finish(self) -> list[DataFile]:
        """Finish all files, make them durable, and return them. Raises OSError, ArrowException."""
        self._divide_window()
        for values in list(self._growing):
            self._end(values)
        self._spilled.remove()
        return self._done

    def close(self) -> None:
        """Close open files, incomplete, if :meth:`finish` was not called.

        The transaction removes them with its staging folder.
        """
        for file in self._growing.values():
            file.abort()
        self._growing.clear()
        self._window.clear()
        with contextlib.suppress(OSError):
            self._spilled.remove()

    def _divide_window(self) -> None:
        if not self._window:
            return
        window = pa.concat_batches(self._window)
        self._window, self._window_bytes = [], 0
        for part in _divide(window, self._partition_by):
            self._take(part.values, part.rows())

    def _take(self, values: tuple[str, ...], rows: pa.RecordBatch) -> None:
        file = self._growing.get(values)
        if file is None:
            file = self._growing[values] = self._begin(values)
        self._held_bytes -= file.memory_bytes
        file.append(rows)
        self._held_bytes += file.memory_bytes
        if file.held_bytes >= ROW_GROUP_BYTES:
            self._write(file)
        while self._held_bytes > MAX_COLLECTED_BYTES:
            largest = max(self._growing.values(), key=lambda file: file.held_bytes)
            if largest.held_bytes >= MAX_COLLECTED_BYTES // MAX_OPEN_FILES:
                self._write(largest)
            else:
                self._spill()

    def _write(self, file: _GrowingFile) -> None:
        if not file.is_open:
            open_files = {values: one for values, one in self._growing.items() if one.is_open}
            if len(open_files) >= MAX_OPEN_FILES:
                self._end(min(open_files, key=lambda values: open_files[values].held_bytes))
        self._held_bytes -= file.memory_bytes
        file.write_row_group()

    def _spill(self) -> None:
        holding = [file for file in self._growing.values() if file.collected]
        places = self._spilled.write(pa.concat_batches(file.collected) for file in holding)
        for file, place in zip(holding, places, strict=True):
            file.spill(place)
        self._held_bytes = 0

    def _begin(self, values: tuple[str, ...]) -> _GrowingFile:
        folders = [f"{name}={value}" for name, value in zip(self._partition_by, values, strict=True)]
        name = f"{self._prefix}-{self._count:05d}.parquet"
        self._count += 1
        path = "/".join([*folders, name])
        return _GrowingFile(self._folder, path, values, self._settings, self._files, self._spilled)

    def _end(self, values: tuple[str, ...]) -> None:
        file = self._growing.pop(values)
        self._held_bytes -= file.memory_bytes
        self._done.append(file.finish())


class _GrowingFile:
    """A file whose rows are being collected; its first row group opens it."""

    def __init__(
        self,
        folder: Path,
        path: str,
        values: tuple[str, ...],
        settings: FileSettings,
        files: FileSystem,
        spilled: SpilledRows,
    ) -> None:
        self._target = folder / path
        self._path = path
        self._values = values
        self._settings = settings
        self._files = files
        self._spilled = spilled
        self._places: list[SpilledBatch] = []
        self.collected: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None
        self._bounds = {name: _BoundsSoFar() for name in settings.bounds}
        self._rows = 0
        self.held_bytes = 0

    def append(self, rows: pa.RecordBatch) -> None:
        self.collected.append(rows)
        self._rows += len(rows)
        self.held_bytes += rows.nbytes

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def memory_bytes(self) -> int:
        """Memory of the collected rows."""
        return self.held_bytes + len(self.collected) * BATCH_OVERHEAD_BYTES

    def spill(self, place: SpilledBatch) -> None:
        """Drop the collected rows from memory; they are at ``place`` in a spill."""
        self._places.append(place)
        self.collected, self.held_bytes = [], 0

    def write_row_group(self) -> None:
        if not (self._places or self.collected):
            return
        table = pa.Table.from_batches([*map(self._spilled.read, self._places), *self.collected])
        self._places, self.collected, self.held_bytes = [], [], 0
        for name, bounds in self._bounds.items():
            bounds.add(table[name])
        if self._writer is None:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._writer = _open_writer(self._target, table, self._settings)
        self._writer.write_table(table, row_group_size=len(table))

    def finish(self) -> DataFile:
        self.write_row_group()
        assert self._writer is not None
        self._writer.close()
        if failpoints.ENABLED:
            failpoints.reach("before_table_file")
        self._files.sync_path(self._target)
        size, _ = self._files.size_and_mtime(self._target)
        if failpoints.ENABLED:
            failpoints.reach("after_table_file")
        found = {name: bounds.find() for name, bounds in self._bounds.items()}
        return DataFile(
            path=self._path,
            size=size,
            rows=self._rows,
            values=self._values,
            bounds={name: bounds for name, bounds in found.items() if bounds is not None},
        )

    def abort(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()


class _BoundsSoFar:
    """The smallest and the largest value of a column in the row groups so far."""

    def __init__(self) -> None:
        self._low: object = None
        self._high: object = None

    def add(self, column: pa.ChunkedArray) -> None:
        if pa.types.is_timestamp(column.type):
            # as numbers, because Python's own dates end with the year 9999
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        extent = pc.min_max(column)
        low, high = extent["min"].as_py(), extent["max"].as_py()
        if low is None:
            return
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)

    def find(self) -> Bounds | None:
        low, high = _scalar(self._low), _scalar(self._high)
        return None if low is None or high is None else Bounds(low=low, high=high)


def to_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with its timestamps converted to microseconds in UTC."""
    fields = [pa.field(field.name, _utc(field.type), nullable=field.nullable) for field in batch.schema]
    if all(field.type == found.type for field, found in zip(fields, batch.schema, strict=True)):
        return batch
    return batch.cast(pa.schema(fields))


def _utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz is not None else None)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_utc(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_utc(kind.key_type), kind.item_field.with_type(_utc(kind.item_type)))
    return kind


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a batch that share their partition values.

    Attributes:
        numbers: indexes of the rows in the batch; None for all rows.
    """

    values: tuple[str, ...]
    batch: pa.RecordBatch
    numbers: pa.Array | None

    def rows(self) -> pa.RecordBatch:
        """Return the rows: a copy, unless they are the whole batch."""
        return self.batch if self.numbers is None else self.batch.take(self.numbers)


def _divide(batch: pa.RecordBatch, names: Sequence[str]) -> list[_Part]:
    """Divide rows by their partition values, in the order of the values' first rows.

    The parts lack the partition columns. Example: rows of the days 22, 23, 22 give two parts: day 22 with rows 0 and 2,
    and day 23 with row 1.
    """
    rest = batch.select([name for name in batch.schema.names if name not in names])
    choices, codes = [], np.zeros(len(batch), np.int64)
    for name in names:
        found, column_codes = _encode(batch[name])
        choices.append(found)
        if column_codes is not None:
            codes = codes * len(found) + column_codes
    if all(len(found) == 1 for found in choices):
        return [_Part(tuple(found[0] for found in choices), rest, None)]
    if math.prod(map(len, choices)) <= np.iinfo(np.int16).max:
        codes = codes.astype(np.int16)  # numpy sorts 16-bit numbers by radix, some ten times as fast
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    parts = []
    for numbers in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        code, values = int(codes[numbers[0]]), []
        for found in reversed(choices):
            code, number = divmod(code, len(found))
            values.append(found[number])
        parts.append((int(numbers[0]), _Part(tuple(reversed(values)), rest, pa.array(numbers))))
    return [part for _, part in sorted(parts, key=lambda found: found[0])]


def _encode(column: pa.Array) -> tuple[list[str], np.ndarray | None]:
    """Return a column's distinct values, escaped for folders, and each row's index into them.

    The indexes are None if all rows have the same value.
    """
    if column.null_count == 0 and pc.all(pc.equal(column, column[0])).as_py():
        return [_folder_value(column[0].as_py())], None
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return [_folder_value(value.as_py()) for value in encoded.dictionary], encoded.indices.to_numpy()


def _folder_value(value: object) -> str:
    if value is None:
        return NULL_VALUE
    return escape_value(value.isoformat() if isinstance(value, date) else str(value))


def _open_writer(path: Path, first: pa.Table, settings: FileSettings) -> pq.ParquetWriter:
    """Open a file, with encodings chosen by its first row group.

    Columns whose values repeat get a dictionary; other numbers and timestamps are delta-encoded.
    """
    # no statistics of binary columns: smallest and largest payloads serve no reader
    repeating, numbers = [], []
    for field in first.schema:
        if pa.types.is_nested(field.type):
            repeating += list(_leaves(field))
        elif repeats(first[field.name]):
            repeating.append(field.name)
        elif pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type):
            numbers.append(field.name)
    payload = [field.name for field in first.schema if pa.types.is_binary(field.type)]
    return pq.ParquetWriter(
        path,
        first.schema,
        compression=settings.compression,
        compression_level=settings.compression_level,
        use_dictionary=repeating,
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in first.schema.names if name not in payload],
        write_page_index=True,
    )


def _leaves(field: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield Parquet's paths of a column's primitive fields, such as ``items.list.element``."""
    path = f"{prefix}{field.name}"
    kind = field.type
    if pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(part, f"{path}.")
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from _leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path


def _scalar(value: object) -> Scalar | None:
    """Convert a value into a bound; return None if the log keeps none."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value if isinstance(value, int) or len(value) <= _MAX_BOUND_CHARS else None
    return None
