# SPDX-License-Identifier: Apache-2.0
"""Interface of lookups of offsets at one broker, implemented for each generation of brokers.

:class:`consumerd.client.log_range.LogRangeReader` finds the leaders of partitions, retries, and asks by this interface.
``ModernOffsetLookup`` there implements it for brokers of 0.8 and later, :mod:`consumerd.client.legacy_offsets` for
those of 0.6 and 0.7.

Times are in ms since the epoch, or one of two numbers that all generations have for the ends of a log.

Example: ``ask(OffsetQuestion(leader, EARLIEST_TIME), [p0, p1])`` returns ``{p0: 100, p1: BrokerError(...)}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumerd.cluster.view import Broker
from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition

LATEST_TIME: Final = -1
"""Time that stands for the end of a log."""
EARLIEST_TIME: Final = -2
"""Time that stands for the start of a log."""
BEFORE_FIRST: Final = -2
"""Outcome of a time before the first log segment: the log start offset is meant."""
INEXACT: Final = -3
"""Outcome of an exact question to a broker that cannot look up the timestamps of records."""

OffsetOutcome = int | ConsumerdError | None
"""Result of a lookup: an offset, None if no record is that new, or an error."""


@dataclass(frozen=True, slots=True)
class OffsetQuestion:
    """One time to look up, in several partitions of one leader.

    Args:
        time: ms since the epoch, or :data:`LATEST_TIME`, or :data:`EARLIEST_TIME`.
        read_committed: True if the end of a log is its last stable offset, if the broker supports that.
        exact: True if only the timestamps of records count, not the modification times of segments.
    """

    leader: Broker
    time: int
    read_committed: bool = False
    exact: bool = False


class OffsetLookup(Protocol):
    """Looks up offsets at single brokers of one generation."""

    @property
    def logs_are_replicated(self) -> bool:
        """True if logs have replicas, which affects what a log end means; see ``LogRanges``."""

    async def ask(
        self, question: OffsetQuestion, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetOutcome]:
        """Look up one time in partitions of one leader; return an outcome for each.

        The time is limited. A failure is not raised: it is the outcome of its partitions.
        """

    async def list_before(self, leader: Broker, partition: TopicPartition, time: int, most: int) -> list[int]:
        """Return start offsets of log segments last written before a time, in descending order.

        With :data:`LATEST_TIME` the log end comes first, with :data:`EARLIEST_TIME` the log start is all.

        Args:
            time: ms since the epoch, or LATEST_TIME, or EARLIEST_TIME.
            most: Largest number of offsets to return.

        Raises BrokerError, ConnectionLost, ProtocolError.
        """

    async def is_coarse(self, leader: Broker) -> bool:
        """Return True if a broker finds offsets by time only by log segment.

        Raises ConnectionLost, ProtocolError.
        """
