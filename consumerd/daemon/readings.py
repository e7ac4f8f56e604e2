"""What the status says as gauges. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from consumerd.daemon.status import DaemonStatus
from consumerd.delivery.status import DeliveryState
from consumerd.telemetry.metrics import Reading


def read_gauges(status: DaemonStatus) -> Sequence[Reading]:
    """Return every gauge of ``telemetry.metrics`` as it stands."""
    stopped = sum(one.state == DeliveryState.STOPPED for one in status.partitions)
    readings = [
        Reading("consumerd_info", 1, (status.version,)),
        Reading("consumerd_ready", float(status.ready)),
        Reading("consumerd_session_epoch", status.session_epoch),
        Reading("consumerd_group_members", status.members),
        Reading("consumerd_group_disagreements", len(status.disagreements)),
        Reading("consumerd_missing_topics", len(status.missing_topics)),
        Reading("consumerd_desired_partitions", status.desired),
        Reading("consumerd_owned_partitions", status.owned),
        Reading("consumerd_unowned_partitions", max(0, status.desired - status.owned)),
        Reading("consumerd_stopped_partitions", stopped),
        *(Reading("consumerd_buffered_bytes", size, (kind,)) for kind, size in status.buffered_bytes.items()),
        Reading("consumerd_memory_budget_bytes", status.memory_budget_bytes),
    ]
    for one in status.partitions:
        labels = (one.topic, one.partition)
        readings += [
            Reading("consumerd_position_offset", _or_nan(one.position), labels),
            Reading("consumerd_acknowledged_offset", _or_nan(one.acknowledged), labels),
            Reading("consumerd_committed_offset", _or_nan(one.committed), labels),
            Reading("consumerd_high_watermark_offset", _or_nan(one.high_watermark), labels),
            Reading("consumerd_lag_records", _or_nan(one.lag), labels),
            Reading("consumerd_lag_seconds", _or_nan(one.lag_seconds), labels),
        ]
    return readings


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
