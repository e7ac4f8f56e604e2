"""What the daemon is doing, as one frozen value: the status page, the API, readiness and the gauges all read it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.model import Gap, SessionEpoch, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble

RECENT: Final = 20
_RATE_WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One owned partition. Offsets are of the next record; None where not known yet."""

    topic: str
    partition: str
    sink: str
    state: str
    reason: str | None
    position: int | None
    acknowledged: int | None
    committed: int | None
    high_watermark: int | None
    lag: int | None
    lag_seconds: float | None
    records_per_second: float


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
class EventStatus:
    """Something that a person may want to see: an error, a lost claim, a gap."""

    ago_s: float
    kind: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """Everything at one moment."""

    version: str
    kernel: str
    loop: str
    uptime_s: float
    ready: bool
    not_ready: tuple[str, ...]
    group: str
    consumer_id: str | None
    state: str
    session_epoch: int
    session_id: str
    session_phase: str
    members: int
    desired: int
    owned: int
    partitions: tuple[PartitionStatus, ...]
    conflicts: Mapping[str, str]
    disagreements: tuple[str, ...]
    missing_topics: tuple[str, ...]
    rebalances: tuple[RebalanceStatus, ...]
    events: tuple[EventStatus, ...]
    buffered_bytes: Mapping[str, int]
    memory_budget_bytes: int
    requests: tuple[RequestStatus, ...] = ()


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


class RecentEvents(Hooks):
    """Remembers the last rebalances and events, and each partition's rate, for the status page."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rebalances: deque[tuple[float, RebalanceStatus]] = deque(maxlen=RECENT)
        self._events: deque[tuple[float, str, str]] = deque(maxlen=RECENT)
        self._rates: dict[TopicPartition, _Rate] = {}
        self._sink_failing: set[TopicPartition] = set()

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
        now = self._now()
        return tuple(EventStatus(ago_s=now - at, kind=kind, what=what) for at, kind, what in reversed(self._events))

    def rate(self, partition: TopicPartition) -> float:
        """Records delivered per second, over about ten seconds."""
        rate = self._rates.get(partition)
        return rate.per_second(self._now()) if rate is not None else 0.0

    def _remember(self, kind: str, what: str) -> None:
        self._events.append((self._now(), kind, what))

    def rebalance_finished(
        self, *, cause: str, seconds: float, phases: dict[str, float], gained: int, lost: int
    ) -> None:
        """Remember it."""
        one = RebalanceStatus(ago_s=0, cause=cause, seconds=seconds, phases=phases, gained=gained, lost=lost)
        self._rebalances.append((self._now(), one))

    def batch_delivered(self, partition: TopicPartition, *, records: int, size: int, position: int) -> None:
        """Count towards the rate."""
        self._rates.setdefault(partition, _Rate()).add(self._now(), records)

    def partition_released(self, partition: TopicPartition) -> None:
        """Forget the rate."""
        self._rates.pop(partition, None)
        self._sink_failing.discard(partition)

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        """Remember it."""
        self._remember(kind.value.replace("_", " "), detail if partition is None else f"{partition}: {detail}")

    def session_changed(self, epoch: SessionEpoch, phase: str) -> None:
        """Remember what is not simply fresh."""
        self._remember("zookeeper", f"session {epoch} is {phase}")

    def group_disagreed(self, kind: str, detail: str) -> None:
        """Remember it."""
        self._remember("members disagree", f"{kind}: {detail}")

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        """Remember it."""
        self._remember("ownership lost", f"{partition}: {reason}")

    def fetch_error(self, partition: TopicPartition, error: str) -> None:
        """Remember it."""
        self._remember("fetch error", f"{partition}: {error}")

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        """Remember the first in a row."""
        if partition in self._sink_failing:
            return
        self._sink_failing.add(partition)
        self._remember("sink failed", f"{partition}: sink {sink}" + ("" if retriable else ", for good"))

    def gap_recorded(self, partition: TopicPartition, gap: Gap) -> None:
        """Remember gaps that mean records of the user's were passed over."""
        if gap.reason.value not in {"control", "compaction", "aborted"}:
            self._remember("gap", f"{partition}: [{gap.start}, {gap.end}) {gap.reason}")

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        """Remember it."""
        self._remember("unit quarantined" if kept else "unit skipped", f"{partition}: {cause}")

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        """Remember it."""
        self._remember("position reset", f"{partition}: from {before} to {after} ({reason})")

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        """Remember it."""
        self._remember("committed behind", f"{partition}: {committed} was committed, {landed} had landed")

    def partition_stopped(self, partition: TopicPartition, reason: str) -> None:
        """Remember it."""
        self._remember("stopped", f"{partition}: {reason}")

    def partition_resumed(self, partition: TopicPartition) -> None:
        """Remember it."""
        self._sink_failing.discard(partition)
        self._remember("resumed", str(partition))

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        """Remember it."""
        self._remember(
            "foreign commit", f"{partition}: somebody else wrote its position; {position} was written over it"
        )

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        """Remember it."""
        self._remember("commit failed", f"{partition}: {error}")
