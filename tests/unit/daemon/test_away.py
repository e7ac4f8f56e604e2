# SPDX-License-Identifier: Apache-2.0
"""The daemon's watch on partitions that are away: when it reads, and what it keeps while it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import structlog

from consumerd.aio.cell import Cell
from consumerd.aio.tasks import alongside
from consumerd.cluster.view import EMPTY_VIEW, Broker, ClusterView, PartitionView, TopicView
from consumerd.daemon.away import AwayWatch
from consumerd.daemon.status import AwayStatus, RecentEvents
from consumerd.model import BrokerId, Generation, PartitionKey, TopicPartition
from consumerd.zk.port import NotConnected
from tests.support import virtual_time

ZERO, ONE = BrokerId(0), BrokerId(1)
KEYS = (PartitionKey(0, ZERO), PartitionKey(0, ONE))
INTERVAL_S = 30.0


class Stored:
    """Positions of the group, which a test changes and cuts off. Counts reads."""

    def __init__(self) -> None:
        self.partitions = [TopicPartition("events", key) for key in KEYS]
        self.reads: list[list[str]] = []
        self.is_cut = False

    async def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of these topics."""
        self.reads.append(list(topics))
        if self.is_cut:
            raise NotConnected("ZooKeeper: not connected")
        return [one for one in self.partitions if one.topic in topics]


def make_view(*brokers: BrokerId) -> ClusterView:
    partitions = {key: PartitionView(leader=key.broker) for key in KEYS if key.broker in brokers}
    return ClusterView(
        brokers={one: Broker(id=one, host="h", port=1) for one in brokers},
        topics={"events": TopicView(name="events", partitions=partitions)},
    )


AWAY = AwayStatus(
    broker=1,
    reason="broker 1 is not registered; its partitions come back with it, at their positions",
    partitions=("events/1-0",),
)


def make_watch(
    views: Cell[ClusterView], stored: Stored, hooks: RecentEvents, generation: Generation = Generation.LEGACY
) -> AwayWatch:
    return AwayWatch(views, lambda: {"events"}, stored, generation=generation, hooks=hooks, interval_s=INTERVAL_S)


def test_it_reads_when_the_cluster_changes_and_from_time_to_time() -> None:
    """A position of a broker that is away may be written late, by a member that has still to commit."""

    async def play() -> None:
        views, stored = Cell(EMPTY_VIEW), Stored()
        watch = make_watch(views, stored, RecentEvents(lambda: 0.0))
        async with alongside(watch.run(), name="watch"):
            await asyncio.sleep(1)
            assert watch.status == (), "nothing was read of the cluster yet"
            views.set(make_view(ZERO))
            await asyncio.sleep(1)
            assert watch.status == (AWAY,)
            stored.partitions.append(TopicPartition("events", PartitionKey(1, ONE)))
            await asyncio.sleep(INTERVAL_S)
            assert watch.status == (replace(AWAY, partitions=("events/1-0", "events/1-1")),)
            del stored.partitions[-1]
            views.set(make_view(ZERO, ONE))
            await asyncio.sleep(1)
            assert watch.status == ()
        assert stored.reads == [[], *[["events"]] * 3]

    virtual_time.run(play())


def test_the_last_result_stays_while_positions_cannot_be_read() -> None:
    """An outage of ZooKeeper must not look as if the broker were back; it is told once."""

    async def play() -> None:
        views, stored, recent = Cell(make_view(ZERO)), Stored(), RecentEvents(lambda: 0.0)
        watch = make_watch(views, stored, recent)
        async with alongside(watch.run(), name="watch"):
            await asyncio.sleep(1)
            stored.is_cut = True
            await asyncio.sleep(3 * INTERVAL_S)
            assert watch.status == (AWAY,)
        assert [(one.kind, one.count) for one in recent.events()] == [("away partitions unread", 1)]

    virtual_time.run(play())


def test_it_logs_what_goes_and_what_is_back_once() -> None:
    """Not at each look."""

    async def play() -> None:
        views = Cell(make_view(ZERO))
        watch = make_watch(views, Stored(), RecentEvents(lambda: 0.0))
        async with alongside(watch.run(), name="watch"):
            await asyncio.sleep(3 * INTERVAL_S)
            views.set(make_view(ZERO, ONE))
            await asyncio.sleep(1)

    with structlog.testing.capture_logs() as logs:
        virtual_time.run(play())
    assert [(one["event"], one["partitions"]) for one in logs] == [
        ("partitions_away", "events/1-0"),
        ("partitions_back", "events/1-0"),
    ]


def test_clusters_of_0_8_and_later_are_not_read() -> None:
    """A partition whose brokers are down stays registered there, without a leader."""
    stored = Stored()
    virtual_time.run(make_watch(Cell(make_view(ZERO)), stored, RecentEvents(lambda: 0.0), Generation.MODERN).run())
    assert stored.reads == []
