# SPDX-License-Identifier: Apache-2.0
"""Well-formed Fetch and Metadata responses with false values, against the fetcher, delivery and the directory.

Error codes, offsets, counts, names and records are drawn from values that no broker sends. They may stop or fail the
partition that they name, and nothing else. Damaged bytes are tested elsewhere: on decoders by ``test_mutated_frames``,
on whole daemons by ``tests/e2e/test_hostile_registry.py``, which has false Metadata, too.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from consumerd.aio.timeouts import timeout
from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.delivery.ports import SinkRoute
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.fetch import (
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
)
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.zk.layout_modern import MODERN
from tests.support.cluster import ScriptedRegistry, make_broker
from tests.support.cluster import make_view as make_cluster_view
from tests.support.delivery import FakeClaim, FakeSink, FakeStore, make_deliveries
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.fetching_in_memory import fetching_from
from tests.support.lying_broker import draw_metadata
from tests.support.record_sets import RecordSpec, batch, message
from tests.support.scripted_broker import FakeNetwork, ScriptedBroker
from tests.support.virtual_time import run
from tests.support.waiting import until

LIED_ABOUT, WELL = TopicPartition.modern("lied-about", 0), TopicPartition.modern("well", 0)
LIMIT: Final = 16 << 20
MOST_REFRESHES: Final = 160
"""Bound of Metadata requests in 30 s: one in 0.2 s, the shortest pause where each answer differs from the last."""
MOST_LOOKS: Final = 60_000
"""Bound of Fetch requests to one broker in ten minutes: one in 10 ms, the shortest pause between two empty responses."""

INT16 = st.sampled_from([0, 1, 2, 3, 5, 6, 9, 29, 56, 70, 71, 74, 75, 999, -1, -2, 32767, -32768])
INT32 = st.sampled_from([0, 1, 7, -1, 2**31 - 1, -(2**31)])
OFFSETS = st.sampled_from([0, 1, 5, 9, 10, 11, 1000, -1, -2, 2**31, 2**62, 2**63 - 1, -(2**63)])


def sets_of_records() -> st.SearchStrategy[bytes]:
    """Return record sets: valid batches and messages, some with false header fields or cut off, and random bytes."""
    units = st.builds(
        lambda magic, codec: (
            batch(0, [RecordSpec(delta=n, value=b"v") for n in range(5)], codec=codec)
            if magic == 2
            else message(0, b"v", magic=magic)
        ),
        st.integers(0, 2),
        st.sampled_from([0, 1, 2, 3]),
    )
    lies = st.tuples(
        st.sampled_from([(0, ">q"), (8, ">i"), (16, ">b"), (21, ">h"), (23, ">i"), (57, ">i")]),
        OFFSETS,
        st.integers(0, 30),
    )

    def lie(unit: bytes, told: list[tuple[tuple[int, str], int, int]]) -> bytes:
        data = bytearray(unit)
        for (at, kind), value, cut in told:
            size = struct.calcsize(kind)
            if at + size <= len(data):
                bits = 8 * size
                struct.pack_into(kind, data, at, (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))
            data = data[: len(data) - cut]
        return bytes(data)

    lied = st.builds(lie, units, st.lists(lies, max_size=2))
    return st.lists(lied | st.binary(max_size=80), max_size=3).map(b"".join)


PARTITIONS = st.builds(
    FetchedPartition,
    partition=st.sampled_from([0, 0, 0, 1, -1, 2**31 - 1]),
    error_code=st.just(0) | INT16,
    high_watermark=OFFSETS,
    last_stable_offset=OFFSETS,
    log_start_offset=OFFSETS,
    aborted_transactions=st.none()
    | st.lists(st.builds(AbortedTransaction, producer_id=OFFSETS, first_offset=OFFSETS), max_size=3).map(tuple),
    preferred_read_replica=st.just(-1) | INT32,
    record_set=st.none() | sets_of_records(),
)
TOPICS = st.builds(
    FetchedTopic,
    topic=st.sampled_from([LIED_ABOUT.topic, LIED_ABOUT.topic, WELL.topic, "", "\x00", "a" * 300, "../x", "\u2028"]),
    partitions=st.lists(PARTITIONS, max_size=3).map(tuple),
)
ANSWERS = st.builds(
    FetchResponse,
    # an answer may silence its broker for as long as that, which has a bound of its own
    throttle_time_ms=st.sampled_from([0, 0, 1, -1, -(2**31)]),
    error_code=st.just(0) | INT16,
    session_id=st.just(0) | INT32,
    topics=st.lists(TOPICS, max_size=3).map(tuple),
)


class Liar(FakeBroker):
    """A broker that answers with the given responses, in turn, until ``lies`` is None; then as the fake broker does."""

    def __init__(self, honest: FakeBroker, cluster: FakeCluster, lies: Iterator[FetchResponse]) -> None:
        super().__init__(cluster, honest.broker, honest.version)
        self.lies: Iterator[FetchResponse] | None = lies

    async def _answer(self, request: FetchRequest, version: int) -> FetchResponse:
        if self.lies is None:
            return await super()._answer(request, version)
        assert len(self.requests) < MOST_LOOKS
        await asyncio.sleep(self.latency_s)
        return next(self.lies)


@pytest.mark.timeout(300)
@settings(max_examples=30, deadline=None)
@given(answers=st.lists(ANSWERS, min_size=1, max_size=6))
def test_no_answer_costs_more_than_its_partition(answers: list[FetchResponse]) -> None:
    """No task ends, requests and memory stay bounded, and positions only go forward."""

    async def scenario() -> None:
        cluster, store, sink = FakeCluster(brokers=2), FakeStore(), FakeSink()
        liar = Liar(cluster.brokers[BrokerId(0)], cluster, itertools.cycle(answers))
        cluster.brokers[BrokerId(0)] = liar
        for partition, leader in ((LIED_ABOUT, 0), (WELL, 1)):
            cluster.lead(partition, leader)
            cluster.produce(partition, *[b"v"] * 10)
            store.put(partition, 0)
        budget = MemoryBudget(LIMIT)
        fetch = FetchSettings(max_message_bytes=1 << 20, thread_bytes=1 << 30, native_thread_bytes=1 << 30)
        async with fetching_from(cluster, budget, fetch) as fetcher:
            deliveries = make_deliveries(
                route=lambda partition: SinkRoute(name=partition.topic, sink=sink),
                feeds=fetcher,
                store=store,
                ranges=cluster,
            )
            async with asyncio.TaskGroup() as group:
                running = group.create_task(deliveries.run())
                await deliveries.claimed([FakeClaim(LIED_ABOUT), FakeClaim(WELL)])
                position = 0
                for minute in range(10):
                    cluster.produce(WELL, b"more")
                    await asyncio.sleep(60)
                    assert store.position(WELL) == 11 + minute, "the other one flows"
                    (one,) = [one for one in deliveries.statuses if one.partition == LIED_ABOUT]
                    assert (one.position or 0) >= position
                    assert (one.committed or 0) <= (one.acknowledged or 0) <= (one.position or 0)
                    position = one.position or 0
                    assert budget.held_bytes <= 2 * LIMIT
                if position == 0:  # no false record was taken, so the true ones are read from the beginning
                    liar.lies = None
                    liar.kill()
                    liar.start()
                    async with timeout(600):
                        await until(lambda: store.position(LIED_ABOUT) == 10)
                running.cancel()
        assert budget.held_bytes == 0
        assert sink.violations == []

    run(scenario())


@pytest.mark.timeout(300)
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.generate])  # a seed cannot be shrunk
@given(seed=st.integers(0, 2**32), version=st.integers(0, 5))
def test_no_metadata_costs_more_than_the_time_that_it_is_believed(seed: int, version: int) -> None:
    """A registered broker lies. Once it is gone, leaders and addresses are those that are registered, and no more is asked
    of anybody than the backoff allows.
    """
    honest, liar = make_broker(1), make_broker(2)
    chance = random.Random(seed)

    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        network = FakeNetwork()
        lies = network.brokers[liar.address] = ScriptedBroker(
            {MetadataRequest: lambda _request, version: draw_metadata(chance, version, ("t",), (1, 2), 50)},
            ranges={ApiKey.METADATA: (version, version)},
        )
        registry = ScriptedRegistry(make_cluster_view({1, 2}, {"t": [1, 2]}, epoch=1, incarnation=5))
        client = FakeZooKeeper().client("directory")
        client.connect()
        dialer = Dialer(network, client_id="test", now=now)
        async with ConnectionPool(dialer, now=now, random=lambda: 0.5) as pool, asyncio.TaskGroup() as tasks:
            directory = ClusterDirectory(
                client,
                registry,
                lambda known: BrokerSource(pool, known, random=chance.random),
                now=now,
                random=lambda: 0.5,
                layout=MODERN,
            )
            directory.follow({"t"})
            running = tasks.create_task(directory.run())
            for _ in range(6):
                await directory.refresh("a lie")
                assert directory.view.topics.keys() <= {"t"}, "nothing else was asked for"
            asked = len(lies.asked(MetadataRequest))
            await asyncio.sleep(30)
            assert len(lies.asked(MetadataRequest)) - asked < MOST_REFRESHES
            del network.brokers[liar.address]
            for stream in network.streams:
                stream.close()
            registry.view = make_cluster_view({1}, {"t": [1, 1]}, epoch=2, incarnation=5)
            async with timeout(600):
                await directory.views.wait(
                    lambda view: all(
                        view.find_leader(TopicPartition.modern("t", number)) == honest for number in (0, 1)
                    )
                )
            running.cancel()

    run(scenario())
