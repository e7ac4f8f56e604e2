# SPDX-License-Identifier: Apache-2.0
"""Sends a producer's batches to the leaders of their partitions in Produce requests.

The newest version that both sides support is used. The record format follows from the version. It is the one that a
broker of that release stores, so that brokers need not convert, unless a topic is configured for an older format.

| Produce | releases | records |
|---|---|---|
| v0, v1 | 0.8, 0.9 | magic 0: no timestamps, no headers |
| v2 | 0.10 | magic 1: no headers |
| v3 and later | 0.11 and later | magic 2; zstd since v7 (2.1) |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from consumerd.access.principal import Principal
from consumerd.aio.timeouts import timeout
from consumerd.client.accumulator import Written
from consumerd.client.leaders import Connections
from consumerd.client.producer_hooks import Outcomes, OutgoingBatch
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.remedies import advise_write
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.view import Broker
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimedOut,
    UnknownProducer,
    UnsupportedVersion,
    WriteRefused,
)
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.compression import Codec
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.building import NO_PRODUCER, build_record_set
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.modern.produce import (
    ACKS_NONE,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from consumerd.wire.records import NewRecord

_FIRST_WITH_MAGIC: Final = {1: 2, 2: 3}
"""First version of Produce for each magic."""
NEWEST_MAGIC: Final = 2
_FIRST_WITH_ZSTD: Final = 7
_NO_TIME: Final = -1
_NO_OFFSET: Final = -1

_INLINE_BYTES: Final = 64 << 10
"""Size above which a batch is compressed in a thread, because it would block the event loop noticeably."""

_BROKER_SHARE: Final = 5 / 6
"""Share of the request timeout that the broker gets for its replicas, so that its own timeout error comes first."""


class ProduceConnections(Connections, Protocol):
    """Pool of connections for a producer, such as ``net.pool.ConnectionPool``."""

    def waits_s(self, broker: PooledBroker) -> float:
        """Return the backoff, in seconds, before :meth:`get` would connect to this broker."""


async def encode_batch(batch: OutgoingBatch, codec: Codec, build: Callable[[Sequence[NewRecord]], bytes]) -> bytes:
    """Encode the records of a batch with ``build``; large ones are compressed in a thread.

    Raises the errors of ``build``.
    """
    if codec is Codec.NONE or sum(len(one.value or b"") for one in batch.records) <= _INLINE_BYTES:
        return build(batch.records)
    return await asyncio.to_thread(build, batch.records)


def magic_of(version: int) -> int:
    """Return the record format (magic 0, 1 or 2) for a version of Produce."""
    return max((magic for magic, first in _FIRST_WITH_MAGIC.items() if version >= first), default=0)


class ProduceRequests:
    """Sends batches for several partitions of one leader in one Produce request.

    Args:
        directory: Directory of leaders. It is asked to refresh when a broker closes the connection while ``acks`` is 0:
            closing is the only way in which a broker can then refuse records.
    """

    def __init__(
        self, connections: ProduceConnections, directory: MetadataDirectory, settings: ProducerSettings
    ) -> None:
        self._connections = connections
        self._directory = directory
        self._codec = settings.codec
        self._acks = settings.acks
        self._transactional_id = settings.transactional_id
        self._timeout_s = settings.attempt_timeout_s
        self._unanswered: dict[BrokerId, BrokerConnection] = {}

    async def handle(self, leader: Broker, batches: Sequence[OutgoingBatch], outcomes: Outcomes) -> None:
        """Send a batch for each of several partitions to their leader, and set the outcomes.

        A batch that cannot be encoded has LocalProtocolError as its outcome. Raises ConnectionLost or ProtocolError if
        all batches have failed.
        """
        connection = await self._connections.get(leader, Purpose.PRODUCE)
        version = connection.version_of(ProduceRequest)
        self._check_codec(leader, version)
        encoded: dict[TopicPartition, bytes] = {}
        for batch in batches:
            try:
                encoded[batch.partition] = await self._encode(batch, magic_of(version))
            except LocalProtocolError as error:
                outcomes[batch.partition] = error
        if encoded:
            request = self._plan_request(encoded)
            outcomes.update(await self._exchange(connection, leader, request, version, encoded))

    async def send_encoded(self, leader: Broker, partition: TopicPartition, encoded: bytes) -> Written | ConsumerdError:
        """Send a record set of magic 2 to its leader; return the outcome.

        Raises UnsupportedVersion for a broker before 0.11; ConnectionLost, ProtocolError.
        """
        connection = await self._connections.get(leader, Purpose.PRODUCE)
        version = connection.version_of(ProduceRequest)
        self._check_codec(leader, version)
        if magic_of(version) < NEWEST_MAGIC:
            raise UnsupportedVersion(
                f"PRODUCE: broker {leader} speaks v{version}; transactions need v{_FIRST_WITH_MAGIC[NEWEST_MAGIC]} "
                "(Kafka 0.11)"
            )
        return await self._send_one(connection, leader, version, partition, encoded)

    def _check_codec(self, leader: Broker, version: int) -> None:
        if self._codec is Codec.ZSTD and version < _FIRST_WITH_ZSTD:
            raise UnsupportedVersion(
                f"codec zstd needs Produce v{_FIRST_WITH_ZSTD} (Kafka 2.1), broker {leader} and we speak v{version}; "
                "use lz4, snappy or gzip"
            )

    async def drain(self) -> None:
        """Wait until brokers have processed all requests without response (acks 0).

        On each connection, a request that has a response is sent as the last one: brokers process the requests of a
        connection in order. Closing the connections instead is not enough. Brokers then process the remaining requests
        in several threads and in any order (seen with 0.10.2).
        """
        async with asyncio.TaskGroup() as waiting:
            for connection in self._unanswered.values():
                if not connection.closed:
                    waiting.create_task(self._wait_answer(connection), name=f"drain {connection.address}")

    async def _wait_answer(self, connection: BrokerConnection) -> None:
        with contextlib.suppress(ConnectionLost, ProtocolError):  # there will be no response
            await connection.request(ListOffsetsRequest(topics=()), timeout_s=self._timeout_s)

    async def send_records(
        self, leader: Broker, partition: TopicPartition, make: Callable[[int], Sequence[NewRecord]]
    ) -> Written | ConsumerdError:
        """Send records of one partition, in the format of the leader's release; return the outcome.

        Args:
            make: Returns the records for the format with a magic, 0, 1 or 2.

        Raises ConnectionLost, ProtocolError, the errors of ``make``.
        """
        connection = await self._connections.get(leader, Purpose.PRODUCE)
        version = connection.version_of(ProduceRequest)
        self._check_codec(leader, version)
        records = make(magic_of(version))
        build = partial(build_record_set, records, magic=magic_of(version), codec=self._codec)
        is_large = sum(len(one.value or b"") for one in records) > _INLINE_BYTES
        encoded = await asyncio.to_thread(build) if is_large else build()
        return await self._send_one(connection, leader, version, partition, encoded)

    async def attempt(
        self, partition: TopicPartition, send: Callable[[Broker], Awaitable[Written | ConsumerdError]]
    ) -> Written | ConsumerdError:
        """Send records of one partition to its leader once; return the outcome.

        Without an answer it is RequestTimedOut, ConnectionLost or RemoteProtocolError.

        Args:
            send: Sends them to a broker, such as :meth:`send_records`.

        Raises UnsupportedVersion and other errors of ``send``.
        """
        leader = self._directory.find_leader(partition)
        if leader is None:
            return ConnectionLost(f"{partition} has no leader")
        try:
            async with timeout(self._timeout_s):
                return await send(leader)
        except TimeoutError:
            return RequestTimedOut(f"broker {leader}: no acknowledgement")
        except UnsupportedVersion:
            raise
        except (ConnectionLost, RemoteProtocolError) as error:
            return error

    async def _send_one(
        self, connection: BrokerConnection, leader: Broker, version: int, partition: TopicPartition, encoded: bytes
    ) -> Written | ConsumerdError:
        request = self._plan_request({partition: encoded})
        outcomes = await self._exchange(connection, leader, request, version, (partition,))
        missing = ConnectionLost(f"broker {leader}: {partition} is missing from the answer")
        return outcomes.get(partition, missing)

    async def _encode(self, batch: OutgoingBatch, magic: int) -> bytes:
        build = partial(
            build_record_set,
            magic=magic,
            codec=self._codec,
            producer=NO_PRODUCER if batch.sequence is None else batch.sequence,
            transactional=self._transactional_id is not None,
        )
        return await encode_batch(batch, self._codec, build)

    def _plan_request(self, encoded: Mapping[TopicPartition, bytes]) -> ProduceRequest:
        by_topic: dict[str, list[ProducePartition]] = defaultdict(list)
        for partition, record_set in encoded.items():
            by_topic[partition.topic].append(
                ProducePartition(partition=partition.partition.number, record_set=record_set)
            )
        topics = tuple(ProduceTopic(topic=topic, partitions=tuple(sent)) for topic, sent in by_topic.items())
        timeout_ms = max(1, round(self._timeout_s * _BROKER_SHARE * 1000))
        return ProduceRequest(
            transactional_id=self._transactional_id, acks=self._acks, timeout_ms=timeout_ms, topics=topics
        )

    async def _exchange(
        self,
        connection: BrokerConnection,
        leader: Broker,
        request: ProduceRequest,
        version: int,
        partitions: Iterable[TopicPartition],
    ) -> Mapping[TopicPartition, Written | ConsumerdError]:
        if self._acks == ACKS_NONE:
            before = self._unanswered.get(leader.id)
            if before is not None and before is not connection and before.closed:
                # With acks 0 a broker refuses records by closing the connection: it may not be the leader any more.
                self._directory.request_refresh(f"broker {leader.id} hung up")
            self._unanswered[leader.id] = connection
            await connection.send(request, timeout_s=self._timeout_s, version=version)
            return dict.fromkeys(partitions, Written(base_offset=None))
        try:
            response = await connection.request(request, timeout_s=self._timeout_s, version=version)
        except asyncio.CancelledError:
            # The sender has given up this attempt. If the broker hangs, the next attempt needs another connection.
            connection.close()
            raise
        return _read_response(response, f"Produce v{version} at broker {leader}")


def refuse_write(
    partition: TopicPartition, refused: BrokerError, principal: Principal, *, in_doubt: bool = False
) -> WriteRefused:
    """Return the error for refused records, with advice for ``principal``; its cause is ``refused``."""
    advice = advise_write(refused, partition.topic, principal)
    error = WriteRefused(
        f"{partition}: not written: {refused}{f'; {advice}' if advice else ''}", partition=partition, in_doubt=in_doubt
    )
    error.__cause__ = refused
    return error


def _read_response(response: ProduceResponse, context: str) -> dict[TopicPartition, Written | ConsumerdError]:
    outcomes: dict[TopicPartition, Written | ConsumerdError] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition.modern(topic.topic, answer.partition)
            outcomes[partition] = _read_answer(answer, f"{context} for {partition}")
    return outcomes


def _read_answer(answer: ProducedPartition, context: str) -> Written | ConsumerdError:
    if answer.error_code == ErrorCode.UNKNOWN_PRODUCER_ID:
        return UnknownProducer(
            answer.error_code,
            ErrorCode.UNKNOWN_PRODUCER_ID.name,
            context,
            log_start_offset=answer.log_start_offset,
        )
    if answer.error_code:
        return broker_error(answer.error_code, context)
    return Written(
        base_offset=None if answer.base_offset == _NO_OFFSET else answer.base_offset,
        log_append_time_ms=None if answer.log_append_time_ms == _NO_TIME else answer.log_append_time_ms,
    )
