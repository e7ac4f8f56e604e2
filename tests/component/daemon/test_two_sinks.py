# SPDX-License-Identifier: Apache-2.0
"""Two sinks in one process, one of which stands still: the other lands as fast as it does alone. In virtual time."""

from __future__ import annotations

import asyncio
import enum
import functools
import random
import struct
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.config.memory import find_largest_unit, plan_budgets
from consumerd.config.settings import Settings
from consumerd.connector.sink_fetchers import SinkFetchers
from consumerd.daemon.routes import SinkRoutes
from consumerd.delivery.deliveries import Deliveries
from consumerd.errors import RetriableSinkError
from consumerd.fetch.ports import FetchSettings
from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch
from tests.support.delivery import FakeClaim, FakeSink, FakeStore, FakeWriter, make_deliveries
from tests.support.fake_broker import FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.record_sets import RecordSpec, batch
from tests.support.virtual_time import run
from tests.support.waiting import until

pytestmark = pytest.mark.records

MIB = 1 << 20
RECORDS, RECORD_BYTES = 64, 1000
"""Of a unit, which compresses to about a quarter."""
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
FLOWING = [TopicPartition.modern("flowing", number) for number in range(2)]
UNITS = 160
BYTES_A_SECOND = 100e6
"""What the sink that works takes, of one partition."""


DIES_AFTER_S = 30.0
SLOW_BYTES_A_SECOND = 1e5
"""What a sink that is going to die takes before, of one partition."""


class Fault(enum.Enum):
    """How a sink stands still."""

    HANGS = "hangs"
    """In its first write."""
    FAILS = "fails"
    """Refuses each write with an error that is tried again, for ever."""
    DIES = "dies"
    """Hangs once it has worked for half a minute."""


@dataclass(frozen=True)
class Case:
    """``stuck`` partitions whose sink stands still, and two of another sink."""

    stuck: int
    codec: str
    budget_mib: int
    fault: Fault = Fault.HANGS

    def __str__(self) -> str:
        how = "" if self.fault is Fault.HANGS else f"-{self.fault.value}"
        return f"{self.stuck}-{self.codec}-{self.budget_mib}MiB{how}"


CASES = [
    *(Case(stuck, codec, 64) for stuck in (1, 16, 24, 40, 200) for codec in CODECS),
    *(Case(stuck, codec, mib) for stuck in (24, 200) for codec in CODECS for mib in (128, 256)),
    *(Case(24, codec, 128, fault) for codec in ("none", "snappy") for fault in (Fault.FAILS, Fault.DIES)),
    Case(200, "snappy", 64, Fault.FAILS),
]


@functools.cache
def unit_of(codec: str) -> bytes:
    """Return one batch; made of other bytes in each record, so that no codec does better than a quarter."""
    draw = random.Random(1).randbytes
    value = [draw(RECORD_BYTES // 4) + b"x" * (RECORD_BYTES * 3 // 4) for _ in range(RECORDS)]
    specs = [RecordSpec(delta=index, value=one) for index, one in enumerate(value)]
    return batch(0, specs, codec=CODECS[codec])


def make_cluster(codec: str, units: Mapping[TopicPartition, int]) -> FakeCluster:
    """Return a cluster with so many units in each partition."""
    cluster, unit = FakeCluster(version=11), unit_of(codec)
    for partition, count in units.items():
        cluster.lead(partition, 0, known=False)
        for number in range(count):
            cluster.logs[partition].append(struct.pack(">q", number * RECORDS) + unit[8:], RECORDS)
    cluster.announce()
    return cluster


def make_settings(topics: Mapping[str, str], budget_mib: int, **shares: int) -> Settings:
    """Return settings with a sink for each topic."""
    return Settings.model_validate(
        {
            "cluster": {"zookeeper": "zk:2181"},
            "group": {"id": "g"},
            "subscriptions": [{"topics": [topic], "sink": sink} for topic, sink in topics.items()],
            "sinks": {sink: {"type": "null", "memory_share": shares.get(sink, 1)} for sink in topics.values()},
            "fetch": {"memory_budget_bytes": budget_mib * MIB},
        }
    )


def working_sink() -> FakeSink:
    """Return a sink that takes its time for each batch, by its size."""
    sink = FakeSink()

    async def write(step: str, _writer: FakeWriter, batch: RecordBatch | None) -> None:
        if step == "write" and batch is not None:
            await asyncio.sleep(batch.size_bytes / BYTES_A_SECOND)

    sink.trap = write
    return sink


def broken_sink(partitions: Collection[TopicPartition], fault: Fault = Fault.HANGS) -> FakeSink:
    """Return a sink that stands still for these partitions, and works for others."""
    sink = working_sink()
    work = sink.trap
    assert work is not None
    began = -1.0

    async def write(step: str, writer: FakeWriter, batch: RecordBatch | None) -> None:
        nonlocal began
        if step == "write" and writer.partition in partitions:
            now = asyncio.get_running_loop().time()
            began = now if began < 0 else began
            if fault is Fault.FAILS:
                raise RetriableSinkError("no space left")
            if fault is Fault.HANGS or now - began >= DIES_AFTER_S:
                await asyncio.Event().wait()
            await asyncio.sleep(0 if batch is None else batch.size_bytes / SLOW_BYTES_A_SECOND)
            return
        await work(step, writer, batch)

    sink.trap = write
    return sink


async def deliver(
    settings: Settings, sinks: Mapping[str, FakeSink], cluster: FakeCluster, stuck: Collection[TopicPartition]
) -> float:
    """Deliver everything of the flowing partitions once the stuck ones stand still; returns records a second."""
    loop = asyncio.get_running_loop()
    budgets = plan_budgets(settings)
    partitions = [*stuck, *FLOWING]
    store = FakeStore()
    for partition in partitions:
        store.put(partition, 0)
    fetch = FetchSettings(
        max_partition_bytes=settings.fetch.max_partition_bytes,
        max_message_bytes=find_largest_unit(settings, budgets),
        max_response_bytes=settings.fetch.max_response_bytes,
        # nothing is decoded in a thread, which virtual time would not wait for
        thread_bytes=1 << 30,
        native_thread_bytes=1 << 30,
    )
    routes = SinkRoutes(settings, sinks)
    async with AsyncExitStack() as stack:
        fetchers = {
            name: await stack.enter_async_context(fetching_from(cluster, budget, fetch))
            for name, budget in budgets.items()
        }
        feeds = SinkFetchers(fetchers, lambda partition: routes.find(partition).name)
        deliveries = make_deliveries(
            route=routes.find,
            feeds=feeds,
            store=store,
            ranges=cluster,
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(deliveries.run())
            await deliveries.claimed([FakeClaim(partition) for partition in stuck])
            await asyncio.sleep(600)  # ten minutes of it: whatever is going to fill is full
            before = {name: budget.held_bytes for name, budget in budgets.items()}
            held_up = {routes.find(partition).name for partition in stuck}
            assert feeds.find_held_up() == held_up
            began = loop.time()
            await deliveries.claimed([FakeClaim(partition) for partition in FLOWING])
            async with timeout(600):
                await until(lambda: sum(positions(deliveries).values()) == 2 * UNITS * RECORDS)
            took = loop.time() - began
            await until(lambda: feeds.find_held_up() == held_up)
            for name, budget in budgets.items():
                assert budget.held_bytes <= budget.limit_bytes, name
            assert before.get("stuck", 0) == (budgets["stuck"].held_bytes if "stuck" in budgets else 0)
            running.cancel()
    return 2 * UNITS * RECORDS / took


def positions(deliveries: Deliveries) -> dict[TopicPartition, int]:
    """Return how far the flowing partitions were delivered."""
    return {one.partition: one.position or 0 for one in deliveries.statuses if one.partition in FLOWING}


@functools.cache
def rate_alone(codec: str, budget_mib: int) -> float:
    """Return what the sink that works does with the process, and all of its memory, to itself."""
    settings = make_settings({"flowing": "flowing"}, budget_mib)
    cluster = make_cluster(codec, dict.fromkeys(FLOWING, UNITS))
    return run(deliver(settings, {"flowing": working_sink()}, cluster, ()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sink_that_stands_still_leaves_the_other_its_rate(case: Case) -> None:
    """Of one account it would take all, a batch at a time, and give nothing back for as long as it hangs."""
    stuck = [TopicPartition.modern("stuck", number) for number in range(case.stuck)]
    each = min(640, 2 * case.budget_mib * MIB // (case.stuck * RECORDS * RECORD_BYTES))
    if case.fault is Fault.DIES:  # more than its sink takes before
        each += int(DIES_AFTER_S * SLOW_BYTES_A_SECOND / (RECORDS * RECORD_BYTES))
    settings = make_settings({"stuck": "stuck", "flowing": "flowing"}, case.budget_mib)
    cluster = make_cluster(case.codec, {**dict.fromkeys(stuck, each), **dict.fromkeys(FLOWING, UNITS)})
    sinks = {"stuck": broken_sink(stuck, case.fault), "flowing": working_sink()}

    beside = run(deliver(settings, sinks, cluster, stuck))

    assert beside >= 0.8 * rate_alone(case.codec, case.budget_mib)


@pytest.mark.parametrize(("stuck_count", "codec"), [(24, "snappy"), (40, "none"), (200, "zstd")])
def test_partitions_whose_files_hang_leave_the_others_of_their_sink_room(stuck_count: int, codec: str) -> None:
    """Each keeps the batch that is being written; what was fetched for them beside that is given up."""
    stuck = [TopicPartition.modern("flowing", 2 + number) for number in range(stuck_count)]
    each = 2 * 64 * MIB // (stuck_count * RECORDS * RECORD_BYTES)
    settings = make_settings({"flowing": "flowing"}, 64)
    cluster = make_cluster(codec, {**dict.fromkeys(stuck, each), **dict.fromkeys(FLOWING, UNITS)})

    beside = run(deliver(settings, {"flowing": broken_sink(stuck)}, cluster, stuck))

    assert beside >= 0.5 * rate_alone(codec, 64)


def test_a_sinks_share_of_the_memory_is_as_set() -> None:
    """A sink that must go on whatever another does, or that has many more partitions, is given more."""
    settings = make_settings({"a": "archive", "b": "tail"}, 64, archive=3)

    assert {name: budget.limit_bytes for name, budget in plan_budgets(settings).items()} == {
        "archive": 48 * MIB,
        "tail": 16 * MIB,
    }
    assert find_largest_unit(settings, plan_budgets(settings)) == 4 * MIB
