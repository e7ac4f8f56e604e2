# SPDX-License-Identifier: Apache-2.0
"""OffsetCommit and OffsetFetch: until when positions are kept, and which partitions there are, by version."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.handlers import PositionRequests
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.zookeeper_positions import ZooKeeperPositions
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.topics import Topic, Topics
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.group_log import MemoryLog
from tests.support.virtual_time import run

NOW_MS = 1_000_000
DAY_MS = 24 * 60 * 60 * 1000
P = TopicPartition.modern("t", 0)


class OneTopic:
    def find(self, topic: str) -> Topic | None:
        return Topic(name="t", replicas={0: ()}) if topic == "t" else None


def context(version: int) -> RequestContext:
    return RequestContext(version=version, client_id="c", peer_host="127.0.0.1")


async def ask(version: int, log: MemoryLog, zookeeper: FakeZooKeeper, *requests: object) -> list[object]:
    """Ask one after the other; return the answers, and what the coordinator remembers of the group."""
    zk = zookeeper.client("broker")
    zk.connect()
    async with GroupCoordinator(
        cast("OffsetsTopic", log),
        settings=CoordinatorSettings(),
        now=asyncio.get_running_loop().time,
        now_ms=lambda: NOW_MS,
        new_id=lambda: "id",
    ) as coordinator:
        await asyncio.sleep(0.001)
        positions = PositionRequests(coordinator, ZooKeeperPositions(zk), cast("Topics", OneTopic()), lambda: NOW_MS)
        answers: list[object] = []
        for request in requests:
            if isinstance(request, OffsetCommitRequest):
                answers.append(await positions.commit(request, context(version)))
            else:
                assert isinstance(request, OffsetFetchRequest)
                answers.append(await positions.fetch(request, context(version)))
        answers.append(coordinator.positions("g")[1])
    zk.close()
    return answers


def commit(timestamp: int = -1, retention_ms: int = -1, offset: int = 7, group_id: str = "g") -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        retention_time_ms=retention_ms,
        topics=(
            CommitTopic(
                topic="t", partitions=(CommitPartition(partition=0, offset=offset, timestamp=timestamp, metadata=None),)
            ),
        ),
    )


@pytest.mark.parametrize(
    ("version", "timestamp", "retention_ms", "expire_ms"),
    [
        (1, -1, -1, NOW_MS + DAY_MS),
        (1, 500, -1, 500 + DAY_MS),
        (2, -1, -1, NOW_MS + DAY_MS),
        (2, -1, 60_000, NOW_MS + 60_000),
        (2, -1, 2**63 - 1, 2**63 - 1),
        (1, -(2**63), -1, 0),
    ],
    ids=["as long as we say", "from its own time", "v2", "as long as it says", "for ever", "never"],
)
def test_a_position_is_kept_as_long_as_was_asked_for(
    version: int, timestamp: int, retention_ms: int, expire_ms: int
) -> None:
    """And no int64 that a client may send takes the broker down."""
    log = MemoryLog()
    (answer, kept) = run(ask(version, log, FakeZooKeeper(), commit(timestamp, retention_ms)))

    assert ErrorCode.NONE == answer.topics[0].partitions[0].error_code  # type: ignore[attr-defined]  # one of several answers
    assert expire_ms == kept[P].expire_ms  # type: ignore[index]  # the last of the answers


def test_version_0_is_about_zookeeper_alone() -> None:
    """The high-level consumers' own nodes: written anew, written again, read; the coordinator hears nothing of it."""
    zookeeper, log = FakeZooKeeper(), MemoryLog()
    fetch = OffsetFetchRequest(group_id="g", topics=(OffsetFetchTopic(topic="t", partitions=(0, 1)),))
    (_, _, fetched, kept) = run(ask(0, log, zookeeper, commit(), commit(offset=9), fetch))

    answered = [(one.partition, one.offset, one.error_code) for one in fetched.topics[0].partitions]  # type: ignore[attr-defined]
    assert [(0, 9, 0), (1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] == answered
    node = zookeeper.read("/consumers/g/offsets/t/0")
    assert node is not None
    assert (b"9", {}, {}) == (node[0], kept, log.records)


def test_a_node_that_makes_no_sense_is_an_error_of_its_partition() -> None:
    """As in Kafka, which cannot read it either."""
    zookeeper = FakeZooKeeper()
    zookeeper.put("/consumers/g/offsets/t/0", b"seven")
    fetch = OffsetFetchRequest(group_id="g", topics=(OffsetFetchTopic(topic="t", partitions=(0,)),))
    (fetched, _) = run(ask(0, MemoryLog(), zookeeper, fetch))

    assert ErrorCode.UNKNOWN_SERVER_ERROR == fetched.topics[0].partitions[0].error_code  # type: ignore[attr-defined]


def test_from_version_2_on_an_error_is_the_whole_answers() -> None:
    """Clients look there; before, each partition has it."""
    log = MemoryLog(partitions=None)
    fetch = OffsetFetchRequest(group_id="g", topics=(OffsetFetchTopic(topic="t", partitions=(0,)),))
    (old, _), (new, _) = (run(ask(version, log, FakeZooKeeper(), fetch)) for version in (1, 2))

    assert ErrorCode.NOT_COORDINATOR == old.topics[0].partitions[0].error_code  # type: ignore[attr-defined]
    assert (ErrorCode.NOT_COORDINATOR, ()) == (new.error_code, new.topics)  # type: ignore[attr-defined]


@pytest.mark.parametrize("group_id", ["", ".", "..", "lake/ids/evil", "/", "/lake", "lake/"])
def test_a_group_id_that_is_no_name_of_a_node_is_refused(group_id: str) -> None:
    """It is a part of a path: with a slash, it would create a member of another group that no session ends."""
    zookeeper = FakeZooKeeper()
    zookeeper.put("/consumers/lake/ids")
    fetch = OffsetFetchRequest(group_id=group_id, topics=(OffsetFetchTopic(topic="t", partitions=(0,)),))
    (committed, fetched, _) = run(ask(0, MemoryLog(), zookeeper, commit(group_id=group_id), fetch))

    assert [ErrorCode.INVALID_GROUP_ID] * 2 == [
        answer.topics[0].partitions[0].error_code  # type: ignore[attr-defined]  # one of several answers
        for answer in (committed, fetched)
    ]
    assert ([], ["lake"]) == (zookeeper.names("/consumers/lake/ids"), zookeeper.names("/consumers"))
