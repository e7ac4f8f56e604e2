# SPDX-License-Identifier: Apache-2.0
"""Sends a producer's batches to brokers of Kafka 0.6 and 0.7.

It implements ``client.producer_hooks.EventHandler``, by PRODUCE for one partition and MULTIPRODUCE for several. Neither
has a response. What can be known is this:

==========================================  ===========================================================
event                                       outcome
==========================================  ===========================================================
no connection could be opened               RequestNotSent: certainly not written, and sent again
the system has taken the request's bytes    sent, which is the end with ``acks`` 0
the broker answers a later request          sent, and the broker has worked on it
the connection ends before that answer      unknown: sent again, or DeliveryUnknown, by ``on_unknown``
the producer's time ends before that        as if the connection had ended
it ends before the request is sent          RequestNotSent; requests before it keep their outcomes
==========================================  ===========================================================

Confirmation
    A broker works on the requests of a connection one by one. So with ``acks`` 1 or -1 each request is followed by a
    MULTIFETCH without partitions, whose response of 2 bytes means that the broker has worked on everything before it.
    If the broker refuses a request (a partition that it does not have, a codec or magic that it does not know), it
    closes the connection instead. Replicas do not exist, so 1 and -1 are the same.

    A confirmed record need not be stored. The broker drops a message set with a message above ``max.message.size``
    without a word, and a broker that is killed loses what it has not flushed.

Refused batches
    Of a MULTIPRODUCE that is refused, the broker stores the message sets before the one at fault. If all were sent
    again together, they would be stored once more with each attempt. So the batches of a request with an unknown
    outcome are sent one by one afterwards, each with its own confirmation, until they are confirmed.

    Example: the batches of 0-0, 0-1 and 0-2 are sent together, and broker 0 does not have 0-1 any more. It stores the
    batch of 0-0 and closes the connection. Each is sent by itself then: 0-0 is stored a second time and confirmed, 0-1
    fails again, and 0-2 is stored. Further attempts are made for 0-1 only.

Sources: "Writing a Driver for Kafka", sections "Produce" and "Multi-Produce"; frames recorded from Kafka 0.7.2 and
Jafka 3.0.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from consumerd.client.accumulator import Written
from consumerd.client.legacy_producer_rules import LegacyProducerSettings, UnknownOutcome, encode_message_set
from consumerd.client.produce_handler import ProduceConnections, encode_batch
from consumerd.client.producer_hooks import Outcomes, OutgoingBatch
from consumerd.client.producer_settings import ProducerSettings
from consumerd.cluster.view import Broker
from consumerd.errors import (
    ConnectionLost,
    ConsumerdError,
    DeliveryUnknown,
    LocalProtocolError,
    OversizedRecord,
    ProtocolError,
    RequestNotSent,
    RequestTimedOut,
)
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest, LegacyMultiProduceRequest, LegacyProduceRequest
from consumerd.wire.legacy.wire_types import MAX_COUNT

_CONFIRMATION: Final = LegacyMultiFetchRequest(requests=())
"""Request that every broker answers at once, with nothing but error code 0."""

_SENT: Final = Written(base_offset=None)

_Encoded = Mapping[TopicPartition, bytes]


class LegacyProduceRequests:
    """Sends batches for partitions of one broker in one PRODUCE or MULTIPRODUCE.

    Args:
        settings: ``acks`` 0 waits for no confirmation.
        legacy: Format of messages, and the policy for unknown outcomes.

    Raises ConfigError for a codec that the format does not have.
    """

    def __init__(
        self, connections: ProduceConnections, settings: ProducerSettings, legacy: LegacyProducerSettings
    ) -> None:
        legacy.check_codec(settings.codec)
        self._connections = connections
        self._legacy = legacy
        self._codec = settings.codec
        self._confirms = settings.acks != 0
        self._timeout_s = settings.attempt_timeout_s
        self._alone: set[TopicPartition] = set()
        """Partitions whose batch is sent by itself, since its outcome in a request with others was unknown."""
        self._unconfirmed: dict[BrokerId, tuple[BrokerConnection, int]] = {}
        """Connections with requests that are not confirmed (acks 0), and the number of records in them."""
        self._log = structlog.get_logger(__name__)

    async def handle(self, leader: Broker, batches: Sequence[OutgoingBatch], outcomes: Outcomes) -> None:
        """Send a batch for each of several partitions of one broker, and set the outcomes.

        The outcome is Written, without an offset, for a batch that was sent; the module's table says what it means. A
        batch that cannot be encoded has OversizedRecord or LocalProtocolError. Raises RequestNotSent if the broker is
        not reached, ConfigError if the library of the codec is missing. If cancelled, the outcomes say what is known.
        """
        await self._connect(leader)  # an unreachable broker is not worth the encoding
        encoded: dict[TopicPartition, bytes] = {}
        for batch in batches:
            build = partial(encode_message_set, batch.partition.topic, codec=self._codec, legacy=self._legacy)
            try:
                encoded[batch.partition] = await encode_batch(batch, self._codec, build)
            except (OversizedRecord, LocalProtocolError) as error:
                outcomes[batch.partition] = error
        records = {batch.partition: len(batch.records) for batch in batches}
        # true until the request of a batch is sent, which may never happen: the time can end with an earlier request
        unsent = RequestNotSent(f"broker {leader}: the time limit was over before the request was sent")
        outcomes.update(dict.fromkeys(encoded, unsent))
        for group in self._plan_requests(encoded):
            await self._send(leader, group, sum(records[one] for one in group), outcomes)

    async def drain(self) -> None:
        """Wait until brokers have worked on everything sent with acks 0.

        What is not confirmed is logged.
        """
        async with asyncio.TaskGroup() as waiting:
            for broker, (connection, records) in self._unconfirmed.items():
                waiting.create_task(self._drain(broker, connection, records), name=f"drain {connection.address}")
        self._unconfirmed.clear()

    async def _drain(self, broker: BrokerId, connection: BrokerConnection, records: int) -> None:
        try:
            await self._confirm(connection)
        except (ConnectionLost, ProtocolError) as error:
            self._warn(broker, records, error)

    def _warn(self, broker: BrokerId, records: int, reason: ConsumerdError | str) -> None:
        self._log.warning("sent_records_unconfirmed", broker=broker, records=records, reason=str(reason))

    # -- one request

    async def _connect(self, leader: Broker) -> BrokerConnection:
        """Return an open connection to a broker. Raises RequestNotSent."""
        try:
            connection = await self._connections.get(leader, Purpose.PRODUCE)
        except ConnectionLost as error:
            raise RequestNotSent(str(error)) from error
        if connection.closed:
            raise RequestNotSent(f"broker {leader}: the connection was closed before anything was sent")
        return connection

    def _plan_requests(self, encoded: _Encoded) -> Iterator[_Encoded]:
        """Yield the message sets of each request: together, or alone after an unknown outcome."""
        together = [one for one in encoded if one not in self._alone]
        for first in range(0, len(together), MAX_COUNT):
            yield {one: encoded[one] for one in together[first : first + MAX_COUNT]}
        for one in encoded:
            if one in self._alone:
                yield {one: encoded[one]}

    async def _send(self, leader: Broker, message_sets: _Encoded, records: int, outcomes: Outcomes) -> None:
        """Send one request, wait for its confirmation, and set the outcomes of its message sets.

        They are RequestNotSent if nothing was written. If cancelled, the connection is closed: a later request must not
        be sent behind one that hangs.
        """
        try:
            connection = await self._connect(leader)
        except RequestNotSent as error:
            self._fail(message_sets, error, outcomes)
            return
        try:
            # from the check that the connection is open up to the write nothing else runs: a ConnectionLost from here on
            # comes after the write
            await connection.send(_make_request(message_sets), timeout_s=self._timeout_s)
            if self._confirms:
                await self._confirm(connection)
            else:
                self._note_unconfirmed(leader, connection, records)
        except (ConnectionLost, ProtocolError) as error:
            self._fail(message_sets, error, outcomes)
        except asyncio.CancelledError:
            connection.close()
            self._fail(message_sets, RequestTimedOut(f"broker {leader}: no confirmation in time"), outcomes)
            raise
        else:
            self._alone.difference_update(message_sets)
            outcomes.update(dict.fromkeys(message_sets, _SENT))

    async def _confirm(self, connection: BrokerConnection) -> None:
        """Wait until the broker has worked on all earlier requests of a connection.

        Raises ConnectionLost or ProtocolError.
        """
        await connection.request(_CONFIRMATION, timeout_s=self._timeout_s)

    def _note_unconfirmed(self, leader: Broker, connection: BrokerConnection, records: int) -> None:
        before, count = self._unconfirmed.get(leader.id, (connection, 0))
        if before is not connection:
            self._warn(leader.id, count, "the connection was replaced")
            count = 0
        self._unconfirmed[leader.id] = (connection, count + records)

    # -- outcomes

    def _fail(self, message_sets: _Encoded, failure: ConnectionLost | ProtocolError, outcomes: Outcomes) -> None:
        outcomes.update({one: self._judge(one, failure) for one in message_sets})

    def _judge(self, partition: TopicPartition, failure: ConnectionLost | ProtocolError) -> ConsumerdError:
        """Return the outcome of a batch whose request has failed."""
        if isinstance(failure, (RequestNotSent, LocalProtocolError)):
            return failure
        text = (
            f"{failure}; PRODUCE of {partition} was sent and not confirmed. The broker is down or hangs, or it refuses the "
            "request: a partition that it does not have, or a format that it does not know (Kafka 0.6: magic 1; Jafka: "
            "magic 0 and snappy)"
        )
        if self._legacy.on_unknown is UnknownOutcome.FAIL:
            unknown: ConsumerdError = DeliveryUnknown(
                f"{partition}: {text}. It is unknown if the records were written, and on_unknown is fail: they are not "
                "sent again",
                partition=partition,
                in_doubt=True,
            )
        else:
            self._alone.add(partition)
            unknown = ConnectionLost(text)
        unknown.__cause__ = failure
        return unknown


def _make_request(message_sets: _Encoded) -> LegacyProduceRequest | LegacyMultiProduceRequest:
    requests = tuple(
        LegacyProduceRequest(topic=one.topic, partition=one.partition.number, messages=messages)
        for one, messages in message_sets.items()
    )
    return requests[0] if len(requests) == 1 else LegacyMultiProduceRequest(requests=requests)
