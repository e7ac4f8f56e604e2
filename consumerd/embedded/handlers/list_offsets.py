# SPDX-License-Identifier: Apache-2.0
"""ListOffsets: the ends of a log, and the first offset at or after a time.

As in Kafka 1.1 (KafkaApis.handleListOffsetRequest): version 0 returns start offsets of segments. From version 1 on, a
log of message format 0 cannot be searched by time (error 43), and a partition requested twice is an INVALID_REQUEST.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.codes import code_of, get_log
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.topics import Topics
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.fetch import READ_COMMITTED
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListPartition,
)

_FIRST_WITH_ONE_OFFSET: Final = 1


class ListOffsetsHandler:
    """Handler of ListOffsets: finds offsets in the logs of ``topics``."""

    def __init__(self, topics: Topics, faults: BrokerFaults) -> None:
        self._topics = topics
        self._faults = faults

    async def __call__(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        """Find the requested offsets, and respond.

        A look-up by time reads log files in a thread, as long as the disk takes.
        """
        asked = Counter((topic.topic, one.partition) for topic in request.topics for one in topic.partitions)
        twice = {one for one, times in asked.items() if times > 1}
        topics = []
        for topic in request.topics:
            listed: dict[int, ListedPartition] = {}
            for one in topic.partitions:
                if (topic.topic, one.partition) in twice and context.version >= _FIRST_WITH_ONE_OFFSET:
                    listed[one.partition] = _failed(one, ErrorCode.INVALID_REQUEST)
                else:
                    committed = request.isolation_level == READ_COMMITTED
                    listed[one.partition] = await self._list(topic.topic, one, context.version, committed=committed)
            topics.append(ListedTopic(topic=topic.topic, partitions=tuple(listed.values())))
        return ListOffsetsResponse(topics=tuple(topics))

    async def _list(self, topic: str, asked: ListPartition, version: int, *, committed: bool) -> ListedPartition:
        log = get_log(self._topics, self._faults, topic, asked.partition)
        if isinstance(log, ErrorCode):
            return _failed(asked, log)
        if committed and asked.timestamp == LATEST_TIMESTAMP:
            return ListedPartition(partition=asked.partition, offset=log.last_stable_offset)
        look_up: Callable[[PartitionLog, ListPartition], ListedPartition] = (
            _list_segments if version < _FIRST_WITH_ONE_OFFSET else _list_one
        )
        try:
            if asked.timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP) and version >= _FIRST_WITH_ONE_OFFSET:
                return look_up(log, asked)  # known without reading files
            return await asyncio.to_thread(look_up, log, asked)
        except LogError as error:
            return _failed(asked, code_of(error))


def _list_segments(log: PartitionLog, asked: ListPartition) -> ListedPartition:
    offsets = log.offsets_before(asked.timestamp, asked.max_num_offsets)
    return ListedPartition(partition=asked.partition, offsets=tuple(offsets))


def _list_one(log: PartitionLog, asked: ListPartition) -> ListedPartition:
    if asked.timestamp == EARLIEST_TIMESTAMP:
        return ListedPartition(partition=asked.partition, offset=log.start_offset)
    if asked.timestamp == LATEST_TIMESTAMP:
        return ListedPartition(partition=asked.partition, offset=log.end_offset)
    if log.settings.message_format == 0:
        return _failed(asked, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    timestamp, offset = log.find_offset(asked.timestamp) or (-1, -1)
    return ListedPartition(partition=asked.partition, timestamp=timestamp, offset=offset)


def _failed(asked: ListPartition, code: ErrorCode) -> ListedPartition:
    return ListedPartition(partition=asked.partition, error_code=code)
