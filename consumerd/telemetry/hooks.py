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
    """Kinds of faults that no other hook reports; each is named after its log event."""

    # -- ZooKeeper and the cluster
    ZOOKEEPER_UNUSABLE = "zookeeper_unusable"
    ZOOKEEPER_HISTORY_FORGOTTEN = "zookeeper_history_forgotten"
    ZOOKEEPER_EVENT_UNREADABLE = "zookeeper_event_unreadable"
    CHROOT_MISSING = "chroot_missing"
    BROKERS_MISSING = "brokers_missing"
    AUTHENTICATION_REFUSED = "authentication_refused"
    TICKET_NOT_RENEWED = "ticket_not_renewed"
    HTTP_TOKEN_UNUSABLE = "http_token_unusable"  # noqa: S105 - the name of an event
    HTTP_CERTIFICATE_UNUSABLE = "http_certificate_unusable"
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
    AWAY_PARTITIONS_UNREAD = "away_partitions_unread"
    OWNERS_PARENT_MISSING = "owners_parent_missing"
    RIGHTS_UNREAD = "rights_unread"
    STRAY_OWNERS_FOUND = "stray_owners_found"
    DRAIN_OVERRAN = "drain_overran"
    LEAVE_TIMED_OUT = "leave_timed_out"
    JOIN_FAILED = "join_failed"
    COORDINATOR_SILENT = "coordinator_silent"
    LEAVE_UNANSWERED = "leave_unanswered"
    MEMBER_UNREADABLE = "member_unreadable"
    GROUP_TOPICS_UNREAD = "group_topics_unread"
    GROUP_IN_BOTH_PLACES = "group_in_both_places"

    # -- positions
    OFFSET_MALFORMED = "offset_malformed"
    KAFKA_POSITIONS_UNKNOWN = "kafka_positions_unknown"
    REQUEST_MALFORMED = "request_malformed"
    REQUEST_OUTDATED = "request_outdated"
    REQUESTS_LOOKUP_FAILED = "requests_lookup_failed"
    REQUEST_LOOKUP_FAILED = "request_lookup_failed"
    LOG_TRUNCATED = "log_truncated"
    STOP_UNRECORDED = "stop_unrecorded"

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
    """Return the seconds from a record's timestamp to its landing.

    The delay is 0 if the producer's clock is ahead.

    Args:
        timestamp_ms: Timestamp of the record, in ms since the epoch.
        now_s: Time of the landing, in seconds since the epoch.
    """
    return max(0.0, now_s - timestamp_ms / 1000)


class Hooks:
    """Receiver of the events that components report; each method does nothing.

    Durations are in seconds, sizes in bytes.
    """

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        """A component has logged a warning or error that no other hook reports.

        Args:
            detail: The fault in words.
            partition: The partition concerned; None if the fault is not about one.
        """

    # -- ZooKeeper session and membership

    def session_changed(self, epoch: SessionEpoch, phase: str) -> None:
        """A new ZooKeeper session began, or the phase of its lease changed.

        Args:
            epoch: Number of the session among those of this process, from 1.
            phase: Age of ZooKeeper's last answer, such as ``fresh``.
        """

    def group_lease_changed(self, generation: int, phase: str) -> None:
        """The generation of a broker-coordinated group changed, or the phase of the member's lease.

        Args:
            generation: Number of the group's generation; -1 while the member belongs to none.
            phase: Age of the coordinator's last answer: ``none``, ``fresh``, ``paused`` or ``suspended``.
        """

    def rebalance_finished(
        self, *, cause: str, seconds: float, phases: dict[str, float], gained: int, lost: int
    ) -> None:
        """A rebalance pass of this member ended.

        Args:
            phases: Duration in seconds by name: snapshot, drain, release, claim.
            gained: Number of partitions claimed.
            lost: Number of partitions released.
        """

    def assignment_changed(self, *, desired: int, owned: int) -> None:
        """The number of partitions assigned to this process (``desired``) or owned by it changed."""

    def claim_conflicted(self, partition: TopicPartition, holder: str) -> None:
        """A partition assigned to this member has another owner: ``holder`` in its owner node."""

    def group_disagreed(self, kind: str, detail: str) -> None:
        """A reason was found for which members may compute different assignments.

        Args:
            kind: One of few words for the kind of reason, used as a label of a metric.
            detail: The reason in words.
        """

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        """A claim of a partition ended before the partition was drained, for ``reason``."""

    # -- brokers

    def request_finished(self, broker: BrokerId | None, api: str, seconds: float) -> None:
        """A broker answered a request after ``seconds``; ``api`` is the kind of request."""

    def kerberos_ticket_seen(self, identity: str, left_s: float, life_s: float) -> None:
        """A Kerberos ticket was looked at.

        Args:
            identity: Its principal, or the words ``ticket cache``.
            left_s: Seconds until it ends.
            life_s: Seconds that were left when it was first seen.
        """

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        """A request to a broker ended without an answer.

        Args:
            broker: Id of the broker; None if it is unknown.
            api: Kind of the request, such as ``FETCH``; ``Connect`` for a failed attempt to connect.
            error: Name of the error.
        """

    def broker_throttled(self, broker: BrokerId | None, seconds: float) -> None:
        """A broker's response asked this client to wait ``seconds`` (throttle time)."""

    def metadata_refreshed(self, source: str, *, failed: bool) -> None:
        """Brokers, topics and leaders were read again from ``source``, or could not be read.

        ``source`` is ZooKeeper or the brokers; ``failed`` is True if nothing could be read.
        """

    # -- data

    def batch_fetched(self, partition: TopicPartition, *, records: int, size: int, high_watermark: int | None) -> None:
        """A fetched record set was decoded: ``records`` in ``size`` bytes.

        ``high_watermark`` is that of the broker's response; None if it is unknown.
        """

    def fetch_error(self, partition: TopicPartition, error: str) -> None:
        """The fetch of a partition failed.

        ``error`` is one of few names, used as a label of a metric.
        """

    def batch_delivered(self, partition: TopicPartition, *, records: int, size: int, position: int) -> None:
        """A sink accepted a batch; ``position`` is the next offset to be delivered."""

    def batches_landed(self, sink: str, timestamps_ms: Sequence[int]) -> None:
        """Batches are safe at a sink.

        ``timestamps_ms`` has the timestamp of the first record of each batch, in ms since the epoch.
        """

    def gap_recorded(self, partition: TopicPartition, gap: Gap, *, requested: bool) -> None:
        """Offsets of a partition were passed over without a delivered record.

        Args:
            requested: True if an operator has asked to pass over the offsets.
        """

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        """A policy passed over an undeliverable record, message or batch.

        Args:
            cause: ``corrupt``, ``oversized`` or ``rejected``.
            kept: True if a copy is in the quarantine folder.
        """

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        """A claim found the committed position below the end of the landed files.

        The last commit was lost, or the position was set back by hand.

        Args:
            committed: The committed position.
            landed: The offset after the last landed offset.
        """

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        """A partition's position was moved from ``before`` to ``after``, for ``reason``.

        Reasons are a policy for positions outside of the log, an operator's request, and the re-creation of the topic.
        """

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        """A sink refused a write or flush; ``retriable`` is True if the fault may pass."""

    def file_published(self, sink: str, *, name: str, records: int, size: int) -> None:
        """A sink published a file; ``name`` is its path below the sink's path."""

    def open_files_changed(self, sink: str, count: int) -> None:
        """The number of files that a sink is writing changed."""

    def sink_relieved(self, sink: str, action: str) -> None:
        """A sink wrote something out early, to free memory.

        ``action`` is ``row_group``, ``file`` or ``request``.
        """

    def sink_request_finished(self, sink: str, *, result: str, seconds: float, is_retry: bool) -> None:
        """A request of the sink ``http`` ended.

        Args:
            result: Class of the response's status code, such as ``2xx``; ``none`` without a response, ``abandoned`` if
                the request was cancelled.
            seconds: Time from the request to the end of its response.
            is_retry: True if the same records were sent before.
        """

    def sink_requests_changed(self, sink: str, count: int) -> None:
        """The number of requests of the sink ``http`` that are under way changed."""

    def mirror_advanced(
        self, partition: TopicPartition, *, target_topic: str, target_partition: int, source: int, target: int
    ) -> None:
        """Records of a partition are safe in the target of a mirror.

        Args:
            source: Source offset from which the mirror goes on.
            target: Target offset after the last record that it wrote.
        """

    def mirror_transaction_finished(self, sink: str, *, committed: bool, seconds: float) -> None:
        """A transaction of a mirror ended, ``seconds`` after its first record was sent.

        Args:
            committed: False if it was aborted: its records are sent again, and no reader of committed records sees the
                first ones.
        """

    def mirror_fenced(self, partition: TopicPartition) -> None:
        """Another daemon took over the transactional id of a partition that is still claimed here."""

    def partition_stopped(self, partition: TopicPartition, reason: str) -> None:
        """A policy ``stop`` halted the partition until an operator acts."""

    def partition_resumed(self, partition: TopicPartition) -> None:
        """A stopped or failing partition continues."""

    def partition_released(self, partition: TopicPartition) -> None:
        """The partition left this process, so metrics with its label can be dropped."""

    # -- commits

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        """The position of a partition was committed."""

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        """A partition's position could not be committed; the next commit sends the newest one."""

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        """Another process wrote the position of a partition that this process owns.

        ``position`` is this process's own, written over the other one.
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
    """Forwards every event to several targets, in order.

    At its creation it finds out which targets override which hook, since some hooks are called for every request.
    """

    def __init__(self, *targets: Hooks) -> None:
        for name in vars(Hooks):
            if not name.startswith("_"):
                setattr(self, name, _forward(targets, name))
