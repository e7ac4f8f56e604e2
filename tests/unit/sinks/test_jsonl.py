# SPDX-License-Identifier: Apache-2.0
"""Which metadata counts for a file of JSON lines."""

import json
import os
import shutil
from pathlib import Path

import pytest

from consumerd.errors import RetriableSinkError
from consumerd.landing.chain import META_FOLDER
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.publish import remove_hidden
from consumerd.model import GapReason
from consumerd.sinks.base import Start
from consumerd.sinks.jsonl import JsonlFormat
from tests.support.clocks import ManualClock
from tests.support.faulty_files import RecordingFileSystem
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, SinkRig, run_of
from tests.unit.sinks.test_chain_writer import gap_batch


@pytest.fixture
async def rig(tmp_path: Path):
    rig = SinkRig(kind="jsonl", path=tmp_path / "landing", clock=ManualClock())
    yield rig
    await rig.close()


def chain(rig: SinkRig) -> Path:
    return next(rig.path.rglob("chain=1"))


def read_end(rig: SinkRig, position: int = 0) -> int:
    files = OsFileSystem()
    beside = files.names(chain(rig) / META_FOLDER)
    return JsonlFormat().read_metadata(files, chain(rig), position, beside).next_offset


def wait_for_tick(folder: Path) -> None:
    """Return when the file system gives other times than before; its clock ticks every few milliseconds."""
    probe = folder / "probe"
    probe.touch()
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        probe.touch()


async def test_attempt_that_was_not_published_does_not_count(rig: SinkRig):
    """Its metadata was durable when it died; the file that got the name is another one."""
    loser, winner = await rig.writer(), await rig.writer()
    await loser.write(run_of(0, 10))
    await winner.write(run_of(0, 7))
    await winner.flush()
    with pytest.raises(RetriableSinkError):
        await loser.flush()

    assert len(list((chain(rig) / "_meta").iterdir())) == 2
    assert read_end(rig) == 7


async def test_file_without_its_metadata_is_not_published(rig: SinkRig):
    """A claim that comes in between removes the hidden metadata, and has passed the folder of the data already."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    await writer.write(run_of(0, 10))

    def claim_meanwhile(operation: str, name: str) -> None:
        if operation == "link" and name.endswith(".json"):
            files.before = lambda *_: None
            remove_hidden(OsFileSystem(), chain(rig) / "_meta")

    files.before = claim_meanwhile
    with pytest.raises(RetriableSinkError, match="another writer") as caught:
        await writer.flush()
    assert caught.value.resume_position == 0
    assert rig.offsets() == []

    await writer.write(run_of(0, 10))
    assert await writer.flush() == 10
    assert rig.landing().problems == []
    assert rig.offsets() == list(range(10))


async def test_seal_without_its_metadata_is_tried_again(rig: SinkRig):
    """The chain ends all the same, by a seal that can be read."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    await writer.write(run_of(0, 10))
    await writer.flush()

    def claim_meanwhile(operation: str, name: str) -> None:
        if operation == "link" and name.startswith(f"{10:020d}."):
            files.before = lambda *_: None
            remove_hidden(OsFileSystem(), chain(rig) / "_meta")

    files.before = claim_meanwhile
    await writer.start(Start(position=20, reason="request", new_chain=True, request_id="r1"))

    assert rig.landing().problems == []
    assert [one.is_sealed for one in rig.landing().partitions["orders", "3"].chains] == [True, False]


@pytest.mark.parametrize("order", [(4, 9), (9, 4)])
async def test_attempts_with_equal_bytes_are_told_apart(rig: SinkRig, order: tuple[int, int]):
    """Two empty files say different things; believing the wrong one would let two writers overlap."""
    winner, loser = await rig.writer(), await rig.writer()
    await loser.write(gap_batch(0, order[0]))
    wait_for_tick(rig.path)
    await winner.write(gap_batch(0, order[1]))
    await winner.flush()
    with pytest.raises(RetriableSinkError):
        await loser.flush()

    assert len(list((chain(rig) / "_meta").iterdir())) == 2
    assert read_end(rig) == order[1]


async def test_attempts_of_equal_size_are_told_apart_by_their_content(rig: SinkRig):
    """Their times say nothing in a copy, and the metadata of the other attempt would claim offsets that are not here."""
    winner, loser = await rig.writer(), await rig.writer()
    await loser.write(build_batch(PARTITION, [record(0, b"x"), record(1, b"yyyy")]))
    await winner.write(build_batch(PARTITION, [record(0, b"xxxx"), record(5, b"y")], next_offset=7))
    await winner.flush()
    with pytest.raises(RetriableSinkError):
        await loser.flush()
    os.utime(chain(rig) / f"{0:020d}.jsonl", ns=(1, 1))
    sizes = {json.loads(path.read_text())["size"] for path in (chain(rig) / "_meta").iterdir()}

    assert len(sizes) == 1, "else their sizes tell them apart"
    assert read_end(rig) == 7


async def test_copied_chain_claims_the_least(rig: SinkRig):
    """A copy has other times; what the larger claim covers besides has no records."""
    winner, loser = await rig.writer(), await rig.writer()
    await loser.write(gap_batch(0, 4, GapReason.CONTROL))
    await winner.write(gap_batch(0, 9, GapReason.CONTROL))
    await winner.flush()
    with pytest.raises(RetriableSinkError):
        await loser.flush()
    os.utime(chain(rig) / f"{0:020d}.jsonl", ns=(1, 1))

    assert read_end(rig) == 4


async def test_file_that_was_cut_has_no_metadata(rig: SinkRig):
    """A copy that stopped half-way is noticed when the partition is claimed."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    data = chain(rig) / f"{0:020d}.jsonl"
    data.write_bytes(data.read_bytes()[:-5])

    with pytest.raises(RetriableSinkError, match=r"0000\.jsonl: its metadata is damaged: none of the 1 files"):
        await rig.member().open(rig.claim())


async def test_reader_of_the_tests_sees_what_is_wrong(rig: SinkRig):
    """The independent reader must be able to fail."""
    writer = await rig.writer()
    for start in (0, 10, 20):
        await writer.write(run_of(start, start + 10))
        await writer.flush()
    assert rig.landing().problems == []
    middle = chain(rig) / f"{10:020d}.jsonl"
    lines = middle.read_bytes().splitlines(keepends=True)

    middle.rename(middle.with_suffix(".away"))
    assert len(rig.landing().partitions["orders", "3"].unexplained) == 1
    shutil.move(middle.with_suffix(".away"), middle)
    middle.write_bytes(b"".join(lines[:-1]))
    assert len(rig.landing().partitions["orders", "3"].damaged) == 1
    meta = next((chain(rig) / "_meta").glob(f"{0:020d}.*"))
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"next_offset": 25}))
    problems = rig.landing().partitions["orders", "3"]
    assert problems.overlaps
    assert problems.unexplained
