# SPDX-License-Identifier: Apache-2.0
"""The record sets in recorded Fetch responses: between Java clients and brokers, and between brokers and ourselves."""

from __future__ import annotations

import pytest

from consumerd.model import TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.modern.fetch import FetchRequest
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import CORRELATION_BYTES, HEADER_CODEC
from tests.support import naive_records
from tests.support.frames import RecordedFrame, load_frames

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("t", 0)
FRAMES = [
    frame
    for frame in load_frames()
    if frame.api is ApiKey.FETCH and frame.response is not None and frame.version in FetchRequest.versions
]


def _record_sets(frame: RecordedFrame) -> list[tuple[bytes, int]]:
    """Return each record set of a response that is not empty, with the offset that was asked for."""
    asked = memoryview(frame.request)[SIZE_BYTES:]
    _, at = HEADER_CODEC.read(asked, 0, len(asked))
    request = compile_codec(FetchRequest, frame.version).decode(asked[at:])
    response = request.decode_response(
        frame.version, memoryview(frame.response or b"")[SIZE_BYTES + CORRELATION_BYTES :]
    )
    starts = {(topic.topic, one.partition): one.fetch_offset for topic in request.topics for one in topic.partitions}
    return [
        (bytes(one.record_set), starts.get((topic.topic, one.partition), 0))
        for topic in response.topics
        for one in topic.partitions
        if one.record_set
    ]


def test_some_frames_carry_records_of_every_magic() -> None:
    """Or the test below would prove nothing."""
    magics = {data[16] for frame in FRAMES for data, _ in _record_sets(frame) if len(data) > 16}

    assert {0, 1, 2} == magics


@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_record_sets_in_recorded_frames_are_read_as_the_naive_decoder_reads_them(frame: RecordedFrame) -> None:
    """Partial messages at their ends included."""
    for data, start in _record_sets(frame):
        batch = decode_record_set(data, partition=PARTITION, start=start)
        expected = naive_records.decode(data, start, Limits())
        assert not expected.faulty
        assert expected.rows == [
            (one.offset, one.timestamp, int(one.timestamp_type), one.key, one.value, one.headers)
            for one in batch.records()
        ]
        assert expected.next_offset == batch.next_offset
