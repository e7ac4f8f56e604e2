# SPDX-License-Identifier: Apache-2.0
"""Reads the committed positions of a group, for an audit.

It opens a ZooKeeper session of its own.
"""

from __future__ import annotations

from typing import Final

from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.timeouts import timeout
from consumerd.config.cluster_section import ClusterSection
from consumerd.errors import ConfigError, CoordinationError
from consumerd.group.admission import describe_cluster
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import KeptPositions
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.zk.layout import BROKER_TOPICS

_SESSION_TIMEOUT_MS: Final = 10_000
_READ_TIMEOUT_S: Final = 60.0
"""Time limit of all reads after the session is open, in seconds."""


def read_positions(
    cluster: ClusterSection, group: str, *, cluster_id: str, connect_timeout_s: float = 10.0
) -> KeptPositions:
    """Return every committed position of a group, in ZooKeeper and in Kafka.

    Blocks; once connected, for at most a minute.

    Args:
        cluster_id: identity of the cluster that the landed files are of.

    Raises CoordinationError if ZooKeeper cannot be reached, ConfigError for another cluster or an unknown group.
    """
    address = cluster.locate(client_id="consumerd-audit", session_timeout_ms=_SESSION_TIMEOUT_MS)
    with LoopThread(open_cluster(address, wait_s=connect_timeout_s), name="consumerd positions") as thread:
        return thread.call(_read(thread.resource, group, cluster_id))


async def _read(cluster: ClusterConnections, group: str, cluster_id: str) -> KeptPositions:
    try:
        async with timeout(_READ_TIMEOUT_S):
            positions = open_positions(cluster, group)
            await _check_cluster(cluster, positions, cluster_id)
            return await positions.read_kept()
    except TimeoutError as error:
        place = cluster.address.bootstrap if cluster.session is None else f"ZooKeeper at {cluster.address.zookeeper}"
        raise CoordinationError(f"{place} has not answered within {_READ_TIMEOUT_S:g} s") from error


async def _check_cluster(cluster: ClusterConnections, positions: GroupPositions, cluster_id: str) -> None:
    """Raise ConfigError if this is another cluster, or it does not have the group."""
    if cluster.session is None:
        view = await cluster.make_source(cluster.address.first_brokers).read(())
        cluster.check_identities(view.cluster_id)
        if view.cluster_id != cluster_id:
            raise ConfigError(
                f"cluster.bootstrap: {cluster.address.bootstrap} is cluster {view.cluster_id or '(unknown)'}, and what "
                f"has been landed is of cluster {cluster_id}"
            )
        if (absence := await positions.explain_absence()) is not None:
            raise ConfigError(f"group.id: {absence}")
        return
    address = cluster.address.zookeeper
    topics = await cluster.zk.exists(BROKER_TOPICS)
    found = None if topics is None else describe_cluster(topics)
    if found != cluster_id:
        raise ConfigError(
            f"cluster.zookeeper: {address} is cluster {found or '(none: no brokers have been there)'}, and what has "
            f"been landed is of cluster {cluster_id}"
        )
    if (absence := await positions.explain_absence()) is not None:
        raise ConfigError(f"group.id: {absence} at {address}")
