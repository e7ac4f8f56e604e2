# SPDX-License-Identifier: Apache-2.0
"""The kernel's LZ4 against the library: the same bytes, or left to it, and never a byte outside its room."""

from __future__ import annotations

import random
import struct

import lz4.frame
import pytest

from consumerd.wire import kernel
from consumerd.wire.checksum import xxh32_short
from consumerd.wire.compression import Codec, compress, decompress
from tests.support.record_sets import break_lz4_header

pytestmark = pytest.mark.skipif(kernel.lz4 is None, reason="there is no kernel")

LIMIT = 1 << 20
GUARD = b"\xa5" * 96
HEADER = lz4.frame.compress(b"", block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False)[:7]
END = bytes(4)


def native() -> kernel.Lz4Kernel:
    assert kernel.lz4 is not None
    return kernel.lz4


def into(packed: bytes, size: int) -> bytes | None:
    """Decompress into so much room, and see that nothing behind it is touched."""
    memory = bytearray(GUARD * (size // 96 + 2))
    behind = bytes(memory[size:])

    count = native().decompress_into(packed, memoryview(memory)[:size], False)

    assert behind == memory[size:]
    return None if count < 0 else bytes(memory[:count])


def block(packed: bytes, *, is_packed: bool = True) -> bytes:
    """Return a block with its length before it."""
    return struct.pack("<I", len(packed) | (0 if is_packed else 1 << 31)) + packed


def length(value: int) -> bytes:
    """Return what follows a length of 15 in a token."""
    return b"\xff" * ((value - 15) // 255) + bytes(((value - 15) % 255,))


def sequence(literals: bytes, match: tuple[int, int] | None = None) -> bytes:
    """Return literals and a match (offset, length), or the literals that end a block."""
    nibbles = [min(len(literals), 15), min(match[1] - 4, 15) if match else 0]
    encoded = bytes((nibbles[0] << 4 | nibbles[1],)) + (length(len(literals)) if nibbles[0] == 15 else b"") + literals
    if match:
        encoded += struct.pack("<H", match[0]) + (length(match[1] - 4) if nibbles[1] == 15 else b"")
    return encoded


def library(packed: bytes) -> bytes | None:
    """Return what the library makes of a frame."""
    try:
        return bytes(lz4.frame.decompress(packed))
    except RuntimeError:
        return None


@pytest.mark.parametrize("distance", [*range(1, 40), 300])
def test_matches_may_overlap_at_any_distance(distance: int) -> None:
    """A match that reads what it has just written repeats it; with room behind it, and without."""
    word = random.Random(distance).randbytes(distance)
    last = b"the last literals"
    for count in (*range(4, 70), 272, 273, 274, 275, 700):
        expected = word + (word * (count // distance + 1))[:count]
        for before, after in ((b"", last[:12]), (b"", last * 9), (b"0123456789", last * 9)):
            encoded = sequence(before + word, (distance, count)) + sequence(after)
            packed = HEADER + block(encoded) + END
            whole = before + expected + after

            assert whole == library(packed) == native().decompress(packed, LIMIT, False)
            assert whole == into(packed, len(whole)) == into(packed, len(whole) + 1) == into(packed, len(whole) + 400)
            assert into(packed, len(whole) - 1) is None


@pytest.mark.parametrize("count", [0, 1, 13, 14, 15, 16, 30, 31, 32, 33, 34, 269, 270, 271, 5000])
def test_runs_of_literals_have_any_length(count: int) -> None:
    """Wide copies are for short ones; a length may take more bytes."""
    source = random.Random(count)
    word = source.randbytes(20)
    encoded, whole = sequence(word, (20, 4)), word + word[:4]
    for _ in range(5):
        literals = source.randbytes(count)
        whole += literals
        encoded += sequence(literals, (len(whole), 9))
        whole += whole[:9]
    packed = HEADER + block(encoded + sequence(b"the last literals")) + END
    whole += b"the last literals"

    assert whole == library(packed) == native().decompress(packed, LIMIT, False)
    assert whole == into(packed, len(whole)) == into(packed, len(whole) + 1000)


@pytest.mark.parametrize("cut", range(12))
def test_matches_near_to_the_end_of_a_block_are_left_to_the_library(cut: int) -> None:
    """Libraries differ in which of them they read."""
    packed = HEADER + block(sequence(b"0123456789", (10, 7)) + sequence(bytes(cut))) + END

    found = native().decompress(packed, LIMIT, False)

    assert found == (library(packed) if cut >= 5 else None)


def test_the_wrong_header_checksum_is_taken_where_it_does_not_matter() -> None:
    """Magic 0 producers hash four bytes too many (KAFKA-3160)."""
    text = b"some text" * 100
    packed = compress(Codec.LZ4, text, magic=0)
    assert packed == break_lz4_header(compress(Codec.LZ4, text, magic=1))

    assert native().decompress(packed, LIMIT, False) is None
    assert into(packed, LIMIT) is None
    assert text == native().decompress(packed, LIMIT, True) == decompress(Codec.LZ4, packed, limit=LIMIT, magic=0)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        HEADER,
        HEADER + END[:3],
        HEADER + block(b"\0") + END,
        HEADER + block(b"", is_packed=False) + END,
        HEADER + block(sequence(bytes(20), (0, 20)) + sequence(bytes(20))) + END,
        HEADER + block(sequence(bytes(20), (21, 20)) + sequence(bytes(20))) + END,
        HEADER + block(sequence(bytes(20), (1, 65_500)) + sequence(bytes(20))) + END,
        HEADER + block(sequence(bytes(20), (1, 20)) + b"\x50abc") + END,
        HEADER + block(sequence(bytes(20), (1, 20)) + b"\xf0\xff\xff") + END,
        HEADER + block(sequence(bytes(20), (1, 20)) + b"\x01abc") + END,
        HEADER + block(sequence(bytes(20), (21, 20)) + sequence(bytes(60))) + END,
        HEADER + block(sequence(bytes(20), (0, 20)) + sequence(bytes(60))) + END,
        HEADER + block(bytes(65_537), is_packed=False) + END,
        HEADER + block(sequence(bytes(65_280))) + block(sequence(b"", (20, 20)) + sequence(bytes(20))) + END,
        HEADER + block(sequence(bytes(65_280))) + block(sequence(b"", (20, 20)) + sequence(bytes(60))) + END,
        HEADER[:6] + bytes((HEADER[6] ^ 1,)) + END,
        b"\x02\x21\x4c\x18" + HEADER[4:] + END,
    ],
)
def test_what_is_not_sound_is_left_to_the_library(packed: bytes) -> None:
    """Whatever that says of it."""
    assert native().decompress(packed, LIMIT, False) is None
    assert into(packed, LIMIT) is None


@pytest.mark.parametrize("flags", [0x61, 0x62, 0x20, 0xA0, 0xE0])
def test_frames_of_other_kinds_are_left_to_the_library(flags: int) -> None:
    """Dictionaries, reserved bits and other versions, with a checksum that is right."""
    head = bytes((flags, HEADER[5])) + (bytes(4) if flags & 1 else b"")
    packed = HEADER[:4] + head + bytes((xxh32_short(head) >> 8 & 0xFF,)) + END + bytes(9)

    for any_checksum in (False, True):
        assert native().decompress(packed, LIMIT, any_checksum) is None


@pytest.mark.parametrize("option", [{"block_checksum": True}, {"content_checksum": True}, {"store_size": True}])
def test_what_a_frame_says_of_its_content_is_held_against_it(option: dict[str, bool]) -> None:
    """Every byte of the frame but for those of its header is damaged in turn."""
    text = random.Random(1).randbytes(40) * 3
    packed = lz4.frame.compress(text, **({"store_size": False} | option))
    assert text == native().decompress(packed, LIMIT, False)

    for at in range(len(packed)):
        damaged = packed[:at] + bytes((packed[at] ^ 4,)) + packed[at + 1 :]
        found = native().decompress(damaged, LIMIT, False)
        assert found is None or found == library(damaged)
        assert found in (None, text) or "store_size" in option


@pytest.mark.parametrize("size", [*range(70), 1000, 1001, 65_539])
def test_hashes_are_those_of_the_pure_function_and_of_the_library(size: int) -> None:
    """The pure one is for less than 16 bytes; for more the library's frame has one at its end."""
    data = random.Random(size).randbytes(size)

    found = native().xxh32(data)

    if size < 16:
        assert found == xxh32_short(data)
    (expected,) = struct.unpack("<I", lz4.frame.compress(data, content_checksum=True)[-4:])
    assert found == expected
