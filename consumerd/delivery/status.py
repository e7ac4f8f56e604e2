# SPDX-License-Identifier: Apache-2.0
"""The delivery status of partitions, as values for the status page and readiness. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from consumerd.model import SessionEpoch, TopicPartition


class DeliveryState(enum.StrEnum):
    """State of a partition's delivery: starting, running, paused, failing, stopped and so on."""

    STARTING = "starting"
    """The start position is looked up, or the previous claim's pipeline has not ended yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """ZooKeeper does not respond; the position is kept."""
    FAILING = "failing"
    """A failure that may pass; it is retried."""
    STOPPED = "stopped"
    """A policy has stopped the partition until an operator acts; the daemon stays ready."""
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Current status of one partition.

    Args:
        sink: Name of the partition's sink.
        epoch: ZooKeeper session of the claim.
        reason: Set while the partition is stopped or failing, else None.
        since: Start of the present state, in seconds of the event loop's clock.
        position: The next offset to be delivered. All positions are None before the start is known.
        high_watermark: As the feed has recently reported it, else None.
        lag: Number of offsets up to the log end; None if unknown. Under compaction, fewer records.
        oldest_ms: Timestamp of the oldest unacknowledged record, in ms since the Unix epoch; None if unknown.
    """

    partition: TopicPartition
    sink: str
    epoch: SessionEpoch
    state: DeliveryState
    reason: str | None
    since: float
    position: int | None
    acknowledged: int | None
    committed: int | None
    high_watermark: int | None
    lag: int | None
    oldest_ms: int | None
