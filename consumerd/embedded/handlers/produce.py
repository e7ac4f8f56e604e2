# SPDX-License-Identifier: Apache-2.0
"""Produce: appends record sets to their logs, each independently of the others.

With one replica, every append is acknowledged by all replicas at once, so ``acks`` 1 and -1 are the same, and
``timeout_ms`` never expires. As in Kafka 1.1 (KafkaApis.handleProduceRequest, ReplicaManager.appendRecords): other
``acks`` than -1, 0 and 1 are error 21 for all; with ``acks`` 0, an error closes the connection, the only way to report
it; internal topics refuse clients' records (17). From version 3 on, each partition has exactly one batch of magic 2;
other requests cannot be read (ProduceRequest.validateRecords).
"""

from __future__ import annotations

import asyncio
from typing import Final

from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.codes import old_code_of
from consumerd.embedded.handlers.context import ConnectionRefused, RequestContext
from consumerd.embedded.handlers.refusals import refuse, refused_produce
from consumerd.embedded.log.expansion import Expansion
from consumerd.embedded.log.partition_log import Appended
from consumerd.embedded.topic_names import INTERNAL_TOPICS
from consumerd.embedded.topics import Topics
from consumerd.errors import ConsumerdError, RemoteProtocolError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

_FIRST_OF_ONE_BATCH: Final = 3
_MAGIC_AT: Final = 16
_SIZE_AT: Final = slice(8, 12)
_OFFSET_AND_SIZE_BYTES: Final = 12
_BATCH_MAGIC: Final = 2

_Outcome = ErrorCode | asyncio.Future[Appended]


class ProduceHandler:
    """Appends to the logs of ``topics`` through ``appender``."""

    def __init__(self, topics: Topics, appender: Appender, faults: BrokerFaults) -> None:
        self._topics = topics
        self._appender = appender
        self._faults = faults

    async def __call__(self, request: ProduceRequest, context: RequestContext) -> object:
        """Append all record sets, then respond. Bounded by the disk.

        Raises ConnectionRefused for an error with ``acks`` 0, RemoteProtocolError for a request of version 3 without
        exactly one batch per partition.
        """
        if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            return refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, context.version)
        if context.version >= _FIRST_OF_ONE_BATCH:
            for topic in request.topics:
                for one in topic.partitions:
                    _check_one_batch(topic.topic, one)
        sets = (one.record_set for topic in request.topics for one in topic.partitions)
        expansion = Expansion(sum(len(one) for one in sets if one is not None))
        started = [
            (topic.topic, [(one.partition, self._start(topic.topic, one, expansion)) for one in topic.partitions])
            for topic in request.topics
        ]
        response = ProduceResponse(
            topics=tuple(
                [
                    ProducedTopic(
                        topic=topic, partitions=tuple([await _finish(number, outcome) for number, outcome in outcomes])
                    )
                    for topic, outcomes in started
                ]
            )
        )
        if request.acks == ACKS_NONE:
            _check_no_error(response)
        return response

    def _start(self, topic: str, one: ProducePartition, expansion: Expansion) -> _Outcome:
        """Queue a record set in its partition's order, or return the error."""
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if one.partition < 0:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = TopicPartition.modern(topic, one.partition)
        log = self._topics.find_log(partition)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._faults.find_leader(partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if one.record_set is None:
            return ErrorCode.CORRUPT_MESSAGE
        return self._appender.start_append(partition, log, one.record_set, expansion=expansion)


async def _finish(number: int, outcome: _Outcome) -> ProducedPartition:
    if isinstance(outcome, ErrorCode):
        return refused_produce(number, outcome)
    try:
        appended = await outcome
    except ConsumerdError as error:
        return refused_produce(number, old_code_of(error))
    time_ms = appended.log_append_time_ms
    return ProducedPartition(
        partition=number,
        base_offset=appended.base_offset,
        log_append_time_ms=-1 if time_ms is None else time_ms,
    )


def _check_one_batch(topic: str, one: ProducePartition) -> None:
    data = one.record_set
    if data is None or len(data) <= _MAGIC_AT or data[_MAGIC_AT] != _BATCH_MAGIC:
        raise RemoteProtocolError(f"Produce v3, {topic}/{one.partition}: expected a record batch of magic 2")
    size = _OFFSET_AND_SIZE_BYTES + int.from_bytes(data[_SIZE_AT], "big", signed=True)
    if size != len(data):
        what = "more" if size < len(data) else "a part of it"
        raise RemoteProtocolError(f"Produce v3, {topic}/{one.partition}: expected one record batch, got {what}")


def _check_no_error(response: ProduceResponse) -> None:
    for topic in response.topics:
        for one in topic.partitions:
            if one.error_code:
                code = ErrorCode(one.error_code)
                raise ConnectionRefused(f"{topic.topic}/{one.partition}: {code.name}, which acks 0 leaves unsaid")
