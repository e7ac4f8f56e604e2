# SPDX-License-Identifier: Apache-2.0
"""Files that were removed: the group remembers how far it has landed, beside the files themselves."""

import shutil
from pathlib import Path

import pytest

from consumerd.errors import CoordinationError
from consumerd.landing.chain import LandedEnd
from consumerd.model import Gap, GapReason, Incarnation
from consumerd.sinks.base import Start
from consumerd.sinks.chain_writer import ChainWriter
from tests.support.sinks import PARTITION, SinkRig, run_of

MISSING = Gap(10, 20, GapReason.MISSING_FILE)


async def land_two(rig: SinkRig) -> list[Path]:
    """Land [0, 10) and [10, 20), and return their files."""
    writer = await rig.writer()
    for start in (0, 10):
        await writer.write(run_of(start, start + 10))
        await writer.flush()
    return sorted(rig.path.glob(f"topic=*/partition=*/chain=1/[0-9]*.{rig.kind}"))


async def reopen(rig: SinkRig, czxid: int = 7) -> ChainWriter:
    return await rig.member().open(rig.claim(czxid))


async def test_nothing_is_missing_while_files_are_there(rig: SinkRig):
    """A committed position above the chain's end is another member's then."""
    await land_two(rig)
    assert await (await reopen(rig)).find_missing(100) is None


async def test_newest_file_is_missed(rig: SinkRig):
    """As far as it is committed: what is not committed is read again."""
    files = await land_two(rig)
    files[-1].unlink()
    writer = await reopen(rig)
    assert writer.resume_position == 10
    assert await writer.find_missing(100) == MISSING
    assert await writer.find_missing(15) == Gap(10, 15, GapReason.MISSING_FILE)
    assert await writer.find_missing(10) is None


async def test_missing_range_is_recorded_before_anything_else(rig: SinkRig):
    """The next start finds a chain that says so, and tells nobody again."""
    files = await land_two(rig)
    files[-1].unlink()
    writer = await reopen(rig)
    await writer.start(Start(position=25, reason="consumed elsewhere", missing_until=20))
    (partition,) = rig.landing().partitions.values()
    assert rig.landing().problems == []
    assert [(gap["reason"], gap["start"], gap["end"]) for gap in partition.gaps] == [
        ("missing file", 10, 20),
        ("consumed elsewhere", 20, 25),
    ]
    assert await (await reopen(rig)).find_missing(25) is None


@pytest.mark.parametrize("removed", ["chain=1", "."])
async def test_chain_or_partition_is_missed(rig: SinkRig, removed: str):
    """Whatever was removed, from the origin of the chain on."""
    files = await land_two(rig)
    shutil.rmtree(files[0].parent.parent / removed)
    writer = await reopen(rig)
    assert writer.resume_position is None
    assert await writer.find_missing(20) == Gap(0, 20, GapReason.MISSING_FILE)


async def test_newer_chain_and_newer_topic_have_ends_of_their_own(rig: SinkRig):
    """An operator went back, or the topic was made again: the old end says nothing about them."""
    await land_two(rig)
    writer = await reopen(rig)
    await writer.start(Start(position=5, reason="request", new_chain=True, request_id="again"))
    assert await (await reopen(rig)).find_missing(15) is None

    assert await (await reopen(rig, czxid=9)).find_missing(15) is None


async def test_a_note_that_cannot_be_made_costs_evidence_only(rig: SinkRig):
    """Landing does not wait for what is only for a diagnosis."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    rig.roots.failure = CoordinationError("no quorum")
    assert await writer.flush() == 10
    assert rig.roots.ends == {}
    await writer.write(run_of(10, 20))
    assert await writer.flush() == 20
    (noted,) = rig.roots.ends.values()
    assert LandedEnd.parse(noted) == LandedEnd(incarnation=Incarnation(7), chain=1, origin=0, next_offset=20)


@pytest.mark.parametrize("noted", [b"", b"{}", b'{"format":3}', b"\xff"])
async def test_a_note_that_cannot_be_read_is_no_evidence(rig: SinkRig, noted: bytes):
    """It must not keep the partition from starting."""
    files = await land_two(rig)
    files[-1].unlink()
    for key in rig.roots.ends:
        rig.roots.ends[key] = noted
    assert await (await reopen(rig)).find_missing(20) is None


async def test_replica_without_a_name_remembers_nothing(rig: SinkRig):
    """Nothing is recorded of its path, and so nothing of its chains."""
    rig.shared = False
    files = await land_two(rig)
    assert rig.roots.ends == {}
    files[-1].unlink()
    assert await (await reopen(rig)).find_missing(20) is None


async def test_note_comes_before_the_acknowledgement(rig: SinkRig):
    """A position that is committed must be borne out, whatever dies in between."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    seen = []
    note = rig.roots.note_landed_end

    async def watch(root, partition, noted):
        seen.append((partition, [file.name for file in rig.path.rglob(f"0*.{rig.kind}")]))
        await note(root, partition, noted)

    rig.roots.note_landed_end = watch  # type: ignore[method-assign]  # a test's own object
    assert await writer.flush() == 10
    assert seen == [(PARTITION, [f"{0:020d}.{rig.kind}"])]
