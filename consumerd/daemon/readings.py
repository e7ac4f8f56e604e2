# SPDX-License-Identifier: Apache-2.0
"""Table of the daemon's gauges: help text and source in the status.

A new gauge is one entry of a table below; ``make metrics`` then writes it into docs/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from consumerd.daemon.status import DaemonStatus, Moment, PartitionReport, SinkStatus
from consumerd.delivery.status import DeliveryState
from consumerd.telemetry.metrics import GaugeSpec, Reading

_Report = TypeVar("_Report")


@dataclass(frozen=True, slots=True)
class _Gauge(Generic[_Report]):
    """A gauge with one value for each process, partition or sink.

    Args:
        read: Returns the value, or None if it is unknown.
        absent_if_unknown: An unknown value gives no sample, instead of NaN.
    """

    spec: GaugeSpec
    read: Callable[[_Report], float | None]
    absent_if_unknown: bool = False


def _process(name: str, text: str, read: Callable[[DaemonStatus], float]) -> _Gauge[DaemonStatus]:
    return _Gauge(GaugeSpec(name, text), read)


def _partition(
    name: str, text: str, read: Callable[[PartitionReport], float | None], *, absent_if_unknown: bool = False
) -> _Gauge[PartitionReport]:
    return _Gauge(GaugeSpec(name, text, ("topic", "partition")), read, absent_if_unknown)


def _sink(
    name: str, text: str, read: Callable[[SinkStatus], float | None], *, absent_if_unknown: bool = False
) -> _Gauge[SinkStatus]:
    return _Gauge(GaugeSpec(name, text, ("sink",)), read, absent_if_unknown)


def _count(status: DaemonStatus, state: DeliveryState) -> int:
    return sum(one.state == state for one in status.partitions)


def _read_age(report: PartitionReport, state: DeliveryState) -> float:
    """Return a partition's seconds in a state, 0 if it is in another one."""
    return report.since.ago_s if report.state == state else 0.0


def _read_timestamp(moment: Moment | None) -> float | None:
    return None if moment is None else moment.timestamp_s


_INFO: Final = GaugeSpec(
    "consumerd_info", "1, with the group (group.id) and the version as labels.", ("group", "version")
)
_BUFFERED_BYTES: Final = GaugeSpec(
    "consumerd_buffered_bytes", "Bytes held against the memory budget, by what they are.", ("kind",)
)
_CERTIFICATE_EXPIRY: Final = GaugeSpec(
    "consumerd_tls_certificate_expiry_timestamp_seconds",
    "When the file's certificates end: the first of our chain, the last of the authorities. As read at the start.",
    ("file",),
)
_TICKET_EXPIRY: Final = GaugeSpec(
    "consumerd_kerberos_ticket_expiry_timestamp_seconds", "When the identity's Kerberos ticket ends.", ("identity",)
)
_TICKET_LIFE: Final = GaugeSpec(
    "consumerd_kerberos_ticket_lifetime_seconds",
    "Time from when the identity's present Kerberos ticket was first seen until its end.",
    ("identity",),
)
_SAFE: Final = GaugeSpec(
    "consumerd_mirror_safe_to_cut_over",
    "1 if everything that the source had a moment ago is in the target, else 0; absent without a sink kafka.",
)

_OF_THE_PROCESS: Final = (
    _process(
        "consumerd_ready",
        "1 when registered and every assigned partition is claimed.",
        lambda status: float(status.ready),
    ),
    _process(
        "consumerd_session_epoch",
        "How many ZooKeeper sessions this process has had.",
        lambda status: status.session_epoch,
    ),
    _process(
        "consumerd_group_generation",
        "Generation of a group that brokers coordinate; -1 while this process belongs to none, 0 in ZooKeeper.",
        lambda status: 0 if status.coordination is None else status.coordination.generation,
    ),
    _process(
        "consumerd_group_members",
        "Members registered in the group, this one included.",
        lambda status: status.members,
    ),
    _process(
        "consumerd_group_disagreements",
        "Reasons seen now why members may not own what the assignment says.",
        lambda status: len(status.disagreements),
    ),
    _process(
        "consumerd_missing_topics",
        "Topics subscribed to by name that the cluster does not have.",
        lambda status: len(status.missing_topics),
    ),
    _process(
        "consumerd_partitions_away",
        "Partitions of the group, of all owners, that their broker of Kafka 0.6 or 0.7 does not register now.",
        lambda status: sum(len(one.partitions) for one in status.away),
    ),
    _process(
        "consumerd_group_partitions",
        "Partitions of the topics that the group consumes, of all owners.",
        lambda status: status.group_partitions,
    ),
    _process(
        "consumerd_denied_topics",
        "Topics subscribed to that ZooKeeper's ACLs keep this process from consuming.",
        lambda status: len(status.denied_topics),
    ),
    _process(
        "consumerd_desired_partitions",
        "Partitions that the assignment gives to this process.",
        lambda status: status.desired,
    ),
    _process("consumerd_owned_partitions", "Partitions that this process owns.", lambda status: status.owned),
    _process(
        "consumerd_unowned_partitions",
        "Partitions that this process should own and does not.",
        lambda status: max(0, status.desired - status.owned),
    ),
    _process(
        "consumerd_stopped_partitions",
        "Owned partitions that a policy stopped until an operator acts.",
        lambda status: _count(status, DeliveryState.STOPPED),
    ),
    _process(
        "consumerd_failing_partitions",
        "Owned partitions for which something fails that is tried again.",
        lambda status: _count(status, DeliveryState.FAILING),
    ),
    _process(
        "consumerd_memory_budget_bytes",
        "The limit of consumerd_buffered_bytes, all kinds together.",
        lambda status: status.memory_budget_bytes,
    ),
)

_OF_A_PARTITION: Final = (
    _partition(
        "consumerd_partition_failing_seconds",
        "How long the partition has been failing; 0 if it is not.",
        lambda report: _read_age(report, DeliveryState.FAILING),
    ),
    _partition(
        "consumerd_partition_stopped_seconds",
        "How long a policy has kept the partition stopped; 0 if none does.",
        lambda report: _read_age(report, DeliveryState.STOPPED),
    ),
    _partition("consumerd_position_offset", "Next offset to be delivered.", lambda report: report.position),
    _partition(
        "consumerd_acknowledged_offset",
        "Next offset after everything that is safe at the sink.",
        lambda report: report.acknowledged,
    ),
    _partition("consumerd_committed_offset", "Position in the offset store.", lambda report: report.committed),
    _partition(
        "consumerd_high_watermark_offset",
        "Next offset that the broker will show.",
        lambda report: report.high_watermark,
    ),
    _partition(
        "consumerd_lag_records",
        "High watermark (last stable offset under read_committed) minus position: an upper bound; NaN when unknown.",
        lambda report: report.lag,
    ),
    _partition(
        "consumerd_lag_seconds",
        "Age of the oldest record that is not acknowledged: 0 when caught up, NaN when unknown.",
        lambda report: report.lag_seconds,
    ),
    _partition(
        "consumerd_last_progress_timestamp_seconds",
        "When the position moved last, in seconds since the epoch; absent until it did under this claim.",
        lambda report: _read_timestamp(report.last_progress),
        absent_if_unknown=True,
    ),
    _partition(
        "consumerd_last_commit_timestamp_seconds",
        "When the position was committed last; absent until it was under this claim.",
        lambda report: _read_timestamp(report.last_commit),
        absent_if_unknown=True,
    ),
)

_OF_A_SINK: Final = (
    _sink("consumerd_sink_open_files", "Files of the sink that are being filled.", lambda sink: sink.open_files),
    _sink(
        "consumerd_sink_requests_in_flight",
        "Requests of the sink http that are under way; 0 for other sinks.",
        lambda sink: sink.requests,
    ),
    _sink(
        "consumerd_sink_buffered_bytes",
        "Bytes held for the sink against its part of the budget.",
        lambda sink: sink.buffered_bytes,
    ),
    _sink(
        "consumerd_sink_memory_budget_bytes",
        "The sink's part of the memory budget.",
        lambda sink: sink.memory_budget_bytes,
    ),
    _sink(
        "consumerd_sink_held_up",
        "1 while fetching waits until the sink has taken more, else 0.",
        lambda sink: float(sink.held_up),
    ),
    _sink(
        "consumerd_sink_unacknowledged_offsets",
        "Offsets that the sink took and has not acknowledged.",
        lambda sink: sink.unacknowledged,
    ),
    _sink(
        "consumerd_last_file_timestamp_seconds",
        "When the sink published its last file; absent until this process published one.",
        lambda sink: _read_timestamp(sink.last_file),
        absent_if_unknown=True,
    ),
)

_OF_A_MIRROR: Final = (
    _partition(
        "consumerd_mirror_source_offset",
        "Source offset from which the mirror goes on; absent until it has stored one.",
        lambda report: None if report.mirrored is None else report.mirrored.source,
        absent_if_unknown=True,
    ),
    _partition(
        "consumerd_mirror_target_offset",
        "Target offset after the last record that the mirror wrote, or from which it began; absent until it is stored.",
        lambda report: None if report.mirrored is None else report.mirrored.target,
        absent_if_unknown=True,
    ),
)

GAUGES: Final = (
    _INFO,
    *(gauge.spec for gauge in _OF_THE_PROCESS),
    _BUFFERED_BYTES,
    _CERTIFICATE_EXPIRY,
    _TICKET_EXPIRY,
    _TICKET_LIFE,
    *(gauge.spec for gauge in _OF_A_PARTITION),
    *(gauge.spec for gauge in _OF_A_SINK),
    *(gauge.spec for gauge in _OF_A_MIRROR),
    _SAFE,
)


def read_gauges(status: DaemonStatus) -> Sequence[Reading]:
    """Return the values of all gauges: those of the process, each partition and each sink."""
    group = status.group.encode(errors="backslashreplace").decode()  # no half characters in a scrape
    return [
        Reading(_INFO, 1, (group, status.version)),
        *_read(_OF_THE_PROCESS, [(status, ())]),
        *(Reading(_BUFFERED_BYTES, size, (kind,)) for kind, size in status.buffered_bytes.items()),
        *(Reading(_CERTIFICATE_EXPIRY, end, (file,)) for file, end in status.tls_ends.items()),
        *(Reading(_TICKET_EXPIRY, one.end, (one.identity,)) for one in status.tickets),
        *(Reading(_TICKET_LIFE, one.life_s, (one.identity,)) for one in status.tickets),
        *_read(_OF_A_PARTITION, [(one, (one.topic, one.partition)) for one in status.partitions]),
        *_read(_OF_A_SINK, [(one, (one.sink,)) for one in status.sinks]),
        *_read(_OF_A_MIRROR, [(one, (one.topic, one.partition)) for one in status.partitions]),
        *([] if status.mirror is None else [Reading(_SAFE, float(status.mirror.safe_to_cut_over))]),
    ]


def _read(gauges: Iterable[_Gauge[_Report]], reports: Sequence[tuple[_Report, tuple[str, ...]]]) -> Iterator[Reading]:
    for gauge in gauges:
        for report, labels in reports:
            value = gauge.read(report)
            if value is not None:
                yield Reading(gauge.spec, value, labels)
            elif not gauge.absent_if_unknown:  # a made-up time would look like an event long ago, or just now
                yield Reading(gauge.spec, math.nan, labels)
