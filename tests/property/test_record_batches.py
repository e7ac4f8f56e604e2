# SPDX-License-Identifier: Apache-2.0
"""Records and gaps of a batch cover its offsets, whatever is cut off or left out, for offsets of records and of bytes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from consumerd.model import BrokerId, Gap, GapReason, PartitionKey, TopicPartition
from consumerd.sinks.lines import encode_lines
from consumerd.wire.records import Record, RecordBatch
from tests.support.pure import without_kernel
from tests.support.record_batches import build_batch, record

MODERN = TopicPartition.modern("orders", 3)
LEGACY = TopicPartition("clicks", PartitionKey(3, BrokerId(0)))


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    """Batches of records and gaps; with byte offsets, compressed messages hold several records at one offset."""
    counts_bytes = draw(st.booleans())
    messages = st.integers(26, 90) if counts_bytes else st.just(1)
    records_of_a_message = st.integers(1, 3) if counts_bytes else st.just(1)
    start = position = draw(st.integers(0, 1 << 40))
    rows: list[Record] = []
    next_offsets: list[int] = []
    gaps: list[Gap] = []
    for is_gap in draw(st.lists(st.booleans(), max_size=8)):
        end = position + draw(st.integers(1, 100) if is_gap else messages)
        if is_gap:
            gaps.append(Gap(position, end, GapReason.CORRUPT))
        else:
            for index in range(draw(records_of_a_message)):
                rows.append(record(position, b"%d" % index, index=index))
                next_offsets.append(end)
        position = end
    return build_batch(
        LEGACY if counts_bytes else MODERN,
        rows,
        start=start,
        next_offset=position,
        gaps=gaps,
        next_offsets=next_offsets if counts_bytes else (),
    )


def check_covered(batch: RecordBatch) -> None:
    """Check that each offset belongs to one record, the records that share its offset, or one gap."""
    records = {(offset, batch.following(row)) for row, offset in enumerate(batch.offsets)}
    position = batch.start
    for start, end in sorted([*records, *((gap.start, gap.end) for gap in batch.gaps)]):
        assert position == start
        assert start < end
        position = end
    assert batch.next_offset == position


@given(batches())
def test_each_form_of_a_batch_says_the_same_offset_after_a_record(batch: RecordBatch) -> None:
    """Lines and Arrow's columns have it for many records at once."""
    count = len(batch)
    expected = [batch.following(row) for row in range(count)]
    check_covered(batch)

    assert max(expected, default=batch.start) <= batch.next_offset
    assert expected == list(batch.list_following(slice(0, count)))
    assert expected == batch.to_arrow().column("next_offset").to_pylist()
    lines = b"".join(encode_lines(batch))
    assert expected == [json.loads(line)["next_offset"] for line in lines.splitlines()]
    with without_kernel():
        assert lines == b"".join(encode_lines(batch))


@given(batches(), st.data())
def test_records_that_are_left_out_leave_no_offset_unexplained(batch: RecordBatch, data: st.DataObject) -> None:
    """A gap of one offset would leave the other bytes of a message unexplained."""
    while len(batch):
        row = data.draw(st.integers(0, len(batch) - 1))
        batch = batch.without(row, GapReason.SKIPPED)
        check_covered(batch)

    assert sum(gap.end - gap.start for gap in batch.gaps) == batch.next_offset - batch.start


@given(batches(), st.data())
def test_a_part_of_a_batch_has_the_offsets_of_its_records(batch: RecordBatch, data: st.DataObject) -> None:
    """A batch too large for one Arrow column is halved, and its last record is not the last of the log."""
    count = len(batch)
    row = data.draw(st.integers(0, count))
    expected = list(batch.list_following(slice(0, count)))
    parts = [batch.rows(0, row), batch.rows(row, count)]

    assert expected == [part.following(at) for part in parts for at in range(len(part))]
    bounds = sorted({batch.start, *batch.offsets, *expected, *(gap.end for gap in batch.gaps)})
    offset = data.draw(st.sampled_from(bounds))
    for part in (batch.slice_to(offset), batch.slice_from(offset)):
        check_covered(part)
    rest = batch.slice_from(offset)
    assert expected[count - len(rest) :] == list(rest.list_following(slice(0, len(rest))))
