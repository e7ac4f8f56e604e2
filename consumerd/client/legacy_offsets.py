# SPDX-License-Identifier: Apache-2.0
"""Lookup of offsets at brokers of Kafka 0.6 and 0.7 (OFFSETS).

It implements :mod:`consumerd.client.offset_lookup`. A question is one OFFSETS request for each partition; they are
pipelined on one connection. Source: "Writing a Driver for Kafka", section "Offsets", and a real Kafka 0.7.2.

Unknown partitions
    A broker closes the connection after OFFSETS of a partition that it does not have, without a response. The responses
    to all requests behind that one are lost, too. So each question begins with a MULTIFETCH of 0 bytes: it has an error
    code for each partition, 3 for an unknown one, and only the other partitions are asked for.

    Example: the broker has the partitions 0 to 2. A question for 0, 2 and 7 sends a MULTIFETCH, of which the entry of 7
    has code 3, and OFFSETS for 0 and 2. The outcome of 7 is error 3, UNKNOWN_TOPIC_OR_PARTITION.

Times
    Offsets by time are the starts of log segments, by their modification times. Messages have no timestamps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.client.leaders import Connections
from consumerd.client.legacy_fetch import fetch_all, make_fetch_request
from consumerd.client.offset_lookup import (
    BEFORE_FIRST,
    EARLIEST_TIME,
    INEXACT,
    LATEST_TIME,
    OffsetOutcome,
    OffsetQuestion,
)
from consumerd.cluster.view import Broker
from consumerd.errors import BrokerError, ConnectionLost, ProtocolError, RemoteProtocolError, RequestTimedOut
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.legacy.messages import LegacyFetchResponse, LegacyOffsetsRequest
from consumerd.wire.primitives import MAX_INT32

_KNOWN: Final = (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
"""Error codes of a FETCH from offset 0 that show that the broker has the partition."""


class LegacyOffsetLookup:
    """Looks up offsets at single brokers of Kafka 0.6 and 0.7.

    Args:
        connections: Pool of connections, whose dialer is ``net.legacy_dialer.LegacyDialer``.
        request_timeout_s: Time limit of each request, in seconds.
    """

    def __init__(self, connections: Connections, *, request_timeout_s: float = 10.0) -> None:
        self._connections = connections
        self._request_timeout_s = request_timeout_s

    @property
    def logs_are_replicated(self) -> bool:
        """False: each partition is on one broker only."""
        return False

    async def ask(
        self, question: OffsetQuestion, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetOutcome]:
        """Look up one time in partitions of one leader; return an outcome for each.

        A partition that the broker does not have gets BrokerError 3. If the broker closes the connection all the same,
        the outcome is a ConnectionLost that tells of both possible reasons.
        """
        if question.exact:
            return dict.fromkeys(partitions, INEXACT)
        try:
            connection = await self._connections.get(question.leader, Purpose.CONTROL)
            refusals = await self._find_refusals(connection, question.leader, partitions)
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            return dict.fromkeys(partitions, error)

        async def look_up(partition: TopicPartition) -> OffsetOutcome:
            return await self._look_up(connection, question, partition)

        known = [one for one in partitions if one not in refusals]
        return {**refusals, **await map_bounded(known, look_up)}

    async def is_coarse(self, leader: Broker) -> bool:  # noqa: ARG002 - the interface
        """Return True: messages have no timestamps."""
        return True

    async def list_before(self, leader: Broker, partition: TopicPartition, time: int, most: int) -> list[int]:
        """Return start offsets of log segments last written before a time, in descending order.

        OFFSETS as it is: the log end comes first with LATEST_TIME, or a time that is not before the broker's clock. The
        offsets of a topic without messages are ``[0]``.

        Args:
            time: ms since the epoch, or LATEST_TIME, or EARLIEST_TIME.
            most: Largest number of offsets to return.

        Raises BrokerError, which is error 3 for a partition that the broker does not have, ConnectionLost,
        ProtocolError.
        """
        connection = await self._connections.get(leader, Purpose.CONTROL)
        for refusal in (await self._find_refusals(connection, leader, [partition])).values():
            raise refusal
        return list(await self._ask(connection, leader, partition, time, most=most)) or _without_log(time)

    async def list_segments(self, leader: Broker, partition: TopicPartition) -> tuple[int, ...]:
        """Return the first offset of each log segment, in order, and the log end offset.

        At each of them a message begins, or the log ends. The broker must have the partition. Raises BrokerError,
        ConnectionLost, ProtocolError.
        """
        connection = await self._connections.get(leader, Purpose.CONTROL)
        return tuple(sorted(await self._ask(connection, leader, partition, LATEST_TIME, most=MAX_INT32)))

    async def _find_refusals(
        self, connection: BrokerConnection, leader: Broker, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, BrokerError]:
        """Return the errors of partitions for which OFFSETS would close the connection."""
        context = f"Fetch of 0 bytes from broker {leader}, before OFFSETS"
        keys = [(one.topic, one.partition.number) for one in partitions]
        requests = [make_fetch_request(key, offset=0, max_bytes=0) for key in keys]
        responses = await fetch_all(connection, requests, timeout_s=self._request_timeout_s, context=context)
        answered: list[tuple[TopicPartition, LegacyFetchResponse]] = list(zip(partitions, responses, strict=True))
        return {
            one: broker_error(response.error_code, f"{context}, for {one}")
            for one, response in answered
            if response.error_code not in _KNOWN
        }

    async def _look_up(
        self, connection: BrokerConnection, question: OffsetQuestion, partition: TopicPartition
    ) -> OffsetOutcome:
        """Send OFFSETS for one partition; return the outcome."""
        try:
            offsets = await self._ask(connection, question.leader, partition, question.time, most=1)
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            return error
        return next(iter(offsets or _without_log(question.time)), BEFORE_FIRST)

    async def _ask(
        self, connection: BrokerConnection, leader: Broker, partition: TopicPartition, time: int, *, most: int
    ) -> Sequence[int]:
        """Return the offsets of an OFFSETS response, newest first.

        Raises BrokerError, ConnectionLost, ProtocolError.

        Args:
            most: Largest number of offsets that the response may have.
        """
        context = f"OFFSETS at broker {leader} for {partition}"
        request = LegacyOffsetsRequest(
            topic=partition.topic, partition=partition.partition.number, time=time, max_number=most
        )
        try:
            response = await connection.request(request, timeout_s=self._request_timeout_s)
        except RequestTimedOut:
            raise
        except ConnectionLost as error:
            raise ConnectionLost(
                f"{context}: {error}; Kafka 0.7 closes the connection without an answer if it does not have the "
                "partition, or another one that was asked for at the same time"
            ) from error.__cause__
        if response.error_code:
            raise broker_error(response.error_code, context)
        for offset in response.offsets:
            if offset < 0:
                raise RemoteProtocolError(f"{context}: expected an offset, got {offset}")
        return response.offsets


def _without_log(time: int) -> list[int]:
    """Return the offsets of a topic without a log.

    Kafka returns 0 as both ends, and Jafka no offset.
    """
    return [0] if time in (EARLIEST_TIME, LATEST_TIME) else []
