"""Memory that a caller gives for what is decompressed: where the batch stands in it, and that it decodes the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consumerd.errors import DecompressedTooLarge
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, Record, RecordBatch
from tests.support.record_sets import RecordSpec, batch, message, wrapper

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
