# SPDX-License-Identifier: Apache-2.0
"""Reads the state of a group for ``consumerd doctor``: znodes, log ranges, landing folders.

Changes nothing.
"""

from __future__ import annotations

import contextlib
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
from consumerd.model import Generation, PartitionKey, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.positions import StoredEntry
from consumerd.offsets.store import Place
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
    topic_settings_path,
    truncations_root,
)
from consumerd.zk.node_acl import AclProfile
from consumerd.zk.port import NoNode, NotPermitted, Right, ZkClient, list_names
from consumerd.zk.registry_layout import RegistryLayout
from consumerd.zk.rights import Denial, SessionRights
from consumerd.zk.znodes import parse_topic_settings

_OWN_MARK: Final = "."
"""Prefix of names that are no partitions' and exist for a moment only."""


# -- ZooKeeper


async def read_registry(
    zk: ZkClient,
    layout: RegistryLayout,
    positions: GroupPositions,
    *,
    places: Collection[Place],
    topics: Collection[str],
    wall_ms: int,
    generation: Generation | None = None,
    acl: AclProfile = AclProfile.OPEN,
) -> RegistryFacts:
    """Read the state of a group from ZooKeeper, and its positions in Kafka. Raises CoordinationError.

    Args:
        places: Stores in which members read committed positions, by the settings: ZooKeeper, Kafka, or both.
        topics: Topics to read besides those that the group's znodes name.
        wall_ms: Present time, in ms since the epoch.
        generation: Generation of the cluster that the settings name; None to go by the registered brokers.
        acl: ACLs with which the group's members create nodes.
    """
    group = positions.group
    registry = GroupRegistry(zk, group, wall_ms=lambda: wall_ms, random=random.Random(0), layout=layout)
    snapshot = await registry.read(None, lambda _topics: None)
    owners = await _read_partition_nodes(zk, owners_root(group))
    offsets = await positions.list_entries()
    requests = await _read_partition_nodes(zk, requests_root(group))
    nodes: tuple[PartitionNode | StoredEntry, ...] = (*owners, *offsets, *requests)
    named = {one.topic for one in nodes} | snapshot.topics.keys() | set(topics)
    views = await map_bounded(sorted(named), registry.read_topic)
    kept = {*await positions.list_topics(), *await list_names(zk, owners_root(group))}
    there = [topic for topic in await list_names(zk, BROKER_TOPICS) if topic in named | kept]
    made = await zk.exists(BROKER_TOPICS)
    read = await positions.read_kept(named | await positions.list_kafka_topics())
    brokers = await read_registered_brokers(zk)
    is_told = generation is not None or brokers.generation is not None
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
        denied=await GroupRights(zk, group, layout).find_denied(there),
        denied_folders=await _find_denied_folders(zk, group),
        open_folders=() if acl is AclProfile.OPEN else await _find_open_folders(zk, group),
        protecting_acl=f"{zk.identity}:cdrwa" + (",world:anyone:r" if acl is AclProfile.JAVA else ""),
        wall_ms=wall_ms,
        stops=await list_noted_stops(zk, group, lambda one: read.find_token(one, places)),
        kept=read,
        places=places,
        generation=layout.generation if is_told else None,
        brokers=brokers.ids,
    )


async def _find_denied_folders(zk: ZkClient, group: str) -> dict[str, Denial]:
    """Check the right to create nodes in the folders that each member uses."""
    rights = SessionRights(zk)
    folders = (ids_path(group), members_root(group), requests_root(group), roots_root(group), landed_root(group))

    async def find(folder: str) -> Denial | None:
        try:
            return await rights.find_denial_below(folder, Right.CREATE, Right.DELETE)
        except NotPermitted as error:
            return Denial(path=error.path, right=Right.READ, acl=None, identity=zk.identity)

    found = await map_bounded([*folders, truncations_root(group)], find)
    return {folder: denial for folder, denial in found.items() if denial is not None}


async def _find_open_folders(zk: ZkClient, group: str) -> tuple[str, ...]:
    """Return the folders of owners and offsets that everybody may change."""

    async def is_open(folder: str) -> bool:
        try:
            return any(one.is_open for one in await zk.get_acl(folder))
        except (NoNode, NotPermitted):
            return False

    found = await map_bounded([owners_root(group), offsets_root(group)], is_open)
    return tuple(folder for folder, is_so in found.items() if is_so)


async def _read_partition_nodes(zk: ZkClient, root: str) -> tuple[PartitionNode, ...]:
    """Read all nodes ``<root>/<topic>/<partition>``, misnamed ones too."""
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
            with contextlib.suppress(MalformedRecord):  # a record that cannot be read is no evidence
                if node.partition is not None:
                    ends[root, node.partition] = LandedEnd.parse(node.data)
    return ends


async def _read_message_limits(zk: ZkClient, topics: Iterable[str]) -> dict[str, int]:
    found = await map_bounded(sorted(topics), lambda topic: zk.find(topic_settings_path(topic)))
    limits = {topic: _parse_limit(one[0]) for topic, one in found.items() if one is not None}
    return {topic: limit for topic, limit in limits.items() if limit is not None}


def _parse_limit(data: bytes) -> int | None:
    """Return ``max.message.bytes`` of a topic's settings; None if it is not set, or no number."""
    try:
        return int(parse_topic_settings(data)["max.message.bytes"])
    except (KeyError, ValueError):
        return None


# -- brokers


async def read_logs(access: ClusterAccess, facts: RegistryFacts, *, timeout_s: float) -> LogFacts:
    """Ask brokers for the log start and end of each partition with a committed position.

    Partitions whose leader does not answer within ``timeout_s`` are missing in the result's ``ranges``.
    """
    asked = frozenset(partition for partition in facts.list_counting() if facts.has(partition))
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
    """File system that only reads, for ``consumerd doctor``, which changes nothing.

    The code that finds a partition's newest file normally deletes temporary files and syncs folders. Both are left out
    here.
    """

    def unlink(self, path: Path) -> None:
        """Do nothing: the file stays."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing: the folder is not synced."""


def read_landing(facts: LandingFacts, extension: str) -> LandingFacts:
    """Read who owns a landing folder, and each partition's newest chain of files.

    The owner is the group and the sink that write their files there. A *chain* is a sequence of files that continues
    without a gap. Returns a copy of ``facts`` with the owner and the chains. Blocks; raises no OSError.

    Args:
        facts: Setting, path and recorded id of the folder.
        extension: Extension of the sink's files; it decides how their metadata is read.
    """
    files = ReadingFileSystem()
    facts = read_root(facts)
    read_metadata = find_metadata_reader(extension)
    if read_metadata is None or facts.root is None:
        return facts  # no group's path, or that of a third-party sink
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
    """Read which group and sink own a landing folder, where the sink writes its files.

    The owner is in a record file in the folder. Returns a copy of ``facts`` with that record, or with the reason why
    the record cannot be read. Blocks; raises no OSError.
    """
    facts = replace(facts, there=facts.path.is_dir())
    try:
        return replace(facts, root=find_root(ReadingFileSystem(), facts.path))
    except OSError as error:
        return replace(facts, problem=describe_failure(error, f"read {ROOT_RECORD}", facts.path))
    except RetriableSinkError as error:
        return replace(facts, problem=str(error))


def find_landed_folders(path: Path) -> Iterator[Path]:
    """Yield the folders below a landing folder to which a sink writes now. Blocks.

    These are the folders of topics, of partitions, and each partition's newest ``chain=*`` folder with its metadata. A
    *chain* is a sequence of files that continues without a gap.
    """
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
