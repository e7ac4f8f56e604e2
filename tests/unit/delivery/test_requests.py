# SPDX-License-Identifier: Apache-2.0
"""Operators' requests: carried out once, whoever dies in between, running or stopped."""

import asyncio
import contextlib

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.errors import CoordinationError, CorruptMessageError, RetriableSinkError
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.offsets.store import CommitOutcome
from consumerd.telemetry.hooks import Trouble
from consumerd.zk.port import NotConnected
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


def chains(**options):
    return FakeSink(buffered=True, keeps_chains=True, roll_s=options.pop("roll_s", 5.0), **options)


def settings(**policy):
    return DeliverySettings(commit_interval_ms=1000, offsets=OffsetPolicy(**policy))


async def carried_out(rig, partition=P):
    await until(lambda: partition not in rig.store.requests)


def test_a_position_that_was_landed_is_delivered_again_in_a_new_chain(logged):
    """What has landed is never contradicted within its chain."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            rig.requests.put(P, 15)
            await carried_out(rig)
            assert 15 == rig.store.position(P)
            await until(lambda: rig.store.position(P) == 40)
            log.append(2)
            await until(lambda: rig.store.position(P) == 42)
            assert list(range(15, 42)) == rig.landed(P)
            (before,) = sink.landed[P].chains
            assert (list(range(40)), 40) == (before.offsets, before.end)
            assert ("request", "request-1") == (sink.landed[P].started.reason, sink.landed[P].started.request_id)
            assert sink.landed[P].started.truncation == 0
            assert [(P, 40, 15, "request")] == rig.hooks.named("position_reset")

    run(scenario())
    assert ["ops@host"] == [entry["author"] for entry in logged if entry["event"] == "request_carried_out"]


def test_a_request_about_a_deleted_topic_of_the_same_name_is_none():
    """The new one has other records. It stays where it is, and the claim goes on."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            rig.requests.put(P, 15, topic=Incarnation(TOPIC_CZXID - 1))
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            assert P in rig.store.requests
            rig.requests.put(P, 15, topic=Incarnation(TOPIC_CZXID, 2))
            await carried_out(rig)
            assert "request" == sink.landed[P].started.reason

    run(scenario())


def test_what_was_delivered_before_the_request_is_made_safe_first():
    """An open file is published, not thrown away."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)
            assert [] == rig.landed(P)
            rig.requests.put(P, 15)
            await carried_out(rig)
            assert list(range(40)) == sink.landed[P].chains[0].offsets

    run(scenario())


@pytest.mark.parametrize("position", [60, 45, 30])
@pytest.mark.parametrize("failures", [1, 3])
def test_what_the_sink_drops_when_a_request_comes_is_read_again_first(failures, position):
    """It was delivered before anybody asked for another position: the request leaves out what comes after."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 80)
            log = rig.brokers.logs[P]
            log.silent_from = 40
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)
            left = [failures]

            async def trap(step, writer, _batch):
                if step == "flush" and left[0]:
                    left[0] -= 1
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.requests.put(P, position)
            await carried_out(rig)
            assert 0 == left[0]
            log.silent_from = None
            sink.roll_s = 5
            await until(lambda: rig.store.position(P) == 80)
            first = sink.landed[P].chains[0] if sink.landed[P].chains else sink.landed[P]
            assert list(range(40)) == first.offsets[:40]
            expected = [Gap(40, position, GapReason.RESET)] if position > 40 else []
            assert expected == sink.landed[P].gaps
            assert list(range(position, 80)) == sink.landed[P].offsets[-(80 - position) :]

    run(scenario())


def test_a_request_is_carried_out_though_what_was_dropped_is_gone():
    """The stop that this is advises to ask for a position, which somebody has done already."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings(on_below="stop")) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)

            async def trap(step, writer, _batch):
                if step == "flush":
                    sink.trap, sink.roll_s = None, 5
                    log.append(40)
                    log.earliest = 50
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.requests.put(P, 60)
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 80)
            assert list(range(60, 80)) == rig.landed(P)

    run(scenario())


@pytest.mark.parametrize("position", [45, 30, 5])
def test_a_request_does_not_wait_for_records_that_the_log_has_lost(position):
    """What the sink has dropped cannot be read again up to where it was: nobody knows when the log will reach that far."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink, settings=settings(on_above="nearest")) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)

            async def trap(step, writer, _batch):
                if step == "flush":
                    sink.trap, sink.roll_s = None, 5
                    log.truncate(20)  # an unclean election, just now
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.requests.put(P, position)
            await carried_out(rig)
            first = sink.landed[P].chains[0] if sink.landed[P].chains else sink.landed[P]
            assert list(range(20)) == first.offsets[:20]
            log.append(10)
            await until(lambda: rig.store.position(P) == 30)
            assert list(range(min(position, 20), 30)) == sink.landed[P].offsets[-(30 - min(position, 20)) :]

    run(scenario())


def test_a_request_waits_for_a_new_leader_that_knows_less_for_a_moment():
    """What was dropped is there: it is delivered before the request begins behind it."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)

            async def trap(step, writer, _batch):
                if step == "flush":
                    sink.trap, sink.roll_s = None, 5
                    log.truncate(20)
                    asyncio.get_running_loop().call_later(0.9, log.append, 30)
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.requests.put(P, 45)
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 50)
            assert [*range(40), *range(45, 50)] == rig.landed(P)
            assert [Gap(40, 45, GapReason.RESET)] == sink.landed[P].gaps

    run(scenario())


@pytest.mark.parametrize("keeps_chains", [True, False])
def test_a_request_takes_the_place_of_a_move_though_its_commit_fails_at_first(keeps_chains):
    """A later pass carries it out, while the partition waits to begin again: it begins where it was asked to."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=keeps_chains, roll_s=1.0)
        often = DeliverySettings(commit_interval_ms=20, offsets=OffsetPolicy(on_above="nearest"))
        async with DeliveryRig(sink=sink, settings=often) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            before = len(rig.landed(P))

            async def trap(step, writer, _batch):
                if step == "abandon":  # it is about to move back
                    sink.trap = None
                    rig.store.outcomes[P] = [CommitOutcome.FAILED]
                    rig.requests.put(P, 10)

            sink.trap = trap
            log.truncate(30)
            await until(lambda: rig.store.requests)
            await carried_out(rig)
            log.append(10)
            await until(lambda: rig.store.position(P) == 40)
            again = rig.landed(P) if keeps_chains else rig.landed(P)[before:]
            assert list(range(10, 40)) == again

    run(scenario())


def test_a_drain_does_not_wait_for_a_request_that_a_sink_holds_up():
    """Whoever is next finds the request, and what was not safe."""

    async def scenario():
        sink = chains(roll_s=10_000)
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 40)

            async def trap(step, writer, _batch):
                if step == "flush":
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.requests.put(P, 60)
            await asyncio.sleep(5)
            await rig.deliveries.drain([P], 3)
            assert P in rig.store.requests
            assert [] == rig.landed(P)
            assert [] == sink.landed[P].gaps

    run(scenario())


@pytest.mark.parametrize("position", [60, 50])
def test_a_position_ahead_leaves_a_gap_that_lands_before_it_is_committed(position, logged):
    """The range that an operator leaves out is as visible as any other."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings(on_missing="stop")) as rig:
            rig.log(P, 0, 80)
            rig.store.put(P, 50)
            sink.landed[P].end = 50
            rig.requests.put(P, position)
            gaps_at_commit = []

            async def look(commits):
                gaps_at_commit.append((commits[0].position, list(sink.landed[P].gaps)))

            rig.store.before_commit = look
            await rig.claim(P)
            await carried_out(rig)
            gap = Gap(50, position, GapReason.RESET)
            expected = [gap] if position > 50 else []
            assert (position, expected) == gaps_at_commit[0]
            await until(lambda: rig.store.position(P) == 80)
            assert list(range(position, 80)) == rig.landed(P)
            assert (expected, []) == (sink.landed[P].gaps, sink.landed[P].chains)
            assert [(P, one) for one in expected] == rig.hooks.named("gap_recorded")
            assert [(P, one) for one in expected] == rig.hooks.named("gap_requested")
            moved = [(P, 50, position, "request")] if position > 50 else []
            assert moved == rig.hooks.named("position_reset")

    run(scenario())
    assert (position > 50) == ("range_skipped" in [entry["event"] for entry in logged])


@pytest.mark.parametrize("keeps_chains", [True, False])
@pytest.mark.parametrize("took_effect", [True, False])
def test_what_a_request_leaves_out_is_told_once_though_its_commit_is_not_heard_of(keeps_chains, took_effect, logged):
    """By the next attempt the gap has landed, and the request may be gone: nobody else would tell of it."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=keeps_chains, roll_s=5.0)
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 80)
            rig.store.put(P, 50)
            if keeps_chains:
                sink.landed[P].end = 50
            rig.requests.put(P, 60)
            losses = [CoordinationError("connection lost")]

            async def lose(_):
                if losses:
                    raise losses.pop()

            if took_effect:
                rig.store.after_commit = lose
            else:
                rig.store.before_commit = lose
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            assert list(range(60, 80)) == rig.landed(P)
            assert [(P, Gap(50, 60, GapReason.RESET))] == rig.hooks.named("gap_recorded")
            assert [(P, 50, 60, "request")] == rig.hooks.named("position_reset")

    run(scenario())
    assert 1 == [entry["event"] for entry in logged].count("request_carried_out")


@pytest.mark.parametrize("position", [20, 50, 60])
def test_a_new_chain_is_begun_where_the_operator_wants_one(position):
    """A path whose files were moved away, or a clean cut."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink) as rig:
            log = rig.log(P, 0, 50)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 50)
            log.append(30)
            rig.requests.put(P, position, new_chain=True)
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 80)
            log.append(1)
            await until(lambda: rig.store.position(P) == 81)
            assert position == sink.landed[P].started.position
            assert list(range(position, 81)) == rig.landed(P)
            (before,) = sink.landed[P].chains
            expected = [(P, Gap(before.end, position, GapReason.RESET))] if position > before.end else []
            assert expected == rig.hooks.named("gap_recorded")

    run(scenario())


@pytest.mark.parametrize("position", [10, 60])
def test_a_sink_without_chains_just_seeks(position):
    """It has no record of its own that could be contradicted."""

    async def scenario():
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            log.append(40)
            rig.requests.put(P, position)
            await carried_out(rig)
            await until(lambda: rig.status(P).position == 80)
            landed = rig.landed(P)
            assert list(range(position, 80)) == landed[len(landed) - (80 - position) :]

    run(scenario())


def stopped_by_no_offset(rig):
    rig.log(P, 0, 80)


def stopped_by_malformed_offset(rig):
    rig.log(P, 0, 80)
    rig.store.put_malformed(P, "x")


def stopped_below_the_log(rig):
    rig.log(P, 30, 80)
    rig.store.put(P, 10)


def stopped_above_the_log(rig):
    rig.log(P, 0, 80)
    rig.store.put(P, 500)


def stopped_by_damage(rig):
    rig.log(P, 0, 80).lasting_faults[20] = CorruptMessageError("bad checksum", partition=P, offset=20, next_offset=21)
    rig.store.put(P, 0)


@pytest.mark.parametrize(
    "stop",
    [
        stopped_by_no_offset,
        stopped_by_malformed_offset,
        stopped_below_the_log,
        stopped_above_the_log,
        stopped_by_damage,
    ],
)
@pytest.mark.parametrize("keeps_chains", [False, True])
def test_a_stopped_partition_goes_on_where_it_is_told_to_and_at_once(stop, keeps_chains):
    """The way out that every stop's advice names; nobody waits for the next look."""

    async def scenario():
        sink = chains() if keeps_chains else FakeSink()
        async with DeliveryRig(sink=sink, settings=settings(on_missing="stop")) as rig:
            stop(rig)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert "consumerd offsets set" in rig.status(P).reason
            await asyncio.sleep(0.5)
            rig.requests.put(P, 40)
            told = asyncio.get_running_loop().time()
            await carried_out(rig)
            assert asyncio.get_running_loop().time() - told < 2  # the end of a log is asked for twice, a second apart
            assert DeliveryState.STOPPED is not rig.status(P).state
            await until(lambda: rig.store.position(P) == 80)
            assert list(range(40, 80)) == [offset for offset in rig.landed(P) if offset >= 20]

    run(scenario())


@pytest.mark.parametrize(("position", "cause"), [(10, "below log"), (500, "above log")])
def test_a_position_outside_the_log_is_carried_out_and_then_judged_as_any_other(position, cause):
    """An operator's mistake is shown; the policies say what follows."""

    async def scenario():
        async with DeliveryRig(sink=chains(), settings=settings()) as rig:
            rig.log(P, 30, 80)
            rig.store.put(P, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            rig.requests.put(P, position)
            await carried_out(rig)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert [(P, cause)] == rig.hooks.named("partition_stopped")
            rig.requests.put(P, 60)
            await until(lambda: rig.store.position(P) == 80)
            assert list(range(60, 80)) == rig.landed(P)[-20:]

    run(scenario())


STEPS = ["start", "after start", "write", "flush", "after flush", "abandon", "commit", "after commit"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("position", [15, 60])
@pytest.mark.parametrize("new_chain", [False, True])
@pytest.mark.parametrize("keeps_chains", [False, True])
def test_whoever_dies_while_carrying_it_out_the_next_one_finishes_it_once(step, position, new_chain, keeps_chains):
    """One chain is begun, one gap lands, no record is lost, and the request is gone with the commit."""

    async def scenario():
        sink = chains() if keeps_chains else FakeSink()
        async with DeliveryRig(sink=sink) as rig:
            log = rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            log.append(40)
            stuck = asyncio.Event()

            async def hang():
                if P in rig.store.requests or step == "after commit":
                    stuck.set()
                    await asyncio.Event().wait()

            async def trap(at, _writer, _batch):
                if at == step and P in rig.store.requests:
                    await hang()

            async def after(at, _writer):
                if f"after {at}" == step and P in rig.store.requests:
                    await hang()

            async def before_commit(commits):
                if step == "commit" and commits[0].fulfils is not None:
                    await hang()

            async def after_commit(commits):
                if step == "after commit" and commits[0].fulfils is not None:
                    await hang()

            sink.trap, sink.after = trap, after
            rig.store.before_commit, rig.store.after_commit = before_commit, after_commit
            rig.requests.put(P, position, new_chain=new_chain)
            with contextlib.suppress(TimeoutError):  # not every path has every step
                async with timeout(30):
                    await stuck.wait()
            rig.claims[P].lease.set("lost")
            sink.trap = sink.after = rig.store.before_commit = rig.store.after_commit = None
            await rig.deliveries.lost([P])
            await rig.claim(P, epoch=2)
            await carried_out(rig)
            await until(lambda: rig.status(P).position == 80)
            log.append(1)
            await until(lambda: rig.store.position(P) == 81)
            landed = sink.landed[P]
            assert list(range(position, 81)) == rig.landed(P)[position - 81 :]
            if not keeps_chains:
                return
            if new_chain or position < 40:
                assert 1 == len(landed.chains)
                assert (position, []) == (landed.started.position, landed.gaps)
                assert list(range(position, 81)) == landed.offsets
            else:
                assert [] == landed.chains
                known = [gap for gap in landed.gaps if gap.reason is GapReason.RESET]
                skipped = {offset for gap in known for offset in range(gap.start, gap.end)}
                assert set(range(81)) == {*landed.offsets, *skipped}
                assert len(set(landed.offsets)) == len(landed.offsets)

    run(scenario())


def test_a_request_that_is_replaced_while_it_is_carried_out_gives_way_to_the_newer_one():
    """The commit that would carry out the older one is refused, and nothing was delivered from there."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)

            async def before_commit(commits):
                if commits[0].fulfils is not None and commits[0].fulfils.id == "request-1":
                    rig.store.before_commit = None
                    rig.requests.put(P, 25)

            rig.store.before_commit = before_commit
            rig.requests.put(P, 10)
            await carried_out(rig)
            assert 25 == rig.store.position(P)
            await until(lambda: rig.store.position(P) == 40)
            assert list(range(25, 40)) == rig.landed(P)

    run(scenario())


def test_a_look_that_fails_is_taken_again():
    """ZooKeeper is away for a moment; the operator has long gone home. Delivery does not wait for it."""

    async def scenario():
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 30)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            rig.requests.find_faults = [NotConnected("away"), *[CoordinationError("no permission")] * 4]
            rig.requests.put(P, 10)
            await asyncio.sleep(1)
            log.append(10)
            await asyncio.sleep(2)
            assert (40, DeliveryState.RUNNING) == (rig.store.position(P), rig.status(P).state)
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 40)
            assert list(range(10, 40)) == rig.landed(P)[40:]
            assert DeliveryState.RUNNING is rig.status(P).state
            # that ZooKeeper is away is told of the session, once for all partitions
            assert rig.hooks.named("trouble").count((Trouble.REQUEST_LOOKUP_FAILED, P)) == 4

    run(scenario())


def test_a_stopped_partition_survives_looks_that_fail():
    """The next look is taken when it would be taken anyway."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing="stop")) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            rig.requests.find_faults = [CoordinationError("away")] * 3
            rig.requests.put(P, 10)
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 40)

    run(scenario())


def test_one_watch_serves_all_partitions_of_a_topic():
    """Thousands of partitions are a few topics."""

    async def scenario():
        async with DeliveryRig() as rig:
            for partition in (P, Q):
                rig.log(partition, 0, 10)
                await rig.claim(partition)
            await until(lambda: rig.store.position(P) == rig.store.position(Q) == 10)
            assert 1 == len(rig.requests.watchers["t"])
            await rig.deliveries.drain([P], 3)
            assert 1 == len(rig.requests.watchers["t"])
            rig.requests.put(Q, 3)
            await carried_out(rig, Q)
            await rig.deliveries.drain([Q], 3)
            assert [] == rig.requests.watchers["t"]

    run(scenario())


def test_a_stopped_partition_whose_lease_pauses_waits_with_the_request():
    """It must not look again and again in the meantime."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing="stop")) as rig:
            rig.log(P, 0, 40)
            claim = await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            checks = []
            check = claim.check
            claim.check = lambda: (checks.append(1), check())
            claim.lease.set("paused")
            rig.requests.put(P, 10)
            await asyncio.sleep(100)
            assert len(checks) < 20
            claim.lease.set("fresh")
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 40)

    run(scenario())


@pytest.mark.parametrize("position", [15, 60])
@pytest.mark.parametrize("keeps_chains", [True, False])
def test_a_request_that_is_cancelled_while_it_is_carried_out_loses_nothing(position, keeps_chains):
    """Its chain or its gap may be there already: every offset is landed or explained, and nothing is committed twice."""

    async def scenario():
        sink = chains() if keeps_chains else FakeSink(buffered=True, roll_s=5)
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)

            async def cancel(_commits):
                rig.store.requests.pop(P, None)

            rig.store.before_commit = cancel
            rig.requests.put(P, position)
            await until(lambda: P not in rig.store.requests)
            rig.log(P, 0, 80)
            await until(lambda: rig.store.position(P) == 80)
            newest = sink.landed[P]
            landed = {offset for chain in (*newest.chains, newest) for offset in chain.offsets}
            explained = {
                at for chain in (*newest.chains, newest) for gap in chain.gaps for at in range(gap.start, gap.end)
            }
            assert set(range(80)) <= landed | explained
            assert set(range(40)) <= landed

    run(scenario())


# -- a log that has lost its end


@pytest.mark.parametrize("position", [60, 45, 90])
@pytest.mark.parametrize("landed", [True, False])
def test_a_request_for_a_log_that_has_lost_its_end_begins_the_next_truncation(position, landed):
    """The remedy that the stop's advice names: what the log has from its end on are other records at the same offsets."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 80)
            if landed:
                await rig.claim(P)
                await until(lambda: rig.store.position(P) == 80)
                log.truncate(60)
            else:  # another member has committed that, and landed it in a folder of its own
                rig.store.put(P, 80)
                log.truncate(60)
                await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            request = rig.requests.put(P, position)
            await carried_out(rig)
            log.append(40)
            await until(lambda: rig.store.position(P) == 100)
            assert list(range(position, 100)) == rig.landed(P)
            chain = sink.landed[P]
            assert (Incarnation(TOPIC_CZXID, 1), "request", request.id) == (
                chain.incarnation,
                chain.started.reason,
                chain.started.request_id,
            )
            assert [80] * landed == [before.end for before in chain.chains]
            assert [(1, position)] == [(one.number, one.position) for one in rig.truncations.noted.values()]

            rig.requests.put(P, 50)
            await carried_out(rig)
            await until(lambda: rig.store.position(P) == 100)
            assert sink.landed[P].incarnation == Incarnation(TOPIC_CZXID, 1)  # the same records once more

    run(scenario())


@pytest.mark.parametrize("step", ["note", "start", "after start", "commit", "after commit"])
@pytest.mark.parametrize("growth", [0, 7, 1000])
def test_whoever_dies_while_such_a_request_is_carried_out_counts_one_truncation(step, growth):
    """Whatever the log has become by the time that somebody else carries it out."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings()) as rig:
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            log.truncate(60)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            stuck = asyncio.Event()

            async def hang():
                stuck.set()
                await asyncio.Event().wait()

            async def trap(at, _writer, _batch):
                if at == step or (step == "note" and at == "start"):
                    await hang()

            async def after(at, _writer):
                if f"after {at}" == step:
                    await hang()

            async def before_commit(_commits):
                if step == "commit":
                    await hang()

            async def after_commit(_commits):
                if step == "after commit":
                    await hang()

            sink.trap, sink.after = trap, after
            rig.store.before_commit, rig.store.after_commit = before_commit, after_commit
            rig.requests.put(P, 60)
            await stuck.wait()
            rig.claims[P].lease.set("lost")
            sink.trap = sink.after = rig.store.before_commit = rig.store.after_commit = None
            await rig.deliveries.lost([P])
            log.append(growth)
            await rig.claim(P, epoch=2)
            await carried_out(rig)
            log.append(1)
            await until(lambda: rig.store.position(P) == log.latest)
            assert list(range(60, log.latest)) == rig.landed(P)
            assert sink.landed[P].incarnation == Incarnation(TOPIC_CZXID, 1)
            assert [80] == [chain.end for chain in sink.landed[P].chains]

    run(scenario())


def test_a_truncation_that_cannot_be_noted_holds_the_partition_and_is_noted_later():
    """Nothing of the other records may land before the group knows."""

    async def scenario():
        sink = chains()
        async with DeliveryRig(sink=sink, settings=settings(on_above="nearest")) as rig:
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            rig.truncations.faults += [CoordinationError("not connected")] * 3
            log.truncate(60)
            log.append(0)
            await until(lambda: len(rig.truncations.faults) < 3)
            assert sink.landed[P].end == 80
            await until(lambda: rig.store.position(P) == 60)
            log.append(5)
            await until(lambda: rig.store.position(P) == 65)
            assert sink.landed[P].incarnation == Incarnation(TOPIC_CZXID, 1)

    run(scenario())
