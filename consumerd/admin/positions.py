# SPDX-License-Identifier: Apache-2.0
"""Committed positions of a group, read for the commands that show, export and change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.away import read_away
from consumerd.admin.inspection import (
    check_topics,
    choose_places,
    find_coordinated,
    follow_topics,
    list_group_topics,
    require_group,
)
from consumerd.admin.lag import advise_set, explain_kept, explain_unknown, is_outrun, name_place, read_fields
from consumerd.admin.offsets_export import ExportedOffset, OffsetsExport
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError, OffsetError
from consumerd.group.admission import describe_cluster
from consumerd.model import TopicPartition
from consumerd.offsets.away import explain_away, is_away
from consumerd.offsets.commit_metadata import parse_metadata
from consumerd.offsets.kafka_truncations import find_stops
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import NO_POSITION, Position, find_outrun, node_version
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place, Validity
from consumerd.offsets.truncations import list_noted_stops
from consumerd.telemetry.wording import format_time, join_shown
from consumerd.zk.layout import BROKER_TOPICS

_UNKNOWN_CLUSTER: Final = "unknown"
"""Id of a cluster whose brokers name none (before 0.10.1), in an export."""
_SHOWN: Final = 5
"""Partitions that a message names; there may be thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """Committed position of one partition in ZooKeeper, and the request that waits for the partition.

    Args:
        position: Stored number, which is used only if ``validity`` is valid; None if there is none.
        validity: Tells if members use the position: valid, missing, malformed, of a deleted topic of the same name.
        written: Time at which it was written, in ISO 8601; None if unknown.
        version: Version of the offset node; None if there is no such node.
        request: Position that an operator has asked for; None without a pending request.
        note: Remark for the operator; empty if there is none.
        stopped: Time, in ISO 8601, since which a member has stopped the partition because its position is above the
            log's end; None if it is not stopped.
    """

    topic: str
    partition: str
    position: int | None
    validity: str
    written: str | None
    version: int | None
    request: int | None
    note: str
    stopped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRowOfBoth(OffsetRow):
    """Committed positions of one partition in ZooKeeper and in Kafka.

    Args:
        kafka: Position in Kafka; None if there is none. ``position`` is that in ZooKeeper.
        metadata: Text that was committed with the position in Kafka.
        counts: Store from whose position members continue, ``zookeeper`` or ``kafka``; None if neither has a usable
            one.
    """

    kafka: int | None
    metadata: str
    counts: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Committed positions of a group.

    Attributes:
        rows: One per partition. They are of :class:`OffsetRowOfBoth` if the group has positions in Kafka, or its
            members read positions there; else of :class:`OffsetRow`, with positions in ZooKeeper only.
        notes: Sentences for the operator: whether members start from the positions in ZooKeeper or in Kafka, and why
            those in Kafka could not be read.
    """

    rows: Sequence[OffsetRow]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Partitions named on a command line, with identities of the cluster and the topics.

    Attributes:
        cluster: Identity of the cluster.
        incarnations: Identity of each topic since its creation; None if unknown.
    """

    partitions: tuple[TopicPartition, ...]
    cluster: str
    incarnations: Mapping[str, str | None]


async def find_offsets(
    access: ClusterAccess, group: str, wanted: Collection[str], places: Collection[Place] = ZOOKEEPER_ONLY
) -> GroupOffsets:
    """Return the committed positions of a group, and pending requests to change them.

    Args:
        wanted: Topics; empty for all of the group's.
        places: Stores in which members read committed positions: ZooKeeper, Kafka, or both.

    Raises NotFound if there is no such group, ConfigError for a topic that neither exists nor has left a position.
    """
    positions = open_positions(access.cluster, group)
    members = await find_coordinated(access, group)
    places = choose_places(members, places)
    await require_group(access, positions, members)
    listed = await ZooKeeperOffsetRequests(access.zk, group).list_requests() if access.has_zookeeper else ()
    requests = {one.partition: one for one in listed if not wanted or one.partition.topic in wanted}
    topics = set(wanted) or (
        {one.topic for one in requests}
        | await list_group_topics(access, positions)
        | await positions.list_kafka_topics()
    )
    kept = await positions.read_kept(topics)
    stops = (
        await list_noted_stops(access.zk, group, lambda one: kept.find_token(one, places), topics)
        if access.has_zookeeper
        else find_stops(kept.kafka)
    )
    known = kept.zookeeper.keys() | kept.kafka.keys() | requests.keys() | stops.keys()
    away = {partition: one for one in await read_away(access, known) for partition in one.partitions}
    if unknown := set(wanted) - {partition.topic for partition in known}:
        # a deleted topic may have positions, and a new one none yet; one that has neither is probably misspelt
        await check_topics(access.topics, unknown)
    rows: list[OffsetRow] = []
    for partition in sorted(known):
        request, counting = requests.get(partition), kept.find_counting(partition, places)
        position = kept.zookeeper.get(partition, NO_POSITION) if access.has_zookeeper else counting
        notes = [_explain(position, group, partition)] if position.explain() else []
        if is_outrun(kept, partition, places, counting):
            other = Place.KAFKA if counting.place is Place.ZOOKEEPER else Place.ZOOKEEPER
            notes.append(f"larger in {other.label}: consumerd run refuses to start")
        if access.has_zookeeper and is_of_another(kept.kafka.get(partition)):
            notes.append("in Kafka: " + kept.kafka[partition].explain())
        stop = stops.get(partition)
        stopped = None if stop is None or stop.since_ms is None else format_time(stop.since_ms)
        if stop is not None:
            since = "" if stopped is None else f", since {stopped}"
            notes.append(f"{stop.describe()}{since}; {advise_stop(group, partition)}")
        if partition in away:
            notes.append(away[partition].explain())
        if not access.has_zookeeper and _is_set(position):
            notes.append("set by an operator: the next member that owns it goes on there")
        if request is not None:
            asked = format_time(request.created_ms)
            notes.append(f"asked by {request.author} at {asked}{', new chain' if request.new_chain else ''}")
        row = OffsetRow(
            topic=partition.topic,
            partition=str(partition.partition),
            position=position.value,
            validity=position.validity.value,
            written=format_time(position.when_ms) if position.when_ms is not None else None,
            version=node_version(position),
            request=request.position if request is not None else None,
            note="; ".join(notes),
            stopped=stopped,
        )
        rows.append(
            _add_kafka(row, kept.kafka.get(partition), counting)
            if access.has_zookeeper and (kept.kafka or Place.KAFKA in places)
            else row
        )
    notes = explain_kept(kept, places) if access.has_zookeeper else explain_unknown(kept)
    return GroupOffsets(rows=rows, notes=notes)


def _is_set(position: Position) -> bool:
    """Return True for a position in Kafka that an operator has set.

    False once a member has committed since.
    """
    text = parse_metadata(position.metadata)
    return text is not None and bool(text.request_id) and position.validity is Validity.VALID


def is_of_another(position: Position | None) -> bool:
    """Return True for a position of a deleted topic of the same name.

    False for any other position, and for None.
    """
    return position is not None and position.validity is Validity.ANOTHER_INCARNATION


def _add_kafka(row: OffsetRow, kafka: Position | None, counting: Position) -> OffsetRowOfBoth:
    return OffsetRowOfBoth(
        **read_fields(row),
        kafka=kafka.value if kafka is not None else None,
        metadata=kafka.metadata if kafka is not None else "",
        counts=name_place(counting),
    )


def advise_stop(group: str, partition: TopicPartition) -> str:
    """Return a sentence with the command to continue a partition stopped above its log's end."""
    return f"say where to go on: consumerd offsets reset -g {group} {partition} --to latest (or earliest, or a time)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Exported positions of a group, and those that were left out.

    Attributes:
        document: Positions from which members continue.
        left_out: Positions of deleted topics, which are not in the document.
        ahead: Larger positions in the store (ZooKeeper or Kafka) that members do not read; they are not in the
            document.
    """

    document: OffsetsExport
    left_out: Mapping[TopicPartition, Position]
    ahead: Mapping[TopicPartition, Position]


async def export_offsets(
    access: ClusterAccess,
    group: str,
    wanted: Collection[str],
    places: Collection[Place] = ZOOKEEPER_ONLY,
    *,
    now_ms: int,
) -> Exported:
    """Return the positions from which a group's members continue, as a document.

    A position of a deleted topic is left out: set again, it would skip records of a new topic of the same name.

    Args:
        wanted: Topics; empty for all of the group's.
        places: Stores in which members read committed positions: ZooKeeper, Kafka, or both.
        now_ms: Present time, in ms since the epoch.

    Raises NotFound if there is no such group, OffsetError for a malformed position, and ConfigError if positions in
    Kafka cannot be read, so that a document is always complete.
    """
    kept = open_positions(access.cluster, group)
    members = await find_coordinated(access, group)
    places = choose_places(members, places)
    await require_group(access, kept, members)
    topics = set(wanted) or await list_group_topics(access, kept) | await kept.list_kafka_topics()
    read = await kept.read_kept(topics)
    if read.kafka and not read.zookeeper and Place.KAFKA not in places:
        raise ConfigError(f"{read.explain_places(places)}: set offsets.storage to export those in Kafka")
    if read.unknown and Place.KAFKA in places:
        raise ConfigError(f"positions in Kafka are unknown, and an export must be complete: {read.unknown}")
    offsets, left_out = [], {}
    counting = {one: read.find_counting(one, places) for one in sorted(read.zookeeper.keys() | read.kafka.keys())}
    for partition, position in counting.items():
        if position.validity is Validity.ABSENT:
            continue  # only the other place has one
        if position.validity is Validity.ANOTHER_INCARNATION:
            left_out[partition] = position
            continue
        if position.value is None:
            problem = _explain(position, group, partition)
            raise OffsetError(f"{partition}: its position cannot be read: {problem}, or leave the topic out")
        offsets.append(
            ExportedOffset(
                topic=partition.topic,
                partition=str(partition.partition),
                position=position.value,
                incarnation=str(position.incarnation) if position.incarnation is not None else None,
            )
        )
    if missing := sorted(set(wanted) - {one.topic for one in offsets}):
        older = f"; what is stored is of a deleted topic: {join_shown(left_out, _SHOWN)}" if left_out else ""
        raise ConfigError(f"group {group!r} has no positions of {', '.join(missing)}{older}")
    cluster = await read_cluster(access)
    document = OffsetsExport(group=group, cluster=cluster, exported_ms=now_ms, offsets=offsets)
    return Exported(document=document, left_out=left_out, ahead=find_outrun(read, places))


async def find_named(access: ClusterAccess, named: Collection[str | TopicPartition]) -> Named:
    """Return the partitions of the named topics, and the named partitions.

    Raises ConfigError for a topic or partition that does not exist, or is away.
    """
    topics = {one if isinstance(one, str) else one.topic for one in named}
    await follow_topics(access, topics)
    view = access.directory.view
    partitions: set[TopicPartition] = set()
    for one in named:
        if isinstance(one, str):
            partitions |= {TopicPartition(one, key) for key in view.topics[one].partitions}
        elif one.partition in view.topics[one.topic].partitions:
            partitions.add(one)
        elif is_away(one, view, access.generation):
            # nothing tells where its log ends, and the broker may come back with another one
            raise ConfigError(
                f"{explain_away(one, view.brokers)}. Its log cannot be read until then, so no position can be checked "
                "against it: start the broker, and give the command again"
            )
        else:
            older = "; partitions of 0.7 have such names, and their positions count bytes" if one.is_legacy else ""
            raise ConfigError(f"{one}: topic {one.topic} has no such partition{older}")
    return Named(
        partitions=tuple(sorted(partitions)),
        cluster=await read_cluster(access),
        incarnations={
            topic: None if made is None else str(made)
            for topic, made in (await access.topics.find_incarnations(topics)).items()
        },
    )


async def read_cluster(access: ClusterAccess) -> str:
    """Return a text that identifies the cluster.

    With ZooKeeper it is made from the znode ``/brokers/topics``, else it is the brokers' cluster id, or ``unknown``.
    Raises ConfigError if there is no such znode, or if ``cluster.identities`` is of another cluster; CoordinationError.
    """
    if not access.has_zookeeper:
        view = await access.directory.refresh("one-shot command")
        access.cluster.check_identities(view.cluster_id)
        return view.cluster_id or _UNKNOWN_CLUSTER
    stat = await access.zk.exists(BROKER_TOPICS)
    if stat is None:
        raise ConfigError(f"there is no {BROKER_TOPICS} here: is the chroot of cluster.zookeeper right?")
    return describe_cluster(stat)


def _explain(position: Position, group: str, partition: TopicPartition) -> str:
    malformed = position.validity is Validity.MALFORMED
    return f"{position.explain()}; {advise_set(group, partition)}" if malformed else position.explain()
