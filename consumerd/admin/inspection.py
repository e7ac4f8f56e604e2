# SPDX-License-Identifier: Apache-2.0
"""Topics, partitions and groups of a cluster, read for the one-shot commands. Changes nothing.

Results are rows of plain values; None means that a value is not known.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from consumerd.access.opening import open_cluster
from consumerd.aio.parallel import map_bounded
from consumerd.client.group_coordinators import NO_GROUP, GroupDetails
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.cluster.topics import TopicRegistry
from consumerd.config.inspection import InspectionSettings
from consumerd.config.schema import guess
from consumerd.errors import BrokerError, ConfigError, ConnectionLost, CoordinationError, NotFound, ProtocolError
from consumerd.group.assignors import Strategy
from consumerd.group.explain import lint_patience, plan_explanation
from consumerd.group.plan import GroupSnapshot, resolve_members
from consumerd.group.registry import GroupRegistry
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.opening import open_positions, read_coordinated_group
from consumerd.offsets.store import KAFKA_ONLY, Place
from consumerd.zk.layout import CONSUMERS, ids_path, owner_path, owners_root
from consumerd.zk.port import list_names

_COMMAND: Final = "consumerd-inspection"
_STABLE: Final = "Stable"
_SESSION_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic, as ``consumerd topics`` shows it.

    Attributes:
        partitions: Number of partitions.
        replication: Largest number of replicas of a partition.
        leaderless: Number of partitions without a leader.
        incarnation: Identity since the topic's creation; it changes if the topic is deleted and created again. None if
            unknown.
    """

    topic: str
    partitions: int
    replication: int
    leaderless: int
    incarnation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition of a topic, with its replicas and the offset range of its log.

    Attributes:
        leader: Broker id; None without a leader.
        earliest: First offset in the log; None if the leader did not answer.
        latest: Next offset to be written to the log; None if the leader did not answer.
    """

    topic: str
    partition: str
    leader: int | None
    replicas: str
    in_sync: str
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMoveRow:
    """Owner of one partition: now, as the assignor computes it, and with more processes.

    Attributes:
        owner: Thread id in the owner node, or the member that a broker has assigned it to; None without an owner.
        assigned: Owner by the assignment for the present members; None if no member gets the partition.
        then: Owner by the assignment with the further processes (``--replicas``); None if no member gets the partition.
        moves: Text that says if the owner changes.
    """

    topic: str
    partition: str
    owner: str | None
    assigned: str | None
    then: str | None
    moves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePlan:
    """Result of ``consumerd explain-rebalance``: owners of the partitions, now and with more processes.

    Attributes:
        members: Number of members now.
        rows: One per partition; empty for a group without members.
        problems: Reasons why a rebalance may fail.
    """

    members: int
    rows: Sequence[OwnerMoveRow]
    problems: Sequence[str]


@asynccontextmanager
async def inspect(
    settings: InspectionSettings,
    timeout_s: float,
    *,
    session_timeout_ms: int = _SESSION_TIMEOUT_MS,
    await_broker: bool = False,
) -> AsyncIterator[ClusterAccess]:
    """Connect to the cluster while the block of one command runs.

    Args:
        timeout_s: Time limit for connecting, in seconds.
        session_timeout_ms: ZooKeeper session timeout to ask for, in ms.
        await_broker: Wait for the first registered broker, too.

    Raises CoordinationError if ZooKeeper does not answer in time, ConnectionLost if no broker is registered in time,
    ConfigError, UnsupportedGeneration (a cluster of
    Kafka 0.6 or 0.7 stores groups in another format).
    """
    address = settings.cluster.locate(client_id=_COMMAND, session_timeout_ms=session_timeout_ms)
    async with (
        open_cluster(address, wait_s=timeout_s, await_broker=await_broker) as cluster,
        open_access(cluster) as access,
    ):
        yield access


async def find_topics(access: ClusterAccess, wanted: Collection[str]) -> list[TopicRow]:
    """Return a row for each wanted topic, or for all topics if none is named.

    Raises ConfigError for a topic that does not exist, CoordinationError.
    """
    topics = await follow_topics(access, wanted)
    view = access.directory.view
    rows = []
    for name in topics:
        topic = view.topics[name]
        rows.append(
            TopicRow(
                topic=name,
                partitions=len(topic.partitions),
                replication=max((len(one.replicas) for one in topic.partitions.values()), default=0),
                leaderless=sum(one.leader is None for one in topic.partitions.values()),
                incarnation=str(topic.incarnation) if topic.incarnation is not None else None,
            )
        )
    return rows


async def find_partitions(access: ClusterAccess, wanted: Collection[str]) -> list[PartitionRow]:
    """Return a row for each partition of the topics, with the range of its log.

    Without names, all topics are meant. Raises ConfigError for a topic that does not exist, CoordinationError.
    """
    topics = await follow_topics(access, wanted)
    view = access.directory.view
    partitions = [TopicPartition(name, key) for name in topics for key in sorted(view.topics[name].partitions)]
    ranges = await access.ranges.find(partitions)
    rows = []
    for partition in partitions:
        one = view.topics[partition.topic].partitions[partition.partition]
        log = ranges.get(partition)
        rows.append(
            PartitionRow(
                topic=partition.topic,
                partition=str(partition.partition),
                leader=one.leader,
                replicas=",".join(map(str, one.replicas)),
                in_sync=",".join(map(str, one.isr)),
                earliest=log.earliest if log else None,
                latest=log.latest if log else None,
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPatience:
    """Rebalance settings of Kafka's Java consumer: retries, backoff and session timeout.

    They decide if a Java member still retries when a crashed owner's ZooKeeper session expires.

    Attributes:
        retries: ``rebalance.max.retries``.
        backoff_ms: ``rebalance.backoff.ms``.
        session_ms: ``zookeeper.session.timeout.ms``.
    """

    retries: int
    backoff_ms: int
    session_ms: int


async def explain(
    access: ClusterAccess,
    settings: InspectionSettings,
    *,
    replicas: int,
    streams: int,
    java: JavaPatience,
) -> RebalancePlan:
    """Compute the assignment of a group's partitions, for its present members and with more processes.

    In a cluster without ZooKeeper, the assignment is the present one, as the group's leader has made it. A group
    without members has no assignment: the result has no rows. Raises NotFound if there is no such group.

    Args:
        replicas: Number of further consumerd processes. Without ZooKeeper any other number than 0 raises ConfigError.
        streams: Number of consumer threads of each further process.
        java: Settings of Java members, to check if they retry long enough.
    """
    assert settings.group is not None
    group, strategy = settings.group.id, Strategy(settings.group.assignor)
    if not access.has_zookeeper:
        return await _explain_kafka_group(access, group, replicas=replicas)
    await require_group(access, open_positions(access.cluster, group))
    snapshot = await read_members(access, group)
    if not snapshot.members:
        return RebalancePlan(members=0, rows=(), problems=())
    topics = {
        topic: streams
        for member in resolve_members(snapshot.members, snapshot.names).members
        for topic in member.streams
    }
    explanation = plan_explanation(
        snapshot,
        strategy,
        # "~" sorts after every legal id; real names of new replicas may not. Their shares are the same in any order,
        # but the owner of each share depends on the names
        joining=[ConsumerId(f"{group}_~replica-{number:04d}") for number in range(replicas)],
        subscription=Subscription.to_topics(topics) if topics else None,
    )
    partitions = sorted(explanation.now.keys() | explanation.then.keys())
    owners = await read_owners(access, group, partitions)
    moved = {move.partition for move in explanation.moves}
    rows = [
        OwnerMoveRow(
            topic=one.topic,
            partition=str(one.partition),
            owner=owners.get(one),
            assigned=explanation.now.get(one),
            then=explanation.then.get(one),
            moves="moves" if one in moved else "",
        )
        for one in partitions
    ]
    problems = [f"{one.kind}: {one.member or group}: {one.detail}" for one in explanation.disagreements]
    problems += [
        f"{row.topic}/{row.partition} is held by {row.owner or 'nobody'} and belongs to {row.assigned or 'nobody'}"
        for row in rows
        if row.owner != row.assigned
    ]
    problems += lint_patience(
        retries=java.retries,
        backoff_ms=java.backoff_ms,
        session_timeout_ms=max(java.session_ms, settings.group.session_timeout_ms),
        settings=settings.rebalance.fill(RebalanceSettings),
    )
    return RebalancePlan(members=len(snapshot.members), rows=rows, problems=problems)


async def _explain_kafka_group(access: ClusterAccess, group: str, *, replicas: int) -> RebalancePlan:
    """Return the assignment of a group that brokers coordinate, as its coordinator has it."""
    members = await find_coordinated(access, group)
    await require_group(access, open_positions(access.cluster, group), members)
    if replicas:
        raise ConfigError(
            "--replicas: the members of a group that brokers coordinate choose their assignor themselves, and its "
            "leader assigns; only the present assignment is known"
        )
    topics = {one.topic for one in members.owners}
    partitions = sorted({*members.owners, *await access.topics.list_partitions(topics)})
    problems = [f"{one}: no member has it" for one in partitions if one not in members.owners]
    if members.members and members.state != _STABLE:
        problems.append(f"the group is not stable: {members.state}")
    rows = [
        OwnerMoveRow(
            topic=one.topic,
            partition=str(one.partition),
            owner=members.owners.get(one),
            assigned=members.owners.get(one),
            then=None,
            moves="",
        )
        for one in partitions
    ]
    return RebalancePlan(members=len(members.members), rows=rows, problems=problems)


# -- what is in the registry


async def follow_topics(access: ClusterAccess, wanted: Collection[str], *, missing_ok: bool = False) -> list[str]:
    """Make the cluster directory read these topics; without names, all topics.

    Returns the names of those that its refreshed view has, sorted.

    Args:
        missing_ok: True to leave out names of topics that do not exist.

    Raises ConfigError for a topic that does not exist, CoordinationError if no topic could be read.
    """
    listed = await check_topics(access.topics, () if missing_ok else wanted)
    topics = sorted(set(wanted) & listed if wanted else listed)
    access.directory.follow(topics)
    await access.directory.refresh("one-shot command")
    if not access.directory.view.topics and topics:
        raise CoordinationError("neither ZooKeeper nor a broker could tell about the topics")
    return [topic for topic in topics if topic in access.directory.view.topics]


async def check_topics(topics: TopicRegistry, wanted: Collection[str]) -> set[str]:
    """Return the names of all topics. Raises ConfigError if one of ``wanted`` does not exist."""
    listed = await topics.list_topics()
    if absent := sorted(set(wanted) - listed):
        meant = [name for name in dict.fromkeys(guess(topic, listed) for topic in absent) if name is not None]
        hint = f"; did you mean {', '.join(meant)}?" if meant else ""
        raise ConfigError(f"there is no topic {', '.join(absent)}{hint}")
    return listed


async def find_coordinated(access: ClusterAccess, group: str) -> GroupDetails:
    """Return the group as its coordinating broker describes it.

    In a cluster with ZooKeeper the result is ``NO_GROUP`` if the group has members in ZooKeeper, for which no broker is
    asked, or if brokers do not answer or are older than 0.9. Raises CoordinationError; without ZooKeeper also
    BrokerError, ConnectionLost, ProtocolError.
    """
    if not access.has_zookeeper:
        return await read_coordinated_group(access.cluster, group)
    if await list_names(access.zk, ids_path(group)):
        return NO_GROUP
    try:
        return await read_coordinated_group(access.cluster, group)
    except (BrokerError, ConnectionLost, ProtocolError):
        return NO_GROUP  # a reader of positions in Kafka asks the same coordinator, and tells why it does not answer


def choose_places(members: GroupDetails, places: Collection[Place]) -> Collection[Place]:
    """Return the stores in which the group's members read committed positions: ZooKeeper, Kafka, or both.

    A group that a broker coordinates, now or until its last member left, goes on at its positions in Kafka, even if
    ZooKeeper holds others.

    Args:
        members: Group as its coordinating broker describes it; ``NO_GROUP`` if it has members in ZooKeeper.
        places: Stores in which other groups read them.
    """
    return KAFKA_ONLY if members.protocol_type else places


async def require_group(access: ClusterAccess, positions: GroupPositions, members: GroupDetails = NO_GROUP) -> None:
    """Raise NotFound if there is no such group, so that a misspelt name is noticed.

    A group exists if a broker knows members of it, or it has znodes or committed positions.

    Args:
        members: Group as its coordinating broker describes it.
    """
    if members.exists or (absence := await positions.explain_absence()) is None:
        return
    if not access.has_zookeeper:
        raise NotFound(f"{absence}, and its coordinator knows no members")
    known = ", ".join(await list_names(access.zk, CONSUMERS)) or "none"
    raise NotFound(f"{absence}; the groups there: {known}")


async def list_group_topics(access: ClusterAccess, positions: GroupPositions) -> set[str]:
    """Return the topics of a group's offset nodes, owner nodes and subscriptions in ZooKeeper.

    Empty in a cluster without ZooKeeper.
    """
    if not access.has_zookeeper:
        return set()
    topics = {*await positions.list_topics(), *await list_names(access.zk, owners_root(positions.group))}
    return topics | (await read_members(access, positions.group)).topics.keys()


async def read_members(access: ClusterAccess, group: str) -> GroupSnapshot:
    """Return the members of a group that are registered in ZooKeeper, and their topics.

    Raises CoordinationError.
    """
    registry = GroupRegistry(access.zk, group, wall_ms=lambda: 0, random=random.Random(0), layout=access.layout)
    return await registry.read(None, lambda _topics: None)


async def read_owners(
    access: ClusterAccess, group: str, partitions: Sequence[TopicPartition], members: GroupDetails = NO_GROUP
) -> Mapping[TopicPartition, str]:
    """Return the owners of partitions; those without an owner are missing.

    An owner is a thread id, as in the owner node; of a group that a broker coordinates, a member's client id and host.
    Raises CoordinationError.

    Args:
        members: Group as its coordinating broker describes it. Owners are taken from it if it has members.
    """
    if not access.has_zookeeper or members.members:
        return members.owners
    zk = access.zk

    async def read(partition: TopicPartition) -> str | None:
        found = await zk.find(owner_path(group, partition))
        return None if found is None else found[0].decode(errors="replace")

    owners = await map_bounded(partitions, read)
    return {partition: owner for partition, owner in owners.items() if owner is not None}
