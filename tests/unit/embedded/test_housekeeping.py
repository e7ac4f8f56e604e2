# SPDX-License-Identifier: Apache-2.0
"""What is done to logs by the clock, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.housekeeping import Housekeeper
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.recovery import CLEANED_ENDING
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.model import TopicPartition
from tests.support.broker_script import records
from tests.support.served_logs import FolderTopics
from tests.support.waiting import until


async def test_failing_log_is_told_once_and_keeps_nobody_else_from_being_tended(tmp_path: Path) -> None:
    """A disk that is gone is one warning, not one every half minute; the logs behind it in the list are tended."""
    topics = FolderTopics(tmp_path, BrokerFaults(), LogSettings())
    topics.add("failed")
    old = LogSettings(retention_ms=1000)
    topics.add("old", 1, old)
    topics.add("compacted", 1, LogSettings(cleanup_policy=CleanupPolicy.COMPACT))
    failed, aged, compacted = (_get(topics, name) for name in ("failed", "old", "compacted"))
    failed.append(records(2))
    failed.close()
    aged.append(records(2))
    compacted.append(records(2))
    written: list[int] = []
    async with Appender() as appender:
        keeper = Housekeeper(
            topics,
            appender,
            retention_check_interval_s=30,
            write_checkpoints=lambda: written.append(1),
        )
        with structlog.testing.capture_logs() as said:
            await keeper.clean()
            await keeper.clean()
    assert ["failed/0"] == [one["partition"] for one in said if one["event"] == "housekeeping_failed"]
    assert (3, 0, 2) == (aged.start_offset, compacted.start_offset, len(written))
    topics.close()


class _HeldFiles(OsLogFiles):
    """The real ones, but whoever begins to write a compacted segment waits until ``go_on``."""

    def __init__(self) -> None:
        self.compacting = threading.Event()
        self.go_on = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> int:
        """See LogFiles."""
        if path.suffix == CLEANED_ENDING:
            self.compacting.set()
            assert self.go_on.wait(20)
        return super().open(path, create=create)


async def test_appends_and_flushes_go_on_while_a_log_is_compacted(tmp_path: Path) -> None:
    """A large log takes minutes: commits of positions, which go into one, and what is promised of flushes cannot wait."""
    files = _HeldFiles()
    compacted = _open(tmp_path, "compacted", files, cleanup_policy=CleanupPolicy.COMPACT, segment_bytes=300)
    flushed = _open(tmp_path, "flushed", files, flush_interval_ms=0)
    logs = SimpleNamespace(logs=lambda: (compacted, flushed))
    for _ in range(3):
        compacted.append(records(2))
    async with Appender() as appender:
        keeper = Housekeeper(logs, appender, retention_check_interval_s=0.01, write_checkpoints=lambda: None)
        async with alongside(keeper.run(), name="housekeeping"):
            try:
                assert await asyncio.to_thread(files.compacting.wait, 20)
                async with timeout(20):
                    appended = await appender.append(compacted.partition, compacted, records(2))
                    flushed.settings = replace(flushed.settings, flush_interval_ms=None)
                    await appender.append(flushed.partition, flushed, records(2))
                    assert 3 == flushed.unflushed
                    flushed.settings = replace(flushed.settings, flush_interval_ms=0)
                await until(lambda: not flushed.unflushed)
                assert 2 == compacted.segment_count
            finally:
                files.go_on.set()
            await until(lambda: compacted.cleaned_to > 0)
    assert 11 == appended.last_offset
    compacted.close()
    flushed.close()


def _open(directory: Path, name: str, files: OsLogFiles, **settings: Any) -> PartitionLog:
    return PartitionLog.open(
        directory,
        TopicPartition.modern(name, 0),
        settings=LogSettings(min_cleanable_ratio=0.0, **settings),
        files=files,
        now_ms=lambda: 0,
    )


async def test_log_that_goes_before_its_turn_is_no_failure(tmp_path: Path) -> None:
    """Its topic was deleted: there is nothing that anybody would have to look after."""
    topics = FolderTopics(tmp_path, BrokerFaults(), LogSettings())
    topics.add("deleted")

    class Going:
        """Logs of which the only one is closed while somebody looks at it."""

        def logs(self) -> list[PartitionLog]:
            if topics.find("deleted") is None:
                return []
            return [_get(topics, "deleted")]

    async with Appender() as appender:
        keeper = Housekeeper(Going(), appender, retention_check_interval_s=30, write_checkpoints=lambda: None)
        blocked = appender.run(TopicPartition.modern("deleted", 0), lambda: time.sleep(0.05))
        with structlog.testing.capture_logs() as said:
            async with asyncio.TaskGroup() as group:
                group.create_task(blocked)
                await asyncio.sleep(0)
                group.create_task(keeper.clean())
                await asyncio.sleep(0)
                await topics.delete("deleted")
    assert [] == said
    topics.close()


def _get(topics: FolderTopics, name: str) -> PartitionLog:
    log = topics.find_log(TopicPartition.modern(name, 0))
    assert log is not None
    return log
