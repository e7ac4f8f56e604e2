"""The null sink's checksum."""

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from consumerd.sinks.base import Start
from consumerd.sinks.null import Checksum, NullSink
from tests.support.claims import StubClaim
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, Clock, SinkRig, run_of

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


async def test_sink_counts_over_claims(tmp_path: Path):
    """Two runs are compared by what they saw, not by who owned it when."""
    sink = NullSink(SinkRig(kind="null", path=tmp_path, clock=Clock()).context(), NullSink.Options())
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

    assert sink.count == 20
    assert sink.checksums[PARTITION].count == 20
