# SPDX-License-Identifier: Apache-2.0
"""The daemon's status at one moment, as a frozen value.

The status page, the API, readiness and the gauges are all made from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.daemon.events import EventHistory, EventStatus
from consumerd.model import Gap, SessionEpoch, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble, find_landing_delay
from consumerd.telemetry.wording import format_time

RECENT: Final = 20
"""Number of rebalances, and of events, that the status keeps."""
_RATE_WINDOW_S: Final = 10.0
"""Time over which rates are measured, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time in the past, as an age and by the wall clock.

    Attributes:
        ago_s: seconds from this time to the moment when the status was taken.
        at: wall clock, as ISO 8601.
        timestamp_s: wall clock, in seconds since the Unix epoch.
    """

    ago_s: float
    at: str
    timestamp_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredPartition:
    """Place of a partition in the target of a mirror.

    Attributes:
        source: source offset from which the mirror goes on.
        target: target offset after the last record that it wrote.
    """

    topic: str
    partition: int
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """Status of a partition that this member owns.

    ``position``, ``acknowledged`` and ``committed`` are next offsets: the offset after the last record delivered to the
    sink, safe at the sink, or committed. ``lag`` counts offsets up to the log end; ``lag_seconds`` is the age of the
    oldest unacknowledged record. A position or a lag is None if unknown. ``reason`` is set while the partition is
    stopped or failing, else None.
    """

    topic: str
    partition: str
    sink: str
    state: str
    reason: str | None
    since: Moment
    """Time at which the partition entered its state."""
    position: int | None
    acknowledged: int | None
    committed: int | None
    high_watermark: int | None
    lag: int | None
    lag_seconds: float | None
    records_per_second: float
    last_progress: Moment | None = None
    """Time at which delivery last advanced, since this member owns the partition; None if it has not."""
    last_commit: Moment | None = None
    """Time of the last commit, since this member owns the partition; None if there was none."""
    mirrored: MirroredPartition | None = None
    """Place in the target, if the sink is a mirror and has stored one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """Status of a sink in this process, with the files published since the process started.

    Attributes:
        partitions: number of partitions whose records go to the sink.
        unacknowledged: number of offsets that the sink has taken and not acknowledged.
        buffered_bytes: bytes of memory held for the sink.
        memory_budget_bytes: the limit of these bytes.
        files: number of published files, with ``records`` records and ``bytes`` bytes in all.
        last_file: time at which the newest file was published; None if there is none.
        last_name: path of the newest file, relative to the sink's path.
        open_files: number of files that are being filled.
        requests: number of requests of a sink ``http`` that are under way.
        landing_delay_s: seconds from a record's timestamp to its acknowledgement, for the newest batch; None before the
            first batch, and for records without timestamps.
        held_up: True if fetching waits for memory until the sink has taken more.
    """

    sink: str
    partitions: int
    unacknowledged: int
    buffered_bytes: int
    memory_budget_bytes: int
    files: int
    records: int
    bytes: int
    last_file: Moment | None
    last_name: str | None = None
    open_files: int = 0
    requests: int = 0
    landing_delay_s: float | None = None
    held_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopicStatus:
    """Mirror of one topic, of the partitions that this member owns.

    ``lag`` counts the source's offsets that are not in the target yet; None if it is unknown for a partition.
    """

    topic: str
    partitions: int
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatus:
    """Mirrors of this process: whether groups may move to the target now.

    Attributes:
        safe_to_cut_over: True if everything that the source had a moment ago is in the target.
        unsafe: reasons why not, one each; empty if it is safe.
    """

    safe_to_cut_over: bool
    unsafe: tuple[str, ...]
    topics: tuple[MirrorTopicStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatus:
    """An operator's request for a new position that is not carried out yet.

    ``position`` is the requested offset. ``new_chain`` is True if landed files begin a new chain there. ``author`` is
    the user who made the request, ``asked`` the time of the request, as ISO 8601.
    """

    topic: str
    partition: str
    position: int
    new_chain: bool
    author: str
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayStatus:
    """Partitions of the group that are away with one broker, of all members.

    Attributes:
        reason: why they are away, and when they come back.
        partitions: the partitions, as ``T/B-P``.
    """

    broker: int
    reason: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceStatus:
    """A finished rebalance of this member.

    It ended ``ago_s`` seconds ago and took ``seconds``; ``phases`` has the seconds of each phase. ``gained`` and
    ``lost`` are numbers of partitions.
    """

    ago_s: float
    cause: str
    seconds: float
    phases: Mapping[str, float]
    gained: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationStatus:
    """Relation of this member to the broker that coordinates the group.

    Attributes:
        coordinator: the broker; empty while it is not known.
        generation: number of the group's generation; -1 while the member belongs to none.
        member_id: the id that the coordinator has given to this member.
        leader: True if this member computes the assignment.
        assignor: the assignor on which the members have agreed.
        phase: age of the coordinator's last answer, compared with the session timeout, as a word: ``fresh`` means that
            the member may deliver and commit.
    """

    coordinator: str
    generation: int
    member_id: str
    leader: bool
    assignor: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketStatus:
    """A Kerberos ticket, as it was last seen.

    Attributes:
        identity: Principal of ``cluster.sasl`` or ``cluster.zookeeper_sasl``, or ``ticket cache``.
        end: End, in seconds since the epoch.
        life_s: Seconds from when it was first seen until its end.
    """

    identity: str
    end: float
    life_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """The daemon's status at one moment: member, partitions, sinks, memory and events."""

    version: str
    kernel: str
    loop: str
    uptime_s: float
    ready: bool
    """True if the process is registered in the group and has claimed all partitions assigned to it."""
    not_ready: tuple[str, ...]
    """Reasons why the process is not ready; empty if it is."""
    group: str
    positions: str
    """The store of the group's positions: ``zookeeper``, ``kafka`` or ``both``."""
    consumer_id: str | None
    state: str
    session_epoch: int
    session_id: str
    session_phase: str
    members: int
    desired: int
    owned: int
    partitions: tuple[PartitionReport, ...]
    conflicts: Mapping[str, str]
    disagreements: tuple[str, ...]
    missing_topics: tuple[str, ...]
    rebalances: tuple[RebalanceStatus, ...]
    events: tuple[EventStatus, ...]
    buffered_bytes: Mapping[str, int]
    memory_budget_bytes: int
    coordination: CoordinationStatus | None = None
    """Relation to the coordinating broker; None for a group whose members register in ZooKeeper."""
    requests: tuple[RequestStatus, ...] = ()
    group_partitions: int = 0
    """Number of partitions of all topics that the group consumes, including other members'."""
    sinks: tuple[SinkStatus, ...] = ()
    denied_topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that ZooKeeper's ACLs deny to this member, with the reasons."""
    away: tuple[AwayStatus, ...] = ()
    """Partitions of the group that are away, by broker; empty for Kafka 0.8 and later.

    They do not affect ``ready``.
    """
    mirror: MirrorStatus | None = None
    """Mirrors of this process; None if no sink is one."""
    tls_ends: Mapping[str, float] = field(default_factory=dict)
    """End of the certificates in each file of ``cluster.tls``, in seconds since the epoch, as read at the start."""
    tickets: tuple[TicketStatus, ...] = ()
    """Kerberos tickets of this process, for brokers and ZooKeeper; empty without Kerberos."""
    problems: tuple[str, ...] = ()
    """Stopped partitions, and those that have been failing for a while, with the reasons.

    They do not affect ``ready``.
    """


@dataclass(slots=True)
class _Rate:
    """Rate of records over the last ``_RATE_WINDOW_S``, from running totals."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    total: int = 0

    def add(self, now: float, count: int) -> None:
        self.total += count
        if not self.samples or now - self.samples[-1][0] >= _RATE_WINDOW_S / 20:
            self.samples.append((now, self.total))
        while now - self.samples[0][0] > _RATE_WINDOW_S:
            self.samples.popleft()

    def per_second(self, now: float) -> float:
        while self.samples and now - self.samples[0][0] > _RATE_WINDOW_S:
            self.samples.popleft()
        if not self.samples:
            return 0.0
        then, count = self.samples[0]
        return (self.total - count) / max(now - then, _RATE_WINDOW_S / 20)


_Stamp = tuple[float, float]
"""A time by the monotonic and by the wall clock."""


@dataclass(slots=True)
class _Published:
    """Counts of the files that a sink has published."""

    files: int = 0
    records: int = 0
    size: int = 0
    last: _Stamp | None = None
    last_name: str | None = None
    open_files: int = 0
    requests: int = 0
    landing_delay_s: float | None = None


class RecentEvents(Hooks):
    """Collects recent rebalances, events, rates and times of progress, for the status.

    Its methods that only note something are the hooks that other parts of the daemon call.

    Args:
        now: monotonic clock in seconds, for ages.
        wall: wall clock in seconds since the Unix epoch, for display.
    """

    def __init__(self, now: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self._now = now
        self._wall = wall
        self._rebalances: deque[tuple[float, RebalanceStatus]] = deque(maxlen=RECENT)
        self._history = EventHistory(RECENT, now)
        self._rates: dict[TopicPartition, _Rate] = {}
        self._sink_failing: set[TopicPartition] = set()
        self._progress: dict[TopicPartition, _Stamp] = {}
        self._commits: dict[TopicPartition, _Stamp] = {}
        self._published: dict[str, _Published] = {}
        self._mirrored: dict[TopicPartition, MirroredPartition] = {}
        self._tickets: dict[str, TicketStatus] = {}

    @property
    def tickets(self) -> tuple[TicketStatus, ...]:
        """Kerberos tickets as they were last seen, by identity."""
        return tuple(self._tickets[identity] for identity in sorted(self._tickets))

    def kerberos_ticket_seen(self, identity: str, left_s: float, life_s: float) -> None:
        """Note when a Kerberos ticket ends."""
        self._tickets[identity] = TicketStatus(identity=identity, end=self._wall() + left_s, life_s=life_s)

    def rebalances(self) -> tuple[RebalanceStatus, ...]:
        """Return the last rebalances of this member, newest first."""
        now = self._now()
        return tuple(
            RebalanceStatus(
                ago_s=now - at,
                cause=one.cause,
                seconds=one.seconds,
                phases=one.phases,
                gained=one.gained,
                lost=one.lost,
            )
            for at, one in reversed(self._rebalances)
        )

    def events(self) -> tuple[EventStatus, ...]:
        """Return the last events of the daemon, such as errors, newest first."""
        return tuple(self._history.describe())

    def rate(self, partition: TopicPartition) -> float:
        """Return the partition's records delivered per second, averaged over about ten seconds."""
        rate = self._rates.get(partition)
        return rate.per_second(self._now()) if rate is not None else 0.0

    def last_progress(self, partition: TopicPartition) -> Moment | None:
        """Return the time at which the partition's delivery last advanced; None if it has not."""
        return self._describe(self._progress.get(partition))

    def last_commit(self, partition: TopicPartition) -> Moment | None:
        """Return the time of the partition's last commit; None if there was none."""
        return self._describe(self._commits.get(partition))

    def find_mirrored(self, partition: TopicPartition) -> MirroredPartition | None:
        """Return the partition's place in the target of a mirror; None until one is stored."""
        return self._mirrored.get(partition)

    def describe_time(self, happened: float) -> Moment:
        """Return a time of the monotonic clock as a :class:`Moment`.

        ``happened`` is in seconds. The result has the age, and the time by the wall clock.
        """
        # if the wall clock was set in between, the moment has the time by the new setting
        return self._moment(happened, self._wall() - (self._now() - happened))

    def describe_sink(
        self,
        sink: str,
        *,
        partitions: int,
        unacknowledged: int,
        buffered_bytes: int,
        memory_budget_bytes: int,
        held_up: bool,
    ) -> SinkStatus:
        """Return a sink's status: the given numbers, and the files that it has published."""
        published = self._published.get(sink, _Published())
        return SinkStatus(
            sink=sink,
            partitions=partitions,
            unacknowledged=unacknowledged,
            buffered_bytes=buffered_bytes,
            memory_budget_bytes=memory_budget_bytes,
            held_up=held_up,
            files=published.files,
            records=published.records,
            bytes=published.size,
            last_file=self._describe(published.last),
            last_name=published.last_name,
            open_files=published.open_files,
            requests=published.requests,
            landing_delay_s=published.landing_delay_s,
        )

    def _stamp(self) -> _Stamp:
        return self._now(), self._wall()

    def _describe(self, stamp: _Stamp | None) -> Moment | None:
        return None if stamp is None else self._moment(*stamp)

    def _moment(self, happened: float, wall: float) -> Moment:
        return Moment(ago_s=self._now() - happened, at=format_time(int(wall * 1000)), timestamp_s=wall)

    def rebalance_finished(
        self, *, cause: str, seconds: float, phases: dict[str, float], gained: int, lost: int
    ) -> None:
        """Keep a rebalance that has just ended, for :meth:`rebalances`."""
        one = RebalanceStatus(ago_s=0, cause=cause, seconds=seconds, phases=phases, gained=gained, lost=lost)
        self._rebalances.append((self._now(), one))

    def batch_delivered(self, partition: TopicPartition, *, records: int, size: int, position: int) -> None:
        """Add a batch's records to the partition's delivery rate."""
        stamp = self._progress[partition] = self._stamp()
        self._rates.setdefault(partition, _Rate()).add(stamp[0], records)

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        """Keep the time of the partition's last commit."""
        self._commits[partition] = self._stamp()

    def file_published(self, sink: str, *, name: str, records: int, size: int) -> None:
        """Count a file that a sink has published, and keep its name and time."""
        published = self._published.setdefault(sink, _Published())
        published.files += 1
        published.records += records
        published.size += size
        published.last, published.last_name = self._stamp(), name

    def batches_landed(self, sink: str, timestamps_ms: Sequence[int]) -> None:
        """Keep a sink's landing delay, from a record's timestamp to its acknowledgement.

        ``timestamps_ms`` are timestamps of the batches that the sink has just acknowledged, in ms since the Unix epoch;
        the newest batch counts.
        """
        if timestamps_ms:
            published = self._published.setdefault(sink, _Published())
            published.landing_delay_s = find_landing_delay(timestamps_ms[-1], self._wall())

    def open_files_changed(self, sink: str, count: int) -> None:
        """Keep the number of files that the sink is filling."""
        self._published.setdefault(sink, _Published()).open_files = count

    def sink_requests_changed(self, sink: str, count: int) -> None:
        """Keep the number of requests that the sink has under way."""
        self._published.setdefault(sink, _Published()).requests = count

    def mirror_advanced(
        self, partition: TopicPartition, *, target_topic: str, target_partition: int, source: int, target: int
    ) -> None:
        """Keep how far a mirror is in the partition."""
        self._mirrored[partition] = MirroredPartition(
            topic=target_topic, partition=target_partition, source=source, target=target
        )

    def partition_released(self, partition: TopicPartition) -> None:
        """Forget the rate and the times of a partition that is given up."""
        self._rates.pop(partition, None)
        self._mirrored.pop(partition, None)
        self._progress.pop(partition, None)
        self._commits.pop(partition, None)
        self._sink_failing.discard(partition)

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        """Add a failure to the last events."""
        self._history.note(kind.value.replace("_", " "), detail, partition)

    def session_changed(self, epoch: SessionEpoch, phase: str) -> None:
        """Add the new phase of the ZooKeeper session, such as ``paused``, to the last events."""
        self._history.note("zookeeper", f"session {epoch} is {phase}")

    def group_lease_changed(self, generation: int, phase: str) -> None:
        """Add a new phase of the session with the group's coordinator to the last events.

        An example is ``paused``: the coordinator does not respond.
        """
        what = f"generation {generation} is {phase}" if generation >= 0 else "belongs to no generation"
        self._history.note("group", what)

    def group_disagreed(self, kind: str, detail: str) -> None:
        """Add to the last events that members may compute different assignments.

        An example of the cause is a member with another assignor.
        """
        self._history.note("members disagree", f"{kind}: {detail}")

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        """Add to the last events that this member has lost the claim of a partition."""
        self._history.note("ownership lost", reason, partition)

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        """Add a sink's failure to the last events, once per partition.

        Further failures of the partition are left out until :meth:`partition_resumed` or :meth:`partition_released` is
        called. ``retriable`` is False if the sink has refused for good.
        """
        if partition in self._sink_failing:
            return
        self._sink_failing.add(partition)
        self._history.note("sink failed", f"sink {sink}" + ("" if retriable else ", for good"), partition)

    def gap_recorded(self, partition: TopicPartition, gap: Gap, *, requested: bool) -> None:
        """Add a gap in a partition's offsets to the last events.

        Gaps from compaction, transaction markers and aborted transactions are left out.
        """
        if gap.reason.value not in {"control", "compaction", "aborted"}:
            told = f"{gap.reason}, as an operator asked" if requested else str(gap.reason)
            self._history.note("gap", f"[{gap.start}, {gap.end}) {told}", partition)

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        """Add a message or record batch that was skipped or quarantined to the last events."""
        self._history.note("unit quarantined" if kept else "unit skipped", cause, partition)

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        """Add a partition's change of position to the last events."""
        self._history.note("position reset", f"from {before} to {after} ({reason})", partition)

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        """Add a start with a committed position below the landed one to the events.

        That happens if the process ended after publishing a file and before the commit.
        """
        self._history.note("committed behind", f"{committed} was committed, {landed} had landed", partition)

    def partition_stopped(self, partition: TopicPartition, reason: str) -> None:
        """Add to the last events that a partition's delivery has stopped."""
        self._history.note("stopped", reason, partition)

    def partition_resumed(self, partition: TopicPartition) -> None:
        """Add to the last events that delivery of a partition has resumed."""
        self._sink_failing.discard(partition)
        self._history.note("resumed", "", partition)

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        """Add to the last events that another client has committed a position of the partition."""
        self._history.note(
            "foreign commit", f"somebody else wrote its position; {position} was written over it", partition
        )

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        """Add a failed commit to the last events."""
        self._history.note("commit failed", error, partition)
