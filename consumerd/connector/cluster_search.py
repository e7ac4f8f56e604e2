# SPDX-License-Identifier: Apache-2.0
"""Waits for the cluster before the group is joined.

It waits for registered brokers, whose generation it finds, and for the node ``/brokers/topics``; in a cluster without
ZooKeeper, for a broker that answers. Writes nothing to ZooKeeper. Each reason to wait is logged and reported as a
trouble once, and is shown in the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from consumerd.access.opening import ClusterConnections
from consumerd.cluster.generation import RegisteredBrokers, read_registered_brokers
from consumerd.config.cluster_section import ClusterSection
from consumerd.config.member_settings import MemberSettings, find_unfit_generation
from consumerd.config.section import SettingFaults
from consumerd.errors import ConfigError, ConnectionLost, CoordinationError
from consumerd.group.admission import describe_cluster
from consumerd.model import Generation
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS
from consumerd.zk.port import Stat, WatchKind, ZkClient

_RETRY_S: Final = 1.0
"""Backoff after a failed read of the registries, in seconds; a read itself waits for the session."""
_SHOWN: Final = 3
"""Number of unreadable registrations that a reason names."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A cluster that is there: its id, and the generation of its brokers."""

    id: str
    generation: Generation


async def search_cluster(
    cluster: ClusterConnections, settings: MemberSettings, *, hooks: Hooks, waiting: Callable[[str], None]
) -> FoundCluster:
    """Wait for the cluster; return its id and generation. Has no time limit.

    ZooKeeper is asked if the address has one, else the brokers.

    Args:
        hooks: Gets each reason to wait, once.
        waiting: Called with the reason, for the status, after each attempt without success.

    Raises UnsupportedGeneration; ConfigError, also for settings that do not fit the generation.
    """
    section = settings.cluster
    if cluster.session is not None:
        found = await find_cluster(cluster.zk, section, hooks=hooks, waiting=waiting)
        if faults := tuple(find_unfit_generation(settings, found.generation)):
            raise ConfigError(str(SettingFaults(faults)))
        return found
    source = cluster.make_source(cluster.address.first_brokers)
    told = ""
    while True:
        try:
            cluster_id = (await source.read(())).cluster_id
        except ConnectionLost as error:
            waiting(str(error))
            if not told:
                told = str(error)
                _log.warning("brokers_missing", reason=told)
                hooks.trouble(Trouble.BROKERS_MISSING, told)
            await asyncio.sleep(_RETRY_S)
            continue
        if cluster_id is None:
            raise ConfigError(
                f"the brokers at {section.place} name no cluster id and no topic ids (before 2.8): give "
                "cluster.zookeeper in place of cluster.bootstrap"
            )
        cluster.check_identities(cluster_id)
        return FoundCluster(cluster_id, Generation.MODERN)


async def find_cluster(
    zk: ZkClient, cluster: ClusterSection, *, hooks: Hooks, waiting: Callable[[str], None]
) -> FoundCluster:
    """Wait until brokers are registered; return the cluster's id and generation.

    Waits for the node ``/brokers/topics``, too. There is no time limit.

    Args:
        cluster: Cluster's settings: its address and the generation of brokers that the operator expects.
        hooks: Called with each reason to wait, once.
        waiting: Called with the reason, for the status, after each read without success.

    Raises UnsupportedGeneration if the brokers' registrations contradict each other, or the settings.
    """
    changed = asyncio.Event()
    watches = [
        zk.watch(BROKER_IDS, WatchKind.CHILDREN, changed.set),
        zk.watch(BROKER_TOPICS, WatchKind.DATA, changed.set),
    ]
    told = ""
    try:
        while True:
            changed.clear()
            try:
                brokers = await read_registered_brokers(zk)
                topics = await zk.exists(BROKER_TOPICS)
            except CoordinationError as error:
                _log.debug("cluster_lookup_failed", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            generation = brokers.decide(cluster.place, cluster.expected_generation)
            if generation is not None and topics is not None:
                return FoundCluster(describe_cluster(topics), generation)
            reason = _explain(brokers, topics)
            waiting(reason)
            if reason != told:
                told = reason
                _log.warning("brokers_missing", reason=reason)
                hooks.trouble(Trouble.BROKERS_MISSING, reason)
            await changed.wait()  # without a limit, because the cluster may be started a day later
    finally:
        for watch in watches:
            watch.close()


def _explain(brokers: RegisteredBrokers, topics: Stat | None) -> str:
    if brokers.unreadable:
        shown = join_shown([f"{path}: {problem}" for path, problem in sorted(brokers.unreadable.items())], _SHOWN)
        return f"no broker has registered in a form of any release that is known: {shown}"
    if brokers.generation is not None:
        return f"brokers are registered, and {BROKER_TOPICS} is not there yet"
    beside = "" if topics is None else f"; {BROKER_TOPICS} is there, so brokers have been here before: are they down?"
    return f"no broker is registered under {BROKER_IDS}{beside}"
