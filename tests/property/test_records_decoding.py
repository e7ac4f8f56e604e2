# SPDX-License-Identifier: Apache-2.0
"""Record sets of all shapes, whole and damaged: the fast decoder says what the naive one says, and explains each offset."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.modern.extent import find_stop
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, RecordBatch
from tests.support import naive_records
from tests.support.naive_records import Row
from tests.support.record_sets import RecordSpec, batch, message, wrapper

pytestmark = [pytest.mark.usefixtures("each_path"), pytest.mark.records]

PARTITION = TopicPartition.modern("t", 0)
LIMITS = Limits(decompressed_bytes=1 << 20, nesting=2)
MAYBE = st.none() | st.binary(max_size=80)


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values, many of them of the same lengths: what the fast readers look for."""
    shapes = st.tuples(st.integers(1, 40), st.integers(-1, 70), st.integers(-1, 70))
    records: list[tuple[bytes | None, bytes | None]] = []
    for count, key, value in draw(st.lists(shapes, min_size=1, max_size=4)):
        pair = (None if key < 0 else b"k" * key, None if value < 0 else b"v" * value)
        records += [pair] * count
    return records


def rows_of(batch: RecordBatch) -> list[Row]:
    return [
        (one.offset, one.timestamp, int(one.timestamp_type), one.key, one.value, one.headers) for one in batch.records()
    ]


def disputed(data: bytes, start: int, is_faulty: bool) -> bool:
    """Tell whether the heads of the units contradict each other: which is wrong is not for the naive decoder to say.

    They do not ascend (nor does a wrapper's last message from what is behind it), or one begins at ``start`` or before behind one
    that cannot be read.
    """
    claims = naive_records.claims(data, LIMITS)
    falls = any(last <= before for (_, before), (_, last) in pairwise(claims))
    return falls or (is_faulty and any(first is None or first <= start for first, _ in claims[1:]))


def check(data: bytes, start: int) -> None:
    """Hold the decoder against the naive one, and its batch against what a batch promises; where the offsets in heads
    contradict each other, the latter alone.
    """
    expected = naive_records.decode(data, start, LIMITS)
    try:
        decoded = decode_record_set(data, partition=PARTITION, start=start, limits=LIMITS)
    except CorruptMessageError as error:
        fault: CorruptMessageError | None = error
    else:
        fault = None
    is_disputed = disputed(data, start, expected.faulty)
    assert is_disputed or expected.faulty == (fault is not None)
    if fault is not None:
        assert (PARTITION, True) == (fault.partition, fault.offset is not None)
        assert fault.next_offset is None or fault.next_offset > start
        assert fault.raw in data
        return
    if not is_disputed:
        assert expected.rows == rows_of(decoded)
        assert expected.next_offset == decoded.next_offset
    explained = sorted([*decoded.offsets, *(offset for gap in decoded.gaps for offset in (gap.start, gap.end))])
    assert len(decoded) + sum(gap.end - gap.start for gap in decoded.gaps) == decoded.next_offset - start
    assert not explained or (start == explained[0] and explained[-1] in (decoded.next_offset, decoded.next_offset - 1))
    size = find_stop(data, 0)
    assert size is None or size > 12
    table = decoded.to_arrow()
    assert decoded.values() == table.column("value").to_pylist()
    assert decoded.keys() == table.column("key").to_pylist()


@st.composite
def units(draw: st.DrawFn) -> bytes:
    """Return a record set of any magics and codecs, its offsets ascending."""
    data = b""
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 3))):
        offset += draw(st.sampled_from([0, 0, 1, 50]))
        magic = draw(st.integers(0, 2))
        pairs = draw(alike())
        codec = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4] if magic == 2 else [0, 0, 1, 2, 3]))
        steps = [draw(st.sampled_from([1, 1, 1, 1, 2, 9]))] * len(pairs)
        deltas = [sum(steps[:row]) for row in range(len(pairs))]
        pace = draw(st.sampled_from([0, 1, 40, 9000]))
        flags = draw(st.sampled_from([0, 0, 8]))
        if magic == 2:
            headers = draw(st.lists(st.tuples(st.binary(max_size=3), MAYBE), max_size=2))
            specs = [
                RecordSpec(
                    delta=delta,
                    key=key,
                    value=value,
                    timestamp_delta=row * pace // 7,
                    headers=headers if row == 9 else (),
                )
                for row, (delta, (key, value)) in enumerate(zip(deltas, pairs, strict=True))
            ]
            data += batch(offset, specs, codec=codec, attributes=flags, base_timestamp=draw(st.integers(-1, 1 << 41)))
        else:
            first = offset if magic == 0 or not codec else 0
            inner = b"".join(
                message(
                    first + delta, value, key=key, magic=magic, timestamp=row * pace, attributes=0 if codec else flags
                )
                for row, (delta, (key, value)) in enumerate(zip(deltas, pairs, strict=True))
            )
            data += wrapper(offset + deltas[-1], inner, codec, magic=magic, attributes=flags) if codec else inner
        offset += deltas[-1] + 1
    return data


@settings(max_examples=150, deadline=None)
@given(data=units(), start=st.integers(0, 60), cut=st.integers(0, 200))
def test_whole_and_cut_sets_are_read_as_the_naive_decoder_reads_them(data: bytes, start: int, cut: int) -> None:
    """From the first offset, from within, and with the end missing."""
    (first,) = struct.unpack_from(">q", data)

    check(data, max(0, first))
    check(data, first + start)
    check(data[: len(data) - cut], max(0, first - start))


def mend(data: bytearray) -> None:
    """Put right checksums over what was damaged, so that it is not found by them."""
    at = 0
    while at + 17 <= len(data):
        (size,) = struct.unpack_from(">i", data, at + 8)
        stop = at + 12 + size
        if size < 14 or stop > len(data):
            return
        if data[at + 16] == 2 and size >= 21:
            data[at + 17 : at + 21] = struct.pack(">I", crc32c(bytes(data[at + 21 : stop])))
        elif data[at + 16] < 2:
            data[at + 12 : at + 16] = struct.pack(">I", crc32(bytes(data[at + 16 : stop])))
        at = stop


@settings(max_examples=200, deadline=None)
@given(
    data=units(),
    damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=3),
    mended=st.booleans(),
)
@example(
    data=wrapper(257, message(257, b"", key=b"", magic=0), 3, magic=0) + message(258, b"", key=b"", magic=0),
    damage=[(37, 1)],
    mended=True,
).via("a message in a wrapper, damaged upwards beyond what is behind the wrapper")
def test_damaged_sets_are_read_as_the_naive_decoder_reads_them(
    data: bytes, damage: list[tuple[int, int]], mended: bool
) -> None:
    """With right checksums, too: what a broken producer wrote must not be read in two ways."""
    damaged = bytearray(data)
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    if mended:
        mend(damaged)
    (first,) = struct.unpack_from(">q", data)

    check(bytes(damaged), first)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), magic=st.integers(0, 3), start=st.integers(0, 5))
@example(data=b"", magic=0, start=0)
def test_any_bytes_give_a_batch_or_a_corrupt_message(data: bytes, magic: int, start: int) -> None:
    """Nothing else comes out; with a plausible head, so that more than sizes is met."""
    check(data, start)
    framed = bytearray(struct.pack(">qiiB", start, len(data) + 5, 0, magic) + data)
    mend(framed)
    check(bytes(framed), start)


@settings(max_examples=30, deadline=None)
@given(pairs=alike(), fraction=st.floats(0, 1))
def test_slices_agree_with_decoding_from_there(pairs: list[tuple[bytes | None, bytes | None]], fraction: float) -> None:
    """Dropping what is below an offset is the same before and after."""
    data = batch(0, [RecordSpec(delta=2 * row, key=key, value=value) for row, (key, value) in enumerate(pairs)])
    whole = decode_record_set(data, partition=PARTITION, start=0)
    offset = int(whole.next_offset * fraction)

    rest = decode_record_set(data, partition=PARTITION, start=offset)

    assert rows_of(rest) == rows_of(whole.slice_from(offset))
    assert rest.gaps == whole.slice_from(offset).gaps


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("byte", [0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
def test_each_byte_of_a_records_head_counts(place: int, byte: int) -> None:
    """In a row of equal records one has another byte in its head: the row must end there, or the set be corrupt."""
    for value in (b"", b"v" * 5, b"v" * 90):
        for row in (1, 9, 30):
            specs = [RecordSpec(delta=number, value=value, timestamp_delta=100 * (number > 3)) for number in range(40)]
            whole = bytearray(batch(0, specs))
            stride = (len(whole) - 61) // 40
            whole[min(61 + row * stride + place, len(whole) - 1)] = byte
            mend(whole)
            check(bytes(whole), 0)
