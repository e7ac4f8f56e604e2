"""What is done to logs by the clock, and what becomes of one that fails."""

from __future__ import annotations

from pathlib import Path

import structlog

from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import Faults
from consumerd.embedded.housekeeping import Housekeeper
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.model import TopicPartition
from tests.support.broker_script import records
from tests.support.served_logs import FolderTopics


async def test_failing_log_is_told_once_and_keeps_nobody_else_from_being_tended(tmp_path: Path) -> None:
    """A disk that is gone is one warning, not one every half minute; the logs behind it in the list are tended."""
    topics = FolderTopics(tmp_path, Faults(), LogSettings())
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
            now=lambda: 0.0,
        )
        with structlog.testing.capture_logs() as said:
            await keeper.clean()
            await keeper.clean()
    assert ["failed/0"] == [one["partition"] for one in said if one["event"] == "housekeeping_failed"]
    assert (3, 0, 2) == (aged.start_offset, compacted.start_offset, len(written))
    topics.close()


def _get(topics: FolderTopics, name: str) -> PartitionLog:
    log = topics.find_log(TopicPartition.modern(name, 0))
    assert log is not None
    return log
