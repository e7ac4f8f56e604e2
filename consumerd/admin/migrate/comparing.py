# SPDX-License-Identifier: Apache-2.0
"""Compares records of the source with their copies in the target.

Both sides are read as the group would read them: committed records only. A copy has the key, value and headers of the
record, and its timestamp if it has one. Records that one side has deleted since (compaction, retention) have no
partner: they are counted, and are no difference where the target's topic is compacted, or its log begins later.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from consumerd.client.consumer_records import ConsumerRecord
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.errors import OffsetError
from consumerd.mirror.offset_map import MapPlace
from consumerd.mirror.partition_map import PartitionMap
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.record_fields import NO_TIMESTAMP

LONGEST_RECORD_BYTES: Final = 64 << 20
"""Size of the largest record that is read."""
_FETCH_BYTES: Final = 1 << 20
_MOST_DIFFERENCES: Final = 20
"""Differences of a partition that are told; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPair:
    """A source partition and its copy.

    Attributes:
        source: partition in the source.
        source_log: its log.
        target: partition in the target.
        target_log: its log.
        is_compacted: True if the target's topic is compacted.
    """

    source: TopicPartition
    source_log: LogRange
    target: TopicPartition
    target_log: LogRange
    offsets: PartitionMap
    is_compacted: bool

    def find_start(self) -> int:
        """Return the first source offset whose copy is to be in the target."""
        start = max(self.source_log.earliest, self.offsets.source_start)
        if self.offsets.translate(min(start, self.offsets.stored.source)).offset >= self.target_log.earliest:
            return start
        return max(start, self.offsets.translate_back(self.target_log.earliest).offset)

    @property
    def end(self) -> int:
        """Source offset behind the last record to compare."""
        return min(self.source_log.latest, self.offsets.stored.source)


@dataclass(slots=True, kw_only=True)
class CopyComparison:
    """Result for one partition.

    Attributes:
        compared: Number of records that were compared with their copies.
        missing: Number of records without a partner on the other side, which has deleted it.
        differences: Texts that name source and target offset, and what differs.
        more: Number of differences that are not in the list.
        digest: SHA-256 of the source's records that were compared; None if the partition was not read in full.
    """

    partition: TopicPartition
    compared: int = 0
    missing: int = 0
    differences: list[str] = field(default_factory=list)
    more: int = 0
    digest: str | None = None

    def add(self, difference: str) -> None:
        """Note a difference."""
        if len(self.differences) < _MOST_DIFFERENCES:
            self.differences.append(difference)
        else:
            self.more += 1


def find_differences(record: ConsumerRecord, copy: ConsumerRecord) -> list[str]:
    """Return the parts in which a copy differs from its record; empty if none does."""
    parts = (
        ("key", record.key, copy.key),
        ("value", record.value, copy.value),
        ("headers", tuple(record.headers), tuple(copy.headers)),
    )
    different = [name for name, one, other in parts if one != other]
    # a format without timestamps says nothing of the copy's
    if record.timestamp not in (NO_TIMESTAMP, copy.timestamp):
        different.append("timestamp")
    return different


class RecordComparer:
    """Reads both clusters, and compares records.

    Args:
        source: Reads committed records of the source.
        target: Reads committed records of the target.
    """

    def __init__(self, source: SimpleConsumer, target: SimpleConsumer) -> None:
        self._source = source
        self._target = target

    async def compare_at(self, pair: PartitionPair, position: int, result: CopyComparison) -> None:
        """Compare the record that a group at a source position reads next.

        Raises ConsumerdError if a record cannot be read.
        """
        # below the mirror's first record there are no copies, which the operator has accepted
        start = max(position, pair.source_log.earliest, pair.offsets.source_start)
        record = await find_first_record(self._source, pair.source, start, pair.end)
        if record is None or record.offset >= pair.end:
            return
        goal = pair.offsets.translate(record.offset).offset
        copy = None
        if goal >= pair.target_log.earliest:
            copy = await find_first_record(self._target, pair.target, goal, pair.offsets.stored.target)
        self._judge(pair, record, goal, copy, result)

    async def compare_all(self, pair: PartitionPair) -> CopyComparison:
        """Compare all records of a partition, in their order."""
        result, digest = CopyComparison(partition=pair.source), hashlib.sha256()
        start = pair.find_start()
        copies = _read_all(
            self._target,
            pair.target,
            max(pair.offsets.translate(min(start, pair.offsets.stored.source)).offset, pair.target_log.earliest),
            min(pair.offsets.stored.target, pair.target_log.latest),
        )
        copy = await anext(copies, None)
        shared = 0
        async for record in _read_all(self._source, pair.source, start, pair.end):
            # records of one compressed message of Kafka 0.7 have one offset, and their copies follow each other
            shared = shared + 1 if record.index else 0
            goal = pair.offsets.translate(record.offset).offset + shared
            while copy is not None and copy.offset < goal:
                _count_extra(pair, copy, result)
                copy = await anext(copies, None)
            if self._judge(pair, record, goal, copy, result):
                copy = await anext(copies, None)
            _add(digest, record)
        while copy is not None:
            _count_extra(pair, copy, result)
            copy = await anext(copies, None)
        result.digest = digest.hexdigest()
        return result

    def _judge(
        self,
        pair: PartitionPair,
        record: ConsumerRecord,
        goal: int,
        copy: ConsumerRecord | None,
        result: CopyComparison,
    ) -> bool:
        """Compare a record with the first copy at or after its target offset.

        Returns True if they belong together.
        """
        named = f"{pair.source} offset {record.offset}, {pair.target} offset {goal}"
        if pair.offsets.translate_back(goal).offset != record.offset:
            result.add(f"{pair.source} offset {record.offset}: the mirror has left the record out")
            return False
        if copy is None or copy.offset != goal:
            if pair.is_compacted or goal < pair.target_log.earliest:
                result.missing += 1
            else:
                result.add(f"{named}: the record is not in the target")
            return False
        result.compared += 1
        if different := find_differences(record, copy):
            result.add(f"{named}: different {', '.join(different)}")
        return True


def _count_extra(pair: PartitionPair, copy: ConsumerRecord, result: CopyComparison) -> None:
    """Count a record of the target that has no partner in the source."""
    stored = pair.offsets.stored
    if stored.counts_bytes or pair.offsets.translate(pair.offsets.translate_back(copy.offset).offset) == (
        copy.offset,
        MapPlace.RECORD,
    ):
        result.missing += 1  # the mirror has copied it, and the source has deleted it since
    else:
        result.add(f"{pair.target} offset {copy.offset}: another client has written it, or it is there twice")


async def find_first_record(
    consumer: SimpleConsumer, partition: TopicPartition, position: int, end: int
) -> ConsumerRecord | None:
    """Return the first record from a position to before an end; None without one."""
    async for record in _read_all(consumer, partition, position, end, max_bytes=64 << 10):
        return record
    return None


async def _read_all(
    consumer: SimpleConsumer, partition: TopicPartition, position: int, end: int, max_bytes: int = _FETCH_BYTES
) -> AsyncIterator[ConsumerRecord]:
    """Yield a partition's records from a position to before an offset.

    Raises OffsetError if nothing can be read there, though the log has not ended.
    """
    while position < end:
        fetched = await consumer.fetch(partition, position, max_bytes=max_bytes)
        for record in fetched.records():
            if record.offset >= end:
                return
            yield record
        if fetched.batch.next_offset <= position:
            raise OffsetError(f"{partition}: nothing can be read at {position}, though its log goes on to {end}")
        position = fetched.batch.next_offset


def _add(digest: hashlib._Hash, record: ConsumerRecord) -> None:
    for part in (record.key, record.value, *(text for header in record.headers for text in header)):
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data) + data)
