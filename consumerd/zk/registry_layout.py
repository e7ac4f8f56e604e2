# SPDX-License-Identifier: Apache-2.0
"""Interface to the paths and contents in ZooKeeper that differ between releases of Kafka.

Brokers of 0.6/0.7 and of 0.8 and later keep brokers, topics and groups under the same parents (``zk.layout``), in
different nodes and formats. A cluster of one of the two generations gets its :class:`RegistryLayout` when its
generation is known. Only the implementations know these formats: ``zk.layout_legacy`` is the one for 0.6 and 0.7,
``zk.layout_modern`` that for 0.8 and later.

A layout has no state. It reads through the client that is passed to its methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from consumerd.model import BrokerId, Generation, Incarnation, PartitionKey, TopicPartition
from consumerd.zk.port import Stat, WatchKind, ZkClient
from consumerd.zk.znodes import BrokerRegistration, MemberRegistration, PartitionStateNode

NodeStamp = tuple[int, int]
"""Version of a znode: its creating transaction, and the counter of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNode:
    """A topic as registered in ZooKeeper: incarnation, stamp, and replicas by partition.

    ``stamp`` is a version of the partitions: with equal stamps they are equal. ``replicas`` has, in the order of
    partitions, the ids of the brokers of each. ``problem`` says why the topic's nodes cannot be parsed, and
    ``replicas`` is empty then; None if they could be parsed.
    """

    incarnation: Incarnation
    stamp: NodeStamp
    replicas: Mapping[PartitionKey, tuple[BrokerId, ...]]
    problem: str | None = None


class RegistryLayout(Protocol):
    """Nodes and formats in which one generation of Kafka keeps brokers, topics and members.

    There are two generations: Kafka 0.6 and 0.7, and Kafka 0.8 and later.
    """

    @property
    def generation(self) -> Generation:
        """Generation of the brokers that keep this registry."""

    # -- payloads

    def encode_registration(self, registration: MemberRegistration) -> bytes:
        """Return the content of a member's node under ``/consumers/<group>/ids``."""

    def parse_registration(self, data: bytes) -> MemberRegistration:
        """Parse a member's node under ``/consumers/<group>/ids``.

        Raises MalformedZnode, also for a member of the other generation; for one of Kafka 0.6 or 0.7 in a cluster of
        0.8 or later this is LegacyRegistration.
        """

    def parse_broker(self, broker: BrokerId, data: bytes) -> BrokerRegistration:
        """Parse a broker's node under ``/brokers/ids``. Raises MalformedZnode."""

    # -- topics

    async def read_topic(self, zk: ZkClient, topic: str) -> TopicNode | None:
        """Return a topic's incarnation and replicas; None if it does not exist.

        Raises CoordinationError.
        """

    def topic_watches(self, topic: str) -> Mapping[str, WatchKind]:
        """Return the watches that report changes of a topic's partitions: kinds by path.

        Two topics may have a watch in common.
        """

    def stamp_topic(self, stat: Stat) -> NodeStamp:
        """Return the stamp of a topic's partitions, from the stat of the topic's node.

        If the stamp is the same as before, the partitions are the same, too.
        """

    # -- partitions

    def leader_path(self, partition: TopicPartition) -> str:
        """Return the path of the node that names a partition's leader."""

    async def read_leader(self, zk: ZkClient, partition: TopicPartition) -> PartitionStateNode | None:
        """Return a partition's leader; None before the partition is created.

        Raises MalformedZnode, CoordinationError.
        """

    def birth_path(self, partition: TopicPartition) -> str | None:
        """Return the path of the node that is created and deleted with the partition.

        None if there is no such node.
        """
