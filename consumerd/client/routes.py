# SPDX-License-Identifier: Apache-2.0
"""Routes of a producer: the partition queues of each topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consumerd.client.accumulator import PartitionQueue
from consumerd.client.partitioner import Candidates
from consumerd.client.producer_rules import ProducerRules
from consumerd.cluster.view import ClusterView, TopicView
from consumerd.model import PartitionKey, TopicPartition


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's partition queues, in the order of partitioners, and the candidates."""

    queues: tuple[PartitionQueue, ...]
    candidates: Candidates
    by_key: Mapping[PartitionKey, PartitionQueue]

    def find_chosen(self, index: int) -> PartitionQueue | None:
        """Return the queue at a partitioner's index; None if it is out of range."""
        return self.queues[index] if 0 <= index < len(self.queues) else None


class Routes:
    """Routes of topics, and the queues of all partitions that there have ever been.

    Args:
        rules: Lists a topic's partitions.
    """

    def __init__(self, rules: ProducerRules) -> None:
        self._rules = rules
        self._queues: dict[str, dict[PartitionKey, PartitionQueue]] = {}
        self.by_topic: dict[str, Route] = {}
        """Current routes; cleared on each change of the cluster."""

    def make(self, topic: str, known: TopicView, view: ClusterView) -> Route:
        """Make a topic's route from its present partitions and leaders."""
        # A re-created topic may have fewer partitions, and those of a broker of 0.7 that is away are gone for a time.
        # The queues of the others are kept, since they may still hold records.
        queues = self._queues.setdefault(topic, {})
        keys = self._rules.list_partitions(known)
        for index, key in enumerate(keys):
            if key not in queues:
                queues[key] = PartitionQueue(TopicPartition(topic, key))
            queues[key].index = index
        usable = tuple(queues[key] for key in keys)
        available: Sequence[int] = [queue.index for queue in usable if view.find_leader(queue.partition)]
        if len(available) == len(keys):
            available = range(len(keys))  # constant-time ``in``
        candidates = Candidates(topic=topic, count=len(keys), available=available)
        route = self.by_topic[topic] = Route(usable, candidates, dict(zip(keys, usable, strict=True)))
        return route
