# SPDX-License-Identifier: Apache-2.0
"""Records as columns: what the decoders produce and every sink consumes.

A :class:`RecordBatch` holds the records of one fetched record set of one partition. Columns are flat arrays of int64
(anything that indexes like ``Sequence[int]`` and exports the buffer protocol: ``array('q')`` from the pure decoder,
typed memoryviews from a kernel); keys and values are spans ``[start, end)`` over one buffer. No Python object exists
for a record until :meth:`RecordBatch.records` makes one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from consumerd.errors import ConfigError, CorruptMessageError
from consumerd.installation import install_command
from consumerd.model import Gap, GapReason, TimestampType, TopicPartition
from consumerd.wire.varint import read_varint

if TYPE_CHECKING:
    import pyarrow as pa

NULL_SPAN: Final = -1
"""The start and the end of a span whose key or value is null."""

NO_TIMESTAMP: Final = -1

Headers = tuple[tuple[str, bytes | None], ...]

_TIMESTAMP_TYPES: Final = (TimestampType.NONE, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What decoding one fetched record set may cost, whatever its bytes say.

    ``decompressed_bytes`` bounds everything that is decompressed for it, ``nesting`` how deep compressed message sets
    may stand in each other (1: a compressed set of plain messages).
    """

    decompressed_bytes: int = 128 << 20
    nesting: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, materialized. ``timestamp`` in ms since the epoch, -1 where the format or producer gave none."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    index: int = 0


def _int64() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordBatch:
    """The records of one partition between two positions, as columns.

    ``start`` is the position that was asked for and ``next_offset`` the one to ask for next: every offset in
    ``[start, next_offset)`` is either a record here or inside one of ``gaps``, which are in order. ``timestamp_types``
    has one byte a record (``TimestampType`` + 1), or is empty where no record has a timestamp. ``header_starts`` and
    ``header_ends`` span the encoded headers (null where there are none) and are empty where no record of the batch has
    any. ``indexes`` is empty but for legacy sets. ``size_bytes`` is what the batch holds in memory.
    """

    partition: TopicPartition
    start: int
    next_offset: int
    buffer: bytes | bytearray | memoryview = b""
    offsets: array[int] = field(default_factory=_int64)
    timestamps: array[int] = field(default_factory=_int64)
    timestamp_types: bytes = b""
    key_starts: array[int] = field(default_factory=_int64)
    key_ends: array[int] = field(default_factory=_int64)
    value_starts: array[int] = field(default_factory=_int64)
    value_ends: array[int] = field(default_factory=_int64)
    header_starts: array[int] = field(default_factory=_int64)
    header_ends: array[int] = field(default_factory=_int64)
    indexes: array[int] = field(default_factory=_int64)
    gaps: tuple[Gap, ...] = ()
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"<RecordBatch {self.partition} [{self.start}, {self.next_offset}): {len(self)} records>"

    def records(self) -> Iterator[Record]:
        """Make the records, one by one. Raises CorruptMessageError where headers cannot be read."""
        count = len(self.offsets)
        types = self.timestamp_types or bytes(count)
        indexes: Sequence[int] = self.indexes or bytes(count)
        headers: Iterator[Headers] = self._headers() if self.header_starts else iter([()] * count)
        for row in zip(self.offsets, self.timestamps, types, self.keys(), self.values(), headers, indexes, strict=True):
            yield Record(
                offset=row[0],
                timestamp=row[1],
                timestamp_type=_TIMESTAMP_TYPES[row[2]],
                key=row[3],
                value=row[4],
                headers=row[5],
                index=row[6],
            )

    def keys(self) -> list[bytes | None]:
        """Return the keys as a list; None where a record has none."""
        return _cut(self.buffer, self.key_starts, self.key_ends)

    def values(self) -> list[bytes | None]:
        """Return the values as a list; None where a record has none."""
        return _cut(self.buffer, self.value_starts, self.value_ends)

    def _headers(self) -> Iterator[Headers]:
        for start, end in zip(self.header_starts, self.header_ends, strict=True):
            yield decode_headers(self.buffer, start, end) if start >= 0 else ()

    def slice_from(self, offset: int) -> RecordBatch:
        """Return what is left when everything below ``offset`` is dropped; the buffer is shared."""
        if offset <= self.start:
            return self
        if offset >= self.next_offset:
            return empty_batch(self.partition, offset, offset)
        return self._pick(
            slice(bisect_left(self.offsets, offset), None),
            start=offset,
            gaps=tuple(Gap(max(gap.start, offset), gap.end, gap.reason) for gap in self.gaps if gap.end > offset),
        )

    def slice_to(self, offset: int) -> RecordBatch:
        """Return what is left when everything from ``offset`` on is dropped; the buffer is shared."""
        if offset >= self.next_offset:
            return self
        end = max(offset, self.start)
        return self._pick(
            slice(0, bisect_left(self.offsets, end)),
            next_offset=end,
            gaps=tuple(Gap(gap.start, min(gap.end, end), gap.reason) for gap in self.gaps if gap.start < end),
        )

    def rows(self, begin: int, end: int) -> RecordBatch:
        """Return a part of the records, of rows ``[begin, end)``; positions and gaps stay the whole batch's, the buffer is
        shared.
        """
        return self._pick(slice(begin, end))

    def without(self, row: int, reason: GapReason) -> RecordBatch:
        """Return the batch without one record; its offset becomes a gap, unless another record shares it."""
        offset = self.offsets[row]
        shared = offset in (*self.offsets[max(0, row - 1) : row], *self.offsets[row + 1 : row + 2])
        gaps = self.gaps if shared else tuple(sorted((*self.gaps, Gap(offset, offset + 1, reason)), key=_start))
        before, after = self._pick(slice(0, row)), self._pick(slice(row + 1, None))
        return replace(
            before,
            gaps=gaps,
            **{name: getattr(before, name) + getattr(after, name) for name in (*_COLUMNS, "timestamp_types")},
        )

    def _pick(self, rows: slice, **changes: object) -> RecordBatch:
        columns = {name: getattr(self, name)[rows] for name in (*_COLUMNS, "timestamp_types")}
        return replace(self, **columns, **changes)  # type: ignore[arg-type]  # columns by their names

    def record(self, row: int, *, with_headers: bool = True) -> Record:
        """Make one record. Raises CorruptMessageError where its headers cannot be read, unless they are left out."""
        one = self._pick(slice(row, row + 1))
        if not with_headers:
            one = replace(one, header_starts=_int64(), header_ends=_int64())
        return next(one.records())

    def header_bytes(self, row: int) -> bytes:
        """Return a record's headers as they are encoded; empty where it has none."""
        if not self.header_starts or self.header_starts[row] < 0:
            return b""
        return bytes(self.buffer[self.header_starts[row] : self.header_ends[row]])

    def find_unreadable(self) -> int | None:
        """Return the first row whose headers cannot be read."""
        for row, (start, end) in enumerate(zip(self.header_starts, self.header_ends, strict=True)):
            try:
                if start >= 0:
                    header_spans(self.buffer, start, end)
            except CorruptMessageError:
                return row
        return None

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as an Arrow record batch with the columns of ``wire.arrow``. Needs pyarrow.

        Raises CorruptMessageError where headers cannot be read, ConfigError without pyarrow.
        """
        try:
            from consumerd.wire.arrow import to_arrow
        except ImportError as error:
            raise ConfigError(f"Arrow data needs pyarrow: {install_command('parquet')}") from error
        return to_arrow(self)


_COLUMNS: Final = (
    "offsets",
    "timestamps",
    "key_starts",
    "key_ends",
    "value_starts",
    "value_ends",
    "header_starts",
    "header_ends",
    "indexes",
)


def _start(gap: Gap) -> int:
    return gap.start


def empty_batch(partition: TopicPartition, start: int, next_offset: int, gaps: tuple[Gap, ...] = ()) -> RecordBatch:
    """Return a batch without records; ``gaps`` must explain ``[start, next_offset)``."""
    return RecordBatch(partition=partition, start=start, next_offset=next_offset, gaps=gaps)


def _cut(buffer: bytes | bytearray | memoryview, starts: array[int], ends: array[int]) -> list[bytes | None]:
    if not isinstance(buffer, bytes):
        return [None if s < 0 else bytes(buffer[s:e]) for s, e in zip(starts, ends, strict=True)]
    if starts and min(starts) >= 0:
        return list(map(buffer.__getitem__, map(slice, starts, ends)))
    return [None if s < 0 else buffer[s:e] for s, e in zip(starts, ends, strict=True)]


def decode_headers(buffer: bytes | bytearray | memoryview, start: int, end: int) -> Headers:
    """Read a record's headers: their count, then key and value of each. Keys that are not UTF-8 are read as Java does,
    with replacement characters.

    Raises CorruptMessageError unless they fill ``[start, end)`` exactly.
    """
    return tuple(
        (str(buffer[key_start:key_end], "utf-8", "replace"), None if s < 0 else bytes(buffer[s:e]))
        for key_start, key_end, s, e in header_spans(buffer, start, end)
    )


def header_spans(buffer: bytes | bytearray | memoryview, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return key and value spans of a record's headers. Raises CorruptMessageError as :func:`decode_headers`."""
    count, at = read_varint(buffer, start, end)
    if not 0 <= count <= (end - at) // 2:
        raise CorruptMessageError(f"{count} headers in {end - at} bytes")
    spans = []
    for _ in range(count):
        key_start, key_end, at = _read_span(buffer, at, end)
        if key_start < 0:
            raise CorruptMessageError("a header without a key")
        value_start, value_end, at = _read_span(buffer, at, end)
        spans.append((key_start, key_end, value_start, value_end))
    if at != end:
        raise CorruptMessageError(f"{end - at} bytes left behind the headers")
    return spans


def _read_span(buffer: bytes | bytearray | memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Read a header's key or value: its span, ``(-1, -1)`` for null, and the position behind it."""
    length, at = read_varint(buffer, at, end)
    if length == NULL_SPAN:
        return NULL_SPAN, NULL_SPAN, at
    if not 0 <= length <= end - at:
        raise CorruptMessageError(f"a header of {length} bytes where {end - at} are left")
    return at, at + length, at + length
