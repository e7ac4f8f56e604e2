# SPDX-License-Identifier: Apache-2.0
"""Topics of a group as brokers tell them: ids, problems, changes by the clock, and what is new since the start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection

import pytest

from consumerd.cluster.view import ClusterView, PartitionView, TopicView
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.group.classic.metadata_topics import NO_TOPIC_ID, FollowedMetadataTopics
from consumerd.group.classic.topics import KnownTopic
from consumerd.model import UNKNOWN_INCARNATION, BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from tests.support import virtual_time

FIRST, SECOND = (Incarnation.of_topic_id(uuid.UUID(int=number)) for number in (7, 8))


class Source:
    """A broker's Metadata."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicView] = {}
        self.failure: ConnectionLost | None = None
        self.asked: list[frozenset[str] | None] = []

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        self.asked.append(None if topics is None else frozenset(topics))
        if self.failure is not None:
            raise self.failure
        return ClusterView(
            topics={name: topic for name, topic in self.topics.items() if topics is None or name in topics}
        )

    def put(self, name: str, incarnation: Incarnation, partitions: int = 2, error: int = 0) -> None:
        one = PartitionView(leader=BrokerId(1), replicas=(BrokerId(1),), isr=(BrokerId(1),))
        self.topics[name] = TopicView(
            name=name,
            incarnation=incarnation,
            partitions={PartitionKey(number): one for number in range(partitions)},
            error=error,
        )


@pytest.fixture
def source() -> Source:
    return Source()


def test_topics_are_found_with_one_request(source: Source) -> None:
    """With id and partitions; None for a missing one."""
    source.put("orders", FIRST)
    topics = FollowedMetadataTopics(source, interval_s=5)

    async def play() -> None:
        found = await topics.find(["orders", "clicks"])
        assert {"clicks": None, "orders": KnownTopic(incarnation=FIRST, partitions=2)} == found
        assert {"orders"} == await topics.list_names()
        assert {} == await topics.find(())

    virtual_time.run(play())
    assert [frozenset({"orders", "clicks"}), None] == source.asked


def test_topic_that_cannot_be_consumed_has_a_problem(source: Source) -> None:
    """One without an id, and one that an ACL denies."""
    source.put("old", UNKNOWN_INCARNATION)
    source.put("secret", UNKNOWN_INCARNATION, partitions=0, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    found = virtual_time.run(FollowedMetadataTopics(source, interval_s=5).find(["old", "secret"]))

    old, secret = found["old"], found["secret"]
    assert old is not None
    assert secret is not None
    assert (0, NO_TOPIC_ID) == (old.partitions, old.problem)
    assert "TOPIC_AUTHORIZATION_FAILED" in (secret.problem or "")


def test_broker_that_is_out_of_date_takes_no_partition_away(source: Source) -> None:
    """Partitions of a topic are never removed. Otherwise the group would rebalance with each broker that is asked."""
    topics = FollowedMetadataTopics(source, interval_s=5)

    async def play() -> list[int]:
        counts = []
        for incarnation, partitions in [(FIRST, 2), (FIRST, 6), (FIRST, 2), (SECOND, 3)]:
            source.put("orders", incarnation, partitions)
            topic = (await topics.find(["orders"]))["orders"]
            assert topic is not None
            counts.append(topic.partitions)
        return counts

    assert [2, 6, 6, 3] == virtual_time.run(play())


def test_brokers_that_do_not_answer_are_an_error(source: Source) -> None:
    """Not a cluster without topics."""
    source.failure = ConnectionLost("nobody")
    topics = FollowedMetadataTopics(source, interval_s=5)

    async def play() -> None:
        with pytest.raises(CoordinationError, match="nobody"):
            await topics.find(["orders"])
        with pytest.raises(CoordinationError, match="nobody"):
            await topics.list_names()

    virtual_time.run(play())


def test_a_possible_change_is_reported_once_per_interval_until_it_is_closed(source: Source) -> None:
    """However often it is told what to follow."""
    topics = FollowedMetadataTopics(source, interval_s=5)
    calls: list[float] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def note() -> None:
            calls.append(loop.time() - begun)
            topics.follow(["orders"], names=False, changed=note)

        topics.follow(["orders"], names=True, changed=note)
        topics.follow(["orders", "clicks"], names=True, changed=note)
        await asyncio.sleep(12)
        topics.close()
        topics.close()
        await asyncio.sleep(12)

    virtual_time.run(play())
    assert [5, 10] == [round(one) for one in calls]


def test_new_is_what_was_created_since_the_topic_was_first_seen(source: Source) -> None:
    """Added partitions, and all of a re-created topic: brokers delete its positions, and nothing else tells."""
    source.put("orders", FIRST)
    topics = FollowedMetadataTopics(source, interval_s=5)
    zero, two = (TopicPartition.modern("orders", number) for number in (0, 2))

    async def play() -> None:
        assert not topics.is_new(zero)
        await topics.find(["orders"])
        assert not topics.is_new(zero)
        source.put("orders", FIRST, partitions=3)
        await topics.find(["orders"])
        assert (False, True) == (topics.is_new(zero), topics.is_new(two))
        source.put("orders", SECOND)
        await topics.find(["orders"])
        assert topics.is_new(zero)

    virtual_time.run(play())
