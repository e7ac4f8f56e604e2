# SPDX-License-Identifier: Apache-2.0
"""What the status says as gauges. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from consumerd.daemon.status import DaemonStatus, Moment
from consumerd.delivery.status import DeliveryState
from consumerd.telemetry.metrics import Reading


def read_gauges(status: DaemonStatus) -> Sequence[Reading]:
    """Return every gauge of ``telemetry.metrics`` as it stands."""
    stopped = sum(one.state == DeliveryState.STOPPED for one in status.partitions)
    failing = sum(one.state == DeliveryState.FAILING for one in status.partitions)
    group = status.group.encode(errors="backslashreplace").decode()  # no half characters in a scrape
    readings = [
        Reading("consumerd_info", 1, (group, status.version)),
        Reading("consumerd_ready", float(status.ready)),
        Reading("consumerd_session_epoch", status.session_epoch),
        Reading("consumerd_group_members", status.members),
        Reading("consumerd_group_disagreements", len(status.disagreements)),
        Reading("consumerd_missing_topics", len(status.missing_topics)),
        Reading("consumerd_group_partitions", status.group_partitions),
        Reading("consumerd_denied_topics", len(status.denied_topics)),
        Reading("consumerd_desired_partitions", status.desired),
        Reading("consumerd_owned_partitions", status.owned),
        Reading("consumerd_unowned_partitions", max(0, status.desired - status.owned)),
        Reading("consumerd_stopped_partitions", stopped),
        Reading("consumerd_failing_partitions", failing),
        *(Reading("consumerd_buffered_bytes", size, (kind,)) for kind, size in status.buffered_bytes.items()),
        Reading("consumerd_memory_budget_bytes", status.memory_budget_bytes),
    ]
    for one in status.partitions:
        labels = (one.topic, one.partition)
        failing_s = one.since.ago_s if one.state == DeliveryState.FAILING else 0.0
        stopped_s = one.since.ago_s if one.state == DeliveryState.STOPPED else 0.0
        readings += [
            Reading("consumerd_partition_failing_seconds", failing_s, labels),
            Reading("consumerd_partition_stopped_seconds", stopped_s, labels),
            Reading("consumerd_position_offset", _or_nan(one.position), labels),
            Reading("consumerd_acknowledged_offset", _or_nan(one.acknowledged), labels),
            Reading("consumerd_committed_offset", _or_nan(one.committed), labels),
            Reading("consumerd_high_watermark_offset", _or_nan(one.high_watermark), labels),
            Reading("consumerd_lag_records", _or_nan(one.lag), labels),
            Reading("consumerd_lag_seconds", _or_nan(one.lag_seconds), labels),
        ]
        readings += _read_moment("consumerd_last_progress_timestamp_seconds", one.last_progress, labels)
        readings += _read_moment("consumerd_last_commit_timestamp_seconds", one.last_commit, labels)
    for sink in status.sinks:
        readings.append(Reading("consumerd_sink_open_files", sink.open_files, (sink.sink,)))
        readings.append(Reading("consumerd_sink_buffered_bytes", sink.buffered_bytes, (sink.sink,)))
        readings.append(Reading("consumerd_sink_memory_budget_bytes", sink.memory_budget_bytes, (sink.sink,)))
        readings.append(Reading("consumerd_sink_held_up", float(sink.held_up), (sink.sink,)))
        readings.append(Reading("consumerd_sink_unacknowledged_offsets", sink.unacknowledged, (sink.sink,)))
        readings += _read_moment("consumerd_last_file_timestamp_seconds", sink.last_file, (sink.sink,))
    return readings


def _read_moment(name: str, moment: Moment | None, labels: tuple[str, ...]) -> Sequence[Reading]:
    """Return no reading for what has not happened yet: a time that is made up would look late, or just now."""
    return () if moment is None else (Reading(name, moment.timestamp_s, labels),)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
