# SPDX-License-Identifier: Apache-2.0
"""Logs without replicas, as in Kafka 0.7: one that ends below a position is another log, whatever it grows to."""

import asyncio

import pytest

from consumerd.delivery.policy import OffsetPolicy, Reposition, StartAt, Stop, plan_out_of_range
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.start import StartFinder
from consumerd.delivery.status import DeliveryState
from consumerd.errors import ConnectionLost, CorruptMessageError, OffsetOutOfRange, RetriableSinkError
from consumerd.model import Incarnation, TopicPartition
from consumerd.offsets.store import LostEnd, OffsetRequest
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeBrokers, FakeClaim, FakeLog, FakeSink, FakeStore
from tests.support.delivery import FakeTruncations as Truncations
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)
NEXT = Incarnation(TOPIC_CZXID, 1)


class Writer:
    """What a start asks of a sink's writer."""

    request_id = None

    def __init__(self, resume):
        self.resume_position = resume


def wiped(latest):
    brokers = FakeBrokers()
    brokers.logs_are_replicated = False
    brokers.logs[P] = FakeLog(0, latest)
    return brokers


def settings(on_above):
    return DeliverySettings(commit_interval_ms=1000, offsets=OffsetPolicy(on_above=on_above))


@pytest.mark.parametrize("resume", [None, 3000, 4000, 10_000])
@pytest.mark.parametrize(("on_above", "position"), [("earliest", 0), ("nearest", 4000), ("latest", 4000)])
def test_a_wiped_log_that_outgrows_the_position_at_once_is_noticed(on_above, position, resume):
    """The first answer is final: a second late. What has landed is of the old log, so nothing of the new one is left out."""

    async def scenario():
        store, truncations, brokers = FakeStore(), Truncations(), wiped(4000)
        store.put(P, 10_000)
        starts = StartFinder(store, truncations, brokers, brokers, brokers, OffsetPolicy(on_above=on_above))
        async with asyncio.TaskGroup() as tasks:
            finding = tasks.create_task(starts.find(FakeClaim(P), Writer(resume)))
            await asyncio.sleep(0.1)
            brokers.logs[P].append(900_000)

        plan = finding.result()
        assert isinstance(plan, StartAt)
        # a chain that ends at the committed position says nothing else: the feed meets the end of the log
        if resume == 10_000:
            return
        assert (position, 1, None) == (plan.position, plan.truncation, plan.gap)
        assert [position] == [one.position for one in truncations.noted.values()]

    run(scenario())


def test_a_stop_at_a_wiped_log_tells_what_can_be_the_reason():
    """There are no leader elections in 0.7."""

    async def scenario():
        store, brokers = FakeStore(), wiped(0)  # nothing was written yet: a fetch would be answered at any offset
        brokers.logs[P].log_end = 20_000
        store.put(P, 10_000)
        starts = StartFinder(store, Truncations(), brokers, brokers, brokers, OffsetPolicy(on_above="stop"))
        plan = await starts.find(FakeClaim(P), Writer(None))
        assert isinstance(plan, Stop)
        assert "the broker was wiped and its log is another one" in plan.advice
        assert "election" not in plan.advice

    run(scenario())


def test_the_policy_decides_about_a_wiped_log_that_has_the_position():
    """It has grown since: the records up to there are others."""
    error = OffsetOutOfRange(P, 3000, 0, 4000, replaced=True)

    move = plan_out_of_range(error, OffsetPolicy(on_above="earliest"))
    assert isinstance(move, Reposition)
    assert 0 == move.position
    stop = plan_out_of_range(error, OffsetPolicy(on_above="stop"))
    assert isinstance(stop, Stop)
    assert "offset 3000 is of an earlier log than the present one, which was [0, 4000) when it was seen" in stop.advice
    assert "the broker was wiped" in stop.advice


def test_a_request_at_a_wiped_log_is_about_another_log_than_what_has_landed():
    """It grows beyond the position while nothing else tells: records below it would get identities of the old log's."""

    async def scenario():
        store, truncations, brokers = FakeStore(), Truncations(), wiped(4000)
        store.put(P, 10_000)
        starts = StartFinder(store, truncations, brokers, brokers, brokers, OffsetPolicy())
        request = OffsetRequest(
            id="r", partition=P, position=100, new_chain=True, author="operator", created_ms=0, version=0
        )
        async with asyncio.TaskGroup() as tasks:
            finding = tasks.create_task(starts.find(FakeClaim(P), Writer(10_000), request=request))
            await asyncio.sleep(0.1)
            brokers.logs[P].append(900_000)

        plan = finding.result()
        assert (100, 1) == (plan.position, plan.truncation)

    run(scenario())


def test_a_chain_of_the_log_before_does_not_count_once_another_member_has_gone_on():
    """Its end lies within the new log, but its records are those of the old one."""

    async def scenario():
        store, truncations, brokers = FakeStore(), Truncations(), wiped(20_000)
        store.put(P, 5000)
        truncations.lost[P, TOPIC_CZXID] = LostEnd(number=1, position=10_000, earliest=0, latest=4000, voids=7)
        starts = StartFinder(store, truncations, brokers, brokers, brokers, OffsetPolicy())
        plan = await starts.find(FakeClaim(P), Writer(3000))
        assert isinstance(plan, StartAt)
        assert (5000, 1, None) == (plan.position, plan.truncation, plan.gap)

    run(scenario())


async def lose_the_log(rig, sink, *, latest):
    """Land 30 records, deliver 80, and replace the log while the sink drops what it had not landed."""
    rig.brokers.logs_are_replicated = False
    log = rig.log(P, 0, 30)
    await rig.claim(P)
    await until(lambda: rig.store.position(P) == 30)
    sink.roll_s = 10_000
    log.append(50)
    await until(lambda: rig.status(P).position == 80)

    async def trap(step, writer, _):
        if step == "flush":
            sink.trap = None
            writer.drop()
            raise RetriableSinkError("disk full", resume_position=writer.safe)

    sink.trap = trap
    log.truncate(latest)
    return log


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("latest", [20, 40])
def test_a_stop_at_a_wiped_log_does_not_end_by_itself(latest, restart):
    """The end of the log lies above what has landed, but the records below are others, too."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=1.0)
        async with DeliveryRig(sink=sink, settings=settings("stop")) as rig:
            log = await lose_the_log(rig, sink, latest=latest)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            await asyncio.sleep(1)
            log.append(100)
            if restart:
                rig.claims[P].lease.set("lost")
                await rig.deliveries.lost([P])
                await rig.claim(P, epoch=2)
            await asyncio.sleep(100)
            assert DeliveryState.STOPPED is rig.status(P).state
            assert "the broker was wiped" in rig.status(P).reason
            assert f"[0, {latest})" in rig.status(P).reason
            assert (30, list(range(30))) == (rig.store.position(P), rig.landed(P))

            sink.roll_s = 1.0
            rig.requests.put(P, 0)
            await until(lambda: rig.store.position(P) == latest + 100)
            assert list(range(latest + 100)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT

    run(scenario())


@pytest.mark.parametrize("latest", [20, 40])
@pytest.mark.parametrize("on_above", ["earliest", "nearest"])
def test_the_policy_moves_at_once_though_records_were_dropped(on_above, latest):
    """They cannot be read again: at their offsets the new log has other bytes."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=1.0)
        async with DeliveryRig(sink=sink, settings=settings(on_above)) as rig:
            log = await lose_the_log(rig, sink, latest=latest)
            first = 0 if on_above == "earliest" else latest
            await until(lambda: rig.hooks.named("position_reset"))
            sink.roll_s = 1.0
            log.append(5)
            await until(lambda: rig.store.position(P) == latest + 5)
            assert list(range(first, latest + 5)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT
            assert [30] == [one.end for one in sink.landed[P].chains]
            assert [(P, 80, first, "on_above")] == rig.hooks.named("position_reset")

    run(scenario())


@pytest.mark.parametrize("on_above", ["earliest", "stop"])
def test_a_wiped_log_to_which_nothing_was_written_is_noticed(on_above):
    """A fetch is answered without an error at any offset of it (REALITY 4.4), so the log end is asked for."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=1.0)
        async with DeliveryRig(sink=sink, settings=settings(on_above)) as rig:
            rig.brokers.logs_are_replicated = False
            log = rig.log(P, 0, 30)
            log.reports_end = False
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            log.log_end = 1000
            log.truncate(0)
            if on_above == "stop":
                await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
                log.append(100)
                await asyncio.sleep(100)
                assert DeliveryState.STOPPED is rig.status(P).state
                return
            await until(lambda: rig.hooks.named("position_reset"))
            log.append(100)
            await until(lambda: rig.store.position(P) == 100)
            assert list(range(100)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT

    run(scenario())


def test_records_that_come_while_a_log_end_is_asked_for_prove_no_other_log():
    """The answer is older than they are."""

    async def scenario():
        async with DeliveryRig(settings=settings("earliest")) as rig:
            rig.brokers.logs_are_replicated = False
            rig.log(P, 0, 30).reports_end = False
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 30)
            (pipeline,) = [one.pipeline for one in rig.deliveries._running.values()]
            pipeline.note_log_end(20)
            await asyncio.sleep(100)
            rig.brokers.logs[P].append(10)
            await until(lambda: rig.status(P).position == 40)
            assert list(range(40)) == rig.landed(P)
            assert {} == rig.truncations.noted

    run(scenario())


@pytest.mark.parametrize("unreachable", [False, True])
@pytest.mark.parametrize("wiped", [False, True])
def test_a_request_does_not_wait_for_dropped_records_of_a_log_whose_end_no_fetch_tells(wiped, unreachable):
    """The records are gone; whoever asked for the position would wait for ever."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=1.0 if wiped else 10_000)
        async with DeliveryRig(sink=sink, settings=settings("stop")) as rig:
            rig.brokers.logs_are_replicated = False
            log = rig.log(P, 0, 40)
            log.reports_end = False
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)

            async def trap(step, writer, _):
                if step == "flush":
                    sink.trap, sink.roll_s = None, 5
                    log.log_end = 1000
                    log.truncate(0)
                    if unreachable:
                        rig.brokers.unreachable = ConnectionLost("away")
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            if wiped:
                await until(lambda: rig.store.position(P) == 40)
                sink.roll_s = 10_000
                log.append(10)
                await until(lambda: rig.status(P).position == 50)
            sink.trap = trap
            rig.requests.put(P, 5)
            if unreachable:
                await asyncio.sleep(60)
                assert P in rig.store.requests
                rig.brokers.unreachable = None
            await until(lambda: P not in rig.store.requests)
            log.append(30)
            await until(lambda: rig.store.position(P) == 30)
            assert list(range(5, 30)) == rig.landed(P)

    run(scenario())


def test_a_stop_ends_where_the_damaged_message_is_gone_and_nothing_comes():
    """No record proves it, and no fetch tells the log end."""

    async def scenario():
        async with DeliveryRig(settings=settings("stop")) as rig:
            rig.brokers.logs_are_replicated = False
            log = rig.log(P, 0, 40)
            log.reports_end = False
            log.lasting_faults[20] = CorruptMessageError("bad", offset=20, next_offset=23)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            log.truncate(20)
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING)

    run(scenario())
