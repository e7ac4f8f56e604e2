# SPDX-License-Identifier: Apache-2.0
"""Stops above the log's end: final until an operator decides."""

import asyncio

import pytest

from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.errors import CoordinationError, PermanentSinkError, RetriableSinkError
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.offsets.store import CommitOutcome, LostEnd
from consumerd.sinks.base import Start
from consumerd.telemetry.hooks import Trouble
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)
NEXT = Incarnation(TOPIC_CZXID, 1)


def chains(roll_s=5.0):
    return FakeSink(buffered=True, keeps_chains=True, roll_s=roll_s)


def settings(on_above="stop", on_missing="earliest"):
    return DeliverySettings(commit_interval_ms=1000, offsets=OffsetPolicy(on_above=on_above, on_missing=on_missing))


async def stopped(rig):
    await until(lambda: rig.status(P).state is DeliveryState.STOPPED)


async def stop_above_the_log(rig):
    """Deliver 80 records, of which the log then loses 20."""
    log = rig.log(P, 0, 80)
    await rig.claim(P)
    await until(lambda: rig.store.position(P) == 80)
    log.truncate(60)
    await stopped(rig)
    return log


async def crash(rig):
    rig.claims[P].lease.set("lost")
    await rig.deliveries.lost([P])


@pytest.mark.parametrize("keeps_chains", [True, False])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("position", [60, 45, 90])
def test_a_log_that_grows_past_a_lost_position_ends_no_stop(keeps_chains, restart, position):
    """Records below the old position are others now: a request says where to begin."""

    async def scenario():
        sink = chains() if keeps_chains else FakeSink()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = await stop_above_the_log(rig)
            before = len(rig.landed(P))
            if restart:
                await asyncio.sleep(1)  # it is noted at once, not at the next look
                await crash(rig)
            log.append(100)
            if restart:
                await rig.claim(P, epoch=2)
            await asyncio.sleep(100)
            assert DeliveryState.STOPPED is rig.status(P).state
            assert "consumerd offsets set" in rig.status(P).reason
            assert "[0, 60)" in rig.status(P).reason
            assert (80, before) == (rig.store.position(P), len(rig.landed(P)))
            assert [] == rig.hooks.named("partition_resumed")  # nor does it go to and fro

            rig.requests.put(P, position)
            await until(lambda: rig.store.position(P) == 160)
            again = rig.landed(P) if keeps_chains else rig.landed(P)[before:]
            assert list(range(position, 160)) == again
            assert [(1, position)] == [(one.number, one.position) for one in rig.truncations.noted.values()]
            if keeps_chains:
                assert (NEXT, [80]) == (sink.landed[P].incarnation, [one.end for one in sink.landed[P].chains])
            # what has been dealt with stops nobody again
            await rig.deliveries.drain([P], 3)
            log.append(5)
            await rig.claim(P, epoch=3)
            await until(lambda: rig.store.position(P) == 165)

    run(scenario())


@pytest.mark.parametrize("landed", [True, False])
def test_a_committed_position_that_is_refused_at_the_start_stays_refused(landed):
    """By the next process, too, which sees a log that reaches beyond it."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            rig.store.put(P, 900)
            if landed:
                sink.landed[P].begin(Start(position=880, reason="committed"), Incarnation(TOPIC_CZXID))
                sink.landed[P].end = 900
            log = rig.log(P, 100, 150)
            for epoch in (1, 2, 3):
                await rig.claim(P, epoch)
                await stopped(rig)
                assert "consumerd offsets set" in rig.status(P).reason
                await asyncio.sleep(1)
                await rig.deliveries.drain([P], 3)
                log.append(755)
            await rig.claim(P, 4)
            await stopped(rig)
            rig.requests.put(P, 150)
            await until(lambda: rig.store.position(P) == log.latest)
            assert list(range(150, log.latest)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT

    run(scenario())


@pytest.mark.parametrize(("choice", "first"), [("nearest", 60), ("latest", 160), ("earliest", 0)])
def test_another_policy_goes_on_from_the_end_that_was_found(choice, first):
    """``nearest`` is the end that was found, not the end when the settings were changed."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = await stop_above_the_log(rig)
            await asyncio.sleep(1)
            await crash(rig)
            log.append(100)
            async with DeliveryRig(sink=sink, settings=settings(choice), beside=rig) as other:
                await other.claim(P, epoch=2)
                await until(lambda: other.hooks.named("position_reset"))
                log.append(5)
                await until(lambda: other.store.position(P) == 165)
                assert list(range(first, 165)) == other.landed(P)
                assert sink.landed[P].incarnation == NEXT
                assert [(P, 80, first, "on_above")] == other.hooks.named("position_reset")
                await crash(other)

    run(scenario())


def test_a_replica_with_a_folder_of_its_own_goes_on_behind_what_it_has_landed():
    """Records below the end that was found are not read again."""

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            log = await stop_above_the_log(rig)
            await asyncio.sleep(1)
            await crash(rig)
            log.append(100)
            sink = chains()
            sink.landed[P].begin(Start(position=0, reason="committed"), Incarnation(TOPIC_CZXID))
            sink.landed[P].end = 40
            async with DeliveryRig(sink=sink, settings=settings("nearest"), beside=rig) as other:
                await other.claim(P, epoch=2)
                await until(lambda: other.store.position(P) == 160)
                assert list(range(60, 160)) == other.landed(P)
                assert [(P, Gap(40, 60, GapReason.RESET))] == other.hooks.named("gap_recorded")
                await crash(other)

    run(scenario())


@pytest.mark.parametrize("position", [70, 35])
@pytest.mark.parametrize("restart", [False, True])
def test_what_another_member_commits_then_is_believed_and_the_old_chain_is_not(position, restart):
    """A Java member has reset its position; our chain ends in the old log."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = await stop_above_the_log(rig)
            await asyncio.sleep(1)
            if restart:
                await crash(rig)
            log.append(100)
            rig.store.put(P, position)
            if restart:
                await rig.claim(P, epoch=2)
            await until(lambda: rig.store.position(P) == 160)
            assert list(range(position, 160)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT
            assert [80] == [one.end for one in sink.landed[P].chains]

    run(scenario())


@pytest.mark.parametrize("request_first", [True, False])
def test_a_stop_that_cannot_be_noted_is_kept_in_mind_and_noted_later(request_first):
    """No request is carried out before the note: its chain would bear the old number."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            rig.truncations.faults += [CoordinationError("not connected")] * 3
            log = await stop_above_the_log(rig)
            log.append(100)
            if request_first:
                rig.requests.put(P, 60)
            else:
                await asyncio.sleep(100)
                assert [] == rig.truncations.faults
                assert DeliveryState.STOPPED is rig.status(P).state
                await crash(rig)
                await rig.claim(P, epoch=2)
                await stopped(rig)
                rig.requests.put(P, 60)
            await until(lambda: rig.store.position(P) == 160)
            assert list(range(60, 160)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT
            if not request_first:  # once a stop, not at each try
                told = [args for args in rig.hooks.named("trouble") if Trouble.STOP_UNRECORDED in args]
                assert [(Trouble.STOP_UNRECORDED, P)] == told

    run(scenario())


def test_a_stop_is_noted_after_the_last_commit():
    """A commit that came after the note would make the position valid again."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 80)
            rig.store.outcomes[P] = [CommitOutcome.FAILED] * 3
            log.truncate(60)
            await stopped(rig)
            log.append(100)
            await until(lambda: rig.truncations.lost)
            (lost,) = rig.truncations.lost.values()
            assert (80, rig.store.stored[P].token.mark) == (rig.store.position(P), lost.voids)
            assert LostEnd(number=1, position=80, earliest=0, latest=60, voids=lost.voids) == lost
            await crash(rig)
            await rig.claim(P, epoch=2)
            await asyncio.sleep(100)
            assert DeliveryState.STOPPED is rig.status(P).state

    run(scenario())


def test_what_the_sink_drops_at_the_stop_is_read_again_as_far_as_the_log_has_it():
    """Delivery goes on behind what is safe, where the log still has that."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            failed = []

            async def trap(step, writer, _):
                if step == "flush" and not failed:
                    failed.append(writer.position)
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)
            log.truncate(30)
            await until(lambda: failed)
            await asyncio.sleep(60)
            log.append(5)
            await until(lambda: rig.status(P).position == 35)
            await rig.deliveries.drain([P], 3)
            assert list(range(35)) == rig.landed(P)
            assert sink.landed[P].incarnation == Incarnation(TOPIC_CZXID)

    run(scenario())


def test_a_sink_that_refuses_the_flush_at_the_stop_is_opened_again_behind_what_is_safe():
    """The committed position lies within the log: no operator has to decide about it."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            failed = []

            async def trap(step, writer, _):
                if step == "flush" and not failed:
                    failed.append(writer.position)
                    raise PermanentSinkError("no")

            sink.trap = trap
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)
            log.truncate(30)
            await stopped(rig)
            log.append(5)
            await until(lambda: rig.status(P).position == 35)
            await rig.deliveries.drain([P], 3)
            assert list(range(35)) == rig.landed(P)

    run(scenario())


@pytest.mark.parametrize("on_above", ["stop", "nearest", "earliest"])
def test_a_leader_whose_high_watermark_trails_for_long_has_lost_nothing(on_above):
    """A dead broker holds it back while it is in the ISR."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings(on_above)) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 850)
            log.log_end = 950
            await rig.claim(P)
            await asyncio.sleep(30)
            assert DeliveryState.STOPPED is not rig.status(P).state
            log.append(100)
            await until(lambda: rig.store.position(P) == 950)
            assert list(range(900, 950)) == rig.landed(P)
            assert sink.landed[P].incarnation == Incarnation(TOPIC_CZXID)
            assert {} == rig.truncations.noted

    run(scenario())


def test_a_broker_that_does_not_answer_confirms_nothing():
    """Silence is no verdict: the broker is asked again, and its records are delivered."""

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 850)
            log.silent_from = 900
            log.log_end = 950
            log.unheard = True
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            log.silent_from, log.unheard = None, False
            log.append(100)
            await until(lambda: rig.store.position(P) == 950)
            assert list(range(900, 950)) == rig.landed(P)

    run(scenario())


def test_a_topic_that_is_made_again_is_not_held_by_the_stop():
    """The note is about the log of the topic that is gone."""

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            await stop_above_the_log(rig)
            await asyncio.sleep(1)
            await crash(rig)
            rig.log(P, 0, 200)
            await rig.claim(P, epoch=1, incarnation=TOPIC_CZXID + 10_000_000)
            await until(lambda: rig.store.position(P) == 200)
            assert list(range(200)) == rig.landed(P)

    run(scenario())


@pytest.mark.parametrize("moment", ["halt", "flow"])
def test_a_position_that_somebody_moves_before_the_note_is_believed(moment):
    """Between the confirmation and the note, which then makes void the chain alone."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            rig.truncations.faults += [CoordinationError("not connected")] * (1 if moment == "halt" else 0)
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            log.truncate(60)
            if moment == "flow":
                rig.store.put(P, 65)
            else:
                await stopped(rig)
                rig.store.put(P, 65)
            log.append(0)
            await stopped(rig)
            log.append(100)
            await until(lambda: rig.store.position(P) == 160)
            assert list(range(65, 160)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT

    run(scenario())


def test_a_position_that_the_log_never_reached_is_waited_for_as_was_asked():
    """No record was read there that the log could contradict when it gets there."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            rig.requests.put(P, 100)
            await until(lambda: rig.store.position(P) == 100)
            await stopped(rig)
            assert "it goes on at 100 as soon as the log reaches it" in rig.status(P).reason
            log.append(30)
            await until(lambda: rig.store.position(P) == 110)
            assert [*range(80), *range(100, 110)] == rig.landed(P)
            assert ({}, {}) == (rig.truncations.noted, rig.truncations.lost)

    run(scenario())


@pytest.mark.parametrize("growth", [0, 7])
def test_a_request_that_waits_when_the_log_has_lost_its_end_begins_the_next_truncation(growth):
    """No stop came first: the log ends below what was consumed."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            await crash(rig)
            log.truncate(60)
            rig.requests.put(P, 60)
            log.append(growth)
            await rig.claim(P, epoch=2)
            await until(lambda: P not in rig.store.requests)
            log.append(40)
            await until(lambda: rig.store.position(P) == 100 + growth)
            assert list(range(60, 100 + growth)) == rig.landed(P)
            assert sink.landed[P].incarnation == NEXT

    run(scenario())
