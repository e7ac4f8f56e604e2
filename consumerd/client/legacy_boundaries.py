# SPDX-License-Identifier: Apache-2.0
"""Search for offsets at which messages begin, in logs of Kafka 0.6 and 0.7.

Offsets count bytes there, and a fetch from inside of a message returns garbage without an error. So no offset may be
calculated. Three kinds are known to begin a message, or to end the log: first offsets of log segments and log ends
(``client.legacy_offsets``), and ends of messages that were read before. From such an offset, :func:`find_boundary` goes
from message to message. It reads the lengths only, verifies no checksum and decompresses nothing.

Example: messages begin at 0, 60, 100 and 180, and the log ends at 250. The boundaries around 90 are 60 and 100, found
from 0 by the lengths 60 and 40.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from consumerd.client.leaders import Connections
from consumerd.client.legacy_fetch import fetch_all, make_fetch_request
from consumerd.cluster.view import Broker
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.legacy.stored_message import find_stop

_LEAST_FETCH_BYTES: Final = 4 << 10
"""Size of a fetch behind a message that was larger than the fetch: only its header was of use."""
_MOST_FETCH_BYTES: Final = 4 << 20


class Boundary(NamedTuple):
    """Message boundaries around an offset; both are the offset itself if a message begins there.

    ``before`` is the start of the message that contains the offset, ``after`` the end of it.
    """

    before: int
    after: int


async def find_boundary(
    connections: Connections,
    broker: Broker,
    partition: TopicPartition,
    target: int,
    *,
    known: int,
    end: int,
    request_timeout_s: float = 10.0,
) -> Boundary:
    """Return the message boundaries around ``target``, at most ``end``.

    The broker is asked for all bytes between, but not for the content of messages larger than a fetch. The time of each
    request is limited, not their number. Raises BrokerError, ConnectionLost, ProtocolError; CorruptMessageError, with
    the offset, where a length is impossible.

    Args:
        connections: Pool of connections, whose dialer is ``net.legacy_dialer.LegacyDialer``.
        broker: Broker that has the partition.
        known: Offset at which a message begins, at ``target`` or before it.
        end: Offset at which a message begins or the log ends, after ``known``.
    """
    context = f"Fetch from broker {broker}, to find where messages of {partition} begin"
    before = position = known
    fetch_bytes = _LEAST_FETCH_BYTES
    while position < min(target, end):
        connection = await connections.get(broker, Purpose.FETCH)
        request = make_fetch_request(
            (partition.topic, partition.partition.number), offset=position, max_bytes=fetch_bytes
        )
        (response,) = await fetch_all(connection, [request], timeout_s=request_timeout_s, context=context)
        if response.error_code:
            raise broker_error(response.error_code, context)
        try:
            last, passed = _pass_messages(response.messages, target - position)
        except CorruptMessageError as error:
            raise CorruptMessageError(
                f"{partition}: the message at or after byte offset {position}: {error}",
                partition=partition,
                offset=position,
            ) from error
        if not passed:
            return Boundary(min(position, end), end)  # the log ends here, before the end that was known a moment ago
        was_larger = passed > len(response.messages)
        fetch_bytes = _LEAST_FETCH_BYTES if was_larger else min(2 * fetch_bytes, _MOST_FETCH_BYTES)
        before = position + last
        position += passed
    after = min(position, end)
    return Boundary(after if after <= target else before, after)


def _pass_messages(data: bytes | memoryview, target: int) -> tuple[int, int]:
    """Return start and end of the last message that begins before ``target``.

    It begins in ``data``, and may end behind it. Both are 0 without such a message. Raises CorruptMessageError for an
    impossible length.
    """
    begin = at = 0
    while at < target and (stop := find_stop(data, at)) is not None:
        begin, at = at, stop
    return begin, at
