# SPDX-License-Identifier: Apache-2.0
"""Questions about a cluster and its groups, asked once: what the one-shot commands show.

Read only. Answers are rows of plain values; None where something is not known.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from consumerd.access.opening import open_cluster
from consumerd.aio.parallel import map_bounded
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.client.record_age import lag_seconds
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.config.settings import FetchSection, InspectionSettings
from consumerd.errors import ConfigError, ConsumerdError, CoordinationError, NotFound
from consumerd.group.assignors import Strategy
from consumerd.group.explain import lint_patience, plan_explanation
from consumerd.group.plan import resolve_members
from consumerd.group.registry import GroupRegistry
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, LogRange, TopicPartition
from consumerd.offsets.positions import NO_POSITION, GroupPositions, Position
from consumerd.offsets.store import Validity
from consumerd.zk.layout import (
    BROKER_TOPICS,
    CONSUMERS,
    group_path,
    offsets_root,
    owner_path,
    owners_root,
)
from consumerd.zk.listing import list_names
from consumerd.zk.port import ZkClient

_COMMAND: Final = "consumerd-inspection"
_SESSION_TIMEOUT_MS: Final = 10_000
_MAX_MESSAGE_BYTES: Final = FetchSection().max_message_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic."""

    topic: str
    partitions: int
    replication: int
    leaderless: int
    incarnation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition; ``latest`` is the next offset to be written."""

    topic: str
    partition: str
    leader: int | None
    replicas: str
    in_sync: str
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """How far a group is behind in one partition.

    Attributes:
        position: The stored position, if it belongs to the topic as it is now.
        lag: Offsets from the position to the log's end. Without a valid position, offsets from the log's start. None where
            it is unknown: no answer from the leader, or a position that cannot be read.
        seconds: How old the next record to be read is.
        deleted: The topic is gone; ``position`` is what is left of it.
    """

    topic: str
    partition: str
    owner: str | None
    position: int | None
    earliest: int | None
    latest: int | None
    lag: int | None
    seconds: float | None
    deleted: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMoveRow:
    """Who owns a partition, who should by the rule, and who would with more replicas."""

    topic: str
    partition: str
    owner: str | None
    assigned: str | None
    then: str | None
    moves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePlan:
    """What ``explain-rebalance`` has found."""

    members: int
    rows: Sequence[OwnerMoveRow]
    problems: Sequence[str]


@asynccontextmanager
async def inspect(
    settings: InspectionSettings, timeout_s: float, *, session_timeout_ms: int = _SESSION_TIMEOUT_MS
) -> AsyncIterator[ClusterAccess]:
    """Connect for one command, within ``timeout_s``.

    Raises CoordinationError, ConfigError, UnsupportedGeneration (a cluster of 0.6 or 0.7, whose registries mean other things).
    """
    address = settings.cluster.locate(client_id=_COMMAND, session_timeout_ms=session_timeout_ms)
    async with open_cluster(address, wait_s=timeout_s) as cluster, open_access(cluster) as access:
        yield access


async def find_topics(access: ClusterAccess, wanted: Collection[str]) -> list[TopicRow]:
    """Return the topics, all of them unless some are wanted."""
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
    """Return the partitions of the topics, with the range of each log."""
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


async def find_lag(access: ClusterAccess, group: str, wanted: Collection[str]) -> list[LagRow]:
    """Return each partition of the group's topics, owned or not. Raises NotFound where there is no such group."""
    zk = access.zk
    await require_group(zk, group)
    topics = set(wanted) or await list_group_topics(zk, group)
    if not topics:
        return []
    await follow_topics(access, topics, missing_ok=not wanted)
    deleted = topics.difference(await list_names(zk, BROKER_TOPICS))
    view = access.directory.view
    stored = await GroupPositions(zk, group).read(topics)
    partitions = sorted(
        {TopicPartition(name, key) for name in topics if name in view.topics for key in view.topics[name].partitions}
        | stored.keys()
    )
    owners = await _owners(zk, group, partitions)
    ranges = await access.ranges.find([one for one in partitions if view.find_leader(one) is not None])
    consumer = SimpleConsumer(access.pool, access.directory, random=random.random, max_message_bytes=_MAX_MESSAGE_BYTES)
    positions = {one: stored.get(one, NO_POSITION) for one in partitions}
    starts = {one: _find_start(positions[one], ranges.get(one)) for one in partitions}
    behind = {
        one: start
        for one, start in starts.items()
        if start is not None and one in ranges and ranges[one].earliest <= start < ranges[one].latest
    }
    timestamps = await _timestamps(consumer, behind)
    return [
        _lag_row(
            one,
            group=group,
            owner=owners.get(one),
            position=positions[one],
            start=starts[one],
            log=ranges.get(one),
            timestamp_ms=timestamps.get(one),
            deleted=one.topic in deleted,
        )
        for one in partitions
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPatience:
    """The settings of Java members that decide whether they outlast a crashed owner's session."""

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
    """Compute the group's assignment as its members do, now and with ``replicas`` more.

    Without members there is nothing to compute from. Raises NotFound where there is no such group.
    """
    assert settings.group is not None
    group, strategy = settings.group.id, Strategy(settings.group.assignor)
    await require_group(access.zk, group)
    registry = GroupRegistry(access.zk, group, wall_ms=lambda: 0, random=random.Random(0))
    snapshot = await registry.read(None, lambda _topics: None)
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
        # "~" sorts after every legal id, as the names of replicas to come may not: shares are the same, whose they are
        # depends on the names
        joining=[ConsumerId(f"{group}_~replica-{number:04d}") for number in range(replicas)],
        subscription=Subscription.to_topics(topics) if topics else None,
    )
    partitions = sorted(explanation.now.keys() | explanation.then.keys())
    owners = await _owners(access.zk, group, partitions)
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
        settings=RebalanceSettings(**settings.rebalance.model_dump()),
    )
    return RebalancePlan(members=len(snapshot.members), rows=rows, problems=problems)


class LagEstimator:
    """Estimates of the time to catch up, for records without timestamps, from the progress between two looks.

    They stand in the note. ``seconds`` is the age of the next record everywhere, and stays unknown without a timestamp.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._before: dict[tuple[str, str], tuple[float, int]] = {}

    def estimate(self, rows: Sequence[LagRow]) -> list[LagRow]:
        """Return the rows with a note where the position has moved since it was seen first."""
        now = self._now()
        estimated = []
        for row in rows:
            if row.position is not None and row.lag is not None and row.seconds is None:
                then, position = self._before.setdefault((row.topic, row.partition), (now, row.position))
                if row.position > position and now > then:
                    seconds = row.lag * (now - then) / (row.position - position)
                    estimate = f"no timestamps; about {seconds:.0f} s behind at the present rate"
                    row = replace(row, note=f"{row.note}; {estimate}" if row.note else estimate)
            estimated.append(row)
        return estimated


# -- what is in the registry


async def follow_topics(access: ClusterAccess, wanted: Collection[str], *, missing_ok: bool = False) -> list[str]:
    """Have the directory read these topics, or all. Raises ConfigError for a topic that is not there."""
    listed = set(await list_names(access.zk, BROKER_TOPICS))
    absent = sorted(set(wanted) - listed)
    if absent and not missing_ok:
        raise ConfigError(f"there is no topic {', '.join(absent)}")
    topics = sorted(set(wanted) & listed if wanted else listed)
    access.directory.follow(topics)
    await access.directory.refresh("one-shot command")
    if not access.directory.view.topics and topics:
        raise CoordinationError("neither ZooKeeper nor a broker could tell about the topics")
    return [topic for topic in topics if topic in access.directory.view.topics]


async def require_group(zk: ZkClient, group: str) -> None:
    """Raise NotFound where there is no such group: a name that is misspelt must not look like a group without anything."""
    if await zk.exists(group_path(group)) is None:
        known = ", ".join(await list_names(zk, CONSUMERS)) or "none"
        raise NotFound(f"there is no group {group!r} in ZooKeeper; the groups there: {known}")


async def list_group_topics(zk: ZkClient, group: str) -> set[str]:
    """Return the topics that a group has offsets, owners or subscriptions of."""
    topics = {*await list_names(zk, offsets_root(group)), *await list_names(zk, owners_root(group))}
    registry = GroupRegistry(zk, group, wall_ms=lambda: 0, random=random.Random(0))
    return topics | (await registry.read(None, lambda _topics: None)).topics.keys()


async def _owners(zk: ZkClient, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
    async def read(partition: TopicPartition) -> str | None:
        found = await zk.find(owner_path(group, partition))
        return None if found is None else found[0].decode(errors="replace")

    owners = await map_bounded(partitions, read)
    return {partition: owner for partition, owner in owners.items() if owner is not None}


async def _timestamps(
    consumer: SimpleConsumer, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    async def read(partition: TopicPartition) -> int | None:
        try:
            return await consumer.read_timestamp(partition, positions[partition])
        except ConsumerdError:
            return None  # the lag in records is known all the same

    return await map_bounded(positions, read)


def _find_start(position: Position, log: LogRange | None) -> int | None:
    """Return the offset that lag is counted from: the position, or the log's start where there is no valid one.

    None where it is unknown: a malformed position stops its partition, whatever the log holds.
    """
    if position.validity in {Validity.ABSENT, Validity.ANOTHER_INCARNATION}:
        return None if log is None else log.earliest
    return position.valid


def _lag_row(
    partition: TopicPartition,
    *,
    group: str,
    owner: str | None,
    position: Position,
    start: int | None,
    log: LogRange | None,
    timestamp_ms: int | None,
    deleted: bool,
) -> LagRow:
    lag = None if start is None or log is None or deleted else max(0, log.latest - start)
    return LagRow(
        topic=partition.topic,
        partition=str(partition.partition),
        owner=owner,
        position=position.value if deleted else position.valid,
        earliest=log.earliest if log else None,
        latest=log.latest if log else None,
        lag=lag,
        seconds=lag_seconds(lag=lag, oldest_ms=timestamp_ms, now_ms=time.time() * 1000),
        deleted=deleted,
        note="topic deleted" if deleted else _explain_lag(partition, group, position, log),
    )


def _explain_lag(partition: TopicPartition, group: str, position: Position, log: LogRange | None) -> str:
    """Say what the numbers alone do not: another count than from the position, a position outside the log."""
    if position.validity is Validity.MALFORMED:
        return f"{position.explain()}; {advise_set(group, partition)}"
    if log is None:
        return "; ".join(filter(None, [position.explain(), "its leader has not answered: the lag is unknown"]))
    at = position.valid
    if at is None:
        return f"{position.explain()}; counted from the earliest offset, {log.earliest}"
    if at < log.earliest:
        return f"below the log by {log.earliest - at}"
    return f"above the log by {at - log.latest}" if at > log.latest else ""


def advise_set(group: str, partition: TopicPartition) -> str:
    """Return the advice to say where a partition goes on."""
    return f"say where to go on: consumerd offsets set -g {group} {partition}=POSITION"
