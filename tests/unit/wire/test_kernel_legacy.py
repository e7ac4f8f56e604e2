# SPDX-License-Identifier: Apache-2.0
"""The kernel's reader of Kafka 0.6 and 0.7: runs, what it leaves to Python, any arguments, and bounded memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from array import array
from typing import Any

import pytest
import snappy

from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.columns import ByteOffsetColumns
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set, decode_message_set
from consumerd.wire.legacy.stored_message import encode_message
from consumerd.wire.records import Limits
from tests.support.legacy_frames import PARTITION, list_rows

pytestmark = pytest.mark.skipif(kernel.legacy is None, reason="there is no kernel")

START = 1000
VALUE = b"a value that is repeated, " * 9
PLAIN = build_message_set([b"one"])
MOST_OFFSET = (1 << 63) - 1


def native() -> kernel.LegacyKernel:
    assert kernel.legacy is not None
    return kernel.legacy


def builder(data: Buffer, start: int = START, room: int = 1 << 20) -> ByteOffsetColumns:
    return ByteOffsetColumns(data, PARTITION, start, lambda: memoryview(bytearray(room)))


def columns_of(columns: ByteOffsetColumns) -> list[list[int]]:
    return [
        list(each)
        for each in (columns.offsets, columns.next_offsets, columns.indexes, columns.value_starts, columns.value_ends)
    ]


def read(data: bytes, columns: ByteOffsetColumns, at: int = 0, end: int = 1 << 60, start: int = START) -> int:
    return native().read_stored(data, at, end, 0, start, columns)


def read_packed(
    data: bytes, columns: ByteOffsetColumns, at: int = 0, end: int = 1 << 60, start: int = START, limit: int = 1 << 20
) -> int:
    return native().read_packed_stored(data, at, end, start, columns, limit)


def pack(payloads: list[bytes], *, raw: bool = False) -> bytes:
    messages = build_message_set(payloads)
    if raw:
        return encode_message(bytes(snappy.compress(messages)), codec=Codec.SNAPPY)
    return compress_message_set(messages, Codec.SNAPPY)


# -- uncompressed messages


@pytest.mark.parametrize("sizes", [range(3000), [500] + [0] * 3000, [0, 100_000]])
@pytest.mark.parametrize("magic", [0, 1])
def test_there_are_rows_for_any_number_of_messages(magic: int, sizes: list[int]) -> None:
    """Their number is guessed from the first message, whose size says nothing about the others."""
    data = build_message_set([bytes(size) for size in sizes], magic=magic)
    columns = builder(data)

    assert len(data) == read(data, columns)
    assert list(sizes) == [end - begin for begin, end in zip(columns.value_starts, columns.value_ends, strict=True)]
    ends = [end + START for end in columns.value_ends]
    assert (ends, [START, *ends[:-1]]) == (list(columns.next_offsets), list(columns.offsets))


def test_both_magics_are_read_in_one_run() -> None:
    """A topic that has seen an upgrade from 0.6 has both."""
    data = build_message_set([b"old"], magic=0) + PLAIN + build_message_set([b""], magic=0)
    columns = builder(data)

    assert len(data) == read(data, columns)
    assert [b"old", b"one", b""] == [
        data[begin:end] for begin, end in zip(columns.value_starts, columns.value_ends, strict=True)
    ]


@pytest.mark.parametrize(
    "other",
    [
        PLAIN[:-1],
        PLAIN[:-1] + b"?",
        PLAIN[:9],
        PLAIN[:3],
        b"",
        struct.pack(">iBI", 4, 0, 0),
        struct.pack(">iBBI", 5, 1, 0, 0),
        struct.pack(">iBBI", -1, 1, 0, 0),
        struct.pack(">iBBI", 6, 2, 0, 0),
        struct.pack(">iBBI", 6, 1, 3, 0),
        struct.pack(">iBBI", 0x7FFFFFFF, 1, 0, 0),
        struct.pack(">iBBI", -0x80000000, 1, 0, 0),
        compress_message_set(PLAIN, Codec.GZIP),
        compress_message_set(PLAIN, Codec.SNAPPY),
    ],
)
def test_a_run_ends_before_any_other_message(other: bytes) -> None:
    """Cut off, damaged, impossible or compressed: Python reads it, or says what is wrong."""
    for data in (other, PLAIN + PLAIN + other):
        columns = builder(data)
        assert len(data) - len(other) == read(data, columns)
        assert (len(data) - len(other)) // len(PLAIN) == len(columns.offsets) == len(columns.value_ends)


def test_inner_messages_have_no_offsets_yet() -> None:
    """They get those of the compressed message around them, when all of it is read."""
    columns = builder(b"")

    assert 2 * len(PLAIN) == native().read_inner(PLAIN * 2, 0, 1 << 60, 500, columns)
    assert [[], [], [], [510, 523], [513, 526]] == columns_of(columns)


# -- compressed messages


@pytest.mark.parametrize("raw", [False, True])
def test_a_run_of_compressed_messages_is_read_in_one_call(raw: bool) -> None:
    """The records of each share its offset, whatever number of them there is."""
    sizes = [3, 1, 700, 2]
    data = b"".join(pack([b"%d" % row for row in range(size)], raw=raw) for size in sizes)
    columns = builder(data)

    assert len(data) == read_packed(data, columns)
    assert columns.shares_offsets
    batch = columns.finish(len(data))
    assert [(row, b"%d" % row) for size in sizes for row in range(size)] == [
        (index, value) for _, index, _, value in list_rows(batch)
    ]
    assert len(sizes) == len(set(batch.offsets)) == len(set(batch.next_offsets or ()))
    assert (START, START + len(data)) == (batch.offsets[0], batch.following(len(batch) - 1))


def test_indexes_are_left_out_if_all_are_zero() -> None:
    """As in a set without compressed messages."""
    data = PLAIN + pack([b"alone"]) + pack([b"too"])
    columns = builder(data)
    columns.plain_shift(0)
    at = read(data, columns)

    assert len(data) == read_packed(data, columns, at)
    assert not columns.shares_offsets
    assert [] == list(columns.finish(len(data)).indexes)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN,
        compress_message_set(PLAIN, Codec.GZIP),
        compress_message_set(b"", Codec.SNAPPY),
        compress_message_set(PLAIN[:-1], Codec.SNAPPY),
        compress_message_set(PLAIN + PLAIN[:-1] + b"?", Codec.SNAPPY),
        compress_message_set(PLAIN + pack([b"nested"]), Codec.SNAPPY),
        encode_message(b"\x82SNAPPY\0", codec=Codec.SNAPPY),
        encode_message(b"\xff\xff\xff\xff\x0f", codec=Codec.SNAPPY),
        pack([b"checksum"])[:-1] + b"?",
        pack([b"cut off"])[:-1],
    ],
)
def test_a_run_of_compressed_messages_ends_before_any_other(other: bytes) -> None:
    """Nothing of it is in the columns, so that Python can read it from its beginning."""
    before = pack([b"a", b"b"])
    for data, rows in ((other, 0), (before + other, 2)):
        columns = builder(data)
        assert (len(before) if rows else 0) == read_packed(data, columns)
        assert (rows, rows, rows) == (len(columns.offsets), len(columns.value_ends), len(columns.indexes))


@pytest.mark.parametrize(("room", "limit"), [(700, 1 << 20), (1 << 20, 700), (1 << 20, 0), (0, 1 << 20)])
def test_decompression_keeps_to_its_memory_and_its_limit(room: int, limit: int) -> None:
    """A message that does not fit is left to Python, which allocates or refuses."""
    message = pack([VALUE, VALUE])  # 488 bytes when decompressed
    columns = builder(message * 2, room=room)

    expected = len(message) if min(room, limit) else 0
    assert expected == read_packed(message * 2, columns, limit=limit)
    assert expected == (len(message) if columns.decompressed_bytes else 0)


# -- sizes that are only claimed


def test_claimed_sizes_take_no_memory() -> None:
    """A length of 2 GiB, a snappy block that declares 4 GiB, and a small first message before a large one."""
    bomb = encode_message(b"\xff\xff\xff\xff\x0f" + bytes(50), codec=Codec.SNAPPY)
    claims = struct.pack(">iBBI", 0x7FFFFFFF, 1, 0, 0) + bytes(50)
    lopsided = build_message_set([b"", bytes(1 << 16)])
    for data in (bomb, claims, lopsided):
        columns = builder(data, room=1 << 12)
        tracemalloc.start()
        try:
            read(data, columns)
            read_packed(data, columns)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < (1 << 13) + 4 * 8 * len(data) / 9


def test_many_short_runs_take_no_more_memory_than_their_records() -> None:
    """A peer can end each run after one message; rows for all of the rest would be allocated each time."""
    data = (build_message_set([b""]) + compress_message_set(b"", Codec.SNAPPY)) * 5000
    columns = builder(data)
    tracemalloc.start()
    try:
        read(data, columns)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert 1 == len(columns.offsets)
    assert peak < 20_000


def test_memory_of_columns_is_trimmed() -> None:
    """A batch counts eight bytes for each row and column; a reserve would not be counted."""
    data = build_message_set([b"x" * 2000]) + build_message_set([b""] * 50_000)
    tracemalloc.start()
    try:
        batch = decode_message_set(data, partition=PARTITION, start=0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert 50_001 == len(batch)
    assert held < batch.size_bytes - len(data) + 10_000


def test_nesting_of_zero_refuses_compressed_messages() -> None:
    """The kernel reads one level, so it must not be asked where none is allowed."""
    data = PLAIN + pack([b"a"])

    assert 1 == len(decode_message_set(data, partition=PARTITION, start=0, limits=Limits(nesting=0)))


# -- arguments


@pytest.mark.parametrize(("at", "end"), [(-1, 40), (0, 5), (100, 40), (0, 0), (1 << 60, 1 << 61)])
def test_positions_are_clipped_to_the_buffer(at: int, end: int) -> None:
    """A caller's mistake must not become a read of foreign memory."""
    for data in (PLAIN, pack([b"a", b"b"])):
        columns = builder(data)
        assert at == read(data, columns, at, end)
        assert at == read_packed(data, columns, at, end)
        assert at == native().read_inner(data, at, end, 0, columns)
        assert (at, 0.0, 0, False) == native().step_stored(data, at, 0.0, 0.0, 1.0, 4.0)
        assert [[], [], [], [], []] == columns_of(columns)


@pytest.mark.parametrize("start", [MOST_OFFSET, MOST_OFFSET - len(PLAIN) + 1, -1])
def test_offsets_beyond_an_int64_are_left_to_python(start: int) -> None:
    """Offsets in columns must not overflow."""
    assert 0 == read(PLAIN, builder(PLAIN, start), start=start)
    packed = pack([b"a"])
    assert 0 == read_packed(packed, builder(packed, start), start=start)
    assert len(PLAIN) == read(PLAIN, builder(PLAIN), start=MOST_OFFSET - len(PLAIN))


def test_any_bytes_are_safe_to_give() -> None:
    """Lengths lead anywhere; nothing outside of the buffer may be touched."""
    generator = random.Random(7)
    for _ in range(3000):
        data = struct.pack(">i", generator.randrange(-9, 90)) + bytes([generator.randrange(3), generator.randrange(4)])
        data += generator.randbytes(generator.randrange(80))
        columns = builder(data)
        for found in (read(data, columns), read_packed(data, columns)):
            assert (0, [[], [], [], [], []]) == (found, columns_of(columns))
        stop, weight, expanded, _ = native().step_stored(data, 0, 0.0, 1e9, 1.0, 4.0)
        assert 0 <= stop <= len(data)
        assert weight >= 0
        assert expanded >= 0


@pytest.mark.parametrize("name", ["offsets", "next_offsets", "value_starts", "value_ends", "indexes"])
def test_columns_that_do_not_fit_together_are_refused(name: str) -> None:
    """Rows would be written beside each other; and a column in use elsewhere must not move."""
    packed = pack([b"a"])
    columns = builder(packed)
    getattr(columns, name).append(1)
    with pytest.raises(ValueError, match="one length"):
        read_packed(packed, columns)

    columns = builder(packed)
    setattr(columns, name, array("i"))
    with pytest.raises(ValueError, match="int64"):
        read_packed(packed, columns)

    columns = builder(packed)
    column: Any = getattr(columns, name)
    with memoryview(column), pytest.raises(BufferError):
        read_packed(packed, columns)
    assert [[], [], [], [], []] == columns_of(columns)
