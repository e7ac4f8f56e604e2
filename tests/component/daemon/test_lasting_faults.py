# SPDX-License-Identifier: Apache-2.0
"""What everything says ten minutes into a fault that lasts, and after it: page, API, probe, lag, metrics, log, events.

A real fetcher on brokers in memory, real deliveries, and the daemon's own descriptions of them, in virtual time. Partition
0 has the fault; partition 1, with another leader and another sink, must stay what it was.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from html import escape

import pytest
import structlog
from prometheus_client import CollectorRegistry

from consumerd.access.principal import OUR_PRINCIPAL
from consumerd.aio.tasks import alongside
from consumerd.client.remedies import advise_lookup
from consumerd.daemon.describe import describe_partition, explain_problems
from consumerd.daemon.http import _write_json, _write_page
from consumerd.daemon.readings import read_gauges
from consumerd.daemon.status import DaemonStatus, PartitionReport, RecentEvents
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.ports import SinkRoute
from consumerd.errors import ConnectionLost, CoordinationError, RetriableSinkError
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, Claim, LogRange, TopicPartition
from consumerd.offsets.kafka_errors import explain_kafka_error
from consumerd.offsets.store import CommitOutcome
from consumerd.telemetry.hooks import FanOutHooks
from consumerd.telemetry.metrics import MetricsHooks
from consumerd.wire.errorcodes import ErrorCode, broker_error
from tests.support.delivery import FakeClaim, FakeSink, FakeStore, FakeWriter, make_deliveries
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.virtual_time import run
from tests.support.waiting import until
from tests.unit.daemon.test_status_surface import STATUS

SICK, WELL = TopicPartition.modern("orders", 0), TopicPartition.modern("clicks", 0)
MINUTES = 60.0


class Forever(list[int]):
    """Scripted answers that never end."""

    def __init__(self, code: int) -> None:
        super().__init__([code])

    def pop(self, index: int = 0) -> int:  # type: ignore[override]  # only ever called with 0
        return self[index]


class Ranges:
    """ListOffsets as the brokers of the cluster answer it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.refused: set[TopicPartition] = set()
        self.denied: set[TopicPartition] = set()
        self.logs_are_replicated = True

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        found = {}
        for one in partitions:
            if one in self.denied:
                refused = broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"ListOffsets at broker 0 for {one}")
                raise advise_lookup(refused, one.topic)
            leader = self._cluster.leaders[one]
            if leader is None or one in self.refused:
                continue
            broker = self._cluster.brokers[leader]
            if broker.silent or broker.hanging:
                await asyncio.Event().wait()
            if not broker.up:
                raise ConnectionLost("refused")
            found[one] = LogRange(self._cluster.logs[one].log_start, self._cluster.logs[one].end)
        return found

    async def high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {one: found.latest for one, found in (await self.read(partitions)).items()}


class Sink(FakeSink):
    """A sink that lands every 20 s, and whose ``open`` can be kept waiting."""

    def __init__(self) -> None:
        super().__init__(buffered=True, roll_s=20.0)
        self.opens = asyncio.Event()
        self.opens.set()

    async def open(self, claim: Claim) -> FakeWriter:
        await self.opens.wait()
        return await super().open(claim)


class World:
    """Two partitions, each with a leader and a sink of its own, and what a daemon shows of them."""

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time
        self.cluster = FakeCluster(brokers=2)
        self.cluster.lead(SICK, 0)
        self.cluster.lead(WELL, 1)
        self.ranges = Ranges(self.cluster)
        self.store = FakeStore()
        self.sinks = {SICK: Sink(), WELL: FakeSink()}
        self.recent = RecentEvents(self.now, self.now)
        self.registry = CollectorRegistry()
        self.hooks = FanOutHooks(MetricsHooks(self.registry, self.now), self.recent)
        self.deliveries: Deliveries | None = None
        self.over = asyncio.Event()
        for partition in (SICK, WELL):
            self.store.put(partition, 0)
            self.produce(partition, 5)

    @property
    def leader(self) -> FakeBroker:
        """The sick partition's."""
        return self.cluster.brokers[BrokerId(0)]

    def produce(self, partition: TopicPartition, count: int) -> None:
        self.cluster.produce(partition, *[b"v"] * count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Deliveries]:
        budget = MemoryBudget(64 << 20)
        async with fetching_from(self.cluster, budget, FetchSettings(), hooks=self.hooks) as fetcher:
            deliveries = self.deliveries = make_deliveries(
                route=lambda partition: SinkRoute(name=partition.topic, sink=self.sinks[partition]),
                feeds=fetcher,
                store=self.store,
                ranges=self.ranges,
                hooks=self.hooks,
            )
            async with alongside(deliveries.run(), name="deliveries"):
                yield deliveries

    def status(self) -> DaemonStatus:
        """Everything, as the daemon describes it now."""
        assert self.deliveries is not None
        partitions = tuple(
            describe_partition(one, self.recent, now_ms=self.now() * 1000) for one in self.deliveries.statuses
        )
        problems = tuple(explain_problems(partitions))
        return replace(STATUS, partitions=partitions, problems=problems, events=self.recent.events())

    def gauge(self, name: str, partition: TopicPartition | None = None) -> float:
        labels = () if partition is None else (partition.topic, str(partition.partition))
        (value,) = [one.value for one in read_gauges(self.status()) if (one.gauge.name, one.labels) == (name, labels)]
        return value


def _partition(status: DaemonStatus, partition: TopicPartition) -> PartitionReport:
    (found,) = [one for one in status.partitions if one.topic == partition.topic]
    return found


@dataclass(frozen=True)
class Fault:
    """How a fault begins and ends, and what is said of it; ``lag_known``: whether ListOffsets is answered meanwhile."""

    begin: Callable[[World], None]
    end: Callable[[World], None]
    reason: str
    lag_known: bool = True
    from_the_claim: bool = False
    delivers: bool = False
    """Whether records go on to the sink."""


def _answer(code: int, reason: str, *, lag_known: bool = True) -> Fault:
    def begin(world: World) -> None:
        world.leader.errors[SICK] = Forever(code)
        if not lag_known:
            world.ranges.refused.add(SICK)

    def end(world: World) -> None:
        world.leader.errors[SICK] = []
        world.ranges.refused.clear()

    return Fault(begin, end, reason, lag_known)


def _sink(step: str, reason: str, error: str | None = None) -> Fault:
    """A sink that does not answer a step of its writers, or refuses it, until the fault ends."""

    def begin(world: World) -> None:
        over = world.over = asyncio.Event()

        async def trap(at: str, _writer: object, _batch: object) -> None:
            if at != step or over.is_set():
                return
            if error is not None:
                raise RetriableSinkError(error)
            await over.wait()

        world.sinks[SICK].trap = trap

    at_claim = step == "start"
    return Fault(begin, lambda world: world.over.set(), reason, lag_known=not at_claim, from_the_claim=at_claim)


def _set_leader(broker: int | None) -> Callable[[World], None]:
    return lambda world: world.cluster.lead(SICK, broker)


def _refuse_commits(world: World) -> None:
    world.store.outcomes[SICK] = [CommitOutcome.FAILED] * 100_000
    world.store.refusals[SICK] = "ZooKeeper's ACL on /consumers/g/offsets/orders/0 denies us write"


def _allow_commits(world: World) -> None:
    world.store.outcomes.clear()
    world.store.refusals.clear()


def _deny_positions(world: World) -> None:
    refused = broker_error(ErrorCode.GROUP_AUTHORIZATION_FAILED, "OffsetFetch of group 'g'")
    told = CoordinationError(explain_kafka_error(refused, "g", OUR_PRINCIPAL))
    told.__cause__ = refused
    world.store.load_faults = [told] * 100_000


def _allow_positions(world: World) -> None:
    world.store.load_faults = []


def _flag(name: str, value: bool) -> Callable[[World], None]:
    return lambda world: setattr(world.leader, name, value)


FAULTS = {
    "the ACL was revoked": _answer(
        29, r"TOPIC_AUTHORIZATION_FAILED \(29\).*allow `Read` on `Topic:orders`", lag_known=False
    ),
    "the ACL is missing at the start": Fault(
        lambda world: world.ranges.denied.add(SICK),
        lambda world: world.ranges.denied.clear(),
        r"error 29 \(TOPIC_AUTHORIZATION_FAILED\): allow `Describe` on `Topic:orders`",
        lag_known=False,
        from_the_claim=True,
    ),
    "a log directory is offline": _answer(56, r"KAFKA_STORAGE_ERROR \(56\).*offline"),
    "an unknown topic": _answer(3, r"UNKNOWN_TOPIC_OR_PARTITION \(3\).*deleted"),
    "no leader is elected": _answer(5, r"LEADER_NOT_AVAILABLE \(5\).*replicas"),
    "a leader that is none": _answer(6, r"NOT_LEADER.* \(6\).*controller"),
    "no leader": Fault(_set_leader(None), _set_leader(0), "has no leader", lag_known=False),
    "a broker that refuses": Fault(
        lambda world: world.leader.kill(), lambda world: world.leader.start(), "broker 0 at fake:9000.*running", False
    ),
    "a broker that is silent": Fault(
        _flag("silent", True), _flag("silent", False), "broker 0 at fake:9000", lag_known=False
    ),
    "a broker that hangs": Fault(
        _flag("hanging", True), _flag("hanging", False), "broker 0 at fake:9000", lag_known=False
    ),
    "a sink that hangs in open": Fault(
        lambda world: world.sinks[SICK].opens.clear(),
        lambda world: world.sinks[SICK].opens.set(),
        "sink orders has not answered open",
        from_the_claim=True,
        lag_known=False,
    ),
    "a sink that hangs in start": _sink("start", "sink orders has not answered start"),
    "a sink that hangs in write": _sink("write", "sink orders has not answered write"),
    "a sink that hangs in flush": _sink("flush", "sink orders has not answered flush"),
    "a volume that is gone": _sink("write", "/lake: No such file or directory", "/lake: No such file or directory"),
    "positions that are refused": replace(
        Fault(_refuse_commits, _allow_commits, "its position cannot be written: ZooKeeper's ACL on .*/orders/0"),
        delivers=True,
    ),
}


DENIALS = ("the ACL was revoked", "the ACL is missing at the start")


def _find(logged: Sequence[Mapping[str, object]], event: str) -> list[Mapping[str, object]]:
    return [one for one in logged if one["event"] == event]


@pytest.mark.parametrize("name", FAULTS)
def test_ten_minutes_into_a_fault_everything_says_so_and_all_is_well_after_it(name: str) -> None:
    """A partition that nobody can read must not look like one without new records."""
    fault = FAULTS[name]

    async def scenario() -> None:
        world = World()
        if fault.from_the_claim:
            fault.begin(world)
        async with world.running() as deliveries:
            await deliveries.claimed([FakeClaim(SICK), FakeClaim(WELL)])
            await asyncio.sleep(60)
            if not fault.from_the_claim:
                assert world.status().problems == ()
                assert _partition(world.status(), SICK).lag == 0
                fault.begin(world)
            world.recent.partition_stopped(WELL, "something else that happened")
            began = world.now()
            world.produce(SICK, 1000)
            world.produce(WELL, 1000)
            with structlog.testing.capture_logs() as logged:
                await asyncio.sleep(600)
                _check_sick(world, fault, began)
                if not fault.from_the_claim:
                    assert len(_find(logged, "delivery_failing")) == 1
                assert len([one for one in logged if one["log_level"] in ("warning", "error")]) <= 2

                fault.end(world)
                await until(lambda: _partition(world.status(), SICK).committed == 1005)
                await asyncio.sleep(60)
            _check_well(world)
            assert len(_find(logged, "delivery_recovered")) == 1

    run(scenario())


@pytest.mark.parametrize("name", DENIALS)
def test_a_missing_right_is_told_within_half_a_minute_and_a_grant_is_noticed_within_seconds(name: str) -> None:
    """However long it was missing: pauses between attempts do not grow with it."""
    fault = FAULTS[name]

    async def scenario() -> None:
        world = World()
        if fault.from_the_claim:
            fault.begin(world)
        async with world.running() as deliveries:
            await deliveries.claimed([FakeClaim(SICK), FakeClaim(WELL)])
            if not fault.from_the_claim:
                await asyncio.sleep(60)
                fault.begin(world)
            world.produce(SICK, 1000)
            await asyncio.sleep(30)
            assert "orders/0 failing for" in "".join(world.status().problems)
            assert world.gauge("consumerd_failing_partitions") == 1
            assert [one.kind for one in world.status().events].count("delivery failing") == 1
            await asyncio.sleep(900)
            fault.end(world)
            await asyncio.sleep(2.5)
            assert _partition(world.status(), SICK).position == 1005

    run(scenario())


def test_a_group_whose_positions_may_not_be_read_starts_soon_after_the_grant() -> None:
    """Code 30 of OffsetFetch: no partition starts at a guess, and all say which right is missing."""

    async def scenario() -> None:
        world = World()
        _deny_positions(world)
        async with world.running() as deliveries:
            await deliveries.claimed([FakeClaim(SICK), FakeClaim(WELL)])
            await asyncio.sleep(600)
            for one in (SICK, WELL):
                seen = _partition(world.status(), one)
                assert (seen.state, seen.position) == ("failing", None)
                assert "allow `Read` on `Group:g`" in (seen.reason or "")
            _allow_positions(world)
            await asyncio.sleep(2.5)
            assert [5, 5] == [_partition(world.status(), one).position for one in (SICK, WELL)]

    run(scenario())


def _check_sick(world: World, fault: Fault, began: float) -> None:
    status = world.status()
    sick, well = (_partition(status, one) for one in (SICK, WELL))
    assert sick.state == "failing"
    assert re.search(fault.reason, sick.reason or ""), sick.reason
    assert 570 <= sick.since.ago_s <= 680  # a flush or commit is due 20 s after the record
    assert (well.state, well.reason, well.lag, well.committed) == ("running", None, 0, 1005)

    if fault.delivers:
        assert (sick.position, sick.acknowledged, sick.committed, sick.lag) == (1005, 1005, 5, 0)
    elif fault.lag_known:
        expected = 1005 - (sick.position or 0)
        assert sick.lag == expected == world.gauge("consumerd_lag_records", SICK)
    else:
        assert sick.lag is None
        assert math.isnan(world.gauge("consumerd_lag_records", SICK))

    (reason,) = status.problems
    assert re.match(r"orders/0 failing for [56]\d\d s: ", reason)
    assert re.search(fault.reason, reason)
    assert world.gauge("consumerd_failing_partitions") == 1
    assert world.gauge("consumerd_partition_failing_seconds", SICK) >= 570
    assert world.gauge("consumerd_partition_failing_seconds", WELL) == 0

    (api,) = [one for one in json.loads(_write_json(status))["partitions"] if one["topic"] == "orders"]
    assert (api["state"], api["reason"]) == ("failing", sick.reason)
    page = _write_page(status).decode()
    assert escape(sick.reason or "") in page

    failing = [one for one in status.events if one.kind == "delivery failing"]
    assert [one.count for one in failing] == [1]
    assert len(status.events) <= 5
    assert any("something else that happened" in one.what for one in status.events)


def _check_well(world: World) -> None:
    status = world.status()
    sick = _partition(status, SICK)
    assert (sick.state, sick.reason, sick.lag, sick.position) == ("running", None, 0, 1005)
    assert sick.since.ago_s < 120
    assert status.problems == ()
    assert world.gauge("consumerd_failing_partitions") == 0
    assert world.gauge("consumerd_partition_failing_seconds", SICK) == 0
    assert status.events[0].kind == "resumed"


def test_a_broker_of_many_partitions_that_dies_is_one_line_of_each_kind() -> None:
    """It must not push off the page what happened before it."""
    partitions = [TopicPartition.modern("orders", number) for number in range(40)]

    async def scenario() -> None:
        world = World()
        for one in partitions:
            world.cluster.lead(one, 0, known=False)
            world.store.put(one, 0)
            world.sinks[one] = world.sinks[SICK]
        world.cluster.announce()
        async with world.running() as deliveries:
            await deliveries.claimed([FakeClaim(one) for one in partitions])
            await asyncio.sleep(60)
            world.recent.partition_stopped(WELL, "something else that happened")
            world.leader.kill()
            await asyncio.sleep(600)

            status = world.status()
            assert [(one.kind, one.count, one.partitions) for one in status.events] == [
                ("delivery failing", 40, 40),
                ("broker fetch failed", 1, 0),
                ("stopped", 1, 1),
            ]
            (reason,) = status.problems
            assert "orders/7 and 32 more failing for" in reason

    run(scenario())
