# SPDX-License-Identifier: Apache-2.0
"""Promises of the sink ``kafka`` at the moments at which they could be broken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.client.opening import open_producer
from consumerd.errors import OwnershipLost, PermanentSinkError, RetriableSinkError
from consumerd.mirror.positions import DEFAULT_TOPIC
from consumerd.mirror.records import PositionKey, StoredPosition, encode_key, encode_position
from consumerd.sinks.base import Start
from consumerd.wire.apikeys import ApiKey
from tests.component.sinks.test_kafka_sink import create, offsets
from tests.support.claims import StubClaim
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import free_port
from tests.support.mirroring import P, numbers, open_mirror, read_committed
from tests.support.proxy_thread import ProxyThread
from tests.support.tcp_proxy import Action, Direction

pytestmark = pytest.mark.records


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path, None) as running:
        asyncio.run(create(running, "orders"))
        yield running


async def test_a_successor_fences_its_predecessor_before_it_reads_the_position(tmp_path: Path) -> None:
    """The predecessor commits while the successor's InitProducerId is on its way.

    A position that was read before it would be 10, and the records 10 to 19 would be mirrored twice.
    """
    port, held = free_port(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_SERVER and int.from_bytes(frame[4:6]) == ApiKey.INIT_PRODUCER_ID:
            loop.call_soon_threadsafe(held.set)
            return Action.HOLD
        return Action.FORWARD

    with ProxyThread(port) as proxy, EmbeddedThread(tmp_path, None, port=port, advertised_port=proxy.port) as broker:
        await create(broker, "orders")
        async with open_mirror(broker.bootstrap) as old, open_mirror(broker.bootstrap) as new:
            first = await old.open()
            await first.write(numbers(0, 10))
            await first.flush()
            await first.write(numbers(10, 20))
            await new.sink.check()
            proxy.decide(hold)
            async with asyncio.TaskGroup() as tasks:
                opening = tasks.create_task(new.open())
                await held.wait()
                assert 20 == await first.flush()
                proxy.heal()
            second = opening.result()
            assert 20 == second.resume_position
            await second.write(numbers(20, 25))
            assert 25 == await second.flush()
        assert list(range(25)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def test_a_claim_that_is_lost_before_the_commit_leaves_neither_records_nor_position(
    broker: EmbeddedThread,
) -> None:
    """Both are in one transaction, and the claim is looked at behind its last record."""
    async with open_mirror(broker.bootstrap) as old, open_mirror(broker.bootstrap) as new:
        claim = StubClaim(P)
        first = await old.open(claim)
        await first.write(numbers(0, 10))
        await first.flush()
        await first.write(numbers(10, 20))
        claim.failure = OwnershipLost("gone")
        with pytest.raises(OwnershipLost):
            await first.flush()
        state = await new.find()
        assert state is not None
        assert 10 == state.stored.source
        second = await new.open()
        assert 10 == second.resume_position
    assert list(range(10)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def test_nothing_is_mirrored_twice_or_left_out_by_a_wrong_start_or_batch(broker: EmbeddedThread) -> None:
    """Without an operator's request the mirror neither goes back nor skips records."""
    async with open_mirror(broker.bootstrap) as rig:
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        await writer.flush()
        with pytest.raises(RetriableSinkError, match="those from 10 on are wanted") as caught:
            await writer.write(numbers(11, 20))
        assert 10 == caught.value.resume_position
        await writer.write(numbers(5, 12))
        assert 12 == await writer.flush()
        await writer.abandon()
        writer = await rig.sink.open(StubClaim(P))
        with pytest.raises(PermanentSinkError, match="cannot start at 11, below 12"):
            await writer.start(Start(position=11, reason="committed"))
    assert list(range(12)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def test_a_mirror_whose_position_went_back_stops(broker: EmbeddedThread) -> None:
    """The target has lost the end of the positions topic: the mirror cannot know which records are left."""
    async with open_mirror(broker.bootstrap) as rig, open_mirror(broker.bootstrap) as other:
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        await writer.flush()
        state = await rig.find()
        assert state is not None
        older = StoredPosition(source=4, target=4, target_topic="orders", target_partition=0)
        async with open_producer(broker.bootstrap) as producer:
            key = encode_key(PositionKey(state.log))
            await producer.send(DEFAULT_TOPIC, encode_position(older), key=key, partition=state.partition)
        await other.open()  # fences the writer, so that it reads its position again
        await writer.write(numbers(10, 20))
        for _ in range(2):  # and it stays so
            with pytest.raises(
                RetriableSinkError, match=r"the position 10 of orders/0 .* is not there any more"
            ) as caught:
                await writer.flush()
            assert caught.value.resume_position is None
    assert list(range(10)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))
