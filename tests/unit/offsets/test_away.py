# SPDX-License-Identifier: Apache-2.0
"""Partitions of Kafka 0.7 that are away: which ones, why, and when they come back."""

from __future__ import annotations

import pytest

from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.model import BrokerId, Generation, PartitionKey, TopicPartition
from consumerd.offsets.away import AwayBroker, explain_away, find_away, is_away

ZERO, ONE, TWO = map(BrokerId, range(3))


def partition(text: str) -> TopicPartition:
    topic, _, key = text.partition("/")
    return TopicPartition(topic, PartitionKey.parse(key))


STORED = tuple(map(partition, ("events/2-0", "events/1-1", "events/0-0", "events/1-0", "clicks/1-0", "gone/1-0")))
VIEW = ClusterView(
    brokers={one: Broker(id=one, host="h", port=1) for one in (ZERO, TWO)},
    topics={
        "events": TopicView(name="events", partitions={PartitionKey(0, ZERO): PartitionView(leader=ZERO)}),
        "clicks": TopicView(name="clicks"),
    },
)


def test_stored_partitions_that_are_not_registered_are_away() -> None:
    """By broker. Broker 2 is registered without its partition; the topic ``gone`` does not exist."""
    first, second = find_away(STORED, VIEW, Generation.LEGACY)
    assert first == AwayBroker(
        broker=ONE,
        is_registered=False,
        partitions=(partition("clicks/1-0"), partition("events/1-0"), partition("events/1-1")),
    )
    assert second == AwayBroker(broker=TWO, is_registered=True, partitions=(partition("events/2-0"),))
    assert first.reason == "broker 1 is not registered"
    assert first.outlook == "its partitions come back with it, at their positions"
    assert second.reason == "broker 2 is registered without them, as if it had lost its logs"
    assert "when it has messages of the topic again" in second.outlook


@pytest.mark.parametrize("generation", [Generation.MODERN, None])
def test_nothing_is_away_in_another_cluster(generation: Generation | None) -> None:
    """A position of a group of 0.7 may be left in ZooKeeper, and says nothing about brokers of 0.8."""
    assert find_away(STORED, VIEW, generation) == ()


def test_a_plain_number_is_never_away() -> None:
    """No broker of 0.7 brings it back."""
    assert not is_away(partition("events/7"), VIEW, Generation.LEGACY)
    assert is_away(partition("events/0-7"), VIEW, Generation.LEGACY)


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        ((), "away: broker 1 is not registered; the partition comes back with it, at its position"),
        (
            (ONE,),
            (
                "away: broker 1 is registered without them, as if it had lost its logs; the partition comes back when the "
                "broker has messages of the topic again"
            ),
        ),
    ],
)
def test_a_note_says_when_the_partition_comes_back(brokers: tuple[BrokerId, ...], said: str) -> None:
    """In each list that names the partition."""
    assert explain_away(partition("events/1-0"), brokers) == said
