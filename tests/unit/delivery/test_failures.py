# SPDX-License-Identifier: Apache-2.0
"""What a partition can suffer while it is delivered, and that the others do not notice."""

import asyncio

import pytest

from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.errors import (
    ConnectionLost,
    CorruptMessageError,
    IncarnationChanged,
    OffsetOutOfRange,
    OwnershipLost,
    PermanentSinkError,
    RecordTooLarge,
    RetriableSinkError,
    SinkClosed,
)
from consumerd.model import Claim, Fault, Gap, GapReason, Incarnation, TopicPartition
from consumerd.sinks.base import DirectWriter, Start
from consumerd.telemetry.hooks import Trouble
from consumerd.wire.records import RecordBatch
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


def settings(**policy):
    return DeliverySettings(commit_interval_ms=1000, offsets=OffsetPolicy(**policy))


def failing(partition, step, error, times):
    """Return a trap that raises at the first calls for one partition."""
    left = [times]

    async def trap(at, writer, _):
        if at == step and writer.partition == partition and left[0] > 0:
            left[0] -= 1
            raise error

    return trap


def test_a_write_that_fails_for_a_while_is_made_again_and_only_its_partition_waits(logged):
    """A full disk or a server that is away loses nothing, repeats nothing and stops nobody else."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 30)
            rig.log(Q, 0, 30)
            rig.sink.trap = failing(P, "write", RetriableSinkError("disk full"), 8)
            await rig.claim(P)
            await rig.claim(Q)
            await until(lambda: rig.store.position(Q) == 30)
            assert rig.status(P).state is DeliveryState.FAILING
            assert rig.status(P).reason == "disk full"
            assert rig.status(P).since < 1
            await until(lambda: rig.store.position(P) == 30)
            assert list(range(30)) == rig.landed(P)
            assert rig.hooks.named("sink_failed") == [(P, True)] * 8
            assert rig.hooks.named("partition_resumed") == [(P,)]
            assert rig.status(P).state is DeliveryState.RUNNING

    run(scenario())
    told = [entry["event"] for entry in logged if entry["partition"] == "0"]
    assert told == ["delivery_started", "delivery_failing", "delivery_recovered"]


def test_a_file_that_failed_in_the_middle_is_fetched_again_from_where_the_sink_says():
    """Its records are gone with it: nothing unacknowledged is lost by that."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=5)) as rig:
            log = rig.log(P, 0, 30)
            failed = []

            async def trap(step, writer, _):
                if step == "flush" and not failed:
                    failed.append(writer.position)
                    writer.drop()
                    raise RetriableSinkError("fsync failed", resume_position=writer.safe)

            rig.sink.trap = trap
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            log.append(5)
            await until(lambda: rig.store.position(P) == 35)
            assert failed == [30]
            assert list(range(35)) == rig.landed(P)

    run(scenario())


def test_what_is_safe_is_not_written_again_though_the_sink_asks_for_it():
    """A sink that names a position below what it has acknowledged is mistaken: it has those records."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=5)) as rig:
            log = rig.log(P, 0, 20)
            failed = []

            async def trap(step, writer, _):
                if step == "write" and writer.safe == 20 and not failed:
                    failed.append(writer.position)
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=5)

            rig.sink.trap = trap
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)
            log.append(10)
            await until(lambda: rig.store.position(P) == 30)
            assert failed == [20]
            assert list(range(30)) == rig.landed(P)

    run(scenario())


def test_a_file_that_fails_again_and_again_is_told_once_and_tried_ever_less_often(logged):
    """A full disk takes the first bytes of every file: that is no recovery, and must not fill the log."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=1)) as rig:
            rig.log(P, 0, 30)
            failed = []

            async def trap(step, writer, _):
                if step == "flush" and len(failed) < 12:
                    failed.append(asyncio.get_running_loop().time())
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            rig.sink.trap = trap
            await rig.claim(P)
            await until(lambda: len(failed) == 11, within_s=300)
            assert rig.status(P).state is DeliveryState.FAILING
            assert failed[-1] - failed[-2] > 5
            await until(lambda: rig.store.position(P) == 30, within_s=60)
            assert rig.status(P).state is DeliveryState.RUNNING
            assert list(range(30)) == rig.landed(P)

    run(scenario())
    told = [entry["event"] for entry in logged if entry.get("partition") == "0"]
    assert told == ["delivery_started", "delivery_failing", "delivery_recovered"]


def test_an_acknowledgement_beyond_what_was_read_moves_the_feed_on():
    """An earlier writer of ours had published more: those records are there already."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 50)

            async def trap(step, writer, batch):
                if step == "write" and batch.start == 10:
                    raise RetriableSinkError("the name is taken", resume_position=40)

            rig.sink.trap = trap
            await rig.claim(P)
            await until(lambda: rig.sink.writers and rig.sink.writers[0].position == 10)
            writer = rig.sink.writers[0]
            writer.position = writer.safe = 40
            await until(lambda: rig.store.position(P) == 50)
            assert [*range(10), *range(40, 50)] == rig.landed(P)

    run(scenario())


def test_where_another_writer_has_landed_all_that_is_there_its_end_is_committed_though_nothing_follows():
    """Without records that follow nothing else would ask the writer how far it is."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=5)) as rig:
            rig.log(P, 0, 45)
            robbed = []

            async def trap(step, writer, _):
                if step == "flush" and not robbed:
                    robbed.append(writer.position)
                    writer.drop()
                    writer.position = writer.safe = 45
                    raise RetriableSinkError("another writer has taken position 0", resume_position=45)

            rig.sink.trap = trap
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 45, within_s=30)
            assert rig.status(P).state is DeliveryState.RUNNING

    run(scenario())


@pytest.mark.parametrize(("buffered", "already"), [(False, 40), (True, 70)])
def test_records_that_an_earlier_writer_had_landed_are_not_read_again(buffered, already):
    """A writer that was thought dead had published one more file: its end is acknowledged, and delivery goes on there."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=buffered, roll_s=5)) as rig:
            log = rig.log(P, 0, 10)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 10)
            rig.sink.writers[0].already_landed = already

            async def trap(step, _, __):
                if step == "flush" and log.latest == 50:
                    log.append(30)

            rig.sink.trap = trap
            log.append(40 if buffered else 70)
            await until(lambda: rig.store.position(P) == 80)
            read_before = list(range(50 if buffered else 20))
            assert [*read_before, *range(already, 80)] == rig.landed(P)

    run(scenario())


def test_a_batch_that_does_not_follow_the_last_one_is_not_delivered():
    """Whatever goes wrong below, positions stay contiguous: the feed is moved to where it should be."""

    async def scenario():
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 10)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 10)
            rig.brokers.feeds[0].position = 15
            log.append(20)
            await until(lambda: rig.store.position(P) == 30)
            assert list(range(30)) == rig.landed(P)

    run(scenario())


def test_a_clean_up_that_fails_ends_no_other_partition(logged):
    """A sink that cannot remove its leftovers is logged, and the partition is delivered again all the same."""

    async def scenario():
        async with DeliveryRig() as rig:
            for partition in (P, Q):
                rig.log(partition, 0, 10)
                await rig.claim(partition)
            await until(lambda: rig.store.position(P) == 10)
            rig.sink.trap = failing(P, "abandon", OSError("read-only"), 1)
            await rig.deliveries.drain([P], 3)
            rig.sink.open_writers.clear()
            rig.brokers.logs[P].append(5)
            await rig.claim(P, epoch=2)
            await until(lambda: rig.store.position(P) == 15)
            assert rig.status(Q).state is DeliveryState.RUNNING
            assert rig.hooks.named("trouble") == [(Trouble.ABANDON_FAILED, P)]
            rig.sink.open_writers[Q] = 1

    run(scenario())
    assert "abandon_failed" in [entry["event"] for entry in logged]


def test_a_partition_whose_range_no_broker_knows_waits():
    """Its leader may be away while others answer."""

    async def scenario():
        async with DeliveryRig() as rig:
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            rig.log(P, 0, 10)
            await until(lambda: rig.store.position(P) == 10)

    run(scenario())


@pytest.mark.parametrize("error", [PermanentSinkError("refused"), ValueError("a bug")])
def test_what_a_sink_refuses_stops_that_partition_with_everything_before_it_safe(error):
    """A poison record, or a fault in a sink's own code, is one partition's trouble."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True)) as rig:
            rig.log(P, 0, 30)
            rig.log(Q, 0, 30)

            async def trap(step, writer, batch):
                if step == "write" and writer.partition == P and batch.start == 20:
                    raise error

            rig.sink.trap = trap
            await rig.claim(P)
            await rig.claim(Q)
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(20)) == rig.landed(P)
            assert rig.status(P).state is DeliveryState.STOPPED
            assert rig.hooks.named("partition_stopped") == [(P, "rejected")]
            await asyncio.sleep(100)  # looked at again and again, told once
            assert rig.status(P).state is DeliveryState.STOPPED
            assert rig.hooks.named("partition_stopped") == [(P, "rejected")]
            assert rig.status(Q).state is DeliveryState.RUNNING
            rig.sink.trap = None
            await until(lambda: rig.store.position(P) == 30)
            assert list(range(30)) == rig.landed(P)
            assert rig.hooks.named("partition_resumed") == [(P,)]

    run(scenario())


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (CorruptMessageError("bad checksum", partition=P, offset=20), "corrupt"),
        (RecordTooLarge(P, 20, 1000, 2000), "oversized"),
    ],
)
def test_an_unreadable_record_stops_that_partition_and_what_came_before_is_flushed_at_once(error, cause):
    """The file in progress does not wait for its time to roll: nothing more will come to it."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=10_000)) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[20] = error
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(20)) == rig.landed(P)
            assert rig.hooks.named("partition_stopped") == [(P, cause)]
            assert rig.status(P).reason.startswith(str(error))
            log.lasting_faults.clear()  # another replica, whose copy is whole, leads now
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING)
            await rig.deliveries.drain([P], 3)
            assert list(range(40)) == rig.landed(P)

    run(scenario())


def test_a_feed_that_fails_for_a_while_is_asked_again_and_the_open_file_survives():
    """Brokers come and go; records that were read stay read."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=60)) as rig:
            log = rig.log(P, 0, 30)
            log.faults[10] = [ConnectionLost("reset"), ConnectionLost("reset")]
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            assert len(rig.sink.writers) == 1
            assert list(range(30)) == rig.landed(P)

    run(scenario())


def test_a_quiet_partition_recovers_without_a_record_to_prove_it():
    """A status that says "failing" for ever after one lost connection is a lie."""

    async def scenario():
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 0)
            log.faults[0] = [ConnectionLost("reset")]
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            await until(lambda: rig.status(P).state is DeliveryState.RUNNING, within_s=60)

    run(scenario())


def test_the_file_is_rolled_at_its_time_though_the_partition_is_quiet():
    """A quiet topic must land too."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=5)) as rig:
            rig.log(P, 0, 3)
            await rig.claim(P)
            await until(lambda: rig.landed(P))
            assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.5)

    run(scenario())


def test_a_lease_that_pauses_holds_the_batch_and_repeats_nothing():
    """ZooKeeper is silent for a moment: the position is kept, nothing visible happens, then it goes on."""

    async def scenario():
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 10)
            claim = await rig.claim(P)
            await until(lambda: rig.store.position(P) == 10)
            claim.lease.set("paused")
            log.append(10)
            await asyncio.sleep(30)
            assert rig.status(P).state is DeliveryState.PAUSED
            assert list(range(10)) == rig.landed(P)
            claim.lease.set("fresh")
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(20)) == rig.landed(P)
            assert len(rig.sink.writers) == 1

    run(scenario())


@pytest.mark.parametrize(("error", "kind"), [(OwnershipLost("gone"), OwnershipLost), (None, IncarnationChanged)])
def test_a_claim_that_ends_in_a_write_ends_the_pipeline_and_is_reported(error, kind):
    """Nothing of what it still held is published or committed."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=5)) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            rig.sink.trap = failing(P, "flush", error or IncarnationChanged("made again"), 1)
            claim = await rig.claim(P)
            await until(lambda: rig.losses)
            assert rig.losses[0][0] is claim
            assert isinstance(rig.losses[0][1], kind)
            await asyncio.sleep(10)
            assert (rig.landed(P), rig.store.position(P)) == ([], 0)
            assert not rig.deliveries.statuses

    run(scenario())


def test_a_sink_whose_reader_has_gone_is_reported_once_for_all():
    """``consumerd run | head`` ends in order."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 30)
            rig.sink.trap = failing(P, "write", SinkClosed("EPIPE"), 1)
            await rig.claim(P)
            await until(lambda: rig.closings)
            await rig.deliveries.drain([P], 3)
            assert not rig.losses

    run(scenario())


@pytest.mark.parametrize(("choice", "first"), [("earliest", 100), ("nearest", 100), ("latest", 150)])
def test_below_the_log_the_policy_skips_and_the_gap_is_delivered(choice, first):
    """What retention took is recorded with the landed data, logged and counted."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_below=choice)) as rig:
            rig.store.put(P, 40)
            log = rig.log(P, 100, 150)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 150)
            log.append(1)
            await until(lambda: rig.store.position(P) == 151)
            assert list(range(first, 151)) == rig.landed(P)
            gaps = [Gap(40, 100, GapReason.RETENTION)]
            if first > 100:
                gaps.append(Gap(100, first, GapReason.RESET))
            assert gaps == rig.sink.landed[P].gaps
            assert [(P, gap) for gap in gaps] == rig.hooks.named("gap_recorded")
            assert [] == rig.hooks.named("gap_requested")
            assert rig.hooks.named("position_reset") == [(P, 40, first, "on_below")]

    run(scenario())


def test_retention_that_overtakes_a_slow_reader_is_a_gap_too():
    """It can happen at any moment, not only at the start."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_below="nearest")) as rig:
            log = rig.log(P, 0, 50)

            async def trap(step, writer, batch):
                if step == "write" and batch.start == 10:
                    log.earliest = 35

            rig.sink.trap = trap
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 50)
            assert [*range(20), *range(35, 50)] == rig.landed(P)
            assert [Gap(20, 35, GapReason.RETENTION)] == rig.sink.landed[P].gaps

    run(scenario())


@pytest.mark.parametrize(("choice", "first"), [("earliest", 100), ("nearest", 150), ("latest", 150)])
def test_above_the_log_the_policy_moves_back_and_commits_that_at_once(choice, first):
    """A sink that keeps no record of its own has nothing to contradict it."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_above=choice)) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 150)
            await rig.claim(P)
            await until(lambda: rig.store.commits)
            assert rig.store.commits[0] == (P, 1, first)
            log.append(10)
            await until(lambda: rig.store.position(P) == 160)
            assert list(range(first, 160)) == rig.landed(P)
            assert rig.hooks.named("position_reset") == [(P, 900, first, "on_above")]

    run(scenario())


def test_a_committed_position_above_the_log_is_looked_at_a_second_time():
    """A new leader may trail for a moment: believed at the first look, everything from there on would be read again."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(keeps_chains=True), settings=settings(on_above="earliest")) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 850)
            await rig.claim(P)
            await asyncio.sleep(0.1)
            log.append(100)  # the leader has caught up
            await until(lambda: rig.store.position(P) == 950)
            assert list(range(900, 950)) == rig.landed(P)
            assert rig.hooks.named("position_reset") == []

    run(scenario())


def test_a_log_that_lost_its_end_is_followed_by_a_new_chain_and_that_is_told(logged):
    """Files that end beyond the log cannot be followed by a lower offset in the same chain."""

    async def scenario():
        sink = FakeSink(keeps_chains=True)
        sink.landed[P].begin(Start(position=880, reason="committed"), Incarnation(TOPIC_CZXID))
        sink.landed[P].end = 900
        async with DeliveryRig(sink=sink, settings=settings(on_above="nearest")) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 150)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 150)
            log.append(5)
            await until(lambda: rig.store.position(P) == 155)
            assert list(range(150, 155)) == rig.landed(P)
            assert sink.landed[P].chains[0].end == 900
            assert sink.landed[P].started.truncation == 1
            assert rig.hooks.named("position_reset") == [(P, 900, 150, "on_above")]
            assert rig.hooks.named("trouble") == [(Trouble.LOG_TRUNCATED, P)]

    run(scenario())
    assert [entry["latest"] for entry in logged if entry["event"] == "log_truncated"] == [150]


def test_above_the_log_stop_says_what_to_do_after_a_restart_too():
    """Landed files end beyond the log, and nobody has said that what they hold may be contradicted."""

    async def scenario():
        sink = FakeSink(keeps_chains=True)
        sink.landed[P].begin(Start(position=880, reason="committed"), Incarnation(TOPIC_CZXID))
        sink.landed[P].end = 900
        async with DeliveryRig(sink=sink, settings=settings(on_above="stop")) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 150)
            for epoch in (1, 2):
                await rig.claim(P, epoch)
                await until(lambda: len(rig.hooks.named("partition_stopped")) == epoch)  # noqa: B023 - awaited at once
                assert "consumerd offsets set" in rig.status(P).reason
                await rig.deliveries.drain([P], 3)
            log.append(755)  # the log has passed it, and nobody has read what it holds below
            await rig.claim(P, 3)
            await until(lambda: len(rig.hooks.named("partition_stopped")) == 3)
            rig.requests.put(P, 150)
            await until(lambda: rig.store.position(P) == 905)
            assert list(range(150, 905)) == rig.landed(P)

    run(scenario())


@pytest.mark.parametrize("choice", ["stop", "earliest"])
def test_above_the_log_nothing_is_recorded_where_no_record_can_be(choice):
    """A chain that began above the log would have to be believed afterwards, whatever is committed then."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(keeps_chains=True), settings=settings(on_above=choice)) as rig:
            rig.store.put(P, 900)
            rig.log(P, 100, 150)
            await rig.claim(P)
            await asyncio.sleep(60)
            if choice == "stop":
                assert rig.hooks.named("partition_stopped") == [(P, "above log")]
                rig.store.put(P, 120)
                await until(lambda: rig.store.position(P) == 150)
            assert list(range(120 if choice == "stop" else 100, 150)) == rig.landed(P)
            assert rig.status(P).state is DeliveryState.RUNNING

    run(scenario())


@pytest.mark.parametrize(("choice", "first"), [("stop", None), ("nearest", 150), ("latest", 150), ("earliest", 120)])
def test_what_is_committed_above_the_log_was_consumed_by_nobody(choice, first):
    """Beyond landed files, too: offsets that never were are no gap that another member has left."""

    async def scenario():
        sink = FakeSink(keeps_chains=True)
        sink.landed[P].begin(Start(position=100, reason="committed"), Incarnation(TOPIC_CZXID))
        sink.landed[P].end = 120
        async with DeliveryRig(sink=sink, settings=settings(on_above=choice)) as rig:
            rig.store.put(P, 900)
            log = rig.log(P, 100, 150)
            await rig.claim(P)
            if choice == "stop":
                await until(lambda: rig.hooks.named("partition_stopped"))
                assert rig.hooks.named("gap_recorded") == []
                rig.store.put(P, 130)
                await until(lambda: rig.store.position(P) == 150)
                assert rig.hooks.named("gap_recorded") == [(P, Gap(120, 130, GapReason.CONSUMED_ELSEWHERE))]
                assert list(range(130, 150)) == rig.landed(P)
            else:
                await until(lambda: rig.store.position(P) == 150)
                log.append(5)
                await until(lambda: rig.store.position(P) == 155)
                gaps = [Gap(120, first, GapReason.RESET)] if first > 120 else []
                assert rig.hooks.named("gap_recorded") == [(P, gap) for gap in gaps]
                assert rig.hooks.named("position_reset") == [(P, 900, first, "on_above")]
                assert list(range(first, 155)) == rig.landed(P)
                # whoever committed that may have landed it elsewhere: what the log has there now are other records
                assert [120] == [chain.end for chain in sink.landed[P].chains]
                assert sink.landed[P].incarnation == Incarnation(TOPIC_CZXID, 1)

    run(scenario())


def test_out_of_range_stops_until_somebody_commits_an_offset_that_is_not():
    """The default: nothing is skipped that nobody has agreed to skip."""

    async def scenario():
        async with DeliveryRig(settings=settings()) as rig:
            rig.store.put(P, 40)
            rig.log(P, 100, 150)
            await rig.claim(P)
            await asyncio.sleep(100)
            assert rig.status(P).state is DeliveryState.STOPPED
            assert rig.hooks.named("partition_stopped") == [(P, "below log")]
            assert rig.store.position(P) == 40
            rig.store.put(P, 120)
            await until(lambda: rig.store.position(P) == 150)
            assert list(range(120, 150)) == rig.landed(P)
            assert rig.hooks.named("partition_resumed") == [(P,)]

    run(scenario())


def test_another_offset_out_of_range_stops_it_again():
    """An operator's mistake is shown, not obeyed."""

    async def scenario():
        async with DeliveryRig(settings=settings()) as rig:
            rig.store.put(P, 40)
            rig.log(P, 100, 150)
            await rig.claim(P)
            await until(lambda: rig.hooks.named("partition_stopped"))
            rig.store.put(P, 700)
            await asyncio.sleep(60)
            assert rig.hooks.named("partition_stopped") == [(P, "below log"), (P, "above log")]
            assert rig.status(P).state is DeliveryState.STOPPED

    run(scenario())


def test_an_out_of_range_that_is_none_any_more_is_tried_again():
    """A follower that has just become leader may trail for a moment."""

    async def scenario():
        async with DeliveryRig(settings=settings()) as rig:
            rig.store.put(P, 120)
            log = rig.log(P, 100, 150)
            log.faults[120] = [OffsetOutOfRange(P, 120, 100, 150)]
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 150)
            assert list(range(120, 150)) == rig.landed(P)
            assert not rig.hooks.named("partition_stopped")

    run(scenario())


def test_a_broker_that_hangs_is_shown_though_its_request_is_not_over_yet():
    """It takes half a minute until the request is given up: "running" until then is a lie."""

    async def scenario():
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 10)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 10)
            since = asyncio.get_running_loop().time()
            log.fault = Fault(since, "broker 1 has not answered a fetch yet")
            await asyncio.sleep(7)
            assert rig.status(P).state is DeliveryState.FAILING
            assert rig.status(P).since == since
            assert rig.status(P).reason == "broker 1 has not answered a fetch yet"
            log.fault = None
            assert (rig.status(P).state, rig.status(P).reason) == (DeliveryState.RUNNING, None)

    run(scenario())


class SteppingWriter(DirectWriter):
    """Makes one more record of its batch safe whenever it is told to, and never returns."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.finished_position = 0

    async def _wait(self, _batch: RecordBatch) -> None:
        await asyncio.Event().wait()


class SteppingSink:
    def __init__(self) -> None:
        self.writer = SteppingWriter()

    async def open(self, claim: Claim) -> SteppingWriter:
        return self.writer

    async def close(self) -> None:
        pass


def test_a_call_that_makes_progress_does_not_hang():
    """A batch of many requests to a slow server takes longer than the patience with one call."""

    async def scenario():
        sink = SteppingSink()
        async with DeliveryRig(destination=sink) as rig:
            rig.log(P, 0, 10)
            await rig.claim(P)
            for position in range(1, 6):
                await asyncio.sleep(8)
                assert rig.status(P).state is DeliveryState.RUNNING
                sink.writer.finished_position = position
            await until(lambda: rig.store.position(P) == 5)
            await asyncio.sleep(12)
            assert rig.status(P).state is DeliveryState.FAILING
            assert "has not answered write yet" in (rig.status(P).reason or "")

    run(scenario())


def test_a_destination_that_asks_for_a_pause_gets_it():
    """Longer than the longest backoff of our own; and a release does not wait for its end."""

    async def scenario():
        times: list[float] = []
        clock = asyncio.get_running_loop().time

        async def trap(step: str, _writer: object, _batch: object) -> None:
            if step == "write":
                times.append(clock())
                if len(times) < 3:
                    raise RetriableSinkError("busy", retry_after_s=60.0)

        async with DeliveryRig() as rig:
            rig.sink.trap = trap
            rig.log(P, 0, 10)
            await rig.claim(P)
            await until(lambda: len(times) == 2)
            assert 59.9 < times[1] - times[0] < 70.0
            assert rig.status(P).state is DeliveryState.FAILING
            begun = clock()
            await rig.deliveries.drain([P], 5)
            assert clock() - begun < 5
            assert len(times) == 2

    run(scenario())
