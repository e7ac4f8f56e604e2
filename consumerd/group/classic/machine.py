# SPDX-License-Identifier: Apache-2.0
"""The state machine of one member of a coordinated group: events in, effects out.

Pure: no IO and no clock; ``now`` and random numbers are passed in. :mod:`consumerd.group.classic.transitions` has the
states and how they follow each other. This module keeps the member's state, and decides which trigger an event stands
for.

Example: A owns T/0 and T/1, and B joins the group.

1. A's heartbeat is answered with REBALANCE_IN_PROGRESS. A goes to DRAINING: ``Drain({T/0, T/1})``. Heartbeats go on,
   and commits of the old generation are accepted, until A joins.
2. ``DrainEnded``: both claims are revoked, and A joins again. The coordinator answers A and B together, with
   generation 8; A is the leader.
3. A assigns T/0 to itself and T/1 to B, and sends that with SyncGroup. ``GroupSynced`` starts T/0 with a claim of
   generation 8.

**The lease.** The coordinator removes a member of which it has not heard for a session timeout. It also removes one
that has not joined again within the rebalance timeout, however many heartbeats it sends. So claims have two leases
(:class:`~consumerd.zk.lease.Lease`), and may be used only while both are valid. Both run from the *sending* of a
request that was answered: the first lease from the newest such request, the second from the newest one whose answer
showed no rebalance.

Claims whose lease has run out pause, but they are not lost: if a heartbeat of the same generation is accepted later,
then no other member can have owned the partitions in between, since each assignment has a generation of its own.

Example, with a session timeout of 10 s and a rebalance timeout of 60 s: the heartbeat of 100 s is accepted, those of
103, 106, ... are answered with REBALANCE_IN_PROGRESS. The rebalance began after 100 s. So a member whose drain hangs
keeps its claims FRESH until 130 s, and the coordinator does not end the wait for it before 160 s. Brokers before 0.10.1
have no rebalance timeout and wait for a session timeout, here until 110 s: the claims are FRESH until 105 s.

Invariants:

- A partition is started only in the generation in which SyncGroup assigned it, and only after an earlier drop of it has
  ended.
- The member joins only while it owns nothing.
- A fenced member revokes its claims at once, before any effect that waits.
- A member is STOPPED only after all its drains and drops have ended.
- A timer or a pending effect is always left, so the machine never stops trying.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from consumerd.aio.backoff import Backoff
from consumerd.group import events as ev
from consumerd.group.classic.events import (
    CommitRefused,
    Effect,
    Event,
    GroupJoined,
    GroupSynced,
    Heartbeat,
    HeartbeatEnded,
    Identified,
    Identify,
    JoinFailed,
    JoinGroup,
    LeaveGroup,
    Left,
    Refusal,
    StartAssigned,
    SubscriptionChanged,
    SyncGroup,
)
from consumerd.group.classic.transitions import ENDS, TRANSITIONS, ClassicState, Trigger
from consumerd.model import TopicPartition
from consumerd.zk.lease import Lease
from consumerd.zk.port import LeasePhase

NO_GENERATION: Final = -1
"""Generation number of a member that belongs to no generation."""
_BACKOFF_S: Final = 0.1
"""First delay, in seconds, after a request has failed."""
_MAX_BACKOFF_S: Final = 5.0
_REJOIN_BACKOFF_S: Final = 0.05
"""First delay, in seconds, before a member joins again whose join was overtaken by another rebalance."""
_MAX_REJOIN_BACKOFF_S: Final = 1.0
_RESTART_DELAY_S: Final = 0.5
"""Delay, in seconds, before a partition is started again whose claim delivery has reported as invalid."""
_NONE: Final[frozenset[TopicPartition]] = frozenset()
_WORST_FIRST: Final = (LeasePhase.SUSPENDED, LeasePhase.PAUSED, LeasePhase.FRESH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """Timeouts of a coordinated member, in seconds.

    Attributes:
        session_timeout_s: the coordinator removes a member of which it has not heard for this long.
        heartbeat_s: time between two heartbeats, at most a third of the session timeout.
        drain_timeout_s: longest time to flush and commit before the member joins again. A leaving member also waits
            this long for the answer of its first join.
    """

    session_timeout_s: float
    heartbeat_s: float
    drain_timeout_s: float


class ClassicMachine:
    """The state machine of one member of a broker-coordinated group.

    Args:
        random: Returns floats in [0, 1), for delays.
    """

    def __init__(self, settings: ClassicSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._join_backoff = Backoff(initial_s=_BACKOFF_S, maximum_s=_MAX_BACKOFF_S, random=random)
        self._rejoin_backoff = Backoff(initial_s=_REJOIN_BACKOFF_S, maximum_s=_MAX_REJOIN_BACKOFF_S, random=random)
        self._heartbeat_backoff = Backoff(initial_s=_BACKOFF_S, maximum_s=settings.heartbeat_s, random=random)
        self._identify_backoff = Backoff(initial_s=_BACKOFF_S, maximum_s=_MAX_BACKOFF_S, random=random)
        self._now = 0.0
        self._serial = 0
        self._state = ClassicState.UNJOINED
        self._member_id = ""
        self._joined: GroupJoined | None = None
        self._lease: Lease | None = None
        """Until when the coordinator keeps a member that sends no requests; None outside of a generation."""
        self._rebalance_lease: Lease | None = None
        """Until when the coordinator waits for a member that does not join again; None with ``_lease``."""
        self._assigned = _NONE
        self._owned = _NONE
        self._dropping: dict[int, frozenset[TopicPartition]] = {}
        self._drain = 0
        """Serial of the pending drain, 0 without one."""
        self._request = 0
        """Serial of the pending JoinGroup, SyncGroup or LeaveGroup, 0 without one."""
        self._heartbeat = 0
        self._heartbeat_at = 0.0
        self._identify = 0
        self._identifying = _NONE
        self._identify_at = 0.0
        self._join_at = 0.0
        self._changed: str | None = None
        """Why this member must join again although the coordinator has not asked for it."""
        self._leave_at: float | None = None
        """When a leaving member no longer waits for the answer of its first join."""
        self._causes: list[str] = []
        self._rebalance_began: float | None = None
        self._before = _NONE
        self._problem: str | None = None
        self._unidentified: str | None = None
        """Why some assigned partitions cannot be started."""
        self._effects: list[Effect] = []

    # -- what others see

    @property
    def state(self) -> ClassicState:
        """The member's state."""
        return self._state

    @property
    def generation(self) -> int:
        """Number of the group's generation to which the member belongs, or :data:`NO_GENERATION`."""
        return NO_GENERATION if self._joined is None else self._joined.generation

    @property
    def member_id(self) -> str:
        """The member id that the coordinator has assigned; empty before the first join."""
        return self._member_id

    @property
    def leader(self) -> bool:
        """True if this member computes the assignment of the present generation."""
        return self._joined is not None and self._joined.leader

    @property
    def protocol(self) -> str:
        """Name of the assignor of the present generation, such as ``range``; empty without a generation."""
        return "" if self._joined is None else self._joined.protocol

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Partitions that the newest assignment gives to this member."""
        return self._assigned

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Partitions that delivery has: those that it delivers or drains."""
        return self._owned

    @property
    def problem(self) -> str | None:
        """Reason in words why the member cannot join, reach the coordinator, or start partitions.

        None without a problem.
        """
        return self._problem or self._unidentified

    def phase(self, now: float) -> LeasePhase:
        """Return the phase of the lease: how recently the coordinator has confirmed this member.

        NONE while the member belongs to no generation.

        Args:
            now: Present time, in seconds of the machine's clock.
        """
        if self._lease is None or self._rebalance_lease is None:
            return LeasePhase.NONE
        phases = {self._lease.phase(now), self._rebalance_lease.phase(now)}
        return next(phase for phase in _WORST_FIRST if phase in phases)

    @property
    def deadline(self) -> float | None:
        """Time by which to call :meth:`handle` with a Tick; None for no limit.

        A Tick is needed only if no other event comes before. In seconds of the clock whose time is passed to
        :meth:`handle`.
        """
        if self._state is ClassicState.UNJOINED:
            return self._join_at
        times = []
        if self._lease is not None and not self._heartbeat:
            times.append(self._heartbeat_at)
        if not self._identify and self._find_unstarted():
            times.append(self._identify_at)
        if self._leave_at is not None:
            times.append(self._leave_at)
        return min(times, default=None)

    # -- the one entry

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply an event and return the effects to carry out, in order.

        The caller carries out each effect and passes its outcome to a later call, as an event.

        Args:
            now: Present time, in seconds of the machine's clock.
        """
        self._now = now
        self._take(event)
        self._fire_timers()
        effects, self._effects = self._effects, []
        return effects

    def _take(self, event: Event) -> None:  # noqa: C901 - one case an event, each one line
        match event:
            case GroupJoined():
                self._on_joined(event)
            case GroupSynced():
                self._on_synced(event)
            case JoinFailed(serial=serial, refusal=refusal, reason=reason):
                self._on_join_failed(serial, refusal, reason)
            case HeartbeatEnded():
                self._on_heartbeat(event)
            case CommitRefused(generation, refusal, reason):
                if generation == self.generation and self._lease is not None:
                    self._obey(refusal, reason)
            case SubscriptionChanged(cause):
                self._on_changed(cause)
            case Identified():
                self._on_identified(event)
            case Left(serial):
                self._on_left(serial)
            case ev.DrainEnded(serial):
                self._on_drained(serial)
            case ev.DropEnded(serial):
                self._on_dropped(serial)
            case ev.Disowned(partition, reason):
                if partition in self._owned:
                    self._drop(frozenset({partition}), reason)
                    self._identify_at = max(self._identify_at, self._now + _RESTART_DELAY_S)
            case ev.LeaveRequested():
                self._on_leave()
            case ev.Tick():
                pass
            case _:
                assert_never(event)

    def _fire_timers(self) -> None:
        if self._state is ClassicState.UNJOINED and self._now >= self._join_at:
            self._move(Trigger.JOIN)
            if self._rebalance_began is None:
                self._open_rebalance("joined")
            self._changed = None
            self._request = self._next_serial()
            self._effects.append(JoinGroup(self._request, self._member_id))
        if self._lease is not None and not self._heartbeat and self._now >= self._heartbeat_at:
            self._heartbeat = self._next_serial()
            self._effects.append(Heartbeat(self._heartbeat, self.generation, self._member_id))
        if not self._identify and self._now >= self._identify_at and (unstarted := self._find_unstarted()):
            self._identify, self._identifying = self._next_serial(), unstarted
            self._effects.append(Identify(self._identify, unstarted))
        if self._leave_at is not None and self._now >= self._leave_at:
            self._request = 0
            self._send_leave()

    # -- joining

    def _on_joined(self, joined: GroupJoined) -> None:
        if joined.serial != self._request:
            return
        self._member_id = joined.member_id
        if self._state is ClassicState.LEAVING:
            self._send_leave()
            return
        self._move(Trigger.JOINED)
        self._joined = joined
        self._request = self._next_serial()
        self._effects.append(SyncGroup(self._request, joined))

    def _on_synced(self, synced: GroupSynced) -> None:
        if synced.serial != self._request:
            return
        self._move(Trigger.SYNCED)
        self._request = 0
        for backoff in (self._join_backoff, self._rejoin_backoff, self._heartbeat_backoff, self._identify_backoff):
            backoff.reset()
        self._problem = None
        assert self._joined is not None
        self._lease = Lease(self._settings.session_timeout_s, synced.sent_at)
        self._rebalance_lease = Lease(self._joined.rebalance_timeout_s, synced.sent_at)
        self._heartbeat, self._heartbeat_at = 0, synced.sent_at + self._settings.heartbeat_s
        self._assigned = synced.partitions
        self._identify_at = self._now
        self._report_rebalance()
        if self._changed is not None:
            self._rebalance(self._changed)

    def _on_join_failed(self, serial: int, refusal: Refusal, reason: str) -> None:
        if serial != self._request:
            return
        self._request, self._joined = 0, None
        if self._state is ClassicState.LEAVING:
            self._send_leave()
            return
        self._move(Trigger.FAILED)
        if refusal is Refusal.UNKNOWN_MEMBER:
            self._member_id = ""
        if refusal in {Refusal.UNAVAILABLE, Refusal.REFUSED}:
            self._problem = reason
            self._join_at = self._now + self._join_backoff.next()
        else:
            self._join_at = self._now + self._rejoin_backoff.next()

    # -- belonging to a generation

    def _on_heartbeat(self, ended: HeartbeatEnded) -> None:
        if ended.serial != self._heartbeat:
            return
        self._heartbeat = 0
        # from the sending on: else slow answers would stretch the interval, and age the lease
        self._heartbeat_at = ended.sent_at + self._settings.heartbeat_s
        assert self._lease is not None  # a heartbeat is pending only within a generation
        assert self._rebalance_lease is not None
        if ended.refusal is Refusal.UNAVAILABLE:
            self._problem = ended.reason
            self._heartbeat_at = self._now + self._heartbeat_backoff.next()
            return
        if ended.refusal in {None, Refusal.REBALANCE}:
            self._lease.renew(ended.sent_at)
            self._heartbeat_backoff.reset()
            self._problem = None
        if ended.refusal is None:
            self._rebalance_lease.renew(ended.sent_at)
        if ended.refusal is not None:
            self._obey(ended.refusal, ended.reason)

    def _obey(self, refusal: Refusal, reason: str) -> None:
        """Do what a refusal of the coordinator asks for."""
        match refusal:
            case Refusal.REBALANCE:
                if self._state is ClassicState.STABLE:
                    self._rebalance("the group rebalances")
            case Refusal.FENCED | Refusal.UNKNOWN_MEMBER:
                self._fence(refusal, reason)
            case Refusal.REFUSED:
                self._problem = reason
            case Refusal.UNAVAILABLE:
                pass
            case _:
                assert_never(refusal)

    def _on_changed(self, cause: str) -> None:
        if self._state is ClassicState.STABLE:
            self._rebalance(cause)
        elif self._state in {ClassicState.JOINING, ClassicState.SYNCING}:
            self._changed = cause  # what was sent with JoinGroup is out of date

    def _rebalance(self, cause: str) -> None:
        """Give up everything in order, to join again."""
        self._open_rebalance(cause)
        self._move(Trigger.REBALANCE)
        self._assigned = _NONE
        self._stop_identifying()
        self._begin_drain()

    def _fence(self, refusal: Refusal, reason: str) -> None:
        """Drop everything at once: other members may own it already."""
        self._open_rebalance(reason)
        self._drop(self._owned, reason)
        self._assigned = _NONE
        self._drain = 0
        if refusal is Refusal.UNKNOWN_MEMBER:
            self._member_id = ""
        if self._state is ClassicState.LEAVING:
            self._send_leave()
            return
        self._end_generation()
        self._move(Trigger.FENCED)
        self._join_at = self._now

    def _end_generation(self) -> None:
        self._joined = self._lease = self._rebalance_lease = None
        self._heartbeat = 0
        self._stop_identifying()

    def _stop_identifying(self) -> None:
        self._identify, self._identifying, self._unidentified = 0, _NONE, None

    # -- partitions

    def _find_unstarted(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that can be started: not those whose drop has not ended."""
        if self._state is not ClassicState.STABLE:
            return _NONE
        return self._assigned - self._owned - _NONE.union(*self._dropping.values())

    def _on_identified(self, identified: Identified) -> None:
        if identified.serial != self._identify:
            return
        self._identify = 0
        unstarted = self._find_unstarted()
        started = {one: found for one, found in identified.incarnations.items() if one in unstarted}
        if started:
            # not |=, which makes a mutable set of it here
            self._owned = self._owned.union(started)
            self._effects.append(StartAssigned(self.generation, started))
        if self._identifying & self._find_unstarted():
            self._unidentified = identified.problem or "the incarnations of some topics are unknown"
            self._identify_at = self._now + self._identify_backoff.next()
        else:
            self._unidentified = None
            self._identify_backoff.reset()
            # partitions whose drop has ended while this was read can be started at once
            self._identify_at = max(self._identify_at, self._now)

    def _begin_drain(self) -> None:
        if not self._owned:
            self._end_drain()
            return
        self._drain = self._next_serial()
        self._effects.append(ev.Drain(self._drain, self._owned, self._settings.drain_timeout_s))

    def _on_drained(self, serial: int) -> None:
        if serial == self._drain:
            self._end_drain()

    def _end_drain(self) -> None:
        if self._owned:
            self._effects.append(ev.Revoke(self._owned, "drained for a rebalance of the group"))
        self._owned, self._drain = _NONE, 0
        if self._state is ClassicState.LEAVING:
            self._send_leave()
            return
        self._move(Trigger.DRAINED)
        self._end_generation()
        self._join_at = self._now

    def _drop(self, partitions: frozenset[TopicPartition], reason: str) -> None:
        if not partitions:
            return
        serial = self._next_serial()
        self._owned = self._owned - partitions
        self._dropping[serial] = partitions
        self._effects += [ev.Revoke(partitions, reason), ev.Drop(serial, partitions, reason)]

    def _on_dropped(self, serial: int) -> None:
        self._dropping.pop(serial, None)
        self._finish_leaving()

    # -- leaving

    def _on_leave(self) -> None:
        if self._state in ENDS:
            return
        before = self._state
        self._move(Trigger.LEAVE)
        self._assigned = _NONE
        self._stop_identifying()
        if before is ClassicState.JOINING and not self._member_id:
            # the coordinator may count us in already: without the id in its answer we cannot leave, and the group would
            # wait for us until the session timeout
            self._leave_at = self._now + self._settings.drain_timeout_s
            return
        self._request = 0
        if before is not ClassicState.DRAINING:
            self._begin_drain()

    def _send_leave(self) -> None:
        self._end_generation()
        self._request, self._leave_at = 0, None
        if self._member_id:
            self._request = self._next_serial()
            self._effects.append(LeaveGroup(self._request, self._member_id))
        self._finish_leaving()

    def _on_left(self, serial: int) -> None:
        if serial == self._request:
            self._request, self._member_id = 0, ""
            self._finish_leaving()

    def _finish_leaving(self) -> None:
        if self._state is ClassicState.LEAVING and not (self._drain or self._request or self._dropping):
            self._move(Trigger.LEFT)

    # -- reports

    def _open_rebalance(self, cause: str) -> None:
        if self._rebalance_began is None:
            self._rebalance_began, self._before, self._causes = self._now, self._owned, []
        if cause not in self._causes:
            self._causes.append(cause)

    def _report_rebalance(self) -> None:
        assert self._rebalance_began is not None  # the join has opened it
        report = ev.Rebalance(
            causes=tuple(self._causes),
            seconds=self._now - self._rebalance_began,
            phases={},
            gained=len(self._assigned - self._before),
            lost=len(self._before - self._assigned),
            stayed=len(self._before & self._assigned),
        )
        self._effects.append(ev.ReportRebalance(report))
        self._rebalance_began = None

    def _move(self, trigger: Trigger) -> None:
        self._state = TRANSITIONS[self._state, trigger]

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial
