# SPDX-License-Identifier: Apache-2.0
"""Check of new positions in Kafka 0.6 and 0.7: a message must begin there.

Offsets count bytes in these releases.

From a position inside of a message, nothing can be read that is to be trusted. The lengths of messages are read from
the start of the log segment on, which reads a segment at most for each position.

Example: messages begin at 0, 25 and 237. ``offsets set t/0-1=50`` is refused, and names 25 and 237.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.client.leaders import Connections, Leaders
from consumerd.client.legacy_boundaries import Boundary, find_boundary
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.errors import ConfigError, ConnectionLost
from consumerd.model import TopicPartition

_SEARCHES: Final = 8
"""Number of partitions whose logs are read at a time."""
_SHOWN: Final = 5


async def find_boundaries(
    connections: Connections, leaders: Leaders, positions: Mapping[TopicPartition, int], *, request_timeout_s: float
) -> dict[TopicPartition, Boundary]:
    """Return for each position the message boundaries around it; the log end is one.

    Raises BrokerError, ConnectionLost, ProtocolError; CorruptMessageError for damage before a position. The time of
    each request is limited.

    Args:
        connections: Pool of connections to brokers of Kafka 0.6 and 0.7.
        positions: A position within the log of each partition.
    """
    lookup = LegacyOffsetLookup(connections, request_timeout_s=request_timeout_s)

    async def find(partition: TopicPartition) -> Boundary:
        broker = leaders.find_leader(partition)
        if broker is None:
            raise ConnectionLost(f"{partition}: its broker is not known, so its messages cannot be looked at")
        position = positions[partition]
        segments = await lookup.list_segments(broker, partition)
        if not segments or position >= segments[-1]:
            return Boundary(position, position)
        return await find_boundary(
            connections,
            broker,
            partition,
            position,
            known=max((one for one in segments if one <= position), default=segments[0]),
            end=segments[-1],
            request_timeout_s=request_timeout_s,
        )

    return await map_bounded(positions, find, in_flight=_SEARCHES)


def check_boundaries(positions: Mapping[TopicPartition, int], boundaries: Mapping[TopicPartition, Boundary]) -> None:
    """Raise ConfigError if a position is inside of a message.

    Args:
        boundaries: Result of :func:`find_boundaries`.
    """
    inside = [
        f"{partition}: {position} is inside of the message at {around.before}; the next one begins at {around.after}"
        for partition, position in positions.items()
        if (around := boundaries[partition]).after != position
    ]
    if inside:
        more = [f"and {len(inside) - _SHOWN} more"] if len(inside) > _SHOWN else []
        raise ConfigError("\n".join([*inside[:_SHOWN], *more, "give --force to ask for it all the same"]))


def list_legacy(partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions of Kafka 0.6 and 0.7 among these."""
    return {one for one in partitions if one.partition.broker is not None}
