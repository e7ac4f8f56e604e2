# SPDX-License-Identifier: Apache-2.0
"""The native encoder of records against the Python one: the same bytes, or left to it; and no byte outside of a buffer."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumerd.errors import LocalProtocolError
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.modern.building import ProducerBatch, build_record_set, encode_headers
from consumerd.wire.records import NewRecord, RecordBatch
from tests.support.pure import without_kernel
from tests.support.record_batches import build_batch, record

pytestmark = pytest.mark.skipif(kernel.building is None, reason="there is no kernel")

PARTITION = TopicPartition.modern("t", 0)
LEAST, MOST = -(1 << 63), (1 << 63) - 1
# around the lengths at which varints get another byte: 64, 8192 and 1048576, of fields and of whole records
SIZES = st.one_of(st.integers(0, 130), st.integers(8150, 8200), st.sampled_from([1_048_556, 1_048_576]))
FIELDS = st.one_of(st.none(), SIZES.map(lambda size: b"f" * size))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
HEADERS = st.lists(st.tuples(NAMES, st.one_of(st.none(), st.binary(max_size=70))), max_size=3).map(tuple)
TIMES = st.one_of(
    st.integers(-70, 70), st.integers(0, 1 << 45), st.integers(LEAST, MOST), st.sampled_from([LEAST, -1, 0, MOST])
)


def native() -> kernel.BuildingKernel:
    assert kernel.building is not None
    return kernel.building


def reader() -> kernel.RecordsKernel:
    assert kernel.records is not None
    return kernel.records


@settings(deadline=None)
@given(
    st.lists(st.builds(NewRecord, key=FIELDS, value=FIELDS, timestamp=TIMES, headers=HEADERS), min_size=1, max_size=6)
)
@example([NewRecord(value=b"", timestamp=LEAST), NewRecord(value=b"", timestamp=-1)])
@example([NewRecord(value=b"", timestamp=0), NewRecord(value=b"", timestamp=LEAST)])
@example([NewRecord(value=b"", timestamp=1), NewRecord(value=b"", timestamp=LEAST)])
@example([NewRecord(value=b"v", timestamp=row) for row in range(9000)])
def test_new_records_are_the_same(records: list[NewRecord]) -> None:
    """Byte by byte, up to times that differ by the most that a batch can hold."""
    base = records[0].timestamp
    fits = all(LEAST <= one.timestamp - base <= MOST for one in records)

    assert fits == (native().encode_records(records, encode_headers) is not None)
    if not fits:
        with pytest.raises(LocalProtocolError, match="from that of the batch's first record"):
            build_record_set(records, magic=2)
        return
    with without_kernel():
        expected = build_record_set(records, magic=2, base_offset=7)
    assert expected == build_record_set(records, magic=2, base_offset=7)


@pytest.mark.parametrize(
    "odd",
    [
        NewRecord(value=bytearray(b"v")),  # type: ignore[arg-type]  # what a hook may return
        NewRecord(key=memoryview(b"k"), value=None),  # type: ignore[arg-type]
        NewRecord(value=b"", timestamp=1 << 63),
        NewRecord(value=b"", timestamp=True),
        NewRecord(value=b"", timestamp=None),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_plain_record_is_left_to_python(odd: NewRecord) -> None:
    """At any place; Python encodes it, or says what is wrong."""
    plain = NewRecord(value=b"plain", timestamp=5)

    for records in ([odd], [plain, odd], (odd, plain)):
        assert native().encode_records(records, encode_headers) is None


def test_an_exception_of_the_headers_is_passed_on() -> None:
    """A lone surrogate cannot be encoded, with and without the kernel."""
    records = [NewRecord(value=b"v"), NewRecord(value=b"v", headers=(("\ud800", b""),))]

    with pytest.raises(UnicodeEncodeError):
        native().encode_records(records, encode_headers)
    assert native().encode_records(records, lambda _: None) is None  # type: ignore[arg-type, return-value]
    assert native().encode_records([], encode_headers) is None


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    """Batches of any records, also of one that nothing fits beside."""
    headers = HEADERS if draw(st.booleans()) else st.just(())
    count = draw(st.integers(1, 8))
    rows = [record(offset, draw(FIELDS), key=draw(FIELDS), headers=draw(headers)) for offset in range(count)]
    batch = build_batch(PARTITION, rows, framing=draw(st.sampled_from([b"", b"\xff\x00"])))
    times = TIMES if draw(st.booleans()) else st.integers(0, 1 << 41)
    buffer = draw(st.sampled_from([bytes, bytearray, memoryview]))(batch.buffer)
    return replace(batch, timestamps=array("q", [draw(times) for _ in rows]), buffer=buffer)


def cut(batch: RecordBatch, cuts: list[int], size: int) -> list[bytes]:
    """Return the records in batches of a size, as they come in parts."""
    batches = [ProducerBatch()]
    for begin, end in pairwise([0, *cuts, len(batch)]):
        row = begin
        while row < end:
            row = batches[-1].add_columns(batch, row, end, room=size - batches[-1].size)
            if row < end:
                batches.append(ProducerBatch())
    return [one.seal((7, 1, 3), transactional=True) for one in batches]


@settings(deadline=None)
@given(
    batches(),
    st.lists(st.integers(0, 8), max_size=3),
    st.one_of(st.integers(-5, 700), st.integers(0, 20_000), st.just(10_000_000)),
)
def test_rows_are_the_same_wherever_they_are_cut(batch: RecordBatch, cuts: list[int], size: int) -> None:
    """Batch by batch, byte by byte."""
    cuts = sorted(min(cut, len(batch)) for cut in cuts)
    with without_kernel():
        expected = cut(batch, cuts, size)

    assert expected == cut(batch, cuts, size)


@settings(deadline=None)
@given(
    st.lists(st.builds(NewRecord, key=FIELDS, value=FIELDS, timestamp=TIMES, headers=HEADERS), min_size=1, max_size=6)
)
def test_rows_are_encoded_as_new_records_are(records: list[NewRecord]) -> None:
    """Up to the first one whose time is too far from the first one's; and the batch says the greatest time of them."""
    rows = [record(row, one.value, key=one.key, headers=one.headers) for row, one in enumerate(records)]
    source = replace(build_batch(PARTITION, rows), timestamps=array("q", [one.timestamp for one in records]))
    grown = ProducerBatch()

    stop = grown.add_columns(source, 0, len(records))

    assert build_record_set(records[:stop], magic=2) == grown.seal((-1, -1, -1), transactional=False)
    assert stop == len(records) or not LEAST <= records[stop].timestamp - records[0].timestamp <= MOST


@settings(deadline=None)
@given(batches(), st.data())
def test_damaged_headers_are_found_in_the_same_row(batch: RecordBatch, data: st.DataObject) -> None:
    """Any byte of them: both read the same lists, and refuse the same."""
    damaged = bytearray(batch.buffer)
    for start, end in zip(batch.header_starts, batch.header_ends, strict=True):
        if end > start >= 0 and data.draw(st.booleans()):
            damaged[data.draw(st.integers(start, end - 1))] = data.draw(st.integers(0, 255))
    batch = replace(batch, buffer=bytes(damaged))
    with without_kernel():
        expected = batch.find_unreadable()

    assert expected == batch.find_unreadable()


PLACES = st.one_of(st.integers(-2, 40), st.integers(LEAST, MOST), st.sampled_from([LEAST, -1, 0, MOST]))


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=40),
    st.lists(st.lists(PLACES, max_size=4), min_size=7, max_size=7),
    st.integers(-2, 6),
    st.integers(-2, 6),
    st.one_of(st.integers(-1, 2), st.sampled_from([(1 << 31) - 2, (1 << 31) - 1, 1 << 31, LEAST, MOST])),
    PLACES,
    st.one_of(st.integers(-100, 100), st.sampled_from([LEAST, MOST])),
)
@example(b"abc", [[0, 0], [-1, -1], [-1, -1], [0, 0], [3, 3], [-1, -1], [-1, -1]], 0, 2, 0, 0, 19)
@example(b"abc", [[0, 0], [-1, -1], [-1, -1], [0, 0], [3, 3], [-1, -1], [-1, -1]], 0, 2, 0, 0, 18)
@example(b"abc", [[0], [-1], [-1], [0], [3], [-1], [-1]], 0, 1, 1, 0, 5)
@example(b"abc", [[0, 0], [-1, -1], [-1, -1], [0, 0], [3, 3], [-1, -1], [-1, -1]], 0, 2, (1 << 31) - 1, 0, 99)
@example(b"abc", [[MOST], [-1], [-1], [0], [3], [-1], [-1]], 0, 1, 0, -1, 99)
@example(b"abc", [[0], [0], [4], [-1], [-1], [-1], [-1]], 0, 1, 0, 0, 100)
@example(b"abc", [[0], [-1], [-1], [2], [1], [-1], [-1]], 0, 1, 0, 0, 100)
@example(b"ab\0", [[0], [3], [3], [-1], [-1], [2], [4]], 0, 1, 0, 0, 100)
def test_nothing_outside_of_the_buffer_is_read(
    buffer: bytes, numbers: list[list[int]], row: int, end: int, first_delta: int, base: int, most: int
) -> None:
    """Whatever the columns say, and however long they are; the sanitizers watch this one."""
    times, key_starts, key_ends, value_starts, value_ends, header_starts, header_ends = (
        array("q", column) for column in numbers
    )
    columns = (times, key_starts, key_ends, value_starts, value_ends)

    unreadable = reader().find_unreadable(buffer, header_starts, header_ends)
    found = native().encode_rows(buffer, columns, (header_starts, header_ends), row, end, first_delta, base, most)

    assert (unreadable is None) == (len(header_starts) != len(header_ends))
    assert unreadable is None or 0 <= unreadable <= len(header_starts)
    if unreadable is not None:
        assert are_within(buffer, header_starts[:unreadable], header_ends[:unreadable])
    if found is None:
        return
    encoded, stop, max_timestamp = found
    assert 0 <= row <= stop <= end <= min(map(len, (*columns, header_starts, header_ends)))
    assert len(encoded) <= max(most, 0) or (stop == row + 1 and first_delta == 0)
    assert max(times[row:stop], default=LEAST) == max_timestamp
    assert all(LEAST <= time - base <= MOST for time in times[row:stop])
    assert stop == row or 0 <= first_delta <= first_delta + stop - 1 - row < 1 << 31
    for starts, ends in ((key_starts, key_ends), (value_starts, value_ends), (header_starts, header_ends)):
        assert are_within(buffer, starts[row:stop], ends[row:stop])


def are_within(buffer: bytes, starts: array[int], ends: array[int]) -> bool:
    """Return whether all spans lie in the buffer."""
    return all(start < 0 or start <= stop <= len(buffer) for start, stop in zip(starts, ends, strict=True))


@pytest.mark.parametrize("first_delta", [-1, 1 << 31])
def test_an_offset_delta_that_fits_no_field_is_declined(first_delta: int) -> None:
    """Deltas are numbers of 32 bits that begin with 0."""
    zero, null = array("q", [0]), array("q", [-1])
    columns = (zero, null, null, null, null)

    assert native().encode_rows(b"", columns, None, 0, 1, first_delta, 0, 100) is None
    assert native().encode_rows(b"", columns, None, 0, 1, (1 << 31) - 1, 0, 100) is not None
