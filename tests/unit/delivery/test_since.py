# SPDX-License-Identifier: Apache-2.0
"""Since when a partition is in its state."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.delivery.status import DeliveryState
from consumerd.errors import RetriableSinkError
from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch
from tests.support.delivery import DeliveryRig, FakeSink, FakeWriter
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)

pytestmark = pytest.mark.usefixtures("logged")


def test_each_state_has_a_beginning() -> None:
    """``failing`` for a second needs no one, for an hour it does; and ``running`` for a second was something else before."""

    async def scenario() -> None:
        failures = [RetriableSinkError("disk full") for _ in range(5)]

        async def fail(step: str, _writer: FakeWriter, _batch: RecordBatch | None) -> None:
            if step == "write" and failures:
                raise failures.pop()

        async def hang(step: str, _writer: FakeWriter, _batch: RecordBatch | None) -> None:
            if step == "flush":
                await asyncio.sleep(20)

        seen: dict[DeliveryState, list[float]] = {}

        def note() -> float:
            status = rig.status(P)
            seen.setdefault(status.state, []).append(status.since)
            return status.since

        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=3600)) as rig:
            log = rig.log(P, 0, 10)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING)
            running = note()
            await asyncio.sleep(100)
            assert note() == running < 1

            rig.sink.trap = fail
            log.append(10)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            failing = note()
            await asyncio.sleep(1)
            assert note() == failing
            assert 100 < failing < 102
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING)
            recovered = note()
            assert failing + 1 < recovered <= asyncio.get_running_loop().time()

            await asyncio.sleep(50)
            rig.claims[P].lease.set("paused")
            log.append(10)
            await until(lambda: rig.status(P).state is DeliveryState.PAUSED)
            paused = note()
            assert recovered + 50 <= paused
            await asyncio.sleep(30)
            assert note() == paused
            rig.claims[P].lease.set("fresh")
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING)
            assert note() >= paused + 30

            await asyncio.sleep(50)
            rig.sink.trap = hang
            began = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(rig.deliveries.drain([P], 60.0))
                await until(lambda: rig.status(P).state is DeliveryState.DRAINING)
                await asyncio.sleep(5)
                assert began <= note() < began + 1

        assert seen.keys() == {
            DeliveryState.RUNNING,
            DeliveryState.FAILING,
            DeliveryState.PAUSED,
            DeliveryState.DRAINING,
        }

    run(scenario())
