# SPDX-License-Identifier: Apache-2.0
"""Hooks: the events that components report to metrics, logs and the status page.

Components call hooks; ``telemetry.metrics`` turns them into Prometheus series and ``daemon`` into the status page, and
components know neither. Every hook returns at once and never raises. :class:`Hooks` does nothing: subclass it and
override the hooks of interest.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import cast

from consumerd.model import BrokerId, Gap, SessionEpoch, TopicPartition


class Trouble(enum.StrEnum):
    """Faults without a hook of their own, named after the log event written with them."""

    # -- ZooKeeper and the cluster
    ZOOKEEPER_UNUSABLE = "zookeeper_unusable"
    ZOOKEEPER_HISTORY_FORGOTTEN = "zookeeper_history_forgotten"
    ZOOKEEPER_EVENT_UNREADABLE = "zookeeper_event_unreadable"
    CHROOT_MISSING = "chroot_missing"
    BROKERS_MISSING = "brokers_missing"
    ZNODE_IGNORED = "znode_ignored"
    CLUSTER_READ_FAILED = "cluster_read_failed"
    CLUSTER_VIEWS_DISAGREE = "cluster_views_disagree"

    # -- membership
    REGISTRATION_FAILED = "registration_failed"
    REGISTRATION_SPOILT = "registration_spoilt"
    UNREGISTRATION_FAILED = "unregistration_failed"
    MEMBER_LINGERS = "member_lingers"
    GROUP_UNREADABLE = "group_unreadable"
    TOPIC_UNREADABLE = "topic_unreadable"
    TOPIC_NOT_PERMITTED = "topic_not_permitted"
    CLAIM_FAILED = "claim_failed"
    RELEASE_FAILED = "release_failed"
    RETHREAD_FAILED = "rethread_failed"
    OWNERS_UNREAD = "owners_unread"
    OWNERS_PARENT_MISSING = "owners_parent_missing"
    RIGHTS_UNREAD = "rights_unread"
    STRAY_OWNERS_FOUND = "stray_owners_found"
    DRAIN_OVERRAN = "drain_overran"
    LEAVE_TIMED_OUT = "leave_timed_out"

    # -- positions
    OFFSET_MALFORMED = "offset_malformed"
    REQUEST_MALFORMED = "request_malformed"
    REQUEST_OUTDATED = "request_outdated"
    REQUESTS_LOOKUP_FAILED = "requests_lookup_failed"
    REQUEST_LOOKUP_FAILED = "request_lookup_failed"
    LOG_TRUNCATED = "log_truncated"

    # -- delivery and sinks
    BROKER_FETCH_FAILED = "broker_fetch_failed"
    DELIVERY_FAILING = "delivery_failing"
    OPEN_TRANSACTION_AWAITED = "open_transaction_awaited"
    STOP_FLUSH_FAILED = "stop_flush_failed"
    DRAIN_ABANDONED = "drain_abandoned"
    DRAIN_COMMIT_TIMED_OUT = "drain_commit_timed_out"
    ABANDON_TIMED_OUT = "abandon_timed_out"
    ABANDON_FAILED = "abandon_failed"
    SINK_FAULTED = "sink_faulted"
    SINK_NOT_READY = "sink_not_ready"
    MEMORY_BUDGET_SMALL = "memory_budget_small"
    ROOT_UNRECORDED = "root_unrecorded"
    LANDED_END_UNRECORDED = "landed_end_unrecorded"


def find_landing_delay(timestamp_ms: int, now_s: float) -> float:
    """Return the seconds from a record's timestamp to its landing at ``now_s``.

    ``now_s`` is calendar time. The delay is 0 if the producer's clock is ahead.
    """
    return max(0.0, now_s - timestamp_ms / 1000)


class Hooks:
    """No-op hooks, the complete list. Durations are in seconds, sizes in bytes."""

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        """A warning or error was logged that no other hook reports."""

    # -- ZooKeeper session and membership

    def session_changed(self, epoch: SessionEpoch, phase: str) -> None:
        """The session's lease phase or epoch changed."""

    def rebalance_finished(
        self, *, cause: str, seconds: float, phases: dict[str, float], gained: int, lost: int
    ) -> None:
        """A rebalance pass ended; ``phases`` are seconds by name (snapshot, drain, release, claim)."""

    def assignment_changed(self, *, desired: int, owned: int) -> None:
        """The number of assigned or owned partitions of this process changed."""

    def claim_conflicted(self, partition: TopicPartition, holder: str) -> None:
        """The owner node of a partition granted to us is held by ``holder``."""

    def group_disagreed(self, kind: str, detail: str) -> None:
        """Members may compute different assignments; ``kind`` is one of a small set."""

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        """A claim ended involuntarily."""

    # -- brokers

    def request_finished(self, broker: BrokerId | None, api: str, seconds: float) -> None:
        """A broker answered a request."""

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        """A request ended without an answer."""

    def broker_throttled(self, broker: BrokerId | None, seconds: float) -> None:
        """A broker asked us to wait."""

    def metadata_refreshed(self, source: str, *, failed: bool) -> None:
        """The cluster was read again, or could not be read."""

    # -- data

    def batch_fetched(self, partition: TopicPartition, *, records: int, size: int, high_watermark: int) -> None:
        """A record set was decoded."""

    def fetch_error(self, partition: TopicPartition, error: str) -> None:
        """The fetch of a partition failed; ``error`` is one of a small set of names."""

    def batch_delivered(self, partition: TopicPartition, *, records: int, size: int, position: int) -> None:
        """A sink accepted a batch; ``position`` is the next offset to be delivered."""

    def position_acknowledged(self, partition: TopicPartition, position: int) -> None:
        """Everything below ``position`` is safe at the sink."""

    def batches_landed(self, sink: str, timestamps_ms: Sequence[int]) -> None:
        """Batches are safe at a sink.

        ``timestamps_ms`` has the timestamp of the first record of each batch, in ms since the epoch.
        """

    def gap_recorded(self, partition: TopicPartition, gap: Gap) -> None:
        """Offsets without a delivered record were passed over."""

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        """A policy passed over a unit; ``kept`` if it is in quarantine.

        ``cause`` is ``corrupt``, ``oversized`` or ``rejected``.
        """

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        """A claim found the committed position below the landed one.

        A commit was lost, or the position was set back by hand.
        """

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        """A position was moved, for ``reason``.

        A policy moves positions that the broker does not hold; an operator's request, or the re-creation of the topic,
        move them too.
        """

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        """A sink refused a write or flush."""

    def file_published(self, sink: str, *, name: str, records: int, size: int) -> None:
        """A file was linked to its final name, ``name`` below the sink's path."""

    def open_files_changed(self, sink: str, count: int) -> None:
        """The number of files that a sink is writing changed."""

    def sink_relieved(self, sink: str, action: str) -> None:
        """A file sink wrote a row group or ended a file early, to free memory.

        ``action`` is ``row_group`` or ``file``.
        """

    def partition_stopped(self, partition: TopicPartition, reason: str) -> None:
        """A policy ``stop`` halted the partition until an operator acts."""

    def partition_resumed(self, partition: TopicPartition) -> None:
        """A stopped or failing partition continues."""

    def partition_released(self, partition: TopicPartition) -> None:
        """The partition left this process; its label sets can be dropped."""

    # -- commits

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        """The store holds ``position``."""

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        """A commit was not written; the next one carries the newest position."""

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        """Another process wrote the position of a partition that we own.

        ``position`` is ours, written over it.
        """


def _forward(targets: tuple[Hooks, ...], name: str) -> Callable[..., None]:
    """Return a function that calls one hook of all targets that override it."""
    silent = getattr(Hooks, name)
    told = [getattr(one, name) for one in targets]
    listeners = [one for one in told if getattr(one, "__func__", None) is not silent]
    if len(listeners) == 1:
        return cast("Callable[..., None]", listeners[0])

    def forward(*args: object, **kwargs: object) -> None:
        for listener in listeners:
            listener(*args, **kwargs)

    return forward


class FanOutHooks(Hooks):
    """Calls every hook of several targets, in order.

    The targets that override a hook are determined once, since some hooks are called for every request.
    """

    def __init__(self, *targets: Hooks) -> None:
        for name in vars(Hooks):
            if not name.startswith("_"):
                setattr(self, name, _forward(targets, name))
