# SPDX-License-Identifier: Apache-2.0
"""The offsets topic: what brokers of three releases wrote into theirs is read, and written back byte for byte."""

from __future__ import annotations

import pytest

from consumerd.errors import CorruptMessageError, LocalProtocolError
from consumerd.model import TopicPartition
from consumerd.wire.modern.consumer_protocol import decode_assignment, decode_subscription
from consumerd.wire.modern.fetch import FetchResponse
from consumerd.wire.modern.offsets_topic import (
    NO_EXPIRY,
    GroupKey,
    GroupMember,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.schema import compile_codec
from tests.support.frames import load_frames

OF_T = OffsetKey(group_id="group", topic="t", partition=0)
DAY_MS = 86_400_000


def written(release: str) -> list[tuple[bytes, bytes | None]]:
    """Return keys and values of what a broker of ``release`` had written."""
    (frame,) = [one for one in load_frames() if one.release == release and one.note == "the offsets topic"]
    assert frame.response is not None
    (topic,) = compile_codec(FetchResponse, frame.version).decode(frame.response[8:]).topics
    (partition,) = topic.partitions
    data = bytes(partition.record_set or b"")
    records = decode_record_set(data, partition=TopicPartition.modern("__consumer_offsets", 0), start=0)
    return [(one.key or b"", one.value) for one in records.records()]


def test_0_8_writes_version_0_without_expiry() -> None:
    """The commit of offset 2; the one with too much metadata is not there."""
    ((key, value),) = written("0.8.2.2")
    assert value is not None

    assert OF_T == decode_key(key)
    read = decode_offset_value(value)
    assert (2, "in Kafka", NO_EXPIRY) == (read.offset, read.metadata, read.expire_timestamp)
    assert (key, value) == (encode_offset_key(OF_T, 0), encode_offset_value(read, 0))


@pytest.mark.parametrize("release", ["0.10.2.2", "1.1.1"])
def test_later_brokers_write_offsets_with_their_expiry(release: str) -> None:
    """Version 1 of key and value; a retention time in the request moves it."""
    offsets = [(key, value) for key, value in written(release) if isinstance(decode_key(key), OffsetKey)]
    values = [decode_offset_value(value or b"") for _, value in offsets]

    assert [(1, "of a member"), (4, "")] == [(one.offset, one.metadata) for one in values]
    assert [DAY_MS, DAY_MS] == [one.expire_timestamp - one.commit_timestamp for one in values]
    assert offsets == [(encode_offset_key(OF_T), encode_offset_value(one)) for one in values]


@pytest.mark.parametrize("release", ["0.10.2.2", "1.1.1"])
def test_groups_are_written_at_the_end_of_each_rebalance(release: str) -> None:
    """With the one member that it had, and empty when that has left."""
    groups = [(key, value) for key, value in written(release) if isinstance(decode_key(key), GroupKey)]
    full, empty = [decode_group_value(value or b"") for _, value in groups]
    (member,) = full.members

    assert ("consumer", 1, "range", member.member_id) == (
        full.protocol_type, full.generation, full.protocol, full.leader
    )  # fmt: skip
    assert (10_000, 5000) == (member.session_timeout_ms, member.rebalance_timeout_ms)
    assert ("recorder", "/127.0.0.1") == (member.client_id, member.client_host)
    assert ("t",) == decode_subscription(member.subscription).topics
    assert (0,) == decode_assignment(member.assignment).topics[0].partitions
    assert ("consumer", 2, None, None, ()) == (
        empty.protocol_type, empty.generation, empty.protocol, empty.leader, empty.members
    )  # fmt: skip
    assert groups == [(encode_group_key(GroupKey(group_id="group")), encode_group_value(one)) for one in (full, empty)]


def test_0_9_groups_have_no_rebalance_timeout() -> None:
    """Version 0 of the value says less, and refuses to leave it out silently."""
    member = GroupMember(
        member_id="m", client_id="c", client_host="/h", session_timeout_ms=6000, subscription=b"s", assignment=b"a"
    )
    value = GroupValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=(member,))

    assert value == decode_group_value(encode_group_value(value, 0))
    timed = GroupMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout_ms=6000,
        rebalance_timeout_ms=1,
        subscription=b"",
        assignment=b"",
    )
    with pytest.raises(LocalProtocolError, match="rebalance_timeout_ms"):
        encode_group_value(
            GroupValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=(timed,)), 0
        )


def test_every_cut_and_every_byte_more_is_corrupt() -> None:
    """Stored bytes that are wrong are told as such, wherever they end."""
    key, value = encode_offset_key(OF_T), encode_offset_value(OffsetValue(offset=1, commit_timestamp=2))
    group = encode_group_value(GroupValue(protocol_type="", generation=0, protocol=None, leader=None, members=()))

    for data, decode in ((key, decode_key), (value, decode_offset_value), (group, decode_group_value)):
        for wrong in [*(data[:end] for end in range(len(data))), data + b"\0"]:
            with pytest.raises(CorruptMessageError, match="__consumer_offsets"):
                decode(wrong)  # type: ignore[operator]  # each takes bytes


def test_a_version_that_nobody_of_the_time_wrote_is_corrupt() -> None:
    """2.1 writes offsets in version 2 and 3, which say other things."""
    with pytest.raises(CorruptMessageError, match=r"key v3: known are 0 to 1"):
        decode_key(b"\0\3")
    with pytest.raises(CorruptMessageError, match=r"offset v2: known are 0 to 1"):
        decode_offset_value(b"\0\2" + bytes(20))
    with pytest.raises(CorruptMessageError, match=r"group v-1"):
        decode_group_value(b"\xff\xff")
    with pytest.raises(CorruptMessageError, match="key of 0 bytes"):
        decode_key(None)
