# SPDX-License-Identifier: Apache-2.0
"""Memory that a caller gives for what is decompressed: where the batch stands in it, and that it decodes the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, Record, RecordBatch
from tests.support.pure import without_kernel
from tests.support.record_sets import RecordSpec, batch, compress, message, record, wrapper

PARTITION = TopicPartition.modern("t", 0)
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
VALUE = b"a value that is repeated, " * 9

needs_kernel = pytest.mark.skipif(kernel.records is None or kernel.messages is None, reason="there is no kernel")


def decode(data: bytes, make_room: Callable[[], memoryview] | None = None, limit: int = 1 << 20) -> RecordBatch:
    return decode_record_set(
        data, partition=PARTITION, start=0, limits=Limits(decompressed_bytes=limit), make_room=make_room
    )


def packed_batch(base: int, codec: Codec) -> bytes:
    return batch(base, [RecordSpec(delta=delta, value=VALUE + bytes((delta,))) for delta in range(40)], codec=codec)


def packed_messages(base: int, codec: Codec) -> bytes:
    inner = b"".join(message(delta, VALUE + bytes((delta,)), magic=1) for delta in range(40))
    return wrapper(base + 39, inner, codec)


def plain_messages(base: int) -> bytes:
    return b"".join(message(base + delta, b"plain", magic=1) for delta in range(5))


def mixed_set() -> bytes:
    """Return units of both kinds, compressed with everything there is, plain ones between and at both ends."""
    pieces, base = [plain_messages(0)], 5
    for codec in CODECS:
        pieces.append(packed_batch(base, codec))
        base += 40
        if codec is not Codec.ZSTD:
            pieces.append(packed_messages(base, codec))
            base += 40
        pieces.append(plain_messages(base))
        base += 5
    return b"".join(pieces)


def records(found: RecordBatch) -> list[Record]:
    return list(found.records())


@pytest.mark.parametrize("size", [0, 1, 100, 9_000, 20_000, 80_000, 1 << 20])
def test_a_mixed_set_is_the_same_whatever_room_there_is(size: int) -> None:
    """Room is a guess: what does not fit into it, or hardly fills it, goes elsewhere, and nothing overwrites anything."""
    data = mixed_set()

    found = decode(data, lambda: memoryview(bytearray(size)))

    assert records(decode(data)) == records(found)
    assert found.next_offset == 5 + 7 * 40 + 4 * 5


@needs_kernel
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_stays_in_the_room_that_it_fills(codec: Codec) -> None:
    """Nothing is copied, nobody may write to it, and all of the room counts as held."""
    memory = bytearray(12_000)
    data = packed_batch(0, codec)

    found = decode(data, lambda: memoryview(memory))

    assert isinstance(found.buffer, memoryview)
    assert found.buffer.obj is memory
    assert found.buffer.readonly
    assert found.size_bytes > len(memory) > len(found.buffer)
    assert records(decode(data)) == records(found)


@needs_kernel
def test_a_batch_does_not_hold_room_that_it_hardly_fills() -> None:
    """What a stream says of its size may be far from it."""
    memory = bytearray(1 << 20)

    found = decode(packed_batch(0, Codec.SNAPPY), lambda: memoryview(memory))

    assert isinstance(found.buffer, bytes)
    assert found.size_bytes < 1 << 15


def test_no_room_is_made_for_what_is_not_compressed() -> None:
    """It stays where it was received."""
    found = decode(plain_messages(0), lambda: pytest.fail("nothing was to be decompressed"))

    assert [b"plain"] * 5 == [record.value for record in found.records()]


def test_room_does_not_raise_the_limit() -> None:
    """It may be larger than what may be decompressed."""
    with pytest.raises(DecompressedTooLarge):
        decode(packed_batch(0, Codec.SNAPPY), lambda: memoryview(bytearray(1 << 20)), limit=5_000)


def test_a_corrupt_unit_leaves_those_before_it_in_the_room() -> None:
    """It was decompressed behind them before its fault was found."""
    bad = wrapper(119, b"".join(message(delta, VALUE, magic=1) for delta in (1, 0)), Codec.SNAPPY)
    good = packed_messages(0, Codec.SNAPPY) + packed_batch(40, Codec.LZ4)

    found = decode(good + bad, lambda: memoryview(bytearray(40_000)))

    assert records(decode(good)) == records(found)
    assert found.next_offset == 80


def packed_run(codec: Codec) -> bytes:
    """Return batches with a plain one among them, one of another codec, and headers in the last."""
    last = [RecordSpec(delta=0, value=VALUE), RecordSpec(delta=1, value=VALUE, headers=[(b"key", b"value")])]
    return (
        b"".join(packed_batch(40 * number, codec) for number in range(5))
        + batch(200, [RecordSpec(delta=0, value=b"plain")])
        + packed_batch(201, Codec.ZSTD)
        + packed_batch(241, codec)
        + batch(281, last, codec=codec)
    )


@needs_kernel
@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])
def test_a_run_of_batches_is_read_at_once(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sees none of those that there is room for."""
    expected = records(decode(packed_run(codec)))
    seen = []
    read = record_batch.decompress

    def note(codec: int, data: Buffer, *, limit: int, magic: int, room: memoryview | None) -> bytes | memoryview:
        seen.append(codec)
        return read(codec, data, limit=limit, magic=magic, room=room)

    monkeypatch.setattr(record_batch, "decompress", note)

    found = decode(packed_run(codec), lambda: memoryview(bytearray(100_000)))

    assert records(found) == expected
    assert seen == [Codec.ZSTD]


@needs_kernel
@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])
def test_a_run_of_batches_is_the_same_whatever_room_there_is(codec: Codec) -> None:
    """It may end within any batch, and so may the limit."""
    data = packed_run(codec)
    expected = decode(data)
    step = len(expected.buffer) // 37

    for size in range(0, len(expected.buffer) + 2 * step, step):
        found = decode(data, lambda size=size: memoryview(bytearray(size)))  # type: ignore[misc]
        assert records(found) == records(expected)
        assert bytes(found.buffer) == bytes(expected.buffer)
        if size > 9_500:
            limited = decode(data, lambda: memoryview(bytearray(1 << 20)), limit=size)
            assert records(limited) == records(decode(data, limit=size))


@needs_kernel
@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])
def test_a_damaged_batch_ends_the_run_in_front_of_it(codec: Codec) -> None:
    """Its checksum tells, or what is compressed, or the records in that."""
    good = packed_batch(0, codec) + packed_batch(40, codec)
    value = [RecordSpec(delta=0, value=VALUE)]
    packed = compress(codec, record(value[0]))
    for bad in (
        packed_batch(80, codec)[:-1] + b"\xff",
        batch(80, value, codec=codec, compressed=packed[:-7] + bytes((packed[-7] ^ 1,)) + packed[-6:]),
        batch(80, value, codec=codec, compressed=packed[:20]),
        batch(80, value * 2, codec=codec),
        batch(80, value, codec=codec, count=2, last_delta=1),
        batch(39, value, codec=codec),
    ):
        data = good + bad + packed_batch(81, codec)
        with without_kernel():
            expected = decode(data)
        found = decode(data, lambda: memoryview(bytearray(40_000)))
        assert records(found) == records(expected)
        assert found.next_offset == expected.next_offset


@needs_kernel
@pytest.mark.parametrize("damaged", [packed_batch(5, Codec.SNAPPY), packed_messages(5, Codec.SNAPPY)])
def test_a_damaged_unit_behind_what_is_not_compressed_leaves_that_where_it_is(damaged: bytes) -> None:
    """Nothing is copied into the room before something comes to stand there."""
    data = plain_messages(0) + damaged[:-1] + bytes((damaged[-1] ^ 1,))

    found = decode(data, lambda: memoryview(bytearray(40_000)))

    assert found.buffer is data
    assert found.next_offset == 5


@needs_kernel
def test_a_head_that_claims_too_much_makes_nothing_larger() -> None:
    """Columns are made for no more rows than there is room for."""
    huge = batch(0, [RecordSpec(delta=0, value=VALUE)], codec=Codec.LZ4, count=(1 << 31) - 1, last_delta=(1 << 31) - 2)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessageError):
            decode(huge, lambda: memoryview(bytearray(40_000)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20
