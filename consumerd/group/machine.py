# SPDX-License-Identifier: Apache-2.0
"""The state machine of one group member: events in, effects out.

Pure: no IO and no clock; ``now`` and random numbers are passed in. :mod:`consumerd.group.transitions` has the theory
and the transition tables. This module keeps the state and decides which trigger an event stands for.

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

One long class: all methods share the same few fields, and the comparison needs all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from consumerd.group import events as ev
from consumerd.group.plan import Grant, Holder, Stamp
from consumerd.group.records import EffectBatch, PartitionRecord, RebalancePass
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import (
    HELD,
    MEMBER_TRANSITIONS,
    MOVING,
    PARTITION_TRANSITIONS,
    MemberState,
    MemberTrigger,
    PartitionState,
    PartitionTrigger,
)
from consumerd.model import NO_SESSION, ConsumerId, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase

_MAX_CLAIM_DELAY_S: Final = 2.0
"""Longest time, in seconds, that continuous group changes can postpone our claims."""
_BACKOFF_S: Final = 0.2
_MAX_BACKOFF_S: Final = 2.0
"""First and longest backoff, in seconds, after ZooKeeper could not carry out a request."""
_NO_INCARNATION: Final = Incarnation(0)
_OWNER_DEBOUNCE_S: Final = 0.02
"""Debounce interval, in seconds, for owner-node changes, which arrive in bursts during a rebalance."""
_HANDOVER_DEBOUNCE_S: Final = 0.25
"""Debounce interval, in seconds, during a handover, in topics where we wait for no partition."""
_HANDOVER_WINDOW_S: Final = 5.0
"""Time, in seconds, after a group change in which other members may still hand over partitions.

Within it, a deleted and re-created owner node is normal; after it, the machine reads whose the node is.
"""
_MAX_HANDOVER_WINDOW_S: Final = 30.0
"""Longest handover window, in seconds, when the group keeps changing."""


class GroupMachine:
    """The state machine of one member. ``random`` returns floats in [0, 1)."""

    def __init__(self, settings: RebalanceSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._now = 0.0
        self._state = MemberState.DETACHED
        self._epoch = NO_SESSION
        self._consumer: ConsumerId | None = None
        self._grants: Mapping[TopicPartition, Grant] = {}
        self._stamp: Stamp | None = None
        self._records: dict[TopicPartition, PartitionRecord] = {}
        self._contested: Counter[str] = Counter()
        """Number of contested partitions by topic."""
        self._moves = 0
        self._serial = 0
        self._register_op = 0
        self._read_op = 0
        self._check_op = 0
        self._unregister_op = 0
        self._verifying: dict[int, dict[TopicPartition, int]] = {}
        """Pending reads by serial: the partitions that each confirms, with their claim numbers."""
        self._inspecting: dict[int, dict[TopicPartition, int]] = {}
        self._failures = 0
        self._register_at = 0.0
        self._settle_at = 0.0
        self._reconcile_at = 0.0
        self._inspect_at: float | None = None
        self._inspect_depth = ev.Look.NAMES
        self._inspect_topics: set[str] = set()
        """Topics whose owner nodes are to be inspected next, unless all are."""
        self._inspect_all = False
        self._changing_since: float | None = None
        """Time of the first group change after the last close inspection."""
        self._handover_ends_at = 0.0
        """End of the handover window of the last group change."""
        self._settled_at = 0.0
        self._compare_at = 0.0
        """Earliest time at which a waiting partition can move, as of the last comparison."""
        self._dirty: str | None = None
        self._pass: RebalancePass | None = None
        self._batch = EffectBatch()
        self._effects: list[ev.Effect] = []

    # -- what others see

    @property
    def state(self) -> MemberState:
        """The member's state."""
        return self._state

    @property
    def epoch(self) -> SessionEpoch:
        """The epoch of the current session, or NO_SESSION."""
        return self._epoch

    @property
    def consumer(self) -> ConsumerId | None:
        """The id under which we are registered, if we are."""
        return self._consumer

    @property
    def grants(self) -> Mapping[TopicPartition, Grant]:
        """The partitions that the newest view grants to us."""
        return self._grants

    @property
    def stamp(self) -> Stamp | None:
        """The version stamp of the newest view, or None before the first."""
        return self._stamp

    @property
    def records(self) -> Mapping[TopicPartition, PartitionRecord]:
        """Records of all partitions that are not ABSENT. Read-only."""
        return self._records

    @property
    def moves(self) -> int:
        """A counter that grows with each partition transition and with each view."""
        return self._moves

    @property
    def resting(self) -> bool:
        """True if the newest view is applied and no partition is in transition."""
        return self._state is MemberState.FOLLOWING and not any(r.state in MOVING for r in self._records.values())

    def is_starved(self, record: PartitionRecord) -> bool:
        """Return True if a contested partition has used up its retries."""
        return record.state is PartitionState.CONTESTED and record.attempts > self._settings.max_retries

    @property
    def deadline(self) -> float | None:
        """Latest time to call :meth:`handle` with a Tick, or None."""
        times = []
        if self._inspect_at is not None and self._can_ask and not self._inspecting:
            times.append(self._inspect_at)
        match self._state:
            case MemberState.JOINING if not self._register_op:
                times.append(self._register_at)
            case MemberState.SETTLING:
                times.append(self._settle_at)
            case MemberState.FOLLOWING if not self._check_op:
                times.append(self._reconcile_at)
            case _:
                pass
        for record in self._records.values():
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
        """Apply an event and return the effects to carry out, in order."""
        self._now = now
        self._take(event)
        self._fire_timers()
        # owner changes arrive by the thousand while partitions are claimed, and none moves a partition by itself
        quiet = isinstance(event, ev.OwnersChanged | ev.Changed)
        quiet = quiet or (isinstance(event, ev.Tick) and self._state is MemberState.FOLLOWING)
        if not quiet or now >= self._compare_at:
            self._compare()
        self._flush()
        self._close_pass()
        if self._state is MemberState.FOLLOWING:
            self._settled_at = now
        effects, self._effects = self._effects, []
        return effects

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
                self._on_claims(serial, outcomes)
            case ev.ReleasesEnded(serial, released):
                self._on_releases(serial, released)
            case ev.RethreadsEnded(serial, written):
                self._on_rethreads(serial, written)
            case ev.DrainEnded(serial):
                self._on_drained(serial)
            case ev.DropEnded(serial):
                self._on_dropped(serial)
            case ev.OwnersChanged(topic):
                self._on_owners(topic)
            case ev.Inspected():
                self._on_inspected(event)
            case ev.Disowned(partition, reason):
                record = self._records.get(partition)
                if record is not None and record.state in HELD:
                    self._lose(partition, record, reason)
            case ev.StraysFound(partitions):
                self._on_strays(partitions)
            case ev.Unregistered(serial):
                if serial == self._unregister_op:
                    self._consumer = None
            case ev.LeaveRequested():
                self._on_leave()
            case ev.Tick():
                pass
            case _:
                assert_never(event)

    # -- the session

    def _on_session(self, epoch: SessionEpoch, phase: LeasePhase) -> None:
        over = phase is LeasePhase.NONE or epoch != self._epoch
        if over and self._epoch != NO_SESSION:
            self._end_session()
        self._epoch = NO_SESSION if phase is LeasePhase.NONE else epoch
        match phase:
            case LeasePhase.FRESH if self._state is MemberState.DETACHED and self._epoch != NO_SESSION:
                self._open_pass("joined")
                self._move(MemberTrigger.SESSION)
                self._register_at = self._now
            case LeasePhase.FRESH if self._state is MemberState.SUSPENDED:
                self._resume()
            case LeasePhase.SUSPENDED:
                self._suspend()
            case _:
                pass

    def _end_session(self) -> None:
        """Forget everything bound to the session, and drop the partitions in delivery."""
        if self._records:
            self._open_pass("session lost")
        for partition, record in list(self._records.items()):
            if record.state in {PartitionState.OWNED, PartitionState.QUIESCING}:
                self._drop(partition, record, PartitionTrigger.SESSION_OVER, "the ZooKeeper session is over")
            else:
                self._step(partition, record, PartitionTrigger.SESSION_OVER)
        self._grants, self._stamp, self._consumer = {}, None, None
        self._register_op = self._read_op = self._check_op = self._unregister_op = 0
        self._verifying.clear()
        self._inspecting.clear()
        self._dirty, self._failures = None, 0
        self._inspect_at, self._inspect_depth = None, ev.Look.NAMES
        self._inspect_topics.clear()
        self._inspect_all = False
        if self._state not in {MemberState.LEAVING, MemberState.STOPPED, MemberState.DETACHED}:
            self._move(MemberTrigger.SESSION_OVER)

    def _suspend(self) -> None:
        if (self._state, MemberTrigger.SUSPEND) not in MEMBER_TRANSITIONS:
            return
        self._move(MemberTrigger.SUSPEND)
        self._read_op = 0
        for record in self._records.values():
            if record.state in HELD:
                record.unproven = True
        self._effects.append(ev.Suspend())

    def _resume(self) -> None:
        if self._consumer is None:
            self._move(MemberTrigger.REJOIN)
            self._register_at = self._now
        else:
            self._move(MemberTrigger.RESUME)
            self._read()
        self._inspect_everything(ev.Look.PROOF)

    # -- registration

    def _on_registered(self, serial: int, consumer: ConsumerId) -> None:
        if serial != self._register_op:
            return
        self._register_op = 0
        self._consumer = consumer
        self._settled_at = self._now
        if self._state is MemberState.JOINING:
            self._failures = 0
            self._move(MemberTrigger.REGISTERED)
            self._settle()

    def _on_register_failed(self, serial: int) -> None:
        if serial == self._register_op:
            self._register_op = 0
            self._register_at = self._now + self._retry_delay()

    def _on_leave(self) -> None:
        if self._state in {MemberState.LEAVING, MemberState.STOPPED}:
            return
        self._open_pass("leaving")
        self._move(MemberTrigger.LEAVE)
        self._grants, self._read_op = {}, 0

    # -- the view

    def _on_changed(self, cause: str) -> None:
        match self._state:
            case MemberState.FOLLOWING:
                self._open_pass(cause)
                self._expect_handover()
                self._move(MemberTrigger.CHANGED)
                self._settle()
            case MemberState.READING:
                self._dirty = cause
            case MemberState.SETTLING:
                self._open_pass(cause)
            case _:
                pass  # a read is ahead in any case

    def _on_view(self, view: ev.ViewRead) -> None:
        covered = self._verifying.pop(view.serial, {})
        if view.serial != self._read_op or self._state is not MemberState.READING:
            return
        self._read_op, self._failures = 0, 0
        if not view.listed:
            self._open_pass("our registration is gone")
            self._consumer = None
            self._move(MemberTrigger.UNLISTED)
            self._register_at = self._now
            return
        self._move(MemberTrigger.VIEWED)
        self._expect_handover()
        self._grants, self._stamp = view.grants, view.stamp
        self._moves += 1
        self._reconcile_at = self._now + self._settings.reconcile_s
        if self._pass is not None:
            self._pass.viewed_at = self._now
        self._confirm(covered)
        if self._dirty is not None:
            cause, self._dirty = self._dirty, None
            self._on_changed(cause)

    def _expect_handover(self) -> None:
        if self._changing_since is None:
            self._changing_since = self._now
        self._handover_ends_at = min(self._now + _HANDOVER_WINDOW_S, self._changing_since + _MAX_HANDOVER_WINDOW_S)

    def _on_read_failed(self, serial: int) -> None:
        self._verifying.pop(serial, None)
        if serial != self._read_op or self._state is not MemberState.READING:
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
            record = self._records.get(partition)
            if record is not None and record.claim == claim and record.op == serial:
                record.op = 0
        if unchanged:
            self._confirm(covered)
        elif self._state is MemberState.FOLLOWING:
            self._open_pass("the group changed unnoticed" if reconciling else "the group changed meanwhile")
            self._move(MemberTrigger.STALE)
            self._read()

    def _confirm(self, covered: Mapping[TopicPartition, int]) -> None:
        """Start the claimed partitions that a read begun after the claim still grants to us."""
        for partition, claim in covered.items():
            record, grant = self._records.get(partition), self._grants.get(partition)
            if record is None or grant is None or record.claim != claim:
                continue
            if record.state is not PartitionState.CONFIRMING or record.grant.incarnation != grant.incarnation:
                continue
            self._step(partition, record, PartitionTrigger.CONFIRMED)
            record.attempts = 0
            self._batch.starts[partition] = record.grant
            if self._pass is not None:
                self._pass.gained += 1
                self._pass.claimed_at = self._now

    # -- outcomes

    def _awaiting(self, serial: int, state: PartitionState) -> list[tuple[TopicPartition, PartitionRecord]]:
        """Return the partitions in ``state`` that wait for this outcome, and clear the wait."""
        found = [(p, r) for p, r in self._records.items() if r.op == serial and r.state is state]
        for _, record in found:
            record.op = 0
        return found

    def _on_claims(self, serial: int, outcomes: Mapping[TopicPartition, ev.ClaimOutcome]) -> None:
        for partition, record in self._awaiting(serial, PartitionState.CLAIMING):
            outcome = outcomes.get(partition, ev.Unknown())
            match outcome:
                case ev.Created():
                    self._step(partition, record, PartitionTrigger.CREATED)
                    record.claim, record.holder = self._next_serial(), None
                case ev.Taken(holder):
                    self._step(partition, record, PartitionTrigger.TAKEN)
                    self._contest(partition, record, holder)
                case ev.Occupied():
                    self._step(partition, record, PartitionTrigger.TAKEN)
                    record.attempts += 1
                    record.due = self._now + self._jittered(self._settings.backoff_s)
                case ev.NotSent():
                    self._step(partition, record, PartitionTrigger.TAKEN)
                    record.due = self._now + self._jittered(_BACKOFF_S)
                case ev.Unknown():
                    self._step(partition, record, PartitionTrigger.UNKNOWN)
                case _:
                    assert_never(outcome)

    def _contest(self, partition: TopicPartition, record: PartitionRecord, holder: Holder) -> None:
        record.attempts += 1
        record.due = self._now + self._jittered(self._settings.backoff_s)
        starved = record.attempts == self._settings.max_retries + 1
        # one report per holder, and one when the retries are used up
        if holder != record.holder or starved:
            self._effects.append(ev.ReportConflict(partition, holder, record.attempts, starved))
        record.holder = holder

    def _on_releases(self, serial: int, released: frozenset[TopicPartition]) -> None:
        for partition, record in self._awaiting(serial, PartitionState.RELEASING):
            if partition in released:
                self._step(partition, record, PartitionTrigger.RELEASED)
                if self._pass is not None:
                    self._pass.released_at = self._now
            else:
                record.attempts += 1
                record.due = self._now + min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** min(record.attempts, 8))

    def _on_rethreads(self, serial: int, written: Mapping[TopicPartition, ThreadId]) -> None:
        for partition, record in self._awaiting(serial, PartitionState.OWNED):
            record.rethreading = partition not in written
            if record.rethreading:
                record.due = self._now + self._settings.backoff_s
            else:
                record.grant = Grant(written[partition], record.grant.incarnation)

    def _on_drained(self, serial: int) -> None:
        for partition, record in self._awaiting(serial, PartitionState.QUIESCING):
            self._step(partition, record, PartitionTrigger.DRAINED)
            record.due = self._now + self._settings.release_grace_s
            self._batch.revokes.add(partition)
            if self._pass is not None:
                self._pass.drained_at = self._now
                self._pass.lost += 1

    def _on_dropped(self, serial: int) -> None:
        for partition, record in self._awaiting(serial, PartitionState.DROPPING):
            self._step(partition, record, PartitionTrigger.DROPPED)

    # -- owner nodes

    def _on_owners(self, topic: str | None) -> None:
        """Schedule an inspection of the changed owner nodes.

        It is urgent if a partition of the topic is contested, since the node may now be free; and outside of a handover
        window, since the change is then unexpected.
        """
        topics = {topic} if topic is not None else {partition.topic for partition in self._records}
        urgent = self._now >= self._handover_ends_at or any(self._contested[one] for one in topics)
        self._inspect_topics |= topics
        self._schedule_inspection(self._now + (_OWNER_DEBOUNCE_S if urgent else _HANDOVER_DEBOUNCE_S))

    def _inspect_everything(self, look: ev.Look, delay_s: float = 0.0) -> None:
        """Schedule an inspection of all held and contested partitions."""
        self._inspect_depth = max(self._inspect_depth, look)
        self._inspect_all = True
        self._schedule_inspection(self._now + delay_s)

    def _schedule_inspection(self, at: float) -> None:
        self._inspect_at = at if self._inspect_at is None else min(at, self._inspect_at)

    def _on_inspected(self, found: ev.Inspected) -> None:
        asked = self._inspecting.pop(found.serial, None)
        if asked is None:
            return
        nodes, session_id = found.nodes, found.session_id
        proved: set[TopicPartition] = set()
        for partition, claim in asked.items():
            record = self._records.get(partition)
            if record is None or record.claim != claim:
                continue
            if partition in found.doubtful and record.state in HELD:
                self._inspect_topics.add(partition.topic)
                self._schedule_inspection(max(self._now + _HANDOVER_DEBOUNCE_S, self._handover_ends_at))
            if partition in found.there:
                continue
            if partition not in nodes:  # it could not be read
                self._inspect_everything(ev.Look.PROOF, _BACKOFF_S)
                continue
            node = nodes[partition]
            if record.state in HELD and (node is None or node.session_id != session_id):
                reason = "its owner node was deleted" if node is None else f"its owner node is {node.thread}'s"
                self._lose(partition, record, reason)
            elif record.state in HELD and record.unproven:
                record.unproven = False
                proved.add(partition)
            elif record.state is PartitionState.CONTESTED:
                self._take_holder(record, node)
        if proved:
            self._effects.append(ev.Resume(frozenset(proved)))

    def _take_holder(self, record: PartitionRecord, node: Holder | None) -> None:
        if node is None:
            record.due = self._now
        record.holder = node

    def _on_strays(self, partitions: Mapping[TopicPartition, ThreadId]) -> None:
        for partition, thread in partitions.items():
            if partition not in self._records and self._can_ask:
                record = self._add(partition, Grant(thread, _NO_INCARNATION))
                self._step(partition, record, PartitionTrigger.STRAY)

    def _lose(self, partition: TopicPartition, record: PartitionRecord, reason: str) -> None:
        self._open_pass("an owner node was lost")
        if record.state in {PartitionState.OWNED, PartitionState.QUIESCING}:
            self._drop(partition, record, PartitionTrigger.LOSE, reason)
        else:
            self._step(partition, record, PartitionTrigger.LOSE)

    # -- timers

    @property
    def _can_ask(self) -> bool:
        """True if the session answers, as far as is known."""
        return self._epoch != NO_SESSION and self._state not in {
            MemberState.DETACHED,
            MemberState.SUSPENDED,
            MemberState.STOPPED,
        }

    @property
    def _may_claim(self) -> bool:
        if self._state is MemberState.FOLLOWING:
            return True
        return (
            self._state in {MemberState.SETTLING, MemberState.READING}
            and self._stamp is not None
            and self._now - self._settled_at > _MAX_CLAIM_DELAY_S
        )

    def _fire_timers(self) -> None:
        if self._state is MemberState.JOINING and not self._register_op and self._register_at <= self._now:
            self._register_op = self._next_serial()
            self._effects.append(ev.Register(self._register_op, self._epoch))
        if self._state is MemberState.SETTLING and self._settle_at <= self._now:
            self._move(MemberTrigger.SETTLED)
            self._read()
        if self._state is MemberState.FOLLOWING and not self._check_op and self._reconcile_at <= self._now:
            assert self._stamp is not None  # FOLLOWING is entered with a view
            self._check_op = self._next_serial()
            self._verifying[self._check_op] = {}
            self._effects.append(ev.Verify(self._check_op, self._stamp, frozenset(), reconcile=True))
            self._inspect_everything(ev.Look.NAMES)
        if self._inspect_at is not None and self._inspect_at <= self._now and self._can_ask and not self._inspecting:
            self._inspect()

    def _inspect(self) -> None:
        look, topics, everywhere = self._inspect_depth, self._inspect_topics, self._inspect_all
        self._inspect_at, self._inspect_depth = None, ev.Look.NAMES
        self._inspect_topics, self._inspect_all = set(), False
        # after a suspension every claim has to be proved before it is used again
        if any(record.unproven for record in self._records.values()):
            look, everywhere = ev.Look.PROOF, True
        elif self._now >= self._handover_ends_at:
            # the group is at rest, so a re-created node is a surprise: find out whose it is
            look = max(look, ev.Look.REMADE)
            self._changing_since = None
        asked = {
            partition: record.claim
            for partition, record in self._records.items()
            if (record.state in HELD or record.state is PartitionState.CONTESTED)
            and (everywhere or partition.topic in topics)
        }
        if asked:
            serial = self._next_serial()
            self._inspecting[serial] = asked
            self._effects.append(ev.Inspect(serial, self._epoch, frozenset(asked), look))

    def _settle(self) -> None:
        self._settle_at = self._now + self._settings.settle_s * (1 + self._random() / 2)

    def _read(self) -> None:
        assert self._consumer is not None  # every way to READING leads through a registration
        self._read_op = self._next_serial()
        self._verifying[self._read_op] = {
            p: r.claim for p, r in self._records.items() if r.state is PartitionState.CONFIRMING
        }
        if self._pass is not None and self._pass.read_at is None:
            self._pass.read_at = self._now
        self._effects.append(ev.Read(self._read_op, self._epoch, self._consumer))

    def _retry_delay(self) -> float:
        self._failures += 1
        return self._jittered(min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** min(self._failures, 8)))

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.75 + self._random() / 2)

    # -- the comparison

    def _compare(self) -> None:
        """Move each partition that differs from the newest view and can move now."""
        for partition, record in list(self._records.items()):
            self._compare_one(partition, record, self._grants.get(partition))
        if self._may_claim:
            for partition, grant in self._grants.items():
                if partition not in self._records:
                    record = self._add(partition, grant)
                    self._claim(partition, record, grant)
        if self._state is MemberState.FOLLOWING:
            self._verify_claims()
        if self._state is MemberState.LEAVING and not self._records and not self._register_op:
            self._finish_leaving()
        self._compare_at = min((r.due for r in self._records.values() if r.due > self._now), default=math.inf)

    def _compare_one(self, partition: TopicPartition, record: PartitionRecord, grant: Grant | None) -> None:
        match record.state:
            case PartitionState.CONTESTED if grant is None:
                self._step(partition, record, PartitionTrigger.DENY)
            case PartitionState.CONTESTED if grant is not None and self._may_claim and record.due <= self._now:
                self._claim(partition, record, grant)
            case PartitionState.CONFIRMING if grant is None:
                self._step(partition, record, PartitionTrigger.DENY)
            case PartitionState.CONFIRMING if grant is not None:
                # nothing was fetched yet: if the topic was re-created, taking over its new incarnation is enough
                record.grant = Grant(record.grant.thread, grant.incarnation)
            case PartitionState.OWNED if grant is None:
                self._step(partition, record, PartitionTrigger.DENY)
                self._batch.drains.add(partition)
            case PartitionState.OWNED if grant is not None and grant.incarnation != record.grant.incarnation:
                self._open_pass("a topic was made again")
                self._drop(partition, record, PartitionTrigger.RENEW, "its topic was deleted and made again")
            case PartitionState.OWNED if grant is not None and (
                grant.thread != record.grant.thread or record.rethreading
            ):
                if not record.op and record.due <= self._now and self._can_ask:
                    self._batch.threads[partition] = grant.thread
            case PartitionState.HOLDING if grant is not None:
                # granted again during the grace: the node is still ours, but delivery begins anew with a new claim
                self._step(partition, record, PartitionTrigger.GRANT)
                record.grant = Grant(record.grant.thread, grant.incarnation)
                record.claim = self._next_serial()
            case PartitionState.HOLDING if record.due <= self._now:
                self._step(partition, record, PartitionTrigger.ELAPSED)
            case _:
                pass
        if record.state is PartitionState.RELEASING and not record.op and record.due <= self._now and self._can_ask:
            self._batch.releases.add(partition)

    def _claim(self, partition: TopicPartition, record: PartitionRecord, grant: Grant) -> None:
        self._open_pass("a partition became free")
        self._step(partition, record, PartitionTrigger.GRANT)
        record.grant = grant
        self._batch.claims[partition] = grant
        if not record.attempts and self._settings.max_retries:
            self._batch.first_claims.add(partition)

    def _verify_claims(self) -> None:
        waiting = {p: r for p, r in self._records.items() if r.state is PartitionState.CONFIRMING and not r.op}
        if not waiting:
            return
        assert self._stamp is not None  # FOLLOWING is entered with a view
        serial = self._next_serial()
        self._verifying[serial] = {p: r.claim for p, r in waiting.items()}
        for record in waiting.values():
            record.op = serial
        self._effects.append(ev.Verify(serial, self._stamp, frozenset(waiting), reconcile=False))

    def _finish_leaving(self) -> None:
        if self._consumer is None or self._epoch == NO_SESSION:
            self._move(MemberTrigger.LEFT)
        elif not self._unregister_op:
            self._unregister_op = self._next_serial()
            self._effects.append(ev.Unregister(self._unregister_op, self._epoch, self._consumer))

    # -- moves

    def _move(self, trigger: MemberTrigger) -> None:
        self._state = MEMBER_TRANSITIONS[self._state, trigger]

    def _add(self, partition: TopicPartition, grant: Grant) -> PartitionRecord:
        record = PartitionRecord(state=PartitionState.ABSENT, grant=grant, since=self._now)
        self._records[partition] = record
        return record

    def _step(self, partition: TopicPartition, record: PartitionRecord, trigger: PartitionTrigger) -> None:
        state = PARTITION_TRANSITIONS[record.state, trigger]
        if state is record.state:
            return
        if record.state is PartitionState.OWNED and record.op:
            record.rethreading = True  # the outcome of that write will be ignored
        self._contested[partition.topic] += (state is PartitionState.CONTESTED) - (
            record.state is PartitionState.CONTESTED
        )
        self._moves += 1
        record.state, record.since, record.op = state, self._now, 0
        if state not in HELD:
            record.claim, record.unproven, record.rethreading = 0, False, False
        if state is PartitionState.RELEASING:
            record.due, record.attempts = self._now, 0
        if state is PartitionState.ABSENT:
            del self._records[partition]

    def _drop(self, partition: TopicPartition, record: PartitionRecord, trigger: PartitionTrigger, reason: str) -> None:
        self._step(partition, record, trigger)
        self._batch.drops.setdefault(reason, set()).add(partition)
        if self._pass is not None:
            self._pass.lost += 1

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _await(self, partitions: Iterable[TopicPartition]) -> int:
        serial = self._next_serial()
        for partition in partitions:
            self._records[partition].op = serial
        return serial

    # -- effects

    def _flush(self) -> None:
        """Turn this step's transitions into effects; revocations come first."""
        batch, self._batch = self._batch, EffectBatch()
        urgent: list[ev.Effect] = [
            ev.Revoke(frozenset(partitions), reason) for reason, partitions in batch.drops.items()
        ]
        if batch.revokes:
            urgent.append(ev.Revoke(frozenset(batch.revokes), "it was handed over"))
        for reason, partitions in batch.drops.items():
            urgent.append(ev.Drop(self._await(partitions), frozenset(partitions), reason))
        self._effects[:0] = urgent
        # a partition may have been confirmed and then lost or denied in the same step
        starts = {p: grant for p, grant in batch.starts.items() if self._is_in(p, PartitionState.OWNED)}
        if starts:
            self._effects.append(ev.StartPartitions(self._epoch, starts))
        if batch.drains:
            serial = self._await(batch.drains)
            self._effects.append(ev.Drain(serial, frozenset(batch.drains), self._settings.drain_timeout_s))
        if batch.releases:
            self._effects.append(ev.Release(self._await(batch.releases), self._epoch, frozenset(batch.releases)))
        if batch.threads:
            self._effects.append(ev.Rethread(self._await(batch.threads), self._epoch, batch.threads))
        if batch.claims:
            serial = self._await(batch.claims)
            self._effects.append(ev.ClaimPartitions(serial, self._epoch, batch.claims, frozenset(batch.first_claims)))

    def _is_in(self, partition: TopicPartition, state: PartitionState) -> bool:
        record = self._records.get(partition)
        return record is not None and record.state is state

    def _open_pass(self, cause: str) -> None:
        if self._pass is None:
            self._pass = RebalancePass(began=self._now, causes=[cause])
        elif cause != "a partition became free":
            self._pass.causes.append(cause)

    def _close_pass(self) -> None:
        if self._pass is None or not (self.resting or self._state is MemberState.STOPPED):
            return
        owned = sum(record.state is PartitionState.OWNED for record in self._records.values())
        rebalance = self._pass.finish(self._now, stayed=max(0, owned - self._pass.gained))
        self._pass = None
        self._effects.append(ev.ReportRebalance(rebalance))
