# SPDX-License-Identifier: Apache-2.0
"""Reads the positions of a whole group for an audit, over a ZooKeeper session of its own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from consumerd.aio.clock import boottime
from consumerd.aio.timeouts import timeout
from consumerd.cluster.generation import require_modern
from consumerd.config.settings import ClusterSection
from consumerd.errors import ConfigError, CoordinationError
from consumerd.landing.examine import Positions
from consumerd.offsets.positions import GroupPositions
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import BROKER_TOPICS, group_path

_SESSION_S: Final = 10.0
_READ_S: Final = 60.0


def read_positions(
    cluster: ClusterSection, group: str, *, cluster_id: str, connect_timeout_s: float = _SESSION_S
) -> Positions:
    """Return every position of a group. ``cluster_id`` is that of the landing zone which they are compared with.

    Blocks, for a minute at most once it is connected. Raises CoordinationError (unreachable), ConfigError (another
    cluster, no such group).
    """
    with LoopThread(_connect(cluster, connect_timeout_s), name="consumerd positions") as thread:
        return thread.call(
            _read(thread.resource, cluster.zookeeper, group, cluster_id, trusted=cluster.generation == "modern")
        )


@asynccontextmanager
async def _connect(cluster: ClusterSection, timeout_s: float) -> AsyncIterator[AiozkClient]:
    auth: tuple[str, bytes] | None = None
    if cluster.zookeeper_auth is not None:
        try:
            scheme, credential = cluster.zookeeper_auth.read()
        except OSError as error:
            raise ConfigError(f"cluster.zookeeper_auth.credential_file: cannot be read: {error}") from error
        auth = scheme, credential.encode()
    client = AiozkClient(cluster.zookeeper, session_timeout_s=_SESSION_S, now=boottime, random=random.random, auth=auth)
    async with client as zk:
        try:
            async with timeout(timeout_s):
                await zk.wait_connected()
        except TimeoutError as error:
            raise CoordinationError(f"ZooKeeper at {cluster.zookeeper} does not answer") from error
        yield zk


async def _read(zk: AiozkClient, address: str, group: str, cluster_id: str, *, trusted: bool) -> Positions:
    try:
        async with timeout(_READ_S):
            await require_modern(zk, address, trusted=trusted)
            await _check_cluster(zk, address, group, cluster_id)
            return await GroupPositions(zk, group).read()
    except TimeoutError as error:
        raise CoordinationError(f"ZooKeeper at {address} has not answered within {_READ_S:g} s") from error


async def _check_cluster(zk: AiozkClient, address: str, group: str, cluster_id: str) -> None:
    topics = await zk.exists(BROKER_TOPICS)
    found = None if topics is None else f"{topics.czxid}-{topics.ctime_ms}"  # as in SinkContext.cluster_id
    if found != cluster_id:
        raise ConfigError(
            f"cluster.zookeeper: {address} is cluster {found or '(none: no brokers have been there)'}, and what has been landed "
            f"is of cluster {cluster_id}"
        )
    if await zk.exists(group_path(group)) is None:
        raise ConfigError(f"group.id: there is no group {group!r} in ZooKeeper at {address}")
