# SPDX-License-Identifier: Apache-2.0
"""Ports of delivery to its sibling packages; ``daemon`` connects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from consumerd.delivery.policy import OffsetPolicy, UnitPolicy
from consumerd.errors import ConsumerdError, SinkClosed
from consumerd.model import Claim, Fault, TopicPartition
from consumerd.sinks.base import Sink
from consumerd.wire.records import RecordBatch


class RecordFeed(Protocol):
    """The batches of one partition, in order and without holes.

    Each batch holds a part of the memory budget until it is given back.
    """

    @property
    def high_watermark(self) -> int | None:
        """The high watermark last reported by the broker; None before the first."""

    @property
    def last_stable_offset(self) -> int | None:
        """The last stable offset, for ``read_committed``; None if the broker does not report it."""

    @property
    def fault(self) -> Fault | None:
        """The reason why the partition cannot be fetched, and since when; None if it can."""

    @property
    def heard_at(self) -> float | None:
        """The time when a broker last reported the log end; None before the first."""

    async def next(self) -> RecordBatch:
        """Return the next batch; it begins where the previous one ended, or where sought.

        Unbounded: an idle partition has none. Cancelling loses nothing. Raises OffsetOutOfRange (confirmed),
        CorruptMessageError, RecordTooLarge; the next call raises it again, unless :meth:`seek` moves the feed.
        """

    def done(self, batch: RecordBatch) -> None:
        """Give the batch's bytes back to the memory budget."""

    def seek(self, position: int) -> None:
        """Drop the buffered batches and go on at ``position``."""

    def close(self) -> None:
        """Drop the buffered batches and stop fetching. Idempotent."""


class FeedSource(Protocol):
    """Opens feeds; implemented by the fetcher."""

    def feed(self, partition: TopicPartition, offset: int) -> RecordFeed:
        """Fetch a partition from ``offset`` on."""


class PartitionHistory(Protocol):
    """Tells which is older, a partition or the group's interest in its topic."""

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Return True if the partition was created after the group had begun with its topic.

        Raises CoordinationError.
        """


def charge_nobody(size: int) -> None:
    """Ignore a charge: the stand-in for a missing memory account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRoute:
    """The sink of a partition, and the policy for records that it refuses.

    ``charge`` adds bytes of units on their way into quarantine to the sink's memory account; negative bytes are given
    back.
    """

    name: str
    sink: Sink
    on_rejected: UnitPolicy = "stop"
    charge: Callable[[int], None] = charge_nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReports:
    """Reports to the owner of delivery. Both return at once, and may be called repeatedly.

    Args:
        lost: The claim cannot be used any more, for the reason in the error; its pipeline has ended.
        sink_closed: The reader of a sink's output has gone; the daemon is to shut down in order.
    """

    lost: Callable[[Claim, ConsumerdError], None]
    sink_closed: Callable[[SinkClosed], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Settings of delivery; durations in milliseconds.

    Args:
        recheck_ms: Interval at which a stopped partition checks whether it can go on.
        retry_initial_ms: First backoff of a failing partition; ``retry_maximum_ms`` is the longest.
        abandon_timeout_ms: Time limit of a writer's clean-up after a failure.
        read_committed: Count the lag up to the last stable offset instead of the high watermark.
    """

    offsets: OffsetPolicy = field(default_factory=OffsetPolicy)
    on_corrupt: UnitPolicy = "stop"
    on_oversized: UnitPolicy = "stop"
    commit_interval_ms: int = 5000
    recheck_ms: int = 10_000
    retry_initial_ms: int = 200
    retry_maximum_ms: int = 10_000
    abandon_timeout_ms: int = 10_000
    read_committed: bool = False
