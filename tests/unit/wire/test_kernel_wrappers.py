# SPDX-License-Identifier: Apache-2.0
"""The kernel's compressed wrappers: runs of them, booked as Python books them, what is left to it, and any arguments."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from typing import Any

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire import kernel
from consumerd.wire.columns import ColumnBuilder
from consumerd.wire.compression import Codec
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern import message_set
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, RecordBatch
from tests.support.pure import without_kernel
from tests.support.record_sets import (
    LOG_APPEND_TIME,
    RecordSpec,
    batch,
    break_lz4_header,
    compress,
    message,
    wrapper,
)

pytestmark = pytest.mark.skipif(kernel.records is None or kernel.messages is None, reason="there is no kernel")

PARTITION = TopicPartition.modern("t", 0)
VALUE = b"a value that is repeated, " * 9
BOTH = pytest.mark.parametrize("magic", [0, 1])
CODECS = pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])


def native() -> kernel.RecordsKernel:
    assert kernel.records is not None
    return kernel.records


def inner(first: int, values: list[bytes | None], magic: int) -> bytes:
    return b"".join(
        message(first + row, value, key=None if row % 3 else b"key", magic=magic, timestamp=1000 + row)
        for row, value in enumerate(values)
    )


def packed(
    first: int,
    values: int | list[bytes | None] = 3,
    *,
    magic: int = 1,
    codec: int = Codec.SNAPPY,
    key: bytes | None = None,
    attributes: int = 0,
) -> bytes:
    """Return a wrapper of messages that have the offsets from ``first`` on."""
    if isinstance(values, int):
        values = [VALUE + bytes((row & 0xFF,)) for row in range(values)]
    messages = inner(first if magic == 0 else 0, values, magic)
    compressed = compress(codec, messages)
    if magic == 0 and codec == Codec.LZ4:
        compressed = break_lz4_header(compressed)
    last = first + len(values) - 1
    return wrapper(last, b"", codec, key=key, magic=magic, timestamp=99, attributes=attributes, compressed=compressed)


def builder(data: bytes, start: int, room: int = 1 << 20) -> ColumnBuilder:
    return ColumnBuilder(data, PARTITION, start, lambda: memoryview(bytearray(room)))


def read(data: bytes, columns: ColumnBuilder, at: int = 0, end: int | None = None, limit: int = 1 << 20) -> int:
    return native().read_wrappers(data, at, len(data) if end is None else end, columns, limit)


def booked(columns: ColumnBuilder) -> dict[str, Any]:
    """Return all that stands in the columns."""
    return {name: value for name, value in vars(columns).items() if name[0] != "_"}


def booked_by_python(data: bytes, start: int) -> dict[str, Any]:
    """Return what the pure reader puts there."""
    columns = builder(data, start)
    at = 0
    with without_kernel():
        while at < len(data):
            at = message_set.read_messages(data, at, len(data), columns, Limits())
    return booked(columns)


def decode(data: bytes, room: int | None = None, limits: Limits | None = None) -> RecordBatch:
    return decode_record_set(
        data,
        partition=PARTITION,
        start=0,
        limits=limits or Limits(),
        make_room=None if room is None else lambda: memoryview(bytearray(room)),
    )


def seen_of(found: RecordBatch) -> tuple[object, ...]:
    return list(found.records()), found.gaps, found.next_offset, bytes(found.buffer)


# -- runs


@BOTH
@CODECS
@pytest.mark.parametrize("start", [10, 11, 30, 54, 60])
def test_a_run_is_read_in_one_call_and_booked_as_python_books_it(magic: int, codec: Codec, start: int) -> None:
    """Where the position is within, too: rows below it are dropped by whoever drops Python's."""
    values: list[bytes | None] = [None, b"", VALUE]
    run = [packed(10, magic=magic, codec=codec), packed(13, 40, magic=magic, codec=codec, key=b"key")]
    run += [packed(53, 1, magic=magic, codec=codec, key=b""), packed(54, values, magic=magic, codec=codec)]
    columns = builder(b"".join(run), start)

    assert sum(map(len, run)) == read(b"".join(run), columns)
    assert booked_by_python(b"".join(run), start) == booked(columns)
    assert list(range(10, 57)) == list(columns.offsets)


@CODECS
def test_both_magics_stand_in_one_run(codec: Codec) -> None:
    """A topic that has seen an upgrade has both, and relative offsets that count from anywhere."""
    counted = b"".join(message(row, VALUE, magic=1) for row in range(-2, 3))
    data = packed(0, magic=0, codec=codec) + packed(3, codec=codec) + wrapper(10, counted, codec)
    columns = builder(data, 0)

    assert len(data) == read(data, columns)
    assert list(range(11)) == list(columns.offsets)
    assert booked_by_python(data, 0) == booked(columns)


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
@BOTH
def test_times_are_the_wrappers_where_the_broker_gave_them(attributes: int, magic: int) -> None:
    """Else each message's own, of its own type, whatever magic it has; in magic 0 the flag means nothing."""
    first = 0 if magic == 0 else 7
    messages = message(first, VALUE, magic=0) + message(first + 1, VALUE, timestamp=5)
    messages += message(first + 2, VALUE, timestamp=6, attributes=LOG_APPEND_TIME)
    data = wrapper(2, messages, Codec.SNAPPY, magic=magic, timestamp=99, attributes=attributes)
    columns = builder(data, 0)

    assert len(data) == read(data, columns)
    own = [-1, 5, 6], [TimestampType.NONE, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]
    brokers = [99, 99, 99], [TimestampType.LOG_APPEND_TIME] * 3
    expected = brokers if attributes and magic else own
    assert expected == (list(columns.timestamps), [TimestampType(kind - 1) for kind in columns.timestamp_types])
    assert booked_by_python(data, 0) == booked(columns)


@CODECS
def test_python_sees_no_wrapper_that_there_is_room_for(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many calls as wrappers would cost more than reading them."""
    data = b"".join(packed(3 * number, magic=number % 2, codec=codec) for number in range(10))
    data += message(30, b"plain") + packed(31, 9, codec=Codec.GZIP) + packed(40, codec=codec) + packed(43, codec=codec)
    data += batch(46, [RecordSpec(delta=0, value=VALUE)], codec=codec) + packed(47, codec=codec)
    expected = seen_of(decode(data))
    seen = []
    decompress = message_set.decompress

    def note(codec: int, data: Buffer, *, limit: int, magic: int, room: memoryview | None) -> bytes | memoryview:
        seen.append(codec)
        return decompress(codec, data, limit=limit, magic=magic, room=room)

    monkeypatch.setattr(message_set, "decompress", note)

    assert expected == seen_of(decode(data, room=40_000))
    assert [Codec.GZIP] == seen


@CODECS
def test_what_the_kernel_does_not_take_is_seldom_decompressed_twice(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a compacted topic all wrappers may have holes, which shows when they are decompressed; one that has none is met again."""
    inners = [b"".join(message(row, VALUE) for row in (0, 2, 3)) for _ in range(100)]
    data = b"".join(wrapper(4 * number + 3, inner, codec) for number, inner in enumerate(inners))
    data += b"".join(packed(400 + 9 * number, 9, codec=codec) for number in range(300))
    expected = seen_of(decode(data))
    tried: list[int] = []

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(records, name)

        def read_wrappers(self, data: Buffer, at: int, end: int, columns: ColumnBuilder, limit: int) -> int:
            tried.append(columns.end)
            return records.read_wrappers(data, at, end, columns, limit)

    records = native()
    monkeypatch.setattr(kernel, "records", Noting())

    assert expected == seen_of(decode(data, room=1 << 20))
    assert len([offset for offset in tried if offset < 400]) < 10
    assert 400 <= tried[-1] < 1000


@CODECS
def test_a_run_is_the_same_whatever_room_there_is(codec: Codec) -> None:
    """It may end within any wrapper, and so may the limit; what is not compressed stands there, too."""
    data = message(0, b"plain")
    data += b"".join(packed(20 * number + 1, 20, magic=number % 2, codec=codec) for number in range(5))
    data += message(101, b"plain") + packed(102, 20, codec=codec)
    expected = decode(data)
    step = len(expected.buffer) // 37

    for size in range(0, len(expected.buffer) + 2 * step, step):
        assert seen_of(expected) == seen_of(decode(data, room=size))
        limits = Limits(decompressed_bytes=size)
        assert seen_of(decode(data, limits=limits)) == seen_of(decode(data, room=1 << 20, limits=limits))


@pytest.mark.parametrize("reverse", [False, True])
def test_there_is_room_for_any_number_of_rows(reverse: bool) -> None:
    """How many there are is told by the first wrapper, which says nothing of those behind it."""
    source = random.Random(3)
    few: list[list[bytes | None]] = [[source.randbytes(3000)] * 2, [source.randbytes(20_000)]]
    many: list[list[bytes | None]] = [[b""] * 3000, [None] * 5000, [b"v"] * 40, [b""] * 9000]
    sets = [*many, *few] if reverse else [*few, *many]
    data, offset = b"", 0
    for values in sets:
        data += packed(offset, values)
        offset += len(values)
    columns = builder(data, 0)

    assert len(data) == read(data, columns)
    assert list(range(offset)) == list(columns.offsets)
    assert booked_by_python(data, 0) == booked(columns)


def test_small_messages_make_no_more_room_than_they_may_fill() -> None:
    """What follows may be large, and is not like the first wrapper."""
    data = packed(0, [None] * 500) + packed(500, [random.Random(1).randbytes(1 << 20)])
    columns = builder(data, 0, room=40_000)
    tracemalloc.start()
    try:
        stop = read(data, columns)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(packed(0, [None] * 500)) == stop
    assert peak < 1 << 18


# -- what is left to Python


def opened(values: list[bytes | None], first: int = 0, magic: int = 1) -> bytes:
    return compress(Codec.SNAPPY, inner(first, values, magic))


GOOD = packed(10)
VALUES: list[bytes | None] = [VALUE] * 3
ODD = {
    "checksum": packed(13)[:12] + bytes(4) + packed(13)[16:],
    "another codec": packed(13, codec=Codec.GZIP),
    "not compressed": message(13, VALUE),
    "a hole before it": packed(14),
    "goes back": packed(12),
    "a hole in it": wrapper(15, message(0, VALUE) + message(2, VALUE), Codec.SNAPPY),
    "does not ascend": wrapper(15, message(1, VALUE) + message(0, VALUE), Codec.SNAPPY),
    "relative offsets in magic 0": wrapper(15, inner(0, VALUES, 0), Codec.SNAPPY, magic=0),
    "an end behind its last message": wrapper(16, inner(13, VALUES, 0), Codec.SNAPPY, magic=0),
    "an end before its last message": wrapper(14, inner(13, VALUES, 0), Codec.SNAPPY, magic=0),
    "a wrapper in it": wrapper(15, packed(0), Codec.SNAPPY),
    "nothing in it": wrapper(13, b"", Codec.SNAPPY),
    "bytes left in it": wrapper(15, inner(0, VALUES, 1) + bytes(9), Codec.SNAPPY),
    "a message cut off in it": wrapper(15, inner(0, VALUES, 1)[:-1], Codec.SNAPPY),
    "an absurd size in it": wrapper(13, struct.pack(">qi", 0, -1) + bytes(40), Codec.SNAPPY),
    "a batch in it": wrapper(13, batch(0, [RecordSpec(delta=0)]), Codec.SNAPPY),
    "a wrong checksum in it": wrapper(15, inner(0, VALUES, 1)[:-1] + b"\xff", Codec.SNAPPY),
    "a damaged stream": wrapper(15, b"", Codec.SNAPPY, compressed=opened(VALUES)[:-3]),
    "an LZ4 header of magic 0": wrapper(
        15, b"", Codec.LZ4, compressed=break_lz4_header(compress(Codec.LZ4, inner(0, VALUES, 1)))
    ),
    "an absurd key": message(13, b"", attributes=2, body=struct.pack(">ii", -2, 9) + bytes(9)),
    "a key over the end": message(13, b"", attributes=2, body=struct.pack(">ii", 5, 0)),
    "no value": message(13, None, attributes=2),
    "bytes behind the value": message(
        15, b"", attributes=2, body=struct.pack(">ii", -1, len(opened(VALUES))) + opened(VALUES) + b"\0"
    ),
    "a value over the end": message(
        15, b"", attributes=2, body=struct.pack(">ii", -1, len(opened(VALUES)) + 1) + opened(VALUES)
    ),
    "below zero": wrapper(-1, inner(0, VALUES, 1), Codec.SNAPPY),
    "another magic": batch(13, [RecordSpec(delta=0, value=VALUE)], codec=Codec.SNAPPY),
    "an unknown magic": packed(13)[:16] + b"\x03" + packed(13)[17:],
    "zeros": bytes(100),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_not_plain_is_left_alone_with_all_behind_it(odd: bytes) -> None:
    """It is for the Python reader, which the kernel's outcome is held against; nothing of it may be in the columns."""
    data = GOOD + odd + packed(16)
    columns = builder(data, 10)

    assert len(GOOD) == read(data, columns)
    assert {3} == {len(columns.offsets), len(columns), len(columns.key_starts), len(columns.timestamp_types)}
    assert booked_by_python(GOOD, 10) == booked(columns)
    expected = outcome(data, None)
    assert expected == outcome(data, 1 << 20)


def outcome(data: bytes, room: int | None) -> object:
    """Return what comes out of a set that begins with offset 10; without room, of the pure readers."""
    with without_kernel() if room is None else contextlib.nullcontext():
        make_room = None if room is None else lambda: memoryview(bytearray(room))
        return seen_of(decode_record_set(data, partition=PARTITION, start=10, make_room=make_room))


def test_a_wrapper_that_is_cut_off_is_left_alone() -> None:
    """A broker cuts where the bytes end that were asked for."""
    for data in (packed(13, magic=0), packed(13, key=b"key")):
        for size in range(len(data)):
            columns = builder(GOOD + data[:size], 10)
            assert len(GOOD) == read(GOOD + data[:size], columns)
            assert len(GOOD) == read(GOOD + data, builder(GOOD + data, 10), end=len(GOOD) + size)


def test_the_greatest_offset_is_left_to_the_python_reader() -> None:
    """Nothing could follow it."""
    first = (1 << 63) - 4
    columns = builder(packed(first), first)
    assert 0 != read(packed(first), columns)
    assert (1 << 63) - 1 == columns.position

    assert 0 == read(packed(first + 1), builder(packed(first + 1), first + 1))


def test_no_room_or_nothing_that_may_be_decompressed_leaves_all_as_it_was() -> None:
    """Python decompresses elsewhere, or refuses to."""
    columns = ColumnBuilder(GOOD, PARTITION, 10)
    untouched = booked(ColumnBuilder(GOOD, PARTITION, 10))

    assert 0 == read(GOOD, columns)
    assert 0 == read(GOOD, builder(GOOD, 10), limit=0)
    assert 0 == read(GOOD, builder(GOOD, 10), limit=-1)
    assert 0 == read(GOOD, builder(GOOD, 10, room=0))
    assert untouched == booked(columns)


def test_nested_sets_that_are_not_to_be_read_are_none() -> None:
    """Where no set may stand in another the kernel must not be the way around it."""
    with pytest.raises(CorruptMessageError, match="more than 0 deep"):
        decode(packed(0), room=1 << 16, limits=Limits(nesting=0))


# -- arguments


@pytest.mark.parametrize(
    ("at", "end"), [(-1, 10), (-(1 << 40), 1 << 40), (10, 5), (1 << 40, 1 << 41), (0, 60), (0, -1)]
)
def test_places_outside_the_data_give_nothing(at: int, end: int) -> None:
    """Whoever calls it with a wrong place gets that place back, and no memory of others."""
    columns = builder(GOOD, 10)

    assert at == read(GOOD, columns, at, end)
    assert not len(columns)


def test_columns_that_somebody_looks_at_do_not_move() -> None:
    """What is looked at would be foreign memory at once."""
    columns = builder(GOOD, 10)

    with memoryview(columns.key_ends), pytest.raises(BufferError):
        read(GOOD, columns)
    assert 0 == len(columns.timestamps) == len(columns.key_ends)


def test_any_bytes_are_safe_to_give() -> None:
    """Under right checksums, so that more than these is met."""
    source = random.Random(7)
    for _ in range(2000):
        packed_bytes = source.randbytes(source.randrange(60))
        data = wrapper(0, b"", source.choice([2, 3]), magic=source.randrange(2), compressed=packed_bytes)
        columns = builder(data, 0, room=source.choice([0, 30, 400]))
        assert 0 == read(data, columns)
        assert not len(columns)
