# SPDX-License-Identifier: Apache-2.0
"""How a claimed partition begins, from the claim to its first batch."""

import asyncio

import pytest

from consumerd.delivery.policy import OffsetPolicy, Reposition, StartAt, StartReason, Stop, StopCause
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.start import StartFinder
from consumerd.delivery.status import DeliveryState
from consumerd.errors import ConfigError, ConnectionLost, IncarnationChanged, RetriableSinkError
from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.offsets.store import CommitOutcome, LogTruncation
from consumerd.zk.port import NotConnected
from tests.support.delivery import (
    TOPIC_CZXID,
    DeliveryRig,
    FakeBrokers,
    FakeClaim,
    FakeLog,
    FakeSink,
    FakeStore,
    FakeTruncations,
)
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)


def settings(**policy):
    return DeliverySettings(commit_interval_ms=1000, offsets=OffsetPolicy(**policy))


def test_delivery_begins_at_the_committed_offset_and_commits_what_is_acknowledged():
    """The life of a partition when nothing goes wrong."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 50)
            log = rig.log(P, 0, 80)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            assert list(range(50, 80)) == rig.landed(P)
            log.append(5)
            await until(lambda: rig.store.position(P) == 85)
            status = rig.status(P)
            assert (
                status.state,
                status.position,
                status.acknowledged,
                status.committed,
                status.lag,
            ) == (DeliveryState.RUNNING, 85, 85, 85, 0)

    run(scenario())


def test_an_offset_committed_by_the_last_owner_after_our_claim_is_still_seen():
    """The owner before us commits up to its release: the offset is read after the claim, never before."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 10)
            rig.log(P, 0, 30)
            claim = rig.claim(P)  # not started yet
            rig.store.put(P, 20)
            await claim
            await until(lambda: rig.landed(P))
            assert rig.landed(P)[0] == 20

    run(scenario())


@pytest.mark.parametrize(("end", "first"), [("earliest", 100), ("latest", 200)])
def test_a_start_without_an_offset_is_committed_before_anything_is_fetched(end, first):
    """The end of a log moves: after a crash "latest" would be another place, and what lies between would be lost."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing=end)) as rig:
            log = rig.log(P, 100, 200)

            async def nothing_yet(_):
                assert not rig.brokers.feeds

            rig.store.before_commit = nothing_yet
            await rig.claim(P)
            await until(lambda: rig.brokers.feeds)
            rig.store.before_commit = None
            assert [(P, 1, first)] == rig.store.commits
            assert asyncio.get_running_loop().time() < 0.5
            log.append(3)
            await until(lambda: rig.store.position(P) == 203)
            assert list(range(first, 203)) == rig.landed(P)

    run(scenario())


def test_a_start_that_cannot_be_committed_stays_where_it_was_found():
    """The second try must not find a later end of the log."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing="latest")) as rig:
            log = rig.log(P, 0, 200)
            rig.store.outcomes[P] = [CommitOutcome.FAILED]
            await rig.claim(P)
            await until(lambda: rig.hooks.named("commit_failed"))
            log.append(10)
            await until(lambda: rig.store.position(P) == 210)
            assert list(range(200, 210)) == rig.landed(P)

    run(scenario())


def test_a_new_partition_of_a_known_topic_loses_nothing_to_latest():
    """Records come before the group notices that the topic has grown."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing="latest")) as rig:
            rig.log(P, 0, 20)
            rig.brokers.newborn.add(P)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(20)) == rig.landed(P)

    run(scenario())


def test_a_topic_made_again_starts_at_its_earliest_whatever_the_old_offset_was():
    """The old offset may well lie inside the new log."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing="latest")) as rig:
            rig.store.put(P, 7, mzxid=TOPIC_CZXID - 1)
            rig.log(P, 0, 20)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(20)) == rig.landed(P)

    run(scenario())


@pytest.mark.parametrize("newborn", [True, False])
@pytest.mark.parametrize("keeps_chains", [True, False])
@pytest.mark.parametrize("failures", [0, 2])
def test_what_a_new_log_has_lost_to_retention_before_it_was_read_is_told(newborn, keeps_chains, failures):
    """The group was away for longer than its records were kept; and told once, however often the start is tried."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=keeps_chains, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings(on_missing="latest")) as rig:
            if newborn:
                rig.brokers.newborn.add(P)
            else:
                rig.store.put(P, 7, mzxid=TOPIC_CZXID - 1)
            rig.log(P, 12, 20)
            rig.store.outcomes[P] = [CommitOutcome.FAILED] * failures
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)
            assert 12 == rig.store.commits[0][2]
            assert list(range(12, 20)) == rig.landed(P)
            gap = Gap(0, 12, GapReason.RETENTION)
            assert [(P, gap)] == rig.hooks.named("gap_recorded")

    run(scenario())


def test_what_another_member_consumed_becomes_a_gap():
    """A Java member owned the partition in between."""

    async def scenario():
        sink = FakeSink(keeps_chains=True)
        sink.landed[P].end = 40
        async with DeliveryRig(sink=sink) as rig:
            rig.store.put(P, 60)
            rig.log(P, 0, 70)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 70)
            assert list(range(60, 70)) == rig.landed(P)
            assert sink.writers[0].reason == GapReason.CONSUMED_ELSEWHERE.value
            assert [(P, Gap(40, 60, GapReason.CONSUMED_ELSEWHERE))] == rig.hooks.named("gap_recorded")

    run(scenario())


def test_what_is_landed_and_not_committed_is_not_landed_again():
    """A crash between publishing and committing."""

    async def scenario():
        sink = FakeSink(keeps_chains=True)
        sink.landed[P].end = 40
        async with DeliveryRig(sink=sink) as rig:
            rig.store.put(P, 10)
            rig.log(P, 0, 50)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 50)
            assert list(range(40, 50)) == rig.landed(P)
            assert rig.hooks.named("committed_behind") == [(P, 10, 40)]

    run(scenario())


def test_a_landed_end_without_an_offset_is_committed_even_if_nothing_comes():
    """Lag of a group is read from its offset nodes, by us and by others."""

    async def scenario():
        sink = FakeSink(keeps_chains=True)
        sink.landed[P].end = 40
        async with DeliveryRig(sink=sink) as rig:
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)

    run(scenario())


def test_an_offset_that_is_no_number_stops_the_partition_until_it_is_one():
    """It is reported, it disturbs nobody else, and correcting the node is all that has to be done."""

    async def scenario():
        other = TopicPartition.modern("t", 1)
        async with DeliveryRig() as rig:
            rig.store.put_malformed(P, "12x")
            rig.log(P, 0, 20)
            rig.log(other, 0, 20)
            await rig.claim(P)
            await rig.claim(other)
            await until(lambda: rig.store.position(other) == 20)
            assert rig.status(P).state is DeliveryState.STOPPED
            assert "12x" in rig.status(P).reason
            assert rig.hooks.named("partition_stopped") == [(P, "malformed offset")]
            rig.store.put(P, 12)
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(12, 20)) == rig.landed(P)
            assert rig.hooks.named("partition_resumed") == [(P,)]
            assert rig.status(P).state is DeliveryState.RUNNING

    run(scenario())


def test_an_offset_that_is_no_number_can_be_removed():
    """It is what the advice says: the partition is then one without an offset."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put_malformed(P, "12x")
            rig.log(P, 0, 20)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            del rig.store.stored[P]
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(20)) == rig.landed(P)

    run(scenario())


def test_on_missing_stop_waits_for_an_operator():
    """Stopped, visible, and one commit away from going on."""

    async def scenario():
        async with DeliveryRig(settings=settings(on_missing="stop")) as rig:
            rig.log(P, 0, 20)
            await rig.claim(P)
            await asyncio.sleep(100)
            assert rig.status(P).state is DeliveryState.STOPPED
            assert rig.hooks.named("partition_stopped") == [(P, "no offset")]
            assert rig.store.position(P) is None
            rig.store.put(P, 15)
            await until(lambda: rig.store.position(P) == 20)
            assert list(range(15, 20)) == rig.landed(P)

    run(scenario())


def test_brokers_and_stores_that_are_away_delay_the_start_only():
    """A daemon may be started before its cluster."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 20)
            rig.store.load_faults += [NotConnected("no connection")] * 3
            rig.brokers.unreachable = ConnectionLost("refused")
            await rig.claim(P)
            await asyncio.sleep(20)
            assert rig.status(P).state is DeliveryState.FAILING
            assert rig.status(P).reason == "refused"
            rig.brokers.unreachable = None
            await until(lambda: rig.store.position(P) == 20)
            assert rig.status(P).state is DeliveryState.RUNNING
            assert rig.hooks.named("partition_resumed") == [(P,)]

    run(scenario())


def test_a_topic_made_again_between_claim_and_start_is_reported_and_not_read():
    """Its offset was read under the old topic's name."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 5)
            rig.log(P, 0, 20)
            claim = await rig.claim(P)
            claim.lease.set("changed")
            await until(lambda: rig.losses)
            assert rig.losses[0][0] is claim
            assert isinstance(rig.losses[0][1], IncarnationChanged)
            assert not rig.brokers.feeds
            assert not rig.deliveries.statuses

    run(scenario())


def test_a_sink_that_refuses_to_open_stops_the_partition_until_it_does_not():
    """An unmounted volume is mounted, and the partition goes on by itself, though no record comes to prove it."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 20)
            rig.log(P, 0, 20)
            rig.sink.open_faults += [ConfigError("not our path")] * 2
            await rig.claim(P)
            await asyncio.sleep(15)
            assert rig.status(P).state is DeliveryState.STOPPED
            await asyncio.sleep(30)
            assert rig.status(P).state is DeliveryState.RUNNING
            assert rig.hooks.named("partition_stopped") == [(P, "rejected")]

    run(scenario())


def test_a_sink_that_cannot_open_yet_is_tried_again():
    """A server that is away comes back."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 20)
            rig.sink.open_faults += [RetriableSinkError("away")] * 5
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)

    run(scenario())


@pytest.mark.parametrize("resume", [None, 900, 960], ids=["no chain", "below the open transaction", "within it"])
@pytest.mark.parametrize("on_above", ["stop", "nearest", "earliest"])
def test_a_position_beyond_an_open_transaction_is_in_the_log(on_above, resume):
    """A Java member reads uncommitted and commits past it: the log has lost nothing, and no policy may act."""

    async def scenario():
        store, brokers = FakeStore(), FakeBrokers()
        store.put(P, 1000)
        brokers.logs[P] = FakeLog(0, 950)  # read_committed: a transaction is open since 950
        brokers.logs[P].high_watermark = 1200
        starts = StartFinder(store, FakeTruncations(), brokers, brokers, brokers, OffsetPolicy(on_above=on_above))

        plan = await starts.find(FakeClaim(P), Writer(resume))

        assert isinstance(plan, StartAt)
        assert (1000, 950) == (plan.position, plan.stable_end)
        assert (False, 0) == (plan.new_chain, plan.truncation)
        assert await starts.holds(P, 1000)
        assert not await starts.holds(P, 1201)

    run(scenario())


def test_a_position_above_the_high_watermark_is_above_the_log_beside_an_open_transaction():
    """The transaction explains positions up to the end of the log, and none beyond it."""

    async def scenario():
        store, brokers = FakeStore(), FakeBrokers()
        store.put(P, 1300)
        brokers.logs[P] = FakeLog(0, 950)
        brokers.logs[P].high_watermark = 1200

        plan = await StartFinder(
            store, FakeTruncations(), brokers, brokers, brokers, OffsetPolicy(on_above="stop")
        ).find(FakeClaim(P), Writer(None))

        assert isinstance(plan, Stop)
        assert StopCause.ABOVE_LOG is plan.cause

    run(scenario())


@pytest.mark.parametrize("resume", [40, 60], ids=["below the log's end", "at the log's end"])
@pytest.mark.parametrize(("on_above", "target"), [("nearest", 60), ("latest", 60), ("earliest", 10)])
def test_what_has_landed_and_the_log_still_holds_is_not_read_again_whatever_the_policy(on_above, target, resume):
    """Another member had committed more, and a new leader has lost that. The other may have landed it, in a folder of its
    own: what the log holds there now are other records, of the next truncation.
    """

    async def scenario():
        store, truncations, brokers = FakeStore(), FakeTruncations(), FakeBrokers()
        store.put(P, 100)
        brokers.logs[P] = FakeLog(10, 60)

        plan = await StartFinder(store, truncations, brokers, brokers, brokers, OffsetPolicy(on_above=on_above)).find(
            FakeClaim(P), Writer(resume)
        )

        assert isinstance(plan, StartAt)
        position = max(resume, target)
        assert (position, False, 1) == (plan.position, plan.new_chain, plan.truncation)
        assert plan.gap == (Gap(resume, target, GapReason.RESET) if target > resume else None)
        assert [position] == [one.position for one in truncations.noted.values()]

    run(scenario())


class Writer:
    """What a start asks of a sink's writer."""

    request_id = None

    def __init__(self, resume):
        self.resume_position = resume


class ChainWriter(Writer):
    """A writer with a chain of a truncation."""

    def __init__(self, resume, truncation):
        super().__init__(resume)
        self.truncation = truncation

    async def find_missing(self, position):
        raise AssertionError(f"asked what is missing below {position} of a chain that counts no more")


@pytest.mark.parametrize(
    ("resume", "committed", "position"), [(40, 45, 45), (50, 45, 45), (40, None, 30)], ids=["ahead", "behind", "void"]
)
def test_a_folder_that_has_seen_nothing_of_an_election_begins_a_chain_of_its_truncation(resume, committed, position):
    """Another replica with a folder of its own has met it: where this one's chain ends says nothing about the log as it is."""

    async def scenario():
        store, truncations, brokers = FakeStore(), FakeTruncations(), FakeBrokers()
        brokers.logs[P] = FakeLog(0, 60)
        store.put(P, 100)
        voided = store.stored[P].token.mark
        truncations.noted[P, TOPIC_CZXID] = LogTruncation(number=1, position=30, voids=voided)
        if committed is not None:
            store.put(P, committed)
        starts = StartFinder(store, truncations, brokers, brokers, brokers, OffsetPolicy())

        plan = await starts.find(FakeClaim(P), ChainWriter(resume, 0))

        assert isinstance(plan, StartAt)
        assert (position, committed, 1) == (plan.position, plan.committed, plan.truncation)
        assert (None, False) == (plan.gap, plan.new_chain)

    run(scenario())


def test_a_chain_that_knows_of_more_elections_than_zookeeper_is_believed():
    """ZooKeeper was restored from a copy: the number is never given to other records."""

    async def scenario():
        store, truncations, brokers = FakeStore(), FakeTruncations(), FakeBrokers()
        brokers.logs[P] = FakeLog(0, 60)
        store.put(P, 55)
        starts = StartFinder(store, truncations, brokers, brokers, brokers, OffsetPolicy(on_above="nearest"))
        plan = await starts.find(FakeClaim(P), ChainWriter(55, 3))
        assert (55, 3) == (plan.position, plan.truncation)

        brokers.logs[P].truncate(50)
        move = Reposition(position=50, reason=StartReason.ON_ABOVE, gaps=())
        plan = await starts.find(FakeClaim(P), ChainWriter(55, 3), move=move)
        assert (50, 4) == (plan.position, plan.truncation)
        assert [4] == [one.number for one in truncations.noted.values()]

    run(scenario())


def test_a_position_above_the_log_moves_to_the_end_that_the_second_look_has_found():
    """A new leader that still trails at the first look: what it has by then is not read again."""

    async def scenario():
        store, brokers = FakeStore(), FakeBrokers()
        store.put(P, 100)
        log = brokers.logs[P] = FakeLog(10, 60)
        starts = StartFinder(store, FakeTruncations(), brokers, brokers, brokers, OffsetPolicy(on_above="nearest"))
        async with asyncio.TaskGroup() as tasks:
            finding = tasks.create_task(starts.find(FakeClaim(P), Writer(None)))
            await asyncio.sleep(0.1)
            log.append(20)

        plan = finding.result()
        assert isinstance(plan, StartAt)
        assert plan.position == 80
        assert plan.out_of_range is not None
        assert (plan.out_of_range.earliest, plan.out_of_range.latest) == (10, 80)

    run(scenario())


def test_a_chain_that_reaches_beyond_the_logs_end_is_left_for_a_new_one():
    """What it holds there are records that the log has lost: others will get these offsets."""

    async def scenario():
        store, brokers = FakeStore(), FakeBrokers()
        store.put(P, 100)
        brokers.logs[P] = FakeLog(10, 60)

        plan = await StartFinder(
            store, FakeTruncations(), brokers, brokers, brokers, OffsetPolicy(on_above="nearest")
        ).find(FakeClaim(P), Writer(61))

        assert isinstance(plan, StartAt)
        assert (60, False, 1) == (plan.position, plan.new_chain, plan.truncation)

    run(scenario())


def test_waiting_for_an_open_transaction_is_told_and_ends_with_it(logged):
    """Until it ends nothing is delivered; then delivery goes on at the position, in the same chain."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 1000)
            log = rig.log(P, 0, 950)
            log.high_watermark = 1200
            await rig.claim(P)
            await asyncio.sleep(5)
            assert [] == rig.landed(P)
            assert DeliveryState.RUNNING is rig.status(P).state
            [told] = [entry for entry in logged if entry["event"] == "open_transaction_awaited"]
            assert (1000, 950) == (told["offset"], told["last_stable_offset"])
            log.append(250)
            await until(lambda: rig.store.position(P) == 1200)
            assert list(range(1000, 1200)) == rig.landed(P)

    run(scenario())
