# SPDX-License-Identifier: Apache-2.0
"""Topics and brokers of Kafka 0.6 and 0.7 for a producer, from ZooKeeper, with watches.

A source for ``client.topics.MetadataDirectory``, which decides when to read. It watches what the document tells
producers to watch: ``/brokers/ids``, and ``/brokers/topics/T`` of each topic that is read.

New topics
    A broker creates a topic at the first message for it, and registers then how many partitions it has. How many these
    will be is unknown before. But each broker has partition 0 of any topic. So a registered broker that does not list
    a topic stands in the view with its partition 0.

    Example: brokers 0 and 1 have three partitions of each topic. Nothing was written to ``dogs``, and the view has 0-0
    and 1-0. A record goes to 1-0, and broker 1 creates the topic. The watch fires, and the view has 0-0, 1-0, 1-1, 1-2.

    Java's producer does this only for a topic that no broker lists; so a broker that joins later gets records of an
    existing topic only here, as the document asks. Until it has registered the topic, both producers may send a key to
    different partitions.

Source: "Writing a Driver for Kafka", sections "Producer" and "Creating New Topics"; ``ZKBrokerPartitionInfo.scala`` of
Kafka 0.7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.cluster.view import ClusterView, PartitionView, TopicView
from consumerd.model import PartitionKey
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout import BROKER_IDS
from consumerd.zk.layout_legacy import LEGACY
from consumerd.zk.port import Watch, WatchKind, ZkClient

_FIRST_PARTITION: Final = 0
"""Partition of any topic that each broker has."""


class LegacyTopicSource:
    """Reads brokers and topics for a producer from ZooKeeper, and watches them.

    Watched are the topics of the last call.

    Args:
        changed: Called after a change, and after each reconnect to ZooKeeper, to request a new :meth:`read`.
    """

    def __init__(self, zk: ZkClient, changed: Callable[[], None], *, hooks: Hooks | None = None) -> None:
        self._zk = zk
        self._changed = changed
        self._registry = LegacyZooKeeperSource(zk, hooks=hooks)
        self._watches: dict[str, Watch] = {}

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Return the registered brokers, and the topics with all partitions that can be written to.

        A topic has no partitions, and is left out, only if no broker is registered. Each ZooKeeper call is bounded.
        Raises CoordinationError.

        Args:
            topics: Topics to read and to watch; None for all that are registered.
        """
        self._set_watches(topics or ())  # before the reads: a change after them is reported
        view = await self._registry.read(topics)
        return add_new_partitions(view, view.topics if topics is None else topics)

    def close(self) -> None:
        """Remove all watches."""
        while self._watches:
            self._watches.popitem()[1].close()

    def _set_watches(self, topics: Collection[str]) -> None:
        wanted = {BROKER_IDS: WatchKind.CHILDREN}
        for topic in topics:
            wanted |= LEGACY.topic_watches(topic)
        for path in self._watches.keys() - wanted.keys():
            self._watches.pop(path).close()
        for path in sorted(wanted.keys() - self._watches.keys()):
            self._watches[path] = self._zk.watch(path, wanted[path], self._changed)


def add_new_partitions(view: ClusterView, topics: Collection[str]) -> ClusterView:
    """Return a view in which brokers have partition 0 of topics they do not list.

    Args:
        topics: Names of the topics, which need not be in the view.
    """
    found = dict(view.topics)
    for name in topics:
        known = found.get(name) or TopicView(name=name)
        listing = {key.broker for key in known.partitions}
        added = {
            PartitionKey(_FIRST_PARTITION, broker): PartitionView(leader=broker, replicas=(broker,), isr=(broker,))
            for broker in view.brokers
            if broker not in listing
        }
        if added or known.partitions:
            found[name] = replace(known, partitions={**known.partitions, **added})
    return replace(view, topics=found)
