# SPDX-License-Identifier: Apache-2.0
"""The null sink's checksum."""

import itertools
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.sinks.base import Start
from consumerd.sinks.null import Checksum, NullSink
from consumerd.wire import kernel
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.pure import without_kernel
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, SinkRig, run_of

pytestmark = pytest.mark.usefixtures("each_path")

NATIVE = kernel.fold
PAYLOAD = st.none() | st.binary(max_size=5)


def fold(rows: list[tuple[bytes | None, bytes | None]], cuts: list[int], framing: bytes = b"\x00") -> int:
    checksum = Checksum()
    records = [record(offset, value, key=key) for offset, (key, value) in enumerate(rows)]
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        checksum.add(build_batch(PARTITION, records[start:end], framing=framing))
    assert checksum.count == len(rows)
    return checksum.value


@given(st.lists(st.tuples(PAYLOAD, PAYLOAD), max_size=20), st.lists(st.integers(0, 20)), st.binary(max_size=3))
def test_framing_does_not_count(rows, cuts, framing):
    """Brokers convert, compress and cut the same records as they like."""
    assert fold(rows, cuts, framing) == fold(rows, [])


@given(st.lists(st.tuples(PAYLOAD, PAYLOAD), max_size=6), st.lists(st.tuples(PAYLOAD, PAYLOAD), max_size=6))
def test_different_records_differ(one, other):
    """Order, and where a key ends and a value begins, and null against empty."""
    assert (fold(one, []) == fold(other, [])) == (one == other)


def test_no_two_short_sequences_of_nulls_empty_and_short_fields_have_one_value() -> None:
    """CRCs are linear: of one over the streams' CRCs 351 of these 819 values fall together."""
    row = list(itertools.product((None, b"", b"a"), repeat=2))
    sequences = [list(rows) for count in (1, 2, 3) for rows in itertools.product(row, repeat=count)]

    assert len(sequences) == 819
    assert len({fold(rows, []) for rows in sequences}) == 819


def test_value_is_what_it_always_was() -> None:
    """Figures that were written down are compared with those of later versions."""
    rows = [(b"key", b"value"), (None, b""), (b"", None), (b"k" * 2000, b"v" * 40_000)] * 400
    assert fold(rows, [7, 600]) == 883628701746983879


LENGTH = st.one_of(st.integers(-1, 40), st.sampled_from([511, 512, 1023, 1024, 5000, 16_384, 20_000]))


@pytest.mark.skipif(NATIVE is None, reason="the native kernel is not built")
@given(st.lists(st.tuples(LENGTH, LENGTH), max_size=40), st.integers(1, 30))
def test_kernel_folds_as_python_does(lengths, times) -> None:
    """Short fields, long ones, and many: whatever is gathered on the way."""
    rows = [
        (None if k < 0 else b"k" * k, None if v < 0 else bytes(range(256)) * (v // 256) + b"v" * (v % 256))
        for k, v in lengths
    ]
    rows *= times
    native = fold(rows, [3])
    with without_kernel():
        assert fold(rows, [3]) == native


@pytest.mark.skipif(NATIVE is None, reason="the native kernel is not built")
@given(st.lists(st.integers(-3, 30), min_size=8, max_size=8), st.binary(max_size=20), st.integers(0, 3))
def test_kernel_leaves_to_python_what_is_no_span_of_the_buffer(numbers, buffer, missing) -> None:
    """Columns come from decoders, which may be wrong: nothing outside the buffer is read, and Python has its say."""
    columns = [array("q", numbers[at : at + 2]) for at in range(0, 8, 2)]
    del columns[missing][:missing]
    offsets = array("q", [0, 1])
    assert NATIVE is not None
    streams = NATIVE.fold(memoryview(buffer), offsets, *columns, [1, 2, 3, 4, 5])
    plain = all(
        len(starts) == len(ends) == 2
        and all((s < 0 and e < 0) or 0 <= s <= e <= len(buffer) for s, e in zip(starts, ends, strict=True))
        for starts, ends in (columns[:2], columns[2:])
    )
    assert (streams is not None) == plain


def test_views_are_folded_as_bytes_are() -> None:
    """A batch's buffer may be a part of what was received."""
    batch = build_batch(PARTITION, [record(0, b"value", key=b"key"), record(1, None)])
    one, other = Checksum(), Checksum()
    one.add(batch)
    other.add(replace(batch, buffer=memoryview(b"..." + bytes(batch.buffer))[3:]))
    assert one.value == other.value


async def test_sink_counts_over_claims(tmp_path: Path):
    """Two runs are compared by what they saw, not by who owned it when."""
    sink = NullSink(SinkRig(kind="null", path=tmp_path, clock=ManualClock()).context(), NullSink.Options())
    for start, size in ((0, 8), (10, 80_000)):
        writer = await sink.open(StubClaim(PARTITION))
        assert writer.resume_position is None
        await writer.start(Start(position=start, reason="committed"))
        assert await writer.write(run_of(start, start + 10, size=size)) == start + 10
        assert await writer.write(run_of(start, start + 10, size=size)) == start + 10
        assert await writer.flush() == start + 10
        assert writer.deadline() is None
        await writer.abandon()
    await sink.close()

    assert sink.checksums[PARTITION].count == 20
