# SPDX-License-Identifier: Apache-2.0
"""The order of the system calls by which a name becomes public. Each pair swapped would lose or repeat records in some crash.

Content first (write, fsync), then its metadata just the same, then the last looks (the claim, the volume), then the name
(link), then the name's durability (fsync of the folder), and only then anybody hears of it. These lists are the promise:
whoever changes one has to say what a crash between any two lines leaves behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from consumerd.model import Gap, GapReason
from consumerd.sinks.base import Start
from tests.support.claims import StubClaim
from tests.support.faulty_files import RecordingFileSystem
from tests.support.record_batches import build_batch
from tests.support.sinks import PARTITION, SinkRig, run_of

Call = tuple[str, str]


class Journal(RecordingFileSystem):
    """Notes looks at the root, too, and what happens outside of the file system."""

    def read(self, path: Path) -> bytes:
        """See FileSystem."""
        if path.name == "_consumerd.json":
            self.note("look at the volume")
        return super().read(path)

    def note(self, what: str) -> None:
        """Add what is no system call."""
        self.calls.append((what, ""))


def watched_claim(rig: SinkRig, journal: Journal) -> StubClaim:
    claim = rig.claim()

    async def note() -> None:
        journal.note("confirm the claim")

    claim.on_confirm = note
    return claim


def since(journal: Journal, first: Call) -> list[Call]:
    """Return the calls from ``first`` on, repeated ones once."""
    calls = [call for call, _ in itertools.groupby(journal.calls)]
    return calls[calls.index(first) :]


def file_calls(rig: SinkRig, chain: int, position: int, file_id: str, *, written: bool = True) -> list[Call]:
    """Return what publishing one data file takes, in order."""
    name = f"{position:020d}.{rig.kind}"
    hidden = f".{name}.{file_id}.tmp"
    calls = [("create", hidden), ("write", hidden), ("sync", hidden)]
    if not written:
        calls.remove(("write", hidden))
    if rig.kind == "jsonl":
        calls += record_calls(f"{position:020d}.{file_id}.json", file_id)
        calls += [("sync_folder", "_meta"), ("unlink", f".{position:020d}.{file_id}.json.{file_id}.tmp")]
    return [
        *calls,
        ("confirm the claim", ""),
        ("look at the volume", ""),
        ("link", name),
        ("sync_folder", f"chain={chain}"),
        ("unlink", hidden),
    ]


def record_calls(name: str, file_id: str, looks: Sequence[Call] = ()) -> list[Call]:
    """Return what publishing a small record takes, in order, up to its link."""
    hidden = f".{name}.{file_id}.tmp"
    return [("create", hidden), ("write", hidden), ("sync", hidden), *looks, ("link", name)]


def without_finishing_look(calls: list[Call]) -> list[Call]:
    """Leave out the look at the volume that only spares a file the failure to finish."""
    looks = [index for index, call in enumerate(calls) if call == ("look at the volume", "")]
    return [call for index, call in enumerate(calls) if index not in looks or calls[index + 1][0] == "link"]


async def test_file_is_durable_and_still_ours_before_it_has_a_name_and_named_before_it_is_told(rig: SinkRig):
    """The position that is committed next rests on every line of this."""
    journal = Journal()
    writer = await rig.writer(files=journal, claim=watched_claim(rig, journal))
    await writer.write(run_of(0, 10))
    assert await writer.flush() == 10
    journal.note("acknowledge")

    file_id = "member1-3"
    expected = [*file_calls(rig, 1, 0, file_id), ("acknowledge", "")]
    assert without_finishing_look(since(journal, expected[0])) == expected


async def test_empty_file_takes_the_same_steps(rig: SinkRig):
    """Progress without records is committed as any other."""
    journal = Journal()
    writer = await rig.writer(files=journal, claim=watched_claim(rig, journal))
    await writer.write(run_of(0, 1))
    assert await writer.flush() == 1
    gap = Gap(1, 5, GapReason.CONTROL)
    await writer.write(build_batch(PARTITION, [], start=1, next_offset=5, gaps=[gap]))
    assert await writer.flush() == 5
    journal.note("acknowledge")

    expected = [*file_calls(rig, 1, 1, "member1-4", written=rig.kind == "parquet"), ("acknowledge", "")]
    assert without_finishing_look(since(journal, expected[0])) == expected


async def test_chain_is_sealed_durably_before_the_next_begins_and_begun_durably_before_it_is_written(rig: SinkRig):
    """A chain that begins while the one before can still grow is a chain too many."""
    first = await rig.writer()
    await first.write(run_of(0, 10))
    await first.flush()
    journal = Journal()
    writer = await rig.member(journal, name="second").open(watched_claim(rig, journal))
    await writer.start(Start(position=4, reason="request", new_chain=True, request_id="r1"))
    journal.note("begin")

    looks = [("confirm the claim", ""), ("look at the volume", "")]
    folders = [("make_folders", "chain=2"), ("make_folders", "_meta")]
    expected = [
        *file_calls(rig, 1, 10, "second-2", written=rig.kind == "parquet"),
        *(folders if rig.kind == "jsonl" else folders[:1]),
        *record_calls("_chain.json", "second-3", looks),
        ("sync_folder", "chain=2"),
        ("unlink", "._chain.json.second-3.tmp"),
        ("sync_folder", "chain=2"),
        ("sync_folder", "partition=3"),
        ("sync_folder", "topic=orders"),
        ("sync_folder", "landing"),
        ("begin", ""),
    ]
    assert without_finishing_look(since(journal, expected[0])) == expected


async def test_root_is_durable_before_the_group_remembers_it(rig: SinkRig):
    """A root that is remembered must be there after any crash, or the sink waits for it for ever."""
    journal = Journal()
    record = rig.roots.record

    async def note(sink: str, root: str, *, consumer_id: str | None) -> str:
        journal.note("remember")
        return await record(sink, root, consumer_id=consumer_id)

    rig.roots.record = note  # an observer in front of the fake
    await rig.member(journal).check()

    expected = [
        *record_calls("_consumerd.json", "member1-1"),
        ("sync_folder", "landing"),
        ("unlink", "._consumerd.json.member1-1.tmp"),
        ("look at the volume", ""),
        ("sync_folder", "landing"),
        ("sync_folder", rig.path.parent.name),
        ("remember", ""),
    ]
    assert since(journal, expected[0]) == expected
