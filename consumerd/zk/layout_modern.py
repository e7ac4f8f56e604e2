# SPDX-License-Identifier: Apache-2.0
"""Paths in ZooKeeper that only Kafka 0.8 and later has; reading topics and leaders.

Pure; paths are without the chroot. Source: Kafka's ``ZkUtils.scala`` (0.8 to 1.0) and ``ZkData.scala`` (1.1 on), and
registries recorded from real clusters. Contents of nodes are in ``zk.znodes``, paths of all releases in ``zk.layout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumerd.model import Generation, Incarnation, TopicPartition
from consumerd.zk import znodes
from consumerd.zk.layout import topic_path
from consumerd.zk.port import Stat, WatchKind, ZkClient
from consumerd.zk.registry_layout import NodeStamp, TopicNode
from consumerd.zk.znodes import MalformedZnode, PartitionStateNode

CONTROLLER: Final = "/controller"
"""Path of the ephemeral node that names the broker that is the controller."""


def partitions_path(topic: str) -> str:
    """Return the path of the parent of a topic's partition nodes."""
    return f"{topic_path(topic)}/partitions"


def partition_path(partition: TopicPartition) -> str:
    """Return the path of a partition's node.

    Its ``czxid``, the transaction that created it, changes if the partition is deleted and created again.
    """
    return f"{partitions_path(partition.topic)}/{partition.partition}"


def partition_state_path(partition: TopicPartition) -> str:
    """Return the path of the node with a partition's leader, epochs and in-sync replicas."""
    return f"{partition_path(partition)}/state"


class ModernLayout:
    """Layout of Kafka 0.8 and later in ZooKeeper: a topic's node lists its partitions."""

    generation: Final = Generation.MODERN

    encode_registration = staticmethod(znodes.encode_registration)
    parse_registration = staticmethod(znodes.parse_registration)
    parse_broker = staticmethod(znodes.parse_broker)

    async def read_topic(self, zk: ZkClient, topic: str) -> TopicNode | None:
        """Return a topic's incarnation and replicas from its node; None if it does not exist.

        Takes one request. Raises CoordinationError.
        """
        found = await zk.find(topic_path(topic))
        if found is None:
            return None
        data, stat = found
        incarnation, stamp = Incarnation(stat.czxid), self.stamp_topic(stat)
        try:
            return TopicNode(incarnation=incarnation, stamp=stamp, replicas=znodes.parse_topic(data))
        except MalformedZnode as error:
            return TopicNode(incarnation=incarnation, stamp=stamp, replicas={}, problem=str(error))

    def topic_watches(self, topic: str) -> Mapping[str, WatchKind]:
        """Return the watches that report new partitions of a topic, as kinds by path.

        It is one watch, for the data of the topic's node.
        """
        return {topic_path(topic): WatchKind.DATA}

    def stamp_topic(self, stat: Stat) -> NodeStamp:
        """Return the ``czxid`` and the data version of a topic's node, from its stat.

        If the stamp is the same as before, the topic's partitions are the same, too.
        """
        return (stat.czxid, stat.version)

    def leader_path(self, partition: TopicPartition) -> str:
        """Return the path of the node with a partition's leader, its node ``state``."""
        return partition_state_path(partition)

    async def read_leader(self, zk: ZkClient, partition: TopicPartition) -> PartitionStateNode | None:
        """Return a partition's leader from its state node; None before it exists.

        Takes one request. Raises MalformedZnode, CoordinationError.
        """
        found = await zk.find(partition_state_path(partition))
        return None if found is None else znodes.parse_partition_state(found[0])

    def birth_path(self, partition: TopicPartition) -> str | None:
        """Return the path of the persistent node that is created and deleted with the partition.

        Never None: clusters of Kafka 0.8 and later have this node for every partition.
        """
        return partition_path(partition)


MODERN: Final = ModernLayout()
"""Registry layout of clusters of Kafka 0.8 and later; it has no state."""
