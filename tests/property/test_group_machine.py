# SPDX-License-Identifier: Apache-2.0
"""The machine under any events in any order: it neither fails, nor stops, nor forgets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumerd.group import events as ev
from consumerd.group.machine import GroupMachine
from consumerd.group.plan import Grant, Holder, Stamp
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import MemberState, PartitionState
from consumerd.model import ConsumerId, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase

PARTITIONS = [TopicPartition.modern("t", number) for number in range(4)]
OURS, THEIRS = 100, 7
NEEDS_ANSWER = (
    ev.Register,
    ev.Read,
    ev.Verify,
    ev.ClaimPartitions,
    ev.Release,
    ev.Rethread,
    ev.Drain,
    ev.Drop,
    ev.Inspect,
    ev.Unregister,
)

grants = st.dictionaries(
    st.sampled_from(PARTITIONS),
    st.builds(Grant, st.sampled_from(["g_m-0", "g_m-1"]).map(ThreadId), st.integers(1, 2).map(Incarnation)),
)


class AnyEvents(RuleBasedStateMachine):
    """Plays ZooKeeper and the listener: answers what is asked, late, twice, out of order, well or badly."""

    @initialize()
    def begin(self) -> None:
        self.machine = GroupMachine(RebalanceSettings(), lambda: 0.5)
        self.now = 0.0
        self.epoch = 0
        self.asked: list[ev.Effect] = []
        self.answered: list[ev.Event] = []
        self.usable: set[TopicPartition] = set()
        self.busy: dict[TopicPartition, int] = {}
        """Partitions that the listener drains or drops, with the serial of that."""

    def tell(self, event: ev.Event) -> None:
        self.answered.append(event)
        for effect in self.machine.handle(event, self.now):
            match effect:
                case ev.StartPartitions():
                    for partition in effect.grants:
                        assert partition not in self.usable, "started twice"
                        assert partition not in self.busy, "started while it is drained or dropped"
                        self.usable.add(partition)
                case ev.Revoke():
                    self.usable -= effect.partitions
                case ev.Drain():
                    assert effect.partitions <= self.usable, "drained and not owned"
                    self.busy.update(dict.fromkeys(effect.partitions, effect.serial))
                case ev.Drop():
                    assert not effect.partitions & self.usable, "dropped before it was revoked"
                    self.busy.update(dict.fromkeys(effect.partitions, effect.serial))
                case ev.Release():
                    assert not effect.partitions & self.usable, "released while usable"
                    assert not effect.partitions & self.busy.keys(), "released while it is drained or dropped"
                case ev.ClaimPartitions():
                    assert not effect.grants.keys() & self.usable, "claimed twice"
                case _:
                    pass
            if isinstance(effect, NEEDS_ANSWER):
                self.asked.append(effect)

    @rule(phase=st.sampled_from(LeasePhase), new=st.booleans())
    def session(self, phase: LeasePhase, new: bool) -> None:
        self.epoch += new or self.epoch == 0
        self.tell(ev.SessionChanged(SessionEpoch(self.epoch), phase))

    @rule(cause=st.sampled_from(["members changed", "topics changed"]))
    def changed(self, cause: str) -> None:
        self.tell(ev.Changed(cause))

    @rule(topic=st.sampled_from(["t", "u", None]))
    def owners_changed(self, topic: str | None) -> None:
        self.tell(ev.OwnersChanged(topic))

    @rule(seconds=st.sampled_from([0.0, 0.02, 0.25, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(ev.Tick())

    @rule(partitions=st.dictionaries(st.sampled_from(PARTITIONS), st.just(ThreadId("g_m-0"))))
    def strays(self, partitions: dict[TopicPartition, ThreadId]) -> None:
        self.tell(ev.StraysFound(partitions))

    @rule(partition=st.sampled_from(PARTITIONS))
    def disowned(self, partition: TopicPartition) -> None:
        self.tell(ev.Disowned(partition, "it said so"))

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def something_is_told_again(self, data: st.DataObject) -> None:
        outcomes = [event for event in self.answered if hasattr(event, "serial")]
        if outcomes:
            self.tell(data.draw(st.sampled_from(outcomes)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def something_is_answered(self, data: st.DataObject) -> None:
        effect = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        self.tell(self.answer(effect, data))

    def answer(self, effect: ev.Effect, data: st.DataObject) -> ev.Event:
        good = data.draw(st.booleans())
        match effect:
            case ev.Register(serial):
                return ev.Registered(serial, ConsumerId("g_m")) if good else ev.RegisterFailed(serial)
            case ev.Read(serial):
                if not good and data.draw(st.booleans()):
                    return ev.ReadFailed(serial)
                stamp = Stamp(ids=(1, serial), names=None, topics={"t": (1, 0)})
                return ev.ViewRead(serial, data.draw(grants), stamp, listed=data.draw(st.integers(0, 9)) > 0)
            case ev.Verify(serial):
                return ev.Verified(serial, unchanged=good)
            case ev.ClaimPartitions(serial, _, wanted):
                outcomes = st.sampled_from([ev.Created(), ev.Taken(Holder("x-0", THEIRS)), ev.NotSent(), ev.Unknown()])
                if wanted.keys() == effect.first:
                    outcomes |= st.just(ev.Occupied())
                return ev.ClaimsEnded(serial, {partition: data.draw(outcomes) for partition in sorted(wanted)})
            case ev.Release(serial, _, partitions):
                return ev.ReleasesEnded(serial, frozenset(p for p in sorted(partitions) if data.draw(st.booleans())))
            case ev.Rethread(serial, _, threads):
                return ev.RethreadsEnded(serial, threads if good else {})
            case ev.Drain(serial, partitions) | ev.Drop(serial, partitions):
                for partition in partitions:
                    if self.busy.get(partition) == serial:
                        del self.busy[partition]
                return ev.DrainEnded(serial) if isinstance(effect, ev.Drain) else ev.DropEnded(serial)
            case ev.Inspect(serial, _, partitions):
                there = frozenset(
                    p for p in sorted(partitions) if effect.look is not ev.Look.PROOF and data.draw(st.booleans())
                )
                nodes = st.sampled_from([None, Holder("g_m-0", OURS), Holder("x-0", THEIRS)])
                read = {p: data.draw(nodes) for p in sorted(partitions - there)} if good else {}
                doubtful = frozenset(p for p in sorted(there) if data.draw(st.booleans()))
                return ev.Inspected(serial, read, OURS, there, doubtful)
            case ev.Unregister(serial):
                return ev.Unregistered(serial)
            case _:
                raise AssertionError(effect)

    @precondition(lambda self: self.machine.state is not MemberState.STOPPED)
    @rule(chance=st.integers(0, 19))
    def leaves(self, chance: int) -> None:
        if chance == 0:
            self.tell(ev.LeaveRequested())

    @invariant()
    def usable_claims_are_of_partitions_that_are_owned_or_drained(self) -> None:
        if hasattr(self, "machine"):
            for partition in self.usable:
                state = self.machine.records[partition].state
                assert state in {PartitionState.OWNED, PartitionState.QUIESCING}

    @invariant()
    def something_will_happen(self) -> None:
        """No state waits for nothing: an outcome, a time, or a session."""
        if not hasattr(self, "machine"):
            return
        machine = self.machine
        if machine.state in {MemberState.STOPPED, MemberState.DETACHED, MemberState.SUSPENDED}:
            return
        assert machine.deadline is not None or self.asked, machine.state

    @invariant()
    def time_never_stands_still(self) -> None:
        """A deadline that has passed is acted upon by one Tick: else the member would spin."""
        if hasattr(self, "machine"):
            deadline = self.machine.deadline
            assert deadline is None or deadline > self.now, (self.machine.state, deadline)


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
