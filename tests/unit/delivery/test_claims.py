# SPDX-License-Identifier: Apache-2.0
"""Claims that come and go while something is under way: drains, losses, successors, cancellation."""

import asyncio

import pytest

from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.errors import OwnershipLost, RetriableSinkError
from consumerd.model import TopicPartition
from consumerd.offsets.store import CommitOutcome
from consumerd.telemetry.hooks import Trouble
from tests.support.delivery import DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)

SLOW_COMMITS = DeliverySettings(commit_interval_ms=1_000_000)


def time():
    return asyncio.get_running_loop().time()


def hold(step, partition, gate, *, stubborn=False):
    """Return a trap that waits for a gate; a stubborn one does not care about being cancelled."""

    async def trap(at, writer, _):
        if at != step or writer.partition != partition:
            return
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    return trap


def test_a_drain_flushes_commits_and_ends_at_once():
    """The next owner starts exactly where we end, and does not wait for the file's time to roll."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=10_000), settings=SLOW_COMMITS) as rig:
            for partition in (P, Q):
                rig.store.put(partition, 0)
                rig.log(partition, 0, 30)
                await rig.claim(partition)
            await until(lambda: all(status.position == 30 for status in rig.deliveries.statuses))
            begun = time()
            await rig.deliveries.drain([P], 3)
            assert time() - begun < 0.1
            assert list(range(30)) == rig.landed(P)
            assert rig.store.commits == [(P, 1, 30)]
            assert rig.hooks.named("partition_released") == [(P,)]
            # what stays flows on
            assert [(one.partition, one.state) for one in rig.deliveries.statuses] == [(Q, DeliveryState.RUNNING)]
            rig.brokers.logs[Q].append(30)
            await until(lambda: [one.position for one in rig.deliveries.statuses] == [60])
            await rig.deliveries.drain([P], 3)  # there is nothing any more

    run(scenario())


def test_partitions_that_drain_together_are_committed_in_one_call():
    """A handover of a hundred partitions has three seconds."""

    async def scenario():
        partitions = [TopicPartition.modern("t", n) for n in range(100)]
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            for partition in partitions:
                rig.store.put(partition, 0)
                rig.log(partition, 0, 30)
                await rig.claim(partition)
            await until(lambda: all(status.position == 30 for status in rig.deliveries.statuses))
            await rig.deliveries.drain(partitions, 3)
            assert rig.store.calls == 1
            assert len(rig.store.commits) == 100

    run(scenario())


def test_a_drain_lets_the_write_under_way_finish():
    """Its records would be delivered twice otherwise."""

    async def scenario():
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            gate = asyncio.Event()
            rig.sink.trap = hold("write", P, gate)
            await rig.claim(P)
            await until(lambda: rig.brokers.feeds and rig.brokers.feeds[0].out)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(rig.deliveries.drain([P], 3))
                await asyncio.sleep(1)
                assert rig.status(P).state is DeliveryState.DRAINING
                gate.set()
            assert list(range(10)) == rig.landed(P)
            assert rig.store.commits == [(P, 1, 10)]
            assert rig.brokers.feeds[0].asked == 1

    run(scenario())


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_drain_ends_at_its_deadline_though_a_sink_hangs(stubborn):
    """A blocked sink must not keep a group from rebalancing; what the others have is committed all the same."""

    async def scenario():
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            for partition in (P, Q):
                rig.store.put(partition, 0)
                rig.log(partition, 0, 10)
                await rig.claim(partition)
            await until(lambda: rig.status(P).position == 10)
            gate = asyncio.Event()
            rig.sink.trap = hold("write", P, gate, stubborn=stubborn)
            rig.brokers.logs[P].append(10)
            rig.brokers.logs[Q].append(10)
            await until(lambda: rig.status(Q).position == 20)
            begun = time()
            await rig.deliveries.drain([P, Q], 3)
            assert time() - begun <= 3
            assert rig.hooks.named("trouble")[:1] == [(Trouble.DRAIN_ABANDONED, P)]
            assert sorted(rig.store.commits) == [(P, 1, 10), (Q, 1, 20)]
            gate.set()
            await asyncio.sleep(10)
            assert len(rig.store.commits) == 2

    run(scenario())


def test_a_drain_ends_at_its_deadline_though_the_store_hangs():
    """ZooKeeper that does not answer costs repetitions, not the rebalance."""

    async def scenario():
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 10)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 10)

            async def hang(_):
                await asyncio.Event().wait()

            rig.store.before_commit = hang
            begun = time()
            await rig.deliveries.drain([P], 3)
            assert time() - begun == pytest.approx(3)
            assert (Trouble.DRAIN_COMMIT_TIMED_OUT, None) in rig.hooks.named("trouble")
            assert not rig.deliveries.statuses

    run(scenario())


def test_a_drain_of_a_failing_partition_commits_what_is_safe():
    """A sink that is away does not come back for us: one more try, and the rest is the next owner's."""

    async def scenario():
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)

            async def trap(step, _, batch):
                if step == "flush" or (step == "write" and batch.start >= 20):
                    raise RetriableSinkError("away")

            rig.sink.trap = trap
            await rig.claim(P)
            await asyncio.sleep(60)
            begun = time()
            await rig.deliveries.drain([P], 3)
            assert time() - begun < 0.1
            assert rig.store.commits == [(P, 1, 20)]

    run(scenario())


def test_a_drain_of_a_paused_partition_waits_for_the_lease_and_no_longer_than_it_may():
    """Nothing may be published while ZooKeeper is silent."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True), settings=SLOW_COMMITS) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 10)
            claim = await rig.claim(P)
            await until(lambda: rig.status(P).position == 10)
            claim.lease.set("paused")
            begun = time()
            await rig.deliveries.drain([P], 3)
            assert 2 < time() - begun <= 3
            assert (rig.landed(P), rig.store.commits) == ([], [])

    run(scenario())


@pytest.mark.parametrize("stopped", [False, True])
def test_a_drain_before_the_first_record_waits_for_nothing(stopped):
    """A partition that is still starting, or stopped, has nothing to flush."""

    async def scenario():
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            rig.log(P, 0, 10)
            if stopped:
                rig.store.put_malformed(P, "x")
            else:
                rig.brokers.unreachable = RetriableSinkError("nobody there")
            await rig.claim(P)
            await asyncio.sleep(5)
            begun = time()
            await rig.deliveries.drain([P], 3)
            assert time() - begun < 0.1
            assert not rig.store.commits

    run(scenario())


def test_a_loss_during_a_flush_publishes_and_commits_nothing():
    """The session is over: whoever owns the partition now starts from what we committed before."""

    async def scenario():
        async with DeliveryRig(sink=FakeSink(buffered=True, roll_s=5)) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            gate = asyncio.Event()
            rig.sink.trap = hold("flush", P, gate)
            claim = await rig.claim(P)
            await asyncio.sleep(6)
            claim.lease.set("lost")
            await rig.deliveries.lost([P])
            rig.assert_clean()  # nothing runs for it any more
            gate.set()
            await asyncio.sleep(10)
            assert (rig.landed(P), rig.store.position(P)) == ([], 0)
            assert not rig.losses  # the group knows

    run(scenario())


def test_a_write_acknowledged_after_the_loss_is_never_committed():
    """A stalled call that comes back must not move what the next owner has committed since."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            gate = asyncio.Event()
            rig.sink.trap = hold("write", P, gate, stubborn=True)
            await rig.claim(P)
            await until(lambda: rig.brokers.feeds and rig.brokers.feeds[0].out)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(rig.deliveries.lost([P]))
                await asyncio.sleep(10)
                gate.set()
            await asyncio.sleep(10)
            assert list(range(10)) == rig.landed(P)  # the one call in flight, and no more
            assert not rig.store.commits

    run(scenario())


def test_a_successor_begins_when_its_predecessor_has_ended_to_the_last_line():
    """A new session may claim again within milliseconds, while the old writer still cleans up its files."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            rig.log(Q, 0, 30)
            gate = asyncio.Event()
            rig.sink.trap = hold("abandon", P, gate)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            await rig.claim(P, epoch=2)  # the end of the first one was never told
            await rig.claim(P, epoch=3)
            await rig.claim(Q, epoch=3)
            await until(lambda: rig.store.position(Q) == 30)  # the others do not wait
            assert rig.status(P).state is DeliveryState.STARTING
            assert len([writer for writer in rig.sink.writers if writer.partition == P]) == 1
            rig.brokers.logs[P].append(5)
            gate.set()
            await until(lambda: rig.store.position(P) == 35)
            assert list(range(35)) == rig.landed(P)
            assert rig.store.commits[-1] == (P, 3, 35)

    run(scenario())


def test_a_clean_up_that_hangs_is_given_up_for_the_successor():
    """A mount that is gone for good must not keep a partition from being consumed here ever again."""

    async def scenario():
        async with DeliveryRig(settings=DeliverySettings(commit_interval_ms=1000, abandon_timeout_ms=5000)) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            rig.sink.trap = hold("abandon", P, asyncio.Event())
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            begun = time()
            await rig.deliveries.lost([P])
            assert time() - begun == pytest.approx(5)
            rig.sink.open_writers.clear()
            rig.sink.trap = None
            await rig.claim(P, epoch=2)
            rig.brokers.logs[P].append(1)
            await until(lambda: rig.store.position(P) == 31)

    run(scenario())


def test_a_new_claim_takes_the_place_of_an_old_one_that_nobody_ended():
    """Whatever the order of events, the newest claim delivers."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            old = await rig.claim(P)
            await rig.deliveries.claimed([old])  # told twice: nothing happens
            await until(lambda: rig.store.position(P) == 30)
            await rig.claim(P, epoch=2)
            rig.brokers.logs[P].append(5)
            await until(lambda: rig.store.position(P) == 35)
            assert rig.store.commits[-1] == (P, 2, 35)
            assert list(range(35)) == rig.landed(P)

    run(scenario())


def test_a_session_that_ends_during_a_commit_drops_it_and_says_whose():
    """The commit belongs to the session of its claim."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            claim = await rig.claim(P)

            async def end_session(_):
                claim.lease.set("lost")

            rig.store.before_commit = end_session
            await until(lambda: rig.losses)
            assert rig.losses[0][0] is claim
            assert isinstance(rig.losses[0][1], OwnershipLost)
            assert rig.store.position(P) == 0
            assert not rig.deliveries.statuses

    run(scenario())


def test_a_late_answer_about_an_old_claim_does_not_end_its_successor():
    """A commit of the old session may be answered after the new one has claimed."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            await rig.claim(P)
            gate, asked = asyncio.Event(), asyncio.Event()

            async def wait(_):
                asked.set()
                await gate.wait()

            rig.store.before_commit = wait
            await asked.wait()
            await rig.deliveries.lost([P])
            await rig.claim(P, epoch=2)
            rig.store.outcomes[P] = [CommitOutcome.NOT_OWNER]
            rig.store.before_commit = None
            gate.set()
            rig.brokers.logs[P].append(5)
            await until(lambda: rig.store.position(P) == 35)
            assert not rig.losses
            assert rig.store.commits[-1] == (P, 2, 35)

    run(scenario())


def test_committing_on_request_does_not_wait_for_the_interval():
    """Before a planned restart."""

    async def scenario():
        async with DeliveryRig(settings=SLOW_COMMITS) as rig:
            rig.store.put(P, 0)
            rig.log(P, 0, 30)
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 30)
            await rig.deliveries.commit()
            assert rig.store.position(P) == 30

    run(scenario())


def test_nothing_more_is_fetched_while_a_write_is_pending():
    """Not asking is the back-pressure: a slow sink holds one batch of its partition, and nobody else's."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.log(P, 0, 100)
            rig.log(Q, 0, 100)
            rig.sink.trap = hold("write", P, asyncio.Event())
            await rig.claim(P)
            await rig.claim(Q)
            await until(lambda: rig.store.position(Q) == 100)
            feed = next(feed for feed in rig.brokers.feeds if feed.partition == P)
            assert (feed.asked, len(feed.out)) == (1, 1)

    run(scenario())


@pytest.mark.parametrize("ending", ["cancel", "lost", "drain"])
def test_wherever_it_is_ended_nothing_is_left_behind_and_nothing_unsafe_is_committed(ending):
    """Every await of a pipeline is a place where it may be cancelled: each is tried."""

    async def scenario(steps):
        sink = FakeSink(buffered=True, roll_s=0.05, keeps_chains=True)
        faults = [RetriableSinkError("away"), RetriableSinkError("away")]

        async def trap(step, writer, batch):
            if step == "write" and batch.start == 10 and faults:
                raise faults.pop()

        sink.trap = trap
        async with DeliveryRig(sink=sink, settings=DeliverySettings(commit_interval_ms=20)) as rig:
            rig.log(P, 0, 40)
            claim = await rig.claim(P)
            for _ in range(steps):
                await asyncio.sleep(0)
            if steps % 3 == 0:
                await asyncio.sleep(steps / 100)
            if ending == "lost":
                claim.lease.set("lost")
                await rig.deliveries.lost([P])
            elif ending == "drain":
                await rig.deliveries.drain([P], 3)
                assert rig.sink.landed[P].end in (None, rig.store.position(P))
        rig.assert_clean()
        landed = rig.landed(P)
        assert list(range(len(landed))) == landed
        assert (rig.store.position(P) or 0) <= len(landed)
        return len(landed)

    ends = {run(scenario(steps)) for steps in range(100)}
    assert len(ends) > 2, "the ends were not spread over the life of the partition"
