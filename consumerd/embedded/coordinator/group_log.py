# SPDX-License-Identifier: Apache-2.0
"""``__consumer_offsets``: the log of groups and positions, read at the broker's start.

:class:`GroupLog` is the coordinator's port; :class:`OffsetsTopic` implements it on the topic.
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
    """There is no log: the topic does not exist yet, or is being deleted."""


class GroupRecordsTooLarge(NotWritten):
    """The records exceed the log's limits."""


class GroupLog(Protocol):
    """Durable storage of the coordinator."""

    @property
    def partitions(self) -> int | None:
        """Number of partitions; None while there is no log."""

    def is_open(self, partition: int) -> bool:
        """Return True if a partition can be read and written now."""

    def knows(self, topic: str) -> bool:
        """Return True if a topic exists; positions of other topics are deleted."""

    async def make(self) -> None:
        """Create the log, unless it exists. Raises ConsumerdError.

        Bounded by the session's calls.
        """

    async def append(self, partition: int, records: Sequence[NewRecord]) -> int:
        """Write records, all or none, in the order of the calls; return the first offset.

        Raises NotWritten. Bounded by the disk only. If it is cancelled, they may still be written.
        """

    async def replay(self, partition: int) -> JournalReplay:
        """Read a whole partition. Raises NotWritten if there is no log.

        Bounded by the disk only.
        """

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``changed`` with the names of topics that are created, deleted or extended.

        Returns a function that ends the subscription.
        """


class OffsetsTopic:
    """:class:`GroupLog` on the broker's topic ``__consumer_offsets``."""

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
        """Read a whole log, in a thread.

        Records after an unreadable place are left out, as in Kafka.
        """
        replay = JournalReplay(self._settings.offsets_retention_ms)
        try:
            at = source.start_offset
            while at < source.end_offset:
                with source.read(at, _READ_BYTES, whole_first=True) as piece:
                    data = piece.read()
                batch = decode_record_set(data, partition=partition, start=at)
                replay.read(batch.records())
                if batch.next_offset <= at:
                    break  # only offsets removed by compaction are left
                at = batch.next_offset
        except (LogError, CorruptMessageError, OSError) as error:
            log.error("groups_lost", partition=str(partition), error=str(error))  # noqa: TRY400 - it says all
        if replay.unreadable:
            log.warning("group_records_unreadable", partition=str(partition), count=replay.unreadable)
        return replay


def _partition(number: int) -> TopicPartition:
    return TopicPartition.modern(OFFSETS_TOPIC, number)
