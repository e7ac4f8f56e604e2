# SPDX-License-Identifier: Apache-2.0
"""What real brokers answered, asked again: the same requests get the same bytes, and leave the same records behind.

The recordings hold the life of a group of one member, positions in both places, and the errors of each.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.handlers import group_handlers
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.zookeeper_positions import ZooKeeperPositions
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.topics import Topic, Topics
from consumerd.embedded.znodes import BrokerAddress
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.versions import Release
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.fetch import FetchResponse
from consumerd.wire.modern.find_coordinator import FindCoordinatorResponse
from consumerd.wire.modern.groups import JoinGroupResponse
from consumerd.wire.modern.offsets_topic import (
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.server_session import encode_response_pieces, read_request
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.frames import REQUESTS, VECTORS, RecordedFrame, read_frames
from tests.support.group_log import MemoryLog
from tests.support.virtual_time import run

ALLOWED = {
    # what it has refused as too large it remembers all the same, until it is started again
    ("0.8.2.2", "OFFSET_FETCH from the topic"),
}
"""Questions to which the real broker's answer is not the one to give."""

RELEASES: dict[str, Release] = {"0.8.2.2": (0, 8, 2), "0.10.2.2": (0, 10, 2), "1.1.1": (1, 1)}
SIZE_BYTES = 4
CLIENT = "recorder"


class OneTopic:
    """A catalogue with topic ``t`` alone, as the recording brokers had it."""

    def find(self, topic: str) -> Topic | None:
        return Topic(name="t", replicas={0: ()}) if topic == "t" else None


def answers(frames: Sequence[RecordedFrame], name: ApiKey, response: type[Any]) -> list[Any]:
    """Return the recorded answers of one kind."""
    found = []
    for frame in frames:
        if frame.api is name and frame.response is not None:
            request = read_request(memoryview(frame.request)[SIZE_BYTES:], ACCEPTED).request
            body = memoryview(frame.response)[2 * SIZE_BYTES :]
            answer = request.decode_response(frame.version, body)
            assert isinstance(answer, response)
            found.append(answer)
    return found


ACCEPTED = {request: request.versions for request in REQUESTS.values()}


async def replay(frames: Sequence[RecordedFrame], release: Release, log: MemoryLog) -> list[tuple[str, str, str]]:
    """Ask everything again; return what each question was about, the recorded answer, and ours, in hex."""
    zookeeper = FakeZooKeeper()
    zookeeper.put("/consumers")
    zk = zookeeper.client("broker")
    zk.connect()
    (found, *_) = answers(frames, ApiKey.FIND_COORDINATOR, FindCoordinatorResponse)
    joined = [one.member_id for one in answers(frames, ApiKey.JOIN_GROUP, JoinGroupResponse) if not one.error_code]
    ids = (one.removeprefix(f"{CLIENT}-") for one in itertools.chain(joined, itertools.repeat("none")))
    settings = CoordinatorSettings(release=release)
    clock = asyncio.get_running_loop().time
    compared = []
    async with GroupCoordinator(
        cast("OffsetsTopic", log),
        settings=settings,
        now=clock,
        now_ms=lambda: int(clock() * 1000),
        new_id=lambda: next(ids),
    ) as coordinator:
        await asyncio.sleep(0.001)
        handlers = group_handlers(
            coordinator,
            ZooKeeperPositions(zk),
            topics=cast("Topics", OneTopic()),
            address=BrokerAddress(broker_id=BrokerId(found.node_id), host=found.host, port=found.port),
            now_ms=lambda: int(clock() * 1000),
        )
        for frame in frames:
            if frame.api not in handlers or frame.response is None:
                continue
            received = read_request(memoryview(frame.request)[SIZE_BYTES:], ACCEPTED)
            context = RequestContext(version=frame.version, client_id=CLIENT, peer_host="127.0.0.1")
            answer = await handlers[frame.api](received.request, context)
            ours = b"".join(encode_response_pieces(received.header.correlation_id, answer, frame.version))
            compared.append((f"{frame.api.name} {frame.note}", frame.response.hex(), ours.hex()))
    zk.close()
    return compared


def load(release: str) -> list[RecordedFrame]:
    return read_frames(VECTORS / f"recorded-kafka-{release}-groups.json")


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_questions_get_the_same_bytes(release: str) -> None:
    """Codes, defaults, empty strings, order: what clients of each version were written against."""
    compared = run(replay(load(release), RELEASES[release], MemoryLog()))

    assert len(compared) >= 9
    different = {(release, what) for what, theirs, ours in compared if theirs != ours}
    assert {one for one in ALLOWED if one[0] == release} == different


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_records_are_left_behind(release: str) -> None:
    """Tools and other brokers read them; only the times are those of the day."""
    frames, log = load(release), MemoryLog(partitions=1)
    run(replay(frames, RELEASES[release], log))
    (fetched,) = answers(frames, ApiKey.FETCH, FetchResponse)
    batch = decode_record_set(
        fetched.topics[0].partitions[0].record_set, partition=TopicPartition.modern("__consumer_offsets", 0), start=0
    )

    theirs = [(key, undated(key, value)) for key, value in zip(batch.keys(), batch.values(), strict=True)]
    assert theirs == [(one.key, undated(one.key, one.value)) for one in log.records[0]]


def undated(key: bytes | None, value: bytes | None) -> object:
    """Return a record's value with the time of the commit as zero; what it says of its version stays."""
    assert key is not None
    assert value is not None
    if not isinstance(decode_key(key), OffsetKey):
        return value[:2], decode_group_value(value)
    position = decode_offset_value(value)
    expiry = position.expire_timestamp
    return (
        value[:2],
        replace(
            cast("Any", position),
            commit_timestamp=0,
            expire_timestamp=expiry if expiry < 0 else expiry - position.commit_timestamp,
        ),
        OffsetValue,
    )
