# SPDX-License-Identifier: Apache-2.0
"""A batch that the target refuses is split into smaller ones with the same records."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from consumerd.mirror.outgoing import MirroredBatch
from consumerd.model import TopicPartition
from consumerd.wire.records import Limits
from tests.support import naive_records
from tests.support.record_batches import build_batch, record

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("clicks", 3)
SIZE = 1 << 20


def fill(times: list[int]) -> MirroredBatch:
    """Return a batch of records with every second offset."""
    source = build_batch(PARTITION, [record(2 * row, b"%d" % row) for row in range(len(times))])
    batch = MirroredBatch(codec=0, counts_bytes=False)
    source = replace(source, timestamps=array("q", times))
    assert len(times) == batch.add(source, 0, len(times), SIZE, arrival_ms=None)
    return batch


def read(batch: MirroredBatch) -> list[tuple[int, bytes | None]]:
    """Return timestamp and value of each record."""
    data = batch.content.seal((7, 0, 0), transactional=True)
    return [(row[1], row[4]) for row in naive_records.decode(data, 0, Limits()).rows]


def test_parts_have_the_same_records() -> None:
    """Each with its source offset."""
    parts = fill([5, 9, 1, 7, 3]).split()

    assert [[0, 2], [4, 6, 8]] == [list(one.offsets) for one in parts]
    assert [(5, b"0"), (9, b"1"), (1, b"2"), (7, b"3"), (3, b"4")] == [row for one in parts for row in read(one)]


def test_parts_are_more_where_times_are_too_far_apart() -> None:
    """All are near the whole batch's first time, and not near that of their part."""
    least, most = -(1 << 63), (1 << 63) - 1
    parts = fill([0, 0, least, most]).split()

    assert [[0, 2], [4], [6]] == [list(one.offsets) for one in parts]
    assert [(0, b"0"), (0, b"1"), (least, b"2"), (most, b"3")] == [row for one in parts for row in read(one)]
