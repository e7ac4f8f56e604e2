# SPDX-License-Identifier: Apache-2.0
"""Header and encoding of one stored message of Kafka 0.6 and 0.7.

Magic 0 is of Kafka 0.6, magic 1 of 0.7. Source: "Writing a Driver for Kafka", sections "Message (Kafka 0.6 and
earlier)" and "Message (Kafka 0.7 and later)"::

    length int32 (of all that follows), magic int8, [attributes int8, magic 1 only], CRC-32 uint32, payload

The checksum covers the payload only, so nothing protects length, magic and attributes. The codec is the two lowest bits
of the attributes; the others are ignored, and stored by Kafka 0.7.2. A message has no key, no timestamp and no offset:
its offset is its position in the log, and that of the next one is ``offset + length + 4``.

Example: in magic 1, a payload of 5 bytes has length 6 + 5 = 11. If its message has offset 100, the next one has 115.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from consumerd.errors import CorruptMessageError, LocalProtocolError
from consumerd.wire.checksum import crc32, span_crc32
from consumerd.wire.compression import Codec
from consumerd.wire.kernel import Buffer
from consumerd.wire.primitives import MAX_INT32

LENGTH_BYTES: Final = 4
"""Size of the length field, which the length does not count."""
LEAST_LENGTHS: Final = (5, 6)
"""Length of a message without payload, by magic."""
HEAD_BYTES: Final = LENGTH_BYTES + LEAST_LENGTHS[1]
"""Size in bytes of the longest header: everything before the payload."""
LEAST_MESSAGE_BYTES: Final = LENGTH_BYTES + LEAST_LENGTHS[0]
MAGIC_AT: Final = 4
ATTRIBUTES_AT: Final = 5
"""Position of the attributes in a message of magic 1."""
CODEC_MASK: Final = 0x03
"""Bits of the attributes that are the compression codec; the other bits mean nothing."""
CODECS: Final = (Codec.NONE, Codec.GZIP, Codec.SNAPPY)

_LENGTH: Final = struct.Struct(">i")
_CHECKSUM: Final = struct.Struct(">I")
_HEADS: Final = (struct.Struct(">iBI"), struct.Struct(">iBBI"))


class MessageHeader(NamedTuple):
    """Header of a message: codec, checksum, and the positions of payload and end."""

    codec: int
    checksum: int
    payload_at: int
    stop: int


def read_length(data: Buffer, at: int) -> int | None:
    """Return the length field of the message at ``at``; None if it is cut off."""
    return None if len(data) - at < LENGTH_BYTES else int(_LENGTH.unpack_from(data, at)[0])


def find_stop(data: Buffer, at: int) -> int | None:
    """Return the position after the message at ``at``, according to its length.

    No checksum covers the length. The position may lie beyond the end of ``data``. Returns None if the length field is
    cut off. As much of the header as ``data`` has is checked: raises CorruptMessageError for an impossible length,
    magic or codec.
    """
    length = read_length(data, at)
    if length is None:
        return None
    left = len(data) - at
    magic = data[at + MAGIC_AT] if left > MAGIC_AT else 0
    if magic >= len(LEAST_LENGTHS):
        raise CorruptMessageError(f"magic {magic} is unknown, expected 0 or 1")
    if length < LEAST_LENGTHS[magic]:
        raise CorruptMessageError(f"a message of {length} bytes and magic {magic}")
    if magic and left > ATTRIBUTES_AT and data[at + ATTRIBUTES_AT] & CODEC_MASK not in CODECS:
        raise CorruptMessageError(f"compression codec {data[at + ATTRIBUTES_AT] & CODEC_MASK} is unknown, expected 0-2")
    return at + LENGTH_BYTES + length


def read_header(data: Buffer, at: int) -> MessageHeader | None:
    """Return the header of the message at ``at``; None if the message is cut off.

    Raises CorruptMessageError for an impossible length, magic or codec, also of a message that is cut off. The checksum
    is not verified.
    """
    stop = find_stop(data, at)
    if stop is None or stop > len(data):
        return None
    if data[at + MAGIC_AT]:
        return MessageHeader(
            data[at + ATTRIBUTES_AT] & CODEC_MASK,
            _CHECKSUM.unpack_from(data, at + ATTRIBUTES_AT + 1)[0],
            at + LENGTH_BYTES + LEAST_LENGTHS[1],
            stop,
        )
    return MessageHeader(
        Codec.NONE, _CHECKSUM.unpack_from(data, at + MAGIC_AT + 1)[0], at + LENGTH_BYTES + LEAST_LENGTHS[0], stop
    )


def read_plain_run(data: Buffer, at: int) -> list[int]:
    """Return the ends of the valid, uncompressed messages of magic 1 that begin at ``at``.

    The run ends before any other message: of magic 0, compressed, damaged or cut off. Each payload begins
    :data:`HEAD_BYTES` after its message. Most messages are read here, in less time than by :func:`read_header`.
    """
    stops: list[int] = []
    add_stop, unpack, view, end = stops.append, _HEADS[1].unpack_from, memoryview(data), len(data)
    while end - at >= HEAD_BYTES:
        length, magic, attributes, checksum = unpack(data, at)
        stop = at + LENGTH_BYTES + length
        if magic != 1 or attributes & CODEC_MASK or length < LEAST_LENGTHS[1] or stop > end:
            break
        if crc32(view[at + HEAD_BYTES : stop]) != checksum:
            break
        add_stop(stop)
        at = stop
    return stops


def check_payload(data: Buffer, header: MessageHeader) -> None:
    """Raise CorruptMessageError if the payload does not have the checksum in its header."""
    found = span_crc32(data, header.payload_at, header.stop)
    if found != header.checksum:
        raise CorruptMessageError(f"CRC-32 is {found:#010x}, the message says {header.checksum:#010x}")


def is_valid(data: Buffer, at: int) -> bool:
    """Return True if a whole message with the right checksum is at ``at``."""
    try:
        header = read_header(data, at)
    except CorruptMessageError:
        return False
    return header is not None and span_crc32(data, header.payload_at, header.stop) == header.checksum


def encode_message(payload: bytes | memoryview, *, magic: int = 1, codec: int = Codec.NONE) -> bytes:
    """Return one message.

    Args:
        payload: its payload, compressed already if a codec is given.
        magic: 0 for Kafka 0.6, which has no codec; 1 for Kafka 0.7.

    Raises LocalProtocolError for an unknown magic or codec, and for a payload that is too large.
    """
    if magic not in (0, 1):
        raise LocalProtocolError(f"magic {magic}: expected 0 or 1")
    if codec not in CODECS or (codec and not magic):
        raise LocalProtocolError(f"compression codec {codec} does not exist in magic {magic} of Kafka 0.6 and 0.7")
    length = LEAST_LENGTHS[magic] + len(payload)
    if length > MAX_INT32:
        raise LocalProtocolError(f"a message of {length} bytes: at most {MAX_INT32} can be encoded")
    fields = (length, magic, codec, crc32(payload)) if magic else (length, magic, crc32(payload))
    return _HEADS[magic].pack(*fields) + payload
