# SPDX-License-Identifier: Apache-2.0
"""The coordinator's log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from consumerd.embedded.appending import Ended
from consumerd.embedded.coordinator.journal import JournalReplay
from consumerd.embedded.coordinator.state_topic import NotWritten
from consumerd.embedded.topics import OFFSETS_TOPIC
from consumerd.model import BrokerId, TimestampType
from consumerd.wire.records import NewRecord, Record


class MemoryLog:
    """A OffsetsTopic that keeps records in lists, and can be slow, full, or away."""

    def __init__(self, partitions: int | None = 2, *, retention_ms: int = 24 * 60 * 60 * 1000) -> None:
        self.partitions = partitions
        self._retention_ms = retention_ms
        self.records: dict[int, list[NewRecord]] = {}
        self.missing: set[str] = set()
        self.failure: NotWritten | None = None
        self.writing = asyncio.Event()
        self.writing.set()
        self.reading = asyncio.Event()
        self.reading.set()
        self.made = 0
        self.led_by: dict[int, BrokerId] = {}
        self.epoch = 0
        self._changed: list[Callable[[frozenset[str]], None]] = []

    def is_open(self, partition: int) -> bool:
        """Whether there is a log, and broker 0 leads it."""
        return self.partitions is not None and partition not in self.led_by

    def leader(self, partition: int) -> BrokerId | None:
        """Broker 0, or another one that the test says."""
        return self.led_by.get(partition, BrokerId(0)) if self.partitions is not None else None

    def leader_epoch(self, partition: int) -> int | None:
        """The one that the test says, while broker 0 leads."""
        return self.epoch if self.is_open(partition) else None

    def knows(self, topic: str) -> bool:
        """All but what the test says is missing."""
        return topic not in self.missing

    async def make(self) -> None:
        """Make it, with two partitions."""
        self.made += 1
        self.partitions = 2
        self.tell(OFFSETS_TOPIC)

    def tell(self, *topics: str) -> None:
        """Say that these topics have changed."""
        for changed in self._changed:
            changed(frozenset(topics))

    async def append(self, partition: int, records: Sequence[NewRecord]) -> int:
        """Keep records, when writing is allowed."""
        await self.writing.wait()
        if self.failure is not None:
            raise self.failure
        kept = self.records.setdefault(partition, [])
        kept.extend(records)
        return len(kept) - len(records)

    async def replay(self, partition: int) -> JournalReplay:
        """Read them, when reading is allowed."""
        await self.reading.wait()
        replay = JournalReplay(self._retention_ms)
        replay.read(
            Record(offset=offset, timestamp=0, timestamp_type=TimestampType.CREATE_TIME, key=one.key, value=one.value)
            for offset, one in enumerate(self.records.get(partition, ()))
        )
        return replay

    def subscribe_markers(self, ended: Ended) -> Callable[[], None]:
        """Nothing ends here."""
        assert callable(ended)
        return lambda: None

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call back with what :meth:`tell` is told."""
        self._changed.append(changed)
        return lambda: self._changed.remove(changed)
