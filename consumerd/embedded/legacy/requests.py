# SPDX-License-Identifier: Apache-2.0
"""Handlers of the requests of Kafka 0.6 and 0.7: PRODUCE, FETCH, MULTIFETCH, MULTIPRODUCE and OFFSETS.

They behave as Kafka 0.7.2 was recorded to, which the document "Writing a Driver for Kafka" does not tell in full:

===============================  ==============================  =====================  =====================
request for                      PRODUCE                         FETCH                  OFFSETS
===============================  ==============================  =====================  =====================
a topic name that is not legal   closed connection               error -1               closed connection
a partition that is out of range closed connection               error 3                closed connection
partition -1                     a random partition              error 3                closed connection
an unknown topic                 creates it                      empty, at any offset   ``[0]`` for -1 and -2
a partition without messages     creates its log                 empty, at any offset   ``[0]`` for -1 and -2
an offset outside of the log     -                               error 1                -
===============================  ==============================  =====================  =====================

Each part of a MULTIFETCH is answered like a FETCH. The parts of a MULTIPRODUCE are stored one by one, up to the first
one that is refused.

Source: ``KafkaRequestHandlers.scala`` and ``LogManager.scala`` of Kafka 0.7.2; frames recorded from it.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from consumerd.embedded.appending import Appender
from consumerd.embedded.handlers.context import ConnectionRefused
from consumerd.embedded.legacy.byte_log import ByteLog
from consumerd.embedded.legacy.byte_logs import ByteLogs
from consumerd.embedded.log.errors import LogError, LogOffsetOutOfRange, LogRecordTooLarge
from consumerd.embedded.log.slices import LogSlice
from consumerd.embedded.reply import FileRange, FramedReply, Piece
from consumerd.errors import ConsumerdError, CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.legacy.messages import (
    EARLIEST_TIME,
    LATEST_TIME,
    RANDOM_PARTITION,
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyMultiFetchRequest,
    LegacyMultiProduceRequest,
    LegacyOffsetsRequest,
    LegacyOffsetsResponse,
    LegacyProduceRequest,
    LegacyRequest,
)
from consumerd.wire.legacy.session import ERROR_CODE_BYTES, encode_legacy_response

_ILLEGAL: Final = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_LONGEST_TOPIC: Final = 255
"""Longest name of a topic, in characters: Kafka's ``max.topic.name.length``."""
_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ih")
"""Size and error code of a response, or of an entry of MULTIFETCH."""

_log = structlog.get_logger(__name__)


class WrongPartition(ConsumerdError):
    """A request names a partition that is out of range."""


class IllegalTopic(ConsumerdError):
    """A request names a topic that can have no log."""


def check_topic(name: str) -> None:
    """Raise IllegalTopic if a topic's name is not legal.

    Legal are all characters of Unicode but slashes, control characters and private ones.
    """
    if not 0 < len(name) <= _LONGEST_TOPIC or name in (".", "..") or _ILLEGAL.search(name):
        raise IllegalTopic(f"topic name {name!r:.80}: not legal in Kafka 0.7")


class PartitionCounts:
    """Numbers of partitions by topic, as a broker is configured.

    Args:
        default: Partitions of a topic without an own number: Kafka's ``num.partitions``.
        by_topic: Own numbers of topics: Kafka's ``topic.partition.count.map``.
    """

    def __init__(self, default: int, by_topic: Mapping[str, int]) -> None:
        self._default = default
        self._by_topic = dict(by_topic)

    def get(self, topic: str) -> int:
        """Return the number of a topic's partitions on this broker."""
        return self._by_topic.get(topic, self._default)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    """The answer to one FETCH: an error code, and a part of a log.

    ``claimed_bytes`` is the size of the part that the response states. It is negative, and differs from that of the
    slice, if a negative size was asked for.
    """

    error: int = LegacyErrorCode.NO_ERROR
    part: LogSlice
    claimed_bytes: int

    def encode(self) -> list[Piece]:
        """Return size, error code and messages.

        A request for -1 bytes was recorded to be answered with size 1 and one byte, so the error code is cut.
        """
        size = ERROR_CODE_BYTES + self.claimed_bytes
        head = _HEAD.pack(size, self.error)[: _SIZE.size + max(0, min(size, ERROR_CODE_BYTES))]
        if not self.part.size:
            return [head]
        return [head, FileRange(self.part.descriptor, self.part.position, self.part.size)]


class LegacyHandlers:
    """Handles the requests to one broker.

    Args:
        logs: The broker's logs.
        counts: The numbers of partitions.
        appender: Runs appends in threads.
        choose: Returns a random number from 0 to below its argument, for PRODUCE to partition -1.
        has_topic: Is told the topic of each PRODUCE request for a legal partition, once its log exists.
    """

    def __init__(
        self,
        logs: ByteLogs,
        counts: PartitionCounts,
        appender: Appender,
        *,
        choose: Callable[[int], int],
        has_topic: Callable[[str], None],
    ) -> None:
        self._logs = logs
        self._counts = counts
        self._appender = appender
        self._choose = choose
        self._has_topic = has_topic

    async def respond(self, request: LegacyRequest[Any]) -> FramedReply | None:
        """Carry out a request; return the response, or None if the request has none.

        Takes as long as the disk. Raises ConnectionRefused if the connection must be closed.
        """
        match request:
            case LegacyProduceRequest():
                await self._produce(request)
            case LegacyMultiProduceRequest():
                for part in request.requests:
                    await self._produce(part)
            case LegacyFetchRequest():
                fetched = self._fetch(request)
                return FramedReply(pieces=fetched.encode(), owners=(fetched.part,))
            case LegacyMultiFetchRequest():
                return frame_parts([self._fetch(part) for part in request.requests])
            case LegacyOffsetsRequest():
                return FramedReply(pieces=[encode_legacy_response(await self._list_offsets(request))])
            case _:
                raise ConnectionRefused(f"{type(request).__name__}: a broker of Kafka 0.7 does not have it")
        return None

    # -- PRODUCE

    async def _produce(self, request: LegacyProduceRequest) -> None:
        """Append a message set, unless it must be dropped. Raises ConnectionRefused."""
        topic, number = request.topic, request.partition
        try:
            check_topic(topic)
            if number == RANDOM_PARTITION:
                number = self._choose(self._counts.get(topic))
            partition = self._get_partition(topic, number)
            await self._appender.run(partition, lambda: self._append(partition, request.messages))
        except LogRecordTooLarge as error:
            _log.warning("message_set_dropped", topic=topic, partition=number, reason=str(error))
        except (WrongPartition, IllegalTopic, CorruptMessageError, LogError) as error:
            raise ConnectionRefused(f"PRODUCE: {error}") from error
        finally:
            if self._logs.has_topic(topic):
                self._has_topic(topic)

    def _append(self, partition: TopicPartition, message_set: bytes | memoryview) -> None:
        """Append in a thread.

        The log is created before the set is checked, as by Kafka.
        """
        self._logs.get_or_create(partition).append(message_set)

    # -- FETCH

    def _fetch(self, request: LegacyFetchRequest) -> _Fetched:
        error = LegacyErrorCode.UNKNOWN
        try:
            log = self._find_log(request.topic, request.partition)
            part = LogSlice() if log is None else log.read(request.offset, request.max_size)
        except WrongPartition:
            error = LegacyErrorCode.WRONG_PARTITION
        except LogOffsetOutOfRange:
            error = LegacyErrorCode.OFFSET_OUT_OF_RANGE
        except IllegalTopic:
            pass
        except LogError as failure:
            _log.warning("fetch_failed", topic=request.topic, partition=request.partition, reason=str(failure))
        else:
            is_read = part.descriptor >= 0
            return _Fetched(part=part, claimed_bytes=min(request.max_size, part.size) if is_read else 0)
        return _Fetched(error=error, part=LogSlice(), claimed_bytes=0)

    # -- OFFSETS

    async def _list_offsets(self, request: LegacyOffsetsRequest) -> LegacyOffsetsResponse:
        try:
            log = self._find_log(request.topic, request.partition)
            if log is None:
                begins = request.time in (LATEST_TIME, EARLIEST_TIME)
                return LegacyOffsetsResponse(offsets=(0,) if begins else ())
            if request.max_number < 0:
                raise ConnectionRefused(f"OFFSETS: a max number of {request.max_number}")
            found = await asyncio.to_thread(log.offsets_before, request.time, request.max_number)
        except (WrongPartition, IllegalTopic, LogError) as error:
            raise ConnectionRefused(f"OFFSETS: {error}") from error
        return LegacyOffsetsResponse(offsets=tuple(found))

    # -- partitions

    def _find_log(self, topic: str, number: int) -> ByteLog | None:
        check_topic(topic)
        return self._logs.find(self._get_partition(topic, number))

    def _get_partition(self, topic: str, number: int) -> TopicPartition:
        count = self._counts.get(topic)
        if not 0 <= number < count:
            raise WrongPartition(f"topic {topic}: partition {number}, expected 0 to {count - 1}")
        return self._logs.key(topic, number)


def frame_parts(parts: Iterable[_Fetched]) -> FramedReply:
    """Return the response to a MULTIFETCH, with each part after its size."""
    entries = list(parts)
    pieces = [piece for entry in entries for piece in entry.encode()]
    size = ERROR_CODE_BYTES + sum(map(len, pieces))
    head = _HEAD.pack(size, LegacyErrorCode.NO_ERROR)
    return FramedReply(pieces=[head, *pieces], owners=[entry.part for entry in entries])
