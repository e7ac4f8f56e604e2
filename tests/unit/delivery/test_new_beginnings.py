# SPDX-License-Identifier: Apache-2.0
"""A log that lost its end, and a topic that was deleted and made again: other records at offsets that are known already."""

import asyncio
import contextlib

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.errors import (
    CorruptMessageError,
    IncarnationChanged,
    PermanentSinkError,
    RecordTooLarge,
    RetriableSinkError,
)
from consumerd.model import Gap, Incarnation, TopicPartition
from consumerd.sinks.base import Start
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)


def chains():
    return FakeSink(buffered=True, keeps_chains=True, roll_s=5.0)


def settings(on_above="nearest"):
    return DeliverySettings(commit_interval_ms=1000, offsets=OffsetPolicy(on_above=on_above))


def land(sink, start, end):
    sink.landed[P].begin(Start(position=start, reason="committed"), Incarnation(TOPIC_CZXID))
    sink.landed[P].offsets = list(range(start, end))
    sink.landed[P].end = end


# -- a log that lost its end


@pytest.mark.parametrize("step", ["abandon", "start", "after start", "commit", "after commit"])
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("growth", [0, 7, 1000])
def test_whoever_dies_while_moving_back_the_next_one_loses_nothing_of_the_new_log(step, landed, growth):
    """By then the log may have grown beyond the old position again, which must not make it look valid."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            rig.store.put(P, 900)
            if landed:
                land(sink, 880, 900)
            log = rig.log(P, 100, 150)
            stuck = asyncio.Event()
            moved = lambda: bool(rig.hooks.named("position_reset")) or not landed  # noqa: E731

            async def hang():
                stuck.set()
                await asyncio.Event().wait()

            async def trap(at, _writer, _batch):
                if at == step and moved():
                    await hang()

            async def after(at, _writer):
                if f"after {at}" == step and moved():
                    await hang()

            async def before_commit(commits):
                if step == "commit" and commits[0].position == 150:
                    await hang()

            async def after_commit(commits):
                if step == "after commit" and commits[0].position == 150:
                    await hang()

            sink.trap, sink.after = trap, after
            rig.store.before_commit, rig.store.after_commit = before_commit, after_commit
            await rig.claim(P)
            with contextlib.suppress(TimeoutError):  # not every path has every step
                async with timeout(30):
                    await stuck.wait()
            rig.claims[P].lease.set("lost")
            sink.trap = sink.after = rig.store.before_commit = rig.store.after_commit = None
            begun = bool(rig.truncations.noted)
            await rig.deliveries.lost([P])
            log.append(growth)
            await rig.claim(P, epoch=2)
            await until(lambda: rig.status(P).position == log.latest)
            log.append(1)
            await until(lambda: rig.store.position(P) == log.latest)
            if begun or growth < 750:
                # once it is noted where the log's end was found, everything from there on lands
                first = 150 if begun else 150 + growth
                assert list(range(first, log.latest)) == rig.landed(P)
                assert [] == sink.landed[P].gaps
            assert len(sink.landed[P].chains) == int(landed and (begun or growth < 750))

    run(scenario())


def test_a_log_that_loses_its_end_again_gets_another_chain():
    """Brokers that fall over one after the other."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            rig.store.put(P, 900)
            land(sink, 880, 900)
            log = rig.log(P, 100, 150)
            await rig.claim(P)
            for end in (150, 140, 130):
                log.truncate(end)
                await until(lambda: rig.store.position(P) == end)  # noqa: B023 - awaited at once
                log.append(5)
                await until(lambda: rig.store.position(P) == end + 5)  # noqa: B023 - awaited at once
                assert list(range(end, end + 5)) == rig.landed(P)
            assert [900, 155, 145] == [chain.end for chain in sink.landed[P].chains]
            assert [900, 155, 145] == [before for _, before, _, _ in rig.hooks.named("position_reset")]

    run(scenario())


def test_what_was_read_before_the_log_lost_it_lands_in_the_old_chain():
    """The open file is published before a new chain begins."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)
            log.truncate(30)
            await until(lambda: rig.store.position(P) == 30)
            assert list(range(40)) == sink.landed[P].chains[0].offsets

    run(scenario())


@pytest.mark.parametrize("for_good", [False, True])
def test_what_was_read_and_could_not_be_landed_is_read_again_where_it_is(for_good):
    """A disk that is full at the moment of the truncation must not cost the records between chain and new end."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            failed = []

            async def trap(step, writer, _):
                if step == "flush" and len(failed) < (2 if for_good else 1):
                    failed.append(writer.position)
                    writer.drop()
                    if for_good:
                        raise PermanentSinkError("no")
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
            landed = [offset for chain in (*sink.landed[P].chains, sink.landed[P]) for offset in chain.offsets]
            assert set(range(35)) <= set(landed)
            assert 35 == rig.store.position(P)

    run(scenario())


def test_what_stopped_a_partition_is_over_when_the_log_has_lost_it():
    """Nothing has to be written there for the daemon to be ready again."""

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[30] = CorruptMessageError("bad", partition=P, offset=30, next_offset=33)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            log.truncate(20)
            await until(lambda: rig.store.position(P) == 20)
            await asyncio.sleep(60)
            assert DeliveryState.RUNNING is rig.status(P).state
            assert [(P,)] == rig.hooks.named("partition_resumed")

    run(scenario())


@pytest.mark.parametrize("cause", ["corrupt", "oversized"])
def test_what_stopped_a_partition_is_over_when_the_log_ends_right_before_it(cause):
    """The position is valid, there is just nothing behind it yet: no record can prove that it goes on."""
    corrupt = CorruptMessageError("bad", partition=P, offset=30, next_offset=33)
    error = corrupt if cause == "corrupt" else RecordTooLarge(P, 30, 10, 20, next_offset=33)

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[30] = error
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            log.truncate(30)
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING)
            assert [(P,)] == rig.hooks.named("partition_resumed")
            assert 30 == rig.store.position(P)
            log.append(5)
            await until(lambda: rig.store.position(P) == 35)
            assert list(range(35)) == rig.landed(P)

    run(scenario())


def test_a_leader_that_says_nothing_ends_no_stop():
    """Silence proves nothing: what stopped the partition may stand there still."""

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[30] = CorruptMessageError("bad", partition=P, offset=30, next_offset=33)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            log.silent_from = 30
            await asyncio.sleep(200)
            assert DeliveryState.STOPPED is rig.status(P).state
            assert [] == rig.hooks.named("partition_resumed")

    run(scenario())


# -- a topic that was made again


@pytest.mark.parametrize("records", [5, 40, 200])
@pytest.mark.parametrize("keeps_chains", [True, False])
@pytest.mark.parametrize("step", ["flush", "write"])
def test_a_topic_made_again_is_delivered_from_its_beginning(records, keeps_chains, step, logged):
    """With fewer records than before or with more: the old position means nothing, and nothing of the new is skipped."""

    async def scenario():
        sink = chains() if keeps_chains else FakeSink(buffered=True, roll_s=5)
        async with DeliveryRig(sink=sink) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)

            async def trap(at, writer, _batch):
                if (
                    at == step
                    and writer.claim is rig.claims[P]
                    and rig.claims[P].incarnation == Incarnation(TOPIC_CZXID)
                ):
                    raise IncarnationChanged("made again")

            sink.trap = trap
            log.append(10)  # these are the new topic's, at the old one's offsets
            await until(lambda: rig.losses)
            rig.log(P, 0, records)
            await rig.claim(P, epoch=1, incarnation=TOPIC_CZXID + 10_000_000)
            await until(lambda: rig.status(P).position == records)
            rig.brokers.logs[P].append(1)
            await until(lambda: rig.store.position(P) == records + 1)
            landed = rig.landed(P) if keeps_chains else rig.landed(P)[40:]
            assert list(range(records + 1)) == landed
            assert all(feed.closed for feed in rig.brokers.feeds[:-1])
            assert [(P, 40, 0, "new incarnation")] == rig.hooks.named("position_reset")
            if keeps_chains:
                assert list(range(40)) == sink.landed[P].chains[0].offsets
                assert "new incarnation" == sink.landed[P].started.reason

    run(scenario())
    assert 1 == [entry["event"] for entry in logged].count("topic_made_again")


@pytest.mark.parametrize("keeps_chains", [True, False])
def test_a_commit_that_came_after_the_topic_was_made_again_is_not_believed(keeps_chains):
    """Its transaction is younger than the topic, its position is about the topic before."""

    async def scenario():
        sink = chains() if keeps_chains else FakeSink()
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            later = rig.store.stored[P].token.mark - 1  # made again right before our last commit
            await rig.deliveries.lost([P])
            log = rig.log(P, 0, 60)
            await rig.claim(P, epoch=1, incarnation=later)
            await until(lambda: rig.status(P).position == 60)
            landed = rig.landed(P) if keeps_chains else rig.landed(P)[40:]
            await until(lambda: rig.store.position(P) == 60)
            assert list(range(60)) == landed
            # and only once: from then on what is committed is this topic's
            await rig.deliveries.drain([P], 3)
            log.append(5)
            await rig.claim(P, epoch=1, incarnation=later)
            await until(lambda: rig.store.position(P) == 65)
            assert list(range(65)) == (rig.landed(P) if keeps_chains else rig.landed(P)[40:])

    run(scenario())


def test_a_commit_ahead_of_what_landed_is_the_other_member_s_and_is_told_with_its_range():
    """A Java member has consumed them; they are in no file of ours."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink) as rig:
            land(sink, 0, 30)
            rig.store.put(P, 50)
            rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            (told,) = rig.hooks.named("gap_recorded")
            assert (P, Gap(30, 50, sink.landed[P].gaps[0].reason)) == told

    run(scenario())


def test_the_new_topic_s_own_commit_is_believed_though_it_looks_like_the_old_one_s():
    """The doubt ends with the first commit under the new claim, or each new attempt would begin all over."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            later = rig.store.stored[P].token.mark - 1
            await rig.deliveries.lost([P])
            log = rig.log(P, 0, 60)
            log.lasting_faults[40] = CorruptMessageError("bad checksum", partition=P, offset=40)
            await rig.claim(P, epoch=1, incarnation=later)
            await until(lambda: rig.store.position(P) == 40 and rig.hooks.named("partition_stopped"))
            await asyncio.sleep(60)  # it is looked at again and again
            log.lasting_faults.clear()
            await until(lambda: rig.store.position(P) == 60)
            assert list(range(60)) == rig.landed(P)[40:]

    run(scenario())


def test_moving_back_waits_for_the_commit_that_is_under_way():
    """It would come between the reading of the offset node and the chain that makes that node void."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 40)
            sent, answered = asyncio.Event(), asyncio.Event()

            async def before_commit(commits):
                if commits[0].position == 40:
                    sent.set()
                    await answered.wait()

            rig.store.before_commit = before_commit
            await rig.claim(P)
            await sent.wait()
            log.truncate(30)
            await asyncio.sleep(20)
            assert [] == sink.landed[P].chains
            answered.set()
            await until(lambda: rig.store.position(P) == 30)
            assert 1 == len(sink.landed[P].chains)

    run(scenario())
