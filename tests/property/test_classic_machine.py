# SPDX-License-Identifier: Apache-2.0
"""The machine of a coordinated member under any events in any order: it neither fails, nor stops, nor owns too much."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumerd.group import events as ev
from consumerd.group.classic import events as cl
from consumerd.group.classic.machine import NO_GENERATION, ClassicMachine, ClassicSettings
from consumerd.group.classic.transitions import ClassicState
from consumerd.model import Incarnation, TopicPartition
from consumerd.zk.port import LeasePhase

PARTITIONS = [TopicPartition.modern("t", number) for number in range(4)]
SESSION_S = 12.0
NEEDS_ANSWER = (cl.JoinGroup, cl.SyncGroup, cl.Heartbeat, cl.LeaveGroup, cl.Identify, ev.Drain, ev.Drop)
USUAL = (cl.JoinGroup, cl.SyncGroup, cl.Identify)

partitions = st.frozensets(st.sampled_from(PARTITIONS))
refusals = st.sampled_from(cl.Refusal)


class AnyEvents(RuleBasedStateMachine):
    """Plays coordinator and listener: answers what is asked, late, twice, out of order, well or badly."""

    @initialize(random=st.sampled_from([0.0, 0.5, 0.99]))
    def begin(self, random: float) -> None:
        self.machine = ClassicMachine(
            ClassicSettings(session_timeout_s=SESSION_S, heartbeat_s=3.0, drain_timeout_s=4.0),
            lambda: random,
        )
        self.now = 0.0
        self.asked: list[tuple[cl.Effect, float]] = []
        """Effects without an answer, and when they were asked for."""
        self.answered: list[cl.Event] = []
        self.usable: dict[TopicPartition, int] = {}
        """Claims that were started and not revoked, with their generations."""
        self.busy: dict[TopicPartition, int] = {}
        """Partitions that the listener drains or drops, with the serial of that."""
        self.generation = 0
        self.assigned: frozenset[TopicPartition] = frozenset()
        """By the SyncGroup of the newest generation."""
        self.tell(ev.Tick())

    def tell(self, event: cl.Event) -> None:
        stopped = self.machine.state is ClassicState.STOPPED
        generation = self.machine.generation
        effects = self.machine.handle(event, self.now)
        assert not (stopped and effects), "a stopped machine does nothing more"
        self.answered.append(event)
        for effect in effects:
            self.carry_out(effect)
            if isinstance(effect, NEEDS_ANSWER):
                self.asked.append((effect, self.now))
        if self.machine.generation not in {generation, NO_GENERATION}:
            assert not self.usable, "a generation begins while claims of another one are usable"

    def carry_out(self, effect: cl.Effect) -> None:
        match effect:
            case cl.JoinGroup():
                assert not self.usable, "joins while it owns something"
            case cl.SyncGroup():
                assert effect.joined.generation == self.machine.generation
            case cl.Heartbeat():
                assert (effect.generation, effect.member_id) == (self.machine.generation, self.machine.member_id)
                assert effect.generation != NO_GENERATION
            case cl.LeaveGroup():
                assert effect.member_id, "leaves without an id"
                assert not self.usable, "leaves while it owns something"
            case cl.StartAssigned():
                assert effect.generation == self.machine.generation, "starts in another generation"
                assert self.machine.phase(self.now) is not LeasePhase.NONE, "starts without a lease"
                for partition in effect.incarnations:
                    assert partition in self.assigned, "starts what was not assigned"
                    assert partition not in self.usable, "started twice"
                    assert partition not in self.busy, "started while it is drained or dropped"
                    self.usable[partition] = effect.generation
            case ev.Revoke():
                for partition in effect.partitions:
                    del self.usable[partition]
            case ev.Drain():
                assert effect.partitions <= self.usable.keys(), "drained and not owned"
                self.busy.update(dict.fromkeys(effect.partitions, effect.serial))
            case ev.Drop():
                assert not effect.partitions & self.usable.keys(), "dropped before it was revoked"
                self.busy.update(dict.fromkeys(effect.partitions, effect.serial))
            case _:
                pass

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.5, 3.0, 7.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(ev.Tick())

    @rule(cause=st.sampled_from(["subscription changed", "topics changed"]))
    def subscription_changed(self, cause: str) -> None:
        self.tell(cl.SubscriptionChanged(cause))

    @rule(partition=st.sampled_from(PARTITIONS))
    def disowned(self, partition: TopicPartition) -> None:
        self.tell(ev.Disowned(partition, "it said so"))

    @rule(back=st.integers(0, 2), refusal=refusals)
    def commit_refused(self, back: int, refusal: cl.Refusal) -> None:
        self.tell(cl.CommitRefused(self.generation - back, refusal, "refused"))

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def something_is_told_again(self, data: st.DataObject) -> None:
        outcomes = [event for event in self.answered if hasattr(event, "serial")]
        if outcomes:
            self.tell(data.draw(st.sampled_from(outcomes)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def something_is_answered(self, data: st.DataObject) -> None:
        effect, asked_at = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        self.tell(self.answer(effect, asked_at, data))

    @precondition(lambda self: any(isinstance(effect, USUAL) for effect, _ in self.asked))
    @rule(assigned=partitions)
    def the_usual_is_answered(self, assigned: frozenset[TopicPartition]) -> None:
        """The member comes to own something, whatever is still drained or dropped."""
        while (found := next((one for one in self.asked if isinstance(one[0], USUAL)), None)) is not None:
            self.asked.remove(found)
            self.tell(self.answer_well(*found, assigned))

    def answer_well(self, effect: cl.Effect, asked_at: float, assigned: frozenset[TopicPartition]) -> cl.Event:
        match effect:
            case cl.JoinGroup(serial, member_id):
                self.generation += 1
                member_id = member_id or f"member-{self.generation}"
                return cl.GroupJoined(
                    serial=serial,
                    generation=self.generation,
                    member_id=member_id,
                    protocol="range",
                    leader=False,
                    members={},
                    rebalance_timeout_s=30.0,
                )
            case cl.SyncGroup(serial, joined):
                if joined.generation == self.machine.generation and self.machine.state is ClassicState.SYNCING:
                    self.assigned = assigned
                return cl.GroupSynced(serial=serial, sent_at=asked_at, partitions=assigned)
            case cl.Identify(serial, asked):
                return cl.Identified(serial=serial, incarnations=dict.fromkeys(asked, Incarnation(1)))
            case _:
                raise AssertionError(effect)

    def answer(self, effect: cl.Effect, asked_at: float, data: st.DataObject) -> cl.Event:
        good = data.draw(st.integers(0, 3)) > 0
        match effect:
            case cl.JoinGroup(serial) | cl.SyncGroup(serial) if not good:
                return cl.JoinFailed(serial=serial, refusal=data.draw(refusals), reason="refused")
            case cl.JoinGroup() | cl.SyncGroup():
                return self.answer_well(effect, asked_at, data.draw(partitions))
            case cl.Heartbeat(serial):
                refusal = None if good else data.draw(refusals)
                return cl.HeartbeatEnded(serial=serial, sent_at=asked_at, refusal=refusal, reason="refused")
            case cl.Identify(serial, asked):
                known = {one: Incarnation(1) for one in sorted(asked) if good or data.draw(st.booleans())}
                problem = None if len(known) == len(asked) else data.draw(st.sampled_from([None, "unreadable"]))
                return cl.Identified(serial=serial, incarnations=known, problem=problem)
            case ev.Drain(serial, drained) | ev.Drop(serial, drained):
                for partition in drained:
                    if self.busy.get(partition) == serial:
                        del self.busy[partition]
                return ev.DrainEnded(serial) if isinstance(effect, ev.Drain) else ev.DropEnded(serial)
            case cl.LeaveGroup(serial):
                return cl.Left(serial)
            case _:
                raise AssertionError(effect)

    @precondition(lambda self: self.machine.state is not ClassicState.STOPPED)
    @rule(chance=st.integers(0, 19))
    def leaves(self, chance: int) -> None:
        if chance == 0:
            self.tell(ev.LeaveRequested())

    @invariant()
    def usable_claims_are_of_the_generation_and_have_a_lease(self) -> None:
        """Never two generations' claims at once, and nothing without a lease."""
        if hasattr(self, "machine"):
            machine = self.machine
            assert self.usable.keys() == machine.owned
            assert set(self.usable.values()) <= {machine.generation}
            assert not self.usable or machine.phase(self.now) is not LeasePhase.NONE
            assert machine.owned <= machine.assigned or machine.state is not ClassicState.STABLE

    @invariant()
    def a_lease_is_never_longer_than_what_was_answered(self) -> None:
        """Two thirds of a session after the newest answered request was sent, nothing may be done."""
        if not hasattr(self, "machine"):
            return
        sent = [one.sent_at for one in self.answered if isinstance(one, cl.HeartbeatEnded | cl.GroupSynced)]
        if self.now - max(sent, default=self.now) >= SESSION_S * 2 / 3:
            assert self.machine.phase(self.now) in {LeasePhase.NONE, LeasePhase.SUSPENDED}

    @invariant()
    def a_member_stops_after_all_that_it_has_begun(self) -> None:
        if hasattr(self, "machine") and self.machine.state is ClassicState.STOPPED:
            assert not self.usable
            drops = {serial for effect, _ in self.asked if isinstance(effect, ev.Drop) for serial in [effect.serial]}
            assert not drops, "stopped while something is dropped"

    @invariant()
    def something_will_happen(self) -> None:
        """No state waits for nothing: an outcome or a time."""
        if hasattr(self, "machine") and self.machine.state is not ClassicState.STOPPED:
            assert self.machine.deadline is not None or self.asked, self.machine.state

    @invariant()
    def time_never_stands_still(self) -> None:
        """A deadline that has passed is acted upon by one Tick: else the member would spin."""
        if hasattr(self, "machine"):
            deadline = self.machine.deadline
            assert deadline is None or deadline > self.now, (self.machine.state, deadline)


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
