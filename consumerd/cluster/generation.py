# SPDX-License-Identifier: Apache-2.0
"""Generation of a cluster (Kafka 0.6 and 0.7, or 0.8 and later), found in ZooKeeper.

The generations keep groups, owners and positions under the same paths in different formats. If a member of one
generation registers in a group of the other generation, every rebalance of that group fails, since no member can read
all registrations. So the generation is determined before anything is written, from ``/brokers/ids/*``, where each
broker is registered in the format of its generation. Topics are less reliable: their nodes outlive the brokers. They
tell only commands that read while no broker is registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.errors import CoordinationError, UnsupportedGeneration
from consumerd.model import BrokerId, Generation, PartitionKey, TopicPartition
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import (
    BROKER_IDS,
    BROKER_TOPICS,
    CONSUMERS,
    broker_path,
    offsets_path,
    offsets_root,
    topic_path,
)
from consumerd.zk.port import WatchKind, ZkClient, list_names
from consumerd.zk.znodes import MalformedZnode, find_broker_id
from consumerd.zk.znodes_legacy import find_generation

_SHOWN: Final = 3
_RETRY_S: Final = 1.0
"""Backoff after a failed read of the registrations, in seconds."""
_LONGEST_QUOTE: Final = 80
"""Characters of a registration that a message quotes, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBrokers:
    """Brokers registered in ZooKeeper, by generation of Kafka.

    Attributes:
        modern: paths of the nodes of brokers of 0.8 and later.
        legacy: the content of the nodes of brokers of 0.6 and 0.7, by path.
        unreadable: the fault of each node that no generation writes, by path.
    """

    modern: frozenset[str] = frozenset()
    legacy: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Registrations of neither generation, each with its fault."""

    @property
    def ids(self) -> frozenset[BrokerId]:
        """Ids of all registered brokers, whether their registrations can be read or not."""
        names = (path.rpartition("/")[2] for path in (*self.modern, *self.legacy, *self.unreadable))
        return frozenset(broker for name in names if (broker := find_broker_id(name)) is not None)

    @property
    def generation(self) -> Generation | None:
        """Generation of the cluster's brokers; None while no readable broker is registered.

        One broker of 0.6 or 0.7 makes the cluster one of 0.6 or 0.7. Brokers of two generations under one chroot are a
        mistake in the settings of some broker, and a group there may be of either generation.
        """
        if self.legacy:
            return Generation.LEGACY
        return Generation.MODERN if self.modern else None

    def decide(self, address: str, expected: Generation | None) -> Generation | None:
        """Return the generation to use with the cluster; None while no broker is registered.

        Brokers of the other generation than ``expected`` are ignored if one of the expected generation is registered,
        too. Brokers of both generations without ``expected``, and brokers of the other one alone, are refused.

        Args:
            address: The connect string, for the message.
            expected: Generation that the settings name (``cluster.generation``); None for ``auto``.

        Raises UnsupportedGeneration.
        """
        registered = {Generation.LEGACY: self.legacy, Generation.MODERN: self.modern}
        found = [generation for generation, nodes in registered.items() if nodes]
        if not found or expected in found:
            return expected if found else None
        if expected is None and len(found) == 1:
            return found[0]
        seen = " ".join(map(self._describe, found))
        if expected is None:
            fault = "brokers of two generations are registered under one chroot"
            advice = (
                "Name the ZooKeeper and chroot of one cluster. If this group has members of one generation only, set "
                "cluster.generation to it (legacy or modern): brokers of the other one are ignored then"
            )
        else:
            fault = f"cluster.generation is {expected.value}, and no broker of that generation is registered"
            advice = (
                f"Set cluster.generation to {found[0].value}, or to auto, if you mean this cluster; else name the "
                "ZooKeeper and chroot of the other one"
            )
        raise UnsupportedGeneration(
            f"cluster.zookeeper: {fault} at {address}. {seen} Nothing was written there: a registration of the wrong "
            f"generation would stop the rebalances of the groups' Java members. {advice}"
        )

    def check_unchanged(self, address: str, generation: Generation) -> None:
        """Check that not all brokers are of another generation than before.

        A single broker of the other generation is no proof: its settings may name the wrong chroot.

        Args:
            address: The connect string, for the message.
            generation: Generation of the cluster when this process started.

        Raises UnsupportedGeneration.
        """
        now = self._find_alone()
        if now is None or now is generation:
            return
        raise UnsupportedGeneration(
            f"cluster.zookeeper: the brokers at {address} are of another generation of Kafka than when this process "
            f"started ({generation.value}). {self._describe(now)} Their groups and positions have another format, and "
            f"nothing more was written there. Start this process again when the settings fit the new brokers"
        )

    def _find_alone(self) -> Generation | None:
        """Return the generation of all readable brokers; None without any, or with both."""
        return None if self.legacy and self.modern else self.generation

    def _describe(self, generation: Generation) -> str:
        if generation is Generation.MODERN:
            return f"Kafka 0.8 or later: {join_shown(sorted(self.modern), _SHOWN)}."
        seen = join_shown([f"{path} holds {text!r}" for path, text in sorted(self.legacy.items())], _SHOWN)
        return f"Kafka 0.6 or 0.7: {seen}."


async def read_registered_brokers(zk: ZkClient) -> RegisteredBrokers:
    """Return all brokers registered in ZooKeeper, by generation. Raises CoordinationError."""
    ids = [broker for name in await list_names(zk, BROKER_IDS) if (broker := find_broker_id(name)) is not None]
    nodes = await map_bounded(sorted(map(broker_path, ids)), zk.find)
    modern: set[str] = set()
    legacy: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for path, node in nodes.items():
        if node is None:
            continue  # it left meanwhile
        try:
            generation = find_generation(node[0])
        except MalformedZnode as error:
            unreadable[path] = str(error)
            continue
        if generation is Generation.LEGACY:
            legacy[path] = node[0].decode()[:_LONGEST_QUOTE]
        else:
            modern.add(path)
    return RegisteredBrokers(modern=frozenset(modern), legacy=legacy, unreadable=unreadable)


async def find_cluster_generation(zk: ZkClient, address: str, expected: Generation | None) -> Generation | None:
    """Return the generation to use with the cluster; None if nothing in ZooKeeper tells.

    It is that of the registered brokers. Without a registered broker, it is ``expected``, else that of the nodes which
    brokers and groups have left, see :func:`infer_generation`.

    Args:
        address: The connect string, for messages.
        expected: Generation that the settings name (``cluster.generation``); None for ``auto``.

    Raises UnsupportedGeneration if brokers or nodes contradict each other, or brokers contradict ``expected``;
    CoordinationError.
    """
    brokers = await read_registered_brokers(zk)
    return brokers.decide(address, expected) or expected or await infer_generation(zk, address)


async def wait_for_generation(zk: ZkClient, address: str, expected: Generation | None) -> Generation:
    """Wait until a broker is registered; return the cluster's generation. Has no time limit.

    The arguments and errors are those of :func:`find_cluster_generation`.
    """
    changed = asyncio.Event()
    watch = zk.watch(BROKER_IDS, WatchKind.CHILDREN, changed.set)
    try:
        while True:
            changed.clear()
            brokers = await read_registered_brokers(zk)
            if (found := brokers.decide(address, expected)) is not None:
                return found
            await changed.wait()
    finally:
        watch.close()


async def watch_generation(zk: ZkClient, address: str, generation: Generation) -> None:
    """Watch the registered brokers until all are of another generation.

    That is so after an upgrade in place. Has no time limit. Raises UnsupportedGeneration then. Repeats failed reads.

    Args:
        address: The connect string, for the message.
        generation: Generation of the cluster when this process started.
    """
    changed = asyncio.Event()
    watch = zk.watch(BROKER_IDS, WatchKind.CHILDREN, changed.set)
    try:
        while True:
            changed.clear()
            try:
                brokers = await read_registered_brokers(zk)
            except CoordinationError:  # the session has its own reports
                await asyncio.sleep(_RETRY_S)
                continue
            brokers.check_unchanged(address, generation)
            await changed.wait()
    finally:
        watch.close()


async def infer_generation(zk: ZkClient, address: str) -> Generation | None:
    """Return the generation by the nodes that brokers and groups have left; None without any.

    Topics tell first: Kafka 0.8 and later keep JSON in ``/brokers/topics/T``, and the node of 0.7 has no data. Without
    topics, the first committed position tells, by its name: ``0-3`` or ``3``. Reads as many nodes as there are topics.

    Args:
        address: The connect string, for messages.

    Raises UnsupportedGeneration if topics of both generations are there, CoordinationError.
    """
    topics = await map_bounded([topic_path(name) for name in await list_names(zk, BROKER_TOPICS)], zk.find)
    found: dict[Generation, str] = {}
    for path, node in topics.items():
        if node is not None:
            found.setdefault(Generation.MODERN if node[0] else Generation.LEGACY, path)
    if len(found) > 1:
        raise UnsupportedGeneration(
            f"cluster.zookeeper: no broker is registered at {address}, and there are topics of two generations: "
            f"{found[Generation.LEGACY]} is of Kafka 0.7, {found[Generation.MODERN]} of 0.8 or later. Start a broker, "
            "or set cluster.generation (legacy or modern)"
        )
    return next(iter(found), None) or await _infer_from_positions(zk)


async def _infer_from_positions(zk: ZkClient) -> Generation | None:
    for group in await list_names(zk, CONSUMERS):
        for topic in await list_names(zk, offsets_root(group)):
            for name in await list_names(zk, offsets_path(group, topic)):
                try:
                    partition = TopicPartition(topic, PartitionKey.parse(name))
                except ValueError:
                    continue  # a node that neither generation writes
                return Generation.LEGACY if partition.is_legacy else Generation.MODERN
    return None
