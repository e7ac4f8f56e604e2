# SPDX-License-Identifier: Apache-2.0
"""What the checks look at: everything of one group, as it was read. Pure values; who reads them is ``reading``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumerd.group.plan import GroupSnapshot, GroupTopic, Holder
from consumerd.landing.chain import LandedEnd, RootRecord
from consumerd.landing.publish import Chain
from consumerd.model import Generation, Incarnation, LogRange, TopicPartition
from consumerd.offsets.positions import Position, read_position
from consumerd.offsets.truncations import NotedStop
from consumerd.zk.layout import id_path
from consumerd.zk.port import Stat
from consumerd.zk.rights import Denial


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as it is."""

    path: str
    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNode(Node):
    """A node that should be about a partition; ``partition`` is None where its name is none's."""

    topic: str
    partition: TopicPartition | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryFacts:
    """What ZooKeeper says of a group, at one moment or nearly.

    ``topics`` has every topic that any node of the group names, None where there is none of that name. ``roots`` is what
    is recorded of file sinks' paths, by node; ``landed_ends`` how far partitions were landed, by root id.
    ``our_sessions`` are those of members that are consumerd's. ``message_limits`` has ``max.message.bytes`` of the topics
    that set it. ``denied`` has the topics that the identity that asks may not claim or commit, ``denied_folders`` the
    folders in which each member makes nodes and it may not. ``wall_ms`` is when this
    was read. ``generation`` is that of the registered brokers, None where none is registered. ``stops`` has the partitions
    that are stopped above their logs' ends.
    """

    group: str
    cluster_id: str | None
    snapshot: GroupSnapshot
    topics: Mapping[str, GroupTopic | None]
    owners: tuple[PartitionNode, ...] = ()
    offsets: tuple[PartitionNode, ...] = ()
    requests: tuple[PartitionNode, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)
    landed_ends: Mapping[tuple[str, TopicPartition], LandedEnd] = field(default_factory=dict)
    our_sessions: frozenset[int] = frozenset()
    message_limits: Mapping[str, int] = field(default_factory=dict)
    denied: Mapping[str, Denial] = field(default_factory=dict)
    denied_folders: Mapping[str, Denial] = field(default_factory=dict)
    wall_ms: int = 0
    generation: Generation | None = None
    stops: Mapping[TopicPartition, NotedStop] = field(default_factory=dict)

    @property
    def legacy_nodes(self) -> list[str]:
        """Paths of nodes in the form of Kafka 0.6/0.7: registrations, and names of partitions with their broker."""
        named = [
            node.path
            for node in (*self.owners, *self.offsets)
            if node.partition is not None and node.partition.is_legacy
        ]
        return [id_path(self.group, one.consumer) for one in self.snapshot.members if one.legacy] + named

    def holders(self) -> dict[TopicPartition, Holder]:
        """Return who holds each partition that has an owner node."""
        return {
            node.partition: Holder(node.data.decode(errors="replace"), node.stat.ephemeral_owner)
            for node in self.owners
            if node.partition is not None
        }

    def has(self, partition: TopicPartition) -> bool:
        """Whether there is such a partition."""
        view = self.topics.get(partition.topic)
        return view is not None and partition.partition in view.partitions

    def find_position(self, node: PartitionNode) -> Position:
        """Return what an offset node holds, judged by the topic as it was read."""
        view = self.topics.get(node.topic)
        return read_position((node.data, node.stat), None if view is None else Incarnation(view.czxid))

    def members_of(self, session_id: int) -> list[str]:
        """Return the members that a session has registered."""
        return [member.consumer for member in self.snapshot.members if member.session_id == session_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenLeftover:
    """A file that was never published."""

    path: Path
    partition: TopicPartition
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingFacts:
    """What is at a sink's path, or the quarantine's (``sink`` None). ``recorded_root`` is what ZooKeeper has of it.

    ``chains`` has the newest chain of each partition that has any, ``problems`` what is wrong with others, by partition.
    ``problem`` is about the path as a whole.
    """

    setting: str
    path: Path
    there: bool = False
    root: RootRecord | None = None
    recorded_root: str | None = None
    recorded_at: str | None = None
    problem: str | None = None
    chains: Mapping[TopicPartition, Chain] = field(default_factory=dict)
    problems: Mapping[TopicPartition, str] = field(default_factory=dict)
    leftovers: tuple[HiddenLeftover, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What brokers hold of the partitions asked for; those that could not be asked are missing."""

    asked: frozenset[TopicPartition] = frozenset()
    ranges: Mapping[TopicPartition, LogRange] = field(default_factory=dict)
