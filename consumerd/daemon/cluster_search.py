# SPDX-License-Identifier: Apache-2.0
"""Wait for the cluster before anything is joined: registered brokers of a known generation, and the topics' parent node.

Writes nothing to ZooKeeper. What is missing is told once in the log and as a trouble, and stands in the status meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from consumerd.cluster.generation import RegisteredBrokers, read_registered_brokers
from consumerd.config.settings import ClusterSection
from consumerd.errors import CoordinationError
from consumerd.group.admission import describe_cluster
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS
from consumerd.zk.port import Stat, WatchKind, ZkClient

_RETRY_S: Final = 1.0
"""Delay before the registries are read again after a failed read; each read waits for the session by itself."""
_SHOWN: Final = 3

_log = structlog.get_logger(__name__)


async def find_cluster(zk: ZkClient, cluster: ClusterSection, *, hooks: Hooks, waiting: Callable[[str], None]) -> str:
    """Wait for a broker of a generation that we can consume, and return what tells its cluster from others. Unbounded.

    Args:
        zk: A session.
        cluster: The cluster's settings: its address and the generation that the operator expects.
        hooks: Told once of each reason to wait.
        waiting: Called with the reason, for the status, each time that the registries were read in vain.

    Raises UnsupportedGeneration.
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
            brokers.require_modern(cluster.zookeeper, trusted=cluster.generation == "modern")
            if brokers.modern and topics is not None:
                return describe_cluster(topics)
            reason = _explain(brokers, topics)
            waiting(reason)
            if reason != told:
                told = reason
                _log.warning("brokers_missing", reason=reason)
                hooks.trouble(Trouble.BROKERS_MISSING, reason)
            await changed.wait()  # not bounded: a cluster may be started a day later
    finally:
        for watch in watches:
            watch.close()


def _explain(brokers: RegisteredBrokers, topics: Stat | None) -> str:
    if brokers.unreadable:
        shown = join_shown([f"{path}: {problem}" for path, problem in sorted(brokers.unreadable.items())], _SHOWN)
        return f"no broker has registered in a form of any release that is known: {shown}"
    if brokers.modern:
        return f"brokers are registered, and {BROKER_TOPICS} is not there yet"
    beside = "" if topics is None else f"; {BROKER_TOPICS} is there, so brokers have been here before: are they down?"
    return f"no broker is registered under {BROKER_IDS}{beside}"
