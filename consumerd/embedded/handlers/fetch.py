# SPDX-License-Identifier: Apache-2.0
"""Fetch: slices of logs, sent as they are stored, now or when there is enough.

Content and time of the response follow Kafka 1.1 (ReplicaManager.fetchMessages and readFromLocalLog, DelayedFetch):

- The response is immediate if the client does not want to wait, ``min_bytes`` are there, or a partition has an error.
  It is also immediate if records come from an older segment, since a response ends at the end of a segment, and appends
  cannot extend it. Otherwise it is sent when enough bytes are appended, the time is over, or the peer disconnects.
- A partition with an error has no records, and -1 for all of its offsets.
- Before version 3, each partition is cut at its own limit, within a unit if necessary, so a unit above the limit never
  arrives complete. From version 3 on, ``max_bytes`` limits the whole response, in the order requested. The first unit
  of the first partition with records is sent complete, however large; a partition whose first unit does not fit has no
  records.
- Versions 0 and 1 return magic 0, versions 2 and 3 magic 1, later ones the stored format. Converted records do not come
  from a file any more: they are converted in a thread, and take memory, so responses to these versions are limited.

The position of records is looked up on the event loop, from an index in memory and a few KiB of the segment around it.
For a consumer that keeps up, these are in the page cache. The records themselves are not read.

Example: ``min_bytes`` 1,000, ``max_wait_ms`` 500, one partition with 400 bytes. The fetch waits for 600 more bytes, or
500 ms, and then reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, cast

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.codes import get_log, old_code_of
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.handlers.converting import (
    NEWEST_MAGIC,
    convert_slice,
    is_cut,
    magic_read_by,
    needs_conversion,
)
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
"""Largest size of the records of a response, so that it fits into a frame."""
_MAX_CONVERTED_BYTES: Final = 64 << 20
"""Limit, in bytes, of the records of a response that may have to be converted, before and after conversion.

One unit may exceed it. The next request gets the rest.
"""


@dataclass(slots=True)
class _Part:
    """The slice read of one requested partition."""

    asked: FetchPartition
    partition: TopicPartition | None = None
    log: PartitionLog | None = None
    slice: LogSlice | None = None
    error: ErrorCode = ErrorCode.NONE
    available: int = 0
    """Bytes available within its limit, including those of a unit too large to be sent."""
    is_older: bool = False
    """True if they are in a segment that is not appended to any more."""
    start_offset: int = -1
    end_offset: int = -1
    stable_offset: int = -1
    """Last stable offset, at which the records of a read_committed fetch end."""

    @property
    def size(self) -> int:
        """Bytes to be sent, unless converted."""
        return self.slice.size if self.slice is not None else 0

    def fail(self, error: ConsumerdError | OSError) -> None:
        """Replace the records by an error."""
        self.error = old_code_of(error)
        self.drop()

    def drop(self) -> None:
        """Release the slice."""
        if self.slice is not None:
            self.slice.close()
            self.slice = None


@dataclass(slots=True)
class _Reading:
    """The slices read of all requested partitions, by topic."""

    topics: list[tuple[str, list[_Part]]] = field(default_factory=list)

    def __iter__(self) -> Iterator[_Part]:
        for _, parts in self.topics:
            yield from parts

    @property
    def is_final(self) -> bool:
        """True if waiting cannot add to it."""
        return not self.topics or any(part.error or part.is_older for part in self)

    @property
    def available(self) -> int:
        return sum(part.available for part in self)

    def rooms(self) -> dict[TopicPartition, int]:
        """Return the bytes that each partition can still add to the response."""
        return {
            part.partition: max(part.asked.partition_max_bytes - part.available, 0)
            for part in self
            if part.partition is not None
        }

    def close(self) -> None:
        for part in self:
            part.drop()


class FetchHandler:
    """Handler of Fetch: reads from the logs of ``topics``; requests that wait are in ``polls``."""

    def __init__(self, topics: Topics, polls: LongPolls, faults: BrokerFaults) -> None:
        self._topics = topics
        self._polls = polls
        self._faults = faults

    async def __call__(self, request: FetchRequest, context: RequestContext) -> FileResponse:
        """Read the requested records, and respond.

        If there are fewer than ``min_bytes``, it waits for at most ``max_wait_ms``.
        """
        reading = self._read(request, context.version)
        if request.max_wait_ms > 0:
            least = min(request.min_bytes, request.max_bytes)
            until = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
            while not self._is_enough(reading, least, until, context):
                rooms, missing = reading.rooms(), least - reading.available
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
            reading.is_final
            or reading.available >= least
            or context.hangup.happened
            or asyncio.get_running_loop().time() >= until
        )

    # -- reading

    def _read(self, request: FetchRequest, version: int) -> _Reading:
        reading = _Reading()
        try:
            self._read_into(reading, request, version)
        except BaseException:
            reading.close()
            raise
        return reading

    def _read_into(self, reading: _Reading, request: FetchRequest, version: int) -> None:
        whole = version >= _FIRST_WITH_WHOLE_UNIT
        left = _MAX_ANSWER_BYTES if magic_read_by(version) == NEWEST_MAGIC else _MAX_CONVERTED_BYTES
        if whole:
            left = min(max(request.max_bytes, 0), left)
        empty = True
        committed = request.isolation_level == READ_COMMITTED
        for topic, asked in _ask_once(request).items():
            parts: list[_Part] = []
            reading.topics.append((topic, parts))
            for one in asked.values():
                part = self._find(topic, one)
                parts.append(part)
                if part.log is not None:
                    room = min(max(one.partition_max_bytes, 0), left)
                    _read_part(part, part.log, room, whole=whole, whole_first=whole and empty, committed=committed)
                    left = max(left - part.size, 0)
                    empty = empty and not part.size

    def _find(self, topic: str, asked: FetchPartition) -> _Part:
        log = get_log(self._topics, self._faults, topic, asked.partition)
        return _Part(asked, error=log) if isinstance(log, ErrorCode) else _Part(asked, log.partition, log)

    # -- responding

    async def _respond(self, request: FetchRequest, reading: _Reading, version: int) -> FileResponse:
        """Build the response, which owns the slices from then on."""
        committed = request.isolation_level == READ_COMMITTED
        topics = []
        left = _MAX_CONVERTED_BYTES
        for topic, parts in reading.topics:
            fetched = []
            for part in parts:
                records = await _give(part, version, left)
                if isinstance(records, bytes):
                    if len(records) > left < _MAX_CONVERTED_BYTES:
                        records = b""  # only the first partition with records may exceed the limit, by one unit
                    left -= len(records)
                fetched.append(_describe(part, records, version, committed=committed))
            topics.append(FetchedTopic(topic=topic, partitions=tuple(fetched)))
        owners = [part.slice for part in reading if part.slice is not None]
        return FileResponse(response=FetchResponse(topics=tuple(topics)), owners=owners)


def _ask_once(request: FetchRequest) -> dict[str, dict[int, FetchPartition]]:
    """Return the requested partitions by topic; of duplicates the last counts, as in Kafka."""
    asked: dict[str, dict[int, FetchPartition]] = {}
    for topic in request.topics:
        asked.setdefault(topic.topic, {}).update({one.partition: one for one in topic.partitions})
    return asked


def _read_part(part: _Part, log: PartitionLog, room: int, *, whole: bool, whole_first: bool, committed: bool) -> None:
    """Read up to ``room`` bytes; with ``whole``, nothing if the first unit does not fit."""
    offset = part.asked.fetch_offset
    stable = log.last_stable_offset
    try:
        part.slice = found = log.read(offset, room, whole_first=whole_first, before=stable if committed else None)
        too_large = whole and not whole_first and found.size >= room and is_cut(found)
    except (LogError, OSError) as error:
        part.fail(error)
        return
    # read the end after the slice, so that no record is at or above the high watermark of the response
    part.start_offset, part.end_offset, part.stable_offset = log.start_offset, log.end_offset, stable
    part.available = found.size
    part.is_older = found.size > 0 and offset < log.newest_segment_offset
    if not found.size or too_large:
        part.drop()


async def _give(part: _Part, version: int, most_bytes: int) -> bytes | FileRange:
    """Return a partition's records, converted to at most ``most_bytes`` if necessary.

    After an error, ``part`` has its code, and the result is empty.
    """
    if part.slice is None or part.log is None:
        return b""
    try:
        if needs_conversion(part.slice, part.log, version):
            if most_bytes <= 0:
                return b""
            return await asyncio.to_thread(convert_slice, part.slice, part.asked.fetch_offset, version, most_bytes)
    except (ConsumerdError, OSError) as error:
        part.fail(error)
        return b""
    return FileRange(part.slice.descriptor, part.slice.position, part.size)


def _describe(part: _Part, records: bytes | FileRange, version: int, *, committed: bool) -> FetchedPartition:
    if part.error or part.log is None:
        return refused_fetch(part.asked.partition, part.error)
    # as in Kafka 1.1, only read_committed gets the last stable offset and the aborted transactions
    stable = committed and version >= _FIRST_WITH_STABLE_OFFSET
    aborted: tuple[AbortedTransaction, ...] | None = None
    if stable:
        spans = part.log.list_aborted(part.asked.fetch_offset, part.stable_offset) if part.size else ()
        aborted = tuple(AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in spans)
    return FetchedPartition(
        partition=part.asked.partition,
        high_watermark=part.end_offset,
        last_stable_offset=part.stable_offset if stable else -1,
        log_start_offset=part.start_offset if version >= _FIRST_WITH_LOG_START else -1,
        aborted_transactions=aborted,
        record_set=cast("bytes", records),  # the codec needs only the length, which a file range has
    )
