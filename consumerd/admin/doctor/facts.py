# SPDX-License-Identifier: Apache-2.0
"""State of a consumer group, its logs and its landing folders, read for ``consumerd doctor``.

Values only. ``doctor.reading`` reads them; the modules ``*_checks`` find problems in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumerd.group.plan import GroupSnapshot, GroupTopic, Holder
from consumerd.landing.chain import LandedEnd, RootRecord
from consumerd.landing.publish import Chain
from consumerd.model import BrokerId, Generation, Incarnation, LogRange, TopicPartition
from consumerd.offsets.away import AwayBroker, group_away
from consumerd.offsets.kafka import OFFSETS_TOPIC
from consumerd.offsets.positions import NOTHING_KEPT, KeptPositions, Position, StoredEntry
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place
from consumerd.offsets.truncations import NotedStop
from consumerd.zk.layout import id_path, offset_path
from consumerd.zk.port import Stat
from consumerd.zk.rights import Denial


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Znode in ZooKeeper, with its content."""

    path: str
    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNode(Node):
    """Znode whose name should be a partition, such as an owner node.

    ``partition`` is None if the name is not that of a partition.
    """

    topic: str
    partition: TopicPartition | None

    @property
    def session_id(self) -> int:
        """Id of the session that the znode is deleted with; 0 if it is permanent."""
        return self.stat.ephemeral_owner


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryFacts:
    """State of a consumer group, read from ZooKeeper; positions come from Kafka, too.

    The nodes are read in quick succession, not atomically.

    Args:
        snapshot: Registered members and the topics that they subscribe to.
        topics: Every topic that a znode of the group names; None for one that does not exist.
        owners: Owner nodes.
        offsets: Offset nodes, with the positions that they hold.
        requests: Nodes in which an operator has asked a member to move a position.
        roots: Id that each file sink's landing folder must have, by the path of the znode that records it.
        landed_ends: Offsets up to which file sinks have written, as recorded in ZooKeeper, by the landing folder's id
            and partition.
        our_sessions: ZooKeeper session ids of members that are consumerd processes.
        message_limits: ``max.message.bytes`` of the topics that set it.
        denied: Topics that the ZooKeeper identity used here may not claim or commit.
        denied_folders: Parent znodes, such as ``ids``, below which that identity may not create members' nodes.
        open_folders: Folders of owners and offsets that everybody may change, although ``cluster.zookeeper_acl`` would
            protect them.
        protecting_acl: ACL that would protect them, for ``setAcl``.
        wall_ms: Time of reading, in ms since the epoch.
        generation: Kafka 0.7 (with 0.6) or 0.8 and later, by the settings or the registered brokers; None if neither
            tells.
        brokers: Ids of the registered brokers.
        stops: Partitions that a member has stopped because their position is above the end of the log.
        kept: Committed positions in ZooKeeper and in Kafka.
        places: Stores in which members read committed positions, by the settings: ZooKeeper, Kafka, or both.
        incarnations: Existing topics by id, in a cluster without ZooKeeper; None in one with it.
        coordinated: Partitions of members whom a broker coordinates.
    """

    group: str
    cluster_id: str | None
    snapshot: GroupSnapshot
    topics: Mapping[str, GroupTopic | None]
    owners: tuple[PartitionNode, ...] = ()
    offsets: tuple[StoredEntry, ...] = ()
    requests: tuple[PartitionNode, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)
    landed_ends: Mapping[tuple[str, TopicPartition], LandedEnd] = field(default_factory=dict)
    our_sessions: frozenset[int] = frozenset()
    message_limits: Mapping[str, int] = field(default_factory=dict)
    denied: Mapping[str, Denial] = field(default_factory=dict)
    denied_folders: Mapping[str, Denial] = field(default_factory=dict)
    open_folders: tuple[str, ...] = ()
    protecting_acl: str = ""
    wall_ms: int = 0
    generation: Generation | None = None
    brokers: Collection[BrokerId] = frozenset()
    stops: Mapping[TopicPartition, NotedStop] = field(default_factory=dict)
    kept: KeptPositions = NOTHING_KEPT
    places: Collection[Place] = ZOOKEEPER_ONLY
    incarnations: Mapping[str, Incarnation] | None = None
    coordinated: Collection[TopicPartition] = frozenset()

    def find_incarnation(self, topic: str) -> Incarnation | None:
        """Return a topic's incarnation; None for one that does not exist."""
        if self.incarnations is not None:
            return self.incarnations.get(topic)
        view = self.topics.get(topic)
        return None if view is None else Incarnation(view.czxid)

    @property
    def legacy_nodes(self) -> list[str]:
        """Paths of znodes in the format of Kafka 0.6 or 0.7.

        These are member registrations, and owner and offset nodes whose names contain a broker id.
        """
        nodes: tuple[PartitionNode | StoredEntry, ...] = (*self.owners, *self.offsets)
        named = [one.path for one in nodes if one.partition is not None and one.partition.is_legacy]
        return [id_path(self.group, one.consumer) for one in self.snapshot.members if one.legacy] + named

    def list_counting(self) -> dict[TopicPartition, tuple[str, Position]]:
        """Return the committed position from which members continue, for each partition.

        Each value is a pair: the place where the position is stored, and the position. A place is the path of an offset
        node in ZooKeeper, or a text that names the topic ``__consumer_offsets`` and the partition.
        """
        nodes = {one.partition: (one.path, one.position) for one in self.offsets if one.partition is not None}
        if Place.KAFKA not in self.places:
            return nodes
        counting = {
            one: self.kept.find_counting(one, self.places)
            for one in sorted(self.kept.zookeeper.keys() | self.kept.kafka.keys())
        }
        return {
            one: (f"{OFFSETS_TOPIC} {one}" if found.place is Place.KAFKA else offset_path(self.group, one), found)
            for one, found in counting.items()
        }

    def holders(self) -> dict[TopicPartition, Holder]:
        """Return the owner's thread id and session, for each partition that has an owner node."""
        return {
            node.partition: Holder(node.data.decode(errors="replace"), node.stat.ephemeral_owner)
            for node in self.owners
            if node.partition is not None
        }

    def has(self, partition: TopicPartition) -> bool:
        """Return True if the topic exists and has this partition."""
        view = self.topics.get(partition.topic)
        return view is not None and partition.partition in view.partitions

    def find_away(self) -> tuple[AwayBroker, ...]:
        """Return the partitions with a position that are away, by broker."""
        stored = (one.partition for one in self.offsets if one.partition is not None)
        return group_away(filter(self.is_away, stored), self.brokers)

    def is_away(self, partition: TopicPartition) -> bool:
        """Return True if a partition of an existing topic is away."""
        view = self.topics.get(partition.topic)
        is_read = view is not None and view.problem is None
        return self.generation is Generation.LEGACY and partition.is_legacy and is_read and not self.has(partition)

    def members_of(self, session_id: int) -> list[str]:
        """Return the ids of the members that are registered with this ZooKeeper session."""
        return [member.consumer for member in self.snapshot.members if member.session_id == session_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenLeftover:
    """Temporary file that a sink has begun to write and not published.

    It is in the sink's landing folder. ``partition`` is that of its records; ``modified_ms`` is the time of its last
    modification, in ms since the epoch.
    """

    path: Path
    partition: TopicPartition
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingFacts:
    """State of the folder into which a file sink, or the quarantine, writes.

    A *chain* is the sequence of files of one partition that continues without a gap.

    Args:
        setting: Name of the setting that gives the path.
        path: The folder.
        there: True if the folder exists.
        root: Record of the group and sink that own the folder, from a file in it; None if there is none.
        recorded_root: Id of the folder that ZooKeeper records for the sink; None if it records none.
        recorded_at: Path of the znode with that record; None if there is no such znode.
        problem: Reason why the folder as a whole cannot be used; None if it can.
        chains: Newest chain of each partition that has files.
        problems: Reason why a partition's chain cannot be used, for the partitions concerned.
        leftovers: Temporary files that were never published.
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
    """Offset ranges of partition logs, as their leaders report them.

    Attributes:
        asked: Partitions whose leaders were asked: those with a committed position.
        ranges: Start and end of the log; partitions whose leader did not answer are missing.
    """

    asked: frozenset[TopicPartition] = frozenset()
    ranges: Mapping[TopicPartition, LogRange] = field(default_factory=dict)
