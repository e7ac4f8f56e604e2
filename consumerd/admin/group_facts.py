# SPDX-License-Identifier: Apache-2.0
"""Facts about all consumer groups of a cluster, as ZooKeeper and the brokers tell them.

The number of requests is limited: topics, lists of groups and log ranges are read once for all groups; the groups' own
znodes and positions are read for a few groups at a time.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from consumerd.admin.inspection import check_topics, choose_places, follow_topics, read_members, read_owners
from consumerd.admin.lag import LagBasis, RangesOrReasons, find_ranges
from consumerd.aio.parallel import map_bounded
from consumerd.client.coordinator import choose_offsets_partition
from consumerd.client.group_coordinators import (
    NO_GROUP,
    GroupCoordinators,
    GroupDetails,
    ListedGroups,
    MemberDetails,
    find_owners,
)
from consumerd.client.opening import ClusterAccess
from consumerd.client.remedies import advise_right
from consumerd.cluster.view import Broker
from consumerd.group.plan import GroupSnapshot, Stamp
from consumerd.model import TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.kafka import OFFSETS_TOPIC
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import NOTHING_KEPT, KeptPositions
from consumerd.offsets.store import Place
from consumerd.telemetry.wording import counted, join_shown
from consumerd.wire.errorcodes import ErrorCode
from consumerd.zk.layout import CONSUMERS, owners_root
from consumerd.zk.port import NotPermitted, list_names

_GROUPS_AT_ONCE: Final = 32
"""Groups that are read at the same time. Most of them send ZooKeeper one request after the other."""
_LONGEST_PATIENCE_S: Final = 3.0
"""Time limit for a coordinator that has moved since it was listed, in seconds."""
_NO_SNAPSHOT: Final = GroupSnapshot(stamp=Stamp(ids=(0, 0), names=None, topics={}), members=(), topics={})
_SHOWN: Final = 3
"""Brokers or topics that a text names."""


class RegisteredIn(enum.StrEnum):
    """System in which a group's members are registered: ZooKeeper or a broker that coordinates them."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    BOTH = "both"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Facts that were read of one group.

    Attributes:
        has_node: True if it has a node below ``/consumers``.
        snapshot: Its members in ZooKeeper, with their topics.
        coordinated: The description of its coordinator; None if no broker lists the group.
        owners: Owner nodes, and assignments of members that a broker coordinates.
        topics: Topics that members subscribe to or own, or that have positions.
        problem: Why the group's nodes could not be read; empty otherwise.
    """

    group: str
    has_node: bool
    snapshot: GroupSnapshot = _NO_SNAPSHOT
    coordinated: GroupDetails | None = None
    kept: KeptPositions = NOTHING_KEPT
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def is_there(self) -> bool:
        """False if neither ZooKeeper nor a broker knows the group."""
        return self.has_node or self.coordinated is not None or bool(self.kept.kafka)

    @property
    def coordinated_members(self) -> tuple[MemberDetails, ...]:
        """The members that a broker coordinates."""
        return self.coordinated.members if self.coordinated is not None else ()

    @property
    def registered(self) -> RegisteredIn:
        """The place where its members are registered."""
        if self.snapshot.members:
            return RegisteredIn.BOTH if self.coordinated_members else RegisteredIn.ZOOKEEPER
        return RegisteredIn.KAFKA if self.coordinated_members else RegisteredIn.NONE

    def make_basis(
        self,
        places: Collection[Place],
        found: RangesOrReasons,
        reading: GroupsReading,
        wanted: Collection[str] = (),
    ) -> LagBasis:
        """Return what its lag is counted from."""
        coordinated = NO_GROUP if self.coordinated is None or self.snapshot.members else self.coordinated
        topics = self.topics.intersection(wanted) if wanted else self.topics
        kept = {one for one in (*self.kept.zookeeper, *self.kept.kafka) if one.topic in topics}
        return LagBasis(
            group=self.group,
            partitions=sorted(kept.union(reading.list_partitions(topics))),
            kept=self.kept,
            places=choose_places(coordinated, places),
            owners=self.owners,
            found=found,
            deleted=topics - reading.topics,
            has_zookeeper=reading.has_zookeeper,
        )


class GroupsReading:
    """Reads groups, after what is common to all of them was read.

    Args:
        listed: Groups that brokers coordinate.
        in_zookeeper: Groups that have a node below ``/consumers``.
        topics: Topics that exist.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        listed: ListedGroups,
        in_zookeeper: Collection[str],
        topics: Collection[str],
        patience_s: float,
    ) -> None:
        self._access = access
        self._listed = listed
        self._in_zookeeper = frozenset(in_zookeeper)
        self._patience_s = patience_s
        self._partitions = {
            name: [TopicPartition(name, key) for key in view.partitions]
            for name, view in access.directory.view.topics.items()
        }
        self.topics = frozenset(topics)
        self.names = sorted(self._in_zookeeper.union(listed.groups))
        self._leaderless = [
            one for one in self._partitions.get(OFFSETS_TOPIC, ()) if access.directory.find_leader(one) is None
        ]
        self._details: dict[str, GroupDetails] = {}

    @property
    def has_zookeeper(self) -> bool:
        """False if the cluster is given by its brokers alone."""
        return self._access.has_zookeeper

    @property
    def notes(self) -> list[str]:
        """Facts about all groups."""
        if not self._listed.too_old:
            return []
        older = join_shown([f"broker {one}" for one in sorted(self._listed.too_old)], _SHOWN)
        text = f"{older}: older than 0.9, lists no groups. A group that has positions in Kafka only is not shown"
        return [text]

    @property
    def problems(self) -> list[str]:
        """Why groups may be missing, or be shown in part."""
        found = [f"groups may be missing: {one}" for one in self._listed.problems.values()]
        if self._leaderless:
            every = counted(len(self._partitions[OFFSETS_TOPIC]), "partition")
            found.append(
                f"groups may be missing: {len(self._leaderless)} of {every} of {OFFSETS_TOPIC} have no leader: are "
                "the brokers of its replicas up?"
            )
        return found

    def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the existing partitions of these topics."""
        return [one for topic in topics for one in self._partitions.get(topic, ())]

    async def read_groups(self) -> list[GroupFacts]:
        """Read all groups. Raises CoordinationError."""
        await self._describe(self.names)
        found = await map_bounded(self.names, self._read, in_flight=_GROUPS_AT_ONCE)
        return list(found.values())

    async def read_group(self, group: str) -> GroupFacts:
        """Read one group, which may be missing. Raises CoordinationError."""
        await self._describe([group])
        return await self._read(group)

    async def find_ranges(self, facts: Sequence[GroupFacts], wanted: Collection[str]) -> RangesOrReasons:
        """Return the log ranges of the groups' partitions, each read once.

        Partitions with a position that are not registered are included, with the reason why they have no range.
        """
        topics = frozenset[str]().union(*(one.topics for one in facts))
        topics = topics.intersection(wanted) if wanted else topics
        kept = {partition for one in facts for partition in (*one.kept.zookeeper, *one.kept.kafka)}
        partitions = kept.union(self.list_partitions(topics))
        asked = [one for one in sorted(partitions) if one.topic in topics and one.topic in self.topics]
        return await find_ranges(self._access, asked, timeout_s=self._patience_s)

    async def _describe(self, names: Collection[str]) -> None:
        coordinators = _make_coordinators(self._access, self._patience_s)
        self._details = await coordinators.describe_groups(
            [self._listed.groups[name] for name in names if name in self._listed.groups]
        )

    async def _read(self, group: str) -> GroupFacts:
        details = self._details.get(group)
        facts = GroupFacts(group=group, has_node=group in self._in_zookeeper, coordinated=details)
        try:
            return await self._read_positions(await self._read_nodes(facts))
        except NotPermitted as error:
            return replace(facts, problem=str(error))  # the other groups are shown all the same

    async def _read_nodes(self, facts: GroupFacts) -> GroupFacts:
        """Read members and owners in ZooKeeper, and add assignments that a broker has told."""
        snapshot, owned = _NO_SNAPSHOT, list[str]()
        if facts.has_node:
            snapshot = await read_members(self._access, facts.group)
            owned = list(await list_names(self._access.zk, owners_root(facts.group)))
        members = facts.coordinated_members
        assigned = find_owners(members)
        subscribed = {topic for one in members for topic in one.topics} | {one.topic for one in assigned}
        owners = await read_owners(self._access, facts.group, self.list_partitions(owned)) if owned else {}
        return replace(
            facts,
            snapshot=snapshot,
            owners={**assigned, **owners},
            topics=frozenset({*snapshot.topics, *owned, *subscribed}),
        )

    async def _read_positions(self, facts: GroupFacts) -> GroupFacts:
        in_zookeeper = GroupPositions(self._access.cluster.session, facts.group, topics=self._access.topics)
        topics = facts.topics.union(await in_zookeeper.list_topics() if facts.has_node else ())
        coordinator, unknown = self._find_coordinator(facts)
        if coordinator is None:
            kept = KeptPositions(zookeeper=await in_zookeeper.read(topics), unknown=unknown)
        else:
            positions = open_positions(
                self._access.cluster,
                facts.group,
                patience_s=min(_LONGEST_PATIENCE_S, self._patience_s),
                coordinator=coordinator,
                every_partition=[one for listed in self._partitions.values() for one in listed],
            )
            kept = self._add_hidden(await positions.read_kept(), topics)
        return replace(facts, kept=kept, topics=topics.union(one.topic for one in kept.kafka))

    def _add_hidden(self, kept: KeptPositions, topics: Collection[str]) -> KeptPositions:
        """Add partitions whose positions the coordinator leaves out, since we may not describe their topics."""
        view = self._access.directory.view
        hidden = sorted(
            topic
            for topic in topics
            if topic in view.topics and view.topics[topic].error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        if not hidden or kept.unknown:
            return kept
        principal = self._access.cluster.address.principal
        unknown = "; ".join(f"{topic}: {advise_right('Describe', topic, principal)}" for topic in hidden[:_SHOWN])
        return replace(kept, unknown=unknown, refused=frozenset(self.list_partitions(hidden)))

    def _find_coordinator(self, facts: GroupFacts) -> tuple[Broker | None, str]:
        """Return the broker to ask for a group's positions in Kafka.

        None if there are none, or with the reason if they are unknown.
        """
        partitions = self._partitions.get(OFFSETS_TOPIC)
        if facts.coordinated is not None:
            coordinator: Broker | None = facts.coordinated.coordinator
        elif not partitions:
            # there is no such topic, or we may not describe it: then the lists of groups are all that can be known
            return None, "; ".join(self._listed.problems.values())
        else:
            number = choose_offsets_partition(facts.group, len(partitions))
            coordinator = self._access.directory.find_leader(TopicPartition.modern(OFFSETS_TOPIC, number))
        if coordinator is None:
            return None, f"its partition of {OFFSETS_TOPIC} has no leader"
        if coordinator.id in self._listed.silent:
            return None, self._listed.problems[coordinator.id]
        if facts.coordinated is not None and facts.coordinated.is_silent:
            return None, facts.coordinated.failure
        if facts.coordinated is None and coordinator.id in self._listed.complete:
            return None, ""  # a broker lists each group that has positions
        return coordinator, ""


async def read_all_groups(access: ClusterAccess, patience_s: float, wanted: Collection[str] = ()) -> GroupsReading:
    """Read topics and lists of groups.

    Raises CoordinationError, ConfigError for a wanted topic that is missing.
    """
    if wanted:
        await check_topics(access.topics, wanted)
    await follow_topics(access, ())
    topics = await access.topics.list_topics()
    in_zookeeper = await list_names(access.zk, CONSUMERS) if access.has_zookeeper else []
    view = access.directory.view
    listed = ListedGroups()
    # without this topic no broker coordinates a group; but one that we may not describe is not told without ZooKeeper
    if OFFSETS_TOPIC in topics or not access.has_zookeeper:
        listed = await _make_coordinators(access, patience_s).list_groups(view.brokers.values())
    return GroupsReading(access, listed=listed, in_zookeeper=in_zookeeper, topics=topics, patience_s=patience_s)


def _make_coordinators(access: ClusterAccess, patience_s: float) -> GroupCoordinators:
    timeout_s = min(access.cluster.address.request_timeout_s, patience_s)
    return GroupCoordinators(
        access.pool,
        random=random.random,
        request_timeout_s=timeout_s,
        patience_s=patience_s,
        principal=access.cluster.address.principal,
    )
