# SPDX-License-Identifier: Apache-2.0
"""The kernel's messages: CRC-32 against zlib's, room for any number of rows and segments, and any bytes."""

from __future__ import annotations

import random
import struct
import zlib
from array import array

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.columns import ColumnBuilder, Segment
from consumerd.wire.modern.message_reader import MessageReader
from tests.support.record_sets import message

pytestmark = pytest.mark.skipif(kernel.messages is None, reason="there is no kernel")


def native() -> kernel.MessagesKernel:
    assert kernel.messages is not None
    return kernel.messages


def rows(columns: ColumnBuilder) -> tuple[object, ...]:
    return (
        columns.timestamps,
        bytes(columns.timestamp_types),
        columns.key_starts,
        columns.key_ends,
        columns.value_starts,
        columns.value_ends,
    )


def read(data: bytes, following: int = 0) -> tuple[int, list[Segment], int, tuple[object, ...]]:
    """Read with the kernel alone."""
    columns = ColumnBuilder(data, TopicPartition.modern("t", 0), 0)
    segments: list[Segment] = []
    at, first, following = native().read_messages(data, 0, len(data), 0, columns, segments, following, following)
    return at, [*segments, (first, following)], following, rows(columns)


# -- CRC-32


@pytest.mark.parametrize("offset", range(17))
def test_crc32_is_zlibs_for_every_length_and_alignment(offset: int) -> None:
    """Short, long and odd lengths take different ways, and so do both kinds of machine."""
    data = random.Random(offset).randbytes(1100)

    for end in range(offset, offset + 1001):
        expected = zlib.crc32(data[offset:end])
        assert expected == native().crc32(data, offset, end)
        assert expected == native().crc32_by_table(data[offset:end])


def test_crc32_of_much_is_zlibs() -> None:
    """Beyond a few kilobytes the interpreter's lock is released."""
    data = random.Random(1).randbytes(1 << 20)

    assert zlib.crc32(data) == native().crc32(data) == native().crc32_by_table(data)


@pytest.mark.parametrize(("begin", "end"), [(-5, 3), (2, 99), (4, 2), (9, 10), (-9, -3)])
def test_crc32_keeps_to_the_buffer(begin: int, end: int) -> None:
    """Whatever it is asked for, it reads what is there."""
    data = b"abcdef"

    assert zlib.crc32(data[max(begin, 0) : max(end, 0)]) == native().crc32(data, begin, end)


# -- messages


@pytest.mark.parametrize("sizes", [range(3000), [500] + [0] * 3000])
@pytest.mark.parametrize("magic", [0, 1])
def test_there_is_room_for_any_number_of_rows(magic: int, sizes: list[int]) -> None:
    """Room is guessed by the first message, which says nothing of those behind it."""
    data = b"".join(message(offset, bytes(size), magic=magic) for offset, size in enumerate(sizes))

    at, segments, following, (_, _, _, _, starts, ends) = read(data)

    assert len(data) == at
    assert [(0, len(sizes))] == segments
    assert len(sizes) == following
    assert isinstance(starts, array)
    assert isinstance(ends, array)
    assert list(sizes) == [end - start for start, end in zip(starts, ends, strict=True)]


def test_there_is_room_for_any_number_of_holes() -> None:
    """A compacted partition may have one in front of every message."""
    data = b"".join(message(3 * row, b"v") for row in range(5000))

    at, segments, following, _ = read(data)

    assert len(data) == at
    assert [(3 * row, 3 * row + 1) for row in range(5000)] == segments
    assert 14998 == following


@pytest.mark.parametrize("seed", range(40))
def test_the_kernel_reads_as_the_python_reader_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken, where that ends and what is wrong there must be the same, whatever was damaged."""
    generator = random.Random(seed)
    magic = generator.randrange(2)
    offset, pieces = 5, []
    for _ in range(60):
        offset += generator.choice([1, 1, 1, 1, 1, 1, 7])
        key = generator.choice([None, b"", b"key", generator.randbytes(30)])
        value = generator.choice([None, b"", generator.randbytes(generator.randrange(90))])
        pieces.append(message(offset, value, key=key, magic=magic, timestamp=generator.randrange(1 << 40)))
    whole = b"".join(pieces)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(generator.randrange(3)):
            at = generator.randrange(len(data))
            data[at] = generator.choice([0, 0xFF, data[at] ^ 1, 0x7F])
        if generator.random() < 0.5:
            begin = 0
            for size in map(len, pieces):  # the checksums again, for what they would hide
                end = begin + size
                data[begin + 12 : begin + 16] = struct.pack(">I", zlib.crc32(data[begin + 16 : end]))
                begin = end
        damaged = bytes(data[: generator.choice([len(data), generator.randrange(40, len(data))])])
        results = []
        for part in (kernel.messages, None):
            with monkeypatch.context() as patch:
                patch.setattr(kernel, "messages", part)
                results.append(_read_whole(damaged))
        assert results[0] == results[1]


def _read_whole(data: bytes) -> tuple[object, ...]:
    columns = ColumnBuilder(data, TopicPartition.modern("t", 0), 0)
    if data[16] > 1:
        return ()
    reader = MessageReader(data, 0, len(data), 1000, columns, 0)
    try:
        at = reader.read(0)
    except CorruptMessageError as error:
        return (str(error),)
    return at, reader.segments, reader.following, rows(columns)


def test_any_bytes_are_safe_to_give() -> None:
    """Sizes and lengths lead anywhere; nothing outside the buffer may be touched."""
    generator = random.Random(7)
    for _ in range(3000):
        data = generator.randbytes(generator.randrange(80))
        at, _, _, columns = read(data)
        assert (0, (array("q"), b"", *[array("q")] * 4)) == (at, columns)


@pytest.mark.parametrize(("at", "end"), [(-1, 40), (0, 5), (100, 40), (0, 1 << 60)])
def test_where_to_read_is_clipped_to_the_buffer(at: int, end: int) -> None:
    """A caller's mistake must not become a read of foreign memory."""
    data = message(0, b"v")
    columns = ColumnBuilder(data, TopicPartition.modern("t", 0), 0)

    stop, _, following = native().read_messages(data, at, end, 0, columns, [], 0, 0)

    assert (len(data), 1) if (at, end) == (0, 1 << 60) else (at, 0) == (stop, following)


def test_the_greatest_offset_is_left_to_the_python_reader() -> None:
    """Nothing could follow it."""
    assert 0 == read(message((1 << 63) - 1, b"v"))[0]
    assert 0 != read(message((1 << 63) - 2, b"v"))[0]


def test_columns_of_different_lengths_are_refused() -> None:
    """Rows would be written beside each other."""
    columns = ColumnBuilder(b"", TopicPartition.modern("t", 0), 0)
    columns.key_ends.append(1)

    with pytest.raises(ValueError, match="one length"):
        native().read_messages(message(0, b"v"), 0, 99, 0, columns, [], 0, 0)


def test_columns_that_somebody_looks_at_do_not_move() -> None:
    """Arrays refuse it themselves: what is looked at would be foreign memory at once."""
    columns = ColumnBuilder(b"", TopicPartition.modern("t", 0), 0)

    with memoryview(columns.key_ends), pytest.raises(BufferError):
        native().read_messages(message(0, b"v"), 0, 99, 0, columns, [], 0, 0)
    assert 0 == len(columns.timestamps) == len(columns.key_ends)


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0x7FFFFFF4, 0x80000000, 0xFFFFFFFF])
def test_the_first_size_may_be_absurd(size: int) -> None:
    """It is what room is guessed by."""
    data = message(0, b"v")

    assert 0 == read(data[:8] + struct.pack(">I", size) + data[12:])[0]
