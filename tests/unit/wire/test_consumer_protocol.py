# SPDX-License-Identifier: Apache-2.0
"""What consumers say in their group: as the Java consumers wrote it, and as later ones may."""

from __future__ import annotations

import pytest

from consumerd.errors import RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.consumer_protocol import (
    PROTOCOL_TYPE,
    AssignedTopic,
    Assignment,
    ConsumerSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from consumerd.wire.modern.groups import JoinGroupRequest, SyncGroupRequest, SyncGroupResponse
from consumerd.wire.schema import compile_codec
from tests.support.frames import RecordedFrame, load_frames, split_request

JAVA = [frame for frame in load_frames() if not frame.note]
JOINS = [frame for frame in JAVA if frame.api is ApiKey.JOIN_GROUP]
SYNCS = [frame for frame in JAVA if frame.api is ApiKey.SYNC_GROUP]


@pytest.mark.parametrize("frame", JOINS, ids=str)
def test_java_subscriptions_are_read_and_written_back(frame: RecordedFrame) -> None:
    """The Java consumers were all subscribed to topic t."""
    request = compile_codec(JoinGroupRequest, frame.version).decode(split_request(frame)[1])

    assert PROTOCOL_TYPE == request.protocol_type
    for protocol in request.protocols:
        subscription = decode_subscription(protocol.metadata)
        assert ("t",) == subscription.topics
        assert protocol.metadata == encode_subscription(subscription)


@pytest.mark.parametrize("frame", SYNCS, ids=str)
def test_java_assignments_are_read_and_written_back(frame: RecordedFrame) -> None:
    """What the leader brought, and what each got."""
    request = compile_codec(SyncGroupRequest, frame.version).decode(split_request(frame)[1])
    assert frame.response is not None
    response = compile_codec(SyncGroupResponse, frame.version).decode(frame.response[8:])

    given = [one.assignment for one in request.assignments] + [response.assignment] * (not response.error_code)
    for payload in given:
        assignment = decode_assignment(payload)
        assert {"t"} >= {one.topic for one in assignment.topics}
        assert {0, 1} >= {partition for one in assignment.topics for partition in one.partitions}
        assert payload == encode_assignment(assignment)


def test_there_are_such_recordings() -> None:
    """Of every release that has groups."""
    releases = {"0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1"}

    assert releases == {frame.release for frame in JOINS} == {frame.release for frame in SYNCS}


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """2.4 adds owned partitions in version 1, behind all that version 0 has."""
    later = (
        encode_subscription(ConsumerSubscription(version=1, topics=("a", "b"), user_data=b"u")) + b"owned partitions"
    )

    assert ConsumerSubscription(version=1, topics=("a", "b"), user_data=b"u") == decode_subscription(later)

    given = Assignment(version=3, topics=(AssignedTopic(topic="a", partitions=(1, 2)),))
    assert given == decode_assignment(encode_assignment(given) + b"more")


@pytest.mark.parametrize("decode", [decode_subscription, decode_assignment])
@pytest.mark.parametrize("data", ["ffff00000000ffffffff", "0000", "", "000000000000ffffffff00", "00000000ffff"])
def test_what_is_no_payload_is_refused(decode: object, data: str) -> None:
    """A member may send anything; the coordinator does not even look."""
    assert callable(decode)
    with pytest.raises(RemoteProtocolError):
        decode(bytes.fromhex(data))
