# SPDX-License-Identifier: Apache-2.0
"""One member of a group: membership, fetching, delivery and commits, made and run together.

The daemon and the connector are members. They differ in their sinks: files and the like, or streams of the program.
Together with ``access`` and ``membership``, this module alone knows the concrete classes of group, fetch, delivery and
offsets.

A member stops in two steps:

1. Leave the group: drain, flush, commit, release the partitions, delete the member's node.
2. Stop delivering and fetching.

After a failure step 1 is skipped.
"""

from __future__ import annotations

import asyncio
import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from consumerd.aio.clock import monotonic
from consumerd.client.fetch_protocols import choose_fetch_protocol
from consumerd.client.opening import ClusterAccess
from consumerd.cluster.generation import watch_generation
from consumerd.config.member_settings import MemberSettings
from consumerd.connector.membership import make_membership
from consumerd.connector.sink_fetchers import SinkFetchers
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import (
    DeliveryReports,
    DeliverySettings,
    PartitionHistory,
    SinkRoute,
    report_nobody,
)
from consumerd.errors import ConsumerdError, SinkClosed
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.group.classic.metadata_topics import FollowedMetadataTopics
from consumerd.group.listener import PartitionListener
from consumerd.group.membership import Membership
from consumerd.group.subscription import Subscription
from consumerd.model import Claim, TopicPartition
from consumerd.net.pool import PoolShare
from consumerd.offsets.history import SeenPartitionHistory, ZooKeeperPartitionHistory
from consumerd.offsets.kafka_requests import KafkaOffsetRequests
from consumerd.offsets.kafka_store import MemberGeneration
from consumerd.offsets.kafka_truncations import KafkaLogTruncations
from consumerd.offsets.opening import open_kafka_store, open_store
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import LogTruncations, MemberRequests, OffsetStore
from consumerd.offsets.truncations import ZooKeeperLogTruncations
from consumerd.sinks.base import Quarantine
from consumerd.telemetry.hooks import Hooks

_TOPICS_INTERVAL_S: Final = 5.0
"""Interval, in seconds, of reading topics from brokers, where no ZooKeeper tells of changes."""
_SHUTDOWN_RESERVE: Final = 0.2
"""Share of ``shutdown.timeout_ms`` for what follows step 1 of a stop: closing sinks and connections, too."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSinks:
    """Sinks of a group member, and callbacks about them.

    Attributes:
        budgets: Memory budget of each sink, by the sink's name.
        largest_unit_bytes: Size of the largest message or record batch that each sink can hold.
        route: Returns the sink of a partition.
        quarantine: Keeps messages and records that a policy sets aside; None if no policy does.
        closed: Called when the reader of a sink's output has gone.
        stopped: Called when a policy has stopped a partition.
    """

    budgets: Mapping[str, MemoryBudget]
    largest_unit_bytes: int
    route: Callable[[TopicPartition], SinkRoute]
    quarantine: Quarantine | None = None
    closed: Callable[[SinkClosed], None]
    stopped: Callable[[Claim, ConsumerdError], None] = report_nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """Parts of one group member: membership, fetchers, deliveries and operators' requests."""

    access: ClusterAccess
    budgets: Mapping[str, MemoryBudget]
    fetchers: SinkFetchers
    deliveries: Deliveries
    requests: MemberRequests
    membership: Membership

    async def run(self, stop: asyncio.Event, *, patience_s: float) -> None:
        """Take part in the group until ``stop`` is set; then leave it.

        Args:
            patience_s: Time limit for leaving, in seconds.

        Raises the failure of a part in an ExceptionGroup.
        """
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(self.fetchers.run(), name="fetchers"),
                tasks.create_task(self.deliveries.run(), name="deliveries"),
                tasks.create_task(self.requests.run(), name="operators' requests"),
                tasks.create_task(self._follow_topics(), name="follow topics"),
                tasks.create_task(self.membership.run(), name="membership"),
                tasks.create_task(self._watch_generation(), name="generation of the brokers"),
            ]
            await stop.wait()
            began = monotonic()
            in_time = await self.membership.leave(patience_s)
            _log.info("group_left", seconds=round(monotonic() - began, 3), in_time=in_time)
            for task in working:
                task.cancel()

    async def _watch_generation(self) -> None:
        """Raise UnsupportedGeneration if the brokers are replaced by others of another generation."""
        access = self.access
        if access.has_zookeeper:
            await watch_generation(access.zk, access.cluster.address.zookeeper or "", access.layout.generation)

    async def _follow_topics(self) -> None:
        """Tell the cluster's directory which topics to follow: those of our partitions."""
        while True:
            seen = self.membership.topics.value
            self.access.directory.follow(seen)
            await self.membership.topics.wait(partial(operator.ne, seen))


def make_member(
    access: ClusterAccess,
    settings: MemberSettings,
    subscription: Subscription,
    sinks: MemberSinks,
    *,
    cluster_id: str,
    hooks: Hooks,
    listen: Callable[[Deliveries], PartitionListener] = lambda deliveries: deliveries,
) -> MemberParts:
    """Make the parts of a group member; opens no connection.

    Args:
        cluster_id: Identity of the cluster, as :func:`~consumerd.connector.cluster_search.find_cluster` returns it.
        listen: Returns the object that the membership tells of claims and releases: the deliveries, or one that passes
            all on to them.
    """
    fetch, offsets, group = settings.fetch, settings.offsets, settings.group
    if not access.has_zookeeper:
        directory = access.directory
        seen = replace(access.cluster, seen=lambda: directory.view.brokers.values())  # noqa: PLW0108 - the view changes
        access = replace(access, cluster=seen)
    fetchers = SinkFetchers(
        _make_fetchers(access, settings, sinks, hooks), lambda partition: sinks.route(partition).name
    )
    generation = MemberGeneration() if group.membership == "kafka" else None
    kept = _open_kept(
        access,
        settings,
        generation=generation,
        hooks=hooks,
        denied=lambda topic: membership.report_denied(topic),  # noqa: PLW0108 - membership is made below
    )
    deliveries = Deliveries(
        route=sinks.route,
        feeds=fetchers,
        store=kept.store,
        ranges=access.ranges,
        history=kept.history,
        requests=kept.requests,
        truncations=kept.truncations,
        quarantine=sinks.quarantine,
        settings=replace(
            offsets.fill(DeliverySettings),
            offsets=offsets.fill(OffsetPolicy),
            on_corrupt=fetch.on_corrupt,
            on_oversized=fetch.on_oversized,
            read_committed=fetch.isolation == "read_committed",
        ),
        reports=DeliveryReports(
            lost=lambda claim, error: membership.report_lost(claim, str(error)),
            sink_closed=sinks.closed,
            stopped=sinks.stopped,
        ),
        hooks=hooks,
        now=monotonic,
        random=random.random,
    )
    membership = make_membership(
        settings,
        access.cluster,
        subscription,
        listen(deliveries),
        cluster_id=cluster_id,
        generation=generation,
        hooks=hooks,
        seen=kept.seen,
    )
    return MemberParts(
        access=access,
        budgets=sinks.budgets,
        fetchers=fetchers,
        deliveries=deliveries,
        requests=kept.requests,
        membership=membership,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The group's state outside this process: in ZooKeeper, or with positions in Kafka alone.

    Attributes:
        seen: The topics as brokers tell them; None if ZooKeeper tells them.
    """

    store: OffsetStore
    requests: MemberRequests
    truncations: LogTruncations
    history: PartitionHistory
    seen: FollowedMetadataTopics | None = None


def _open_kept(
    access: ClusterAccess,
    settings: MemberSettings,
    *,
    generation: MemberGeneration | None,
    hooks: Hooks,
    denied: Callable[[str], None],
) -> _Kept:
    group, cluster = settings.group.id, access.cluster
    if not access.has_zookeeper:
        # the store is made below; it looks requests up, and they are read with its positions
        made = KafkaOffsetRequests(lambda partitions: kafka.load(partitions))  # noqa: PLW0108 - kafka is made below
        kafka = open_kafka_store(cluster, group, requests=made, denied=denied, generation=generation)
        seen = FollowedMetadataTopics(
            cluster.make_source(cluster.list_known),
            interval_s=_TOPICS_INTERVAL_S,
        )
        return _Kept(
            store=kafka,
            requests=made,
            truncations=KafkaLogTruncations(kafka),
            history=SeenPartitionHistory(seen.is_new),
            seen=seen,
        )
    requests = ZooKeeperOffsetRequests(access.zk, group, hooks=hooks)
    return _Kept(
        store=open_store(
            cluster,
            group,
            settings.offsets.places,
            requests=requests,
            hooks=hooks,
            denied=denied,
            generation=generation,
        ),
        requests=requests,
        truncations=ZooKeeperLogTruncations(access.zk, group, in_session=generation is None),
        history=ZooKeeperPartitionHistory(access.zk, group, access.layout),
    )


def _make_fetchers(
    access: ClusterAccess, settings: MemberSettings, sinks: MemberSinks, hooks: Hooks
) -> dict[str, Fetcher]:
    fetch = replace(
        settings.fetch.fill(FetchSettings),
        max_message_bytes=sinks.largest_unit_bytes,
        read_committed=settings.fetch.isolation == "read_committed",
        request_timeout_s=settings.cluster.request_timeout_ms / 1000,
        principal=access.cluster.address.principal,
    )
    return {
        name: Fetcher(
            settings=fetch,
            budget=budget,
            leaders=access.directory,
            protocol=choose_fetch_protocol(access.layout.generation, PoolShare(access.pool, name)),
            log_ranges=access.ranges,
            hooks=hooks,
            now=monotonic,
            random=random.random,
        )
        for name, budget in sinks.budgets.items()
    }


def plan_patience(settings: MemberSettings) -> float:
    """Return the time limit for leaving the group, in seconds, within that of a shutdown.

    The result is 0.8 of ``shutdown.timeout_ms``, minus a third of the session timeout, but at least a quarter of
    ``shutdown.timeout_ms``. The third is the time to close the ZooKeeper session if ZooKeeper does not answer. Example:
    with ``shutdown.timeout_ms`` 30 s and a session timeout of 6 s, leaving may take 30 * 0.8 - 2 = 22 s.
    """
    timeout_s = settings.shutdown.timeout_ms / 1000
    session_end_s = settings.group.session_timeout_ms / 1000 / 3
    return max(timeout_s * (1 - _SHUTDOWN_RESERVE) - session_end_s, timeout_s / 4)
