# SPDX-License-Identifier: Apache-2.0
"""How chains end and begin: seals, requests, truncations, topics made again, and writers that come too late."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import (
    ConsumerdError,
    IncarnationChanged,
    OwnershipLost,
    PermanentSinkError,
    RetriableSinkError,
)
from consumerd.model import Gap, GapReason, Incarnation
from consumerd.sinks.base import Start
from consumerd.sinks.chain_writer import ChainWriter
from tests.support.claims import StubClaim
from tests.support.faulty_files import RecordingFileSystem, fail_at
from tests.support.landing_reader import LandedChain
from tests.support.record_batches import build_batch
from tests.support.sinks import PARTITION, MemoryRoots, SinkRig, run_of

pytestmark = pytest.mark.records

REQUEST = Start(position=4, reason="request", new_chain=True, request_id="r1")
TRUNCATION = Start(position=6, reason="on_above", truncation=1)
REQUEST_LATER = replace(REQUEST, truncation=1)
"""The same request, where the log is known to have lost its end once."""


async def land(writer: ChainWriter, start: int, end: int) -> None:
    await writer.write(run_of(start, end))
    assert await writer.flush() == end


async def landed_writer(rig: SinkRig, end: int = 10, **given: object) -> ChainWriter:
    writer = await rig.writer(**given)  # type: ignore[arg-type]
    await land(writer, writer.resume_position or 0, end)
    return writer


async def begin(rig: SinkRig, start: Start, *, claim: StubClaim | None = None) -> ChainWriter:
    writer = await rig.member().open(claim or rig.claim())
    await writer.start(start)
    return writer


def chains(rig: SinkRig) -> list[LandedChain]:
    landing = rig.landing()
    assert landing.problems == []
    return landing.partitions["orders", "3"].chains


def shapes(rig: SinkRig) -> list[tuple[str, int, int, bool]]:
    """Incarnation, origin, end, whether sealed, of each chain."""
    return [(chain.log, chain.origin, chain.end, chain.is_sealed) for chain in chains(rig)]


# -- beginning


@pytest.mark.parametrize("position", [0, 4, 10, 25])
async def test_request_begins_a_chain_anywhere(rig: SinkRig, position: int):
    """An operator says where to go on, below what has landed or beyond it."""
    await landed_writer(rig)
    writer = await begin(rig, Start(position=position, reason="request", new_chain=True, request_id="r1"))

    assert (writer.resume_position, writer.request_id) == (position, "r1")
    await land(writer, position, position + 5)
    assert shapes(rig) == [("7", 0, 10, True), ("7", position, position + 5, False)]
    assert chains(rig)[1].record["reason"] == "request"
    assert chains(rig)[1].record["request_id"] == "r1"


async def test_request_that_was_carried_out_is_not_carried_out_again(rig: SinkRig):
    """The commit that takes the request away may be lost in a crash; what has landed since must not land twice."""
    await landed_writer(rig)
    await land(await begin(rig, REQUEST), 4, 8)
    again = await rig.member().open(rig.claim())

    assert again.request_id == "r1"
    await again.start(REQUEST)
    with pytest.raises(RetriableSinkError) as caught:
        await again.write(run_of(9, 10))
    assert caught.value.resume_position == 8
    await land(again, 8, 12)
    assert shapes(rig) == [("7", 0, 10, True), ("7", 4, 12, False)]


async def test_request_that_went_on_beyond_the_chain_goes_on_there_when_it_comes_again(rig: SinkRig):
    """Its position counts where nothing has landed yet."""
    await landed_writer(rig)
    beyond = Start(position=30, reason="request", new_chain=True, request_id="r1")
    await begin(rig, beyond)

    assert (await begin(rig, beyond)).resume_position == 30
    assert shapes(rig) == [("7", 0, 10, True), ("7", 30, 30, False)]


async def test_next_request_begins_the_next_chain(rig: SinkRig):
    """Requests follow each other, and each is one wish."""
    await landed_writer(rig)
    await begin(rig, REQUEST)
    await begin(rig, Start(position=4, reason="request", new_chain=True, request_id="r2"))

    assert [chain.record.get("request_id") for chain in chains(rig)] == [None, "r1", "r2"]


async def test_truncated_log_begins_a_chain_of_the_next_truncation(rig: SinkRig):
    """From there on the same offsets are other records: bronze must not take them for what has landed already."""
    await landed_writer(rig)
    writer = await begin(rig, TRUNCATION)
    assert writer.truncation == 1
    await land(writer, 6, 9)
    assert shapes(rig) == [("7", 0, 10, True), ("7.1", 6, 9, False)]

    again = Start(position=8, reason="on_above", truncation=2)
    await land(await begin(rig, again), 8, 20)
    assert shapes(rig) == [("7", 0, 10, True), ("7.1", 6, 9, True), ("7.2", 8, 20, False)]
    metadata = chains(rig)[2].files[0].metadata
    assert (metadata["incarnation"], metadata["truncation"], metadata["chain"]) == ("7", 2, 3)


async def test_truncation_whose_start_is_not_heard_of_is_counted_once(rig: SinkRig):
    """The chain was begun and the position not committed: the same wish comes again."""
    await landed_writer(rig)
    await begin(rig, TRUNCATION)
    await begin(rig, TRUNCATION)

    assert shapes(rig) == [("7", 0, 10, True), ("7.1", 6, 6, False)]


async def test_log_that_is_truncated_to_the_same_end_twice_is_counted_twice(rig: SinkRig):
    """What landed in between is gone from the log, and other records have its offsets."""
    await landed_writer(rig)
    await land(await begin(rig, TRUNCATION), 6, 9)
    await begin(rig, replace(TRUNCATION, truncation=2))

    assert shapes(rig) == [("7", 0, 10, True), ("7.1", 6, 9, True), ("7.2", 6, 6, False)]


async def test_request_keeps_the_truncation_that_the_records_belong_to(rig: SinkRig):
    """They are the same records as in the chain before."""
    await landed_writer(rig)
    await begin(rig, TRUNCATION)
    await begin(rig, REQUEST_LATER)

    assert [shape[0] for shape in shapes(rig)] == ["7", "7.1", "7.1"]


async def test_topic_made_again_seals_the_chain_of_the_old_one_and_counts_from_no_truncation(rig: SinkRig):
    """A member that has not noticed yet must not add to what is over."""
    await landed_writer(rig)
    await begin(rig, TRUNCATION)
    writer = await begin(rig, Start(position=0, reason="new incarnation"), claim=rig.claim(czxid=9))
    await land(writer, 0, 3)

    assert shapes(rig) == [("7", 0, 10, True), ("7.1", 6, 6, True), ("9", 0, 3, False)]


async def test_request_of_an_older_topic_is_not_that_of_this_one(rig: SinkRig):
    """What the property tells is about the topic as it was claimed."""
    await begin(rig, REQUEST)
    writer = await rig.member().open(rig.claim(czxid=9))

    assert (writer.resume_position, writer.request_id) == (None, None)


async def test_start_without_a_new_chain_may_not_go_back(rig: SinkRig):
    """Only who asks for a new chain means it."""
    await landed_writer(rig)
    with pytest.raises(PermanentSinkError, match="below 10, the end of"):
        await begin(rig, Start(position=4, reason="request", request_id="r1"))


async def test_seal_is_a_file_of_its_format_without_records(rig: SinkRig):
    """Readers that know nothing of chains read it as what it is: nothing."""
    await landed_writer(rig)
    await begin(rig, REQUEST)

    seal = chains(rig)[0].files[-1]
    assert seal.path.name == f"{10:020d}.{rig.kind}"
    assert (seal.records, seal.metadata["sealed"]) == ([], True)
    assert (seal.metadata["position"], seal.metadata["next_offset"]) == (10, 10)
    assert rig.hooks.published == [("lake", 10, rig.hooks.published[0][2])]


async def test_newest_file_is_all_that_a_chain_needs(rig: SinkRig):
    """Older ones may be moved to where it is cheaper, sealed chains and all."""
    writer = await landed_writer(rig)
    await land(writer, 10, 15)
    await land(await begin(rig, REQUEST), 4, 8)
    newest = await landed_writer(rig, 20)
    await newest.abandon()
    for number, kept in ((1, 15), (2, 8)):
        for file in rig.path.rglob(f"chain={number}/*.{rig.kind}"):
            if file.name != f"{kept:020d}.{rig.kind}":
                file.unlink()

    again = await rig.member().open(rig.claim())
    assert (again.resume_position, again.request_id) == (20, "r1")
    await again.start(Start(position=20, reason="landed"))
    await land(again, 20, 21)


# -- crashes


async def crash_between_seal_and_record(rig: SinkRig, start: Start = REQUEST) -> None:
    """Leave a chain that is sealed at 10 and has no successor."""

    def fail(operation: str, name: str) -> None:
        if operation == "make_folders" and name == "chain=2":
            raise OSError(errno.EIO, "I/O error")

    writer = await rig.member(RecordingFileSystem(fail)).open(rig.claim())
    with pytest.raises(RetriableSinkError):
        await writer.start(start)
    assert [(chain.end, chain.is_sealed) for chain in chains(rig)] == [(10, True)]


async def test_sealed_chain_without_successor_goes_on_in_the_next(rig: SinkRig):
    """Nobody asks for anything any more: the records go on where they ended."""
    await landed_writer(rig)
    await crash_between_seal_and_record(rig)
    writer = await rig.member().open(rig.claim())

    assert writer.resume_position == 10
    await writer.start(Start(position=10, reason="committed"))
    await land(writer, 10, 12)
    assert shapes(rig) == [("7", 0, 10, True), ("7", 10, 12, False)]
    assert chains(rig)[1].record["reason"] == "sealed"


async def test_chain_behind_a_seal_records_what_others_consumed(rig: SinkRig):
    """A Java member went on meanwhile."""
    await landed_writer(rig)
    await crash_between_seal_and_record(rig)
    writer = await begin(rig, Start(position=30, reason="consumed elsewhere"))
    await land(writer, 30, 31)

    assert rig.landing().partitions["orders", "3"].gaps == [
        {"start": 10, "end": 30, "reason": "consumed elsewhere", "offsets": 20}
    ]
    assert shapes(rig) == [("7", 0, 10, True), ("7", 10, 31, False)]


@pytest.mark.parametrize(("start", "incarnation"), [(REQUEST, "7"), (TRUNCATION, "7.1")])
async def test_wish_that_comes_again_after_the_seal_is_carried_out(rig: SinkRig, start: Start, incarnation: str):
    """The seal alone has changed nothing about what was wanted."""
    await landed_writer(rig)
    await crash_between_seal_and_record(rig, start)
    await begin(rig, start)

    assert shapes(rig) == [("7", 0, 10, True), (incarnation, start.position, start.position, False)]


async def test_topic_made_again_after_a_seal_begins_its_own_chain(rig: SinkRig):
    """The sealed chain is another topic's."""
    await landed_writer(rig)
    await crash_between_seal_and_record(rig)
    await begin(rig, Start(position=0, reason="new incarnation"), claim=rig.claim(czxid=9))

    assert shapes(rig) == [("7", 0, 10, True), ("9", 0, 0, False)]


async def test_request_whose_chain_was_sealed_goes_on_behind_the_seal(rig: SinkRig):
    """It was carried out: to begin at its position again would land records twice."""
    await land(await begin(rig, REQUEST), 4, 10)
    await crash_between_seal_and_record(rig, TRUNCATION)
    again = await begin(rig, REQUEST)
    await land(again, 10, 11)
    assert shapes(rig) == [("7", 4, 10, True), ("7", 10, 11, False)]
    assert again.request_id == "r1"


@pytest.mark.parametrize("start", [REQUEST, TRUNCATION], ids=["request", "truncation"])
async def test_each_failing_step_of_a_new_chain_is_made_good_by_the_next_claim(rig: SinkRig, start: Start):
    """A crash is a failure that nobody sees: whatever was the last step, the next member carries the wish out once."""
    step, failed = 0, True
    while failed:
        rig.path, rig.roots = rig.path.with_name(f"landing{step}"), MemoryRoots()
        await landed_writer(rig)
        files = RecordingFileSystem()
        writer = await rig.member(files).open(rig.claim())
        failing = fail_at(step)
        files.before = lambda operation, name, failing=failing: (
            None if operation == "unlink" else failing(operation, name)
        )
        try:
            await writer.start(start)
            failed = False
        except RetriableSinkError:
            await writer.abandon()
        step += 1
        await land(await begin(rig, start), start.position, 12)
        assert [shape[1:] for shape in shapes(rig)] == [(0, 10, True), (start.position, 12, False)]
        assert rig.landing().leftovers == []
    assert step > 8


# -- writers that come too late


async def test_stalled_writer_never_adds_to_a_sealed_chain(rig: SinkRig):
    """Promise 3 where it is hardest: it was confirmed, slept through the seal, and believes still to be the owner."""
    stalled = await landed_writer(rig)
    await stalled.write(run_of(10, 15))
    await land(await begin(rig, REQUEST), 4, 6)

    with pytest.raises(OwnershipLost, match="another writer has sealed"):
        await stalled.flush()
    await stalled.abandon()
    assert shapes(rig) == [("7", 0, 10, True), ("7", 4, 6, False)]
    assert rig.landing().leftovers == []


async def test_stalled_writer_of_an_older_topic_is_told_that_it_is_gone(rig: SinkRig):
    """Even where ZooKeeper's answer trails behind what the files say."""
    stalled = await landed_writer(rig, 10)
    await stalled.write(run_of(10, 15))
    await begin(rig, Start(position=0, reason="new incarnation"), claim=rig.claim(czxid=9))

    with pytest.raises(IncarnationChanged, match=r"incarnation 9, this\s+claim is of 7"):
        await stalled.flush()
    assert [shape[2:] for shape in shapes(rig)] == [(10, True), (0, False)]


@pytest.mark.parametrize("failure", [OwnershipLost("taken over"), IncarnationChanged("made again")])
async def test_whoever_meets_a_seal_and_is_not_the_owner_stops(rig: SinkRig, failure: ConsumerdError):
    """It must not look for chains that are no business of its."""
    claim = rig.claim()
    stalled = await landed_writer(rig, claim=claim)
    await stalled.write(run_of(10, 15))
    await crash_between_seal_and_record(rig)
    asked = claim.confirmations

    async def lose_at_second_look() -> None:
        if claim.confirmations > asked + 1:
            claim.failure = failure

    claim.on_confirm = lose_at_second_look
    with pytest.raises(type(failure)):
        await stalled.flush()
    assert shapes(rig) == [("7", 0, 10, True)]


async def test_owner_that_meets_a_seal_begins_the_next_chain(rig: SinkRig):
    """Whoever had sealed it is gone, or lost the partition before it got further."""
    owner = await landed_writer(rig)
    await owner.write(run_of(10, 15))
    await crash_between_seal_and_record(rig)

    with pytest.raises(RetriableSinkError, match="another writer") as caught:
        await owner.flush()
    assert caught.value.resume_position == 10
    await land(owner, 10, 15)
    assert shapes(rig) == [("7", 0, 10, True), ("7", 10, 15, False)]


async def test_owner_that_meets_a_seal_goes_on_in_the_chain_behind_it(rig: SinkRig):
    """Another writer of the same line has begun it, and perhaps landed in it."""
    owner = await landed_writer(rig)
    await owner.write(run_of(10, 20))
    await crash_between_seal_and_record(rig)
    await land(await begin(rig, Start(position=10, reason="landed")), 10, 14)

    with pytest.raises(RetriableSinkError) as caught:
        await owner.flush()
    assert caught.value.resume_position == 14
    await land(owner, 14, 20)
    assert shapes(rig) == [("7", 0, 10, True), ("7", 10, 20, False)]


async def test_seal_gives_way_to_a_file_that_was_there_first(rig: SinkRig):
    """A stalled writer woke up before the seal: what it has landed counts, and the request is carried out all the same."""
    stalled = await landed_writer(rig)
    await stalled.write(run_of(10, 13))
    claim = rig.claim()
    writer = await rig.member().open(claim)
    await stalled.write(run_of(10, 13))

    async def wake_up() -> None:
        claim.on_confirm = None
        with pytest.raises(RetriableSinkError):
            await stalled.flush()  # its hidden file was removed by the claim
        await land(stalled, 10, 13)

    claim.on_confirm = wake_up
    await writer.start(REQUEST)
    await land(writer, 4, 5)
    assert shapes(rig) == [("7", 0, 13, True), ("7", 4, 5, False)]


async def test_seal_and_empty_file_of_one_moment_are_told_apart(rig: SinkRig):
    """Of JSON lines both are nothing at all, and file systems' clocks tick slowly: only one of them is the seal."""

    class SlowClock(RecordingFileSystem):
        def create(self, path: Path) -> int:
            descriptor = super().create(path)
            os.utime(descriptor, ns=(0, 0))
            return descriptor

    await landed_writer(rig)
    stalled = await rig.writer(files=SlowClock())
    claim = rig.claim()
    writer = await rig.member(SlowClock()).open(claim)

    async def wake_up() -> None:
        claim.on_confirm = None
        await stalled.write(build_batch(PARTITION, [], start=10, next_offset=14, gaps=[Gap(10, 14, GapReason.CONTROL)]))
        assert await stalled.flush() == 14

    claim.on_confirm = wake_up
    await writer.start(REQUEST)
    assert shapes(rig) == [("7", 0, 14, True), ("7", 4, 4, False)]


async def test_wish_without_an_id_is_decided_anew_when_the_end_has_moved(rig: SinkRig):
    """It rested on an end that is no longer there."""
    stalled = await landed_writer(rig)
    claim = rig.claim()
    writer = await rig.member().open(claim)

    async def wake_up() -> None:
        claim.on_confirm = None
        await land(stalled, 10, 13)

    claim.on_confirm = wake_up
    with pytest.raises(RetriableSinkError, match="ends at 13 now; looking again"):
        await writer.start(Start(position=6, reason="a wish", new_chain=True))
    assert shapes(rig) == [("7", 0, 13, False)]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (REQUEST, REQUEST, [("7", 0, 10, True), ("7", 4, 4, False)]),
        (TRUNCATION, TRUNCATION, [("7", 0, 10, True), ("7.1", 6, 6, False)]),
        (REQUEST_LATER, TRUNCATION, [("7", 0, 10, True), ("7.1", 6, 6, True), ("7.1", 4, 4, False)]),
        (TRUNCATION, REQUEST, [("7", 0, 10, True), ("7", 4, 4, True), ("7.1", 6, 6, False)]),
    ],
    ids=["same request", "same truncation", "request after truncation", "truncation after request"],
)
async def test_racing_openers_agree(rig: SinkRig, ours: Start, theirs: Start, expected: list[object]):
    """Both believe that the partition is theirs; each wish is carried out once."""
    await landed_writer(rig)
    claim = rig.claim()
    writer = await rig.member().open(claim)

    async def come_first() -> None:
        claim.on_confirm = None
        await begin(rig, theirs)

    claim.on_confirm = come_first
    await writer.start(ours)
    assert shapes(rig) == expected


@pytest.mark.parametrize(
    "wish",
    [
        Start(position=6, reason="a wish", new_chain=True, request_id="w"),
        Start(position=6, reason="a wish", truncation=1),
        Start(position=6, reason="a wish", new_chain=True, truncation=1, request_id="w"),
    ],
    ids=["request", "truncation", "both"],
)
async def test_wish_that_another_has_carried_out_and_landed_upon_is_not_carried_out_again(rig: SinkRig, wish: Start):
    """Both have found the same request, or the same truncation, and one of them was quicker."""
    await landed_writer(rig)
    claim = rig.claim()
    writer = await rig.member().open(claim)

    async def come_first() -> None:
        claim.on_confirm = None
        await land(await begin(rig, wish), 6, 9)

    claim.on_confirm = come_first
    await writer.start(wish)
    await land(writer, 9, 12)
    assert [shape[1:] for shape in shapes(rig)] == [(0, 10, True), (6, 12, False)]


async def test_a_start_that_knows_of_no_truncation_gives_way_to_one_that_does(rig: SinkRig):
    """Another has found that the log has lost its end: what this one wants was decided upon without knowing."""
    await landed_writer(rig)
    claim = rig.claim()
    writer = await rig.member().open(claim)

    async def come_first() -> None:
        claim.on_confirm = None
        await begin(rig, TRUNCATION)

    claim.on_confirm = come_first
    with pytest.raises(RetriableSinkError, match="looking again"):
        await writer.start(REQUEST)
    assert shapes(rig) == [("7", 0, 10, True), ("7.1", 6, 6, False)]


async def test_plain_start_gives_way_to_a_chain_that_ends_below_it(rig: SinkRig):
    """To go on there would record as consumed elsewhere what an operator wants to have again."""
    await landed_writer(rig)
    await crash_between_seal_and_record(rig)
    claim = rig.claim()
    writer = await rig.member().open(claim)

    async def come_first() -> None:
        claim.on_confirm = None
        await begin(rig, REQUEST)

    claim.on_confirm = come_first
    with pytest.raises(RetriableSinkError, match="looking again"):
        await writer.start(Start(position=10, reason="committed"))
    assert shapes(rig) == [("7", 0, 10, True), ("7", 4, 4, False)]


async def test_lost_claim_neither_seals_nor_begins(rig: SinkRig):
    """A member that has lost the partition changes nothing of it."""
    await landed_writer(rig)
    claim = rig.claim()
    writer = await rig.member().open(claim)
    claim.failure = OwnershipLost("gone")

    with pytest.raises(OwnershipLost):
        await writer.start(REQUEST)
    await writer.abandon()
    await rig.close()  # the seal that was not published is removed some time, and nobody waits for it before
    assert shapes(rig) == [("7", 0, 10, False)]
    assert rig.landing().leftovers == []


async def test_cancelled_seal_does_not_link_later(rig: SinkRig):
    """The drain's deadline has passed while the disk was slow: the chain is somebody else's."""
    await landed_writer(rig)
    release, stalled = threading.Event(), threading.Event()

    def stall(operation: str, name: str) -> None:
        if operation == "sync" and name.startswith(f".{10:020d}.{rig.kind}"):
            stalled.set()
            release.wait(10)

    writer = await rig.member(RecordingFileSystem(stall)).open(rig.claim())
    async with timeout(10), asyncio.TaskGroup() as group:
        start = group.create_task(writer.start(REQUEST))
        await asyncio.to_thread(stalled.wait)
        start.cancel()
        await asyncio.sleep(0)
        release.set()
    await writer.abandon()
    await rig.close()
    assert shapes(rig) == [("7", 0, 10, False)]
    assert rig.landing().leftovers == []


# -- every reason of a gap


@pytest.mark.parametrize("reason", list(GapReason))
async def test_every_reason_of_a_gap_reaches_the_files(rig: SinkRig, reason: GapReason):
    """Whoever audits the files must see what was passed over and why."""
    writer = await landed_writer(rig, 5)
    gap = Gap(5, 9, reason)
    await writer.write(build_batch(PARTITION, [], start=5, next_offset=9, gaps=[gap]))

    assert rig.landing().partitions["orders", "3"].end == 5
    assert await writer.flush() == 9
    landed = rig.landing().partitions["orders", "3"]
    assert landed.problems == []
    assert landed.gaps == [{"start": 5, "end": 9, "reason": reason.value, "offsets": 4}]
    assert landed.find_lost(range(9)) == []


@pytest.mark.parametrize("reason", list(GapReason))
async def test_progress_without_records_is_acknowledged_by_its_file_alone(rig: SinkRig, reason: GapReason):
    """The committed position is always some chain's end, whatever it was that had no records."""
    writer = await landed_writer(rig, 5)
    acknowledged = [
        await writer.write(build_batch(PARTITION, [], start=at, next_offset=at + 1, gaps=[Gap(at, at + 1, reason)]))
        for at in range(5, 8)
    ]

    assert acknowledged == [5, 5, 5]
    assert writer.deadline() == rig.clock() + rig.roll_ms / 1000
    assert await writer.flush() == 8
    assert (await rig.member().open(rig.claim())).resume_position == 8


async def test_claim_is_confirmed_for_the_seal_and_for_the_record(rig: SinkRig):
    """Either is published by the owner or not at all."""
    await landed_writer(rig)
    claim = StubClaim(PARTITION, incarnation=Incarnation(7))
    writer = await rig.member().open(claim)
    await writer.start(REQUEST)

    assert claim.confirmations == 2


async def test_topic_with_another_id_begins_a_chain(rig: SinkRig):
    """Topic ids have no order: the claim, which reads the id again before each publishing, says which is present."""
    old, new = (StubClaim(PARTITION, incarnation=Incarnation(0, topic_id=letter * 22)) for letter in "ZA")
    writer = await rig.writer(claim=old)
    await land(writer, 0, 10)
    found = await rig.member().open(new)

    assert (found.resume_position, found.has_earlier_topic) == (None, True)

    await found.start(Start(position=0, reason="new incarnation"))
    await land(found, 0, 3)

    assert shapes(rig) == [("Z" * 22, 0, 10, True), ("A" * 22, 0, 3, False)]
    assert not (await rig.member().open(new)).has_earlier_topic


@pytest.mark.parametrize("old", [Incarnation(0, topic_id="Z" * 22), Incarnation(7)], ids=str)
async def test_topic_goes_on_where_it_landed_though_a_former_one_was_claimed_since(rig: SinkRig, old: Incarnation):
    """A broker that is out of date may name the id of the deleted topic once more. What has landed lands once.

    The deleted topic may have its czxid from the record of a cluster that has left ZooKeeper.
    """
    new = Incarnation(0, topic_id="A" * 22)
    for topic, resume, end in [(old, None, 10), (new, None, 20), (old, 10, 12), (new, 20, 30)]:
        writer = await rig.member().open(StubClaim(PARTITION, incarnation=topic))
        assert resume == writer.resume_position
        await writer.start(Start(position=resume or 0, reason="new partition"))
        await land(writer, resume or 0, end)
        assert end == writer.resume_position

    expected = [(str(old), 0, 10, True), (str(new), 0, 20, True), (str(old), 10, 12, True), (str(new), 20, 30, False)]
    assert expected == shapes(rig)


async def test_writer_of_a_deleted_topic_id_is_refused_by_its_claim(rig: SinkRig):
    """It came too late: the topic was re-created after its claim, and another member has begun a chain."""
    old, new = (StubClaim(PARTITION, incarnation=Incarnation(0, topic_id=letter * 22)) for letter in "ZA")
    await land(await rig.writer(claim=new), 0, 3)
    late = await rig.member().open(old)
    old.failure = IncarnationChanged("made again")

    with pytest.raises(IncarnationChanged):
        await late.start(Start(position=10, reason="committed"))

    assert shapes(rig) == [("A" * 22, 0, 3, False)]
