# SPDX-License-Identifier: Apache-2.0
"""A partition's fetched bytes: units of magic 0, 1 and 2 in any mixture, the last of them often cut off.

Owns where units begin and end, and what a unit that cannot be read means; their insides belong to ``message_set`` and
``record_batch``. A topic that has seen an upgrade of the message format holds several magics, even within a segment.

These three functions are all that the rest of consumerd calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.errors import CorruptMessageError, DecompressedTooLarge, forget_frames
from consumerd.model import GapReason, TopicPartition
from consumerd.wire import kernel
from consumerd.wire.columns import ColumnBuilder, Patience
from consumerd.wire.kernel import Buffer, RecordsKernel
from consumerd.wire.modern import message_set, record_batch
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, MAGIC_AT, find_end
from consumerd.wire.modern.extent import (
    BATCH_MAGIC,
    HEAD_BYTES,
    UNIT_SIZES,
    UnitOffsets,
    find_next_offset,
    find_stop,
    read_offsets,
)
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_batch import AbortedTransactions
from consumerd.wire.records import Limits, RecordBatch

_DEFAULT_LIMITS: Final = Limits()


def decode_record_set(
    data: Buffer,
    *,
    partition: TopicPartition,
    start: int,
    limits: Limits = _DEFAULT_LIMITS,
    read_committed: bool = False,
    aborted: Sequence[AbortedTransaction] | None = (),
    high_watermark: int | None = None,
    following: bytes | memoryview = b"",
    attested: bool = False,
    make_room: Callable[[], memoryview] | None = None,
) -> RecordBatch:
    """Decode what a Fetch from offset ``start`` gave for one partition into one batch.

    A unit that is cut off ends the batch, and so does one that cannot be read, unless nothing before it brought the
    position forward. When ``next_offset`` is still ``start`` although there is data, the first unit is larger than what
    was fetched (see :func:`first_unit_size`), or all of it stands before ``start``. Under ``read_committed``, ``aborted``
    is the list of the Fetch response. With ``attested`` the last unit is left out where a hole stands before it and nothing
    is known of what follows: fetched again, it comes first, with what stands behind it.

    ``bytes`` become the batch's buffer, unless something is compressed. So does a read-only view where the native kernel is
    there: whoever gives one sees to it that no small batch holds a large frame. Anything else is copied once. ``make_room``
    may give writable memory for what is decompressed, about as much as it will be (see :func:`consumerd.fetch.slices`); the
    batch keeps it. It may be called more than once, in any thread, and where there is none, or too little, other memory is taken.

    Raises CorruptMessageError (DecompressedTooLarge, if that is all) for the first unit, with partition, offset, raw
    bytes, and ``next_offset`` if two witnesses agree on it. For these serve ``high_watermark``, which no unit may pass,
    and ``following``, what was fetched behind ``data``, of which no more than a head is looked at while nothing is wrong.
    """
    fetched = _Fetched(
        raw=_in_place(data),
        partition=partition,
        start=start,
        limits=limits,
        read_committed=read_committed,
        aborted=aborted or (),
        high_watermark=high_watermark,
        following=following,
        attested=attested,
        make_room=make_room if _reads_views() else None,
    )
    return fetched.decode(0, _MOST_PASSED)


def _in_place(data: Buffer) -> Buffer:
    """Return what is decoded: the data itself, if it cannot change and can be read where it is, else a copy."""
    if isinstance(data, bytes):
        return data
    is_readable = isinstance(data, memoryview) and data.readonly and data.c_contiguous and data.format == "B"
    return data if is_readable and _reads_views() else bytes(data)


def _reads_views() -> bool:
    return kernel.records is not None and kernel.messages is not None


def _read_run(
    native: RecordsKernel,
    data: Buffer,
    at: int,
    columns: ColumnBuilder,
    limits: Limits,
    patience: Patience,
    *,
    transactional: bool,
) -> int:
    """Read the units at ``at`` of one kind that the kernel takes, if there are any; returns where they end.

    Messages that are not compressed are for ``message_reader``. Of a wrapper nobody knows what it holds before it is
    decompressed, so that what the kernel does not take is decompressed once more; ``patience`` sees to it that this is
    seldom where all of them have holes.
    """
    end = len(data)
    if end - at <= _CODEC_AT:
        return at
    if data[at + MAGIC_AT] != BATCH_MAGIC:
        rows = len(columns)
        if not data[at + MAGIC_AT + 1] & CODEC_MASK or limits.nesting < 1 or patience.left(rows) > 0:
            return at
        stop = native.read_wrappers(data, at, end, columns, limits.decompressed_bytes)
        patience.note(rows, gained=stop > at)
        return stop
    if data[at + _CODEC_AT] & CODEC_MASK:
        return native.read_packed(data, at, end, columns, limits.decompressed_bytes, transactional)
    return _read_plain(native, data, at, columns, transactional=transactional)


_CODEC_AT: Final = record_batch.CHECKED_FROM + 1
"""The low byte of a batch's attributes."""


def _read_plain(native: RecordsKernel, data: Buffer, at: int, columns: ColumnBuilder, *, transactional: bool) -> int:
    """Read the plain batches at ``at``, if there are any; returns where they end."""
    records_at = at + record_batch.HEADER_BYTES
    stop = native.read_batches(data, at, len(data), columns.peek_shift(records_at), columns, transactional)
    if stop > at:
        columns.plain_shift(records_at)
    return stop


_LOOK_BYTES: Final = 1 << 20
"""So much may be decompressed at least to find out where a wrapper begins."""
_MOST_PASSED: Final = 3
"""So many units in a row are taken for such as stand before the position that is due; more are too much of a coincidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    """What was fetched, and all that is known besides.

    Theory. No checksum covers the offset of a unit. A broker answers with the first unit whose offset is not below the one
    that was asked for; so one whose offset was damaged upwards comes in answer to every position up to that offset, as
    far as the broker's index does not lead behind it, whatever its place, and what stands behind it is smaller. Of two
    units that do not ascend the first is the wrong one if a hole stands before it and the second one would fit into the
    hole, or if it claims what is due and there is no room for the second between it and the third. Where the second is
    what was due, the first stands before that: it is passed by, and nothing is lost by it.
    """

    raw: Buffer
    partition: TopicPartition
    start: int
    limits: Limits
    read_committed: bool
    aborted: Sequence[AbortedTransaction]
    high_watermark: int | None
    following: bytes | memoryview
    attested: bool
    make_room: Callable[[], memoryview] | None

    def decode(self, begin: int, passes: int) -> RecordBatch:
        """Decode from byte ``begin`` on, passing by at most so many units."""
        raw, start, high_watermark = self.raw, self.start, self.high_watermark
        columns = ColumnBuilder(raw, self.partition, start, self.make_room)
        at, error = self._read_units(begin, columns)
        if error is not None:
            del columns
            forget_frames(error)  # it may be decompressed again
            if self.following and not isinstance(error, DecompressedTooLarge):
                return self._with_all().decode(begin, passes)
            rest = self._pass_by(at, passes)
            if rest is not None and _is_due(rest):
                return rest
            located = self._locate(error, at)
            _set_end(located, rest)
            try:
                raise located from error
            finally:
                del located, error, rest  # or they and this frame hold each other, and what was fetched
        if high_watermark is not None and columns.position > high_watermark:
            position = columns.position
            del columns
            whole = self._with_all() if self.following else self
            return whole._decode_to_stray(begin, position, passes)  # noqa: SLF001 - of the same kind
        due = columns.unattested
        doubtful = due is not None or at < len(raw) or columns.begins_before(start)
        follower = self._follower(at, inside=doubtful)
        if follower is None:
            batch = columns.finish(at)
            return batch.slice_to(due) if due is not None and due > start and self.attested else batch
        first = follower.least
        if first >= columns.end or at == begin:
            return columns.finish(at)
        if self.following:
            del columns
            return self._with_all().decode(begin, passes)
        if due is not None and due > start:
            batch = columns.finish(at)
            return batch.slice_to(due) if first > due else batch
        last_at = self._unit_before(begin, at)
        if due is None:
            rest = (
                self._pass_by(last_at, passes)
                if last_at == begin
                and (self._is_met_again(begin, columns, follower) or self._leaves_no_room(follower, at, columns.end))
                else None
            )
            return rest if rest is not None and (_is_due(rest) or follower.last < start) else columns.finish(at)
        if not self._speaks_against(follower, at, columns.end):
            return columns.finish(at)
        claimed = columns.end - 1
        del columns
        return self._decode_behind(last_at, claimed, follower, passes)

    def _read_units(self, at: int, columns: ColumnBuilder) -> tuple[int, CorruptMessageError | None]:
        """Read units as far as they go; returns where that is, and what is wrong with the unit there if nothing before it
        brought the position forward.
        """
        raw = self.raw
        transactions = AbortedTransactions(self.aborted) if self.read_committed else None
        end = len(raw)
        native, patience = kernel.records, Patience()
        while True:
            if native is not None:
                at = _read_run(native, raw, at, columns, self.limits, patience, transactional=not transactions)
            try:
                stop = find_end(raw, at, UNIT_SIZES)
                if stop is None or stop > end:
                    return at, None
                if raw[at + MAGIC_AT] == BATCH_MAGIC:
                    record_batch.read_batch(raw, at, stop, columns, self.limits, transactions)
                    at = stop
                else:
                    at = message_set.read_messages(raw, at, end, columns, self.limits)
            except CorruptMessageError as error:
                if columns.position == self.start:
                    return at, error
                columns.roll_back()
                return at, None

    # -- offsets that the units behind speak against

    def _with_all(self) -> _Fetched:
        """Return the same with all that was fetched behind: where something is wrong it may tell what."""
        return replace(self, raw=bytes(self.raw) + bytes(self.following), following=b"")

    def _bytes_at(self, at: int, size: int) -> bytes:
        """Return up to ``size`` bytes of what was fetched, from ``at`` on."""
        found = bytes(self.raw[at : at + size])
        if len(found) < size:
            behind = max(at - len(self.raw), 0)
            found += bytes(self.following[behind : behind + size - len(found)])
        return found

    def _follower(self, at: int, *, inside: bool = True) -> UnitOffsets | None:
        """Return the offsets of the unit at ``at``, which may stand in what follows, or begin to.

        The first one of a compressed wrapper is known only if one looks ``inside``, and all of it was fetched.
        """
        head = self._bytes_at(at, HEAD_BYTES)
        offsets = read_offsets(head, 0, self.high_watermark)
        if offsets is None or offsets.first is not None or not inside:
            return offsets
        size = find_stop(head, 0)
        if size is None or size > len(self.raw) - at + len(self.following):
            return offsets
        columns = ColumnBuilder(head, self.partition, 0)
        limits = replace(self.limits, decompressed_bytes=max(self.limits.decompressed_bytes, _LOOK_BYTES))
        with contextlib.suppress(CorruptMessageError):
            message_set.read_messages(self._bytes_at(at, size), 0, size, columns, limits)
            return replace(offsets, first=columns.offsets[0])
        return offsets

    def _speaks_against(self, follower: UnitOffsets, at: int, end: int) -> bool:
        """Tell whether the unit at ``at`` makes the one before it wrong, which is the first that may be due and claims all
        below ``end``; otherwise its own offset is.
        """
        start = self.start
        if (follower.first is not None and follower.first > start) or follower.last + 1 >= start:
            return True
        stop = find_stop(self.raw, at)
        another = None if stop is None else self._follower(stop)
        return another is None or another.least < end

    def _is_met_again(self, begin: int, columns: ColumnBuilder, follower: UnitOffsets) -> bool:
        """Tell whether the unit at ``begin`` was passed over before and is sent again.

        It was if it begins below the position that was asked for, and the unit behind it begins exactly there: the
        position was moved behind the unit then.
        """
        if follower.first != self.start:
            return False
        offsets = read_offsets(self.raw[begin : begin + HEAD_BYTES], 0, self.high_watermark)
        first = None if offsets is None else offsets.first
        return columns.begins_before(self.start) or (first is not None and first < self.start)

    def _leaves_no_room(self, follower: UnitOffsets, at: int, end: int) -> bool:
        """Tell whether the unit at ``at`` cannot stand behind one that claims all below ``end``, since the next is too near,
        or the log's end where there is none.
        """
        stop = find_stop(self.raw, at)
        another = None if stop is None else self._follower(stop)
        limit = self.high_watermark if another is None else another.least
        length = 1 if follower.first is None else follower.last - follower.first + 1
        return limit is not None and limit < end + length

    def _unit_before(self, at: int, before: int) -> int:
        """Return where the unit stands that ends at ``before``."""
        while (stop := find_stop(self.raw, at)) is not None and stop < before:
            at = stop
        return at

    def _decode_behind(self, at: int, claimed: int, follower: UnitOffsets, passes: int) -> RecordBatch:
        """Return what stands behind the unit at ``at``, whose offset is wrong, if it stands before what is due."""
        rest = self._pass_by(at, passes)
        next_offset = follower.first if follower.first is not None and follower.first > self.start else None
        if rest is not None and rest.next_offset > self.start:
            if _is_due(rest):
                return rest
            next_offset = rest.gaps[0].end
        elif rest is not None and follower.last < self.start:
            return rest
        error = CorruptMessageError(f"it says offset {claimed} and stands before offset {follower.last}")
        error = self._locate(error, at, is_known=False)
        error.next_offset = next_offset
        try:
            raise error
        finally:
            del error

    def _pass_by(self, at: int, passes: int) -> RecordBatch | None:
        """Return what stands behind the unit at ``at``; None where that cannot be read."""
        stop = find_stop(self.raw, at)
        if stop is None or stop > len(self.raw) or not passes:
            return None
        try:
            return self.decode(stop, passes - 1)
        except CorruptMessageError:
            return None

    def _decode_to_stray(self, begin: int, position: int, passes: int) -> RecordBatch:
        """Decode what leads to ``position``, which the log does not have yet, up to the unit that claims so."""
        assert self.high_watermark is not None
        stray = _find_stray(self.raw, begin, self.high_watermark)
        if stray > begin:
            alone = replace(self, raw=self.raw[:stray], following=b"", high_watermark=None, attested=False)
            before = alone.decode(begin, passes)
            if self.start < before.next_offset <= self.high_watermark:
                return before
        rest = self._pass_by(stray, passes)
        if rest is not None and _is_due(rest):
            return rest
        beyond = f"it leads to offset {position}, beyond the high watermark {self.high_watermark}"
        error = self._locate(CorruptMessageError(beyond), stray)
        _set_end(error, rest)
        try:
            raise error
        finally:
            del error

    # -- what is known of a unit that cannot be read

    def _locate(self, error: CorruptMessageError, at: int, *, is_known: bool = True) -> CorruptMessageError:
        """Return ``error`` with the coordinates of the unit at ``at``.

        Its offset is the one in its head, except for a compressed wrapper, whose head has its last: there, and where the
        head cannot be trusted (``is_known``), it is the position that was asked for.
        """
        raw, high_watermark = self.raw, self.high_watermark
        stop = find_stop(raw, at)
        offset = self.start
        next_offset = None
        if stop is not None and is_known:
            known = bytes(raw) + bytes(self.following[:HEAD_BYTES])
            next_offset = find_next_offset(known, at, self.start, high_watermark)
            is_cut = len(raw) - at <= MAGIC_AT + 1
            if not is_cut and (raw[at + MAGIC_AT] == BATCH_MAGIC or not raw[at + MAGIC_AT + 1] & CODEC_MASK):
                (claimed, _) = ENTRY.unpack_from(raw, at)
                if claimed >= 0 and (high_watermark is None or claimed < high_watermark):
                    offset = claimed
        return type(error)(
            f"{self.partition}: the record set fetched at offset {self.start}, byte {at}, offset {offset}: {error}",
            partition=self.partition,
            offset=offset,
            next_offset=next_offset,
            raw=bytes(raw[at:stop]),
        )


def _set_end(error: CorruptMessageError, rest: RecordBatch | None) -> None:
    """Have a unit whose end is not known end where that begins which can be read behind it, across a hole."""
    if error.next_offset is None and rest is not None and rest.next_offset > rest.start:
        error.next_offset = rest.gaps[0].end


def _is_due(batch: RecordBatch) -> bool:
    """Tell whether a batch begins with the very offset that is due, accounted for by more than a hole."""
    if batch.next_offset == batch.start:
        return False
    return not batch.gaps or batch.gaps[0].start > batch.start or batch.gaps[0].reason is not GapReason.COMPACTION


def _find_stray(data: Buffer, begin: int, high_watermark: int) -> int:
    """Return where the first unit begins that claims offsets which the log does not have yet; the checksums of no format
    cover the offset.
    """
    at, end = begin, len(data)
    while (stop := find_stop(data, at)) is not None and stop <= end:
        if _next_offset(data, at) > high_watermark:
            return at
        at = stop
    return begin


def first_unit_size(data: bytes | bytearray | memoryview) -> int | None:
    """Return how many bytes the first unit has by its own account, or None where that cannot be told."""
    try:
        return find_end(data, 0, UNIT_SIZES)
    except CorruptMessageError:
        return None


def _next_offset(data: bytes | bytearray | memoryview, at: int) -> int:
    """Return the offset behind the whole unit at ``at``, as its head has it."""
    offset, _ = ENTRY.unpack_from(data, at)
    if data[at + MAGIC_AT] == BATCH_MAGIC:
        offset += record_batch.LAST_OFFSET_DELTA.unpack_from(data, at + record_batch.LAST_OFFSET_DELTA_AT)[0]
    return int(offset) + 1
