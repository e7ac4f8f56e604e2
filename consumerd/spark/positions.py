# SPDX-License-Identifier: Apache-2.0
"""Reads the positions of a whole group for an audit, over a ZooKeeper session of its own."""

from __future__ import annotations

from typing import Final

from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.timeouts import timeout
from consumerd.config.settings import ClusterSection
from consumerd.errors import ConfigError, CoordinationError
from consumerd.group.admission import describe_cluster
from consumerd.landing.examine import Positions
from consumerd.offsets.positions import GroupPositions
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.zk.layout import BROKER_TOPICS, group_path

_SESSION_TIMEOUT_MS: Final = 10_000
_READ_S: Final = 60.0


def read_positions(
    cluster: ClusterSection, group: str, *, cluster_id: str, connect_timeout_s: float = 10.0
) -> Positions:
    """Return every position of a group. ``cluster_id`` is that of the landing zone which they are compared with.

    Blocks, for a minute at most once it is connected. Raises CoordinationError (unreachable), ConfigError (another
    cluster, no such group).
    """
    address = cluster.locate(client_id="consumerd-audit", session_timeout_ms=_SESSION_TIMEOUT_MS)
    with LoopThread(open_cluster(address, wait_s=connect_timeout_s), name="consumerd positions") as thread:
        return thread.call(_read(thread.resource, group, cluster_id))


async def _read(cluster: ClusterConnections, group: str, cluster_id: str) -> Positions:
    try:
        async with timeout(_READ_S):
            await _check_cluster(cluster, group, cluster_id)
            return await GroupPositions(cluster.zk, group).read()
    except TimeoutError as error:
        raise CoordinationError(
            f"ZooKeeper at {cluster.address.zookeeper} has not answered within {_READ_S:g} s"
        ) from error


async def _check_cluster(cluster: ClusterConnections, group: str, cluster_id: str) -> None:
    address = cluster.address.zookeeper
    topics = await cluster.zk.exists(BROKER_TOPICS)
    found = None if topics is None else describe_cluster(topics)
    if found != cluster_id:
        raise ConfigError(
            f"cluster.zookeeper: {address} is cluster {found or '(none: no brokers have been there)'}, and what has been landed "
            f"is of cluster {cluster_id}"
        )
    if await cluster.zk.exists(group_path(group)) is None:
        raise ConfigError(f"group.id: there is no group {group!r} in ZooKeeper at {address}")
