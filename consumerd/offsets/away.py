# SPDX-License-Identifier: Apache-2.0
"""Partitions of Kafka 0.6 and 0.7 that are away, and the words for them.

In these releases a partition belongs to one broker. While the broker is not registered, its partitions are in no node
of the topic, and no member has them. They come back with the broker, and the group continues at its stored positions.
So a partition is *away* if the group has a position of it, and no broker registers it now.

Example: brokers 0 and 1 have the partitions 0-0, 0-1, 1-0 and 1-1 of ``events``; the group has positions of all. Broker
1 stops: 1-0 and 1-1 are away. It starts again with its logs: the group continues at the positions of 1-0 and 1-1. It
starts without its logs: 1-0 and 1-1 stay away until it registers ``events`` again, and then begin at offset 0.

In a cluster of 0.8 and later a partition whose brokers are down has no leader, and stays registered: none is away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from consumerd.cluster.view import ClusterView
from consumerd.model import BrokerId, Generation, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayBroker:
    """Partitions of one broker that are away, and why.

    Attributes:
        is_registered: True if the broker is registered and does not have these partitions, False if it is not there.
    """

    broker: BrokerId
    is_registered: bool
    partitions: tuple[TopicPartition, ...]

    @property
    def reason(self) -> str:
        """Why the partitions are away."""
        if self.is_registered:
            return f"broker {self.broker} is registered without them, as if it had lost its logs"
        return f"broker {self.broker} is not registered"

    @property
    def outlook(self) -> str:
        """When the partitions come back."""
        # a broker registers a topic with the first message that it stores of it
        return (
            "its partitions come back with it, at their positions"
            if not self.is_registered
            else ("its partitions come back when it has messages of the topic again")
        )

    def explain(self) -> str:
        """Return a note for one of the partitions: why, and until when."""
        if self.is_registered:
            return f"away: {self.reason}; the partition comes back when the broker has messages of the topic again"
        return f"away: {self.reason}; the partition comes back with it, at its position"


def is_away(partition: TopicPartition, view: ClusterView, generation: Generation | None) -> bool:
    """Return True if a partition of the group is away.

    Args:
        partition: Partition of which the group has a position, of a topic that exists.
        view: The cluster as registered now; it must have read the partition's topic.
        generation: Generation of the cluster's brokers; None if unknown.
    """
    return partition.is_legacy and generation is Generation.LEGACY and view.find_partition(partition) is None


def find_away(
    stored: Iterable[TopicPartition], view: ClusterView, generation: Generation | None
) -> tuple[AwayBroker, ...]:
    """Return the partitions that are away, by broker, in the order of broker ids.

    Partitions of topics that the view does not have are left out: the topic is deleted, or was not read yet.

    Args:
        stored: Partitions of which the group has a position.
    """
    return group_away(
        (one for one in stored if one.topic in view.topics and is_away(one, view, generation)), view.brokers
    )


def group_away(partitions: Iterable[TopicPartition], brokers: Collection[BrokerId]) -> tuple[AwayBroker, ...]:
    """Return partitions that are away by broker, in the order of broker ids.

    Args:
        brokers: Ids of the brokers that are registered now.
    """
    by_broker: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        if (broker := partition.partition.broker) is not None:
            by_broker[broker].append(partition)
    return tuple(
        AwayBroker(broker=broker, is_registered=broker in brokers, partitions=tuple(sorted(of_broker)))
        for broker, of_broker in sorted(by_broker.items())
    )


def explain_away(partition: TopicPartition, brokers: Collection[BrokerId]) -> str:
    """Return a note on one partition that is away: why, and until when.

    Args:
        brokers: Ids of the brokers that are registered now.
    """
    (found,) = group_away([partition], brokers)
    return found.explain()
