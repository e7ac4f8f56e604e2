# SPDX-License-Identifier: Apache-2.0
"""A group's positions as commands show, export and name them. Read only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.admin.inspection import advise_set, follow_topics, list_group_topics, require_group
from consumerd.admin.offsets_export import ExportedOffset, OffsetsExport
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError
from consumerd.group.admission import describe_cluster
from consumerd.model import TopicPartition
from consumerd.offsets.positions import NO_POSITION, GroupPositions, Position
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Validity
from consumerd.offsets.truncations import list_noted_stops
from consumerd.telemetry.wording import format_time, join_shown
from consumerd.zk.layout import BROKER_TOPICS, topic_path
from consumerd.zk.port import ZkClient

_SHOWN: Final = 5
"""Partitions that a message names; there may be thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A stored position as it stands, and where an operator has asked for it to go on.

    ``position`` is shown whatever its ``validity``; only a valid one is used. ``stopped`` is since when the partition has
    been stopped above its log's end, None where it is not.
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
class Named:
    """What was named on a command line, found on the cluster."""

    partitions: tuple[TopicPartition, ...]
    cluster: str
    incarnations: Mapping[str, str | None]


async def find_offsets(access: ClusterAccess, group: str, wanted: Collection[str]) -> list[OffsetRow]:
    """Return the stored positions of a group, and its requests. Raises NotFound where there is no such group."""
    await require_group(access.zk, group)
    listed = await ZooKeeperOffsetRequests(access.zk, group).list_requests()
    requests = {one.partition: one for one in listed if not wanted or one.partition.topic in wanted}
    topics = set(wanted) or {one.topic for one in requests} | await list_group_topics(access.zk, group)
    stored = await GroupPositions(access.zk, group).read(topics)
    stops = await list_noted_stops(access.zk, group, topics)
    rows = []
    for partition in sorted(stored.keys() | requests.keys() | stops.keys()):
        position, request = stored.get(partition, NO_POSITION), requests.get(partition)
        notes = [_explain(position, group, partition)] if position.explain() else []
        stop = stops.get(partition)
        if stop is not None:
            notes.append(f"{stop.describe()}, since {format_time(stop.since_ms)}; {advise_stop(group, partition)}")
        if request is not None:
            asked = format_time(request.created_ms)
            notes.append(f"asked by {request.author} at {asked}{', new chain' if request.new_chain else ''}")
        rows.append(
            OffsetRow(
                topic=partition.topic,
                partition=str(partition.partition),
                position=position.value,
                validity=position.validity.value,
                written=format_time(position.when_ms) if position.when_ms is not None else None,
                version=position.version,
                request=request.position if request is not None else None,
                note="; ".join(notes),
                stopped=format_time(stop.since_ms) if stop is not None else None,
            )
        )
    return rows


def advise_stop(group: str, partition: TopicPartition) -> str:
    """Say how a partition goes on that is stopped above its log's end."""
    return f"say where to go on: consumerd offsets reset -g {group} {partition} --to latest (or earliest, or a time)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A document of positions, and the positions that were left out of it because they are of deleted topics."""

    document: OffsetsExport
    left_out: Mapping[TopicPartition, Position]


async def export_offsets(access: ClusterAccess, group: str, wanted: Collection[str], *, now_ms: int) -> Exported:
    """Return a group's positions as a document; one that cannot be read is an error, not a hole.

    A position of another incarnation is left out: labelled with today's incarnation it would be set again, and skip
    records. Raises NotFound where there is no such group, ConfigError.
    """
    await require_group(access.zk, group)
    stored = await GroupPositions(access.zk, group).read(set(wanted) or await list_group_topics(access.zk, group))
    offsets, left_out = [], {}
    for partition, position in sorted(stored.items()):
        if position.validity is Validity.ANOTHER_INCARNATION:
            left_out[partition] = position
            continue
        if position.value is None:
            problem = _explain(position, group, partition)
            raise ConfigError(f"{partition}: its position cannot be read: {problem}, or leave the topic out")
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
    cluster = await _read_cluster(access.zk)
    document = OffsetsExport(group=group, cluster=cluster, exported_ms=now_ms, offsets=offsets)
    return Exported(document=document, left_out=left_out)


async def find_named(access: ClusterAccess, named: Collection[str | TopicPartition]) -> Named:
    """Return the partitions of topics and partitions that were named. Raises ConfigError for what is not there."""
    topics = {one if isinstance(one, str) else one.topic for one in named}
    await follow_topics(access, topics)
    view = access.directory.view
    partitions: set[TopicPartition] = set()
    for one in named:
        if isinstance(one, str):
            partitions |= {TopicPartition(one, key) for key in view.topics[one].partitions}
        elif one.partition in view.topics[one.topic].partitions:
            partitions.add(one)
        else:
            raise ConfigError(f"{one}: topic {one.topic} has no such partition")
    return Named(
        partitions=tuple(sorted(partitions)),
        cluster=await _read_cluster(access.zk),
        incarnations=await _read_incarnations(access.zk, topics),
    )


async def _read_cluster(zk: ZkClient) -> str:
    stat = await zk.exists(BROKER_TOPICS)
    if stat is None:
        raise ConfigError(f"there is no {BROKER_TOPICS} here: is the chroot of cluster.zookeeper right?")
    return describe_cluster(stat)


async def _read_incarnations(zk: ZkClient, topics: Iterable[str]) -> dict[str, str | None]:
    stats = {topic: await zk.exists(topic_path(topic)) for topic in sorted(topics)}
    return {topic: str(stat.czxid) if stat is not None else None for topic, stat in stats.items()}


def _explain(position: Position, group: str, partition: TopicPartition) -> str:
    malformed = position.validity is Validity.MALFORMED
    return f"{position.explain()}; {advise_set(group, partition)}" if malformed else position.explain()
