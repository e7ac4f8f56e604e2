# SPDX-License-Identifier: Apache-2.0
"""``__consumer_offsets``: where groups and positions are written, and read when the broker starts.

:class:`GroupLog` is the port that the coordinator writes through; :class:`OffsetsTopic` is the topic itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from consumerd.embedded.appending import Appender
from consumerd.embedded.coordinator.journal import JournalReplay
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.log.errors import LogError, LogRecordTooLarge, RecordSetTooLarge
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.topic_names import OFFSETS_TOPIC
from consumerd.embedded.topics import TopicExists, Topics
from consumerd.errors import ConsumerdError, CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import NewRecord, build_record_set
from consumerd.wire.modern.record_set import decode_record_set

_READ_BYTES: Final = 1 << 20

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NotWritten(ConsumerdError):
    """The records were not written."""


class NoLog(NotWritten):
    """There is no log to write to: the topic is not there yet, or just going."""


class GroupRecordsTooLarge(NotWritten):
    """The records are larger than the log takes."""


class GroupLog(Protocol):
    """Where the coordinator keeps what must outlive it."""

    @property
    def partitions(self) -> int | None:
        """How many partitions there are; None while there is no log."""

    def is_open(self, partition: int) -> bool:
        """Whether a partition can be read and written now."""

    def knows(self, topic: str) -> bool:
        """Whether there is such a topic, of whatever kind: positions of others are forgotten."""

    async def make(self) -> None:
        """Make the log; it is fine if there is one. Raises ConsumerdError. Bounded by the session's calls."""

    async def append(self, partition: int, records: Sequence[NewRecord]) -> int:
        """Write records, all or none, in the order of the calls; return the first one's offset.

        Raises NotWritten. Bounded by the disk alone. Cancelled, they may be written all the same.
        """

    async def replay(self, partition: int) -> JournalReplay:
        """Read all that is in a partition. Raises NotWritten (there is no log). Bounded by the disk alone."""

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call back with the names of topics that came, went or grew; return what ends it."""


class OffsetsTopic:
    """The topic, in the broker's own logs; :class:`GroupLog` over them."""

    def __init__(self, topics: Topics, appender: Appender, settings: CoordinatorSettings) -> None:
        self._topics = topics
        self._appender = appender
        self._settings = settings

    @property
    def partitions(self) -> int | None:
        """See GroupLog."""
        numbers = self._topics.partitions(OFFSETS_TOPIC)
        return len(numbers) if numbers else None

    def is_open(self, partition: int) -> bool:
        """See GroupLog."""
        return self._topics.find_log(_partition(partition)) is not None

    def knows(self, topic: str) -> bool:
        """See GroupLog."""
        return self._topics.find(topic) is not None

    async def make(self) -> None:
        """See GroupLog."""
        config = {
            "segment.bytes": str(self._settings.offsets_topic_segment_bytes),
            "cleanup.policy": "compact",
            "compression.type": "producer",
        }
        if self._settings.release < (0, 9):
            del config["compression.type"]
        try:
            await self._topics.create(OFFSETS_TOPIC, self._settings.offsets_topic_partitions, config)
        except TopicExists:
            log.debug("offsets_topic_exists")

    async def append(self, partition: int, records: Sequence[NewRecord]) -> int:
        """See GroupLog."""
        target = self._find(partition)
        data = build_record_set(records, magic=target.settings.message_format)
        try:
            appended = await self._appender.append(_partition(partition), target, data)
        except (LogRecordTooLarge, RecordSetTooLarge) as error:
            raise GroupRecordsTooLarge(str(error)) from error
        except LogError as error:
            raise NotWritten(str(error)) from error
        return appended.base_offset

    async def replay(self, partition: int) -> JournalReplay:
        """See GroupLog."""
        return await asyncio.to_thread(self._read, _partition(partition), self._find(partition))

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See GroupLog."""
        return self._topics.subscribe(changed)

    def _find(self, partition: int) -> PartitionLog:
        found = self._topics.find_log(_partition(partition))
        if found is None:
            raise NoLog(f"{_partition(partition)}: there is no log")
        return found

    def _read(self, partition: TopicPartition, source: PartitionLog) -> JournalReplay:
        """Read a whole log, in a thread. What follows a place that cannot be read is left out, as Kafka does."""
        replay = JournalReplay(self._settings.offsets_retention_ms)
        try:
            at = source.start_offset
            while at < source.end_offset:
                with source.read(at, _READ_BYTES, whole_first=True) as piece:
                    data = piece.read()
                batch = decode_record_set(data, partition=partition, start=at)
                replay.read(batch.records())
                if batch.next_offset <= at:
                    break  # nothing but what compaction has removed is left
                at = batch.next_offset
        except (LogError, CorruptMessageError, OSError) as error:
            log.error("groups_lost", partition=str(partition), error=str(error))  # noqa: TRY400 - it says all
        if replay.unreadable:
            log.warning("group_records_unreadable", partition=str(partition), count=replay.unreadable)
        return replay


def _partition(number: int) -> TopicPartition:
    return TopicPartition.modern(OFFSETS_TOPIC, number)
