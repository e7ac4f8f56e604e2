# SPDX-License-Identifier: Apache-2.0
"""Makes a group membership: in ZooKeeper, or coordinated by a broker (setting ``group.membership``)."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import structlog

from consumerd import __version__
from consumerd.access.opening import ClusterConnections
from consumerd.aio.clock import boottime, monotonic
from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.group_coordinator import CoordinatorClient, list_consumers
from consumerd.config.member_settings import MemberSettings
from consumerd.errors import BrokerError, ConnectionLost, CoordinationError, ProtocolError
from consumerd.group.admission import Admission, admit_by_brokers, admit_coordinated
from consumerd.group.assignors import Strategy
from consumerd.group.classic.assignment import GroupAssignor
from consumerd.group.classic.machine import ClassicSettings
from consumerd.group.classic.member import ClassicMember
from consumerd.group.classic.metadata_topics import FollowedMetadataTopics
from consumerd.group.classic.topics import FollowedZooKeeperTopics, GroupTopics
from consumerd.group.identity import MemberIdentity
from consumerd.group.listener import PartitionListener
from consumerd.group.membership import Membership
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.net.pool import Purpose
from consumerd.offsets.kafka import OFFSETS_TOPIC
from consumerd.offsets.kafka_store import MemberGeneration
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import topic_path

_PATIENCE_S: Final = 3.0
"""Time limit for the group's coordinator before a start in ZooKeeper, in seconds; a start is not delayed longer."""
_RETRY_S: Final = 1.0
"""Pause, in seconds, until the coordinator is asked again for members that must go first."""
_SHOWN: Final = 3

_log = structlog.get_logger(__name__)


def make_membership(
    settings: MemberSettings,
    cluster: ClusterConnections,
    subscription: Subscription,
    listener: PartitionListener,
    *,
    cluster_id: str,
    generation: MemberGeneration | None,
    hooks: Hooks,
    seen: FollowedMetadataTopics | None = None,
) -> Membership:
    """Return the group membership that the settings ask for: in ZooKeeper, or by a broker.

    Args:
        listener: Called when partitions are claimed, released and lost.
        cluster_id: Identity of the cluster.
        generation: Object in which a membership coordinated by a broker keeps the group's generation id, for commits;
            None for a membership in ZooKeeper.
        seen: The topics as brokers tell them; None if ZooKeeper tells them.
    """
    if generation is not None:
        return _make_coordinated(
            settings,
            cluster,
            subscription,
            listener,
            cluster_id=cluster_id,
            generation=generation,
            hooks=hooks,
            seen=seen,
        )
    return Rebalancer(
        cluster.zk,
        identity=MemberIdentity(
            group=settings.group.id, host=socket.gethostname(), consumer_id=settings.group.consumer_id
        ),
        subscription=subscription,
        listener=listener,
        now=monotonic,
        wall_ms=_wall_ms,
        random=random.Random(),
        strategy=Strategy(settings.group.assignor),
        settings=settings.rebalance.fill(RebalanceSettings),
        hooks=hooks,
        admit=Admission(
            cluster.zk,
            settings.group.id,
            cluster_id=cluster_id,
            about={"consumerd": __version__, "host": socket.gethostname(), "pid": str(os.getpid())},
        ).admit,
        layout=cluster.layout,
    )


def _make_coordinated(
    settings: MemberSettings,
    cluster: ClusterConnections,
    subscription: Subscription,
    listener: PartitionListener,
    *,
    cluster_id: str,
    generation: MemberGeneration,
    hooks: Hooks,
    seen: FollowedMetadataTopics | None,
) -> ClassicMember:
    group = settings.group
    topics: GroupTopics
    if seen is not None:
        topics = seen
        admit = partial(admit_by_brokers, cluster.make_source(cluster.list_known), cluster_id=cluster_id)
    else:
        topics = FollowedZooKeeperTopics(cluster.zk, cluster.layout)
        admit = partial(admit_coordinated, cluster.zk, group.id, cluster_id=cluster_id)
    return ClassicMember(
        _make_coordinator(settings, cluster, patience_s=group.session_timeout_ms / 1000),
        topics,
        group=group.id,
        subscription=subscription,
        listener=listener,
        generation=generation,
        settings=ClassicSettings(
            session_timeout_s=group.session_timeout_ms / 1000,
            heartbeat_s=group.heartbeat_s,
            drain_timeout_s=settings.rebalance.drain_timeout_ms / 1000,
        ),
        assignor=GroupAssignor(group.assignor),
        now=boottime,
        wall_ms=_wall_ms,
        random=random.Random(),
        hooks=hooks,
        admit=admit,
        principal=cluster.address.principal,
    )


def _make_coordinator(settings: MemberSettings, cluster: ClusterConnections, *, patience_s: float) -> CoordinatorClient:
    group = settings.group
    request_timeout_s = min(cluster.address.request_timeout_s, patience_s / 2)

    def make_finder(purpose: Purpose) -> CoordinatorFinder:
        return CoordinatorFinder(
            cluster.pool,
            group.id,
            cluster.find_brokers,
            random=random.random,
            patience_s=patience_s,
            request_timeout_s=request_timeout_s,
            purpose=purpose,
        )

    return CoordinatorClient(
        make_finder(Purpose.GROUP),
        make_finder(Purpose.CONTROL),
        group.id,
        session_timeout_s=group.session_timeout_ms / 1000,
        rebalance_timeout_s=group.rebalance_timeout_ms / 1000,
        request_timeout_s=request_timeout_s,
    )


async def wait_alone(
    cluster: ClusterConnections, settings: MemberSettings, *, hooks: Hooks, waiting: Callable[[str], None]
) -> None:
    """Wait until no broker coordinates members of the group, before it is joined in ZooKeeper.

    A coordinator that does not answer in time, or that refuses, does not prevent the start. Without
    ``__consumer_offsets`` no broker is asked. Returns at once if the group is to be coordinated by a broker. Can be
    cancelled at any time.

    Args:
        waiting: Called with the reason of the wait.

    Raises CoordinationError if ZooKeeper cannot be read.
    """
    group = settings.group.id
    if settings.group.membership == "kafka" or await cluster.zk.exists(topic_path(OFFSETS_TOPIC)) is None:
        return
    coordinator = _make_coordinator(settings, cluster, patience_s=_PATIENCE_S)
    told = False
    while members := await _find_members(coordinator):
        reason = (
            f"group {group!r} has members that a broker coordinates ({join_shown(sorted(members), _SHOWN)}), so "
            "partitions would be read twice: stop them, or set group.membership: kafka; this member joins when they "
            "have gone"
        )
        waiting(reason)
        if not told:
            told = True
            _log.warning("group_in_both_places", reason=reason)
            hooks.trouble(Trouble.GROUP_IN_BOTH_PLACES, reason)
        await asyncio.sleep(_RETRY_S)


async def _find_members(coordinator: CoordinatorClient) -> Collection[str]:
    try:
        return list_consumers(await coordinator.describe_patiently())
    except (BrokerError, ConnectionLost, ProtocolError, CoordinationError) as error:
        _log.debug("coordinated_members_unknown", error=str(error))
        return []


def _wall_ms() -> int:
    return int(time.time() * 1000)
