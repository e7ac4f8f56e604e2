# SPDX-License-Identifier: Apache-2.0
"""The cluster as brokers tell it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from consumerd.cluster.from_brokers import BrokerSource, make_view, plan_request
from consumerd.cluster.view import Broker
from consumerd.errors import ConnectionLost
from consumerd.model import BrokerId, PartitionKey
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool, Purpose
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from consumerd.wire.schema import compile_codec
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.scripted_broker import Answer, Body, FakeNetwork, Reaction, ScriptedBroker

ONE, TWO = make_broker(1), make_broker(2)
PARTITION = MetadataPartition(partition=0, leader=1, replicas=(1, 2), isr=(1,))
RESPONSE = MetadataResponse(
    brokers=(MetadataBroker(node_id=1, host="broker-1", port=9092),),
    topics=(
        MetadataTopic(topic="t", partitions=(PARTITION,)),
        MetadataTopic(topic="other", partitions=(PARTITION,)),
    ),
)


class Scene:
    """Brokers that answer Metadata, and a source over a pool to them."""

    def __init__(self, answers: dict[Broker, Answer], **versions: tuple[int, int]) -> None:
        self.network = FakeNetwork()
        self.scripted = {
            broker: ScriptedBroker(
                {MetadataRequest: lambda _request, _version, answer=answer: answer},
                ranges={ApiKey.METADATA: versions.get(broker.host.replace("-", "_"), (0, 5))},
            )
            for broker, answer in answers.items()
        }
        self.network.brokers = {broker.address: scripted for broker, scripted in self.scripted.items()}
        self.known: list[Broker] = [ONE, TWO]

    def run(self, scenario: Callable[[BrokerSource, ConnectionPool], Awaitable[None]]) -> None:
        async def play() -> None:
            now = asyncio.get_running_loop().time
            dialer = Dialer(self.network, client_id="t", now=now)
            async with ConnectionPool(dialer, now=now, random=lambda: 0.0) as pool:
                await scenario(BrokerSource(pool, lambda: self.known, random=iter_random(), patience_s=30), pool)

        virtual_time.run(play())


def iter_random() -> Callable[[], float]:
    """Keep brokers in the order in which they are known."""
    values = iter(range(1000))
    return lambda: float(next(values))


@pytest.mark.parametrize("version", range(6))
def test_topics_are_never_named_where_that_could_create_them(version: int) -> None:
    """A topic that was just deleted would come back, since auto-creation is the brokers' default."""
    request = plan_request({"b", "a"}, version)
    everything = plan_request(None, version)
    nothing = plan_request((), version)

    if version < 4:
        assert request.topics is None
    else:
        assert request.topics == ("a", "b")
        assert request.allow_auto_topic_creation is False
    assert everything.topics is None
    assert nothing.topics == (None if version == 0 else ())
    for one in (request, everything, nothing):
        one.encode(version)


def test_what_was_not_asked_for_is_dropped() -> None:
    """Old brokers tell of all topics; the view is about those that are followed."""
    assert list(make_view(RESPONSE, {"t"}, tls=False).topics) == ["t"]
    assert list(make_view(RESPONSE, None, tls=False).topics) == ["t", "other"]


def test_answer_becomes_a_view() -> None:
    """Numbers that mean "none" become None, and the listener's TLS is ours."""
    response = MetadataResponse(
        brokers=(
            MetadataBroker(node_id=2, host="b", port=9093, rack="r"),
            MetadataBroker(node_id=1, host="a", port=9093),
            MetadataBroker(node_id=3, host="", port=-1),
        ),
        cluster_id="id",
        controller_id=-1,
        topics=(
            MetadataTopic(topic="gone", error_code=3, partitions=()),
            MetadataTopic(topic="refused", error_code=29, partitions=()),
            MetadataTopic(
                topic="t",
                partitions=(
                    MetadataPartition(partition=1, leader=-1, error_code=5, replicas=(1,), isr=()),
                    MetadataPartition(partition=0, leader=2, replicas=(2, 1), isr=(2,)),
                ),
            ),
        ),
    )

    view = make_view(response, None, tls=True)

    assert view.brokers == {
        BrokerId(1): Broker(id=BrokerId(1), host="a", port=9093, tls=True),
        BrokerId(2): Broker(id=BrokerId(2), host="b", port=9093, tls=True, rack="r"),
    }
    assert view.cluster_id == "id"
    assert view.controller is None
    assert list(view.topics) == ["refused", "t"]
    assert view.topics["refused"].error == 29
    partitions = view.topics["t"].partitions
    assert list(partitions) == [PartitionKey(0), PartitionKey(1)]
    assert partitions[PartitionKey(0)].leader == 2
    assert partitions[PartitionKey(1)].leader is None
    assert partitions[PartitionKey(1)].error == 5


@pytest.mark.parametrize("trouble", [Reaction.CLOSE, Reaction.SILENT, Body(b"\x00")])
def test_next_broker_is_asked_when_one_does_not_answer(trouble: Answer) -> None:
    """Whatever is wrong with it."""
    scene = Scene({ONE: trouble, TWO: RESPONSE})

    async def scenario(source: BrokerSource, _pool: ConnectionPool) -> None:
        assert list((await source.read({"t"})).topics) == ["t"]

    scene.run(scenario)


def test_broker_that_stalls_keeps_nobody_from_another_ones_answer() -> None:
    """It holds its connections open and says nothing, while others know the leaders that have taken its place."""
    scene = Scene({ONE: Reaction.SILENT, TWO: RESPONSE})

    async def scenario(source: BrokerSource, _pool: ConnectionPool) -> None:
        for _ in range(3):
            before = asyncio.get_running_loop().time()
            assert list((await source.read({"t"})).topics) == ["t"]
            assert asyncio.get_running_loop().time() - before < 1.5

    scene.run(scenario)


def test_broker_that_is_down_is_asked_last() -> None:
    """Nobody waits for its backoff while another could answer."""
    scene = Scene({TWO: RESPONSE})

    async def scenario(source: BrokerSource, pool: ConnectionPool) -> None:
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                await pool.get(ONE, Purpose.CONTROL)
        before = asyncio.get_running_loop().time()
        await source.read({"t"})
        assert asyncio.get_running_loop().time() - before < 0.1

    scene.run(scenario)


def test_no_answer_at_all_says_how_many_were_asked() -> None:
    """And what the last of them said."""
    scene = Scene({})

    async def scenario(source: BrokerSource, _pool: ConnectionPool) -> None:
        with pytest.raises(ConnectionLost, match=r"none of 2 brokers answered; last: .*refused"):
            await source.read({"t"})
        scene.known = []
        with pytest.raises(ConnectionLost, match="no broker is known"):
            await source.read({"t"})

    scene.run(scenario)


def test_asking_is_bounded_as_a_whole() -> None:
    """A hundred hung brokers must not take a hundred timeouts."""
    scene = Scene({ONE: Reaction.SILENT, TWO: Reaction.SILENT})
    scene.known = [ONE, TWO] * 20

    async def scenario(source: BrokerSource, _pool: ConnectionPool) -> None:
        with pytest.raises(ConnectionLost):
            await source.read({"t"})
        assert asyncio.get_running_loop().time() == pytest.approx(30, abs=0.5)

    scene.run(scenario)


def test_broker_without_a_common_version_is_passed_over() -> None:
    """In the middle of an upgrade another may have one."""
    scene = Scene({ONE: RESPONSE, TWO: RESPONSE}, broker_1=(13, 14))

    async def scenario(source: BrokerSource, _pool: ConnectionPool) -> None:
        assert list((await source.read({"t"})).topics) == ["t"]
        assert len(scene.scripted[TWO].asked(MetadataRequest)) == 1

    scene.run(scenario)


async def test_large_response_does_not_hold_the_loop() -> None:
    """100,000 partitions take a second to decode: heartbeats to ZooKeeper must go out meanwhile."""
    everything = tuple(replace(PARTITION, partition=number) for number in range(100_000))
    response = replace(RESPONSE, topics=(MetadataTopic(topic="t", partitions=everything),))
    network = FakeNetwork()
    body = Body(compile_codec(MetadataResponse, 5).encode(response))
    network.brokers[ONE.address] = ScriptedBroker(
        {MetadataRequest: lambda _request, _version: body}, ranges={ApiKey.METADATA: (0, 5)}
    )
    now = asyncio.get_running_loop().time
    gaps: list[float] = []

    async def tick() -> None:
        last = now()
        while True:
            await asyncio.sleep(0)
            gaps.append(now() - last)
            last = now()

    dialer = Dialer(network, client_id="t", now=now)
    gc.collect()
    gc.freeze()  # what other tests have left is no part of the work: a collection holds every thread
    try:
        async with ConnectionPool(dialer, now=now, random=lambda: 0.0) as pool, asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(tick())
            view = await BrokerSource(pool, lambda: [ONE], random=iter_random()).read({"t"})
            ticking.cancel()
    finally:
        gc.unfreeze()
    assert len(view.topics["t"].partitions) == len(everything)
    assert max(gaps) < sum(gaps) / 3
