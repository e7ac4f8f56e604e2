# SPDX-License-Identifier: Apache-2.0
"""The machine by itself: what follows what."""

from __future__ import annotations

from typing import TypeVar

import pytest

from consumerd.group import events as ev
from consumerd.group.machine import GroupMachine
from consumerd.group.plan import Grant, Holder, Stamp
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import (
    MEMBER_TRANSITIONS,
    PARTITION_TRANSITIONS,
    MemberState,
    MemberTrigger,
    PartitionState,
    PartitionTrigger,
)
from consumerd.model import ConsumerId, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase

E = TypeVar("E")
FIRST, SECOND = SessionEpoch(1), SessionEpoch(2)
ME = ConsumerId("g_me")
P, Q, R = (TopicPartition.modern("t", number) for number in range(3))
STAMP = Stamp(ids=(1, 1), names=None, topics={"t": (5, 0)})


def grant(thread: int = 0, incarnation: int = 5) -> Grant:
    return Grant(ThreadId(f"g_me-{thread}"), Incarnation(incarnation))


class Driver:
    """Answers a machine by hand."""

    def __init__(self, settings: RebalanceSettings | None = None) -> None:
        self.machine = GroupMachine(settings or RebalanceSettings(), lambda: 0.0)
        self.now = 0.0
        self.effects: list[ev.Effect] = []

    def tell(self, event: ev.Event) -> list[ev.Effect]:
        self.effects = self.machine.handle(event, self.now)
        return self.effects

    def wait(self, seconds: float) -> list[ev.Effect]:
        self.now += seconds
        return self.tell(ev.Tick())

    def find(self, kind: type[E]) -> E | None:
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        assert len(found) <= 1, found
        return found[0] if found else None

    def get(self, kind: type[E]) -> E:
        found = self.find(kind)
        assert found is not None, f"no {kind.__name__} in {self.effects}"
        return found

    def state_of(self, partition: TopicPartition) -> PartitionState:
        record = self.machine.records.get(partition)
        return PartitionState.ABSENT if record is None else record.state

    # -- the usual way

    def join(self) -> None:
        self.tell(ev.SessionChanged(FIRST, LeasePhase.FRESH))
        self.tell(ev.Registered(self.get(ev.Register).serial, ME))

    def view(self, *partitions: TopicPartition, thread: int = 0, incarnation: int = 5) -> None:
        """Settle, read, and see these partitions granted."""
        if self.machine.state is MemberState.SETTLING:
            self.wait(1.0)
        read = self.get(ev.Read)
        grants = {partition: grant(thread, incarnation) for partition in partitions}
        self.tell(ev.ViewRead(read.serial, grants, STAMP, listed=True))

    def change(self) -> None:
        self.tell(ev.Changed("members changed"))

    def claim_granted(self) -> None:
        claim = self.get(ev.ClaimPartitions)
        self.tell(ev.ClaimsEnded(claim.serial, dict.fromkeys(claim.grants, ev.Created())))
        self.tell(ev.Verified(self.get(ev.Verify).serial, unchanged=True))

    def own(self, *partitions: TopicPartition) -> None:
        self.join()
        self.view(*partitions)
        self.claim_granted()
        assert self.get(ev.StartPartitions).grants.keys() == set(partitions)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_every_state_can_be_entered_and_left() -> None:
    """A state without a way in or out is a mistake in the table."""
    assert {state for state, _ in MEMBER_TRANSITIONS} == set(MemberState) - {MemberState.STOPPED}
    assert set(MEMBER_TRANSITIONS.values()) == set(MemberState)
    assert {trigger for _, trigger in MEMBER_TRANSITIONS} == set(MemberTrigger)
    assert {state for state, _ in PARTITION_TRANSITIONS} == set(PartitionState)
    assert set(PARTITION_TRANSITIONS.values()) == set(PartitionState)
    assert {trigger for _, trigger in PARTITION_TRANSITIONS} == set(PartitionTrigger)


def test_the_end_of_the_session_is_borne_in_every_state() -> None:
    """It can come at any moment."""
    for state in set(MemberState) - {MemberState.DETACHED, MemberState.LEAVING, MemberState.STOPPED}:
        assert MEMBER_TRANSITIONS[state, MemberTrigger.SESSION_OVER] is MemberState.DETACHED
    for partition_state in set(PartitionState) - {PartitionState.ABSENT}:
        assert (partition_state, PartitionTrigger.SESSION_OVER) in PARTITION_TRANSITIONS


def test_a_partition_is_started_only_after_its_claim_was_verified(driver: Driver) -> None:
    """A claim by a stale view would keep what a Java member has just let go."""
    driver.join()
    driver.view(P)
    claim = driver.get(ev.ClaimPartitions)
    driver.tell(ev.ClaimsEnded(claim.serial, {P: ev.Created()}))
    assert driver.find(ev.StartPartitions) is None
    assert driver.state_of(P) is PartitionState.CONFIRMING
    driver.tell(ev.Verified(driver.get(ev.Verify).serial, unchanged=True))
    assert driver.get(ev.StartPartitions).grants == {P: grant()}


def test_what_a_newer_view_denies_after_the_claim_is_released_before_anything_is_fetched(driver: Driver) -> None:
    """No drain, no grace: nobody worked on it."""
    driver.join()
    driver.view(P, Q)
    claim = driver.get(ev.ClaimPartitions)
    driver.tell(ev.ClaimsEnded(claim.serial, dict.fromkeys(claim.grants, ev.Created())))
    driver.tell(ev.Verified(driver.get(ev.Verify).serial, unchanged=False))
    read = driver.get(ev.Read)
    driver.tell(ev.ViewRead(read.serial, {Q: grant()}, STAMP, listed=True))
    assert driver.get(ev.Release).partitions == {P}
    assert driver.get(ev.StartPartitions).grants == {Q: grant()}
    assert driver.find(ev.Drain) is None


def test_a_read_begun_before_the_claim_does_not_confirm_it(driver: Driver) -> None:
    """What it saw may be older than the claim."""
    driver.join()
    driver.view(P)
    claim = driver.get(ev.ClaimPartitions)
    driver.change()
    driver.wait(1.0)
    read = driver.get(ev.Read)
    driver.tell(ev.ClaimsEnded(claim.serial, {P: ev.Created()}))
    driver.tell(ev.ViewRead(read.serial, {P: grant()}, STAMP, listed=True))
    assert driver.find(ev.StartPartitions) is None
    driver.tell(ev.Verified(driver.get(ev.Verify).serial, unchanged=True))
    assert driver.get(ev.StartPartitions).grants == {P: grant()}


def test_only_what_moves_is_drained(driver: Driver) -> None:
    """Promise 6: partitions that a rebalance does not move do not pause."""
    driver.own(P, Q)
    driver.change()
    driver.view(Q, R)
    assert driver.get(ev.Drain).partitions == {P}
    assert driver.get(ev.ClaimPartitions).grants.keys() == {R}
    assert driver.state_of(Q) is PartitionState.OWNED
    assert not any(isinstance(effect, ev.Revoke) for effect in driver.effects)


def test_a_drained_partition_is_held_for_the_grace_and_then_released(driver: Driver) -> None:
    """A Java member reads the committed offset before it claims."""
    driver.own(P)
    driver.change()
    driver.view()
    driver.tell(ev.DrainEnded(driver.get(ev.Drain).serial))
    assert driver.get(ev.Revoke).partitions == {P}
    assert driver.find(ev.Release) is None
    assert driver.machine.deadline == pytest.approx(driver.now + 0.25)
    driver.wait(0.25)
    driver.tell(ev.ReleasesEnded(driver.get(ev.Release).serial, frozenset({P})))
    assert driver.state_of(P) is PartitionState.ABSENT
    rebalance = driver.get(ev.ReportRebalance).rebalance
    assert (rebalance.gained, rebalance.lost, rebalance.causes) == (0, 1, ("members changed",))
    assert rebalance.phases["release"] == pytest.approx(0.25)


def test_a_drain_begins_whatever_else_is_under_way(driver: Driver) -> None:
    """A second change must not wait for the drain of the first: a Java member's patience is 6 s in all."""
    driver.own(P, Q)
    driver.change()
    driver.view(Q)
    first = driver.get(ev.Drain)
    driver.change()
    driver.view()
    assert driver.get(ev.Drain).partitions == {Q}
    driver.tell(ev.DrainEnded(first.serial))
    assert driver.state_of(P) is PartitionState.HOLDING
    assert driver.state_of(Q) is PartitionState.QUIESCING


def test_a_partition_that_comes_back_while_it_drains_is_kept(driver: Driver) -> None:
    """Its node is ours still: it is verified and started again, with a new claim, without having been released."""
    driver.own(P)
    driver.change()
    driver.view()
    drain = driver.get(ev.Drain)
    driver.change()
    driver.view(P)
    assert driver.state_of(P) is PartitionState.QUIESCING
    driver.tell(ev.DrainEnded(drain.serial))
    assert driver.get(ev.Revoke).partitions == {P}
    assert driver.find(ev.Release) is None
    driver.tell(ev.Verified(driver.get(ev.Verify).serial, unchanged=True))
    assert driver.get(ev.StartPartitions).grants == {P: grant()}


def test_a_taken_partition_is_tried_again_for_ever_and_starves_after_its_retries(driver: Driver) -> None:
    """It never gives up; from the fifth failure on it says that it is not ready."""
    driver.join()
    driver.view(P)
    holder = Holder("g_other-0", 7)
    reports: list[bool] = []
    for _ in range(12):
        claim = driver.get(ev.ClaimPartitions)
        driver.tell(ev.ClaimsEnded(claim.serial, {P: ev.Taken(holder)}))
        if (report := driver.find(ev.ReportConflict)) is not None:
            reports.append(report.starved)
        record = driver.machine.records[P]
        assert driver.machine.is_starved(record) is (record.attempts > 4)
        driver.now = record.due
        driver.tell(ev.Tick())
    assert reports == [False, True]


def test_a_starved_partition_leaves_a_timer(driver: Driver) -> None:
    """Nothing else may ever happen in the group: whoever drives the machine must be told when to come back."""
    driver.join()
    driver.view(P)
    for _ in range(20):
        claim = driver.get(ev.ClaimPartitions)
        driver.tell(ev.ClaimsEnded(claim.serial, {P: ev.Taken(Holder("x-0", 7))}))
        assert driver.machine.deadline is not None
        assert driver.machine.deadline <= driver.now + 3.0  # the backoff of 2 s, with jitter
        driver.now = driver.machine.deadline
        driver.tell(ev.Tick())
        if driver.find(ev.Verify) is not None:  # the reconcile pass comes in between
            driver.tell(ev.Verified(driver.get(ev.Verify).serial, unchanged=True))
        while driver.find(ev.ClaimPartitions) is None:
            driver.wait(0.1)


def test_a_taken_partition_is_claimed_as_soon_as_its_node_goes(driver: Driver) -> None:
    """Not after the backoff: the watch tells."""
    driver.join()
    driver.view(P)
    driver.tell(ev.ClaimsEnded(driver.get(ev.ClaimPartitions).serial, {P: ev.Taken(Holder("x-0", 7))}))
    driver.tell(ev.OwnersChanged())
    driver.wait(0.02)
    driver.tell(ev.Inspected(driver.get(ev.Inspect).serial, {P: None}, 1))
    assert driver.get(ev.ClaimPartitions).grants == {P: grant()}


def test_an_owner_node_that_is_gone_or_anothers_is_a_loss_at_once(driver: Driver) -> None:
    """Revoked before anything else happens."""
    driver.own(P, Q, R)
    driver.tell(ev.OwnersChanged())
    driver.wait(0.25)
    inspect = driver.get(ev.Inspect)
    nodes = {P: None, Q: Holder("g_me-0", 99), R: Holder("g_me-0", 1)}
    driver.tell(ev.Inspected(inspect.serial, nodes, 1))
    revoked = [effect for effect in driver.effects if isinstance(effect, ev.Revoke)]
    assert driver.effects[: len(revoked)] == revoked
    assert frozenset[TopicPartition]().union(*(revoke.partitions for revoke in revoked)) == {P, Q}
    assert driver.state_of(R) is PartitionState.OWNED
    drops = [effect for effect in driver.effects if isinstance(effect, ev.Drop)]
    for drop in drops:
        driver.tell(ev.DropEnded(drop.serial))
    assert driver.state_of(P) is PartitionState.CLAIMING


def test_a_change_is_looked_at_in_its_own_topic_and_at_leisure_where_nothing_is_waited_for(driver: Driver) -> None:
    """Else every handover between others has every member read every topic."""
    other = TopicPartition.modern("u", 0)
    driver.own(P, other)
    driver.tell(ev.OwnersChanged("u"))
    driver.tell(ev.OwnersChanged("unknown"))
    driver.wait(0.24)
    assert driver.find(ev.Inspect) is None
    driver.wait(0.01)
    inspect = driver.get(ev.Inspect)
    assert (inspect.partitions, inspect.look) == ({other}, ev.Look.NAMES)
    driver.tell(ev.Inspected(inspect.serial, {}, 1, frozenset({other})))
    assert driver.state_of(other) is PartitionState.OWNED
    driver.wait(1.0)
    assert driver.find(ev.Inspect) is None, "nothing is looked at again"


def test_what_may_have_been_made_again_is_read_at_once_at_rest_and_after_a_handover_once(driver: Driver) -> None:
    """While partitions are handed over that is the rule, and each look would read all that stay."""
    driver.own(P)
    for _ in range(3):
        driver.tell(ev.OwnersChanged("t"))
        driver.wait(0.25)
        inspect = driver.get(ev.Inspect)
        assert inspect.look is ev.Look.NAMES
        driver.tell(ev.Inspected(inspect.serial, {}, 1, frozenset({P}), frozenset({P})))
    driver.wait(4.25)
    inspect = driver.get(ev.Inspect)
    assert (inspect.partitions, inspect.look) == ({P}, ev.Look.REMADE)
    driver.tell(ev.Inspected(inspect.serial, {P: Holder("g_me-0", 1)}, 1))
    assert driver.state_of(P) is PartitionState.OWNED
    driver.tell(ev.OwnersChanged("t"))
    driver.wait(0.02)
    inspect = driver.get(ev.Inspect)
    assert inspect.look is ev.Look.REMADE
    driver.tell(ev.Inspected(inspect.serial, {P: Holder("g_me-0", 1)}, 1, frozenset(), frozenset({P})))
    driver.wait(0.25)
    inspect = driver.get(ev.Inspect)
    assert inspect.look is ev.Look.REMADE, "it changed again while it was read"
    driver.tell(ev.Inspected(inspect.serial, {P: Holder("x", 2)}, 1))
    assert driver.state_of(P) is PartitionState.DROPPING


def test_a_group_that_never_rests_is_looked_at_closely_all_the_same(driver: Driver) -> None:
    """Else whoever takes our nodes would go unnoticed for as long as members come and go."""
    driver.own(P)
    looks = []
    for _ in range(40):
        driver.change()
        driver.view(P)
        driver.tell(ev.OwnersChanged("t"))
        driver.wait(0.5)
        inspect = driver.get(ev.Inspect)
        looks.append(inspect.look)
        driver.tell(ev.Inspected(inspect.serial, {}, 1, frozenset({P})))
        driver.wait(0.5)
    assert 1 <= looks.count(ev.Look.REMADE) <= 3, looks


def test_an_occupied_partition_is_an_attempt_and_looked_at_after_the_backoff(driver: Driver) -> None:
    """Whose the node is costs a read, and matters only where it stays."""
    driver.join()
    driver.view(P)
    first = driver.get(ev.ClaimPartitions)
    assert first.first == {P}
    driver.tell(ev.ClaimsEnded(first.serial, {P: ev.Occupied()}))
    assert driver.state_of(P) is PartitionState.CONTESTED
    assert driver.find(ev.ReportConflict) is None
    driver.wait(2.5)
    second = driver.get(ev.ClaimPartitions)
    assert (set(second.grants), second.first) == ({P}, frozenset())


def test_an_inspection_begun_before_the_claim_says_nothing_about_it(driver: Driver) -> None:
    """It saw that there was no node, and there was none then."""
    driver.own(Q)
    driver.change()
    driver.view(P, Q)
    claim = driver.get(ev.ClaimPartitions)
    driver.tell(ev.OwnersChanged())
    driver.wait(0.25)
    inspect = driver.get(ev.Inspect)
    driver.tell(ev.ClaimsEnded(claim.serial, {P: ev.Created()}))
    driver.tell(ev.Inspected(inspect.serial, {P: None, Q: Holder("g_me-0", 1)}, 1))
    assert driver.state_of(P) is PartitionState.CONFIRMING


def test_a_suspension_keeps_everything_and_resumes_what_is_proved(driver: Driver) -> None:
    """The same session again: nothing is repeated, nothing moves."""
    driver.own(P)
    driver.tell(ev.SessionChanged(FIRST, LeasePhase.PAUSED))
    assert driver.effects == []
    driver.tell(ev.SessionChanged(FIRST, LeasePhase.SUSPENDED))
    driver.get(ev.Suspend)
    assert driver.machine.state is MemberState.SUSPENDED
    driver.tell(ev.SessionChanged(FIRST, LeasePhase.FRESH))
    inspect, read = driver.get(ev.Inspect), driver.get(ev.Read)
    driver.tell(ev.Inspected(inspect.serial, {P: Holder("g_me-0", 1)}, 1))
    assert driver.get(ev.Resume).partitions == {P}
    driver.tell(ev.ViewRead(read.serial, {P: grant()}, STAMP, listed=True))
    assert driver.effects == []
    assert driver.state_of(P) is PartitionState.OWNED


def test_a_new_session_loses_everything_and_registers_anew(driver: Driver) -> None:
    """What the old session's effects report is not listened to any more."""
    driver.own(P)
    driver.change()
    driver.view(P, Q)
    claim = driver.get(ev.ClaimPartitions)
    driver.tell(ev.SessionChanged(SECOND, LeasePhase.FRESH))
    assert isinstance(driver.effects[0], ev.Revoke)
    drop = driver.get(ev.Drop)
    assert drop.partitions == {P}
    assert driver.get(ev.Register).epoch == SECOND
    driver.tell(ev.ClaimsEnded(claim.serial, {Q: ev.Created()}))
    assert driver.state_of(Q) is PartitionState.ABSENT
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.state_of(P) is PartitionState.ABSENT


def test_a_partition_is_not_claimed_again_while_it_is_being_dropped(driver: Driver) -> None:
    """Two pipelines of one partition would overlap."""
    driver.own(P)
    driver.tell(ev.SessionChanged(SECOND, LeasePhase.FRESH))
    drop = driver.get(ev.Drop)
    driver.tell(ev.Registered(driver.get(ev.Register).serial, ConsumerId("g_me2")))
    driver.view(P)
    assert driver.find(ev.ClaimPartitions) is None
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.get(ev.ClaimPartitions).grants.keys() == {P}


def test_a_topic_made_again_is_lost_and_claimed_with_its_new_incarnation(driver: Driver) -> None:
    """Positions of the old one mean nothing."""
    driver.own(P)
    driver.change()
    driver.view(P, incarnation=9)
    drop = driver.get(ev.Drop)
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.get(ev.ClaimPartitions).grants[P].incarnation == Incarnation(9)


def test_another_thread_of_ours_takes_over_without_a_pause(driver: Driver) -> None:
    """Owner nodes hold the thread that Java computes; the partition flows on."""
    driver.own(P)
    driver.change()
    driver.view(P, thread=1)
    rethread = driver.get(ev.Rethread)
    assert rethread.threads == {P: "g_me-1"}
    driver.tell(ev.RethreadsEnded(rethread.serial, {}))
    driver.change()
    driver.view(P, thread=0)
    driver.wait(2.0)
    # how the first try ended is not known: the node may hold either
    assert driver.get(ev.Rethread).threads == {P: "g_me-0"}
    driver.tell(ev.RethreadsEnded(driver.get(ev.Rethread).serial, {P: ThreadId("g_me-0")}))
    assert driver.machine.records[P].grant == grant(0)


def test_a_claim_in_doubt_is_released_and_made_again(driver: Driver) -> None:
    """An outcome that is unknown is not guessed at."""
    driver.join()
    driver.view(P)
    driver.tell(ev.ClaimsEnded(driver.get(ev.ClaimPartitions).serial, {P: ev.Unknown()}))
    release = driver.get(ev.Release)
    driver.tell(ev.ReleasesEnded(release.serial, frozenset()))
    assert driver.find(ev.Release) is None
    driver.wait(1.0)
    driver.tell(ev.ReleasesEnded(driver.get(ev.Release).serial, frozenset({P})))
    assert driver.get(ev.ClaimPartitions).grants.keys() == {P}


def test_a_stray_owner_node_of_our_session_is_released(driver: Driver) -> None:
    """Nobody else could, as long as the session lives."""
    driver.own(P)
    driver.tell(ev.StraysFound({Q: ThreadId("g_me-0"), P: ThreadId("g_me-0")}))
    assert driver.get(ev.Release).partitions == {Q}


def test_our_missing_registration_is_made_again_while_partitions_flow(driver: Driver) -> None:
    """The others will claim them, in vain, until we are listed again."""
    driver.own(P)
    driver.change()
    driver.wait(1.0)
    driver.tell(ev.ViewRead(driver.get(ev.Read).serial, {}, STAMP, listed=False))
    driver.get(ev.Register)
    assert driver.state_of(P) is PartitionState.OWNED


def test_failures_are_tried_again_with_growing_delays(driver: Driver) -> None:
    """No busy loop while ZooKeeper is away."""
    driver.tell(ev.SessionChanged(FIRST, LeasePhase.FRESH))
    delays = []
    for _ in range(6):
        driver.tell(ev.RegisterFailed(driver.get(ev.Register).serial))
        assert driver.machine.deadline is not None
        delays.append(driver.machine.deadline - driver.now)
        driver.wait(delays[-1])
    assert delays == sorted(delays)
    assert delays[0] >= 0.2
    assert delays[-1] <= 2.0
    driver.tell(ev.Registered(driver.get(ev.Register).serial, ME))
    driver.wait(1.0)
    driver.tell(ev.ReadFailed(driver.get(ev.Read).serial))
    assert driver.machine.state is MemberState.SETTLING
    driver.wait(2.0)
    driver.get(ev.Read)


def test_a_change_while_reading_is_read_after_it(driver: Driver) -> None:
    """The view may be older than the change."""
    driver.own(P)
    driver.change()
    driver.wait(1.0)
    read = driver.get(ev.Read)
    driver.change()
    driver.tell(ev.ViewRead(read.serial, {P: grant()}, STAMP, listed=True))
    assert driver.machine.state is MemberState.SETTLING


def test_where_changes_never_end_partitions_are_claimed_all_the_same(driver: Driver) -> None:
    """A member that comes and goes every moment must not keep all others from working."""
    driver.join()
    seen = []
    while driver.now < 3.0:
        driver.wait(0.21)
        read = driver.get(ev.Read)
        driver.change()
        driver.tell(ev.ViewRead(read.serial, {P: grant()}, STAMP, listed=True))
        assert driver.machine.state is MemberState.SETTLING
        seen.append(driver.state_of(P))
    assert seen[0] is PartitionState.ABSENT
    assert seen[-1] is PartitionState.CLAIMING


def test_reconciling_asks_whether_anything_was_missed(driver: Driver) -> None:
    """A watch that was lost must not leave the group split for ever."""
    driver.own(P)
    driver.wait(5.0)
    verify, inspect = driver.get(ev.Verify), driver.get(ev.Inspect)
    assert verify.reconcile
    assert (inspect.partitions, inspect.look) == ({P}, ev.Look.REMADE)
    driver.tell(ev.Verified(verify.serial, unchanged=False))
    driver.get(ev.Read)


def test_leaving_drains_releases_and_then_unregisters(driver: Driver) -> None:
    """In this order: who is still listed is still expected to own."""
    driver.own(P)
    driver.tell(ev.LeaveRequested())
    driver.tell(ev.DrainEnded(driver.get(ev.Drain).serial))
    driver.wait(0.25)
    driver.tell(ev.ReleasesEnded(driver.get(ev.Release).serial, frozenset({P})))
    unregister = driver.get(ev.Unregister)
    assert driver.machine.state is MemberState.LEAVING
    driver.tell(ev.Unregistered(unregister.serial))
    assert driver.machine.state is MemberState.STOPPED
    assert driver.machine.deadline is None


def test_leaving_without_a_session_just_stops(driver: Driver) -> None:
    """Nothing of ours is anywhere."""
    driver.tell(ev.LeaveRequested())
    assert driver.machine.state is MemberState.STOPPED


def test_leaving_waits_for_a_registration_under_way(driver: Driver) -> None:
    """Else our node would come after we have gone."""
    driver.tell(ev.SessionChanged(FIRST, LeasePhase.FRESH))
    register = driver.get(ev.Register)
    driver.tell(ev.LeaveRequested())
    assert driver.machine.state is MemberState.LEAVING
    driver.tell(ev.Registered(register.serial, ME))
    driver.get(ev.Unregister)


def test_repeated_and_late_events_change_nothing(driver: Driver) -> None:
    """Every outcome counts once."""
    driver.own(P)
    for event in (
        ev.Registered(1, ConsumerId("g_other")),
        ev.RegisterFailed(1),
        ev.ReadFailed(2),
        ev.ViewRead(2, {}, STAMP, listed=False),
        ev.Verified(3, unchanged=False),
        ev.ClaimsEnded(3, {P: ev.Unknown()}),
        ev.ReleasesEnded(3, frozenset({P})),
        ev.RethreadsEnded(3, {P: ThreadId("x")}),
        ev.DrainEnded(3),
        ev.DropEnded(3),
        ev.Inspected(3, {P: None}, 1),
        ev.Unregistered(3),
    ):
        assert driver.tell(event) == [], event
    assert driver.state_of(P) is PartitionState.OWNED
    assert driver.machine.consumer == ME
