# SPDX-License-Identifier: Apache-2.0
"""A member with everything that the daemon has between ZooKeeper and a sink; only its broker is made up.

Session, registry, owners, positions, operators' requests, pipelines and the ``null`` sink are the daemon's own classes, so
that what such a member asks of ZooKeeper is what a daemon would. Many fit into one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.aio.clock import boottime, monotonic
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, SinkRoute
from consumerd.group.admission import Admission, describe_cluster
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.truncations import ZooKeeperLogTruncations
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.sinks.base import SinkContext
from consumerd.sinks.null import NullSink
from consumerd.sinks.options import SinkOptions
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import BROKER_TOPICS
from consumerd.zk.layout_modern import MODERN
from tests.support.delivery import FakeBrokers, FakeLog
from tests.support.zookeeper import make_client

_LOG_END: Final = 10


class MadeUpLogs(FakeBrokers):
    """Brokers that hold every partition, with :data:`_LOG_END` records in it to begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = _Logs()

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """See LogRanges."""
        logs = {partition: self.logs[partition] for partition in partitions}
        return {partition: LogRange(log.earliest, log.latest) for partition, log in logs.items()}


class _Logs(dict[TopicPartition, FakeLog]):
    def __missing__(self, partition: TopicPartition) -> FakeLog:
        log = self[partition] = FakeLog(0, _LOG_END)
        return log


@dataclass(frozen=True, slots=True, eq=False)
class DeliveringMember:
    """One member, and what it reads from."""

    zk: AiozkClient
    rebalancer: Rebalancer
    deliveries: Deliveries
    brokers: FakeBrokers
    sink: NullSink

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that it delivers."""
        return frozenset(self.rebalancer.status.owned)

    @property
    def at_rest(self) -> bool:
        """Whether it has joined, nothing moves, and it has all that it should have."""
        status = self.rebalancer.status
        return status.ready and not status.moving and status.owned.keys() == status.desired.keys()

    @property
    def delivering(self) -> bool:
        """Whether each of its partitions is past its start."""
        return all(one.position is not None for one in self.deliveries.statuses)


@contextlib.asynccontextmanager
async def join_delivering(
    connect: str,
    group: str,
    topics: Mapping[str, int],
    *,
    brokers: FakeBrokers,
    consumer_id: str | None = None,
    settings: RebalanceSettings | None = None,
    session_timeout_s: float = 6.0,
    commit_interval_ms: int = 1000,
    hooks: Hooks | None = None,
) -> AsyncIterator[DeliveringMember]:
    """Take part while the block runs, with so many streams a topic; leave in order at its end."""
    hooks = hooks if hooks is not None else Hooks()
    async with make_client(connect, session_timeout_s=session_timeout_s) as zk:
        await zk.wait_connected()
        made = await zk.exists(BROKER_TOPICS)
        assert made is not None, "topics come before members"
        sink = NullSink(
            SinkContext(
                sink_name="null",
                group=group,
                cluster_id="cluster",
                writer_id="writer",
                now=monotonic,
                charge=lambda size: None,
            ),
            SinkOptions(),
        )
        requests = ZooKeeperOffsetRequests(zk, group, hooks=hooks)
        deliveries = Deliveries(
            route=lambda partition: SinkRoute(name="null", sink=sink),
            feeds=brokers,
            store=ZooKeeperOffsetStore(zk, group, hooks=hooks),
            ranges=brokers,
            history=ZooKeeperPartitionHistory(zk, group, layout=MODERN),
            requests=requests,
            truncations=ZooKeeperLogTruncations(zk, group),
            quarantine=None,
            settings=DeliverySettings(
                offsets=OffsetPolicy(on_missing="earliest"), commit_interval_ms=commit_interval_ms
            ),
            reports=DeliveryReports(
                lost=lambda claim, error: rebalancer.report_lost(claim, str(error)),
                sink_closed=lambda error: None,
            ),
            hooks=hooks,
            now=monotonic,
            random=random.random,
        )
        rebalancer = Rebalancer(
            zk,
            identity=MemberIdentity(group=group, host=socket.gethostname(), consumer_id=consumer_id),
            subscription=Subscription.to_topics(dict(topics)),
            listener=deliveries,
            now=boottime,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            random=random.Random(),
            settings=settings,
            hooks=hooks,
            admit=Admission(zk, group, cluster_id=describe_cluster(made), about={}).admit,
            layout=MODERN,
        )
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(deliveries.run()),
                tasks.create_task(requests.run()),
                tasks.create_task(rebalancer.run()),
            ]
            yield DeliveringMember(zk, rebalancer, deliveries, brokers, sink)
            await rebalancer.leave()
            for task in working:
                task.cancel()
        await sink.close()
