# SPDX-License-Identifier: Apache-2.0
"""Record batches as columns: produced by the decoders, consumed by every sink.

A :class:`RecordBatch` holds the decoded records of one fetched record set of one partition, without a Python object per
record. Offsets, timestamps and the bounds of keys and values are columns: flat arrays of int64 (``array('q')``). A key
or value is a span ``[start, end)`` of one shared buffer. :meth:`RecordBatch.records` creates :class:`Record` objects on
demand.

Example: position 5 was asked for, and after compaction the log still has offsets 5, 6 and 9. Their keys are ``a``,
``b`` and null, their values ``xx``, null and ``yy``::

    start, next_offset          5, 10
    offsets                     5,      6,        9
    gaps                        [7, 9) COMPACTION
    buffer                      ...a.xx...b...yy...
    key_starts, key_ends        (3, 4), (10, 11), (-1, -1)
    value_starts, value_ends    (5, 7), (-1, -1), (14, 16)

Mostly the offset after a record is its own plus one: 7 after the record at 6, where the gap begins. Where offsets count
bytes (Kafka 0.7), it is the end of the message, and a column of its own. Example: a message of 40 bytes at 0, and a
compressed one of 50 bytes at 40, with two records::

    start, next_offset          0, 90
    offsets, indexes            0, 40, 40       0, 0, 1
    next_offsets                40, 90, 90

:meth:`RecordBatch.following` is the rule. ``wire.arrow`` and the native kernel have it for whole columns: they add 1 to
``offsets`` if ``next_offsets`` is empty.
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
from consumerd.wire import kernel
from consumerd.wire.record_fields import NO_TIMESTAMP, Headers, decode_headers, header_spans

if TYPE_CHECKING:
    import pyarrow as pa

_TIMESTAMP_TYPES: Final = (TimestampType.NONE, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the cost of decoding one fetched record set of untrusted bytes.

    Args:
        decompressed_bytes: limit on the sum of all that is decompressed for the record set.
        nesting: number of compressed message sets that may be nested. 1 allows a wrapper that holds plain messages.
    """

    decompressed_bytes: int = 128 << 20
    nesting: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as an object.

    Args:
        timestamp: ms since the epoch; -1 if the format has none, or the producer set none.
        index: position among the records that share an offset, as in compressed sets of Kafka 0.7; otherwise 0.
    """

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    index: int = 0


# Never changed, but not frozen: one is made for each record that is produced, and a frozen one takes three times as
# long. The producer makes it by position, which takes a third of the time that keywords take.
@dataclass(slots=True, unsafe_hash=True)
class NewRecord:
    """A record that has no offset yet; ``timestamp`` in ms since the epoch.

    Magic 0 keeps neither timestamp nor headers, magic 1 no headers. Pass the arguments by keyword, except where every
    microsecond counts.
    """

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Headers = ()


def _int64() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordBatch:
    """The records of one partition between two positions, as columns.

    Every offset in ``[start, next_offset)`` belongs either to a record, which has the offsets from its own up to
    :meth:`following`, or to one of ``gaps``.

    Args:
        start: position that was asked for.
        next_offset: position to ask for next.
        timestamp_types: one byte per record, ``TimestampType`` + 1. Empty if no record has a timestamp.
        header_starts: with ``header_ends``, spans of the encoded headers; null spans for records without any. Both are
            empty if no record of the batch has headers.
        indexes: empty, unless several records share an offset.
        next_offsets: offset after each record; empty if that is each record's offset plus one.
        gaps: offsets without a record, in ascending order.
        size_bytes: memory that the batch holds.
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
    next_offsets: array[int] = field(default_factory=_int64)
    gaps: tuple[Gap, ...] = ()
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"<RecordBatch {self.partition} [{self.start}, {self.next_offset}): {len(self)} records>"

    def records(self) -> Iterator[Record]:
        """Yield the records as objects. Raises CorruptMessageError for headers that cannot be decoded."""
        count = len(self.offsets)
        types = self.timestamp_types or bytes(count)
        indexes: Sequence[int] = self.indexes or bytes(count)
        headers: Iterator[Headers] = self.headers() if self.header_starts else iter([()] * count)
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
        """Return the keys; None for a null key."""
        return _cut(self.buffer, self.key_starts, self.key_ends)

    def values(self) -> list[bytes | None]:
        """Return the values; None for a null value."""
        return _cut(self.buffer, self.value_starts, self.value_ends)

    def headers(self) -> Iterator[Headers]:
        """Yield the headers of each record; nothing if no record has any.

        Raises CorruptMessageError for headers that cannot be decoded.
        """
        for start, end in zip(self.header_starts, self.header_ends, strict=True):
            yield decode_headers(self.buffer, start, end) if start >= 0 else ()

    def following(self, row: int) -> int:
        """Return the offset after a record, where the next record or a gap begins.

        Args:
            row: Index of the record in the batch, from 0.
        """
        return self.next_offsets[row] if self.next_offsets else self.offsets[row] + 1

    def list_following(self, rows: slice) -> Sequence[int]:
        """Return the offset after each record of some rows.

        That is the record's offset plus one, or the entry in ``next_offsets``.
        """
        return self.next_offsets[rows] or [offset + 1 for offset in self.offsets[rows]]

    def position_after(self, count: int) -> int:
        """Return the position at which to go on after the batch's first ``count`` records.

        No position is within a compressed message of Kafka 0.7, whose records share an offset. If the next record
        shares the offset of the last one, the position is their message's start, and its records are read again.

        Example: the message at 40 ends at 90, and has two records. After the first one the position is 40, after both
        it is 90.
        """
        if count == 0:
            return self.start
        if count == len(self.offsets):
            return self.next_offset
        is_within_message = self.offsets[count] == self.offsets[count - 1]
        return self.offsets[count] if is_within_message else self.following(count - 1)

    def slice_from(self, offset: int) -> RecordBatch:
        """Return the batch without the records and gaps below ``offset``. The buffer is shared."""
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
        """Return the batch without the records and gaps from ``offset`` on. The buffer is shared."""
        if offset >= self.next_offset:
            return self
        end = max(offset, self.start)
        return self._pick(
            slice(0, bisect_left(self.offsets, end)),
            next_offset=end,
            gaps=tuple(Gap(gap.start, min(gap.end, end), gap.reason) for gap in self.gaps if gap.start < end),
        )

    def first_rows(self, count: int) -> RecordBatch:
        """Return the batch with its first ``count`` records, and the gaps before the next one.

        Records are counted, as those of a compressed message of Kafka 0.7 share an offset. The buffer is shared.
        """
        if count == 0:
            return self.slice_to(self.start)
        if count >= len(self.offsets):
            return self
        end = max(self.offsets[count], self.following(count - 1))
        return self.slice_to(end).rows(0, count)

    def rest_rows(self, count: int) -> RecordBatch:
        """Return the batch without its first ``count`` records, and without the gaps before them.

        It starts at :meth:`position_after`. The buffer is shared.
        """
        rest = self.slice_from(self.position_after(count))
        again = len(rest) - (len(self) - count)  # records of the message at which it starts, out of the first ones
        return rest.rows(again, len(rest)) if again else rest

    def rows(self, begin: int, end: int) -> RecordBatch:
        """Return the batch with the records of rows ``[begin, end)`` only.

        ``start``, ``next_offset`` and ``gaps`` stay those of the whole batch; the buffer is shared.
        """
        return self._pick(slice(begin, end))

    def without(self, row: int, reason: GapReason) -> RecordBatch:
        """Return the batch without the record ``row``, whose offsets become a gap with ``reason``.

        No gap is added if another record has the same offset.
        """
        offset = self.offsets[row]
        shared = offset in (*self.offsets[max(0, row - 1) : row], *self.offsets[row + 1 : row + 2])
        gap = Gap(offset, self.following(row), reason)
        gaps = self.gaps if shared else tuple(sorted((*self.gaps, gap), key=_start))
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
        """Return the record of one row as an object.

        Raises CorruptMessageError if its headers cannot be decoded, unless ``with_headers`` is False.
        """
        one = self._pick(slice(row, row + 1))
        if not with_headers:
            one = replace(one, header_starts=_int64(), header_ends=_int64())
        return next(one.records())

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as an Arrow record batch with the columns of ``wire.arrow``.

        Raises CorruptMessageError for headers that cannot be decoded, ConfigError without pyarrow.
        """
        try:
            from consumerd.wire.arrow import to_arrow
        except ImportError as error:
            raise ConfigError(f"Arrow data needs pyarrow: {install_command('parquet')}") from error
        return to_arrow(self)

    def header_bytes(self, row: int) -> bytes:
        """Return a record's headers in their encoded form; empty if it has none."""
        if not self.header_starts or self.header_starts[row] < 0:
            return b""
        return bytes(self.buffer[self.header_starts[row] : self.header_ends[row]])

    def find_unreadable(self) -> int | None:
        """Return the first row whose headers cannot be decoded; None if there is none."""
        if (native := kernel.records) is not None:
            found = native.find_unreadable(self.buffer, self.header_starts, self.header_ends)
            if found is not None:
                return found if found < len(self.header_starts) else None
        for row, (start, end) in enumerate(zip(self.header_starts, self.header_ends, strict=True)):
            try:
                if start >= 0:
                    header_spans(self.buffer, start, end)
            except CorruptMessageError:
                return row
        return None


def check_headers(batch: RecordBatch) -> None:
    """Check that the headers of all records can be decoded.

    Raises CorruptMessageError, with partition and offsets, for the first record whose headers cannot.
    """
    if (row := batch.find_unreadable()) is not None:
        offset = batch.offsets[row]
        raise CorruptMessageError(
            f"{batch.partition}: the headers of the record at offset {offset} cannot be read",
            partition=batch.partition,
            offset=offset,
            next_offset=batch.following(row),
        )


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
    "next_offsets",
)


def _start(gap: Gap) -> int:
    return gap.start


def empty_batch(partition: TopicPartition, start: int, next_offset: int, gaps: tuple[Gap, ...] = ()) -> RecordBatch:
    """Return a batch without records; ``gaps`` must cover ``[start, next_offset)``."""
    return RecordBatch(partition=partition, start=start, next_offset=next_offset, gaps=gaps)


def _cut(buffer: bytes | bytearray | memoryview, starts: array[int], ends: array[int]) -> list[bytes | None]:
    """Return the bytes of each span, None for a null span."""
    if not isinstance(buffer, bytes):
        return [None if s < 0 else bytes(buffer[s:e]) for s, e in zip(starts, ends, strict=True)]
    if starts and min(starts) >= 0:
        # no null among them: the loop runs in C
        return list(map(buffer.__getitem__, map(slice, starts, ends)))
    return [None if s < 0 else buffer[s:e] for s, e in zip(starts, ends, strict=True)]
