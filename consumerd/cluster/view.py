# SPDX-License-Identifier: Apache-2.0
"""The view of a cluster: brokers, topics, partitions, leaders; merging and comparing two views.

Pure. Two sources describe a cluster, and differ briefly after every change:

- **ZooKeeper** is authoritative for the brokers: the controller writes a new leader there first, and then informs the
  brokers. Only ZooKeeper has a topic's incarnation. But it names a leader before that broker serves the partition, and
  of a broker with several listeners it cannot tell which one we can reach.
- **Metadata** is one broker's knowledge, last updated by the controller. It has the listener that our request came
  through. A broker that is cut off from the controller keeps returning old state.

So addresses are taken from Metadata as long as a broker responds; topics and incarnations from ZooKeeper; and leaders
from ZooKeeper as long as it can be read.

Example: ZooKeeper says that broker 2 leads T/0, Metadata says broker 1. In the merged view broker 2 leads, at the
address that Metadata has for it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.net.address import Address
from consumerd.telemetry.wording import join_shown

_NAMED: Final = 20
"""Brokers or partitions named in a disagreement, at most; others are counted."""
NO_EPOCH: Final = -1
NO_ERROR: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker, with the address of the listener through which this process reaches it."""

    id: BrokerId
    host: str
    port: int
    tls: bool = False
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Address of the broker's listener."""
        return Address(host=self.host, port=self.port, tls=self.tls)

    def __str__(self) -> str:
        return f"{self.id} at {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """State of one partition, as ZooKeeper or a broker tells it.

    ``leader`` is None if the partition has no leader. ``error`` is the partition's error code in Metadata, 0 for none.
    """

    leader: BrokerId | None
    leader_epoch: int = NO_EPOCH
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()
    error: int = NO_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic, as ZooKeeper or a broker tells it.

    Attributes:
        incarnation: identity of the topic across re-creation; None in a cluster with ZooKeeper if only Metadata knows
            the topic.
        error: the topic's error code in Metadata, 0 for none.
    """

    name: str
    partitions: Mapping[PartitionKey, PartitionView] = field(default_factory=dict)
    incarnation: Incarnation | None = None
    error: int = NO_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster's state at one moment.

    A topic that is not in ``topics`` does not exist, or was not requested.
    """

    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    cluster_id: str | None = None
    controller: BrokerId | None = None

    def find_partition(self, partition: TopicPartition) -> PartitionView | None:
        """Return the state of a partition; None if the view does not have it."""
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the partition's leader.

        None if the partition has no leader, or the leader's address is unknown.
        """
        known = self.find_partition(partition)
        return None if known is None else self._find_leader(known)

    def _find_leader(self, partition: PartitionView) -> Broker | None:
        return None if partition.leader is None else self.brokers.get(partition.leader)

    @property
    def leaderless(self) -> tuple[TopicPartition, ...]:
        """Partitions without a leader whose address is known, sorted: they cannot be read now."""
        return tuple(sorted(self._find_leaderless()))

    @property
    def has_leaderless(self) -> bool:
        """True if a partition has no leader whose address is known."""
        return next(self._find_leaderless(), None) is not None

    @property
    def size(self) -> int:
        """Number of brokers and partitions, together."""
        return len(self.brokers) + sum(len(topic.partitions) for topic in self.topics.values())

    def _find_leaderless(self) -> Iterator[TopicPartition]:
        for topic, view in self.topics.items():
            for key, partition in view.partitions.items():
                if self._find_leader(partition) is None:
                    yield TopicPartition(topic, key)


EMPTY_VIEW: Final = ClusterView()


class ClusterSource(Protocol):
    """Source of brokers, topics and leaders: ZooKeeper, or the brokers."""

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Read the brokers and the named topics; None reads all topics.

        Topics that do not exist are left out. Each source limits the time. Raises CoordinationError (ZooKeeper) or
        ConnectionLost (brokers) if nothing could be read.
        """


class RegistrySource(ClusterSource, Protocol):
    """ZooKeeper as a source of brokers and topics; each leader costs one read more."""

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        """Read the brokers and the named topics; None reads all topics.

        Topics that do not exist are left out. The time is limited. Raises CoordinationError if nothing could be read.

        Args:
            leaders: False to leave out the partitions' leaders.
        """


class Aspect(enum.StrEnum):
    """Fact on which ZooKeeper and Metadata disagree, such as a partition's leader."""

    BROKERS = "brokers"
    TOPIC = "topic"
    PARTITIONS = "partitions"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class MetadataDisagreement:
    """One difference between ZooKeeper and Metadata.

    Attributes:
        aspect: kind of the difference.
        subject: the topic or partition concerned.
        zookeeper: the fact according to ZooKeeper, in words.
        metadata: the fact according to Metadata, in words.
    """

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
    """Return one view of the cluster from ZooKeeper's and a broker's; either may be missing.

    Args:
        zookeeper: The view of ZooKeeper, or None.
        metadata: The view of a broker, or None.
        stale_zookeeper: True if ZooKeeper cannot be read now. Then leaders come from Metadata, and topics that only
            Metadata knows are kept.
        stale_metadata: True if no broker responds now. Then brokers and addresses are those registered in ZooKeeper:
            the addresses in Metadata may be out of date, and without a response they would be tried for ever.
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
    """Return the view to use: Metadata's if ``stale``, else ZooKeeper's.

    At least one is given, since the key comes from one of the two.
    """
    preferred, other = (metadata, zookeeper) if stale else (zookeeper, metadata)
    if preferred is None or (other is not None and preferred.leader is None and preferred.leader_epoch == NO_EPOCH):
        # the leader is unknown, rather than missing: the other view may have it
        preferred = other
    assert preferred is not None
    return preferred


def compare_views(zookeeper: ClusterView, metadata: ClusterView) -> list[MetadataDisagreement]:
    """Return the differences between ZooKeeper and a broker that matter to a consumer, sorted.

    Both views must be about the same topics. A Metadata response without any broker counts as no difference: brokers of
    0.8 send one until the first topic is created.
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
