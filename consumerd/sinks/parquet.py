# SPDX-License-Identifier: Apache-2.0
"""Parquet files, exactly once.

Columns are those of ``landed_columns``; what a file says of itself is one JSON object under ``consumerd`` in the footer's
key-value metadata. Batches are kept as Arrow and written as a row group when there are 8 MiB of them, when all writers of
the sink together hold too much, and at the end of the file. A full row group is encoded, compressed and written in a thread
of its own while the next is collected, where there is memory for both. What the footer says of a row group stays in memory until the file ends.

Topic, partition and broker are the same in every row, so that one file read by itself says where its records are from, and a
table format that takes partition values from statistics (Iceberg) finds them. They are dictionaries of one value: a few
hundred bytes a row group. Offsets grow by one from row to row and are delta-encoded. Keys and values are dictionary-encoded only where the first
row group shows that they repeat; payloads mostly do not, and a dictionary that overflows costs time for nothing. Only
columns that a reader would skip row groups by have statistics: the minimum of a payload column is a payload. Pages have
checksums, so that a reader that asks for it finds what a disk has changed.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from consumerd.aio.threads import SideThread
from consumerd.landing.chain import FileId, FileMetadata, data_name
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.landed_columns import LANDED_SCHEMA, PLACE_COLUMNS, with_place
from consumerd.landing.metadata import FOOTER_KEY, PARQUET, read_footer
from consumerd.landing.publish import HiddenFile
from consumerd.model import TopicPartition
from consumerd.sinks.arrow_pieces import LARGEST_COLUMN_BYTES, to_pieces
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain_sink import ChainSink
from consumerd.sinks.options import ChainOptions
from consumerd.wire.arrow import SCHEMA
from consumerd.wire.records import RecordBatch

ROW_GROUP_BYTES: Final = 8 << 20
BESIDE_FROM_BYTES: Final = 4 * ROW_GROUP_BYTES
"""With less for all writers together, a row group is written before the next is collected, and what it frees is given back at once."""
RELEASE_BYTES: Final = 4 * ROW_GROUP_BYTES
"""With more, after so many bytes of row groups."""

WRITER_BYTES: Final = 24 << 10
ROW_GROUP_KEPT_BYTES: Final = 11 << 10
"""What pyarrow keeps for an open writer and for each row group written by it, as measured with these columns."""

Compression = Literal["zstd", "snappy", "none"]

_DELTA_COLUMNS: Final = ("offset", "next_offset", "timestamp")
_CONSTANT_COLUMNS: Final = (*PLACE_COLUMNS, "index", "timestamp_type")
_PAYLOAD_COLUMNS: Final = ("key", "value")
_SAMPLE_ROWS: Final = 2000
_REPEATS: Final = 0.25
"""A column repeats if at most this part of a sample is distinct."""


@dataclass(frozen=True, slots=True)
class ParquetCodec:
    """How pages are compressed; only zstd has levels."""

    compression: Compression
    level: int | None = None


class ParquetOptions(ChainOptions):
    """Settings of the sink."""

    compression: Compression = Field(default="zstd", description="How pages are compressed.")
    compression_level: int = Field(default=1, ge=-50, le=22, description="Of zstd; below 0 it is as fast as snappy.")

    @property
    def zstd_level(self) -> int | None:
        """The level where the compression has levels."""
        return self.compression_level if self.compression == "zstd" else None


class FreedMemory:
    """What the row groups of a sink have freed since Arrow's pool was last told to give back what it does not use: it is
    told when that is ``most_bytes``.

    Without being told it keeps tens of MiB. Told with each row group it has the next pages from the system one by one,
    which is a quarter of the time that landing takes.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Note that a row group of so many bytes was written and let go of. In any thread."""
        with self._lock:
            self._bytes += size
            if self._bytes < self._most_bytes:
                return
            self._bytes = 0
        pa.default_memory_pool().release_unused()


class ParquetEncoder:
    """Collects batches and writes them as row groups, full ones ``beside`` what goes on."""

    def __init__(
        self, hidden: HiddenFile, partition: TopicPartition, codec: ParquetCodec, *, beside: bool, freed: FreedMemory
    ) -> None:
        self._hidden = hidden
        self._partition = partition
        self._beside = beside
        self._codec = codec
        self._freed = freed
        self._batches: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None
        self._batch_bytes = 0
        self._writing = SideThread(name="row-group")
        self._writing_bytes = 0
        self._row_groups = 0

    @property
    def held_bytes(self) -> int:
        """See FileEncoder: what is collected, and what is being written, as Arrow and as pages."""
        return self._batch_bytes + 2 * self._being_written_bytes + self.kept_bytes

    @property
    def kept_bytes(self) -> int:
        """See FileEncoder: the writer, and what the footer is going to say of each row group."""
        return WRITER_BYTES + self._row_groups * ROW_GROUP_KEPT_BYTES if self._row_groups else 0

    @property
    def unwritten_bytes(self) -> int:
        """See FileEncoder."""
        return self._batch_bytes + self._being_written_bytes

    @property
    def _being_written_bytes(self) -> int:
        return self._writing_bytes if self._writing.busy else 0

    def append(self, batch: RecordBatch) -> None:
        """See FileEncoder."""
        for piece in to_pieces(batch):
            if self._batches and self._batch_bytes + piece.nbytes > LARGEST_COLUMN_BYTES:
                self._begin_row_group()
            self._batches.append(piece)
            self._batch_bytes += piece.nbytes
            if self._batch_bytes >= ROW_GROUP_BYTES:
                self._begin_row_group()

    def spill(self) -> None:
        """See FileEncoder: write a row group."""
        self._writing.wait()
        batches = self._take_batches()
        if batches:
            self._write_row_group(batches)

    def _begin_row_group(self) -> None:
        """Have what was collected written, once the row group before is. Raises OSError of that one, or of this."""
        self._writing.wait()
        self._writing_bytes = self._batch_bytes
        batches = self._take_batches()
        if self._beside:
            self._writing.start(lambda: self._write_row_group(batches))
        else:
            self._write_row_group(batches)

    def _take_batches(self) -> list[pa.RecordBatch]:
        batches, self._batches = self._batches, []
        self._batch_bytes = 0
        return batches

    def _write_row_group(self, batches: list[pa.RecordBatch]) -> None:
        with _arrow_failures():
            table = with_place(pa.Table.from_batches(batches, schema=SCHEMA), self._partition)
            batches.clear()  # whoever gives them holds the list until this returns
            self._get_writer(table).write_table(table, row_group_size=len(table))
        self._row_groups += 1
        size = table.nbytes
        del table
        self._freed.add(size)

    def finish(self, metadata: FileMetadata) -> None:
        """See FileEncoder: write the last row group and the footer."""
        self.spill()
        with _arrow_failures():
            writer = self._get_writer(LANDED_SCHEMA.empty_table())
            writer.add_key_value_metadata({FOOTER_KEY: metadata.encode()})
            writer.close()
        self._writer = None
        self._row_groups = 0
        self._hidden.sync()

    def drop(self) -> None:
        """See FileEncoder. The footer that is written here goes nowhere, as the hidden file was discarded."""
        self._batches = []
        self._batch_bytes = 0
        with contextlib.suppress(Exception):  # whatever it was: nobody wants that row group any more
            self._writing.wait()
        self._row_groups = 0
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()
            writer.is_open = False  # or it would try again when it is collected

    def _get_writer(self, first: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = make_writer(self._hidden, first, self._codec)
        return self._writer


def make_writer(
    file: object, first: pa.Table, codec: ParquetCodec, *, schema: pa.Schema = LANDED_SCHEMA
) -> pq.ParquetWriter:
    """Open a Parquet file, or one of some of the columns, whose first row group is going to be ``first``."""
    repeating = [name for name in _PAYLOAD_COLUMNS if _repeats(first[name])]
    return pq.ParquetWriter(
        file,
        schema,
        compression=codec.compression,
        compression_level=codec.level,
        use_dictionary=_present(schema, [*_CONSTANT_COLUMNS, *repeating]),
        column_encoding=dict.fromkeys(_present(schema, _DELTA_COLUMNS), "DELTA_BINARY_PACKED"),
        write_statistics=_present(schema, [*PLACE_COLUMNS, "offset", "next_offset", "index", "timestamp"]),
        write_page_checksum=True,
        # a reader is to see strings and numbers, however they were handed to the encoder: names of folders are such, too
        store_schema=False,
    )


def _present(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in schema.names]


class ParquetFormat:
    """See FileFormat."""

    extension = PARQUET
    read_metadata = staticmethod(read_footer)
    subfolders = ()
    thread_bytes = 0  # pyarrow's are the sink's LIBRARY_BYTES
    working_copies = 2  # values gathered, and what a column chunk takes while it is written

    def __init__(self, compression: Compression, level: int | None = None, *, beside: bool = False) -> None:
        self._codec = ParquetCodec(compression, level)
        self._beside = beside
        self._freed = FreedMemory(RELEASE_BYTES if beside else 0)

    def open(
        self, files: FileSystem, *, partition: TopicPartition, folder: Path, position: int, file_id: FileId
    ) -> tuple[HiddenFile, ParquetEncoder]:
        """See FileFormat."""
        hidden = HiddenFile(files, folder=folder, name=data_name(position, PARQUET), file_id=file_id)
        return hidden, ParquetEncoder(hidden, partition, self._codec, beside=self._beside, freed=self._freed)


class ParquetSink(ChainSink):
    """Lands Parquet files."""

    Options = ParquetOptions
    LIBRARY_BYTES = (64 << 20, 128 << 20)
    """What Arrow takes once it is loaded and has worked; with row groups that are written beside what goes on, and the slack
    that its memory pool and the C library then keep; as measured."""

    def __init__(self, context: SinkContext, options: ParquetOptions, *, files: FileSystem | None = None) -> None:
        beside = context.buffer_bytes >= BESIDE_FROM_BYTES
        file_format = ParquetFormat(options.compression, options.zstd_level, beside=beside)
        super().__init__(context, options, file_format, files=files)


def _repeats(column: pa.ChunkedArray) -> bool:
    sample = column.slice(0, _SAMPLE_ROWS)
    return len(sample) > 0 and pc.count_distinct(sample, mode="all").as_py() <= len(sample) * _REPEATS


@contextlib.contextmanager
def _arrow_failures() -> Iterator[None]:
    """Turn a failure within Arrow into that of the file which it was writing; OSError passes as it is."""
    try:
        yield
    except pa.ArrowException as error:
        raise OSError(errno.EIO, f"Arrow: {error}") from error
