# SPDX-License-Identifier: Apache-2.0
"""Watches for operators' requests: one per topic with claimed partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from consumerd.model import TopicPartition
from consumerd.offsets.store import OffsetRequests, RequestSubscription


@dataclass(slots=True)
class _Watched:
    watch: RequestSubscription
    partitions: set[TopicPartition] = field(default_factory=set)


class RequestWatches:
    """The watches of all claimed partitions.

    Args:
        changed: Called with a partition of a watched topic when its request may have changed.
    """

    def __init__(self, requests: OffsetRequests, changed: Callable[[TopicPartition], None]) -> None:
        self._requests = requests
        self._changed = changed
        self._topics: dict[str, _Watched] = {}

    def add(self, partition: TopicPartition) -> None:
        """Watch for requests of a partition. Idempotent."""
        watched = self._topics.get(partition.topic)
        if watched is None:
            watched = self._topics[partition.topic] = _Watched(self._requests.watch(partition.topic, self._changed))
        watched.partitions.add(partition)

    def remove(self, partition: TopicPartition) -> None:
        """Stop watching for requests of a partition. Idempotent."""
        watched = self._topics.get(partition.topic)
        if watched is None:
            return
        watched.partitions.discard(partition)
        if not watched.partitions:
            del self._topics[partition.topic]
            watched.watch.close()

    @property
    def topics(self) -> Collection[str]:
        """The topics that are watched."""
        return self._topics.keys()
