# SPDX-License-Identifier: Apache-2.0
"""Compression of message sets and record batches, and decompression with a limit.

Owns the four codecs in the form in which Kafka's clients write them, not the decompressed contents. Compressed bytes
have passed their checksum before they come here: they are what a producer wrote, but may still be malformed or hostile.

The limit
    The result has at most ``limit`` bytes; otherwise CorruptMessageError is raised. Sizes that a stream declares are
    not trusted. Output is produced in bounded steps, or the declared size is first compared with the largest output
    that the codec can produce from that much input. :func:`expected_size` returns what a stream declares, so that
    callers can reserve memory.

Trailing bytes
    Bytes after a complete gzip or LZ4 stream are ignored, as in the Java clients (GZIPInputStream,
    KafkaLZ4BlockInputStream). Several gzip members, or zstd frames, are read as one stream, also as there.

Sources: Kafka protocol guide (attributes of a message); xerial/snappy-java, SnappyOutputStream (snappy framing); LZ4
frame format 1.6.1; KAFKA-3160 (magic 0 producers compute the LZ4 header checksum over too many bytes).
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, overload

from consumerd.errors import ConfigError, CorruptMessageError, DecompressedTooLarge, LocalProtocolError
from consumerd.wire import kernel
from consumerd.wire.checksum import xxh32_short
from consumerd.wire.kernel import Buffer, Lz4Kernel, SnappyKernel

_STEP_BYTES: Final = 1 << 18
"""Output limit of the first decompression step, in bytes. It doubles with each further step."""


class Codec(enum.IntEnum):
    """Compression codec: bits 0 to 2 of the attributes of a message or batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@overload
def decompress(codec: int, data: Buffer, *, limit: int, magic: int) -> bytes: ...
@overload
def decompress(codec: int, data: Buffer, *, limit: int, magic: int, room: memoryview | None) -> bytes | memoryview: ...
def decompress(
    codec: int, data: Buffer, *, limit: int, magic: int, room: memoryview | None = None
) -> bytes | memoryview:
    """Return ``data`` decompressed.

    Args:
        codec: number of the codec, from the attributes of the message or batch.
        limit: largest permitted result, in bytes.
        magic: magic of the wrapper message or batch that contains ``data``.
        room: writable memory for the result. If the result fits, a view of the beginning of ``room`` may be returned
            instead of ``bytes``.

    Raises CorruptMessageError (without partition and offset) for a stream that is damaged or truncated, and for a codec
    that does not exist in this magic; its subclass DecompressedTooLarge for a result above ``limit``; ConfigError if
    the codec's library cannot be imported.
    """
    if codec == Codec.GZIP:
        return _gunzip(data, limit)
    if codec == Codec.SNAPPY:
        whole = _decompress_natively(kernel.snappy, data, limit, room)
        return _unsnappy(data, limit) if whole is None else whole
    if codec == Codec.LZ4:
        whole = _decompress_natively(kernel.lz4, data, limit, room, magic == 0)
        return _unlz4(_mend_lz4(bytes(data)) if magic == 0 else data, limit) if whole is None else whole
    if codec == Codec.ZSTD and magic >= 2:
        return _unzstd(data, limit, room)
    raise CorruptMessageError(_no_codec(codec, magic))


def compress(codec: int, data: bytes, *, magic: int) -> bytes:
    """Return ``data`` compressed, in a form that Java clients of message format ``magic`` can read.

    Raises LocalProtocolError for a codec that does not exist in this magic, ConfigError if its library is not usable.
    """
    if codec == Codec.GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == Codec.SNAPPY:
        return _snappy(data)
    if codec == Codec.LZ4:
        return _break_lz4(_lz4(data)) if magic == 0 else _lz4(data)
    if codec == Codec.ZSTD and magic >= 2:
        return _zstd(data)
    raise LocalProtocolError(_no_codec(codec, magic))


def expected_size(codec: int, data: Buffer) -> int:
    """Return the decompressed size that ``data`` declares, or an upper bound, in bytes.

    Nothing is decompressed. Returns 0 if ``data`` declares no size. Valid data never decompress to more than a returned
    size above 0, except for gzip with several members or more than 4 GiB.
    """
    try:
        if codec == Codec.GZIP:
            return _expect_gzip(data)
        if codec == Codec.SNAPPY:
            return _expect_snappy(data)
        if codec == Codec.LZ4:
            return _expect_lz4(data)
        if codec == Codec.ZSTD:
            return _walk_zstd(data)
    except (IndexError, struct.error, CorruptMessageError):
        pass  # truncated or damaged: it declares no size
    return 0


def _no_codec(codec: int, magic: int) -> str:
    known = f" ({Codec(codec).name})" if codec in tuple(Codec) else ""
    return f"compression codec {codec}{known} does not exist in magic {magic}"


def _damaged(codec: Codec, what: object) -> CorruptMessageError:
    return CorruptMessageError(f"{codec.name.lower()}: {what}")


def _too_large(codec: Codec, limit: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"{codec.name.lower()}: more than {limit} bytes when decompressed")


def _unusable(codec: Codec, done: str, package: str, error: ImportError) -> ConfigError:
    # not CorruptMessageError: a policy for corrupt records could then skip valid ones
    return ConfigError(f"{codec.name.lower()}: cannot be {done}, the package {package} is not usable: {error}")


def _decompress_natively(
    native: SnappyKernel | Lz4Kernel | None, data: Buffer, limit: int, room: memoryview | None, *options: bool
) -> bytes | memoryview | None:
    """Decompress with the kernel, whose other arguments are ``options``.

    None if there is no kernel, or if it does not accept the data.
    """
    if native is None:
        return None
    if room is not None:
        size = native.decompress_into(data, room[:limit], *options)
        if size >= 0:
            return room[:size]
    return native.decompress(data, limit, *options)


def _collect(codec: Codec, step: Callable[[int], bytes], limit: int, expected: int) -> bytes:
    """Join the output of ``step`` until it returns nothing, checking ``limit`` between steps.

    Args:
        step: returns the next piece of output, of at most the given size.
        expected: predicted size. The first step may return that much at once, which avoids joining pieces.
    """
    pieces: list[bytes] = []
    size = 0
    wanted = max(_STEP_BYTES, expected + 1)
    while piece := step(min(wanted, limit - size + 1)):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise _too_large(codec, limit)
        wanted *= 2
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# -- gzip


def _find_isal() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    return isal_zlib


_isal: Final = _find_isal()
"""isal's variant of zlib, which inflates faster; None if the extra is not installed."""


def _gunzip(data: Buffer, limit: int) -> bytes:
    pieces: list[bytes] = []
    view = memoryview(data)
    size = at = 0
    while not pieces or bytes(view[at : at + 2]) == b"\x1f\x8b":  # another member begins here
        piece, stop = _inflate_next(view, at, limit - size, size)
        size += len(piece)
        if size > limit:
            raise _too_large(Codec.GZIP, limit)
        pieces.append(piece)
        at = stop
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _inflate_next(view: memoryview, at: int, left: int, before: int) -> tuple[bytes, int]:
    """Decompress the gzip member at ``at``.

    Args:
        left: output limit, in bytes.
        before: size of the output of earlier members, for the error message.

    Returns its output and the position after it.
    """
    # zlib copies the bytes after a member. Mostly there is only one, which therefore gets all input. Further members
    # get a window that grows as needed: otherwise each of thousands of small members would copy all that follows it.
    window = _MEMBER_BYTES if at else len(view)
    while True:
        data = view[at : at + window]
        try:
            piece, rest = _inflate_fast(data, left) or _inflate(data, left, before)
        except CorruptMessageError:
            if at + window >= len(view):
                raise
            window *= 8
        else:
            return piece, at + len(data) - len(rest)


_MEMBER_BYTES: Final = 1 << 12
"""Initial input window for gzip members after the first, in bytes."""


def _inflate(data: Buffer, left: int, before: int) -> tuple[bytes, bytes]:
    """Decompress one member to at most ``left`` + 1 bytes.

    Returns the output and the input after the member.
    """
    member = zlib.decompressobj(wbits=31)
    try:
        piece = member.decompress(data, left + 1)
    except zlib.error as error:
        raise _damaged(Codec.GZIP, error) from error
    if not member.eof and len(piece) <= left:
        raise _damaged(Codec.GZIP, f"the stream ends early, after {before + len(piece)} bytes")
    return piece, member.unused_data


def _inflate_fast(data: Buffer, left: int) -> tuple[bytes, bytes] | None:
    """Decompress one member with isal, in a third of zlib's time.

    None if isal is not installed, or if it reports a fault, which zlib then has to confirm.
    """
    if _isal is None or len(data) < _LEAST_GZIP_BYTES or data[_GZIP_FLAGS_AT] & _GZIP_RESERVED:
        return None
    member = _isal.decompressobj(wbits=31)
    try:
        piece = member.decompress(data, left + 1)
    except _isal.error:
        return None
    return (piece, member.unused_data) if member.eof else None


def _expect_gzip(data: Buffer) -> int:
    """Return the size declared in the last four bytes: the decompressed size modulo 4 GiB.

    Source: RFC 1952, 2.3.1.
    """
    return int.from_bytes(data[-4:], "little") if len(data) >= _LEAST_GZIP_BYTES else 0


_LEAST_GZIP_BYTES: Final = 18
_GZIP_FLAGS_AT: Final = 3
_GZIP_RESERVED: Final = 0xE0
"""Flags that must be zero (RFC 1952, 2.3.1.2). isal does not check them."""

# -- snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS: Final = struct.pack(">ii", 1, 1)
"""Version of the format, and the lowest version that can read it."""
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 << 10
_BLOCK_LENGTH: Final = struct.Struct(">i")
_SNAPPY_MOST_BYTES: Final = 64
"""Largest output of one element of a snappy block, in bytes; such an element takes three bytes."""


def _snappy(data: bytes) -> bytes:
    """Write blocks in snappy-java's framing and block size."""
    try:
        import snappy
    except ImportError as error:
        raise _unusable(Codec.SNAPPY, "written", "python-snappy", error) from error
    pieces = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[at : at + _XERIAL_BLOCK_BYTES])
        pieces += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(pieces)


def _unsnappy(data: Buffer, limit: int) -> bytes:
    """Decompress a raw block, or snappy-java's framing.

    The framing is a magic, two versions, and then length and content of each block.
    """
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


def _unsnappy_block(block: Buffer, left: int, limit: int) -> bytes:
    """Decompress one block.

    The library allocates the size that the block's first varint declares, so that size is checked before.
    """
    try:
        declared = _declared_snappy_bytes(block, 0)
    except IndexError:
        raise _damaged(Codec.SNAPPY, "the size of a block is cut off") from None
    if declared > left:
        raise _too_large(Codec.SNAPPY, limit)
    if declared > len(block) * _SNAPPY_MOST_BYTES:
        raise _damaged(Codec.SNAPPY, f"{declared} bytes are declared for a block of {len(block)}")
    try:
        import snappy
    except ImportError as error:
        raise _unusable(Codec.SNAPPY, "read", "python-snappy", error) from error
    try:
        piece: bytes = snappy.uncompress(block)
    except snappy.UncompressError as error:
        raise _damaged(Codec.SNAPPY, error.__cause__ or error) from error
    return piece


def _expect_snappy(data: Buffer) -> int:
    if kernel.snappy is not None and (size := kernel.snappy.size(data)) >= 0:
        return size
    if data[:8] != _XERIAL_MAGIC:
        return _declared_snappy_bytes(data, 0)
    size, at = 0, _XERIAL_HEADER_BYTES
    while at < len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        if length < 0:
            return 0
        size += _declared_snappy_bytes(data, at + _BLOCK_LENGTH.size)
        at += _BLOCK_LENGTH.size + length
    return size


def _declared_snappy_bytes(data: Buffer, at: int) -> int:
    """Read the varint at the beginning of a block: its decompressed size.

    Raises IndexError if it is truncated.
    """
    declared = shift = 0
    while shift < _SNAPPY_SIZE_BITS:
        byte = data[at]
        declared |= (byte & 0x7F) << shift
        if byte < 0x80:
            return declared
        shift += 7
        at += 1
    raise IndexError


_SNAPPY_SIZE_BITS: Final = 35

# -- lz4

_LZ4_CHECKSUM_AT: Final = 6
"""Position of the header checksum in a frame without content size."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DICTIONARY_ID: Final = 0x01


def _lz4(data: bytes) -> bytes:
    """Write a frame that Kafka's first LZ4 reader can read.

    That reader supports only independent blocks, without checksums of blocks and without content size.
    """
    try:
        import lz4.frame
    except ImportError as error:
        raise _unusable(Codec.LZ4, "written", "lz4", error) from error
    return bytes(lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False))


def _break_lz4(frame: bytes) -> bytes:
    """Replace the header checksum by the one that magic 0 producers write.

    It covers the frame's magic too (KAFKA-3160).
    """
    wrong = xxh32_short(frame[:_LZ4_CHECKSUM_AT]) >> 8 & 0xFF
    return frame[:_LZ4_CHECKSUM_AT] + bytes((wrong,)) + frame[_LZ4_CHECKSUM_AT + 1 :]


def _mend_lz4(data: bytes) -> bytes:
    """Correct the header checksum of a frame of a magic 0 producer.

    Kafka's own reader ignores it there.
    """
    if data[:4] != _LZ4_MAGIC or len(data) < 7:
        return data
    at = 6 + (8 if data[4] & _LZ4_CONTENT_SIZE else 0) + (4 if data[4] & _LZ4_DICTIONARY_ID else 0)
    right = xxh32_short(data[4:at]) >> 8 & 0xFF
    return data if data[at : at + 1] == bytes((right,)) else data[:at] + bytes((right,)) + data[at + 1 :]


_LZ4_MOST_RATIO: Final = 255
"""Upper bound of the compression ratio of a block."""


def _unlz4(data: Buffer, limit: int) -> bytes:
    try:
        import lz4.frame
    except ImportError as error:
        raise _unusable(Codec.LZ4, "read", "lz4", error) from error
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
        expected = min(expected_size(Codec.LZ4, data), len(data) * _LZ4_MOST_RATIO)
        whole = _collect(Codec.LZ4, step, limit, expected)
    except (RuntimeError, ValueError, EOFError) as error:
        raise _damaged(Codec.LZ4, error) from error
    if not frame.eof:
        raise _damaged(Codec.LZ4, f"the frame ends early, after {len(whole)} bytes")
    return whole


def _expect_lz4(data: Buffer) -> int:
    """Return the declared content size, or else the sum of the block sizes.

    A compressed block counts as the frame's maximum block size. Source: LZ4 frame format 1.6.1.
    """
    if data[:4] != _LZ4_MAGIC:
        return 0
    flags, block_bytes = data[4], _LZ4_BLOCK_BYTES << 2 * (data[5] >> 4 & 7)
    content_size = 8 if flags & _LZ4_CONTENT_SIZE else 0
    if content_size:
        return int.from_bytes(data[6:14], "little")
    at = 7 + (4 if flags & _LZ4_DICTIONARY_ID else 0)
    size = 0
    while word := int.from_bytes(data[at : at + 4], "little"):
        length = word & _LZ4_LENGTH
        size += block_bytes if length == word else length
        at += 4 + length + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    return size


_LZ4_BLOCK_BYTES: Final = 256
"""Unit of the frame's maximum block size: 256 * 4**n bytes, where n is 4 (64 KiB) to 7 (4 MiB)."""
_LZ4_LENGTH: Final = 0x7FFFFFFF
"""Mask of a block's length. The bit above it marks an uncompressed block."""
_LZ4_BLOCK_CHECKSUM: Final = 0x10

# -- zstd

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a skippable frame's magic; byte 0 is 0x50 to 0x5F."""
_ZSTD_RLE: Final = 1


def _zstd(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise _unusable(Codec.ZSTD, "written", "zstandard", error) from error
    return zstandard.ZstdCompressor().compress(data)


def _unzstd(data: Buffer, limit: int, room: memoryview | None) -> bytes | memoryview:
    try:
        import zstandard
    except ImportError as error:
        raise _unusable(Codec.ZSTD, "read", "zstandard", error) from error
    try:
        most = _walk_zstd(data)
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        if room is not None and most < min(len(room), limit):
            size = 0
            # always offer one byte more than expected: the reader verifies the frame's checksum only when it is asked
            # for more
            while count := reader.readinto(room[size : most + 1]):
                size += count
            return room[:size]
        return _collect(Codec.ZSTD, reader.read, limit, most)
    except zstandard.ZstdError as error:
        raise _damaged(Codec.ZSTD, error) from error


_ZSTD_BLOCK_BYTES: Final = 128 << 10


def _walk_zstd(data: Buffer) -> int:
    """Walk the headers of frames and blocks; returns an upper bound of the decompressed size.

    Needed because the library's reader treats a truncated stream as complete. Raw and RLE blocks count as what they
    declare, compressed ones as the largest block size. Raises CorruptMessageError unless ``data`` is one or more whole
    frames. Source: RFC 8878, 3.1.
    """
    at = most = 0
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
            kind, length = block >> 1 & 3, block >> 3
            at += 3 + (1 if kind == _ZSTD_RLE else length)
            most += _ZSTD_BLOCK_BYTES if kind > _ZSTD_RLE else length
        at += 4 if descriptor & 4 else 0
        if not last or at > len(data):
            raise _damaged(Codec.ZSTD, "the frame ends early")
    if at > len(data):
        raise _damaged(Codec.ZSTD, "the frame ends early")
    return most
