# SPDX-License-Identifier: Apache-2.0
"""LZ4 with the kernel and without: frames of all shapes, damaged ones, and any bytes."""

from __future__ import annotations

import random

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.wire import kernel
from consumerd.wire.compression import Codec, decompress
from tests.support.pure import without_kernel

pytestmark = [pytest.mark.skipif(kernel.lz4 is None, reason="there is no kernel"), pytest.mark.records]

LIMIT = 1 << 19
GUARD = b"\xa5" * 64
HEADER = lz4.frame.compress(b"", block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False)[:7]

SHAPES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([4, 5, 6, 7]),
        "block_linked": st.booleans(),
        "block_checksum": st.booleans(),
        "content_checksum": st.booleans(),
        "store_size": st.booleans(),
        "compression_level": st.sampled_from([-5, 0, 9]),
    }
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Draw what has runs, words at all distances, and noise; more than a block of it at times."""
    source = random.Random(draw(st.integers(0, 1 << 30)))
    words = [source.randbytes(source.randrange(1, draw(st.sampled_from([4, 30, 400])))) for _ in range(8)]
    count = draw(st.sampled_from([0, 1, 3, 40, 600]))
    pieces = [source.choice(words) * source.choice([1, 1, 1, 2, 50]) for _ in range(count)]
    noise = source.randbytes(draw(st.sampled_from([0, 1, 20, 70_000])))
    return (b"".join(pieces) + noise)[: 1 << 18]


def damage(packed: bytes, source: random.Random) -> bytes:
    """Change a few bytes, the first of them rather, and cut off the end at times."""
    damaged = bytearray(packed)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(min(len(damaged), source.choice([12, 40, 1 << 20])))
        damaged[at] = source.choice([0, 1, 15, 0xF0, 0xFF, damaged[at] ^ 16, source.randrange(256)])
    if source.random() < 0.2:
        del damaged[source.randrange(len(damaged)) :]
    return bytes(damaged)


def read(data: bytes, magic: int, limit: int, room: memoryview | None = None) -> bytes | str:
    """Return what comes out, or what is said of it."""
    try:
        return bytes(decompress(Codec.LZ4, data, limit=limit, magic=magic, room=room))
    except CorruptMessageError as error:
        return f"{type(error).__name__}: {error}"


def check(data: bytes, magic: int, *, limit: int = LIMIT, size: int = LIMIT) -> None:
    """See that the two say the same, with room and without, and that nothing behind the room is touched."""
    memory = bytearray(size) + GUARD
    with without_kernel():
        expected = read(data, magic, limit)
    assert expected == read(data, magic, limit)
    assert expected == read(data, magic, limit, memoryview(memory)[:size])
    assert GUARD == memory[size:]
    native = kernel.lz4
    assert native is not None
    found = native.decompress(data, limit, magic == 0)
    assert found is None or found == expected


@given(contents(), SHAPES, st.sampled_from([0, 2]), st.integers(-2, 400))
def test_frames_of_all_shapes_are_read_natively(data: bytes, shape: dict[str, int], magic: int, spare: int) -> None:
    """With too little room, with just enough, and with more."""
    packed = lz4.frame.compress(data, **shape)
    native = kernel.lz4
    assert native is not None

    # frames that are more than they say they may be are refused where they say so
    assert data == native.decompress(packed, LIMIT, False)
    check(packed, magic, size=max(len(data) + spare, 0))
    check(packed + b"what follows", magic, limit=max(len(data) + spare, 0))


@given(contents(), SHAPES, st.sampled_from([0, 1, 2]), st.integers(0, 1 << 30))
def test_damaged_frames_give_the_same_or_the_same_fault(
    data: bytes, shape: dict[str, int], magic: int, seed: int
) -> None:
    """Where the two disagreed, a topic would be read differently with the kernel and without."""
    source = random.Random(seed)
    packed = lz4.frame.compress(data, **(shape | {"content_checksum": seed % 8 == 0}))
    for _ in range(6):
        check(damage(packed, source), magic)


@given(st.lists(st.tuples(st.binary(max_size=80), st.booleans()), max_size=3), st.binary(max_size=12))
def test_blocks_of_any_bytes_give_the_same_or_the_same_fault(blocks: list[tuple[bytes, bool]], rest: bytes) -> None:
    """Behind a header that is right."""
    data = HEADER
    for block, is_packed in blocks:
        data += (len(block) | (0 if is_packed else 1 << 31)).to_bytes(4, "little") + block
    check(data + bytes(4) + rest, 2, size=200)


@given(st.binary(max_size=100), st.integers(0, 2))
def test_any_bytes_give_the_same_or_the_same_fault(data: bytes, magic: int) -> None:
    """With the magic of a frame and without."""
    check(data, magic, size=100)
    check(HEADER[:4] + data, magic, size=100)
