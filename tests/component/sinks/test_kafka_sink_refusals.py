# SPDX-License-Identifier: Apache-2.0
"""Mirrors that must not, or cannot, write: each is told with what to do, and nothing is half done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.faults import BrokerFaults
from consumerd.errors import RetriableSinkError
from consumerd.mirror.positions import DEFAULT_TOPIC
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.sink import KafkaSink
from consumerd.sinks.kafka.writer import KafkaWriter
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.component.sinks.test_kafka_sink import create, offsets
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.embedded import EmbeddedThread
from tests.support.mirroring import P, numbers, open_mirror, read_committed

pytestmark = pytest.mark.records


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path, None, auto_create_topics=False) as running:
        asyncio.run(create(running, "orders"))
        yield running


async def seen(broker: EmbeddedThread, topic: str = "orders") -> list[int]:
    return offsets(await asyncio.to_thread(read_committed, broker.bootstrap, topic))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda faults: faults.fill_disk(), r"full disk"),
        (lambda faults: faults.error(ApiKey.PRODUCE, ErrorCode.KAFKA_STORAGE_ERROR, times=10_000), r"log directory"),
        (lambda faults: faults.error(ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, times=10_000), r"min\.insync"),
    ],
    ids=["full disk", "offline disk", "too few replicas"],
)
async def test_a_target_that_cannot_store_is_told_and_gets_each_record_once_afterwards(
    broker: EmbeddedThread, fault: Callable[[BrokerFaults], Any], told: str
) -> None:
    """While it lasts, no reader sees a part of the transaction, and the position stays where it was."""
    async with open_mirror(broker.bootstrap, request_timeout_ms=1000) as rig:
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        assert 10 == await writer.flush()
        armed = broker.arm(fault)
        await writer.write(numbers(10, 20))
        with pytest.raises(RetriableSinkError, match=told):
            await writer.flush()
        broker.arm(lambda _: armed.remove())
        await go_on(writer, 10, 20)
    assert list(range(20)) == await seen(broker)


async def go_on(writer: KafkaWriter, begin: int, end: int) -> None:
    """Write a range as the pipeline does: again from where the writer says, until it is committed."""
    position = begin
    for _ in range(5):
        try:
            await writer.write(numbers(position, end))
            assert end == await writer.flush()
        except RetriableSinkError as error:
            position = position if error.resume_position is None else error.resume_position
        else:
            return
    pytest.fail("the writer does not go on")


async def test_two_mirrors_with_one_id_are_told_after_the_third_fencing(broker: EmbeddedThread) -> None:
    """Each fences the other; one stalled daemon would do so once. Each record is copied once all the same."""
    async with open_mirror(broker.bootstrap) as one, open_mirror(broker.bootstrap) as other:
        first, second = await one.open(), await other.open()
        reasons = []
        for _ in range(3):
            with pytest.raises(RetriableSinkError) as caught:
                await first.write(numbers(0, 10))
                await first.flush()
            reasons.append(str(caught.value))
            with pytest.raises(RetriableSinkError):
                await second.write(numbers(0, 10))
                await second.flush()
        assert [False, False, True] == ["Stop one of both" in reason for reason in reasons]
        assert "group.id mirror" in reasons[-1]
        await second.write(numbers(0, 10))
        assert 10 == await second.flush()
        with pytest.raises(RetriableSinkError) as caught:
            await first.write(numbers(0, 10))
            await first.flush()
        assert 10 == caught.value.resume_position
    assert list(range(10)) == await seen(broker)


@asynccontextmanager
async def mirror_of(broker: EmbeddedThread, cluster: str, group: str = "mirror") -> AsyncIterator[KafkaSink]:
    """Make a sink that mirrors another source."""
    context = SinkContext(
        sink_name="new",
        group=group,
        cluster_id=cluster,
        writer_id="member1",
        now=ManualClock(),
        charge=lambda _: None,
    )
    sink = KafkaSink(context, KafkaOptions.model_validate({"bootstrap": broker.bootstrap}))
    try:
        yield sink
    finally:
        await sink.close()


async def test_a_topic_of_another_source_is_not_mixed_into_the_copy(broker: EmbeddedThread) -> None:
    """Perhaps it is the same source, by its brokers' id and not by ZooKeeper's: then all would come twice."""
    async with open_mirror(broker.bootstrap) as rig:
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        await writer.flush()
    async with mirror_of(broker, "kSqpHgfDQEKzdGSYfrhfAA") as sink:
        with pytest.raises(RetriableSinkError, match=r"of cluster 2-1700000000000, .*cluster\.identities.*group\.id"):
            await sink.open(StubClaim(P))
    async with mirror_of(broker, "kSqpHgfDQEKzdGSYfrhfAA", group="both") as sink:
        copier = await sink.open(StubClaim(P))
        await copier.start(Start(position=0, reason="earliest"))
        await copier.write(numbers(0, 3))
        assert 3 == await copier.flush()
    assert [*range(10), *range(3)] == await seen(broker)


async def test_a_positions_topic_made_again_under_a_member_is_told_and_only_a_restart_begins_anew(
    broker: EmbeddedThread,
) -> None:
    """The member's place in it is behind the end of the new one. Nothing is written before the operator decides."""
    async with open_mirror(broker.bootstrap, request_timeout_ms=3000) as rig:
        writer = await rig.open()
        for begin in range(0, 50, 10):
            await writer.write(numbers(begin, begin + 10))
            await writer.flush()
        delete(broker, DEFAULT_TOPIC)
        await create(broker, DEFAULT_TOPIC, 8, cleanup_policy="compact")
        reasons = []
        for _ in range(3):
            with pytest.raises(RetriableSinkError) as caught:
                await writer.write(numbers(50, 60))
                await writer.flush()
            reasons.append(str(caught.value))
            assert caught.value.resume_position is None or caught.value.resume_position <= 50
        assert "Restart the daemon to go on at the group's position" in reasons[-1]
        assert list(range(50)) == await seen(broker)
    async with open_mirror(broker.bootstrap) as rig:
        again = await rig.sink.open(StubClaim(P))
        assert again.resume_position is None
        await again.start(Start(position=50, reason="committed"))
        await again.write(numbers(50, 60))
        assert 60 == await again.flush()
    assert list(range(60)) == await seen(broker)


def delete(broker: EmbeddedThread, topic: str) -> None:
    async def act(cluster: EmbeddedCluster) -> None:
        await cluster.broker.topics.delete(topic)

    broker.do(act)
