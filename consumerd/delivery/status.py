# SPDX-License-Identifier: Apache-2.0
"""The delivery status of partitions, as values for the status page and readiness. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from consumerd.model import SessionEpoch, TopicPartition


class DeliveryState(enum.StrEnum):
    """The state of a partition's pipeline."""

    STARTING = "starting"
    """Looking up its start, or waiting for the partition's previous pipeline to end."""
    RUNNING = "running"
    PAUSED = "paused"
    """ZooKeeper does not respond; the position is kept."""
    FAILING = "failing"
    """A failure that may pass; it is retried."""
    STOPPED = "stopped"
    """A policy stopped it until an operator acts; the daemon stays ready."""
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The current status of one partition.

    Args:
        reason: Set while it is stopped or failing.
        since: Start of the present state, on the clock that was passed in, in seconds.
        position: The next offset to be delivered. All positions are None before the start is known.
        lag: Records up to the log end: an upper bound under compaction, and None if unknown.
        oldest_ms: Timestamp of the oldest unacknowledged record (see ``client.record_age``).
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
