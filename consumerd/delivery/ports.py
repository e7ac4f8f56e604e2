# SPDX-License-Identifier: Apache-2.0
"""What delivery needs of its siblings and of whoever assembles it: the shapes only, joined in ``daemon``."""

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
    """The batches of one partition, in order and without a hole; each holds a part of the memory budget."""

    @property
    def high_watermark(self) -> int | None:
        """The end of what is readable, as the broker said last; None before it did."""

    @property
    def last_stable_offset(self) -> int | None:
        """The end of what is decided, for ``read_committed``; None where the broker does not say."""

    @property
    def fault(self) -> Fault | None:
        """Why the partition cannot be fetched, and since when; None while it can be."""

    @property
    def heard_at(self) -> float | None:
        """When a broker last said where the log ends; None before it did."""

    async def next(self) -> RecordBatch:
        """Return the next batch; it begins at the position asked for, or at the end of the one before.

        Unbounded: a quiet partition has none. Cancelling loses nothing. Raises OffsetOutOfRange (confirmed),
        CorruptMessageError, RecordTooLarge, and again on the next call unless the feed was moved by :meth:`seek`.
        """

    def done(self, batch: RecordBatch) -> None:
        """Give the batch's bytes back to the budget."""

    def seek(self, position: int) -> None:
        """Drop what is buffered and go on at ``position``."""

    def close(self) -> None:
        """Drop what is buffered and fetch no more. Idempotent."""


class FeedSource(Protocol):
    """Opens feeds; the fetcher."""

    def feed(self, partition: TopicPartition, offset: int) -> RecordFeed:
        """Fetch a partition from ``offset`` on."""


class PartitionHistory(Protocol):
    """Knows which came first, a partition or the group's interest in its topic."""

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Tell whether the partition was made after the group had begun with its topic. Raises CoordinationError."""


def charge_nobody(size: int) -> None:
    """Stand in for a memory account that is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRoute:
    """Where a partition's records go, and what follows one that the sink will never take.

    ``charge`` adds the bytes of units on their way into quarantine (negative: gives them back) to the sink's memory account.
    """

    name: str
    sink: Sink
    on_rejected: UnitPolicy = "stop"
    charge: Callable[[int], None] = charge_nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReports:
    """Whom delivery tells what it cannot decide: both return at once and may be called more than once.

    ``lost``: the claim cannot be used any more (what raised it says why); its pipeline has ended. ``sink_closed``:
    whoever read a sink's output has gone; the daemon is to end in order.
    """

    lost: Callable[[Claim, ConsumerdError], None]
    sink_closed: Callable[[SinkClosed], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """How partitions are delivered; durations in milliseconds.

    ``recheck_ms``: how often a stopped partition looks whether it can go on. ``retry_*_ms``: the backoff of a failing
    one. ``abandon_timeout_ms``: how long a writer may take to clean up after a failure. ``read_committed``: lag is then
    counted to the last stable offset.
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
