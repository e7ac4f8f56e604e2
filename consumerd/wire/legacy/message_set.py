# SPDX-License-Identifier: Apache-2.0
"""Message sets of Kafka 0.6 and 0.7: decoding into columns, checking, and building.

A message set is a sequence of messages of magic 0 and 1, in any mix. The payload of a compressed message is another
message set, which may have compressed messages, too. Source: "Writing a Driver for Kafka", section "Interactions", and
the picture of compressed messages before it.

Offsets
    Offsets count bytes of the log. The offset of the next message is that of this one + length + 4. Messages inside of
    a compressed one have no offset: all of them get the offset of the compressed message in the log, and an index from
    0 on, so a record's identity is (offset, index). The position advances at the end of the compressed message only; a
    consumer that stops inside of it reads all of it again.

Partial messages
    A broker returns as many bytes as were asked for. A message, or a header, that is cut off at the end is left out. If
    it is the first one, nothing is decoded: the size that was asked for is too small for it.

Example: the response to a fetch from offset 1000 has 120 bytes: a plain message of 40, a compressed one of 60 with
three records, and 20 bytes of a third. The records are (1000, 0), (1040, 0), (1040, 1) and (1040, 2). The next fetch is
from 1100. Had the response 30 bytes, it would have no record, and ``next_offset`` 1000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from consumerd.errors import CorruptMessageError, DecompressedTooLarge, forget_frames
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.columns import Patience, in_place, reads_views
from consumerd.wire.compression import Codec, compress, decompress
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.columns import ByteOffsetColumns
from consumerd.wire.legacy.extent import read_claim
from consumerd.wire.legacy.stored_message import (
    MessageHeader,
    check_payload,
    encode_message,
    read_header,
    read_plain_run,
)
from consumerd.wire.records import Limits, RecordBatch

_DEFAULT_LIMITS: Final = Limits()
_NOWHERE: Final = TopicPartition.modern("", 0)
_MAGIC: Final = 1
"""Magic of compressed messages."""


def decode_message_set(
    data: Buffer,
    *,
    partition: TopicPartition,
    start: int,
    limits: Limits = _DEFAULT_LIMITS,
    make_room: Callable[[], memoryview] | None = None,
) -> RecordBatch:
    """Decode a message set, as returned by FETCH, into one batch of records.

    The result ends before a partial or unreadable message. If the first message is unreadable, CorruptMessageError is
    raised. If ``next_offset`` of the result equals ``start`` although ``data`` is not empty, then the first message is
    larger than ``data`` (see ``extent.first_message_bytes``).

    Args:
        data: the message set, or a piece of it that consists of whole messages. It becomes the batch's buffer under the
            conditions of ``modern.record_set.decode_record_set``.
        start: byte offset of the first message in ``data``.
        make_room: returns writable memory for decompressed data; the batch keeps it. If it is too small, other memory
            is allocated. None: memory is allocated as needed.

    Raises CorruptMessageError (DecompressedTooLarge if that is the only fault) for the first message, with partition,
    offset and raw bytes; and ConfigError if the library of a codec is missing. A DecompressedTooLarge also has the
    offset after the message.
    """
    raw = in_place(data)
    columns = ByteOffsetColumns(raw, partition, start, make_room if reads_views() else None)
    at, error = _read_all(raw, columns, limits)
    if error is None or at:
        return columns.finish(at)
    del columns
    forget_frames(error)  # releases decompressed data
    located = _locate(error, raw, partition, start)
    try:
        raise located from error
    finally:
        del located, error  # else the error's traceback and this frame keep each other and the data alive


def check_message_set(data: Buffer, *, limits: Limits = _DEFAULT_LIMITS) -> int:
    """Check a producer's message set; return the size of its whole messages in bytes.

    It is checked as by Kafka 0.7.2. Bytes of a last message that is cut off do not count: a broker leaves them out.

    Raises CorruptMessageError (without partition and offset) for any message that is unreadable, also inside of a
    compressed one. A broker then stores nothing of the set.
    """
    raw = in_place(data)
    at, error = _read_all(raw, ByteOffsetColumns(raw, _NOWHERE, 0), limits)
    if error is not None:
        raise type(error)(f"byte {at}: {error}") from error
    return at


def build_message_set(payloads: Iterable[bytes], *, magic: int = 1, codec: int = Codec.NONE) -> bytes:
    """Encode payloads as a message set; with a codec, as one compressed message.

    No payloads give no bytes.

    Args:
        payloads: payloads of the messages.
        magic: 0 for Kafka 0.6, 1 for Kafka 0.7. A compressed message has magic 1.
        codec: 0, gzip or snappy, the latter in the framing of the Java producer.

    Raises LocalProtocolError for an unknown magic or codec, or a message that is too large; ConfigError if the library
    of the codec is missing.
    """
    messages = b"".join(encode_message(payload, magic=magic) for payload in payloads)
    return messages if codec == Codec.NONE or not messages else compress_message_set(messages, codec)


def compress_message_set(messages: bytes, codec: int) -> bytes:
    """Return a message set as one compressed message.

    Args:
        messages: the message set, of any magic; compressed messages may be among them.
        codec: gzip or snappy, the latter in the framing of the Java producer.

    Raises LocalProtocolError for another codec, ConfigError if the library of the codec is missing.
    """
    if codec in (Codec.GZIP, Codec.SNAPPY):
        messages = compress(codec, messages, magic=_MAGIC)
    return encode_message(messages, codec=codec)


def _read_all(raw: Buffer, columns: ByteOffsetColumns, limits: Limits) -> tuple[int, CorruptMessageError | None]:
    """Read as many messages as possible.

    Returns the position after them; and the error of the message there, None if it is only cut off.
    """
    at = 0
    add_start, add_end = columns.value_starts.append, columns.value_ends.append
    patience = Patience()
    try:
        while True:
            at = _read_run(raw, at, columns)
            if (packed := _read_packed_run(raw, at, columns, limits, patience)) > at:
                at = packed
                continue
            header = read_header(raw, at)
            if header is None:
                return at, None
            if header.codec:
                _SetReader(at, columns, limits).read(raw, header)
            else:
                check_payload(raw, header)
                shift = columns.plain_shift(at)
                add_start(header.payload_at + shift)
                add_end(header.stop + shift)
            columns.commit(at, header.stop)
            at = header.stop
    except CorruptMessageError as error:
        columns.roll_back()
        return at, error


def _read_run(raw: Buffer, at: int, columns: ByteOffsetColumns) -> int:
    """Read the run of valid, uncompressed messages at ``at``; return the position after it.

    The run may end early: the next message is then read alone.
    """
    if (native := kernel.legacy) is not None:
        stop = native.read_stored(raw, at, len(raw), columns.peek_shift(at), columns.start, columns)
        if stop > at:
            columns.plain_shift(at)
        return stop
    stops = read_plain_run(raw, at)
    if not stops:
        return at
    columns.commit_plain(at, stops)
    return stops[-1]


def _read_packed_run(raw: Buffer, at: int, columns: ByteOffsetColumns, limits: Limits, patience: Patience) -> int:
    """Read a run of compressed messages with the kernel; return the position after it."""
    native, rows = kernel.legacy, len(columns.offsets)
    if native is None or limits.nesting < 1 or patience.left(rows) > 0:
        return at
    stop = native.read_packed_stored(raw, at, len(raw), columns.start, columns, limits.decompressed_bytes)
    # a message that the kernel refuses may have been decompressed in vain
    patience.note(rows, gained=stop > at)
    return stop


def _read_inner_run(block: Buffer, at: int, shift: int, columns: ByteOffsetColumns) -> int:
    """As :func:`_read_run`, of a decompressed message set; offsets follow when the whole set is read."""
    if (native := kernel.legacy) is not None:
        return native.read_inner(block, at, len(block), shift, columns)
    stops = read_plain_run(block, at)
    if not stops:
        return at
    columns.add_payloads(at, stops, shift)
    return stops[-1]


class _SetReader:
    """Decodes the compressed message at ``unit_at`` of the fetched data, and those nested in it."""

    def __init__(self, unit_at: int, columns: ByteOffsetColumns, limits: Limits) -> None:
        self._unit_at = unit_at
        self._columns = columns
        self._limits = limits

    def read(self, data: Buffer, header: MessageHeader, level: int = 1) -> None:
        """Append the records inside of one compressed message to the columns."""
        columns = self._columns
        if level > self._limits.nesting:
            raise CorruptMessageError(f"compressed sets stand more than {self._limits.nesting} deep in each other")
        check_payload(data, header)
        payload = memoryview(data)[header.payload_at : header.stop]
        budget = self._limits.decompressed_bytes - columns.decompressed_bytes
        room = columns.free_room(self._unit_at)
        block = decompress(header.codec, payload, limit=budget, magic=_MAGIC, room=room)
        self._read_set(block, columns.add_block(self._unit_at, block), level)

    def _read_set(self, block: Buffer, shift: int, level: int) -> None:
        columns = self._columns
        at = 0
        while at < len(block):
            if (stop := _read_inner_run(block, at, shift, columns)) > at:
                at = stop
                continue
            header = read_header(block, at)
            if header is None:
                raise CorruptMessageError(f"the compressed set ends in the middle of a message, at byte {len(block)}")
            if header.codec:
                self.read(block, header, level + 1)
            else:
                check_payload(block, header)
                columns.value_starts.append(header.payload_at + shift)
                columns.value_ends.append(header.stop + shift)
            at = header.stop


def _locate(error: CorruptMessageError, raw: Buffer, partition: TopicPartition, start: int) -> CorruptMessageError:
    """Return ``error`` with the coordinates of the first message."""
    claimed_end = read_claim(raw, start)
    if claimed_end is not None and claimed_end - start > len(raw):
        claimed_end = None  # a message that is cut off is unreadable only if its header is impossible
    # a message that is only too large when decompressed has passed its checksum
    next_offset = claimed_end if isinstance(error, DecompressedTooLarge) else None
    return type(error)(
        f"{partition}: the message set fetched at byte offset {start}: {error}",
        partition=partition,
        offset=start,
        next_offset=next_offset,
        claimed_end=claimed_end,
        raw=bytes(raw if claimed_end is None else raw[: claimed_end - start]),
    )
