# SPDX-License-Identifier: Apache-2.0
"""How each partition's delivery stands, as values for the status page and for readiness. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from consumerd.model import SessionEpoch, TopicPartition


class DeliveryState(enum.StrEnum):
    """What a partition's pipeline is doing."""

    STARTING = "starting"
    """Finding out where to start, or waiting for an earlier pipeline of the partition to end."""
    RUNNING = "running"
    PAUSED = "paused"
    """ZooKeeper has not answered for a while; the position is kept."""
    FAILING = "failing"
    """Something fails that may succeed later; it is tried again."""
    STOPPED = "stopped"
    """A policy halted it until an operator acts; the daemon stays ready."""
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition now.

    ``reason`` is set while stopped or failing; ``since`` (on the clock that was passed in) is when the state began. Positions
    are None before the start is known. ``lag`` is an upper bound under compaction, and None while unknown. ``oldest_ms`` is the
    timestamp of the oldest record that is not acknowledged (see ``client.record_age``).
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
