# SPDX-License-Identifier: Apache-2.0
"""Sends batches to a partition's leader as Produce requests: the :class:`EventHandler` that producers have by default.

The request's version is the newest that both sides speak, and the format of the records the one that goes with it, which is
what a broker of that release stores: it converts nothing unless its topic is told to keep an older one.

| Produce | releases | records |
|---|---|---|
| v0, v1 | 0.8, 0.9 | magic 0: no timestamps, no headers |
| v2 | 0.10 | magic 1: no headers |
| v3 and later | 0.11 and later | magic 2; zstd from v7 on (2.1) |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from consumerd.client.accumulator import Written
from consumerd.client.producer_hooks import OutgoingBatch
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import TopicDirectory
from consumerd.cluster.view import Broker
from consumerd.errors import ConnectionLost, ConsumerdError, LocalProtocolError, ProtocolError, UnsupportedVersion
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.compression import Codec
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.modern.produce import (
    ACKS_NONE,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

_FIRST_WITH_MAGIC: Final = {1: 2, 2: 3}
"""The version of Produce from which on records are of a magic."""
_FIRST_WITH_ZSTD: Final = 7
_NO_TIME: Final = -1
_NO_OFFSET: Final = -1

_INLINE_BYTES: Final = 64 << 10
"""Compressing more than this takes long enough to be noticed by whatever else runs on the loop: it goes to a thread."""

_BROKER_SHARE: Final = 5 / 6
"""Share of our wait that the broker has for its replicas: its own time-out error then comes before we give up."""


class ProduceConnections(Protocol):
    """``net.pool.ConnectionPool`` as a producer sees it."""

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        """Return a usable connection. Raises ConnectionLost."""

    def waits_s(self, broker: PooledBroker) -> float:
        """Return how long :meth:`get` would wait before it tries this broker."""


def magic_of(version: int) -> int:
    """Return the format of the records that go with a version of Produce."""
    return max((magic for magic, first in _FIRST_WITH_MAGIC.items() if version >= first), default=0)


class ProduceRequests:
    """Sends each call's batches in one request; ``directory`` hears when a broker that answers nothing has hung up."""

    def __init__(self, connections: ProduceConnections, directory: TopicDirectory, settings: ProducerSettings) -> None:
        self._connections = connections
        self._directory = directory
        self._codec = settings.codec
        self._acks = settings.acks
        self._timeout_s = settings.attempt_timeout_s
        self._unanswered: dict[BrokerId, BrokerConnection] = {}

    async def handle(
        self, leader: Broker, batches: Sequence[OutgoingBatch]
    ) -> Mapping[TopicPartition, Written | ConsumerdError]:
        """Send; see :class:`~consumerd.client.producer_hooks.EventHandler`."""
        connection = await self._connections.get(leader, Purpose.PRODUCE)
        version = connection.version_of(ProduceRequest)
        if self._codec is Codec.ZSTD and version < _FIRST_WITH_ZSTD:
            raise UnsupportedVersion(
                f"codec zstd needs Produce v{_FIRST_WITH_ZSTD} (Kafka 2.1), broker {leader} and we speak v{version}; "
                "use lz4, snappy or gzip"
            )
        outcomes: dict[TopicPartition, Written | ConsumerdError] = {}
        encoded: dict[TopicPartition, bytes] = {}
        for batch in batches:
            try:
                encoded[batch.partition] = await self._encode(batch, magic_of(version))
            except LocalProtocolError as error:
                outcomes[batch.partition] = error
        if encoded:
            request = self._plan_request(encoded)
            outcomes |= await self._exchange(connection, leader, request, version, encoded)
        return outcomes

    async def drain(self) -> None:
        """Wait for an answer of each broker that was asked for none: it comes behind all that the broker has to do.

        What a closed connection leaves behind is done by brokers as well, but (seen with 0.10.2) by several threads at once,
        in any order. See :class:`~consumerd.client.producer_hooks.EventHandler`.
        """
        async with asyncio.TaskGroup() as waiting:
            for connection in self._unanswered.values():
                if not connection.closed:
                    waiting.create_task(self._wait_answer(connection), name=f"drain {connection.address}")

    async def _wait_answer(self, connection: BrokerConnection) -> None:
        with contextlib.suppress(ConnectionLost, ProtocolError):  # there is no answer to wait for
            await connection.request(ListOffsetsRequest(topics=()), timeout_s=self._timeout_s)

    async def _encode(self, batch: OutgoingBatch, magic: int) -> bytes:
        large = sum(len(one.value or b"") for one in batch.records) > _INLINE_BYTES
        if self._codec is Codec.NONE or not large:
            return build_record_set(batch.records, magic=magic, codec=self._codec)
        return await asyncio.to_thread(build_record_set, batch.records, magic=magic, codec=self._codec)

    def _plan_request(self, encoded: Mapping[TopicPartition, bytes]) -> ProduceRequest:
        by_topic: dict[str, list[ProducePartition]] = defaultdict(list)
        for partition, record_set in encoded.items():
            by_topic[partition.topic].append(
                ProducePartition(partition=partition.partition.number, record_set=record_set)
            )
        topics = tuple(ProduceTopic(topic=topic, partitions=tuple(sent)) for topic, sent in by_topic.items())
        timeout_ms = max(1, round(self._timeout_s * _BROKER_SHARE * 1000))
        return ProduceRequest(acks=self._acks, timeout_ms=timeout_ms, topics=topics)

    async def _exchange(
        self,
        connection: BrokerConnection,
        leader: Broker,
        request: ProduceRequest,
        version: int,
        partitions: Mapping[TopicPartition, object],
    ) -> Mapping[TopicPartition, Written | ConsumerdError]:
        if self._acks == ACKS_NONE:
            before = self._unanswered.get(leader.id)
            if before is not None and before is not connection and before.closed:
                # how a broker that does not answer says that it has taken nothing: it may not be the leader any more
                self._directory.request_refresh(f"broker {leader.id} hung up")
            self._unanswered[leader.id] = connection
            await connection.send(request, timeout_s=self._timeout_s, version=version)
            return dict.fromkeys(partitions, Written(base_offset=None))
        try:
            response = await connection.request(request, timeout_s=self._timeout_s, version=version)
        except asyncio.CancelledError:
            # The sender has given this attempt up. If the broker hangs, the next one needs another connection.
            connection.close()
            raise
        return _read_response(response, f"Produce v{version} at broker {leader}")


def _read_response(response: ProduceResponse, context: str) -> dict[TopicPartition, Written | ConsumerdError]:
    outcomes: dict[TopicPartition, Written | ConsumerdError] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition.modern(topic.topic, answer.partition)
            outcomes[partition] = _read_answer(answer, f"{context} for {partition}")
    return outcomes


def _read_answer(answer: ProducedPartition, context: str) -> Written | ConsumerdError:
    if answer.error_code:
        return broker_error(answer.error_code, context)
    return Written(
        base_offset=None if answer.base_offset == _NO_OFFSET else answer.base_offset,
        log_append_time_ms=None if answer.log_append_time_ms == _NO_TIME else answer.log_append_time_ms,
    )
