"""A partition's fetched bytes: units of magic 0, 1 and 2 in any mixture, the last of them often cut off.

Owns where units begin and end, and what a unit that cannot be read means; their insides belong to ``message_set`` and
``record_batch``. A topic that has seen an upgrade of the message format holds several magics, even within a segment.

These three functions are all that the rest of consumerd calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.columns import ColumnBuilder, agreement
from consumerd.wire.modern import message_set, record_batch
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, ENTRY_BYTES, MAGIC_AT, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES, find_next_offset, find_stop
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_batch import AbortedTransactions
from consumerd.wire.records import Limits, RecordBatch

_DEFAULT_LIMITS: Final = Limits()


def decode_record_set(
    data: bytes | bytearray | memoryview,
    *,
    partition: TopicPartition,
    start: int,
    limits: Limits = _DEFAULT_LIMITS,
    read_committed: bool = False,
    aborted: Sequence[AbortedTransaction] | None = (),
    high_watermark: int | None = None,
    following: bytes = b"",
) -> RecordBatch:
    """Decode what a Fetch from offset ``start`` gave for one partition into one batch.

    A unit that is cut off ends the batch, and so does one that cannot be read, unless nothing before it brought the
    position forward. When ``next_offset`` is still ``start`` although there is data, the first unit is larger than what
    was fetched: see :func:`first_unit_size`. Under ``read_committed``, ``aborted`` is the list of the Fetch response.

    A view is copied once, so that a batch of one partition does not hold the frame of all; ``bytes`` are not.

    Raises CorruptMessageError (DecompressedTooLarge, if that is all) for the first unit, with partition, offset, raw
    bytes, and ``next_offset`` if two witnesses agree on it. For these serve ``high_watermark``, which no unit may pass,
    and ``following``, what was fetched behind ``data``.
    """
    raw = bytes(data)
    columns = ColumnBuilder(raw, partition, start)
    transactions = AbortedTransactions(aborted or ()) if read_committed else None
    end = len(raw)
    at = 0
    while True:
        try:
            stop = find_end(raw, at, UNIT_SIZES)
            if stop is None or stop > end:
                break
            magic = raw[at + MAGIC_AT]
            if magic == BATCH_MAGIC:
                record_batch.read_batch(raw, at, stop, columns, limits, transactions)
                at = stop
            else:
                at = message_set.read_messages(raw, at, end, columns, limits)
        except CorruptMessageError as error:
            if columns.position > start:
                columns.roll_back()
                break
            # without the frames that hold what was decompressed
            raise _locate(error, raw, at, partition, start, following, high_watermark) from error.with_traceback(None)
    if high_watermark is None or columns.position <= high_watermark:
        return columns.finish(at)
    stray = _find_stray(raw, high_watermark)
    if stray:
        before = decode_record_set(
            raw[:stray], partition=partition, start=start, limits=limits, read_committed=read_committed, aborted=aborted
        )
        if before.next_offset > start:
            return before
    beyond = CorruptMessageError(f"it leads to offset {columns.position}, beyond the high watermark {high_watermark}")
    raise _locate(beyond, raw, stray, partition, start, following, high_watermark)


def _find_stray(data: bytes, high_watermark: int) -> int:
    """Return where the first unit begins that claims offsets which the log does not have yet; the checksums of no format
    cover the offset.
    """
    at, end = 0, len(data)
    while (stop := find_stop(data, at)) is not None and stop <= end:
        if _next_offset(data, at) > high_watermark:
            return at
        at = stop
    return 0


def peek_next_offset(data: bytes | bytearray | memoryview, start: int) -> int:
    """Return where decoding ``data`` will end, from the heads of its units alone; ``start`` when none is whole.

    What cannot be read ends it; a unit that turns out to be corrupt inside is not noticed.
    """
    position = start
    end = len(data)
    at = last_size = 0
    most = _FIRST_SKIP
    unpack, unpack_delta = ENTRY.unpack_from, record_batch.LAST_OFFSET_DELTA.unpack_from
    while end - at > MAGIC_AT:
        offset, size = unpack(data, at)
        magic = data[at + MAGIC_AT]
        stop = at + ENTRY_BYTES + size
        if magic > BATCH_MAGIC or size < UNIT_SIZES[magic] or stop > end:
            break
        if magic == BATCH_MAGIC:
            offset += unpack_delta(data, at + record_batch.LAST_OFFSET_DELTA_AT)[0]
        elif size == last_size and not isinstance(data, memoryview | bytearray):
            skipped = _count_alike(data, at, ENTRY_BYTES + size, most)
            most = most * 8 if skipped == most else _FIRST_SKIP
            stop = at + skipped * (ENTRY_BYTES + size)
            (offset, _) = unpack(data, stop - ENTRY_BYTES - size)
        elif size == last_size:
            data = bytes(data)
        if offset >= position:
            position = offset + 1
        last_size = size
        at = stop
    return position


def first_unit_size(data: bytes | bytearray | memoryview) -> int | None:
    """Return how many bytes the first unit has by its own account, or None where that cannot be told."""
    try:
        return find_end(data, 0, UNIT_SIZES)
    except CorruptMessageError:
        return None


_FIRST_SKIP: Final = 64
"""How many messages :func:`peek_next_offset` tries to skip at once; eight times as many after each success."""


def _count_alike(data: bytes, at: int, stride: int, most: int) -> int:
    """Return how many messages of one size and magic stand in a row at ``at``, one at least."""
    count = min((len(data) - at) // stride, most)
    for place in (*range(8, ENTRY_BYTES), MAGIC_AT):
        column = data[at + place : at + count * stride : stride]
        count = agreement(column, column[:1] * len(column))
    return count


def _next_offset(data: bytes | bytearray | memoryview, at: int) -> int:
    """Return the offset behind the whole unit at ``at``, as its head has it."""
    offset, _ = ENTRY.unpack_from(data, at)
    if data[at + MAGIC_AT] == BATCH_MAGIC:
        offset += record_batch.LAST_OFFSET_DELTA.unpack_from(data, at + record_batch.LAST_OFFSET_DELTA_AT)[0]
    return int(offset) + 1


# -- what is known of a unit that cannot be read


def _locate(
    error: CorruptMessageError,
    raw: bytes,
    at: int,
    partition: TopicPartition,
    start: int,
    following: bytes,
    high_watermark: int | None,
) -> CorruptMessageError:
    """Return ``error`` with the coordinates of the unit at ``at``.

    Its offset is the one in its head, except for a compressed wrapper, whose head has its last: there, and where the
    head cannot be trusted, it is the position that was asked for.
    """
    stop = find_stop(raw, at)
    offset = start
    next_offset = None
    if stop is not None:
        magic = raw[at + MAGIC_AT]
        next_offset = find_next_offset(raw + following, at, start, high_watermark)
        if magic == BATCH_MAGIC or not raw[at + MAGIC_AT + 1] & CODEC_MASK:
            (claimed, _) = ENTRY.unpack_from(raw, at)
            if claimed >= 0 and (high_watermark is None or claimed < high_watermark):
                offset = claimed
    return type(error)(
        f"{partition}: the record set fetched at offset {start}, byte {at}, offset {offset}: {error}",
        partition=partition,
        offset=offset,
        next_offset=next_offset,
        raw=raw[at:stop],
    )
