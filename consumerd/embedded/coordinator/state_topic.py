# SPDX-License-Identifier: Apache-2.0
"""Topics in which coordinators keep their state: ``__consumer_offsets`` and ``__transaction_state``.

A broker that becomes the leader of a partition reads it. All brokers of a process share the log. A new leader reads it
behind the appends that the previous leader has queued, so an acknowledged commit is never missed:

1. Broker 0 queues a commit, and its thread writes it.
2. The leadership moves to broker 1: broker 0 queues nothing more.
3. Broker 1 queues its reading behind the commit, and finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from consumerd.embedded.appending import Appender, Ended
from consumerd.embedded.log.errors import LogError, LogRecordTooLarge, RecordSetTooLarge
from consumerd.embedded.log.headers import walk_headers
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.producers import NO_SEQUENCE, find_owner
from consumerd.embedded.topics import TopicExists, Topics
from consumerd.errors import ConsumerdError, CorruptMessageError
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.modern.building import build_batch, build_record_set, encode_headers
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import NewRecord, Record

_READ_BYTES: Final = 1 << 20

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NotWritten(ConsumerdError):
    """Records of a coordinator's state were not written to its topic."""


class NoLog(NotWritten):
    """The topic does not exist yet, or is being deleted: nothing was written."""


class StateTooLarge(NotWritten):
    """Records of a coordinator's state exceed the size limits of its topic."""


class StateTopic:
    """A compacted topic of a coordinator.

    Args:
        name: Its name.
        partitions_of_new: Number of partitions with which it is created.
        config: Settings with which it is created.
    """

    def __init__(
        self, name: str, topics: Topics, appender: Appender, *, partitions_of_new: int, config: Mapping[str, str]
    ) -> None:
        self.name: Final = name
        self._topics = topics
        self._appender = appender
        self._partitions_of_new = partitions_of_new
        self._config = config

    @property
    def partitions(self) -> int | None:
        """Number of partitions; None while the topic does not exist."""
        topic = self._topics.find(self.name)
        return len(topic.partitions) if topic is not None and topic.partitions else None

    def is_open(self, partition: int) -> bool:
        """Return True if a partition can be read and written now."""
        return self._topics.find_log(self.key(partition)) is not None

    def leader(self, partition: int) -> BrokerId | None:
        """Return the broker that leads a partition; None without a leader."""
        state = self._topics.find_state(self.key(partition))
        return None if state is None else state.leader

    def leader_epoch(self, partition: int) -> int | None:
        """Return the leader epoch of a partition; None if another broker leads it."""
        state = self._topics.find_state(self.key(partition))
        return state.leader_epoch if state is not None and self.is_open(partition) else None

    async def make(self) -> None:
        """Create the topic if it does not exist. Raises ConsumerdError."""
        try:
            await self._topics.create(self.name, self._partitions_of_new, self._config)
        except TopicExists:
            log.debug("state_topic_exists", topic=self.name)

    async def append(self, partition: int, records: Sequence[NewRecord]) -> int:
        """Write records to a partition, all or none; return the first offset.

        Calls are carried out in order. It takes as long as the disk. If it is cancelled, the records may still be
        written. Raises NotWritten.
        """
        target = self._find(partition)
        data = build_record_set(records, magic=target.settings.message_format)
        try:
            appended = await self._appender.append(self.key(partition), target, data)
        except (LogRecordTooLarge, RecordSetTooLarge) as error:
            raise StateTooLarge(str(error)) from error
        except LogError as error:
            raise NotWritten(str(error)) from error
        return appended.base_offset

    async def append_in_transaction(
        self, partition: int, records: Sequence[NewRecord], producer_id: int, epoch: int
    ) -> int:
        """Write records of a producer's transaction; return the first offset.

        They count from its commit marker on. As :meth:`append`; also raises StaleEpoch.
        """
        target = self._find(partition)

        def build(base_offset: int) -> bytes:
            rows = [
                (offset, one.timestamp, one.key, one.value, encode_headers(one.headers))
                for offset, one in enumerate(records, base_offset)
            ]
            owner = (producer_id, epoch, NO_SEQUENCE)
            return build_batch(rows, base_offset=base_offset, leader_epoch=0, producer=owner, transactional=True)

        return (await self._appender.append_own(self.key(partition), target, build)).base_offset

    async def read(self, partition: int, take: Callable[[Sequence[Record]], None]) -> dict[int, list[Record]]:
        """Read a whole partition; return the records of each open transaction, by producer id.

        ``take`` gets all other records, in a thread: those of a transaction when its commit marker is read. It takes as
        long as the disk. Raises NotWritten if the topic does not exist.
        """
        source = self._find(partition)
        await self._appender.run(self.key(partition), lambda: None)
        return await asyncio.to_thread(self._read, self.key(partition), source, take)

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``changed`` with the names of topics that are created, deleted or extended.

        Returns a function that ends the subscription.
        """
        return self._topics.subscribe(changed)

    def subscribe_markers(self, ended: Ended) -> Callable[[], None]:
        """Call ``ended`` after each marker of a transaction, in any log.

        Returns a function that ends the subscription.
        """
        return self._appender.subscribe_markers(ended)

    def key(self, number: int) -> TopicPartition:
        """Return the partition with a number."""
        return TopicPartition.modern(self.name, number)

    def _find(self, partition: int) -> PartitionLog:
        found = self._topics.find_log(self.key(partition))
        if found is None and self._topics.is_follower(self.key(partition)):
            raise NotWritten(f"{self.key(partition)}: another broker leads it")
        if found is None:
            raise NoLog(f"{self.key(partition)}: there is no log")
        return found

    def _read(
        self, partition: TopicPartition, source: PartitionLog, take: Callable[[Sequence[Record]], None]
    ) -> dict[int, list[Record]]:
        """Read a whole log. Blocks.

        Records after an unreadable place are left out, as in Kafka.
        """
        undecided: dict[int, list[Record]] = {}
        try:
            at = source.start_offset
            while at < source.end_offset:
                with source.read(at, _READ_BYTES, whole_first=True) as piece:
                    data = piece.read()
                before = at
                for unit in walk_headers(data):
                    _read_unit(data[unit.position : unit.end], unit.magic, partition, undecided, take)
                    at = unit.last_offset + 1
                if at == before:
                    break  # only offsets removed by compaction are left
        except (LogError, CorruptMessageError, OSError) as error:
            log.error("state_lost", partition=str(partition), error=str(error))  # noqa: TRY400 - it says all
        return undecided


def _read_unit(
    unit: bytes,
    magic: int,
    partition: TopicPartition,
    undecided: dict[int, list[Record]],
    take: Callable[[Sequence[Record]], None],
) -> None:
    owner = find_owner(unit) if magic == BATCH_MAGIC else None
    if owner is not None and owner.is_control:
        records = undecided.pop(owner.producer_id, [])
        if not owner.is_abort:
            take(records)
        return
    records = list(decode_record_set(unit, partition=partition, start=0).records())
    if owner is not None and owner.is_transactional:
        undecided.setdefault(owner.producer_id, []).extend(records)
    else:
        take(records)
