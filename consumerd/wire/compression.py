"""Decompression of message sets and record batches, with a limit that holds while it runs.

Owns the four codecs as Kafka's clients write them, not what is inside. The bytes have passed their checksum before they
come here, so that they are what a producer wrote; whether that is sane is found out here. Sizes that a stream declares
are never believed: output is produced in bounded steps, or the size is compared with the most that so much input can
give. Whatever the bytes, the outcome is bytes of at most ``limit``, or CorruptMessageError.

What follows a complete gzip or LZ4 stream is ignored, since the Java clients' streams (GZIPInputStream,
KafkaLZ4BlockInputStream) ignore it too; several gzip members or zstd frames are read as one stream, as there.

Sources: attributes of a message, Kafka protocol guide; snappy framing, xerial/snappy-java SnappyOutputStream; LZ4 frame
format 1.6.1, and KAFKA-3160 for the header checksum that magic 0 producers compute over too many bytes.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.checksum import xxh32_short

_STEP_BYTES: Final = 1 << 18
"""What one step of a stream may give at first; more is asked for in steps that double."""


class Codec(enum.IntEnum):
    """The compression codec of a message or a batch: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(codec: int, data: bytes, *, limit: int, magic: int) -> bytes:
    """Return what ``data`` holds, at most ``limit`` bytes of it. ``magic`` is that of the wrapper or batch.

    Raises CorruptMessageError (without coordinates) for a stream that is damaged, ends early or gives more than
    ``limit``, for a codec that does not exist or not in this magic, and for one whose library is not installed.
    """
    if codec == Codec.GZIP:
        return _gunzip(data, limit)
    if codec == Codec.SNAPPY:
        return _unsnappy(data, limit)
    if codec == Codec.LZ4:
        return _unlz4(_mend_lz4(data) if magic == 0 else data, limit)
    if codec == Codec.ZSTD and magic >= 2:
        return _unzstd(data, limit)
    known = f" ({Codec(codec).name})" if codec in tuple(Codec) else ""
    raise CorruptMessageError(f"compression codec {codec}{known} does not exist in magic {magic}")


def _damaged(codec: Codec, what: object) -> CorruptMessageError:
    return CorruptMessageError(f"{codec.name.lower()}: {what}")


def _too_large(codec: Codec, limit: int) -> CorruptMessageError:
    return CorruptMessageError(f"{codec.name.lower()}: more than {limit} bytes when decompressed")


def _missing(codec: Codec, package: str, error: ImportError) -> CorruptMessageError:
    return CorruptMessageError(f"{codec.name.lower()}: cannot be read, the package {package} is not usable: {error}")


def _collect(codec: Codec, step: Callable[[int], bytes], limit: int) -> bytes:
    """Join what ``step(at most so many bytes)`` gives until it gives nothing; the limit holds between steps."""
    pieces: list[bytes] = []
    size = 0
    wanted = _STEP_BYTES
    while piece := step(min(wanted, limit - size + 1)):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise _too_large(codec, limit)
        wanted *= 2
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# -- gzip


def _gunzip(data: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    rest = data
    while not pieces or rest[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(wbits=31)
        try:
            piece = member.decompress(rest, limit - size + 1)
        except zlib.error as error:
            raise _damaged(Codec.GZIP, error) from error
        size += len(piece)
        if size > limit:
            raise _too_large(Codec.GZIP, limit)
        if not member.eof:
            raise _damaged(Codec.GZIP, f"the stream ends early, after {size} bytes")
        pieces.append(piece)
        rest = member.unused_data
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# -- snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_BLOCK_LENGTH: Final = struct.Struct(">i")
_SNAPPY_MOST_BYTES: Final = 64
"""The most that one element of a snappy block gives; it takes three bytes."""


def _unsnappy(data: bytes, limit: int) -> bytes:
    """Read a raw block, or blocks in the framing of snappy-java: magic, two versions, then length and block."""
    if data[:8] != _XERIAL_MAGIC:
        return _unsnappy_block(data, limit, limit)
    pieces: list[bytes] = []
    left = limit
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        if len(data) - at < _BLOCK_LENGTH.size:
            raise _damaged(Codec.SNAPPY, f"byte {at} of {len(data)}: the length of a block is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - at:
            raise _damaged(Codec.SNAPPY, f"byte {at} of {len(data)}: a block of {length} bytes")
        piece = _unsnappy_block(data[at : at + length], left, limit)
        pieces.append(piece)
        left -= len(piece)
        at += length
    if at < _XERIAL_HEADER_BYTES or at > len(data):
        raise _damaged(Codec.SNAPPY, "the header of the framing is cut off")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unsnappy_block(block: bytes, left: int, limit: int) -> bytes:
    """Read one block, whose first varint declares its size: the library allocates that much before it looks further."""
    declared = shift = 0
    for byte in block[:5]:
        declared |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _damaged(Codec.SNAPPY, "the size of a block is cut off")
    if declared > left:
        raise _too_large(Codec.SNAPPY, limit)
    if declared > len(block) * _SNAPPY_MOST_BYTES:
        raise _damaged(Codec.SNAPPY, f"{declared} bytes are declared for a block of {len(block)}")
    try:
        import snappy
    except ImportError as error:
        raise _missing(Codec.SNAPPY, "python-snappy", error) from error
    try:
        piece: bytes = snappy.uncompress(block)
    except snappy.UncompressError as error:
        raise _damaged(Codec.SNAPPY, error.__cause__ or error) from error
    return piece


# -- lz4

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DICTIONARY_ID: Final = 0x01


def _mend_lz4(data: bytes) -> bytes:
    """Put the right header checksum into a frame of a magic 0 producer, as Kafka's own reader ignores it there."""
    if data[:4] != _LZ4_MAGIC or len(data) < 7:
        return data
    at = 6 + (8 if data[4] & _LZ4_CONTENT_SIZE else 0) + (4 if data[4] & _LZ4_DICTIONARY_ID else 0)
    right = xxh32_short(data[4:at]) >> 8 & 0xFF
    return data if data[at : at + 1] == bytes((right,)) else data[:at] + bytes((right,)) + data[at + 1 :]


def _unlz4(data: bytes, limit: int) -> bytes:
    try:
        import lz4.frame
    except ImportError as error:
        raise _missing(Codec.LZ4, "lz4", error) from error
    frame = lz4.frame.LZ4FrameDecompressor()
    rest = data

    def step(size: int) -> bytes:
        nonlocal rest
        if frame.eof:
            return b""
        piece: bytes = frame.decompress(rest, size)
        rest = b""
        return piece

    try:
        whole = _collect(Codec.LZ4, step, limit)
    except (RuntimeError, ValueError, EOFError) as error:
        raise _damaged(Codec.LZ4, error) from error
    if not frame.eof:
        raise _damaged(Codec.LZ4, f"the frame ends early, after {len(whole)} bytes")
    return whole


# -- zstd

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a skippable frame's magic; byte 0 is 0x50 to 0x5F."""
_ZSTD_RLE: Final = 1


def _unzstd(data: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise _missing(Codec.ZSTD, "zstandard", error) from error
    try:
        _check_zstd_ends(data)
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        return _collect(Codec.ZSTD, reader.read, limit)
    except zstandard.ZstdError as error:
        raise _damaged(Codec.ZSTD, error) from error


def _check_zstd_ends(data: bytes) -> None:
    """Walk the headers of frames and blocks (RFC 8878, 3.1), for the library's reader takes a cut stream for a whole one.

    Raises CorruptMessageError unless ``data`` is one or more whole frames.
    """
    at = 0
    while at < len(data) or not at:
        if data[at + 1 : at + 4] == _ZSTD_SKIPPABLE and data[at] >> 4 == 5:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if data[at : at + 4] != _ZSTD_MAGIC or len(data) == at + 4:
            raise _damaged(Codec.ZSTD, f"byte {at} of {len(data)}: no frame begins here")
        descriptor = data[at + 4]
        single = descriptor >> 5 & 1
        content_size = (single, 2, 4, 8)[descriptor >> 6]
        at += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + content_size
        last = 0
        while not last and at < len(data):
            block = int.from_bytes(data[at : at + 3], "little")
            last = block & 1
            at += 3 + (1 if block >> 1 & 3 == _ZSTD_RLE else block >> 3)
        at += 4 if descriptor & 4 else 0
        if not last or at > len(data):
            raise _damaged(Codec.ZSTD, "the frame ends early")
    if at > len(data):
        raise _damaged(Codec.ZSTD, "the frame ends early")
