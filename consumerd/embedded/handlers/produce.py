# SPDX-License-Identifier: Apache-2.0
"""Produce: appends record sets to their logs, each independently of the others.

All replicas of a partition share one log, so every append is acknowledged by all of them at once. ``acks`` 1 and -1
differ only in ``min.insync.replicas``, and ``timeout_ms`` never expires. As in Kafka 1.1
(KafkaApis.handleProduceRequest, ReplicaManager.appendRecords): other ``acks`` than -1, 0 and 1 are error 21 for all;
with ``acks`` 0, an error closes the connection, the only way to report it; internal topics refuse clients' records
(17). From version 3 on, each partition has exactly one batch of magic 2; other requests cannot be read
(ProduceRequest.validateRecords).
"""

from __future__ import annotations

import asyncio
from typing import Final

from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.codes import get_log, old_code_of
from consumerd.embedded.handlers.context import ConnectionRefused, RequestContext
from consumerd.embedded.handlers.refusals import refuse, refused_produce
from consumerd.embedded.log.expansion import Expansion
from consumerd.embedded.log.partition_log import Appended
from consumerd.embedded.topics import INTERNAL_TOPICS, Topics
from consumerd.errors import ConsumerdError, RemoteProtocolError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.entry import ENTRY, ENTRY_BYTES, MAGIC_AT
from consumerd.wire.modern.extent import BATCH_MAGIC
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
_MIN_INSYNC: Final = "min.insync.replicas"

_Outcome = ErrorCode | asyncio.Future[Appended]


class ProduceHandler:
    """Handler of Produce: appends records to the logs of ``topics`` through ``appender``."""

    def __init__(self, topics: Topics, appender: Appender, faults: BrokerFaults) -> None:
        self._topics = topics
        self._appender = appender
        self._faults = faults

    async def __call__(self, request: ProduceRequest, context: RequestContext) -> object:
        """Append the records of all partitions of a request, then respond.

        It takes as long as the disk. Raises ConnectionRefused for an error with ``acks`` 0, RemoteProtocolError for a
        request of version 3 without exactly one batch per partition.
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
            (
                topic.topic,
                [(one.partition, self._start(topic.topic, one, expansion, request.acks)) for one in topic.partitions],
            )
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

    def _start(self, topic: str, one: ProducePartition, expansion: Expansion, acks: int) -> _Outcome:
        """Queue a record set in its partition's order, or return the error."""
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        log = get_log(self._topics, self._faults, topic, one.partition)
        if isinstance(log, ErrorCode):
            return log
        if acks == ACKS_ALL and self._lacks_replicas(log.partition):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if one.record_set is None:
            return ErrorCode.CORRUPT_MESSAGE
        return self._appender.start_append(log.partition, log, one.record_set, expansion)

    def _lacks_replicas(self, partition: TopicPartition) -> bool:
        """Return True if fewer replicas are in sync than ``min.insync.replicas`` asks for."""
        topic, state = self._topics.find(partition.topic), self._topics.find_state(partition)
        least = topic.config.get(_MIN_INSYNC, "1") if topic is not None else "1"
        return state is not None and least.isdecimal() and len(state.isr) < int(least)


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
    if data is None or len(data) <= MAGIC_AT or data[MAGIC_AT] != BATCH_MAGIC:
        raise RemoteProtocolError(f"Produce v3, {topic}/{one.partition}: expected a record batch of magic 2")
    _, size = ENTRY.unpack_from(data)
    if ENTRY_BYTES + size != len(data):
        what = "more" if ENTRY_BYTES + size < len(data) else "a part of it"
        raise RemoteProtocolError(f"Produce v3, {topic}/{one.partition}: expected one record batch, got {what}")


def _check_no_error(response: ProduceResponse) -> None:
    for topic in response.topics:
        for one in topic.partitions:
            if one.error_code:
                code = ErrorCode(one.error_code)
                raise ConnectionRefused(f"{topic.topic}/{one.partition}: {code.name}, which acks 0 leaves unsaid")
