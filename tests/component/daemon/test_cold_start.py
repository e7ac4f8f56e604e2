# SPDX-License-Identifier: Apache-2.0
"""How often a member that starts waits for ZooKeeper, one answer after the other, until its first positions are stored.

Round trips, not time: where ZooKeeper is far away or busy each of them costs as much as the first.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from consumerd.aio.clock import boottime
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, SinkRoute
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group.admission import Admission, describe_cluster
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.subscription import Subscription
from consumerd.model import TopicPartition
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.roots import ZooKeeperRootRegistry
from consumerd.offsets.truncations import ZooKeeperLogTruncations
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import BROKER_TOPICS, offset_path, topic_path
from consumerd.zk.layout_modern import MODERN, partition_path
from tests.support.delivery import FakeBrokers, FakeSink
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import GET, LIST, LIST_WITH_STAT, SYNC, make_client, opcode, run_server, xid

PARTITIONS = 4
DELAY_S = 0.1
"""Longer than what a test machine takes for everything between two answers."""
_NOT_COUNTED = frozenset({SYNC, 11, 101})
"""The session's probes, pings, and what registers watches anew."""
_READS: Final = frozenset({GET, LIST, LIST_WITH_STAT})


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module."""
    with run_server() as zookeeper:
        yield zookeeper


class RoundTrips:
    """Counts the longest row of requests each of which was sent after the answer to the one before."""

    def __init__(self) -> None:
        self.longest = 0
        self.before_owning = 0
        """Those before what is owned is first asked about: has an operator asked for something?"""
        self._answered = 0
        self._rows: dict[int, int] = {}

    def look(self, direction: Direction, frame: bytes) -> Action:
        """See FrameHook."""
        if direction is Direction.TO_SERVER:
            if xid(frame) > 0 and opcode(frame) not in _NOT_COUNTED:
                self._rows[xid(frame)] = self._answered + 1
                self.longest = max(self.longest, self._answered + 1)
                if not self.before_owning and opcode(frame) in _READS and b"/requests/" in frame:
                    self.before_owning = self._answered
        elif (row := self._rows.pop(xid(frame), None)) is not None:
            self._answered = max(self._answered, row)
        return Action.FORWARD


@asynccontextmanager
async def member(
    zk: AiozkClient, group: str, topic: str, brokers: FakeBrokers, settings: DeliverySettings
) -> AsyncIterator[None]:
    """Start as the daemon does, with brokers and a sink in memory; stop dead at the end."""
    await zk.wait_connected()
    topics = await zk.exists(BROKER_TOPICS)
    assert topics is not None
    roots = ZooKeeperRootRegistry(zk, group)
    if await roots.find("lake", consumer_id=None) is None:
        await roots.record("lake", "root", consumer_id=None)
    sink = FakeSink()
    requests = ZooKeeperOffsetRequests(zk, group)
    deliveries = Deliveries(
        route=lambda _: SinkRoute(name="lake", sink=sink),
        feeds=brokers,
        store=ZooKeeperOffsetStore(zk, group),
        ranges=brokers,
        history=ZooKeeperPartitionHistory(zk, group, layout=MODERN),
        requests=requests,
        truncations=ZooKeeperLogTruncations(zk, group),
        quarantine=None,
        settings=settings,
        reports=DeliveryReports(lost=lambda _claim, _error: None, sink_closed=lambda _error: None),
        hooks=Hooks(),
        now=time.monotonic,
        random=random.random,
    )
    rebalancer = Rebalancer(
        zk,
        identity=MemberIdentity(group=group, host="host"),
        subscription=Subscription.to_topics({topic: 1}),
        listener=deliveries,
        now=boottime,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        random=random.Random(),
        admit=Admission(zk, group, cluster_id=describe_cluster(topics), about={}).admit,
        layout=MODERN,
    )
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(one.run()) for one in (deliveries, requests, rebalancer)]
        try:
            yield
        finally:
            for task in working:
                task.cancel()


@pytest.mark.parametrize(("known", "owned", "stored"), [(False, 24, 37), (True, 14, 22)])
async def test_a_start_waits_for_few_answers_in_a_row(
    server: EmbeddedZooKeeper, known: bool, owned: int, stored: int
) -> None:
    """In a group that is new, and in one that has been there before: until something is owned, and until what was delivered
    is stored. A busy machine may take apart by one or two what is asked at once.
    """
    name = f"start-{known}"
    partitions = [TopicPartition.modern(name, number) for number in range(PARTITIONS)]
    async with make_client(server.connect_string) as desk:
        await desk.wait_connected()
        body = {"version": 1, "partitions": {str(number): [0] for number in range(PARTITIONS)}}
        await desk.ensure_path(BROKER_TOPICS)
        await desk.ensure_path(topic_path(name), json.dumps(body).encode())
        for partition in partitions:
            await desk.ensure_path(partition_path(partition))

        position = 0

        async def is_stored() -> bool:
            found = [await desk.find(offset_path(name, partition)) for partition in partitions]
            return all(one is not None and one[0] == b"%d" % position for one in found)

        brokers = FakeBrokers()
        counted = 0, 0
        for is_counted in (False, True) if known else (True,):
            position += 10
            for partition in partitions:
                log = brokers.logs[partition]
                log.append(10)
            async with TcpProxy(server.port) as proxy:
                trips = RoundTrips()
                proxy.on_frame = trips.look
                # the first of two starts makes the group known, and need not wait
                proxy.delay_s, settings = (
                    (DELAY_S, DeliverySettings()) if is_counted else (0.0, DeliverySettings(commit_interval_ms=50))
                )
                async with (
                    make_client(proxy.connect_string) as zk,
                    member(zk, name, name, brokers, settings),
                ):
                    await until(is_stored, within_s=30)
                    counted = trips.before_owning, trips.longest
        assert 0 < counted[0] <= owned
        assert counted[1] <= stored
