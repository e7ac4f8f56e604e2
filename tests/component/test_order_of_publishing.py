# SPDX-License-Identifier: Apache-2.0
"""From the first byte of a file to the position that is stored: the order of everything that a crash may come between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, SinkRoute
from consumerd.model import TopicPartition
from consumerd.offsets.store import Commit
from tests.support.clocks import LoopClock
from tests.support.delivery import (
    FakeBrokers,
    FakeClaim,
    FakeLog,
    FakeQuarantine,
    FakeRequests,
    FakeStore,
    FakeTruncations,
)
from tests.support.faulty_files import RecordingFileSystem
from tests.support.sinks import SinkRig
from tests.support.waiting import until

pytestmark = pytest.mark.records

PARTITION = TopicPartition.modern("orders", 3)
BATCH = 10

Calls = list[tuple[str, str]]


class NotingClaim(FakeClaim):
    """Notes when it is asked whether it still stands."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(PARTITION)
        self._calls = calls

    async def confirm(self) -> None:
        await super().confirm()
        self._calls.append(("check", ""))


@pytest.fixture
async def sink_rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SinkRig]:
    """Files are published a while after their first record, so that a commit may come too early."""
    rig = SinkRig(kind=request.param, path=tmp_path / "landing", clock=LoopClock(), roll_ms=100)
    yield rig
    await rig.close()


@pytest.mark.parametrize("sink_rig", ["jsonl", "parquet"], indirect=True)
async def test_each_file_is_written_synced_checked_linked_and_committed_in_this_order(sink_rig: SinkRig) -> None:
    """Promises 1 to 3: any two steps exchanged lose, repeat or overlap when the process or the lease ends in between."""
    files = RecordingFileSystem()
    sink, brokers, store = sink_rig.member(files), FakeBrokers(BATCH), FakeStore()
    log = brokers.logs[PARTITION] = FakeLog()

    async def note_commit(commits: Sequence[Commit]) -> None:
        files.calls.extend(("commit", str(commit.position)) for commit in commits)

    store.before_commit = note_commit
    deliveries = Deliveries(
        route=lambda _: SinkRoute(name="lake", sink=sink),
        feeds=brokers,
        store=store,
        ranges=brokers,
        history=brokers,
        requests=FakeRequests(store),
        truncations=FakeTruncations(),
        quarantine=FakeQuarantine(),
        settings=DeliverySettings(commit_interval_ms=10),
        reports=DeliveryReports(lost=lambda claim, error: None, sink_closed=lambda error: None),
        hooks=sink_rig.hooks,
        now=lambda: asyncio.get_running_loop().time(),
        random=lambda: 0.0,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(deliveries.run())
        await deliveries.claimed([NotingClaim(files.calls)])
        await until(lambda: store.position(PARTITION) == 0)
        files.calls.clear()
        for end in (BATCH, 2 * BATCH, 3 * BATCH):
            log.append(BATCH)
            await until(lambda end=end: store.position(PARTITION) == end)  # type: ignore[misc]
        calls = list(files.calls)
        running.cancel()

    for end, steps in zip((BATCH, 2 * BATCH, 3 * BATCH), _split_at_commits(calls), strict=True):
        name = f"{end - BATCH:020}.{sink_rig.kind}"
        assert _brief(steps, name) == [
            "create",
            "write",
            "sync",
            *(["metadata synced", "metadata linked", "its folder synced"] if sink_rig.kind == "jsonl" else []),
            "check",
            "link",
            "folder synced",
            f"commit {end}",
        ]


def _split_at_commits(calls: Calls) -> list[Calls]:
    files: list[Calls] = [[]]
    for call in calls:
        files[-1].append(call)
        if call[0] == "commit":
            files.append([])
    assert files.pop() == []
    return files


def _brief(steps: Calls, name: str) -> list[str]:
    """Say what happens to the file of that name, to its metadata and to their folders, repeated writes once."""
    said = [_say(operation, subject, name) for operation, subject in steps]
    return [word for word, _ in itertools.groupby(filter(None, said))]


def _say(operation: str, subject: str, name: str) -> str:
    stem = name.partition(".")[0]
    match operation:
        case "commit":
            return f"commit {subject}"
        case "check":
            return "check"
        case "sync_folder":
            return {"chain=1": "folder synced", "_meta": "its folder synced"}.get(subject, f"{subject} synced")
        case "create" | "write" | "sync" | "link" if subject.removeprefix(".").startswith(name):
            return operation
        case "sync" | "link" if subject.removeprefix(".").startswith(stem):
            return {"sync": "metadata synced", "link": "metadata linked"}[operation]
    return ""
