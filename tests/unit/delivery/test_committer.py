# SPDX-License-Identifier: Apache-2.0
"""The committer: newest positions, one call, one at a time."""

import asyncio

from consumerd.aio.timeouts import timeout
from consumerd.delivery.committer import Committer
from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.offsets.store import CommitOutcome
from consumerd.offsets.tracker import OffsetTracker
from tests.support.delivery import FakeClaim, FakeStore, RecordingHooks
from tests.support.virtual_time import run

A, B, C = (TopicPartition.modern("t", number) for number in range(3))


class Part:
    fulfils = None

    def __init__(self, partition, acknowledged=0, epoch=1):
        self.claim = FakeClaim(partition, epoch)
        self.tracker = OffsetTracker(0, committed=0)
        self.tracker.acknowledge(acknowledged)
        self.failures = []

    def note_commit(self, failure):
        self.failures.append(failure)


class Rig:
    def __init__(self, interval_s=5.0):
        self.store = FakeStore()
        self.hooks = RecordingHooks()
        self.not_owned = []
        self.committer = Committer(self.store, interval_s=interval_s, hooks=self.hooks, not_owner=self.not_owned.append)


async def run_for(committer, seconds):
    try:
        async with timeout(seconds):
            await committer.run()
    except TimeoutError:
        pass


def test_all_partitions_go_out_in_one_call_and_no_more_often_than_the_interval():
    """A commit a message is what overloads ZooKeeper."""
    rig = Rig()
    parts = [Part(A, 10), Part(B, 20)]
    for part in parts:
        rig.committer.add(part)
    run(run_for(rig.committer, 5.5))
    assert rig.store.calls == 1
    assert (rig.store.position(A), rig.store.position(B)) == (10, 20)


def test_what_did_not_move_is_not_committed_again():
    """An idle group writes nothing."""
    rig = Rig()
    rig.committer.add(Part(A, 10))
    run(run_for(rig.committer, 60))
    assert rig.store.calls == 1


def test_a_store_that_forgets_gets_idle_positions_again():
    """Kafka forgets a position that was not committed for a day."""
    rig = Rig()
    rig.store.rewrite_s = 60.0
    rig.committer.add(Part(A, 10))
    rig.committer.add(nothing := Part(B))
    nothing.tracker = OffsetTracker(0)
    idle = Part(C)
    idle.tracker = OffsetTracker(10, committed=10)
    rig.committer.add(idle)
    run(run_for(rig.committer, 6))
    # a group that begins to commit to Kafka as well must not wait for its first rewrite
    assert rig.store.commits.count((C, 1, 10)) == 1
    run(run_for(rig.committer, 130))
    assert [commit for commit in rig.store.commits if commit[0] == A] == [(A, 1, 10)] * 3
    assert {commit for commit in rig.store.commits if commit[0] == B} == {(B, 1, 0)}


def test_a_failed_commit_is_tried_again_with_the_newest_position():
    """Repeating the old one would only be overtaken."""
    rig = Rig()
    part = Part(A, 10)
    rig.committer.add(part)
    rig.store.outcomes[A] = [CommitOutcome.FAILED]

    async def scenario():
        await run_for(rig.committer, 5.5)
        part.tracker.acknowledge(30)
        await run_for(rig.committer, 5.5)

    run(scenario())
    assert rig.store.commits == [(A, 1, 30)]
    assert rig.hooks.named("commit_failed") == [(A, "failed")]
    assert part.tracker.pending is None


def test_a_store_that_cannot_be_reached_fails_all_and_is_asked_again():
    """An outage of ZooKeeper delays commits and ends nothing."""
    rig = Rig()
    rig.committer.add(Part(A, 10))

    async def unreachable(_):
        raise CoordinationError("no connection")

    async def scenario():
        rig.store.before_commit = unreachable
        await run_for(rig.committer, 11)
        rig.store.before_commit = None
        await run_for(rig.committer, 5.5)

    run(scenario())
    assert len(rig.hooks.named("commit_failed")) == 2
    assert rig.hooks.named("offset_committed") == [(A, 10)]


def test_a_partition_that_is_no_longer_ours_is_reported_and_its_position_not_noted():
    """Only the group can say what follows."""
    rig = Rig()
    part = Part(A, 10)
    rig.store.outcomes[A] = [CommitOutcome.NOT_OWNER]
    run(rig.committer.commit([part]))
    assert [part.claim] == rig.not_owned
    assert part.tracker.committed == 0


def test_a_foreign_write_is_counted_and_ours_is_noted():
    """Somebody resets offsets by hand while we run: our position stands, and it shows."""
    rig = Rig()
    part = Part(A, 10)
    rig.store.outcomes[A] = [CommitOutcome.FOREIGN_OVERWRITTEN]
    run(rig.committer.commit([part]))
    assert rig.hooks.named("foreign_commit") == [(A, 10)]
    assert part.tracker.committed == 10


def test_a_part_without_a_tracker_is_passed_over():
    """A claim that was taken away offers nothing any more."""
    rig = Rig()
    part = Part(A, 10)
    part.tracker = None
    run(rig.committer.commit([part]))
    assert rig.store.calls == 0
    assert not run(rig.committer.commit_at_once(part))


def test_a_position_is_noted_in_the_tracker_it_came_from():
    """A partition that was reset while a commit was under way must still commit where it was reset to."""
    rig = Rig()
    part = Part(A, 800)

    async def replace(_):
        if part.tracker.committed == 0:
            part.tracker = OffsetTracker(500, committed=None)

    rig.store.before_commit = replace

    async def scenario():
        await rig.committer.commit([part])
        assert part.tracker.pending == 500
        rig.store.before_commit = None
        await rig.committer.commit([part])

    run(scenario())
    assert rig.store.position(A) == 500


def test_those_in_a_hurry_share_a_call():
    """A thousand partitions that start at once must not commit one by one."""
    rig = Rig()
    parts = [Part(TopicPartition.modern("t", n), 7) for n in range(100)]

    async def scenario():
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(rig.committer.commit_at_once(part)) for part in parts]
        assert all(answer.result() for answer in answers)

    run(scenario())
    assert rig.store.calls <= 2
    assert len(rig.store.commits) == 100


def test_a_cancelled_hurry_leaves_the_others_theirs():
    """Whoever leads a shared call may be cancelled in the middle of it."""
    rig = Rig()
    first, second = Part(A, 7), Part(B, 8)
    held = asyncio.Event()

    async def hold(_):
        await held.wait()

    async def scenario():
        rig.store.before_commit = hold
        async with asyncio.TaskGroup() as tasks:
            leader = tasks.create_task(rig.committer.commit_at_once(first))
            await asyncio.sleep(0)
            follower = tasks.create_task(rig.committer.commit_at_once(second))
            await asyncio.sleep(1)
            leader.cancel()
            held.set()
        assert follower.result()

    run(scenario())
    assert rig.store.position(B) == 8


def test_without_auto_commit_it_commits_only_when_asked():
    """A program that commits by itself decides what is consumed."""
    rig = Rig()
    committer = Committer(rig.store, interval_s=1.0, hooks=rig.hooks, not_owner=rig.not_owned.append, auto_commit=False)
    part = Part(A, 10)
    committer.add(part)

    async def scenario():
        await run_for(committer, 60)
        assert rig.store.calls == 0
        await committer.commit([part])
        assert rig.store.position(A) == 10

    run(scenario())
