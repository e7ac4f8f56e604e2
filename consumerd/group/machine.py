# SPDX-License-Identifier: Apache-2.0
"""The state machine of one group member: events in, effects out.

Pure: no IO and no clock; ``now`` and random numbers are passed in. :mod:`consumerd.group.transitions` has the theory
and the transition tables. This module keeps the member's state and decides which trigger an event stands for. It moves
partitions through :mod:`consumerd.group.partitions`, which keeps their records and turns moves into effects.
:mod:`consumerd.group.inspections` knows when owner nodes are to be read.

A rebalance is one comparison, made after every event: what does the newest view grant to us, and what is each partition
doing? Partitions that differ, and can move now, move.

Example: member A owns T/0 and T/1, and member B joins.

1. ``Changed`` arrives. A goes to SETTLING, waits 200-300 ms for further changes, and asks for a view (``Read``).
2. ``ViewRead`` grants only T/0. The comparison finds T/1 OWNED without a grant, so it returns ``Drain(T/1)``. T/0 does
   not move at all.
3. ``DrainEnded`` arrives: the claim of T/1 is revoked, and its owner node is kept for 250 ms more (HOLDING).
4. A ``Tick`` after these 250 ms returns ``Release(T/1)``. B, whose claim was refused until now, can create the node.

Invariants:

- A partition is started only after a read that began *after* its owner node became ours and that confirmed the view
  granting it. A session sees everything that precedes its own writes, so a claim made by a stale view is found out
  before anything is fetched.
- A partition is claimed only while the newest view is applied, or after ``_MAX_CLAIM_DELAY_S`` of continuous changes.
- A lost partition is revoked at once, before any effect that waits.
- A timer or a pending effect is always left, so the machine never stops trying.

One long class: the session, the registration, the view and the comparison share the member's state, and the comparison
needs all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from consumerd.group import events as ev
from consumerd.group.inspections import InspectionSchedule
from consumerd.group.partitions import BACKOFF_S, MAX_BACKOFF_S, PartitionTable, add_jitter
from consumerd.group.plan import Grant, Stamp
from consumerd.group.records import PartitionRecord
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import (
    HELD,
    MEMBER_TRANSITIONS,
    MOVING,
    MemberState,
    MemberTrigger,
    PartitionState,
    PartitionTrigger,
)
from consumerd.model import NO_SESSION, ConsumerId, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase

_MAX_CLAIM_DELAY_S: Final = 2.0
"""Longest time, in seconds, that continuous group changes can postpone our claims."""
_NO_INCARNATION: Final = Incarnation(0)


class GroupMachine:
    """The state machine of one member of a group that ZooKeeper coordinates.

    Args:
        random: Returns floats in [0, 1), for delays.
    """

    def __init__(self, settings: RebalanceSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._now = 0.0
        self.state = MemberState.DETACHED
        """The member's state."""
        self.epoch = NO_SESSION
        """The epoch of the current session, or NO_SESSION."""
        self.consumer: ConsumerId | None = None
        """The id under which we are registered, if we are."""
        self.grants: Mapping[TopicPartition, Grant] = {}
        """The partitions that the newest view grants to us."""
        self.stamp: Stamp | None = None
        """The version stamp of the newest view, or None before the first."""
        self._partitions = PartitionTable(settings, random)
        self.records: Final[Mapping[TopicPartition, PartitionRecord]] = self._partitions.records
        """Records of all partitions that are not ABSENT. Read-only."""
        self._register_op = 0
        self._read_op = 0
        self._check_op = 0
        self._unregister_op = 0
        self._verifying: dict[int, dict[TopicPartition, int]] = {}
        """Pending reads by serial: the partitions that each confirms, with their claim numbers."""
        self._inspections = InspectionSchedule()
        self._failures = 0
        self._register_at = 0.0
        self._settle_at = 0.0
        self._reconcile_at = 0.0
        self._settled_at = 0.0
        self._compare_at = 0.0
        """Earliest time at which a waiting partition can move, as of the last comparison."""
        self._dirty: str | None = None

    # -- what others see

    @property
    def moves(self) -> int:
        """A counter that grows with each state change of a partition and each new assignment.

        If two reads give the same number, no partition has moved between them.
        """
        return self._partitions.moves

    @property
    def resting(self) -> bool:
        """True if the newest assignment is carried out: no partition is being claimed or released."""
        return self.state is MemberState.FOLLOWING and not any(r.state in MOVING for r in self.records.values())

    def is_starved(self, record: PartitionRecord) -> bool:
        """Return True if another member still owns a partition after all configured retries.

        Args:
            record: Record of a partition that is assigned to this member.
        """
        return record.state is PartitionState.CONTESTED and record.attempts > self._settings.max_retries

    @property
    def deadline(self) -> float | None:
        """Time by which to call :meth:`handle` with a Tick; None for no limit.

        A Tick is needed only if no other event comes before. In seconds of the clock whose time is passed to
        :meth:`handle`.
        """
        times = []
        inspect_at = self._inspections.due_at
        if inspect_at is not None and self._can_ask:
            times.append(inspect_at)
        match self.state:
            case MemberState.JOINING if not self._register_op:
                times.append(self._register_at)
            case MemberState.SETTLING:
                times.append(self._settle_at)
            case MemberState.FOLLOWING if not self._check_op:
                times.append(self._reconcile_at)
            case _:
                pass
        for record in self.records.values():
            match record.state:
                case PartitionState.HOLDING:
                    times.append(record.due)
                case PartitionState.CONTESTED if self._may_claim:
                    times.append(record.due)
                case PartitionState.RELEASING if not record.op and self._can_ask:
                    times.append(record.due)
                case _:
                    pass
        return min(times, default=None)

    # -- the one entry

    def handle(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """Apply an event and return the effects to carry out, in order.

        The caller carries out each effect and passes its outcome to a later call, as an event.

        Args:
            now: Present time, in seconds of the machine's clock.
        """
        self._now = now
        self._partitions.begin(now)
        self._take(event)
        self._fire_timers()
        # owner changes arrive by the thousand while partitions are claimed, and none moves a partition by itself
        quiet = isinstance(event, ev.OwnersChanged | ev.Changed)
        quiet = quiet or (isinstance(event, ev.Tick) and self.state is MemberState.FOLLOWING)
        if not quiet or now >= self._compare_at:
            self._compare()
        self._partitions.flush(self.epoch)
        if self._partitions.rebalancing and (self.resting or self.state is MemberState.STOPPED):
            self._partitions.close_pass()
        if self.state is MemberState.FOLLOWING:
            self._settled_at = now
        return self._partitions.take_effects()

    def _take(self, event: ev.Event) -> None:  # noqa: C901 - one case an event, each one line
        match event:
            case ev.SessionChanged(epoch, phase):
                self._on_session(epoch, phase)
            case ev.Registered(serial, consumer):
                self._on_registered(serial, consumer)
            case ev.RegisterFailed(serial):
                self._on_register_failed(serial)
            case ev.Changed(cause):
                self._on_changed(cause)
            case ev.ViewRead():
                self._on_view(event)
            case ev.ReadFailed(serial):
                self._on_read_failed(serial)
            case ev.Verified(serial, unchanged):
                self._on_verified(serial, unchanged=unchanged)
            case ev.ClaimsEnded(serial, outcomes):
                self._partitions.end_claims(serial, outcomes)
            case ev.ReleasesEnded(serial, released):
                self._partitions.end_releases(serial, released)
            case ev.RethreadsEnded(serial, written):
                self._partitions.end_rethreads(serial, written)
            case ev.DrainEnded(serial):
                self._partitions.end_drains(serial)
            case ev.DropEnded(serial):
                self._partitions.end_drops(serial)
            case ev.OwnersChanged(topic):
                self._on_owners(topic)
            case ev.Inspected():
                self._on_inspected(event)
            case ev.Disowned(partition, reason):
                record = self.records.get(partition)
                if record is not None and record.state in HELD:
                    self._partitions.lose(partition, record, reason)
            case ev.StraysFound(partitions):
                self._on_strays(partitions)
            case ev.Unregistered(serial):
                if serial == self._unregister_op:
                    self.consumer = None
            case ev.LeaveRequested():
                self._on_leave()
            case ev.Tick():
                pass
            case _:
                assert_never(event)

    # -- the session

    def _on_session(self, epoch: SessionEpoch, phase: LeasePhase) -> None:
        over = phase is LeasePhase.NONE or epoch != self.epoch
        if over and self.epoch != NO_SESSION:
            self._end_session()
        self.epoch = NO_SESSION if phase is LeasePhase.NONE else epoch
        match phase:
            case LeasePhase.FRESH if self.state is MemberState.DETACHED and self.epoch != NO_SESSION:
                self._partitions.open_pass("joined")
                self._move(MemberTrigger.SESSION)
                self._register_at = self._now
            case LeasePhase.FRESH if self.state is MemberState.SUSPENDED:
                self._resume()
            case LeasePhase.SUSPENDED:
                self._suspend()
            case _:
                pass

    def _end_session(self) -> None:
        """Clear all state of the session, and drop the partitions in delivery."""
        if self.records:
            self._partitions.open_pass("session lost")
        for partition, record in list(self.records.items()):
            if record.state in {PartitionState.OWNED, PartitionState.QUIESCING}:
                self._partitions.drop(partition, record, PartitionTrigger.SESSION_OVER, "the ZooKeeper session is over")
            else:
                self._partitions.step(partition, record, PartitionTrigger.SESSION_OVER)
        self.grants, self.stamp, self.consumer = {}, None, None
        self._register_op = self._read_op = self._check_op = self._unregister_op = 0
        self._verifying.clear()
        self._inspections.clear()
        self._dirty, self._failures = None, 0
        if self.state not in {MemberState.LEAVING, MemberState.STOPPED, MemberState.DETACHED}:
            self._move(MemberTrigger.SESSION_OVER)

    def _suspend(self) -> None:
        if (self.state, MemberTrigger.SUSPEND) not in MEMBER_TRANSITIONS:
            return
        self._move(MemberTrigger.SUSPEND)
        self._read_op = 0
        for record in self.records.values():
            if record.state in HELD:
                record.unproven = True
        self._partitions.effects.append(ev.Suspend())

    def _resume(self) -> None:
        if self.consumer is None:
            self._move(MemberTrigger.REJOIN)
            self._register_at = self._now
        else:
            self._move(MemberTrigger.RESUME)
            self._read()
        self._inspections.schedule_all(ev.Look.PROOF, self._now)

    # -- registration

    def _on_registered(self, serial: int, consumer: ConsumerId) -> None:
        if serial != self._register_op:
            return
        self._register_op = 0
        self.consumer = consumer
        self._settled_at = self._now
        if self.state is MemberState.JOINING:
            self._failures = 0
            self._move(MemberTrigger.REGISTERED)
            self._settle()

    def _on_register_failed(self, serial: int) -> None:
        if serial == self._register_op:
            self._register_op = 0
            self._register_at = self._now + self._retry_delay()

    def _on_leave(self) -> None:
        if self.state in {MemberState.LEAVING, MemberState.STOPPED}:
            return
        self._partitions.open_pass("leaving")
        self._move(MemberTrigger.LEAVE)
        self.grants, self._read_op = {}, 0

    # -- the view

    def _on_changed(self, cause: str) -> None:
        match self.state:
            case MemberState.FOLLOWING:
                self._partitions.open_pass(cause)
                self._inspections.expect_handover(self._now)
                self._move(MemberTrigger.CHANGED)
                self._settle()
            case MemberState.READING:
                self._dirty = cause
            case MemberState.SETTLING:
                self._partitions.open_pass(cause)
            case _:
                pass  # a read is ahead in any case

    def _on_view(self, view: ev.ViewRead) -> None:
        covered = self._verifying.pop(view.serial, {})
        if view.serial != self._read_op or self.state is not MemberState.READING:
            return
        self._read_op, self._failures = 0, 0
        if not view.listed:
            self._partitions.open_pass("our registration is gone")
            self.consumer = None
            self._move(MemberTrigger.UNLISTED)
            self._register_at = self._now
            return
        self._move(MemberTrigger.VIEWED)
        self._inspections.expect_handover(self._now)
        self.grants, self.stamp = view.grants, view.stamp
        self._reconcile_at = self._now + self._settings.reconcile_s
        self._partitions.note_view()
        self._partitions.confirm(covered, self.grants)
        if self._dirty is not None:
            cause, self._dirty = self._dirty, None
            self._on_changed(cause)

    def _on_read_failed(self, serial: int) -> None:
        self._verifying.pop(serial, None)
        if serial != self._read_op or self.state is not MemberState.READING:
            return
        self._read_op, self._dirty = 0, None
        self._move(MemberTrigger.UNREADABLE)
        self._settle_at = self._now + self._retry_delay()

    def _on_verified(self, serial: int, *, unchanged: bool) -> None:
        reconciling = serial == self._check_op
        if reconciling:
            self._check_op = 0
            self._reconcile_at = self._now + self._settings.reconcile_s
        covered = self._verifying.pop(serial, None)
        if covered is None:
            return
        for partition, claim in covered.items():
            record = self.records.get(partition)
            if record is not None and record.claim == claim and record.op == serial:
                record.op = 0
        if unchanged:
            self._partitions.confirm(covered, self.grants)
        elif self.state is MemberState.FOLLOWING:
            self._partitions.open_pass("the group changed unnoticed" if reconciling else "the group changed meanwhile")
            self._move(MemberTrigger.STALE)
            self._read()

    # -- owner nodes

    def _on_owners(self, topic: str | None) -> None:
        topics = {topic} if topic is not None else {partition.topic for partition in self.records}
        contested = self._partitions.has_contested(topics)
        self._inspections.note_owners_changed(topics, self._now, contested=contested)

    def _on_inspected(self, found: ev.Inspected) -> None:
        asked = self._inspections.end(found.serial)
        if asked is None:
            return
        nodes, session_id = found.nodes, found.session_id
        proved: set[TopicPartition] = set()
        for partition, claim in asked.items():
            record = self.records.get(partition)
            if record is None or record.claim != claim:
                continue
            if partition in found.doubtful and record.state in HELD:
                self._inspections.note_doubtful(partition.topic, self._now)
            if partition in found.there:
                continue
            if partition not in nodes:  # it could not be read
                self._inspections.schedule_all(ev.Look.PROOF, self._now + BACKOFF_S)
                continue
            node = nodes[partition]
            if record.state in HELD and (node is None or node.session_id != session_id):
                reason = "its owner node was deleted" if node is None else f"its owner node is {node.thread}'s"
                self._partitions.lose(partition, record, reason)
            elif record.state in HELD and record.unproven:
                record.unproven = False
                proved.add(partition)
            elif record.state is PartitionState.CONTESTED:
                record.holder = node
                if node is None:
                    record.due = self._now
        if proved:
            self._partitions.effects.append(ev.Resume(frozenset(proved)))

    def _on_strays(self, partitions: Mapping[TopicPartition, ThreadId]) -> None:
        for partition, thread in partitions.items():
            if partition not in self.records and self._can_ask:
                record = self._partitions.add(partition, Grant(thread, _NO_INCARNATION))
                self._partitions.step(partition, record, PartitionTrigger.STRAY)

    # -- timers

    @property
    def _can_ask(self) -> bool:
        """True if requests can be sent: there is a session, and it is not suspended."""
        return self.epoch != NO_SESSION and self.state not in {
            MemberState.DETACHED,
            MemberState.SUSPENDED,
            MemberState.STOPPED,
        }

    @property
    def _may_claim(self) -> bool:
        if self.state is MemberState.FOLLOWING:
            return True
        return (
            self.state in {MemberState.SETTLING, MemberState.READING}
            and self.stamp is not None
            and self._now - self._settled_at > _MAX_CLAIM_DELAY_S
        )

    def _fire_timers(self) -> None:
        if self.state is MemberState.JOINING and not self._register_op and self._register_at <= self._now:
            self._register_op = self._partitions.next_serial()
            self._partitions.effects.append(ev.Register(self._register_op, self.epoch))
        if self.state is MemberState.SETTLING and self._settle_at <= self._now:
            self._move(MemberTrigger.SETTLED)
            self._read()
        if self.state is MemberState.FOLLOWING and not self._check_op and self._reconcile_at <= self._now:
            assert self.stamp is not None  # FOLLOWING is entered with a view
            self._check_op = self._partitions.next_serial()
            self._verifying[self._check_op] = {}
            self._partitions.effects.append(ev.Verify(self._check_op, self.stamp, frozenset(), reconcile=True))
            self._inspections.schedule_all(ev.Look.NAMES, self._now)
        inspect_at = self._inspections.due_at
        if inspect_at is not None and inspect_at <= self._now and self._can_ask:
            self._inspect()

    def _inspect(self) -> None:
        asked, look = self._inspections.plan_next(self.records, self._now)
        if asked:
            serial = self._partitions.next_serial()
            self._inspections.begin(serial, asked)
            self._partitions.effects.append(ev.Inspect(serial, self.epoch, frozenset(asked), look))

    def _settle(self) -> None:
        self._settle_at = self._now + self._settings.settle_s * (1 + self._random() / 2)

    def _read(self) -> None:
        assert self.consumer is not None  # every way to READING leads through a registration
        self._read_op = self._partitions.next_serial()
        self._verifying[self._read_op] = {
            p: r.claim for p, r in self.records.items() if r.state is PartitionState.CONFIRMING
        }
        self._partitions.note_read()
        self._partitions.effects.append(ev.Read(self._read_op, self.epoch, self.consumer))

    def _retry_delay(self) -> float:
        self._failures += 1
        return add_jitter(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(self._failures, 8)), self._random)

    # -- the comparison

    def _compare(self) -> None:
        """Move each partition that differs from the newest view and can move now."""
        for partition, record in list(self.records.items()):
            self._compare_one(partition, record, self.grants.get(partition))
        if self._may_claim:
            for partition, grant in self.grants.items():
                if partition not in self.records:
                    record = self._partitions.add(partition, grant)
                    self._claim(partition, record, grant)
        if self.state is MemberState.FOLLOWING:
            self._verify_claims()
        if self.state is MemberState.LEAVING and not self.records and not self._register_op:
            self._finish_leaving()
        self._compare_at = min((r.due for r in self.records.values() if r.due > self._now), default=math.inf)

    def _compare_one(self, partition: TopicPartition, record: PartitionRecord, grant: Grant | None) -> None:
        match record.state:
            case PartitionState.CONTESTED if grant is None:
                self._partitions.step(partition, record, PartitionTrigger.DENY)
            case PartitionState.CONTESTED if grant is not None and self._may_claim and record.due <= self._now:
                self._claim(partition, record, grant)
            case PartitionState.CONFIRMING if grant is None:
                self._partitions.step(partition, record, PartitionTrigger.DENY)
            case PartitionState.CONFIRMING if grant is not None:
                # nothing was fetched yet: if the topic was re-created, taking over its new incarnation is enough
                record.grant = Grant(record.grant.thread, grant.incarnation)
            case PartitionState.OWNED if grant is None:
                self._partitions.step(partition, record, PartitionTrigger.DENY)
                self._partitions.batch.drains.add(partition)
            case PartitionState.OWNED if grant is not None and grant.incarnation != record.grant.incarnation:
                self._partitions.open_pass("a topic was re-created")
                self._partitions.drop(partition, record, PartitionTrigger.RENEW, "its topic was deleted and re-created")
            case PartitionState.OWNED if grant is not None and (
                grant.thread != record.grant.thread or record.rethreading
            ):
                if not record.op and record.due <= self._now and self._can_ask:
                    self._partitions.batch.threads[partition] = grant.thread
            case PartitionState.HOLDING if grant is not None:
                # granted again during the grace: the node is still ours, but delivery begins anew with a new claim
                self._partitions.step(partition, record, PartitionTrigger.GRANT)
                record.grant = Grant(record.grant.thread, grant.incarnation)
                record.claim = self._partitions.next_serial()
            case PartitionState.HOLDING if record.due <= self._now:
                self._partitions.step(partition, record, PartitionTrigger.ELAPSED)
            case _:
                pass
        if record.state is PartitionState.RELEASING and not record.op and record.due <= self._now and self._can_ask:
            self._partitions.batch.releases.add(partition)

    def _claim(self, partition: TopicPartition, record: PartitionRecord, grant: Grant) -> None:
        self._partitions.open_pass("a partition became free")
        self._partitions.step(partition, record, PartitionTrigger.GRANT)
        record.grant = grant
        self._partitions.batch.claims[partition] = grant
        if not record.attempts and self._settings.max_retries:
            self._partitions.batch.first_claims.add(partition)

    def _verify_claims(self) -> None:
        waiting = {p: r for p, r in self.records.items() if r.state is PartitionState.CONFIRMING and not r.op}
        if not waiting:
            return
        assert self.stamp is not None  # FOLLOWING is entered with a view
        serial = self._partitions.next_serial()
        self._verifying[serial] = {p: r.claim for p, r in waiting.items()}
        for record in waiting.values():
            record.op = serial
        self._partitions.effects.append(ev.Verify(serial, self.stamp, frozenset(waiting), reconcile=False))

    def _finish_leaving(self) -> None:
        if self.consumer is None or self.epoch == NO_SESSION:
            self._move(MemberTrigger.LEFT)
        elif not self._unregister_op:
            self._unregister_op = self._partitions.next_serial()
            self._partitions.effects.append(ev.Unregister(self._unregister_op, self.epoch, self.consumer))

    # -- moves

    def _move(self, trigger: MemberTrigger) -> None:
        self.state = MEMBER_TRANSITIONS[self.state, trigger]
