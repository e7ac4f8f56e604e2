# SPDX-License-Identifier: Apache-2.0
"""What the daemon is doing, as one frozen value: the status page, the API, readiness and the gauges all read it."""

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
_RATE_WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When something happened: seconds ago, and by the calendar as ISO 8601 and in seconds since the epoch."""

    ago_s: float
    at: str
    timestamp_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One owned partition. Offsets are of the next record; None where not known yet."""

    topic: str
    partition: str
    sink: str
    state: str
    reason: str | None
    since: Moment
    """When it came into its state."""
    position: int | None
    acknowledged: int | None
    committed: int | None
    high_watermark: int | None
    lag: int | None
    lag_seconds: float | None
    records_per_second: float
    last_progress: Moment | None = None
    """When the position moved last, under this claim."""
    last_commit: Moment | None = None
    """When a position was written to the offset store last, under this claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """One sink: its partitions here, and the files that it has published since the process started.

    ``unacknowledged`` counts the offsets that it took and has not acknowledged. ``buffered_bytes`` is what is held for it
    against its part of the memory budget, ``memory_budget_bytes``, and ``held_up`` says that fetching waits until
    the sink has taken more. ``last_name`` is the newest file's path below the sink's, ``open_files`` how many are being
    filled. ``landing_delay_s`` is the time from a record's timestamp to its acknowledgement by the sink, of the newest
    batch; None before the first one, and without timestamps.
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
    landing_delay_s: float | None = None
    held_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatus:
    """An operator's request that waits, for a partition of a topic that is consumed here; ``asked`` is ISO 8601."""

    topic: str
    partition: str
    position: int
    new_chain: bool
    author: str
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceStatus:
    """One finished rebalance pass; ``at`` is seconds before the status was taken."""

    ago_s: float
    cause: str
    seconds: float
    phases: Mapping[str, float]
    gained: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """Everything at one moment."""

    version: str
    kernel: str
    loop: str
    uptime_s: float
    ready: bool
    """Whether the process is registered in the group and has claimed every partition assigned to it."""
    not_ready: tuple[str, ...]
    """Why it is not ready; empty if it is."""
    group: str
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
    requests: tuple[RequestStatus, ...] = ()
    group_partitions: int = 0
    """Partitions of all topics that the group consumes, whoever owns them."""
    sinks: tuple[SinkStatus, ...] = ()
    denied_topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that ZooKeeper's ACLs keep this member from consuming, and why."""
    problems: tuple[str, ...] = ()
    """Partitions that a policy stopped, or that have been failing for a while, with the reason. They do not affect ``ready``."""


@dataclass(slots=True)
class _Rate:
    """Records per second over the last window, from running totals."""

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
"""A time on the monotonic clock and on the calendar."""


@dataclass(slots=True)
class _Published:
    """The files that a sink has published."""

    files: int = 0
    records: int = 0
    size: int = 0
    last: _Stamp | None = None
    last_name: str | None = None
    open_files: int = 0
    landing_delay_s: float | None = None


class RecentEvents(Hooks):
    """Remembers the last rebalances and events, each partition's rate, and when things happened last, for display.

    Args:
        now: The monotonic clock, which ages are counted on.
        wall: The calendar, in seconds since the epoch; nothing is decided by it.
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

    def rebalances(self) -> tuple[RebalanceStatus, ...]:
        """The last ones, newest first."""
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
        """The last ones, newest first."""
        return tuple(self._history.describe())

    def rate(self, partition: TopicPartition) -> float:
        """Records delivered per second, over about ten seconds."""
        rate = self._rates.get(partition)
        return rate.per_second(self._now()) if rate is not None else 0.0

    def last_progress(self, partition: TopicPartition) -> Moment | None:
        """Return when the partition's position moved last."""
        return self._describe(self._progress.get(partition))

    def last_commit(self, partition: TopicPartition) -> Moment | None:
        """Return when the partition's position was committed last."""
        return self._describe(self._commits.get(partition))

    def describe_time(self, happened: float) -> Moment:
        """Return a time on the monotonic clock as a moment; a calendar that was set since then is not seen."""
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
        """Return a sink with what it has published."""
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
        """Remember it."""
        one = RebalanceStatus(ago_s=0, cause=cause, seconds=seconds, phases=phases, gained=gained, lost=lost)
        self._rebalances.append((self._now(), one))

    def batch_delivered(self, partition: TopicPartition, *, records: int, size: int, position: int) -> None:
        """Count towards the rate."""
        stamp = self._progress[partition] = self._stamp()
        self._rates.setdefault(partition, _Rate()).add(stamp[0], records)

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        """Remember when."""
        self._commits[partition] = self._stamp()

    def file_published(self, sink: str, *, name: str, records: int, size: int) -> None:
        """Count it, and remember when."""
        published = self._published.setdefault(sink, _Published())
        published.files += 1
        published.records += records
        published.size += size
        published.last, published.last_name = self._stamp(), name

    def batches_landed(self, sink: str, timestamps_ms: Sequence[int]) -> None:
        """Remember the delay of the newest batch."""
        if timestamps_ms:
            published = self._published.setdefault(sink, _Published())
            published.landing_delay_s = find_landing_delay(timestamps_ms[-1], self._wall())

    def open_files_changed(self, sink: str, count: int) -> None:
        """Remember how many there are."""
        self._published.setdefault(sink, _Published()).open_files = count

    def partition_released(self, partition: TopicPartition) -> None:
        """Forget its rate and times."""
        self._rates.pop(partition, None)
        self._progress.pop(partition, None)
        self._commits.pop(partition, None)
        self._sink_failing.discard(partition)

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        """Remember it."""
        self._history.note(kind.value.replace("_", " "), detail, partition)

    def session_changed(self, epoch: SessionEpoch, phase: str) -> None:
        """Remember what is not simply fresh."""
        self._history.note("zookeeper", f"session {epoch} is {phase}")

    def group_disagreed(self, kind: str, detail: str) -> None:
        """Remember it."""
        self._history.note("members disagree", f"{kind}: {detail}")

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        """Remember it."""
        self._history.note("ownership lost", reason, partition)

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        """Remember the first in a row."""
        if partition in self._sink_failing:
            return
        self._sink_failing.add(partition)
        self._history.note("sink failed", f"sink {sink}" + ("" if retriable else ", for good"), partition)

    def gap_recorded(self, partition: TopicPartition, gap: Gap) -> None:
        """Remember gaps that mean records of the user's were passed over."""
        if gap.reason.value not in {"control", "compaction", "aborted"}:
            self._history.note("gap", f"[{gap.start}, {gap.end}) {gap.reason}", partition)

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        """Remember it."""
        self._history.note("unit quarantined" if kept else "unit skipped", cause, partition)

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        """Remember it."""
        self._history.note("position reset", f"from {before} to {after} ({reason})", partition)

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        """Remember it."""
        self._history.note("committed behind", f"{committed} was committed, {landed} had landed", partition)

    def partition_stopped(self, partition: TopicPartition, reason: str) -> None:
        """Remember it."""
        self._history.note("stopped", reason, partition)

    def partition_resumed(self, partition: TopicPartition) -> None:
        """Remember it."""
        self._sink_failing.discard(partition)
        self._history.note("resumed", "", partition)

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        """Remember it."""
        self._history.note(
            "foreign commit", f"somebody else wrote its position; {position} was written over it", partition
        )

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        """Remember it."""
        self._history.note("commit failed", error, partition)
