# SPDX-License-Identifier: Apache-2.0
"""``__consumer_offsets`` on disk: what was committed is read again, in every message format, compacted or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from consumerd.embedded.appending import Appender
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.journal import Journal
from consumerd.embedded.coordinator.positions import CoordinatedPosition
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.state_topic import NoLog, StateTooLarge
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.embedded.topics import OFFSETS_TOPIC, Topics
from consumerd.model import TopicPartition

JOURNAL = Journal(offset_version=1, group_version=1)
PARTITIONS = [TopicPartition.modern("t", number) for number in range(7)]
COMMITS = 500


class OneLog:
    """A catalogue with one partition of the offsets topic, on disk."""

    def __init__(self, directory: Path, **settings: object) -> None:
        chosen = {
            "segment_bytes": 2048,
            "cleanup_policy": CleanupPolicy.COMPACT,
            "min_cleanable_ratio": 0.0,
            **settings,
        }
        self.log = PartitionLog.open(
            directory,
            TopicPartition.modern(OFFSETS_TOPIC, 0),
            settings=LogSettings(**chosen),  # type: ignore[arg-type]  # passed on as they came
            files=OsLogFiles(),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )

    def partitions(self, topic: str) -> Sequence[int] | None:
        return (0,) if topic == OFFSETS_TOPIC else None

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        return self.log if partition.partition.number == 0 else None

    def is_follower(self, partition: TopicPartition) -> bool:
        return False

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        raise AssertionError("it is there")

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        return lambda: None


def position(number: int) -> CoordinatedPosition:
    return CoordinatedPosition(offset=number, metadata=f"commit {number}", commit_ms=1, expire_ms=2)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
async def test_the_last_commits_are_read_again(magic: int, tmp_path: Path, *, compacted: bool) -> None:
    """Hundreds of commits in many segments; compaction may leave little more than the last ones, and changes nothing."""
    catalogue = OneLog(tmp_path, message_format=magic)
    async with Appender() as appender:
        offsets = OffsetsTopic(cast("Topics", catalogue), appender, CoordinatorSettings())
        for number in range(COMMITS):
            partition = PARTITIONS[number % len(PARTITIONS)]
            await offsets.append(0, [JOURNAL.position("g", partition, position(number), 1)])
        await offsets.append(0, [JOURNAL.position_end("g", PARTITIONS[0], 1)])
        before = catalogue.log.size_bytes
        if compacted:
            await asyncio.to_thread(catalogue.log.compact)
        after = catalogue.log.size_bytes
        catalogue.log.close()
        catalogue.log = OneLog(tmp_path, message_format=magic).log
        replay = await offsets.replay(0)
        catalogue.log.close()

    last = {PARTITIONS[number % len(PARTITIONS)]: position(number) for number in range(COMMITS)}
    del last[PARTITIONS[0]]
    assert last == replay.positions["g"].all
    assert (after < before / 10) == compacted


async def test_what_the_log_does_not_take_is_said_by_name(tmp_path: Path) -> None:
    """Each of them is another error for the client."""
    catalogue = OneLog(tmp_path, max_message_bytes=200)
    async with Appender() as appender:
        offsets = OffsetsTopic(cast("Topics", catalogue), appender, CoordinatorSettings())
        large = CoordinatedPosition(offset=1, metadata="x" * 300, commit_ms=1, expire_ms=2)
        with pytest.raises(StateTooLarge):
            await offsets.append(0, [JOURNAL.position("g", PARTITIONS[0], large, 1)])
        with pytest.raises(NoLog):
            await offsets.append(1, [JOURNAL.position("g", PARTITIONS[0], position(1), 1)])
        with pytest.raises(NoLog):
            await offsets.replay(1)
        assert 0 == await offsets.append(0, [JOURNAL.position("g", PARTITIONS[0], position(1), 1)])
        catalogue.log.close()
