# SPDX-License-Identifier: Apache-2.0
"""Reads a cluster of Kafka 0.6 or 0.7 from ZooKeeper: brokers, topics, partitions, leaders.

ZooKeeper is the only source, since these brokers have no Metadata request. Reads ``/brokers/ids/*`` and
``/brokers/topics/T/*``, with a bounded number of reads in parallel. A partition ``B-P`` is led by broker B. While a
broker is away, its ephemeral nodes are gone, and its partitions are not in the view.

Nodes that cannot be parsed are left out, with one warning each; the content of other nodes stays valid. So one damaged
node under a topic does not stop the delivery from the topic's other brokers, although no member can assign the topic's
partitions until it is gone (``zk.layout_legacy``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from consumerd.aio.parallel import map_bounded
from consumerd.cluster.ignored_nodes import IgnoredNodes
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.model import BrokerId, Incarnation
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, broker_path
from consumerd.zk.layout_legacy import LEGACY, TopicBrokers, read_topic_brokers
from consumerd.zk.port import NotConnected, Stat, ZkClient, list_names
from consumerd.zk.znodes import MalformedZnode, find_broker_id


class LegacyZooKeeperSource:
    """Reads brokers, topics and leaders of Kafka 0.6 and 0.7 through a ZooKeeper session."""

    def __init__(self, zk: ZkClient, *, hooks: Hooks | None = None) -> None:
        self._zk = zk
        hooks = hooks if hooks is not None else Hooks()
        self._ignored = IgnoredNodes(hooks)

    async def read(
        self,
        topics: Collection[str] | None,
        *,
        leaders: bool = True,  # noqa: ARG002 - leaders cost no reads
    ) -> ClusterView:
        """Return brokers, topics and leaders as registered in ZooKeeper.

        A topic whose brokers are all away has no partitions. The cluster has neither a cluster id nor a controller.
        Each ZooKeeper call is bounded. Raises CoordinationError.

        Args:
            topics: Topics to read; None for all.
            leaders: Ignored. The view always has the leaders, which the keys of partitions name.
        """
        if not self._zk.state.connected:
            raise NotConnected("ZooKeeper: not connected")
        names = sorted(await list_names(self._zk, BROKER_TOPICS) if topics is None else topics)
        found = await map_bounded(names, lambda topic: read_topic_brokers(self._zk, topic))
        # after the topics: a broker registers itself before its topics, so none of those read now lacks its broker
        ids = sorted(
            broker for name in await list_names(self._zk, BROKER_IDS) if (broker := find_broker_id(name)) is not None
        )
        nodes = await map_bounded(ids, lambda broker: self._zk.find(broker_path(broker)))
        there = {broker: node for broker, node in nodes.items() if node is not None}
        brokers = (self._make_broker(broker, node) for broker, node in there.items())
        return ClusterView(
            brokers={broker.id: broker for broker in brokers if broker is not None},
            topics={name: self._make_topic(name, topic, there) for name, topic in found.items() if topic is not None},
        )

    def _make_broker(self, broker: BrokerId, node: tuple[bytes, Stat]) -> Broker | None:
        try:
            (endpoint,) = LEGACY.parse_broker(broker, node[0]).endpoints
        except MalformedZnode as error:
            self._ignored.tell(broker_path(broker), str(error))
            return None
        return Broker(id=broker, host=endpoint.host, port=endpoint.port)

    def _make_topic(self, name: str, topic: TopicBrokers, there: Mapping[BrokerId, object]) -> TopicView:
        """Return a topic with its partitions on registered brokers.

        A broker whose address cannot be parsed is registered, too.
        """
        for path, fault in topic.problems.items():
            self._ignored.tell(path, fault)
        partitions = {
            key: PartitionView(leader=key.broker, replicas=(key.broker,), isr=(key.broker,))
            for key in topic.partitions
            if key.broker is not None and key.broker in there
        }
        return TopicView(name=name, partitions=partitions, incarnation=Incarnation(topic.stat.czxid))
