# SPDX-License-Identifier: Apache-2.0
"""Access to the optional native kernel: its compiled modules, and their interfaces.

Each module of ``consumerd.wire._kernel`` is None here if it was not built, or if the environment has
``CONSUMERD_KERNEL=off`` when this module is imported. Callers look a module up on every use (``if (native :=
kernel.records) is not None``), so that a test can exercise both ways in one process.

Contract of every module:

- It never reports errors. It reads the common, well-formed cases, and stops before anything else. The pure Python
  code then reads or writes that one, or raises the error, and the kernel continues after it. Both give the same result.
- Any bytes are safe. Buffers are contiguous (``bytes``, ``bytearray``, ``memoryview`` of bytes) and not modified.
  ``at`` and ``end`` are clipped to the buffer.
- It releases the interpreter lock while it reads. The caller must not modify buffers or columns meanwhile.
- Columns are ``array('q')`` and are appended to in place.

Example: a record set has 50 plain messages, a message with a wrong CRC, and 10 more. ``read_messages`` reads 50 and
returns the position of the 51st. The Python reader finds the wrong CRC there, and the record set ends before it.
"""

from __future__ import annotations

import importlib
import os
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from consumerd.installation import reinstall_command
from consumerd.wire.kernel_sinks import FoldKernel, GatherKernel, LinesKernel
from consumerd.wire.record_fields import Headers

Buffer = bytes | bytearray | memoryview
SWITCH: Final = "CONSUMERD_KERNEL"
"""Environment variable that disables the kernel with the value ``off``."""


class OpenColumns(Protocol):
    """Interface of the columns that the kernel appends records to.

    :class:`consumerd.wire.columns.ColumnBuilder` implements it and explains the fields. Its buffer has the bytes of
    keys and values: fetched bytes, and decompressed ones.
    """

    offsets: array[int]
    timestamps: array[int]
    timestamp_types: bytearray
    key_starts: array[int]
    key_ends: array[int]
    value_starts: array[int]
    value_ends: array[int]
    header_starts: array[int]
    header_ends: array[int]
    start: int
    position: int
    end: int
    unattested: int | None
    decompressed_bytes: int
    left_out: bool

    def peek_room(self, at: int) -> tuple[memoryview | None, int]:
        """Return free memory, or None, for the decompressed unit at ``at``; and the shift.

        ``at`` is a position in the fetched bytes. Position in the columns' buffer = position in the decompressed data +
        shift.
        """

    def add_block(self, at: int, block: Buffer) -> int:
        """Append the decompressed units at ``at`` to the columns' buffer; return their shift.

        Position in the buffer = position in ``block`` + shift.

        Args:
            at: Position of the compressed units in the fetched bytes.
            block: The decompressed bytes.
        """


class RecordsKernel(Protocol):
    """Compiled module that reads record batches (magic 2) and compressed wrapper messages.

    It also computes CRC-32C, and finds the ends of messages and batches of any magic by their headers.
    """

    CRC32C: str
    """Implementation of CRC-32C: ``sse4.2``, ``armv8`` or ``table``."""

    def crc32c(self, data: Buffer, begin: int = 0, end: int = ..., /) -> int:
        """Return the CRC-32C of ``data[begin:end]`` without copying it."""

    def read_batches(
        self,
        data: Buffer,
        at: int,
        end: int,
        shift: int,
        columns: OpenColumns,
        transactional: bool,  # noqa: FBT001 - positional, because keywords make calls of the kernel slower
        /,
    ) -> int:
        """Read the run of plain batches at ``at``; return the position after it.

        ``at`` itself is returned if the batch there is not plain. A plain batch

        - is complete, with the right checksum;
        - is not compressed, no control batch, and in no transaction unless ``transactional``;
        - begins at ``columns.position``, or below it but not below ``columns.end``: there is no gap before it;
        - has as many records as its header says, which fill it and have consecutive offsets up to its last offset.

        The records are appended to the columns, and ``position``, ``end``, ``unattested`` and ``left_out`` are updated,
        as ``ColumnBuilder.commit`` does. Records below the position that was asked for are verified and left out.

        Args:
            data: The fetched bytes.
            at: Position of the first batch in ``data``.
            end: Position in ``data`` at which to stop.
            shift: Position in the columns' buffer minus position in ``data``.
            transactional: True to accept batches of transactions.
        """

    def read_packed(
        self,
        data: Buffer,
        at: int,
        end: int,
        columns: OpenColumns,
        limit: int,
        transactional: bool,  # noqa: FBT001
        /,
    ) -> int:
        """Read the run of batches at ``at`` that are compressed with snappy or LZ4.

        Returns the position after the run; ``at`` if the first batch cannot be read here. Except for the compression,
        the batches must be plain as in :meth:`read_batches`. They are decompressed into the memory that
        :meth:`OpenColumns.peek_room` returns. The run ends before a batch for which this memory is too small.

        Args:
            data: The fetched bytes.
            at: Position of the first batch in ``data``.
            end: Position in ``data`` at which to stop.
            limit: Limit of all data decompressed for the columns, in bytes.
            transactional: True to accept batches of transactions.
        """

    def read_wrappers(self, data: Buffer, at: int, end: int, columns: OpenColumns, limit: int, /) -> int:
        """Read the run of compressed wrapper messages of magic 0 and 1 at ``at``.

        Returns the position after the run; ``at`` if the first wrapper cannot be read here. A wrapper must be complete,
        with the right checksum, and compressed with snappy or LZ4. It must have one or more uncompressed messages with
        consecutive offsets, the last of which is the wrapper's own. The first is ``columns.position``, or below it but
        not below ``columns.end``: there is no gap. Messages below the position that was asked for are appended, too.
        Wrappers are decompressed into the memory that :meth:`OpenColumns.peek_room` returns.

        Args:
            data: The fetched bytes.
            at: Position of the first wrapper in ``data``.
            end: Position in ``data`` at which to stop.
            limit: Limit of all data decompressed for the columns, in bytes.
        """

    def read_block(
        self,
        data: Buffer,
        at: int,
        end: int,
        shift: int,
        columns: OpenColumns,
        base_offset: int,
        last_delta: int,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        log_append_time: bool,  # noqa: FBT001
        /,
    ) -> bool:
        """Read the records of one batch, which fill ``data[at:end]``, and append them to the columns.

        ``data`` are the decompressed records. They must be without gaps, as in :meth:`read_batches`. Returns False,
        without any change, if they are not.

        Args:
            shift: Position in the columns' buffer minus position in ``data``.
            base_offset: From the batch header, as are all arguments after it.
            last_delta: Last offset of the batch minus ``base_offset``.
            count: Number of records.
            log_append_time: True if all records have ``max_timestamp``, the broker's time.
        """

    def read_records(
        self,
        data: Buffer,
        at: int,
        end: int,
        count: int,
        shift: int,
        base_timestamp: int,
        columns: OpenColumns,
        segments: list[tuple[int, int]],
        first: int,
        delta: int,
        /,
    ) -> tuple[int, int, int, int]:
        """Read up to ``count`` records of one batch, also with gaps, keys or headers.

        Appends to all columns except offsets and timestamp types. The records' offset deltas (offset minus base offset
        of the batch) are returned as segments: ranges ``(first, end)`` of consecutive deltas. The last segment stays
        open, so that the next call or the caller can continue it.

        Args:
            data: The decompressed records.
            at: Position of the first record in ``data``.
            end: Position in ``data`` after the last record.
            shift: Position in the columns' buffer minus position in ``data``.
            segments: Receives the finished segments.
            first: First delta of the open segment.
            delta: End of the open segment: the delta that continues it.

        Returns the number of records read, the position after them, and the new ``first`` and ``delta``.
        """

    def find_unreadable(self, data: Buffer, starts: array[int], ends: array[int], /) -> int | None:
        """Return the first row whose headers cannot be decoded, or the number of rows.

        Headers outside of the buffer are among them. Returns None if the columns differ in length.

        Args:
            starts: Starts of the encoded headers; negative for a row without any.
            ends: Ends of the encoded headers.
        """

    def step_messages(self, data: Buffer, at: int, until: int, /) -> tuple[int, int]:
        """Step over messages by their size fields, while they begin at or before ``until``.

        Sizes are not checked. Returns two positions in ``data``: the end of the last whole message, and its beginning.
        Both are ``at`` if there is no whole message.
        """

    def step_units(
        self, data: Buffer, at: int, weight: float, most: float, expansion: float, doubt: float, /
    ) -> tuple[int, int, float, int]:
        """Step over whole messages and batches until the sum of their weights reaches ``most``.

        An uncompressed message or batch weighs its size. The weight of a compressed one is the larger of two numbers:
        its size times ``expansion``, and the decompressed size that it declares divided by ``doubt``. Stops before a
        compressed one that declares no usable size.

        Args:
            weight: Sum of weights to begin with.
            expansion: Expected decompressed size divided by compressed size.
            doubt: Divisor for declared sizes, which are not trusted fully.

        Returns the position after them, the position of the last one (``at`` if there is none), the new sum of weights,
        and the sum of the declared decompressed sizes in bytes.
        """

    def trim(self, columns: OpenColumns, /) -> None:
        """Give back memory that columns reserve for many more records than they have."""

    def extend_steps(self, column: array[int], first: int, step: int, count: int, /) -> None:
        """Append ``first``, ``first + step``... to the column."""


class MessagesKernel(Protocol):
    """Compiled module that reads uncompressed messages of magic 0 and 1, and computes CRC-32."""

    def crc32(self, data: Buffer, begin: int = 0, end: int = ..., /) -> int:
        """Return the CRC-32 of ``data[begin:end]`` without copying it."""

    def read_messages(
        self,
        data: Buffer,
        at: int,
        end: int,
        shift: int,
        columns: OpenColumns,
        segments: list[tuple[int, int]],
        first: int,
        following: int,
        /,
    ) -> tuple[int, int, int]:
        """Read the run of uncompressed messages at ``at`` with the first one's magic and attributes.

        They must be complete, with right checksums and ascending offsets; the run ends before any other. Appends to all
        columns except offsets and timestamp types. Offsets are returned as segments: ranges ``(first, end)`` of
        consecutive offsets. The last segment stays open, so that the next call or the caller can continue it.

        Args:
            data: The messages, fetched or decompressed.
            at: Position of the first message in ``data``.
            end: Position in ``data`` at which to stop.
            shift: Position in the columns' buffer minus position in ``data``.
            segments: Receives the finished segments.
            first: First offset of the open segment.
            following: End of the open segment. A message with this offset continues it; a smaller offset ends the run.

        Returns the position after the last message, and the new ``first`` and ``following``.
        """


class StoredColumns(Protocol):
    """Interface of the columns that the kernel appends records of Kafka 0.7 to.

    :class:`consumerd.wire.legacy.columns.ByteOffsetColumns` implements it and explains the fields.
    """

    offsets: array[int]
    next_offsets: array[int]
    indexes: array[int]
    shares_offsets: bool
    value_starts: array[int]
    value_ends: array[int]
    decompressed_bytes: int

    def peek_room(self, at: int) -> tuple[memoryview | None, int]:
        """As :meth:`OpenColumns.peek_room`."""

    def add_block(self, at: int, block: Buffer) -> int:
        """As :meth:`OpenColumns.add_block`."""


class LegacyKernel(Protocol):
    """Compiled module that reads messages of Kafka 0.6 and 0.7.

    They are *stored* messages: of magic 0 and 1, mixed, each with a checksum of its payload only, and without offset.
    """

    def read_stored(self, data: Buffer, at: int, end: int, shift: int, start: int, columns: StoredColumns, /) -> int:
        """Read the run of uncompressed messages at ``at``; return the position after it.

        They must be complete, with right checksums; the run ends before any other. Appends to all columns but indexes.

        Args:
            data: The fetched bytes.
            at: Position of the first message in ``data``.
            end: Position in ``data`` at which to stop.
            shift: Position in the columns' buffer minus position in ``data``.
            start: Offset of the first byte of ``data``. Offsets beyond an int64 are left to Python.
        """

    def read_inner(self, data: Buffer, at: int, end: int, shift: int, columns: StoredColumns, /) -> int:
        """As :meth:`read_stored`, but append only the positions of payloads.

        ``data`` is a decompressed message set. The caller adds the offsets when all of it is read.
        """

    def read_packed_stored(
        self, data: Buffer, at: int, end: int, start: int, columns: StoredColumns, limit: int, /
    ) -> int:
        """Read the run of messages compressed with snappy; return the position after it.

        ``at`` itself is returned if the first one cannot be read here. Each must have a right checksum, and one or more
        uncompressed, valid messages inside, nothing else. They are decompressed into the memory that
        :meth:`StoredColumns.peek_room` returns.

        Args:
            data: The fetched bytes.
            at: Position of the first message in ``data``.
            end: Position in ``data`` at which to stop.
            start: Offset of the first byte of ``data``. Offsets beyond an int64 are left to Python.
            limit: Limit of all data decompressed for the columns, in bytes.
        """

    def step_stored(
        self, data: Buffer, at: int, weight: float, most: float, expansion: float, doubt: float, /
    ) -> tuple[int, float, int, bool]:
        """Step over whole messages by their headers until the sum of their weights reaches ``most``.

        Weights are those of :meth:`RecordsKernel.step_units`. Stops before a header that is impossible, and before a
        compressed message that declares no usable size.

        Args:
            weight: Sum of weights to begin with.
            expansion: Expected decompressed size divided by compressed size.
            doubt: Divisor for declared sizes, which are not trusted fully.

        Returns the position after them, the new sum of weights, the sum of the declared decompressed sizes in bytes,
        and whether any of them is compressed.
        """

    def trim_stored(self, columns: StoredColumns, /) -> None:
        """Give back memory that columns reserve for more records than they have."""


class SnappyKernel(Protocol):
    """Compiled module that decompresses snappy: raw blocks and snappy-java's framing.

    For data that it reports as malformed, the caller uses the Python library, which decides.
    """

    def size(self, data: Buffer, /) -> int:
        """Return the decompressed size that ``data`` declares; -1 if malformed.

        It is at most 64 times the size of ``data``.
        """

    def decompress(self, data: Buffer, limit: int, /) -> bytes | None:
        """Return ``data`` decompressed.

        Returns None if ``data`` are malformed, or have more than ``limit`` bytes once decompressed.
        """

    def decompress_into(self, data: Buffer, room: memoryview, /) -> int:
        """Decompress ``data`` to the beginning of ``room`` and return the decompressed size in bytes.

        Returns -1 if ``data`` are malformed or do not fit. The rest of ``room`` may be overwritten in either case.
        """


class Lz4Kernel(Protocol):
    """Compiled module that decompresses LZ4 frames.

    For malformed or unusual frames, which it does not decompress, the caller uses the Python library. Bytes after a
    frame are ignored.
    """

    def decompress(self, data: Buffer, limit: int, any_checksum: bool, /) -> bytes | None:  # noqa: FBT001 - by position
        """Return ``data``, an LZ4 frame, decompressed.

        Returns None if the frame is malformed or unusual, or has more than ``limit`` bytes once decompressed.

        Args:
            any_checksum: True to accept any checksum in the frame's header. Producers of magic 0 write a wrong one
                there (KAFKA-3160).
        """

    def decompress_into(self, data: Buffer, room: memoryview, any_checksum: bool, /) -> int:  # noqa: FBT001
        """Decompress ``data``, an LZ4 frame, to the beginning of ``room``; return the decompressed size.

        Returns -1 if the frame is malformed or unusual, or does not fit. The rest of ``room`` may be overwritten in any
        case.

        Args:
            any_checksum: True to accept any checksum in the frame's header. Producers of magic 0 write a wrong one
                there (KAFKA-3160).
        """


class FramePool(Protocol):
    """Pool of memory for received frames, made by :meth:`MemoryKernel.ReceivePool`.

    Memory of frames that are no longer used is kept for later frames.
    """

    def allocate(self, size: int) -> memoryview:
        """Return uninitialized writable memory of ``size`` bytes. Raises MemoryError.

        The memory goes back to the pool when no view of it exists any more.
        """


class MemoryKernel(Protocol):
    """Kernel module for memory of received frames.

    The memory is reused, instead of being mapped, cleared and unmapped for each frame.
    """

    def ReceivePool(self, idle_limit: int) -> FramePool:  # noqa: N802 - a class
        """Return a pool of memory that keeps at most ``idle_limit`` unused bytes."""


class EncodableRecord(Protocol):
    """A record without offset; :class:`consumerd.wire.records.NewRecord` implements it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


class BuildingKernel(Protocol):
    """Compiled module that encodes records of magic 2.

    They are encoded one after the other, as an uncompressed batch holds them. What these functions do not encode is
    left to Python: ``wire.modern.building``.
    """

    def encode_records(
        self, records: Sequence[EncodableRecord], encode_headers: Callable[[Headers], bytes], /
    ) -> tuple[bytes, int, int] | None:
        """Encode new records; return them with the first and the greatest timestamp.

        Offset deltas count from 0, timestamp deltas from the first record's timestamp. Returns None for no records, for
        a key or value that is not ``bytes``, and for a number that does not fit its field.

        Args:
            encode_headers: Returns the headers of a record that has any, encoded.
        """

    def encode_rows(
        self,
        buffer: Buffer,
        columns: tuple[array[int], array[int], array[int], array[int], array[int]],
        headers: tuple[array[int], array[int]] | None,
        row: int,
        end: int,
        first_delta: int,
        base_timestamp: int,
        most: int,
        /,
    ) -> tuple[bytes, int, int] | None:
        """Encode rows of a record batch as far as they fit into another one.

        The encoded bytes are ``most`` or fewer; a record with offset delta 0 may have more. A record whose timestamp is
        more than an int64 away from ``base_timestamp`` does not fit either. Encoding also ends before a row with a span
        outside of the buffer. Returns the encoded records, the row behind them, and their greatest timestamp. Returns
        None if the first row cannot be encoded, if there are no rows, or if a column is too short.

        Args:
            buffer: Bytes of keys, values and headers.
            columns: Timestamps in ms since the epoch, starts and ends of keys, starts and ends of values.
            headers: Starts and ends of the encoded headers, which are copied unread; None if no row has headers.
            row: First row to encode.
            end: Row to stop before.
            first_delta: Offset delta of the first of these records; the others follow.
            base_timestamp: Base timestamp of their batch, in ms since the epoch.
            most: Most bytes of the result.
        """


_missing: Final[dict[str, ImportError]] = {}
_is_off: Final = os.environ.get(SWITCH, "").strip().lower() == "off"


def _find(name: str) -> Any:
    """Return a module of the kernel, or None."""
    if _is_off:
        return None
    try:
        return importlib.import_module(f"consumerd.wire._kernel.{name}")
    except ImportError as error:
        _missing[name] = error
        return None


records: RecordsKernel | None = _find("records")
messages: MessagesKernel | None = _find("messages")
legacy: LegacyKernel | None = _find("legacy")
building: BuildingKernel | None = _find("building")
snappy: SnappyKernel | None = _find("snappy")
lz4: Lz4Kernel | None = _find("lz4")
gather: GatherKernel | None = _find("gather")
lines: LinesKernel | None = _find("lines")
memory: MemoryKernel | None = _find("memory")
fold: FoldKernel | None = _find("fold")

NATIVE: Final = not _is_off and not _missing
"""True if all modules of the kernel are loaded."""


def describe() -> str:
    """Return a text about the native kernel in use, for logs and diagnostics.

    Example: ``native (CRC-32C: sse4.2)``. If the kernel is missing or incomplete, the text has the reason and the
    remedy.
    """
    if _is_off:
        return f"none, pure Python: {SWITCH}=off"
    found = "none, pure Python" if records is None else f"native (CRC-32C: {records.CRC32C})"
    if not _missing:
        return found
    remedy = f"install it again ({reinstall_command()}), or make kernel in a checkout"
    broken = [f"{name}: {error}" for name, error in _missing.items() if not isinstance(error, ModuleNotFoundError)]
    if broken:
        return f"{found}: cannot load {'; '.join(broken)}; {remedy}"
    if records is None:
        return f"{found}: not built, for want of a C compiler or of Python's headers; once they are there, {remedy}"
    return f"{found}, without {', '.join(_missing)}: built from older sources; {remedy}"
