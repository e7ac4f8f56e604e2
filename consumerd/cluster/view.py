# SPDX-License-Identifier: Apache-2.0
"""The cluster as values: brokers, topics, partitions, leaders; and how two accounts of it are merged and compared.

Pure. Two sources tell about a cluster, and they differ for moments, on every change:

- **ZooKeeper** is what the brokers themselves act upon: the controller writes a leader there first and tells the
  brokers then. It alone knows a topic's incarnation. But it names a leader before that broker serves the partition, and
  of a broker with several listeners it cannot say which of them we can reach.
- **Metadata** is what one broker was last told by the controller. It knows the listener that we came by. A broker that
  is cut off from its controller goes on telling what was true before.

So addresses are Metadata's as long as a broker answers, topics and incarnations ZooKeeper's, and leaders ZooKeeper's as
long as it can be read.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.net.address import Address
from consumerd.telemetry.wording import join_shown

_NAMED: Final = 20
"""Brokers or partitions that a disagreement names; the others are counted."""
NO_EPOCH: Final = -1
NO_ERROR: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker, and the listener by which we reach it."""

    id: BrokerId
    host: str
    port: int
    tls: bool = False
    rack: str | None = None

    @property
    def address(self) -> Address:
        """The listener."""
        return Address(host=self.host, port=self.port, tls=self.tls)

    def __str__(self) -> str:
        return f"{self.id} at {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition; ``leader`` is None while there is none. ``error`` is Metadata's code, 0 where it has none."""

    leader: BrokerId | None
    leader_epoch: int = NO_EPOCH
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()
    error: int = NO_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic. ``incarnation`` is None where only Metadata tells of it; ``error`` is Metadata's code for the topic."""

    name: str
    partitions: Mapping[PartitionKey, PartitionView] = field(default_factory=dict)
    incarnation: Incarnation | None = None
    error: int = NO_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What is known of a cluster at one moment; a topic that is not listed is not there, or was not asked about."""

    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    cluster_id: str | None = None
    controller: BrokerId | None = None

    def find_partition(self, partition: TopicPartition) -> PartitionView | None:
        """Return what is known of a partition."""
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to ask for a partition; None while it has no leader, or one whose address is unknown."""
        known = self.find_partition(partition)
        return None if known is None else self._find_leader(known)

    def _find_leader(self, partition: PartitionView) -> Broker | None:
        return None if partition.leader is None else self.brokers.get(partition.leader)

    @property
    def leaderless(self) -> tuple[TopicPartition, ...]:
        """The partitions that cannot be read now, in order."""
        return tuple(sorted(self._find_leaderless()))

    @property
    def has_leaderless(self) -> bool:
        """Whether any partition cannot be read now."""
        return next(self._find_leaderless(), None) is not None

    @property
    def size(self) -> int:
        """The number of brokers and partitions."""
        return len(self.brokers) + sum(len(topic.partitions) for topic in self.topics.values())

    def _find_leaderless(self) -> Iterator[TopicPartition]:
        for topic, view in self.topics.items():
            for key, partition in view.partitions.items():
                if self._find_leader(partition) is None:
                    yield TopicPartition(topic, key)


EMPTY_VIEW: Final = ClusterView()


class Aspect(enum.StrEnum):
    """What two accounts disagree about."""

    BROKERS = "brokers"
    TOPIC = "topic"
    PARTITIONS = "partitions"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class MetadataDisagreement:
    """One difference between ZooKeeper and Metadata; ``subject`` is a topic or a partition, as text."""

    aspect: Aspect
    subject: str
    zookeeper: str
    metadata: str

    def __str__(self) -> str:
        return f"{self.aspect} {self.subject}: ZooKeeper has {self.zookeeper}, Metadata has {self.metadata}"


def merge_views(
    zookeeper: ClusterView | None,
    metadata: ClusterView | None,
    *,
    stale_zookeeper: bool = False,
    stale_metadata: bool = False,
) -> ClusterView:
    """Make one view of two accounts, either of which may be missing.

    Args:
        zookeeper: The account of ZooKeeper.
        metadata: The account of a broker.
        stale_zookeeper: ZooKeeper cannot be read now. Leaders are Metadata's then, and topics that only Metadata knows
            are kept.
        stale_metadata: No broker answers now. Brokers are those that ZooKeeper registers then, at the addresses that
            they registered: all may have moved, and an address of an older response would never be left.
    """
    if zookeeper is None or metadata is None:
        return zookeeper or metadata or EMPTY_VIEW
    names = {*zookeeper.topics, *(metadata.topics if stale_zookeeper else ())}
    topics = {
        name: _merge_topic(name, zookeeper.topics.get(name), metadata.topics.get(name), stale=stale_zookeeper)
        for name in sorted(names)
    }
    registered = stale_metadata and not stale_zookeeper and bool(zookeeper.brokers)
    return ClusterView(
        brokers=zookeeper.brokers if registered else dict(sorted({**zookeeper.brokers, **metadata.brokers}.items())),
        topics=topics,
        cluster_id=zookeeper.cluster_id or metadata.cluster_id,
        controller=metadata.controller if stale_zookeeper else zookeeper.controller,
    )


def _merge_topic(name: str, zookeeper: TopicView | None, metadata: TopicView | None, *, stale: bool) -> TopicView:
    if zookeeper is None or metadata is None:
        return zookeeper or metadata or TopicView(name=name)
    partitions = {
        key: _merge_partition(zookeeper.partitions.get(key), metadata.partitions.get(key), stale=stale)
        for key in sorted({*zookeeper.partitions, *metadata.partitions})
    }
    return TopicView(name=name, partitions=partitions, incarnation=zookeeper.incarnation, error=metadata.error)


def _merge_partition(zookeeper: PartitionView | None, metadata: PartitionView | None, *, stale: bool) -> PartitionView:
    """Choose; ``stale`` says which is to be believed. At least one is there, since a key comes from one of the two."""
    preferred, other = (metadata, zookeeper) if stale else (zookeeper, metadata)
    if preferred is None or (other is not None and preferred.leader is None and preferred.leader_epoch == NO_EPOCH):
        # not "there is no leader", but "nothing is known of one": the other may have been read a moment later
        preferred = other
    assert preferred is not None
    return preferred


def compare_views(zookeeper: ClusterView, metadata: ClusterView) -> list[MetadataDisagreement]:
    """List the differences that matter to a consumer, in a fixed order. Both must be about the same topics.

    A broker that lists no brokers at all is not taken at its word: 0.8 does so until the first topic is made.
    """
    found = []
    if metadata.brokers and set(zookeeper.brokers) != set(metadata.brokers):
        found.append(MetadataDisagreement(Aspect.BROKERS, "", _name(zookeeper.brokers), _name(metadata.brokers)))
    for name in sorted({*zookeeper.topics, *metadata.topics}):
        theirs, ours = zookeeper.topics.get(name), metadata.topics.get(name)
        if theirs is None or ours is None:
            found.append(MetadataDisagreement(Aspect.TOPIC, name, _presence(theirs), _presence(ours)))
            continue
        if ours.error and not ours.partitions:
            found.append(MetadataDisagreement(Aspect.TOPIC, name, "the topic", f"error {ours.error}"))
            continue
        found += _compare_partitions(theirs, ours)
    return found


def _compare_partitions(zookeeper: TopicView, metadata: TopicView) -> list[MetadataDisagreement]:
    found = []
    if set(zookeeper.partitions) != set(metadata.partitions):
        found.append(
            MetadataDisagreement(
                Aspect.PARTITIONS, zookeeper.name, _name(zookeeper.partitions), _name(metadata.partitions)
            )
        )
    for key in sorted({*zookeeper.partitions} & {*metadata.partitions}):
        theirs, ours = zookeeper.partitions[key].leader, metadata.partitions[key].leader
        unknown = theirs is None and zookeeper.partitions[key].leader_epoch == NO_EPOCH
        if theirs != ours and not unknown:
            subject = str(TopicPartition(zookeeper.name, key))
            found.append(MetadataDisagreement(Aspect.LEADER, subject, _leader(theirs), _leader(ours)))
    return found


def _name(keys: Iterable[BrokerId] | Iterable[PartitionKey]) -> str:
    return join_shown(sorted(keys), _NAMED) or "none"


def _presence(topic: TopicView | None) -> str:
    return "no such topic" if topic is None else "the topic"


def _leader(leader: BrokerId | None) -> str:
    return "none" if leader is None else str(leader)
