# SPDX-License-Identifier: Apache-2.0
"""Registry of Kafka 0.6 and 0.7 in ZooKeeper: topics and partitions by broker.

Each broker registers the topics that it has. A partition belongs to one broker, which is its leader for good: ``2-3``
is partition 3 of broker 2. The broker's ephemeral node ``/brokers/topics/T/2`` has the number of its partitions of T.
It disappears with the broker's session, and the partitions with it, until the broker is back. Paths are without the
chroot. Contents of nodes are in ``zk.znodes_legacy``.

Example: ``/brokers/topics/dogs`` has the children 0 and 2, which hold 2 and 1. The topic has the partitions 0-0, 0-1
and 2-0. Broker 2 goes away: 0-0 and 0-1 are left.

Sources: "Writing a Driver for Kafka", section ZooKeeper; ``ZkUtils.getPartitionsForTopics`` of Kafka 0.7.2;
``ServerRegister`` of Jafka 3.0.6; registries recorded from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.model import BrokerId, Generation, Incarnation, PartitionKey, TopicPartition
from consumerd.zk import znodes_legacy
from consumerd.zk.layout import BROKER_IDS, topic_path
from consumerd.zk.port import NoNode, Stat, WatchKind, ZkClient
from consumerd.zk.registry_layout import NodeStamp, TopicNode
from consumerd.zk.znodes import MalformedZnode, PartitionStateNode, find_broker_id

_NO_EPOCH: Final = -1
"""Leader epoch and controller epoch, which this generation does not have."""


def topic_broker_path(topic: str, broker: BrokerId) -> str:
    """Return the path of the node that counts a topic's partitions on one broker.

    The broker creates it, and it is ephemeral.
    """
    return f"{topic_path(topic)}/{broker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBrokers:
    """Brokers that have registered a topic, each with its number of partitions.

    Attributes:
        stat: stat of the topic's node, read before the brokers' nodes.
        counts: number of partitions by broker, in the order of ids.
        problems: the fault of each child that cannot be parsed, by path.
    """

    stat: Stat
    counts: Mapping[BrokerId, int]
    problems: Mapping[str, str]

    @property
    def partitions(self) -> tuple[PartitionKey, ...]:
        """Partitions on all brokers, in the order of Java members.

        They are sorted as text, so 0-10 is before 0-2.
        """
        return tuple(
            sorted(PartitionKey(number, broker) for broker, count in self.counts.items() for number in range(count))
        )


async def read_topic_brokers(zk: ZkClient, topic: str) -> TopicBrokers | None:
    """Return the brokers that have registered a topic; None if the topic has no node.

    Takes one request, and one more for each broker. Raises CoordinationError.
    """
    parent = topic_path(topic)
    try:
        names, stat = await zk.children(parent)
    except NoNode:
        return None
    nodes = await map_bounded(names, lambda name: zk.find(f"{parent}/{name}"))
    counts: dict[BrokerId, int] = {}
    problems: dict[str, str] = {}
    for name, node in nodes.items():
        if node is None:
            continue  # the broker left meanwhile, and the topic's watch will report it
        broker = find_broker_id(name)
        if broker is None or str(broker) != name:
            problems[f"{parent}/{name}"] = "expected a broker id as the node's name"
            continue
        try:
            counts[broker] = znodes_legacy.parse_partition_count(node[0])
        except MalformedZnode as error:
            problems[f"{parent}/{name}"] = str(error)
    return TopicBrokers(stat=stat, counts=dict(sorted(counts.items())), problems=problems)


class LegacyLayout:
    """Layout of Kafka 0.6 and 0.7 in ZooKeeper: a topic's children are its brokers."""

    generation: Final = Generation.LEGACY

    encode_registration = staticmethod(znodes_legacy.encode_registration)
    parse_registration = staticmethod(znodes_legacy.parse_registration)
    parse_broker = staticmethod(znodes_legacy.parse_broker)

    async def read_topic(self, zk: ZkClient, topic: str) -> TopicNode | None:
        """Return a topic's incarnation, and its partitions on the brokers that are there.

        None if the topic has no node. A topic whose brokers are all away has no partitions. If a child of the node
        cannot be parsed, the topic has a problem: every Java member of 0.7 fails to read such a topic. Takes one
        request, and one more for each broker. Raises CoordinationError.

        The incarnation is the ``czxid`` of the topic's node, as for 0.8 and later. But the node is persistent, and
        brokers of Kafka 0.7 never delete it. So it changes only if an operator deletes the node, or with Jafka's
        command that deletes a topic, once no other broker has the topic. A broker that has lost its data and starts
        again has the same incarnation with smaller offsets, which only the policy ``on_above`` notices.
        ``UNKNOWN_INCARNATION`` is not used: it means that claims and positions cannot be compared with the topic.
        """
        found = await read_topic_brokers(zk, topic)
        if found is None:
            return None
        incarnation, stamp = Incarnation(found.stat.czxid), self.stamp_topic(found.stat)
        if found.problems:
            problem = "; ".join(f"{path}: {fault}" for path, fault in sorted(found.problems.items()))
            return TopicNode(incarnation=incarnation, stamp=stamp, replicas={}, problem=problem)
        replicas = {key: (key.broker,) for key in found.partitions if key.broker is not None}
        return TopicNode(incarnation=incarnation, stamp=stamp, replicas=replicas)

    def topic_watches(self, topic: str) -> Mapping[str, WatchKind]:
        """Return the watches that report partitions that come or go, as kinds by path.

        They are for the children of the topic's node, and for those of ``/brokers/ids``: every broker that comes or
        goes is a reason to rebalance. The second watch is the same for all topics.
        """
        return {topic_path(topic): WatchKind.CHILDREN, BROKER_IDS: WatchKind.CHILDREN}

    def stamp_topic(self, stat: Stat) -> NodeStamp:
        """Return the ``czxid`` and the child version of a topic's node, from its stat.

        If the stamp is the same as before, the topic's partitions are the same, too. A broker never changes the content
        of its child of the node: Jafka deletes and re-creates the child to add partitions. The data version of the
        topic's node never changes.
        """
        return (stat.czxid, stat.cversion)

    def leader_path(self, partition: TopicPartition) -> str:
        """Return the path of the node by which the partition's broker registers the topic.

        Raises ValueError for a partition of Kafka 0.8 or later, which names no broker.
        """
        return topic_broker_path(partition.topic, _get_broker(partition))

    async def read_leader(self, zk: ZkClient, partition: TopicPartition) -> PartitionStateNode | None:
        """Return the partition's broker as its leader; None while it does not register the partition.

        Takes one request. Raises MalformedZnode, CoordinationError; ValueError for a partition of Kafka 0.8 or later.
        """
        found = await zk.find(self.leader_path(partition))
        if found is None or partition.partition.number >= znodes_legacy.parse_partition_count(found[0]):
            return None
        broker = _get_broker(partition)
        return PartitionStateNode(leader=broker, leader_epoch=_NO_EPOCH, isr=(broker,), controller_epoch=_NO_EPOCH)

    def birth_path(self, partition: TopicPartition) -> str | None:  # noqa: ARG002 - the same for all
        """Return None: no node is created and deleted with the partition.

        The broker's node under the topic is ephemeral, so after each restart of the broker it is younger than the
        group's positions.
        """
        return None


def _get_broker(partition: TopicPartition) -> BrokerId:
    broker = partition.partition.broker
    if broker is None:
        raise ValueError(f"partition {partition}: expected BROKER-N, as in Kafka 0.6 and 0.7")
    return broker


LEGACY: Final = LegacyLayout()
"""Registry layout of clusters of Kafka 0.6 and 0.7; it has no state."""
