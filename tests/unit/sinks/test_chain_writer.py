# SPDX-License-Identifier: Apache-2.0
"""What a landed file promises, for every format: order of the system calls, chains, failures, races."""

import asyncio
import contextlib
import errno
import json
import threading
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import (
    ConfigError,
    CoordinationError,
    CorruptMessageError,
    IncarnationChanged,
    LeasePaused,
    OwnershipLost,
    PermanentSinkError,
    RetriableSinkError,
    SessionLost,
)
from consumerd.landing.publish import Outcome
from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.chain_writer import ChainWriter
from consumerd.sinks.jsonl import JsonlFormat
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.faulty_files import RecordingFileSystem, fail_at
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, SinkRig, run_of

FIRST = f"{0:020d}"


def gap_batch(start: int, end: int, reason: GapReason = GapReason.CONTROL):
    return build_batch(PARTITION, [], start=start, next_offset=end, gaps=[Gap(start, end, reason)])


async def land(writer: ChainWriter, position: int) -> int:
    await writer.write(run_of(position, position + 5))
    return await writer.flush()


async def test_nothing_is_acknowledged_before_a_file_is_published(rig: SinkRig):
    """The position that write returns may be committed at once."""
    writer = await rig.writer()

    assert await writer.write(run_of(0, 10)) == 0
    assert rig.offsets() == []
    assert await writer.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_next_claim_goes_on_at_the_chains_end(rig: SinkRig):
    """Files know better than the offset store what has landed."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()

    second = await rig.member().open(rig.claim())
    assert second.resume_position == 10
    await second.start(Start(position=10, reason="committed"))
    await second.write(run_of(10, 15))
    assert await second.flush() == 15
    assert rig.offsets() == list(range(15))


async def test_recovery_syncs_what_it_has_found(rig: SinkRig):
    """A name may be seen that its publisher died before making durable; what is believed must outlast a power cut."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()

    files = RecordingFileSystem()
    await rig.member(files).open(rig.claim())

    synced = [name for operation, name in files.calls if operation == "sync_folder"]
    assert synced[-4:] == ["chain=1", "partition=3", "topic=orders", "landing"]


async def test_empty_chain_resumes_at_its_origin(rig: SinkRig):
    """A member may die between opening a chain and its first file."""
    await rig.writer(42)

    assert (await rig.member().open(rig.claim())).resume_position == 42


async def test_file_rolls_by_size(rig: SinkRig):
    """Files must not grow for ever where nobody flushes."""
    rig.roll_bytes = 3000
    writer = await rig.writer()

    assert await writer.write(run_of(0, 10, size=100)) == 0
    assert await writer.write(run_of(10, 30, size=200)) == 30
    assert writer.deadline() is None
    assert rig.hooks.published[0][:2] == ("lake", 30)
    assert rig.offsets() == list(range(30))


async def test_deadline_is_counted_from_the_first_record(rig: SinkRig):
    """A trickle must not put publishing off for ever."""
    writer = await rig.writer()
    assert writer.deadline() is None

    await writer.write(run_of(0, 1))
    rig.clock.seconds += 0.6
    await writer.write(run_of(1, 2))
    assert writer.deadline() == 101.0
    await writer.flush()
    assert writer.deadline() is None


async def test_progress_without_records_lands_as_an_empty_file(rig: SinkRig):
    """Else a log that ends with control batches is never seen as consumed, and committed positions leave the chain."""
    writer = await rig.writer()

    assert await writer.write(gap_batch(0, 4)) == 0
    assert writer.deadline() == 101.0
    assert await writer.flush() == 4
    landed = rig.landing().partitions["orders", "3"]
    assert landed.problems == []
    assert [(file.position, file.next_offset, file.records) for file in landed.chains[0].files] == [(0, 4, [])]
    assert (await rig.member().open(rig.claim())).resume_position == 4


async def test_gaps_are_recorded_with_their_reasons(rig: SinkRig):
    """Whoever audits the files must see what was passed over and why."""
    writer = await rig.writer()
    await writer.write(gap_batch(0, 3, GapReason.RETENTION))
    await writer.write(run_of(3, 5))
    await writer.write(gap_batch(5, 6, GapReason.ABORTED))
    await writer.flush()

    gaps = rig.landing().partitions["orders", "3"].gaps
    assert rig.offsets() == [3, 4]
    assert gaps == [
        {"start": 0, "end": 3, "reason": "retention", "offsets": 3},
        {"start": 5, "end": 6, "reason": "aborted", "offsets": 1},
    ]


async def test_start_beyond_the_chains_end_is_recorded_in_the_next_file(rig: SinkRig):
    """A Java member consumed in between; the chain stays a chain, by name and by metadata."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()

    second = await rig.member().open(rig.claim())
    await second.start(Start(position=50, reason="committed"))
    assert await second.flush() == 50
    await second.write(run_of(50, 52))
    assert await second.flush() == 52
    landed = rig.landing().partitions["orders", "3"]
    assert landed.problems == []
    assert [file.position for file in landed.chains[0].files] == [0, 10]
    assert landed.gaps == [{"start": 10, "end": 50, "reason": "consumed elsewhere", "offsets": 40}]
    assert landed.offsets == [*range(10), 50, 51]


@pytest.mark.parametrize("reason", ["reset", "retention", "skipped", "corrupt"])
async def test_start_that_passes_records_over_lands_the_gap_at_once(rig: SinkRig, reason: str):
    """Its position is committed next: were the gap lost in a crash, the files would blame another member for it."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()

    second = await rig.member().open(rig.claim())
    await second.start(Start(position=50, reason=reason))
    await second.abandon()
    landed = rig.landing().partitions["orders", "3"]
    assert landed.problems == []
    assert [(file.position, file.next_offset) for file in landed.chains[0].files] == [(0, 10), (10, 50)]
    assert landed.gaps == [{"start": 10, "end": 50, "reason": reason, "offsets": 40}]


async def test_start_below_the_chains_end_is_refused(rig: SinkRig):
    """It would land records twice in one chain."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()

    second = await rig.member().open(rig.claim())
    with pytest.raises(PermanentSinkError, match="below 10, the end of"):
        await second.start(Start(position=5, reason="committed"))


async def test_topic_made_again_begins_a_new_chain(rig: SinkRig):
    """Its offsets mean other records."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()

    second = await rig.member().open(rig.claim(czxid=9))
    assert second.resume_position is None
    await second.start(Start(position=0, reason="incarnation"))
    await second.write(run_of(0, 4))
    await second.flush()
    landed = rig.landing().partitions["orders", "3"]
    assert landed.problems == []
    assert [(chain.number, chain.log, chain.end) for chain in landed.chains] == [
        (1, "7", 10),
        (2, "9", 4),
    ]
    assert landed.chains[1].record["reason"] == "incarnation"
    assert (await rig.member().open(rig.claim(czxid=9))).resume_position == 4


async def test_claim_of_an_older_incarnation_is_refused(rig: SinkRig):
    """It was made before the topic was deleted; its holder has not noticed yet, and does by asking."""
    await rig.writer(claim=rig.claim(czxid=9))
    claim = rig.claim(czxid=7)
    claim.failure = IncarnationChanged("the topic was made again")

    with pytest.raises(IncarnationChanged):
        await rig.member().open(claim)


async def test_chain_of_a_later_incarnation_than_the_topics_stops_the_partition(rig: SinkRig):
    """ZooKeeper was wiped and counts from the beginning: to claim the partition again would go on for ever."""
    await rig.writer(claim=rig.claim(czxid=9))

    with pytest.raises(PermanentSinkError, match="ZooKeeper has lost its data"):
        await rig.member().open(rig.claim(czxid=7))


async def test_batch_given_twice_is_taken_once(rig: SinkRig):
    """The pipeline may repeat a call whose failure it saw."""
    writer = await rig.writer()
    for _ in range(3):
        await writer.write(run_of(0, 10))
    await writer.flush()
    await writer.write(run_of(0, 10))

    assert await writer.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_batch_that_begins_too_far_on_sends_the_feed_back(rig: SinkRig):
    """Whatever goes wrong in front of a sink, a chain has no holes."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))

    with pytest.raises(RetriableSinkError) as caught:
        await writer.write(run_of(11, 12))
    assert caught.value.resume_position == 10
    await writer.write(run_of(10, 12))
    assert await writer.flush() == 12
    assert rig.offsets() == list(range(12))


async def test_batch_that_overlaps_is_cut(rig: SinkRig):
    """The same records may come in other batches the second time."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.write(run_of(5, 12))

    assert await writer.flush() == 12
    assert rig.offsets() == list(range(12))


@pytest.mark.parametrize("taken", [0, 10])
async def test_batch_that_cannot_be_encoded_leaves_the_chain_as_it_was(rig: SinkRig, taken: int):
    """A policy decides what follows; a file that ends where it begins would stop the chain for ever."""
    writer = await rig.writer()
    if taken:
        await writer.write(run_of(0, taken))
    unreadable = build_batch(PARTITION, [record(taken, headers=(("a", b"b"),))])
    unreadable.header_ends[0] -= 1
    with pytest.raises(CorruptMessageError):
        await writer.write(unreadable)

    assert await writer.flush() == taken
    await writer.write(gap_batch(taken, taken + 1, GapReason.SKIPPED))
    assert await writer.flush() == taken + 1
    assert rig.offsets() == list(range(taken))


async def test_lost_claim_opens_no_chain(rig: SinkRig):
    """The origin of a chain is its owner's to fix."""
    claim = rig.claim()
    writer = await rig.member().open(claim)
    claim.failure = OwnershipLost("gone")
    with pytest.raises(OwnershipLost):
        await writer.start(Start(position=5, reason="latest"))
    await writer.abandon()

    assert (await rig.member().open(rig.claim())).resume_position is None
    assert rig.landing().leftovers == []


async def test_chain_that_vanished_is_told_and_nothing_is_acknowledged(rig: SinkRig):
    """Somebody cleaned the folder, or the volume is another one: going on would make a hole."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    home = next(rig.path.glob("topic=*"))
    home.rename(rig.path / "away")
    with pytest.raises(RetriableSinkError, match="see whether the volume is mounted"):
        await writer.write(run_of(10, 20))
    with pytest.raises(RetriableSinkError, match="found no chain; was"):
        await writer.write(run_of(10, 20))
    assert await writer.flush() == 10

    (rig.path / "away").rename(home)
    await writer.write(run_of(10, 20))
    assert await writer.flush() == 20
    assert rig.offsets() == list(range(20))


async def test_hidden_leftovers_are_removed_by_the_next_claim(rig: SinkRig):
    """Crashes would fill the disk; and what is removed can never be published by whoever comes back."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    assert len(rig.landing().leftovers) == 1

    await rig.member().open(rig.claim())
    assert rig.landing().leftovers == []
    with pytest.raises(RetriableSinkError) as caught:
        await writer.flush()
    assert caught.value.resume_position == 0
    assert rig.offsets() == []


async def test_abandon_leaves_nothing(rig: SinkRig):
    """What is lost with a claim is somebody else's to fetch."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.abandon()
    await writer.abandon()

    assert rig.landing().leftovers == []
    assert rig.charged == 0
    assert rig.offsets() == []


@pytest.mark.parametrize("error", [OwnershipLost("gone"), IncarnationChanged("new"), SessionLost("expired")])
async def test_lost_claim_publishes_nothing(rig: SinkRig, error: CoordinationError):
    """Promise 3: files of a member that has lost its partition never appear."""
    claim = rig.claim()
    writer = await rig.writer(claim=claim)
    await writer.write(run_of(0, 10))
    claim.failure = error

    expected = IncarnationChanged if isinstance(error, IncarnationChanged) else OwnershipLost
    with pytest.raises(expected):
        await writer.flush()
    await writer.abandon()
    assert rig.offsets() == []
    assert rig.landing().leftovers == []


async def test_paused_lease_is_waited_for_and_nothing_is_written_twice(rig: SinkRig):
    """A moment without ZooKeeper costs no file."""
    claim = rig.claim()
    writer = await rig.writer(claim=claim)
    await writer.write(run_of(0, 10))
    claim.failure = LeasePaused("quiet")

    async with timeout(10), asyncio.TaskGroup() as group:
        flushed = group.create_task(writer.flush())
        await claim.paused.wait()
        assert rig.offsets() == []
        claim.resume()
    assert flushed.result() == 10
    assert rig.offsets() == list(range(10))


async def test_claim_that_cannot_be_confirmed_keeps_the_file(rig: SinkRig):
    """A failed read of ZooKeeper is no reason to fetch 128 MiB again."""
    claim = rig.claim()
    writer = await rig.writer(claim=claim)
    await writer.write(run_of(0, 10))
    claim.failure = CoordinationError("connection lost")
    for _ in range(2):
        with pytest.raises(RetriableSinkError, match="could not be confirmed") as caught:
            await writer.flush()
        assert caught.value.resume_position is None

    claim.failure = None
    assert await writer.write(run_of(10, 12)) == 10
    assert await writer.flush() == 12
    assert rig.offsets() == list(range(12))


async def test_name_taken_by_another_writer_moves_the_owner_behind_it(rig: SinkRig):
    """A stalled writer woke up between our claim and our link; its file stands, ours goes on behind it."""
    stalled, owner = await rig.writer(), await rig.writer()
    await owner.write(run_of(0, 10))
    await stalled.write(run_of(0, 6))
    await stalled.flush()

    with pytest.raises(RetriableSinkError, match="another writer") as caught:
        await owner.flush()
    assert caught.value.resume_position == 6
    await owner.write(run_of(6, 10))
    assert await owner.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_name_taken_while_nobody_can_tell_whose_it_is(rig: SinkRig):
    """The file is dropped by then; whoever is only told to try again would wait for records that are gone."""
    claim = rig.claim()
    stalled, owner = await rig.writer(), await rig.writer(claim=claim)
    await owner.write(run_of(0, 10))
    await stalled.write(run_of(0, 6))
    await stalled.flush()

    async def fail_at_second_look() -> None:
        claim.failure = CoordinationError("connection lost") if claim.confirmations == 2 else None

    claim.on_confirm = fail_at_second_look
    with pytest.raises(RetriableSinkError, match="could not be confirmed") as caught:
        await owner.flush()
    assert caught.value.resume_position == 0
    with pytest.raises(RetriableSinkError) as caught:
        await owner.write(run_of(0, 3))
    assert caught.value.resume_position == 6
    await owner.write(run_of(6, 10))
    assert await owner.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_name_taken_stops_who_is_no_longer_owner(rig: SinkRig):
    """It must not even look further."""
    claim = rig.claim()
    stalled = await rig.writer(claim=claim)
    owner = await rig.writer()
    await owner.write(run_of(0, 10))
    await stalled.write(run_of(0, 6))
    await owner.flush()

    async def lose_at_second_look() -> None:
        if claim.confirmations > 2:
            claim.failure = OwnershipLost("taken over")

    claim.on_confirm = lose_at_second_look
    with pytest.raises(OwnershipLost):
        await stalled.flush()
    assert rig.offsets() == list(range(10))


async def test_repeated_link_finds_its_own_file(rig: SinkRig):
    """NFS answers EEXIST to a link that it had done when its first answer was lost."""

    class ForgetfulServer(RecordingFileSystem):
        def link(self, source, target) -> None:
            super().link(source, target)
            if target.name.startswith(FIRST):
                raise FileExistsError(errno.EEXIST, "exists", str(target))

    writer = await rig.writer(files=ForgetfulServer())
    await writer.write(run_of(0, 10))

    assert await writer.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_two_openers_of_a_chain_agree(rig: SinkRig):
    """Both believe that the partition is theirs and new; one record of the chain can exist."""
    one, other = await rig.member().open(rig.claim()), await rig.member().open(rig.claim())
    await one.start(Start(position=20, reason="latest"))
    await other.start(Start(position=0, reason="earliest"))
    with pytest.raises(RetriableSinkError) as caught:
        await other.write(run_of(0, 5))

    assert caught.value.resume_position == 20
    assert await other.write(run_of(15, 25)) == 20
    assert await other.flush() == 25
    assert rig.offsets() == list(range(20, 25))
    assert rig.landing().partitions["orders", "3"].chains[0].record["reason"] == "latest"


async def test_each_failing_step_is_told_with_place_and_advice_and_then_made_good(rig: SinkRig):
    """A disk that was full once, at any step, costs a retry and no record."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    files.calls.clear()
    await writer.write(run_of(0, 5))
    await writer.flush()
    steps = len([call for call in files.calls if call[0] != "unlink"])
    position = 5

    for step in range(steps):
        files.before = lambda operation, name: None
        failing = fail_at(step, errno.ENOSPC)
        files.before = lambda operation, name, failing=failing: (
            None if operation == "unlink" else failing(operation, name)
        )
        with pytest.raises(RetriableSinkError, match="No space left on device; free space") as caught:
            await land(writer, position)
        assert str(rig.path) in str(caught.value)
        assert f"orders/3 at position {position}" in str(caught.value)
        assert caught.value.resume_position == position
        with contextlib.suppress(RetriableSinkError):
            position = await land(writer, position)
        position = await land(writer, writer.resume_position)

    assert rig.offsets() == list(range(position))


async def test_failed_fsync_never_reuses_the_file(rig: SinkRig):
    """After a failed fsync the page cache may hold pages that are clean and lost."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    await writer.write(run_of(0, 10))

    def fail(operation: str, name: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "I/O error")

    files.before = fail
    with pytest.raises(RetriableSinkError, match="check the disk") as caught:
        await writer.flush()
    assert caught.value.resume_position == 0
    files.before = lambda operation, name: None
    failed = [name for operation, name in files.calls if operation == "create"][-1]
    await writer.write(run_of(0, 10))
    assert await writer.flush() == 10
    assert [name for operation, name in files.calls if operation == "create" and ".tmp" in name][-1] != failed
    assert rig.landing().leftovers == []
    assert rig.offsets() == list(range(10))


async def test_link_that_happened_before_the_failure_is_found_out(rig: SinkRig):
    """The folder's sync failed: the file is there all the same and must not land again."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    await writer.write(run_of(0, 10))

    def fail(operation: str, name: str) -> None:
        if operation == "sync_folder" and name == "chain=1":
            raise OSError(errno.EIO, "I/O error")

    files.before = fail
    with pytest.raises(RetriableSinkError) as caught:
        await writer.flush()
    assert caught.value.resume_position == 0
    with pytest.raises(RetriableSinkError):
        await writer.write(run_of(0, 10))
    files.before = lambda operation, name: None
    assert await writer.write(run_of(0, 10)) == 10
    assert await writer.write(run_of(10, 11)) == 10
    assert await writer.flush() == 11
    assert rig.offsets() == list(range(11))


async def test_cancelled_publish_does_not_link_later(rig: SinkRig):
    """The drain's deadline has passed and the partition is given away: a thread that is late must not publish."""
    release, stalled = threading.Event(), threading.Event()

    def stall(operation: str, name: str) -> None:
        if operation == "sync" and name.startswith(f".{FIRST}.{rig.kind}"):
            stalled.set()
            release.wait(10)

    writer = await rig.writer(files=RecordingFileSystem(stall))
    await writer.write(run_of(0, 10))
    async with timeout(10), asyncio.TaskGroup() as group:
        flush = group.create_task(writer.flush())
        await asyncio.to_thread(stalled.wait)
        flush.cancel()
        abandon = group.create_task(writer.abandon())
        await asyncio.sleep(0)
        release.set()
        await abandon
    assert rig.offsets() == []
    assert rig.landing().leftovers == []


async def test_link_that_waits_for_a_thread_is_stopped_by_abandon(rig: SinkRig):
    """It was confirmed, and its thread came too late: the claim is somebody else's by then."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    file = writer._file
    assert file is not None
    await writer.abandon()

    assert file._hidden.publish() is Outcome.TAKEN
    assert rig.offsets() == []


async def test_path_of_another_group_or_cluster_is_refused(rig: SinkRig):
    """Two groups in one path would take each other's files for their own."""
    await rig.writer()
    rig.group = "other"
    with pytest.raises(ConfigError, match=r"belongs to group 'lake'.*'other'.*another path"):
        await rig.member().open(rig.claim())

    rig.group, rig.cluster = "lake", "3-1"
    with pytest.raises(ConfigError, match="of cluster 2-1700000000000"):
        await rig.member().open(rig.claim())


async def test_path_of_another_format_is_refused(rig: SinkRig):
    """A chain has one format; readers find it by name."""
    await rig.writer()
    rig.kind = "parquet" if rig.kind == "jsonl" else "jsonl"

    with pytest.raises(ConfigError, match="another path"):
        await rig.member().open(rig.claim())


async def test_path_that_lost_its_record_is_refused(rig: SinkRig):
    """A volume that was unmounted under us leaves an empty folder in its place."""
    sink = rig.member()
    await sink.open(rig.claim())
    (rig.path / "_consumerd.json").rename(rig.path / "moved")

    with pytest.raises(RetriableSinkError, match="mount the volume"):
        await sink.open(rig.claim())


async def test_unwritable_path_is_told_and_tried_again(rig: SinkRig):
    """A path may be made writable while the daemon waits."""
    sink = rig.member(RecordingFileSystem(fail_at(0, errno.EACCES)))
    with pytest.raises(RetriableSinkError, match="cannot use the path: Permission denied; let the daemon's user"):
        await sink.open(rig.claim())

    assert (await sink.open(rig.claim())).resume_position is None


async def test_damaged_chain_is_told_by_its_path(rig: SinkRig):
    """An operator must know which file to look at, and nothing may be written behind it."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    record = next(rig.path.rglob("_chain.json"))
    record.write_bytes(b"{")

    with pytest.raises(RetriableSinkError, match=r"_chain.json is damaged"):
        await rig.member().open(rig.claim())


async def test_file_moved_in_from_elsewhere_is_noticed(rig: SinkRig):
    """Its next_offset is another chain's."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    data = next(rig.path.rglob(f"{FIRST}.{rig.kind}"))
    data.rename(data.with_name(f"{77:020d}.{rig.kind}"))
    for meta in list(rig.path.rglob("_meta/*.json")):
        meta.rename(meta.with_name(meta.name.replace(FIRST, f"{77:020d}")))

    with pytest.raises(RetriableSinkError, match="its metadata is that of position 0"):
        await rig.member().open(rig.claim())


async def test_names_that_a_file_system_would_misread_are_encoded(rig: SinkRig):
    """Legacy topics may be called anything, and legacy partitions are on a broker."""
    from consumerd.model import BrokerId, PartitionKey, TopicPartition
    from tests.support.claims import StubClaim

    partition = TopicPartition("a/b=ü..", PartitionKey(3, BrokerId(12)))
    writer = await rig.member().open(StubClaim(partition))
    await writer.start(Start(position=0, reason="earliest"))
    await writer.write(build_batch(partition, [record(0), record(1)]))
    await writer.flush()

    landing = rig.landing()
    assert landing.problems == []
    assert landing.partitions["a/b=ü..", "12-3"].offsets == [0, 1]


async def test_what_refuses_is_named_by_its_own_path(rig: SinkRig):
    """At each step: a sink's path may be fine, and a folder below it another user's. Files refuse root, too."""
    writer = await rig.writer()
    home = rig.path / f"topic={PARTITION.topic}" / f"partition={PARTITION.partition}"
    (home / "chain=1").rename(home / "away")
    (home / "chain=1").touch()
    for doing in ("write the file", "find the chain"):
        with pytest.raises(RetriableSinkError, match=rf"^{home / 'chain=1'}\S*: cannot {doing}"):
            await writer.write(run_of(0, 10))
    await writer.abandon()

    (home / "chain=1").unlink()
    (home / "away").rename(home / "chain=1")
    home.rename(rig.path / "aside")
    home.touch()
    with pytest.raises(RetriableSinkError, match=f"^{home}: cannot find the chain"):
        await rig.writer()


async def test_a_batch_is_charged_for_while_it_is_encoded(tmp_path: Path):
    """Its text and copies take several times its size; without a charge, many partitions at once exceed the memory."""
    during: list[int] = []
    rig = SinkRig(kind="jsonl", path=tmp_path / "landing", clock=ManualClock())
    files = RecordingFileSystem(lambda operation, name: during.append(rig.charged) if operation == "write" else None)
    writer = await rig.writer(files=files)
    during.clear()
    batch = run_of(0, 10, size=10_000)
    await writer.write(batch)
    assert JsonlFormat.working_copies * batch.size_bytes <= min(during)
    assert JsonlFormat.working_copies * batch.size_bytes > rig.charged
    await rig.close()
    assert rig.charged == 0


async def test_metadata_tells_where_a_file_comes_from(rig: SinkRig):
    """An audit needs nothing but the files."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()

    metadata = rig.landing().partitions["orders", "3"].chains[0].files[0].metadata
    for beside in ("size", "sha256", "modified_ns"):
        metadata.pop(beside, None)
    assert metadata == {
        "format": 2,
        "writer": "member1-3",
        "group": "lake",
        "cluster": "2-1700000000000",
        "topic": "orders",
        "partition": 3,
        "incarnation": "7",
        "truncation": 0,
        "chain": 1,
        "position": 0,
        "next_offset": 10,
        "count": 10,
        "first_offset": 0,
        "last_offset": 9,
        "min_timestamp": 1000,
        "max_timestamp": 1009,
        "gaps": [],
    }
    assert json.loads((rig.path / "_consumerd.json").read_text())["group"] == "lake"


async def test_what_is_published_and_what_is_open_is_told(rig: SinkRig):
    """The status page names the newest file, and counts those that are being filled."""
    writer = await rig.member().open(StubClaim(TopicPartition.modern("orders", 0)))
    await writer.start(Start(position=0, reason="earliest"))
    await writer.write(build_batch(TopicPartition.modern("orders", 0), [record(0)]))
    assert rig.hooks.open_files == [1]
    await writer.flush()
    await writer.write(build_batch(TopicPartition.modern("orders", 0), [record(1)]))
    await writer.abandon()
    assert rig.hooks.open_files == [1, 0, 1, 0]
    assert rig.hooks.names == [f"topic=orders/partition=0/chain=1/{0:020d}.{rig.kind}"]
