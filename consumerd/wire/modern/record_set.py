# SPDX-License-Identifier: Apache-2.0
"""Fetched record sets: units of any magic, often with a partial trailing unit.

Owns the boundaries of units, and the treatment of units that cannot be decoded, or whose offsets contradict each other.
The contents of units belong to ``message_set`` and ``record_batch``. A topic whose message format was upgraded has
several magics, even within one segment.

Example: a fetch from offset 20 returns a batch 18-22, a batch 23-29 with a gap at 25, and half of a batch. The decoded
batch has records 20-24 and 26-29, a gap [25, 26), and next offset 30. Records 18 and 19 are dropped, since a broker
returns whole batches. The partial batch is fetched again, from offset 30.

The rest of consumerd calls :func:`decode_record_set`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.errors import CorruptMessageError, DecompressedTooLarge, forget_frames
from consumerd.model import GapReason, TopicPartition
from consumerd.wire import kernel
from consumerd.wire.columns import ColumnBuilder, Patience, in_place, reads_views
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
    following_offset,
    read_claim,
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
    """Decode a partition's record set, as returned by a Fetch, into one batch of records.

    A unit is a message, a compressed wrapper or a batch. The result ends before a partial or unreadable unit. If the
    first unit with records to deliver is unreadable, CorruptMessageError is raised. If ``next_offset`` of the result
    equals ``start`` although ``data`` is not empty, then the first unit is larger than ``data`` (see
    ``extent.find_stop``), or all of ``data`` lies before ``start``.

    Args:
        data: the record set, or a piece of it that consists of whole units. ``bytes`` become the batch's buffer, unless
            something is compressed; so does a read-only memoryview if the native kernel is present. Such a view keeps
            the whole frame in memory, even for a small batch. Other buffers are copied.
        start: offset that was asked for.
        aborted: aborted transactions in the Fetch response, used under ``read_committed``.
        high_watermark: the partition's high watermark, below which all offsets must lie; None if unknown.
        following: bytes fetched after ``data``. Only the first header is read, unless something is wrong.
        attested: True to leave out the last unit if there is a gap before it and nothing after it confirms its offset.
            The next response begins with that unit, and shows what follows.
        make_room: returns writable memory for decompressed data; the batch keeps it. If it is too small, other memory
            is allocated. May be called more than once, and in any thread. None: memory is allocated as needed.

    Raises CorruptMessageError (DecompressedTooLarge if that is the only fault) for the first unit, with partition,
    offset and raw bytes. The error also has the offset after the unit, if two sources agree on it (see ``extent``).
    """
    fetched = _Fetched(
        raw=in_place(data),
        partition=partition,
        start=start,
        limits=limits,
        read_committed=read_committed,
        aborted=aborted or (),
        high_watermark=high_watermark,
        following=following,
        attested=attested,
        make_room=make_room if reads_views() else None,
    )
    return fetched.decode(0, _MAX_SKIPS)


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
    """Read the run of units at ``at`` that the kernel accepts.

    Returns the position after it. Plain messages are left to ``message_reader``.

    Args:
        patience: backoff for wrappers. The kernel has to decompress a wrapper before it can reject it, and Python then
            decompresses it again.
    """
    end = len(data)
    if end - at <= record_batch.ATTRIBUTES_AT:
        return at
    if data[at + MAGIC_AT] != BATCH_MAGIC:
        rows = len(columns)
        if not data[at + MAGIC_AT + 1] & CODEC_MASK or limits.nesting < 1 or patience.left(rows) > 0:
            return at
        stop = native.read_wrappers(data, at, end, columns, limits.decompressed_bytes)
        patience.note(rows, gained=stop > at)
        return stop
    if data[at + record_batch.ATTRIBUTES_AT] & CODEC_MASK:
        return native.read_packed(data, at, end, columns, limits.decompressed_bytes, transactional)
    return _read_plain(native, data, at, columns, transactional=transactional)


def _read_plain(native: RecordsKernel, data: Buffer, at: int, columns: ColumnBuilder, *, transactional: bool) -> int:
    """Read the run of plain batches at ``at``; returns the position after it."""
    records_at = at + record_batch.HEADER_BYTES
    stop = native.read_batches(data, at, len(data), columns.peek_shift(records_at), columns, transactional)
    if stop > at:
        columns.plain_shift(records_at)
    return stop


_PEEK_BYTES: Final = 1 << 20
"""Least limit for the decompression of a wrapper of which only the first offset is wanted, in bytes."""
_MAX_SKIPS: Final = 3
"""Units in a row that are skipped as belonging before the position; more would be too much of a coincidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    """A fetched record set, with everything that is known of its offsets.

    The fields are the arguments of :func:`decode_record_set`.

    Theory. No checksum covers the offset of a unit, so a disk can change it unnoticed. A broker's response begins with
    the first unit in the log that ends at or after the offset asked for. If the offset of message 10 was changed to 30,
    it is therefore the first one in the response to every fetch from 10 to 30, unless the broker's index leads to a
    place after it. The units that follow in the response have smaller offsets than 30.

    Of two units whose offsets do not ascend, the first one is wrong

    - if there is a gap before it, into which it fits together with the second; or
    - if it has the offset asked for, and there is no room for the second one between it and the third.

    If the second one then has the offset asked for, the first belongs before it. It is skipped, and nothing is lost.
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

    def decode(self, begin: int, skips: int) -> RecordBatch:
        """Decode from byte ``begin`` on, skipping at most ``skips`` units that belong before the position.

        The situations, for position 20 and high watermark 100. ``25`` is a message, ``20-22`` a batch, and ``20x`` is
        unreadable; ``/`` separates the record set from the bytes of ``following``:

        ==  =====================  ==================================================================================
        no  units                  result
        ==  =====================  ==================================================================================
        1   20x / 21               decode again, with all that was fetched
        2   12x, 20, 21            20, 21: the first unit belongs before the position
        3   20x, 21                CorruptMessageError, with 21 as the next offset
        4   20, 5000, 21           20: no record at or above the high watermark exists
        5   20, 21, 25             20, 21 if ``attested``, as nothing confirms 25; the next response begins with it
        6   20, 21, 25, 26 / 30    all: offsets ascend
        7   20, 25 / 23            decode again, with all that was fetched
        8   20, 25, 23             20: 25 is wrong, as gap 21-24 has room for it and 23
        9   20, 25, 21             20, 25: 21 is wrong, as the gap has no room for 25 before 21
        10  18-20, 20-22           20-22: the first unit was skipped in an earlier response, which led to position 20
        11  20-22, 20-22, 23       20-22: the first is wrong, as there is no room for the second between 22 and 23
        12  20-22, 21-23, 30       20-22: the second is wrong
        13  25, 3, 26              25: 3 is wrong, as 26 confirms 25
        14  25, 20, 21             20, 21: 25 is wrong, and belongs before the position
        15  25, 22, 23             CorruptMessageError for the unit 25, which is wrong, with 22 as the next offset
        ==  =====================  ==================================================================================
        """
        raw, start, high_watermark = self.raw, self.start, self.high_watermark
        columns = ColumnBuilder(raw, self.partition, start, self.make_room)
        at, error = self._read_units(begin, columns)
        if error is not None:
            del columns
            forget_frames(error)  # releases decompressed data, which the calls below may decompress again
            if self.following and not isinstance(error, DecompressedTooLarge):
                # 1: unreadable, and not all was looked at: what follows may tell more
                return self._with_following().decode(begin, skips)
            rest = self._decode_after(at, skips)
            if rest is not None and _begins_at_start(rest):
                # 2: unreadable, but not missing: the next unit is the one that was asked for
                return rest
            # 3: unreadable, and the one that was asked for
            located = self._locate(error, at)
            _set_end(located, rest)
            try:
                raise located from error
            finally:
                del located, error, rest  # else the error's traceback and this frame keep each other and the data alive
        if high_watermark is not None and columns.position > high_watermark:
            # 4: an offset that the log does not have yet
            position = columns.position
            del columns
            whole = self._with_following() if self.following else self
            return whole._decode_to_high_watermark(begin, position, skips)  # noqa: SLF001 - of the same class
        gap_start = start if columns.unattested is None else columns.unattested
        is_gap_inside = gap_start > start  # records precede the gap
        is_suspicious = columns.unattested is not None or at < len(raw) or columns.begins_before(start)
        follower = self._read_follower(at, inside=is_suspicious)
        if follower is None:
            # 5: nothing confirms or contradicts the last unit
            batch = columns.finish(at)
            return batch.slice_to(gap_start) if is_gap_inside and self.attested else batch
        is_ascending = follower.least >= columns.end
        if is_ascending:
            # 6: the usual case
            return columns.finish(at)
        if self.following:
            # 7: the follower contradicts the last unit: one of them is wrong, and a third one may tell which
            del columns
            return self._with_following().decode(begin, skips)
        if is_gap_inside:
            # 8, 9: after a gap behind other records, the last unit is wrong if both fit into the gap, else the follower
            batch = columns.finish(at)
            has_room_for_both = follower.least > gap_start
            return batch.slice_to(gap_start) if has_room_for_both else batch
        last_at = self._find_unit_before(begin, at)
        if columns.unattested is None:
            # 12: without a gap the follower is wrong; 10, 11: unless the only unit read belongs before the position
            is_misplaced = last_at == begin and (
                self._was_skipped_before(begin, columns, follower) or self._leaves_no_room(follower, at, columns.end)
            )
            rest = self._decode_after(last_at, skips) if is_misplaced else None
            is_rest_better = rest is not None and (_begins_at_start(rest) or follower.last < start)
            return rest if rest is not None and is_rest_better else columns.finish(at)
        if not self._is_contradicted(follower, at, columns.end):
            # 13: after a gap at the position, the follower is wrong
            return columns.finish(at)
        # 14, 15: after a gap at the position, the first unit is wrong
        claimed = columns.end - 1
        del columns
        return self._decode_after_misplaced(last_at, claimed, follower, skips)

    def _read_units(self, at: int, columns: ColumnBuilder) -> tuple[int, CorruptMessageError | None]:
        """Read as many units as possible, from byte ``at`` on.

        Returns the byte position after them, and an error if the first unit with new records is corrupt. Errors after
        readable records are not returned.
        """
        raw, end = self.raw, len(self.raw)
        transactions = AbortedTransactions(self.aborted) if self.read_committed else None
        native, patience = kernel.records, Patience()
        while True:
            if native is not None:
                at = _read_run(native, raw, at, columns, self.limits, patience, transactional=not transactions)
            try:
                stop = find_end(raw, at, UNIT_SIZES)
                if stop is None or stop > end:  # a partial trailing unit
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

    # -- offsets that contradict each other

    def _with_following(self) -> _Fetched:
        """Return the same with ``following`` appended to the record set."""
        return replace(self, raw=bytes(self.raw) + bytes(self.following), following=b"")

    def _bytes_at(self, at: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``at`` on, of the record set and ``following``."""
        found = bytes(self.raw[at : at + size])
        if len(found) < size:
            behind = max(at - len(self.raw), 0)
            found += bytes(self.following[behind : behind + size - len(found)])
        return found

    def _read_follower(self, at: int, *, inside: bool = True) -> UnitOffsets | None:
        """Return the offsets of the unit at ``at``, or None if they are unknown.

        The unit may lie in ``following``.

        Args:
            inside: whether to decompress a wrapper for its first offset, which its header lacks.
        """
        head = self._bytes_at(at, HEAD_BYTES)
        offsets = read_offsets(head, 0, self.high_watermark)
        if offsets is None or offsets.first is not None or not inside:
            return offsets
        size = find_stop(head, 0)
        if size is None or size > len(self.raw) - at + len(self.following):
            return offsets
        columns = ColumnBuilder(head, self.partition, 0)
        limits = replace(self.limits, decompressed_bytes=max(self.limits.decompressed_bytes, _PEEK_BYTES))
        with contextlib.suppress(CorruptMessageError):
            message_set.read_messages(self._bytes_at(at, size), 0, size, columns, limits)
            return replace(offsets, first=columns.offsets[0])
        return offsets

    def _is_contradicted(self, follower: UnitOffsets, at: int, end: int) -> bool:
        """Return whether the first unit, which claims the offsets below ``end``, is wrong.

        Otherwise ``follower``, at byte ``at``, is. It contradicts the first unit if its offsets may be the next ones.
        If they lie far before the position, the unit after it decides.

        Example: position 20, the first unit is 25. Follower 22 contradicts it. Follower 3 does so only if the unit
        after it is unknown, or below 26 too.
        """
        start = self.start
        if (follower.first is not None and follower.first > start) or follower.last + 1 >= start:
            return True
        stop = find_stop(self.raw, at)
        another = None if stop is None else self._read_follower(stop)
        return another is None or another.least < end

    def _was_skipped_before(self, begin: int, columns: ColumnBuilder, follower: UnitOffsets) -> bool:
        """Return whether the unit at ``begin`` was skipped as wrong in an earlier response.

        That is the case if it begins before the position, and its follower exactly at it: the position was set to the
        follower's offset when the unit was skipped.
        """
        if follower.first != self.start:
            return False
        offsets = read_offsets(self.raw[begin : begin + HEAD_BYTES], 0, self.high_watermark)
        first = self.start if offsets is None or offsets.first is None else offsets.first
        return first < self.start or columns.begins_before(self.start)

    def _leaves_no_room(self, follower: UnitOffsets, at: int, end: int) -> bool:
        """Return whether ``follower`` does not fit between ``end`` and the unit after it.

        Without such a unit, the high watermark takes its place. ``at`` is the position of ``follower``.
        """
        stop = find_stop(self.raw, at)
        another = None if stop is None else self._read_follower(stop)
        limit = self.high_watermark if another is None else another.least
        length = 1 if follower.first is None else follower.last - follower.first + 1
        return limit is not None and limit < end + length

    def _find_unit_before(self, at: int, before: int) -> int:
        """Return the position of the unit that ends at ``before``.

        Steps over units from ``at`` on.
        """
        while (stop := find_stop(self.raw, at)) is not None and stop < before:
            at = stop
        return at

    def _decode_after_misplaced(self, at: int, claimed: int, follower: UnitOffsets, skips: int) -> RecordBatch:
        """Decode what follows the unit at ``at``, whose offset ``claimed`` is wrong.

        Raises CorruptMessageError for that unit, unless it belongs before the position.
        """
        rest = self._decode_after(at, skips)
        next_offset = follower.first if follower.first is not None and follower.first > self.start else None
        if rest is not None and rest.next_offset > self.start:
            if _begins_at_start(rest):
                return rest
            next_offset = rest.gaps[0].end
        elif rest is not None and follower.last < self.start:
            return rest  # all of the response belongs before the position
        error = self._locate(
            CorruptMessageError(f"it says offset {claimed} and stands before offset {follower.last}"),
            at,
            is_known=False,
        )
        error.next_offset = next_offset
        try:
            raise error
        finally:
            del error

    def _decode_after(self, at: int, skips: int) -> RecordBatch | None:
        """Decode what follows the unit at ``at``; None if that is not possible."""
        stop = find_stop(self.raw, at)
        if stop is None or stop > len(self.raw) or not skips:
            return None
        try:
            return self.decode(stop, skips - 1)
        except CorruptMessageError:
            return None

    def _decode_to_high_watermark(self, begin: int, position: int, skips: int) -> RecordBatch:
        """Decode up to the first unit that claims offsets at or above the high watermark.

        If already the first unit does, return the records after it, provided that they begin at the position.

        Args:
            position: offset after that unit according to its header, for the error message.

        Raises CorruptMessageError.
        """
        assert self.high_watermark is not None
        stray = _find_stray(self.raw, begin, self.high_watermark)
        if stray > begin:
            alone = replace(self, raw=self.raw[:stray], following=b"", high_watermark=None, attested=False)
            before = alone.decode(begin, skips)
            if self.start < before.next_offset <= self.high_watermark:
                return before
        rest = self._decode_after(stray, skips)
        if rest is not None and _begins_at_start(rest):
            return rest
        error = self._locate(
            CorruptMessageError(f"it leads to offset {position}, beyond the high watermark {self.high_watermark}"),
            stray,
        )
        _set_end(error, rest)
        try:
            raise error
        finally:
            del error

    # -- errors

    def _locate(self, error: CorruptMessageError, at: int, *, is_known: bool = True) -> CorruptMessageError:
        """Return ``error`` with the coordinates of the unit at ``at``.

        The offset is the one in the unit's header. It is the position that was asked for if the header is not trusted,
        and for a compressed wrapper, whose header has its last offset.

        Args:
            is_known: whether the header is trusted.
        """
        raw, high_watermark = self.raw, self.high_watermark
        stop = find_stop(raw, at)
        offset = self.start
        next_offset = claimed_end = None
        if stop is not None and is_known:
            claimed_end = read_claim(raw, at, self.start, high_watermark)
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
            claimed_end=claimed_end,
            raw=bytes(raw[at:stop]),
        )


def _set_end(error: CorruptMessageError, rest: RecordBatch | None) -> None:
    """Set the error's next offset to the first offset decoded after the unit.

    An offset that is known already is kept.
    """
    if error.next_offset is None and rest is not None and rest.next_offset > rest.start:
        error.next_offset = rest.gaps[0].end


def _begins_at_start(batch: RecordBatch) -> bool:
    """Return whether a batch begins with the offset that was asked for.

    One that begins with a compaction gap does not.
    """
    has_gap = bool(batch.gaps) and batch.gaps[0].start == batch.start and batch.gaps[0].reason is GapReason.COMPACTION
    return batch.next_offset > batch.start and not has_gap


def _find_stray(data: Buffer, begin: int, high_watermark: int) -> int:
    """Return the position of the first unit with offsets from the high watermark on.

    Returns ``begin`` if there is none.
    """
    at, end = begin, len(data)
    while (stop := find_stop(data, at)) is not None and stop <= end:
        if following_offset(data, at) > high_watermark:
            return at
        at = stop
    return begin
