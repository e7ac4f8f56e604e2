# SPDX-License-Identifier: Apache-2.0
"""Interfaces that delivery expects of other packages; ``daemon`` connects them."""

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
    """Fetched batches of one partition, in order; each begins where the one before ends.

    Each batch takes a part of the memory budget until :meth:`done` gives it back.
    """

    @property
    def high_watermark(self) -> int | None:
        """The high watermark last reported by the broker; None if none was."""

    @property
    def last_stable_offset(self) -> int | None:
        """The last stable offset, for ``read_committed``; None if the broker does not report it."""

    @property
    def fault(self) -> Fault | None:
        """Reason why the partition cannot be fetched, and since when; None while it can be.

        The time is in seconds of the event loop's clock.
        """

    @property
    def heard_at(self) -> float | None:
        """Time at which the leader last confirmed the high watermark; None before the first response.

        In seconds of the event loop's clock.
        """

    async def next(self) -> RecordBatch:
        """Return the next batch, which begins where the previous one ended.

        After a :meth:`seek`, the batch begins at the new position. Waits without a time limit while the partition has
        no new records. Cancelling loses nothing. Raises OffsetOutOfRange (confirmed with ListOffsets),
        CorruptMessageError or RecordTooLarge. The position stays unchanged then: the next call raises the error again,
        unless :meth:`seek` was called.
        """

    def done(self, batch: RecordBatch) -> None:
        """Release a batch that :meth:`next` has returned, because the sink has taken it."""

    def seek(self, position: int) -> None:
        """Drop the buffered batches and continue at ``position``."""

    def close(self) -> None:
        """Drop the buffered batches and stop fetching. Idempotent."""


class FeedSource(Protocol):
    """Opens feeds of partitions' records; implemented by the fetcher."""

    def feed(self, partition: TopicPartition, offset: int) -> RecordFeed:
        """Return a feed that fetches a partition from ``offset`` on."""


class PartitionHistory(Protocol):
    """Tells if a partition is newer than the group's subscription to its topic."""

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Return True if the partition was created after the group had begun with its topic.

        Raises CoordinationError.
        """


def charge_nobody(size: int) -> None:
    """Do nothing: the default of ``SinkRoute.charge``, for a sink without a memory account."""


def report_nobody(claim: Claim, error: ConsumerdError) -> None:
    """Do nothing: the default of ``DeliveryReports.stopped``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRoute:
    """The sink of a partition, and the policy for records that it refuses.

    ``charge`` is called with the bytes of a unit when it is put into quarantine, and with the negative number
    afterwards: it adds them to the sink's memory account.
    """

    name: str
    sink: Sink
    on_rejected: UnitPolicy = "stop"
    charge: Callable[[int], None] = charge_nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReports:
    """Callbacks by which delivery reports to its owner. All return at once.

    The same report may be made more than once.

    Args:
        lost: The claim cannot be used any more, for the reason in the error; its pipeline has ended.
        sink_closed: The reader of a sink's output has gone, for example that of a pipe; the daemon must shut down.
        stopped: A policy has stopped the claim's partition, for the reason in the error. It stays claimed.
    """

    lost: Callable[[Claim, ConsumerdError], None]
    sink_closed: Callable[[SinkClosed], None]
    stopped: Callable[[Claim, ConsumerdError], None] = report_nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Settings of delivery; durations in milliseconds.

    Args:
        offsets: Policies for missing and out-of-range positions.
        on_corrupt: Policy for data that cannot be decoded: stop, skip, or quarantine.
        on_oversized: Policy for messages above the size limit.
        commit_interval_ms: Time between two commits of all positions.
        recheck_ms: Interval at which a stopped partition checks if it can continue. Brokers are asked at this interval
            for the log end of a partition whose feed has not reported it recently; the lag needs it.
        retry_initial_ms: First backoff of a failing partition; ``retry_maximum_ms`` is the longest.
        abandon_timeout_ms: Time limit of a writer's clean-up after a failure.
        read_committed: Count the lag up to the last stable offset instead of the high watermark.
        auto_commit: Commit positions by interval, and when a partition is released. Without it, they are committed by
            ``Deliveries.commit`` alone, except the start of a partition that has no position.
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
    auto_commit: bool = True
