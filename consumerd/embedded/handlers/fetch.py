"""Fetch: parts of logs, as they lie in their files, now or when there is enough.

What is answered and when is Kafka 1.1's (ReplicaManager.fetchMessages and readFromLocalLog, DelayedFetch):

- At once, if nobody wants to wait, ``min_bytes`` are there, or any partition has an error. Otherwise when that many bytes
  have been appended, when the time is over, or when the peer has gone.
- A partition that fails has no records and -1 for each of its offsets.
- Before version 3 each partition is cut at its own limit, in the middle of a unit if need be, so that a unit above the
  limit never arrives whole. From 3 on ``max_bytes`` bounds the whole answer, in the order asked for; the first unit of the
  first partition that has any comes whole, however large; a partition whose first unit does not fit has no records.
- Versions 0 and 1 read magic 0, 2 and 3 magic 1, later ones what there is. What must be converted is no part of a file any
  more: it is converted in a thread, and takes memory.

Where a partition's records lie is looked up on the loop: an index in memory, and a few KiB of the segment around its entry,
which a consumer that keeps up finds in the page cache. The records themselves are not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, cast

from consumerd.embedded.faults import Faults
from consumerd.embedded.handlers.codes import old_code_of
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.handlers.converting import convert_slice, is_cut, needs_conversion
from consumerd.embedded.handlers.refusals import refused_fetch
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.slices import LogSlice
from consumerd.embedded.long_polls import LongPolls
from consumerd.embedded.reply import FileRange, FileResponse
from consumerd.embedded.topics import Topics
from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.fetch import (
    READ_COMMITTED,
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

_FIRST_WITH_WHOLE_UNIT: Final = 3
_FIRST_WITH_STABLE_OFFSET: Final = 4
_FIRST_WITH_LOG_START: Final = 5

_MAX_ANSWER_BYTES: Final = 1 << 30
"""What one answer holds at most, so that it fits into a frame."""
_MAX_CONVERTED_BYTES: Final = 64 << 20
"""What one answer converts at most: partitions behind it are left to the next request."""


@dataclass(slots=True)
class _Part:
    """What was read of one partition that was asked for."""

    asked: FetchPartition
    partition: TopicPartition | None = None
    log: PartitionLog | None = None
    slice: LogSlice | None = None
    error: ErrorCode = ErrorCode.NONE
    size: int = 0
    end_offset: int = -1


@dataclass(slots=True)
class _Reading:
    """What was read of all of them, topic by topic."""

    topics: list[tuple[str, list[_Part]]] = field(default_factory=list)

    def __iter__(self) -> Iterator[_Part]:
        for _, parts in self.topics:
            yield from parts

    @property
    def failed(self) -> bool:
        return any(part.error for part in self)

    @property
    def size(self) -> int:
        return sum(part.size for part in self)

    def rooms(self) -> dict[TopicPartition, int]:
        """Return how much each partition may still add to the answer."""
        return {
            part.partition: max(part.asked.partition_max_bytes - part.size, 0)
            for part in self
            if part.partition is not None
        }

    def close(self) -> None:
        for part in self:
            if part.slice is not None:
                part.slice.close()


class FetchHandler:
    """Reads from ``topics``' logs; who waits is in ``polls``, which hears of appends."""

    def __init__(self, topics: Topics, polls: LongPolls, faults: Faults) -> None:
        self._topics = topics
        self._polls = polls
        self._faults = faults

    async def __call__(self, request: FetchRequest, context: RequestContext) -> FileResponse:
        """Read, wait if there is too little, and answer. Bounded by ``max_wait_ms``, which the client chooses."""
        reading = self._read(request, context.version)
        if request.max_wait_ms > 0:
            least = min(request.min_bytes, request.max_bytes)
            until = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
            while not self._is_enough(reading, least, until, context):
                rooms, missing = reading.rooms(), least - reading.size
                reading.close()
                await self._polls.wait(rooms, missing, until=until, hangup=context.hangup)
                reading = self._read(request, context.version)
        try:
            return await self._respond(request, reading, context.version)
        except BaseException:
            reading.close()
            raise

    def _is_enough(self, reading: _Reading, least: int, until: float, context: RequestContext) -> bool:
        return (
            not reading.topics
            or reading.failed
            or reading.size >= least
            or context.hangup.happened
            or asyncio.get_running_loop().time() >= until
        )

    # -- reading

    def _read(self, request: FetchRequest, version: int) -> _Reading:
        whole = version >= _FIRST_WITH_WHOLE_UNIT
        left = min(max(request.max_bytes, 0), _MAX_ANSWER_BYTES) if whole else _MAX_ANSWER_BYTES
        empty = True
        reading = _Reading()
        for topic, asked in _ask_once(request).items():
            parts = []
            for one in asked.values():
                part = self._find(topic, one)
                if part.log is not None:
                    room = min(max(one.partition_max_bytes, 0), left)
                    _read_part(part, part.log, room, whole=whole, whole_first=whole and empty)
                    left = max(left - part.size, 0)
                    empty = empty and not part.size
                parts.append(part)
            reading.topics.append((topic, parts))
        return reading

    def _find(self, topic: str, asked: FetchPartition) -> _Part:
        partition = TopicPartition.modern(topic, asked.partition) if asked.partition >= 0 else None
        log = self._topics.find_log(partition) if partition is not None else None
        if partition is None or log is None:
            return _Part(asked, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self._faults.find_leader(partition) is not None:
            return _Part(asked, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return _Part(asked, partition, log)

    # -- answering

    async def _respond(self, request: FetchRequest, reading: _Reading, version: int) -> FileResponse:
        """Put what was read into an answer, which owns its slices from then on."""
        committed = request.isolation_level == READ_COMMITTED
        convertible = _MAX_CONVERTED_BYTES
        topics = []
        for topic, parts in reading.topics:
            fetched = []
            for part in parts:
                records: bytes | FileRange = b""
                if part.slice is not None and part.log is not None:
                    if needs_conversion(part.slice, part.log, version):
                        records = await self._convert(part, version) if convertible > 0 else b""
                        convertible -= part.size
                    else:
                        records = FileRange(part.slice.descriptor, part.slice.position, part.size)
                fetched.append(_describe(part, records, version, committed=committed))
            topics.append(FetchedTopic(topic=topic, partitions=tuple(fetched)))
        owners = [part.slice for part in reading if part.slice is not None]
        return FileResponse(response=FetchResponse(topics=tuple(topics)), owners=owners)

    async def _convert(self, part: _Part, version: int) -> bytes:
        assert part.slice is not None
        try:
            return await asyncio.to_thread(convert_slice, part.slice, part.asked.fetch_offset, version)
        except ConsumerdError as error:
            part.error = old_code_of(error)
            return b""


def _ask_once(request: FetchRequest) -> dict[str, dict[int, FetchPartition]]:
    """Return what is asked of each partition, by topic; of what is asked twice the last counts, as it does in Kafka's map."""
    asked: dict[str, dict[int, FetchPartition]] = {}
    for topic in request.topics:
        asked.setdefault(topic.topic, {}).update({one.partition: one for one in topic.partitions})
    return asked


def _read_part(part: _Part, log: PartitionLog, room: int, *, whole: bool, whole_first: bool) -> None:
    """Read up to ``room`` bytes; ``whole``: nothing, if not even the first unit fits."""
    try:
        found = log.read(part.asked.fetch_offset, room, whole_first=whole_first)
    except LogError as error:
        part.error = old_code_of(error)
        return
    # after the read: it never shows more than the high watermark that is told with it
    part.end_offset = log.end_offset
    if not found.size or (whole and not whole_first and found.size >= room and is_cut(found)):
        found.close()
    else:
        part.slice, part.size = found, found.size


def _describe(part: _Part, records: bytes | FileRange, version: int, *, committed: bool) -> FetchedPartition:
    if part.error or part.log is None:
        return refused_fetch(part.asked.partition, part.error)
    # asked for by read_committed alone; without transactions everything is stable
    stable = committed and version >= _FIRST_WITH_STABLE_OFFSET
    aborted: tuple[AbortedTransaction, ...] | None = () if stable else None
    return FetchedPartition(
        partition=part.asked.partition,
        high_watermark=part.end_offset,
        last_stable_offset=part.end_offset if stable else -1,
        log_start_offset=part.log.start_offset if version >= _FIRST_WITH_LOG_START else -1,
        aborted_transactions=aborted,
        record_set=cast("bytes", records),  # a file range has a length, which is all that the codec asks for
    )
