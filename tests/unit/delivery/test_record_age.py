# SPDX-License-Identifier: Apache-2.0
"""How old the oldest record is that is not safe at the sink, and how long records took to get there."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.client.record_age import lag_seconds
from consumerd.errors import RetriableSinkError
from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch
from tests.support.delivery import DeliveryRig, FakeSink, FakeWriter
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)

pytestmark = pytest.mark.usefixtures("logged")


def age(rig: DeliveryRig, now_ms: int) -> float | None:
    """Return the partition's lag in seconds, as the daemon shows it."""
    status = rig.status(P)
    return lag_seconds(lag=status.lag, oldest_ms=status.oldest_ms, now_ms=now_ms)


def test_the_lag_is_the_age_of_what_is_not_published_yet() -> None:
    """Everything was read, and would be read again after a crash: it is not safe before its file is."""

    async def scenario() -> None:
        async with DeliveryRig(sink=FakeSink(buffered=True)) as rig:
            log = rig.log(P, 0, 30)
            log.timestamp_ms = lambda offset: 1000 * offset
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 30)
            before = age(rig, now_ms=60_000)
            await until(lambda: rig.status(P).acknowledged == 30)

            assert before == 60.0
            assert age(rig, now_ms=120_000) == 0.0
            assert rig.hooks.named("batches_landed") == [("fake", 0, 10_000, 20_000)]

    run(scenario())


def test_a_sink_that_hangs_in_a_write_lets_the_lag_grow() -> None:
    """The batch is out at the sink, neither fetched any more nor taken."""

    async def scenario() -> None:

        async def hang(step: str, _writer: FakeWriter, batch: RecordBatch | None) -> None:
            if step == "write" and batch is not None and batch.start == 10:
                await asyncio.Event().wait()

        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 30)
            log.timestamp_ms = lambda offset: 1000 * offset
            rig.sink.trap = hang
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 10)
            await asyncio.sleep(600)

            assert age(rig, now_ms=610_000) == 600.0

    run(scenario())


def test_a_refused_record_keeps_its_age_while_its_partition_is_stopped() -> None:
    """Stopped for a day is a day of lag."""

    async def scenario() -> None:
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 30)
            log.timestamp_ms = lambda offset: 1000 * offset
            rig.sink.poison = {10}
            await rig.claim(P)
            await until(lambda: rig.hooks.named("partition_stopped"))

            assert age(rig, now_ms=86_410_000) == 86_400.0

    run(scenario())


def test_a_file_that_failed_does_not_make_its_records_young() -> None:
    """They are dropped and read again, from the acknowledged position."""

    async def scenario() -> None:
        failed = False

        async def fail_once(step: str, writer: FakeWriter, _batch: RecordBatch | None) -> None:
            nonlocal failed
            if step == "flush" and not failed:
                failed = True
                writer.drop()
                raise RetriableSinkError("disk full", resume_position=writer.safe)

        async with DeliveryRig(sink=FakeSink(buffered=True)) as rig:
            log = rig.log(P, 0, 30)
            log.timestamp_ms = lambda offset: 1000 * offset
            rig.sink.trap = fail_once
            await rig.claim(P)
            await until(lambda: failed)
            ages = []
            while rig.status(P).acknowledged != 30:
                ages.append(age(rig, now_ms=60_000))
                await asyncio.sleep(0.05)

            assert set(ages) == {60.0}
            assert age(rig, now_ms=60_000) == 0.0

    run(scenario())


def test_records_without_timestamps_have_no_age_and_no_delay() -> None:
    """Format 0 has none: the lag in seconds is unknown until everything is safe."""

    async def scenario() -> None:
        async with DeliveryRig(sink=FakeSink(buffered=True)) as rig:
            rig.log(P, 0, 30)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 30)
            before = age(rig, now_ms=60_000)
            await until(lambda: rig.status(P).acknowledged == 30)

            assert before is None
            assert age(rig, now_ms=60_000) == 0.0
            assert rig.hooks.named("batches_landed") == []

    run(scenario())


def test_an_age_is_unknown_before_anything_was_read() -> None:
    """The broker says how much there is, and not how old it is."""

    async def scenario() -> None:
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 30)
            log.silent_from = 0
            await rig.claim(P)
            await until(lambda: rig.status(P).lag == 30)

            assert age(rig, now_ms=60_000) is None

    run(scenario())


def test_a_record_that_was_passed_over_is_not_waited_for() -> None:
    """Only its offset waits for the next file."""

    async def scenario() -> None:
        async with DeliveryRig(sink=FakeSink(buffered=True), on_rejected="skip") as rig:
            log = rig.log(P, 0, 1)
            log.timestamp_ms = lambda offset: 1000 * offset
            rig.sink.poison = {0}
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 1)

            assert rig.status(P).acknowledged == 0
            assert age(rig, now_ms=60_000) == 0.0

    run(scenario())
