# SPDX-License-Identifier: Apache-2.0
"""When a member moves: events in, effects out.

Pure: no IO, no clock (``now`` is passed in) and no chance but what is passed in. :mod:`consumerd.group.transitions` has
the theory and the tables; here is what is remembered, and which trigger an event amounts to.

After each event the machine compares, partition by partition, what the newest view grants with what each partition is
doing, and moves those that can move. That comparison is all there is to a rebalance. Invariants:

- A partition is started only after a read, begun *after* its owner node was ours, confirmed the view that grants it.
  ZooKeeper shows a session everything that precedes its own writes, so a claim by a stale view is found out before
  anything is fetched.
- A partition is claimed only while the newest view is applied (or changes have not ended for ``_STARVED_S``).
- What is lost is revoked in the same breath, before any effect that waits.
- Whatever happens, some timer or some outstanding effect is left: the machine never gives up.

One class, though a long one: every method reads or moves the same few fields, and the comparison must see all of them.
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

_STARVED_S: Final = 2.0
"""Where changes never end, partitions are claimed all the same after this long."""
_RETRY_S: Final = 0.2
_RETRY_MAXIMUM_S: Final = 2.0
"""Between tries of what ZooKeeper could not do."""
_NO_INCARNATION: Final = Incarnation(0)
_INSPECT_DELAY_S: Final = 0.02
"""Owner nodes come and go in bursts; so long they are gathered."""
_UNHURRIED_S: Final = 0.25
"""The same, where nothing in the topic is waited for: what others hand over there is seen at once when it is over."""
_HANDOVER_S: Final = 5.0
"""So long after a change of the group others may hand over partitions; nodes that were made again are nothing special."""
_RESTLESS_S: Final = 30.0
"""The same, at most, where changes never end."""


class GroupMachine:
    """One member of a group. ``random`` returns floats in [0, 1)."""

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
        """How many partitions of each topic are contested."""
        self._moves = 0
        self._serial = 0
        self._register_op = 0
        self._read_op = 0
        self._check_op = 0
        self._unregister_op = 0
        self._verifying: dict[int, dict[TopicPartition, int]] = {}
        """Claims that a read under way will confirm, by its serial."""
        self._inspecting: dict[int, dict[TopicPartition, int]] = {}
        self._failures = 0
        self._register_at = 0.0
        self._settle_at = 0.0
        self._reconcile_at = 0.0
        self._inspect_at: float | None = None
        self._inspect_look = ev.Look.NAMES
        self._inspect_topics: set[str] = set()
        """Those to be looked at, unless all are."""
        self._inspect_all = False
        self._restless_since: float | None = None
        """The first change of the group after the last close look."""
        self._calm_at = 0.0
        """When what others hand over after the last change of the group should be over."""
        self._settled_at = 0.0
        self._compare_at = 0.0
        """When the first partition that waits for its time may go on, as of the last comparison."""
        self._dirty: str | None = None
        self._pass: RebalancePass | None = None
        self._batch = EffectBatch()
        self._effects: list[ev.Effect] = []

    # -- what others see

    @property
    def state(self) -> MemberState:
        """Where the member stands."""
        return self._state

    @property
    def epoch(self) -> SessionEpoch:
        """The session's epoch."""
        return self._epoch

    @property
    def consumer(self) -> ConsumerId | None:
        """The id that we are registered under."""
        return self._consumer

    @property
    def grants(self) -> Mapping[TopicPartition, Grant]:
        """What the newest view gives to us."""
        return self._grants

    @property
    def stamp(self) -> Stamp | None:
        """What tells whether the newest view still holds."""
        return self._stamp

    @property
    def records(self) -> Mapping[TopicPartition, PartitionRecord]:
        """The partitions that are not absent. Not to be changed."""
        return self._records

    @property
    def moves(self) -> int:
        """Grows with every change of a partition's state, and with every view."""
        return self._moves

    @property
    def resting(self) -> bool:
        """Whether the newest view is applied and nothing moves."""
        return self._state is MemberState.FOLLOWING and not any(r.state in MOVING for r in self._records.values())

    def is_starved(self, record: PartitionRecord) -> bool:
        """Whether a contested partition has used up its retries."""
        return record.state is PartitionState.CONTESTED and record.attempts > self._settings.max_retries

    @property
    def deadline(self) -> float | None:
        """When to call :meth:`handle` with a Tick at the latest, if nothing happens before."""
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
        """Take an event and return what is to be done, in this order."""
        self._now = now
        self._take(event)
        self._fire_timers()
        # these alone move no partition, and there are many of them while thousands are claimed
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
        """Forget everything that lived by the session; what somebody works on is dropped."""
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
        self._inspect_at, self._inspect_look = None, ev.Look.NAMES
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
        self._look_soon(ev.Look.PROOF)

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
                pass  # it will be read anyway

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
        if self._restless_since is None:
            self._restless_since = self._now
        self._calm_at = min(self._now + _HANDOVER_S, self._restless_since + _RESTLESS_S)

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
        """Start what a read, begun after it was claimed, still grants to us."""
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
        """Return the partitions that wait in ``state`` for this outcome, and stop waiting."""
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
                    record.due = self._now + self._jittered(_RETRY_S)
                case ev.Unknown():
                    self._step(partition, record, PartitionTrigger.UNKNOWN)
                case _:
                    assert_never(outcome)

    def _contest(self, partition: TopicPartition, record: PartitionRecord, holder: Holder) -> None:
        record.attempts += 1
        record.due = self._now + self._jittered(self._settings.backoff_s)
        starved = record.attempts == self._settings.max_retries + 1
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
                record.due = self._now + min(_RETRY_MAXIMUM_S, _RETRY_S * 2 ** min(record.attempts, 8))

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
        """Look soon at what changed; sooner where something in it is waited for, or nothing was to be expected."""
        topics = {topic} if topic is not None else {partition.topic for partition in self._records}
        urgent = self._now >= self._calm_at or any(self._contested[one] for one in topics)
        self._inspect_topics |= topics
        self._look_at(self._now + (_INSPECT_DELAY_S if urgent else _UNHURRIED_S))

    def _look_soon(self, look: ev.Look, delay_s: float = 0.0) -> None:
        """Look at all partitions."""
        self._inspect_look = max(self._inspect_look, look)
        self._inspect_all = True
        self._look_at(self._now + delay_s)

    def _look_at(self, at: float) -> None:
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
                self._look_at(max(self._now + _UNHURRIED_S, self._calm_at))
            if partition in found.there:
                continue
            if partition not in nodes:  # it could not be read
                self._look_soon(ev.Look.PROOF, _RETRY_S)
                continue
            node = nodes[partition]
            if record.state in HELD and (node is None or node.session_id != session_id):
                reason = "its owner node was deleted" if node is None else f"its owner node is {node.thread}'s"
                self._lose(partition, record, reason)
            elif record.state in HELD and record.unproven:
                record.unproven = False
                proved.add(partition)
            elif record.state is PartitionState.CONTESTED:
                self._look_at_holder(record, node)
        if proved:
            self._effects.append(ev.Resume(frozenset(proved)))

    def _look_at_holder(self, record: PartitionRecord, node: Holder | None) -> None:
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
        """Whether there is a session that answers, as far as is known."""
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
            and self._now - self._settled_at > _STARVED_S
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
            self._look_soon(ev.Look.NAMES)
        if self._inspect_at is not None and self._inspect_at <= self._now and self._can_ask and not self._inspecting:
            self._inspect()

    def _inspect(self) -> None:
        look, topics, everywhere = self._inspect_look, self._inspect_topics, self._inspect_all
        self._inspect_at, self._inspect_look = None, ev.Look.NAMES
        self._inspect_topics, self._inspect_all = set(), False
        if any(record.unproven for record in self._records.values()):
            look, everywhere = ev.Look.PROOF, True
        elif self._now >= self._calm_at:
            look = max(look, ev.Look.REMADE)
            self._restless_since = None
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
        return self._jittered(min(_RETRY_MAXIMUM_S, _RETRY_S * 2 ** min(self._failures, 8)))

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.75 + self._random() / 2)

    # -- the comparison

    def _compare(self) -> None:
        """Move every partition that is not where the newest view wants it and can move now."""
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
                # nothing was fetched yet, so that a topic made again needs no more than the new incarnation
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
            record.rethreading = True  # nobody will hear how that ended
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
        """Turn what moved in this step into effects; what makes claims useless comes first."""
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
