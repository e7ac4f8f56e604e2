"""A group's positions as commands show, export and name them. Read only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from consumerd.daemon.access import ClusterAccess
from consumerd.daemon.admission import describe_cluster
from consumerd.daemon.inspection import follow_topics, list_group_topics, read_offsets, require_group
from consumerd.daemon.offsets_export import ExportedOffset, OffsetsExport
from consumerd.errors import ConfigError
from consumerd.model import TopicPartition
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.zk.layout import BROKER_TOPICS, topic_path
from consumerd.zk.port import ZkClient


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A stored position as it stands, and where an operator has asked for it to go on."""

    topic: str
    partition: str
    position: int | None
    written: str | None
    version: int | None
    request: int | None
    note: str


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
    stored = {row.partition: row for row in await read_offsets(access.zk, group, topics)}
    rows = []
    for partition in sorted(stored.keys() | requests.keys()):
        row, request = stored.get(partition), requests.get(partition)
        notes = [row.note] if row is not None and row.note else []
        if request is not None:
            asked = _format_time(request.created_ms)
            notes.append(f"asked by {request.author} at {asked}{', new chain' if request.new_chain else ''}")
        rows.append(
            OffsetRow(
                topic=partition.topic,
                partition=str(partition.partition),
                position=row.position if row is not None else None,
                written=_format_time(row.mtime_ms) if row is not None else None,
                version=row.version if row is not None else None,
                request=request.position if request is not None else None,
                note="; ".join(notes),
            )
        )
    return rows


async def export_offsets(access: ClusterAccess, group: str, wanted: Collection[str], *, now_ms: int) -> OffsetsExport:
    """Return a group's positions as a document; one that cannot be read is an error, not a hole.

    Raises NotFound where there is no such group, ConfigError.
    """
    await require_group(access.zk, group)
    topics = set(wanted) or await list_group_topics(access.zk, group)
    stored = sorted(await read_offsets(access.zk, group, topics), key=lambda row: row.partition)
    if missing := sorted(topics - {row.partition.topic for row in stored}) if wanted else []:
        raise ConfigError(f"group {group!r} has no positions of {', '.join(missing)}")
    incarnations = await _read_incarnations(access.zk, topics)
    offsets = []
    for row in stored:
        if row.position is None:
            raise ConfigError(f"{row.partition}: its position cannot be read: {row.note}, or leave the topic out")
        offsets.append(
            ExportedOffset(
                topic=row.partition.topic,
                partition=str(row.partition.partition),
                position=row.position,
                incarnation=incarnations[row.partition.topic],
            )
        )
    cluster = await _read_cluster(access.zk)
    return OffsetsExport(group=group, cluster=cluster, exported_ms=now_ms, offsets=offsets)


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


def _format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
