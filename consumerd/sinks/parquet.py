# SPDX-License-Identifier: Apache-2.0
"""Sink ``parquet``: lands Parquet files, each record exactly once.

Columns are those of ``landed_columns``. A file's metadata is one JSON object, under the key ``consumerd`` of the
footer's key-value metadata.

Row groups
    Batches are collected as Arrow. They are written as a row group when 8 MiB are collected, when all writers of the
    sink hold too much, and at the end of the file. If there is memory for two row groups, a full one is encoded,
    compressed and written in a thread of its own while the next is collected. The footer's data of each row group stay
    in memory until the file ends.

Encodings
    ``topic``, ``partition`` and ``broker`` are the same in every row: dictionaries of one value, a few hundred bytes
    per row group. So a single file shows where its records are from, and table formats that take partition values from
    statistics (Iceberg) find them. Offsets are delta-encoded. Keys and values get a dictionary only if they repeat in
    the first row group. Only columns by which readers skip row groups have statistics; those of a payload column would
    be payloads. Pages have checksums, so readers can detect disk errors.
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
import pyarrow.parquet as pq
from pydantic import Field

from consumerd.aio.threads import SideThread
from consumerd.landing.chain import FileId, FileMetadata, data_name
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.landed_columns import LANDED_SCHEMA, PLACE_COLUMNS, repeats, with_place
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
"""Size, in Arrow memory, at which the collected records are written as a row group."""
BESIDE_FROM_BYTES: Final = 4 * ROW_GROUP_BYTES
"""Least ``buffer_bytes`` with which a row group is written while the next is collected.

With less memory, a row group is written before the next is collected, and its memory is released to the system at once.
"""
RELEASE_BYTES: Final = 4 * ROW_GROUP_BYTES
"""Size of written row groups after which their freed memory is released to the system.

It applies with a ``buffer_bytes`` of at least ``BESIDE_FROM_BYTES``.
"""

WRITER_BYTES: Final = 24 << 10
"""Memory of an open writer in pyarrow, measured with these columns."""
ROW_GROUP_KEPT_BYTES: Final = 11 << 10
"""Memory that pyarrow keeps for each written row group until the file ends, measured with these columns."""

Compression = Literal["zstd", "snappy", "none"]

_DELTA_COLUMNS: Final = ("offset", "next_offset", "timestamp")
_CONSTANT_COLUMNS: Final = (*PLACE_COLUMNS, "index", "timestamp_type")
_PAYLOAD_COLUMNS: Final = ("key", "value")


@dataclass(frozen=True, slots=True)
class ParquetCodec:
    """Compression of Parquet pages: the codec, and its level.

    ``level`` is None for all codecs but zstd, which have no levels here.
    """

    compression: Compression
    level: int | None = None


class ParquetOptions(ChainOptions):
    """Settings of the sink ``parquet``."""

    compression: Compression = Field(default="zstd", description="How pages are compressed.")
    compression_level: int = Field(default=1, ge=-50, le=22, description="Of zstd; below 0 it is as fast as snappy.")

    @property
    def zstd_level(self) -> int | None:
        """Compression level of zstd; None for a compression without levels."""
        return self.compression_level if self.compression == "zstd" else None


class FreedMemory:
    """Returns memory that row groups have freed from Arrow's pool to the system.

    It does so each time that row groups of ``most_bytes`` in total have been written. Without it the pool would keep
    tens of MiB. After every single row group it would be slow: the pool would get each page from the system again,
    which takes a quarter of the time of landing.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count the bytes of a row group that was written and freed.

        May be called in any thread.
        """
        with self._lock:
            self._bytes += size
            if self._bytes < self._most_bytes:
                return
            self._bytes = 0
        pa.default_memory_pool().release_unused()


class ParquetEncoder:
    """Collects batches, and writes them as row groups of one Parquet file.

    With ``beside``, a thread of its own writes full row groups while the next one is collected.
    """

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
        """Bytes of memory: collected rows, the row group being written, and :attr:`kept_bytes`.

        The row group counts twice, because it is in memory as Arrow and as Parquet pages.
        """
        return self._batch_bytes + 2 * self._being_written_bytes + self.kept_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that stay until the file ends: pyarrow's writer, footer data."""
        return WRITER_BYTES + self._row_groups * ROW_GROUP_KEPT_BYTES if self._row_groups else 0

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of the rows that are not in the file yet, uncompressed."""
        return self._batch_bytes + self._being_written_bytes

    @property
    def _being_written_bytes(self) -> int:
        return self._writing_bytes if self._writing.busy else 0

    def append(self, batch: RecordBatch) -> None:
        """Collect a batch; write a row group when 8 MiB are collected.

        Raises OSError, also for an earlier row group that a thread has failed to write; PermanentSinkError or
        CorruptMessageError for a record that does not fit into Arrow.
        """
        for piece in to_pieces(batch):
            if self._batches and self._batch_bytes + piece.nbytes > LARGEST_COLUMN_BYTES:
                self._begin_row_group()
            self._batches.append(piece)
            self._batch_bytes += piece.nbytes
            if self._batch_bytes >= ROW_GROUP_BYTES:
                self._begin_row_group()

    def spill(self) -> None:
        """Write the collected rows as a row group, to free memory. Raises OSError."""
        self._writing.wait()
        batches = self._take_batches()
        if batches:
            self._write_row_group(batches)

    def _begin_row_group(self) -> None:
        """Write the collected batches as a row group, after the previous one.

        Raises OSError, also of the previous row group.
        """
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
            batches.clear()  # the caller still holds the list, so this frees the batches
            self._get_writer(table).write_table(table, row_group_size=len(table))
        self._row_groups += 1
        size = table.nbytes
        del table
        self._freed.add(size)

    def finish(self, metadata: FileMetadata) -> None:
        """Write the last row group, and the footer with the metadata; sync the file.

        Raises OSError.
        """
        self.spill()
        with _arrow_failures():
            writer = self._get_writer(LANDED_SCHEMA.empty_table())
            writer.add_key_value_metadata({FOOTER_KEY: metadata.encode()})
            writer.close()
        self._writer = None
        self._row_groups = 0
        self._hidden.sync()

    def drop(self) -> None:
        """Release the collected rows after the file was discarded.

        Waits for a row group that is being written.
        """
        self._batches = []
        self._batch_bytes = 0
        with contextlib.suppress(Exception):  # the row group being written is discarded, so its failure does not matter
            self._writing.wait()
        self._row_groups = 0
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()  # writes a footer, to a hidden file that was discarded
            writer.is_open = False  # else it would be closed again when it is garbage-collected

    def _get_writer(self, first: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = make_writer(self._hidden, first, self._codec)
        return self._writer


def make_writer(
    file: object, first: pa.Table, codec: ParquetCodec, *, schema: pa.Schema = LANDED_SCHEMA
) -> pq.ParquetWriter:
    """Return a Parquet writer; the first row group decides which columns get dictionaries.

    Args:
        file: path of the file, or an open file.
        first: the first row group; it is not written here.
        schema: columns of the file, all or some.
    """
    repeating = [name for name in _PAYLOAD_COLUMNS if repeats(first[name])]
    return pq.ParquetWriter(
        file,
        schema,
        compression=codec.compression,
        compression_level=codec.level,
        use_dictionary=_present(schema, [*_CONSTANT_COLUMNS, *repeating]),
        column_encoding=dict.fromkeys(_present(schema, _DELTA_COLUMNS), "DELTA_BINARY_PACKED"),
        write_statistics=_present(schema, [*PLACE_COLUMNS, "offset", "next_offset", "index", "timestamp"]),
        write_page_checksum=True,
        # readers get plain strings and numbers; Arrow's own schema would make them dictionaries
        store_schema=False,
    )


def _present(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in schema.names]


class ParquetFormat:
    """File format of the sink ``parquet``."""

    extension = PARQUET
    read_metadata = staticmethod(read_footer)
    subfolders = ()
    thread_bytes = 0  # the memory of pyarrow's threads is in LIBRARY_BYTES
    working_copies = 2  # the gathered values, and a column chunk while it is written

    def __init__(self, compression: Compression, level: int | None = None, *, beside: bool = False) -> None:
        self._codec = ParquetCodec(compression, level)
        self._beside = beside
        self._freed = FreedMemory(RELEASE_BYTES if beside else 0)

    def open(
        self, files: FileSystem, *, partition: TopicPartition, folder: Path, position: int, file_id: FileId
    ) -> tuple[HiddenFile, ParquetEncoder]:
        """Return a partition's next file and its encoder; nothing is created on disk yet.

        Args:
            files: File system to write to.
            folder: Folder of the file.
            position: Offset at which the file begins; the file's name is made of it.
            file_id: Id of this attempt to write it.
        """
        hidden = HiddenFile(files, folder=folder, name=data_name(position, PARQUET), file_id=file_id)
        return hidden, ParquetEncoder(hidden, partition, self._codec, beside=self._beside, freed=self._freed)


class ParquetSink(ChainSink):
    """Sink that lands Parquet files."""

    Options = ParquetOptions
    LIBRARY_BYTES = (64 << 20, 128 << 20)
    """Memory of Arrow in bytes, measured: the least, and the most.

    The least is that after the first use. The most is that with row groups written in threads of their own; it includes
    memory that its pool and the C library keep.
    """

    def __init__(self, context: SinkContext, options: ParquetOptions, *, files: FileSystem | None = None) -> None:
        beside = context.buffer_bytes >= BESIDE_FROM_BYTES
        file_format = ParquetFormat(options.compression, options.zstd_level, beside=beside)
        super().__init__(context, options, file_format, files=files)


@contextlib.contextmanager
def _arrow_failures() -> Iterator[None]:
    """Turn Arrow's exceptions into OSError, as if the file had failed; OSError passes."""
    try:
        yield
    except pa.ArrowException as error:
        raise OSError(errno.EIO, f"Arrow: {error}") from error
