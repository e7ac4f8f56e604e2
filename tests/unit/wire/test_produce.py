# SPDX-License-Identifier: Apache-2.0
"""What is known of a Produce request before it is read."""

from __future__ import annotations

import pytest

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic, count_parts
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import HEADER_CODEC
from tests.support.frames import load_frames


def test_parts_are_counted_as_the_codec_reads_them() -> None:
    """Of every Produce request that real clients have sent."""
    recorded = [one for one in load_frames() if one.api is ApiKey.PRODUCE]
    assert {one.version for one in recorded} >= {0, 2, 3}
    for one in recorded:
        frame = memoryview(one.request)[4:]
        _, at = HEADER_CODEC.read(frame, 0, len(frame))
        request = compile_codec(ProduceRequest, one.version).decode(frame[at:])
        parts = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
        assert parts == count_parts(frame[at:], one.version, most=100)


@pytest.mark.parametrize("version", [2, 3])
def test_counting_ends_at_the_limit_and_at_damage(version: int) -> None:
    """It must not cost what it is to spare, whatever the bytes."""
    part = ProducePartition(partition=0, record_set=None)
    topics = tuple(ProduceTopic(topic=f"t{number}", partitions=(part,) * 9) for number in range(10))
    whole = compile_codec(ProduceRequest, version).encode(ProduceRequest(acks=1, timeout_ms=0, topics=topics))

    assert [100, 100, 96, 1] == [count_parts(memoryview(whole), version, most=most) for most in (200, 100, 95, 0)]
    counts = [count_parts(memoryview(whole)[:end], version, most=200) for end in range(len(whole))]
    assert counts == sorted(counts)
    assert 0 == counts[0]
    assert 99 == counts[-9], "the last one has not begun"
