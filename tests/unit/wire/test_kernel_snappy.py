# SPDX-License-Identifier: Apache-2.0
"""The kernel's snappy against the library: the same bytes, or left to it, and never a byte outside its room."""

from __future__ import annotations

import random
import struct

import pytest
import snappy

from consumerd.errors import CorruptMessageError
from consumerd.wire import kernel
from consumerd.wire.compression import Codec, decompress
from tests.support.record_sets import xerial

pytestmark = pytest.mark.skipif(kernel.snappy is None, reason="there is no kernel")

LIMIT = 1 << 20
GUARD = b"\xa5" * 96


def native() -> kernel.SnappyKernel:
    assert kernel.snappy is not None
    return kernel.snappy


def into(packed: bytes, size: int) -> bytes | None:
    """Decompress into so much room, and see that nothing behind it is touched."""
    memory = bytearray(GUARD * (size // 96 + 2))
    behind = bytes(memory[size:])

    count = native().decompress_into(packed, memoryview(memory)[:size])

    assert behind == memory[size:]
    return None if count < 0 else bytes(memory[:count])


def texts(generator: random.Random) -> list[bytes]:
    """Return what has literals and copies of all lengths and distances."""
    word = generator.randbytes(generator.randrange(1, 90))
    return [
        b"",
        word,
        word * generator.randrange(1, 60),
        b"".join(generator.randbytes(generator.randrange(70)) + word for _ in range(20)),
        b"ab" * 300 + bytes(500) + b"abc" * 99,
        generator.randbytes(300),
        b"".join(b'{"id": %d, "name": "n%d"}' % (number, number % 7) for number in range(400)),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_compressed_comes_back(seed: int) -> None:
    """Raw and framed, with more room than is needed, and with just enough."""
    for data in texts(random.Random(seed)):
        for packed in (snappy.compress(data), xerial([data[:100], data[100:]])):
            assert len(data) == native().size(packed)
            assert data == native().decompress(packed, len(data))
            assert data == into(packed, len(data)) == into(packed, len(data) + 1) == into(packed, len(data) + 200)
            assert native().decompress(packed, len(data) - 1) is None
            if data:
                assert into(packed, len(data) - 1) is None


@pytest.mark.parametrize("distance", range(1, 40))
def test_copies_may_overlap_at_any_distance(distance: int) -> None:
    """A copy that reads what it has just written repeats it."""
    word = bytes(range(distance))
    for length in range(1, 65):
        element = bytes(((length - 1) << 2 | 2,)) + struct.pack("<H", distance)
        expected = word + (word * 65)[:length]
        packed = encode_plain(len(expected)) + bytes(((distance - 1) << 2,)) + word + element
        assert expected == native().decompress(packed, LIMIT) == into(packed, len(expected)) == into(packed, 300)


def encode_plain(size: int) -> bytes:
    """Return a varint that is not zigzag."""
    encoded = bytearray()
    while size >= 0x80:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*encoded, size))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_streams_give_what_the_library_gives_or_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the two disagreed, a topic would be read differently with the kernel and without."""
    generator = random.Random(seed)
    part = native()
    monkeypatch.setattr(kernel, "snappy", None)
    for data in texts(generator):
        for packed in (snappy.compress(data), xerial([data[:100], data[100:]])):
            for _ in range(40):
                damaged = bytearray(packed)
                for _ in range(generator.randrange(1, 4)):
                    at = generator.randrange(min(len(damaged), generator.choice([20, 40, 1 << 20])))
                    damaged[at] = generator.choice([0, 1, 0x7F, 0xFF, 0xFC, damaged[at] ^ 4, generator.randrange(256)])
                if generator.random() < 0.3:
                    del damaged[generator.randrange(len(damaged)) :]
                try:
                    expected = decompress(Codec.SNAPPY, bytes(damaged), limit=LIMIT, magic=2)
                except CorruptMessageError:
                    expected = None
                assert expected == part.decompress(bytes(damaged), LIMIT)


def test_any_bytes_are_safe_to_give() -> None:
    """Nothing outside the room is written, nor does it take forever."""
    generator = random.Random(3)
    for _ in range(5000):
        packed = encode_plain(generator.randrange(200)) + generator.randbytes(generator.randrange(60))
        assert (into(packed, 100) is None) or (native().decompress(packed, 100) is not None)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\x1f",
        encode_plain(1 << 31) + b"\x00x",
        xerial([b"x"])[:12],
        xerial([b"x"]) + b"\0\0",
        xerial([]) + struct.pack(">i", -1),
        xerial([]) + struct.pack(">i", 9) + b"x",
    ],
)
def test_what_declares_nonsense_has_no_size(packed: bytes) -> None:
    """Nobody makes room for it."""
    assert -1 == native().size(packed)
    assert native().decompress(packed, 1 << 40) is None
