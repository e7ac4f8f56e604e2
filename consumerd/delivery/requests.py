# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper watches for operators' requests to set positions: one per topic with claimed partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from consumerd.model import TopicPartition
from consumerd.offsets.store import OffsetRequests, RequestSubscription


@dataclass(slots=True)
class _Watched:
    watch: RequestSubscription
    partitions: set[TopicPartition] = field(default_factory=set)


class RequestWatches:
    """ZooKeeper watches for operators' requests to set positions of claimed partitions.

    Args:
        requests: Reads and watches the requests.
        changed: Called with a partition that may have a new request. Topics are watched as a whole, so this process may
            not have claimed the partition.
    """

    def __init__(self, requests: OffsetRequests, changed: Callable[[TopicPartition], None]) -> None:
        self._requests = requests
        self._changed = changed
        self._topics: dict[str, _Watched] = {}

    def add(self, partition: TopicPartition) -> None:
        """Watch for requests about a partition, which was claimed. Idempotent."""
        watched = self._topics.get(partition.topic)
        if watched is None:
            watched = self._topics[partition.topic] = _Watched(self._requests.watch(partition.topic, self._changed))
        watched.partitions.add(partition)

    def remove(self, partition: TopicPartition) -> None:
        """Stop watching for requests about a partition, which was released. Idempotent."""
        watched = self._topics.get(partition.topic)
        if watched is None:
            return
        watched.partitions.discard(partition)
        if not watched.partitions:
            del self._topics[partition.topic]
            watched.watch.close()
