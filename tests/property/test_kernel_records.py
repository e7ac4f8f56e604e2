# SPDX-License-Identifier: Apache-2.0
"""The kernel and the pure Python readers give the same for any record set, valid or not, down to the words of an error."""

from __future__ import annotations

import functools
import json
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.modern.slices import cut_record_set
from consumerd.wire.records import Limits
from tests.property.test_records_decoding import MAYBE, mend, units
from tests.support.pure import without_kernel
from tests.support.record_sets import RecordSpec, batch, record

pytestmark = [pytest.mark.skipif(kernel.records is None, reason="there is no kernel"), pytest.mark.records]

VECTORS = Path(__file__).parents[1] / "vectors" / "records"
PARTITION = TopicPartition.modern("t", 0)
LIMITS = Limits(decompressed_bytes=1 << 21, nesting=2)
CONTROL, TRANSACTIONAL, LOG_APPEND_TIME = 0x20, 0x10, 8
INTERESTING = (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def outcome(
    data: Buffer,
    start: int,
    aborted: list[AbortedTransaction] | None,
    following: bytes,
    *,
    room: int | None = None,
    limits: Limits = LIMITS,
) -> tuple[object, ...]:
    """Return all that decoding gives, or all that its error says; the last is what the batch holds in memory."""
    try:
        found = decode_record_set(
            data,
            partition=PARTITION,
            start=start,
            limits=limits,
            read_committed=aborted is not None,
            aborted=aborted,
            following=following,
            attested=bool(following),
            make_room=None if room is None else lambda: memoryview(bytearray(room)),
        )
    except CorruptMessageError as error:
        return type(error), str(error), error.partition, error.offset, error.next_offset, error.raw, 0
    return (
        *(found.start, found.next_offset, bytes(found.buffer), found.offsets, found.timestamps, found.timestamp_types),
        *(found.key_starts, found.key_ends, found.value_starts, found.value_ends, found.header_starts),
        *(found.header_ends, found.indexes, found.gaps, found.size_bytes),
    )


def check(data: bytes, start: int, aborted: list[AbortedTransaction] | None = None, following: bytes = b"") -> None:
    with without_kernel():
        expected = outcome(data, start, aborted, following)
    assert expected == outcome(data, start, aborted, following)
    padded = b"\0" + data + b"\0"
    assert expected == outcome(memoryview(padded)[1:-1], start, aborted, following)
    for room in (1 << 21, 1 << 16, 300, 90):
        assert expected[:-1] == outcome(data, start, aborted, following, room=room)[:-1]
    few = Limits(decompressed_bytes=250, nesting=2)
    with without_kernel():
        expected = outcome(data, start, aborted, following, limits=few)
    assert expected[:-1] == outcome(data, start, aborted, following, limits=few, room=1 << 16)[:-1]


@functools.cache
def recorded_sets() -> list[tuple[bytes, int]]:
    """Return what real brokers answered, and where it was fetched."""
    cases = (case for path in VECTORS.glob("kafka-*.json") for case in json.loads(path.read_text())["cases"])
    return [(bytes.fromhex(case["record_set_hex"]), case["start"]) for case in cases]


def damage(data: bytes, places: list[tuple[int, int]], *, mended: bool) -> bytes:
    damaged = bytearray(data)
    for place, byte in places:
        if damaged:
            damaged[place % len(damaged)] = byte
    if mended:
        mend(damaged)
    return bytes(damaged)


PLACES = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(INTERESTING) | st.integers(0, 255)), min_size=1, max_size=3
)


@settings(max_examples=150, deadline=None)
@given(one=st.integers(0), other=st.integers(0), places=PLACES, mended=st.booleans(), cut=st.integers(0, 300))
def test_they_agree_on_what_real_brokers_sent_damaged_or_not(
    one: int, other: int, places: list[tuple[int, int]], mended: bool, cut: int
) -> None:
    """Every codec and format; whole, cut off, with bytes changed, and with another set behind it."""
    sets = recorded_sets()
    data, start = sets[one % len(sets)]
    damaged = damage(data, places, mended=mended)

    check(data[: len(data) - cut], start)
    check(damaged, start)
    check(damaged + sets[other % len(sets)][0], start)


@settings(max_examples=150, deadline=None)
@given(data=units(), places=PLACES, mended=st.booleans(), ahead=st.integers(-60, 60), following=st.integers(0, 300))
def test_they_agree_on_sets_of_every_shape(
    data: bytes, places: list[tuple[int, int]], mended: bool, ahead: int, following: int
) -> None:
    """Fetched from within, too, and in pieces."""
    (first,) = struct.unpack_from(">q", data)
    damaged = damage(data, places, mended=mended)
    cut = max(0, len(data) - following)

    check(data, max(0, first + ahead))
    check(data[:cut], first, following=data[cut:])
    check(damaged, max(0, first + ahead))
    check(damaged[:cut], max(0, first), following=damaged[cut:])


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a run of batches, most of them plain; and where each has its records."""
    data = b""
    records = []
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 5))):
        flags = draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME, TRANSACTIONAL, TRANSACTIONAL | CONTROL, 0x40]))
        step = draw(st.sampled_from([1, 1, 1, 3]))
        count = draw(st.integers(1, 1 if flags & CONTROL else 24))
        specs = [
            RecordSpec(
                delta=step * row,
                key=draw(MAYBE),
                value=draw(MAYBE),
                timestamp_delta=draw(st.sampled_from([0, row, -row, 9000, 1 << 40])),
                headers=draw(st.lists(st.tuples(st.binary(max_size=3), MAYBE), max_size=2)) if row % 7 == 3 else (),
            )
            for row in range(count)
        ]
        encoded = b"".join(map(record, specs))
        made = batch(
            offset,
            specs,
            attributes=flags,
            codec=draw(st.sampled_from([0, 0, 0, 2, 3, 3])),
            base_timestamp=draw(st.sampled_from([0, 1_700_000_000_000, (1 << 63) - 9000])),
            max_timestamp=draw(st.integers(-1, 1 << 50)),
            producer_id=draw(st.integers(0, 2)) if flags & TRANSACTIONAL else -1,
            last_delta=specs[-1].delta + draw(st.sampled_from([0, 0, 0, 2])),
        )
        records.append((len(data) + 61, min(len(encoded), len(made) - 61)))
        data += made
        offset = offset + specs[-1].delta + draw(st.sampled_from([1, 1, 1, 1, 0, 4]))
    return data, records


@settings(max_examples=200, deadline=None)
@given(
    made=batches(),
    where=st.integers(0),
    place=st.integers(0, 40),
    byte=st.sampled_from(INTERESTING),
    start=st.integers(0, 100),
    aborted=st.none() | st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200)), max_size=2),
)
def test_they_agree_on_records_with_a_byte_changed_under_a_right_checksum(
    made: tuple[bytes, list[tuple[int, int]]],
    where: int,
    place: int,
    byte: int,
    start: int,
    aborted: list[tuple[int, int]] | None,
) -> None:
    """What a broken producer wrote is found by neither or by both; aborted transactions are left out by both."""
    data, records = made
    at, size = records[where % len(records)]
    changed = damage(data, [(at + place % max(size, 1), byte)], mended=True)
    transactions = None if aborted is None else [AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted]

    check(data, start, transactions)
    check(changed, start, transactions)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), magic=st.integers(0, 3), start=st.integers(0, 5), mended=st.booleans())
def test_they_agree_on_any_bytes(data: bytes, magic: int, start: int, mended: bool) -> None:
    """With a plausible head, so that more than sizes is met."""
    framed = bytearray(struct.pack(">qiiB", start, len(data) + 5, 0, magic) + data)
    if mended:
        mend(framed)

    check(data, start)
    check(bytes(framed), start)


@settings(max_examples=200, deadline=None)
@given(
    data=units() | st.binary(max_size=300),
    places=PLACES,
    slice_bytes=st.integers(1, 3000),
    expansion=st.none() | st.floats(1, 20),
    cut=st.integers(0, 60),
)
def test_they_cut_any_bytes_alike(
    data: bytes, places: list[tuple[int, int]], slice_bytes: int, expansion: float | None, cut: int
) -> None:
    """Pieces are what is reserved, asked for and decoded by."""
    for each in (data[: max(0, len(data) - cut)], damage(data, places, mended=False)):
        with without_kernel():
            expected = cut_record_set(each, slice_bytes=slice_bytes, expansion=expansion)
        assert expected == cut_record_set(each, slice_bytes=slice_bytes, expansion=expansion)
        assert expected == cut_record_set(memoryview(each), slice_bytes=slice_bytes, expansion=expansion)


def test_they_agree_on_much_that_changes_from_record_to_record() -> None:
    """Lengths of one to three bytes, keys and headers now and then, in many batches at once."""
    rng = random.Random(11)
    data, offset = b"", 0
    for count in (1, 700, 3, 9000, 60):
        specs = [
            RecordSpec(
                delta=row,
                key=rng.choice([None, b"", b"k", b"k" * 70]),
                value=rng.choice([None, b"", b"v" * rng.randrange(200), b"v" * 20000 if row % 500 == 0 else b"w"]),
                timestamp_delta=rng.choice([0, row, 1 << rng.randrange(40)]),
                headers=[(b"h", rng.choice([None, b"x" * 70]))] if rng.random() < 0.01 else (),
            )
            for row in range(count)
        ]
        data += batch(offset, specs, base_timestamp=1_700_000_000_000)
        offset += count

    for start in (0, 5, 705, offset):
        check(data, start)
    for cut in (1, 100, 5000):
        check(data[:-cut], 0)
