# SPDX-License-Identifier: Apache-2.0
"""Reads the facts: ZooKeeper's nodes, brokers' logs, the landing paths. Changes nothing anywhere."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.admin.doctor.facts import HiddenLeftover, LandingFacts, LogFacts, PartitionNode, RegistryFacts
from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import ClusterAccess
from consumerd.cluster.generation import read_registered_brokers
from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.group.admission import describe_cluster, find_our_sessions
from consumerd.group.registry import GroupRegistry
from consumerd.group.rights import GroupRights
from consumerd.landing.chain import META_FOLDER, ROOT_RECORD, LandedEnd, is_hidden, parse_chain_folder
from consumerd.landing.failures import describe_failure
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.metadata import find_metadata_reader
from consumerd.landing.publish import Chain, find_chain, find_root
from consumerd.landing.record_fields import MalformedRecord
from consumerd.landing.scan import list_partitions
from consumerd.landing.values import LandingRoot
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.truncations import list_noted_stops
from consumerd.zk.layout import (
    BROKER_TOPICS,
    ids_path,
    landed_root,
    members_root,
    offsets_root,
    owners_root,
    requests_root,
    roots_root,
    truncations_root,
)
from consumerd.zk.listing import list_names
from consumerd.zk.port import NotPermitted, Right, ZkClient
from consumerd.zk.rights import Denial, SessionRights

_TOPIC_SETTINGS: Final = "/config/topics"
"""Where topics keep settings of their own (Kafka's TopicCommand)."""
_OWN_MARK: Final = "."
"""What names begin with that are no partitions' and stand for a moment only."""


# -- ZooKeeper


async def read_registry(zk: ZkClient, group: str, *, topics: Collection[str], wall_ms: int) -> RegistryFacts:
    """Read what there is of a group, and of ``topics`` besides those that it names. Raises CoordinationError."""
    registry = GroupRegistry(zk, group, wall_ms=lambda: wall_ms, random=random.Random(0))
    snapshot = await registry.read(None, lambda _topics: None)
    owners = await _read_partition_nodes(zk, owners_root(group))
    offsets = await _read_partition_nodes(zk, offsets_root(group))
    requests = await _read_partition_nodes(zk, requests_root(group))
    named = {node.topic for node in (*owners, *offsets, *requests)} | snapshot.topics.keys() | set(topics)
    views = await map_bounded(sorted(named), registry.read_topic)
    kept = {*await list_names(zk, offsets_root(group)), *await list_names(zk, owners_root(group))}
    there = [topic for topic in await list_names(zk, BROKER_TOPICS) if topic in named | kept]
    made = await zk.exists(BROKER_TOPICS)
    return RegistryFacts(
        group=group,
        cluster_id=None if made is None else describe_cluster(made),
        snapshot=snapshot,
        topics=views,
        owners=owners,
        offsets=offsets,
        requests=requests,
        roots=await _read_roots(zk, group),
        landed_ends=await _read_landed_ends(zk, group),
        our_sessions=await find_our_sessions(zk, group),
        message_limits=await _read_message_limits(zk, {*snapshot.topics, *topics}),
        denied=await GroupRights(zk, group).find_denied(there),
        denied_folders=await _find_denied_folders(zk, group),
        wall_ms=wall_ms,
        stops=await list_noted_stops(zk, group),
        generation=(await read_registered_brokers(zk)).generation,
    )


async def _find_denied_folders(zk: ZkClient, group: str) -> dict[str, Denial]:
    """Try the folders in which each member makes nodes of its own, whatever topics it has."""
    rights = SessionRights(zk)
    folders = (ids_path(group), members_root(group), requests_root(group), roots_root(group), landed_root(group))

    async def find(folder: str) -> Denial | None:
        try:
            return await rights.find_denial_below(folder, Right.CREATE, Right.DELETE)
        except NotPermitted as error:
            return Denial(path=error.path, right=Right.READ, acl=None, identity=zk.identity)

    found = await map_bounded([*folders, truncations_root(group)], find)
    return {folder: denial for folder, denial in found.items() if denial is not None}


async def _read_partition_nodes(zk: ZkClient, root: str) -> tuple[PartitionNode, ...]:
    """Read ``<root>/<topic>/<partition>``, whatever their names are."""
    places = [
        (topic, name)
        for topic in await list_names(zk, root)
        for name in await list_names(zk, f"{root}/{topic}")
        if not name.startswith(_OWN_MARK)
    ]

    async def read(place: tuple[str, str]) -> PartitionNode | None:
        topic, name = place
        path = f"{root}/{topic}/{name}"
        found = await zk.find(path)
        if found is None:
            return None
        return PartitionNode(
            path=path, data=found[0], stat=found[1], topic=topic, partition=_parse_partition(topic, name)
        )

    return tuple(node for node in (await map_bounded(places, read)).values() if node is not None)


def _parse_partition(topic: str, name: str) -> TopicPartition | None:
    try:
        return TopicPartition(topic, PartitionKey.parse(name))
    except ValueError:
        return None


async def _read_roots(zk: ZkClient, group: str) -> dict[str, str]:
    root = roots_root(group)
    sinks = [f"{root}/{name}" for name in await list_names(zk, root)]
    paths = [*sinks, *[f"{sink}/{name}" for sink in sinks for name in await list_names(zk, sink)]]
    found = await map_bounded(paths, zk.find)
    return {path: one[0].decode(errors="replace") for path, one in found.items() if one is not None and one[0]}


async def _read_landed_ends(zk: ZkClient, group: str) -> dict[tuple[str, TopicPartition], LandedEnd]:
    ends: dict[tuple[str, TopicPartition], LandedEnd] = {}
    for root in await list_names(zk, landed_root(group)):
        for node in await _read_partition_nodes(zk, f"{landed_root(group)}/{root}"):
            with contextlib.suppress(MalformedRecord):  # it is evidence, and there is none then
                if node.partition is not None:
                    ends[root, node.partition] = LandedEnd.parse(node.data)
    return ends


async def _read_message_limits(zk: ZkClient, topics: Iterable[str]) -> dict[str, int]:
    found = await map_bounded(sorted(topics), lambda topic: zk.find(f"{_TOPIC_SETTINGS}/{topic}"))
    limits = {topic: _parse_limit(one[0]) for topic, one in found.items() if one is not None}
    return {topic: limit for topic, limit in limits.items() if limit is not None}


def _parse_limit(data: bytes) -> int | None:
    """Return ``max.message.bytes`` of ``{"version":1,"config":{...}}``, None where it is not set or cannot be read."""
    try:
        return int(json.loads(data)["config"]["max.message.bytes"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


# -- brokers


async def read_logs(access: ClusterAccess, facts: RegistryFacts, *, timeout_s: float) -> LogFacts:
    """Ask brokers what they hold of the partitions that have a stored position; without an answer nothing is known."""
    asked = frozenset(
        node.partition for node in facts.offsets if node.partition is not None and facts.has(node.partition)
    )
    if not asked:
        return LogFacts()
    try:
        async with timeout(timeout_s):
            access.directory.follow({partition.topic for partition in asked})
            await access.directory.refresh("doctor")
            view = access.directory.view
            led = [partition for partition in sorted(asked) if view.find_leader(partition) is not None]
            return LogFacts(asked=asked, ranges=await access.ranges.find(led))
    except TimeoutError:
        return LogFacts(asked=asked)


# -- disks


class ReadingFileSystem(OsFileSystem):
    """Looks and touches nothing: what others clear away or make durable when they look is left as it is."""

    def unlink(self, path: Path) -> None:
        """Leave it."""

    def sync_folder(self, path: Path) -> None:
        """Leave it."""


def read_landing(facts: LandingFacts, extension: str) -> LandingFacts:
    """Add whose path it is and what its chains are; ``extension`` is of the sink's files. Blocks; raises nothing of the
    disk's.
    """
    files = ReadingFileSystem()
    facts = read_root(facts)
    read_metadata = find_metadata_reader(extension)
    if read_metadata is None or facts.root is None:
        return facts  # nobody's path, or that of another distribution's sink
    chains: dict[TopicPartition, Chain] = {}
    problems: dict[TopicPartition, str] = {}
    leftovers: list[HiddenLeftover] = []
    root = LandingRoot(path=facts.path, record=facts.root, order=0, files=files)
    for partition, folder in sorted(list_partitions(root, None, [])):
        try:
            leftovers += _find_leftovers(partition, Path(folder))
            chain = find_chain(files, facts.path, partition, extension=extension, read_metadata=read_metadata)
        except (OSError, RetriableSinkError, ConfigError) as error:
            problems[partition] = str(error)
        else:
            if chain is not None:
                chains[partition] = chain
    return replace(facts, chains=chains, problems=problems, leftovers=tuple(leftovers))


def read_root(facts: LandingFacts) -> LandingFacts:
    """Add whose path it is. Blocks; raises nothing of the disk's."""
    facts = replace(facts, there=facts.path.is_dir())
    try:
        return replace(facts, root=find_root(ReadingFileSystem(), facts.path))
    except OSError as error:
        return replace(facts, problem=describe_failure(error, f"read {ROOT_RECORD}", facts.path))
    except RetriableSinkError as error:
        return replace(facts, problem=str(error))


def find_landed_folders(path: Path) -> Iterator[Path]:
    """Yield the folders below a path that writers use: of topics, of partitions, and of the newest chains. Blocks."""
    for topic in sorted(path.glob("topic=*")):
        yield topic
        for partition in sorted(topic.glob("partition=*")):
            yield partition
            chains = {parse_chain_folder(one.name) or 0: one for one in partition.glob("chain=*")}
            if chains:
                newest = chains[max(chains)]
                yield newest
                yield from newest.glob(META_FOLDER)


def _find_leftovers(partition: TopicPartition, folder: Path) -> Iterator[HiddenLeftover]:
    for place in sorted(folder.glob("chain=*")):
        for file in [*sorted(place.iterdir()), *sorted((place / META_FOLDER).glob("*"))]:
            if is_hidden(file.name):
                try:
                    modified_ms = file.stat().st_mtime_ns // 1_000_000
                except FileNotFoundError:
                    continue  # published or removed at this moment
                yield HiddenLeftover(path=file, partition=partition, modified_ms=modified_ms)
