# SPDX-License-Identifier: Apache-2.0
"""The machine of a coordinated member by itself: each transition, each effect, each timer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consumerd.group import events as ev
from consumerd.group.classic import events as cl
from consumerd.group.classic.events import Refusal
from consumerd.group.classic.machine import NO_GENERATION, ClassicSettings
from consumerd.group.classic.transitions import ENDS, TRANSITIONS, ClassicState, Trigger
from consumerd.model import Incarnation, TopicPartition
from consumerd.zk.port import LeasePhase
from tests.support.classic_driver import CZXID, JOIN_PAUSE_S, SETTINGS, Driver, P, Q, R, joined


@pytest.fixture
def driver() -> Driver:
    return Driver()


# -- the table


def test_every_state_can_be_entered_and_left() -> None:
    """A state without a way in or out is a mistake in the table."""
    assert {state for state, _ in TRANSITIONS} == set(ClassicState) - {ClassicState.STOPPED}
    assert set(TRANSITIONS.values()) == set(ClassicState)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


def test_every_state_but_the_last_two_can_be_left_for_good() -> None:
    """A daemon can be stopped at any moment."""
    assert {state for state, trigger in TRANSITIONS if trigger is Trigger.LEAVE} == set(ClassicState) - ENDS


def unjoined(driver: Driver) -> None:
    driver.tell(cl.JoinFailed(serial=_join(driver), refusal=Refusal.UNAVAILABLE, reason="no"))


def joining(driver: Driver) -> None:
    _join(driver)


def syncing(driver: Driver) -> None:
    driver.join()


def stable(driver: Driver) -> None:
    driver.own(P, Q)


def draining(driver: Driver) -> None:
    driver.own(P, Q)
    driver.heartbeat(Refusal.REBALANCE)


def leaving(driver: Driver) -> None:
    driver.own(P, Q)
    driver.tell(ev.LeaveRequested())


def stopped(driver: Driver) -> None:
    leaving(driver)
    driver.end_drain()
    driver.tell(cl.Left(driver.get(cl.LeaveGroup).serial))


def _join(driver: Driver) -> int:
    driver.tell(ev.Tick())
    return driver.get(cl.JoinGroup).serial


WAYS: dict[ClassicState, Callable[[Driver], None]] = {
    ClassicState.UNJOINED: unjoined,
    ClassicState.JOINING: joining,
    ClassicState.SYNCING: syncing,
    ClassicState.STABLE: stable,
    ClassicState.DRAINING: draining,
    ClassicState.LEAVING: leaving,
    ClassicState.STOPPED: stopped,
}


@pytest.mark.parametrize("state", ClassicState)
def test_states_say_whether_claims_are_worth_anything(driver: Driver, state: ClassicState) -> None:
    """Only a member of a generation has a lease, and it owns something only then."""
    WAYS[state](driver)

    assert driver.machine.state is state
    belongs = state in {ClassicState.STABLE, ClassicState.DRAINING, ClassicState.LEAVING}
    assert driver.machine.phase(driver.now) is (LeasePhase.FRESH if belongs else LeasePhase.NONE)
    assert driver.machine.owned == (frozenset({P, Q}) if belongs else frozenset())


@pytest.mark.parametrize("state", ClassicState)
def test_leaving_ends_in_every_state(driver: Driver, state: ClassicState) -> None:
    """A daemon that stops leaves the group at once, and does nothing afterwards."""
    WAYS[state](driver)
    driver.tell(ev.LeaveRequested())
    if state in {ClassicState.STABLE, ClassicState.DRAINING, ClassicState.LEAVING}:
        driver.end_drain()
    if state is ClassicState.JOINING:
        driver.tell(joined(1))
    if state not in {ClassicState.UNJOINED, ClassicState.STOPPED}:
        leave = driver.get(cl.LeaveGroup)
        assert leave.member_id == "me"
        driver.tell(cl.Left(leave.serial))

    assert driver.machine.state is ClassicState.STOPPED
    assert driver.machine.deadline is None
    assert driver.wait(1000.0) == []


# -- joining


def test_first_join_has_no_member_id_and_later_ones_keep_it(driver: Driver) -> None:
    """A member that joins with a new id each time would leave a dead one behind, which owns partitions."""
    driver.tell(ev.Tick())
    assert driver.get(cl.JoinGroup).member_id == ""
    driver.join()
    driver.sync(P)
    driver.identify()
    driver.heartbeat(Refusal.REBALANCE)
    driver.end_drain()
    assert driver.get(cl.JoinGroup).member_id == "me"


def test_sync_carries_what_the_join_has_brought(driver: Driver) -> None:
    """The leader assigns the members of this generation, not of another."""
    driver.join(7, leader=True)

    sync = driver.get(cl.SyncGroup)
    assert (sync.joined.generation, sync.joined.leader, sync.joined.members) == (7, True, {"me": b"sub"})
    assert driver.machine.leader
    assert driver.machine.generation == 7


@pytest.mark.parametrize("step", [cl.JoinGroup, cl.SyncGroup])
@pytest.mark.parametrize(
    ("refusal", "member_id", "pause_s", "problem"),
    [
        (Refusal.UNAVAILABLE, "me", JOIN_PAUSE_S, True),
        (Refusal.REFUSED, "me", JOIN_PAUSE_S, True),
        (Refusal.REBALANCE, "me", 0.05, False),
        (Refusal.FENCED, "me", 0.05, False),
        (Refusal.UNKNOWN_MEMBER, "", 0.05, False),
    ],
)
def test_failed_joins_are_tried_again(
    driver: Driver,
    step: type[cl.JoinGroup | cl.SyncGroup],
    refusal: Refusal,
    member_id: str,
    pause_s: float,
    problem: bool,
) -> None:
    """The id is forgotten only where the coordinator does not know it."""
    driver.own(P)
    driver.heartbeat(Refusal.REBALANCE)
    driver.end_drain()
    if step is cl.SyncGroup:
        driver.join(2)
    driver.tell(cl.JoinFailed(serial=driver.get(step).serial, refusal=refusal, reason="why"))

    assert driver.machine.state is ClassicState.UNJOINED
    assert driver.machine.generation == NO_GENERATION
    assert driver.machine.problem == ("why" if problem else None)
    assert driver.machine.deadline == pytest.approx(driver.now + pause_s)
    assert driver.wait(pause_s * 0.9) == []
    driver.wait(pause_s)
    assert driver.get(cl.JoinGroup).member_id == member_id


def fail_joins(driver: Driver, refusal: Refusal, count: int) -> list[float]:
    """Return the pauses after this many failures."""
    pauses = []
    driver.tell(ev.Tick())
    for _ in range(count):
        driver.tell(cl.JoinFailed(serial=driver.get(cl.JoinGroup).serial, refusal=refusal, reason="no"))
        deadline = driver.machine.deadline
        assert deadline is not None
        pauses.append(round(deadline - driver.now, 6))
        driver.wait(pauses[-1] + 1e-9)
    return pauses


@pytest.mark.parametrize(
    ("refusal", "pauses"),
    [
        (Refusal.UNAVAILABLE, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (Refusal.REBALANCE, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]),
        (Refusal.UNKNOWN_MEMBER, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]),
    ],
)
def test_pauses_grow_to_a_limit(driver: Driver, refusal: Refusal, pauses: list[float]) -> None:
    """A group in trouble is not stormed; a group that moves on does not wait for us for long."""
    assert fail_joins(driver, refusal, 8) == pauses


@pytest.mark.parametrize("refusal", [Refusal.UNAVAILABLE, Refusal.UNKNOWN_MEMBER])
def test_pauses_have_jitter(refusal: Refusal) -> None:
    """Members that a coordinator has left at one moment do not all come back at one moment."""
    plain, other = (fail_joins(Driver(random=random), refusal, 4) for random in (0.0, 1.0))
    assert other == [pytest.approx(pause / 2) for pause in plain]


def test_pauses_begin_anew_after_a_success(driver: Driver) -> None:
    """An outage of yesterday does not slow down today's."""
    fail_joins(driver, Refusal.UNAVAILABLE, 5)
    driver.tell(joined(driver.get(cl.JoinGroup).serial))
    driver.sync()
    driver.heartbeat(Refusal.FENCED)
    driver.tell(cl.JoinFailed(serial=driver.get(cl.JoinGroup).serial, refusal=Refusal.UNAVAILABLE, reason="no"))
    assert driver.machine.deadline == pytest.approx(driver.now + 0.1)


def test_answers_to_older_requests_change_nothing(driver: Driver) -> None:
    """An answer may arrive after the machine has gone on: it belongs to another generation."""
    driver.tell(ev.Tick())
    first = driver.get(cl.JoinGroup).serial
    driver.tell(cl.JoinFailed(serial=first, refusal=Refusal.UNAVAILABLE, reason="slow"))
    driver.wait(1.0)
    second = driver.get(cl.JoinGroup).serial
    assert driver.tell(joined(first, 3, "other")) == []
    assert driver.machine.state is ClassicState.JOINING
    driver.tell(joined(second, 4))
    sync = driver.get(cl.SyncGroup).serial
    assert driver.tell(joined(second, 4)) == []
    assert driver.tell(cl.GroupSynced(serial=second, sent_at=0.0, partitions=frozenset({P}))) == []
    driver.tell(cl.GroupSynced(serial=sync, sent_at=driver.now, partitions=frozenset({Q})))
    assert driver.machine.assigned == {Q}
    assert driver.tell(cl.GroupSynced(serial=sync, sent_at=driver.now, partitions=frozenset({P}))) == []
    assert driver.tell(cl.JoinFailed(serial=sync, refusal=Refusal.UNKNOWN_MEMBER, reason="late")) == []
    assert (driver.machine.assigned, driver.machine.member_id) == ({Q}, "me")


# -- partitions


def test_partitions_start_with_the_generation_that_assigned_them(driver: Driver) -> None:
    """The generation fences the commits of a claim."""
    driver.join(8)
    driver.sync(P, Q)
    assert driver.get(cl.Identify).partitions == {P, Q}
    assert driver.machine.owned == frozenset()
    driver.identify()
    assert driver.get(cl.StartAssigned) == cl.StartAssigned(8, {P: CZXID, Q: CZXID})
    assert driver.machine.owned == {P, Q}


def test_partitions_of_unreadable_topics_do_not_hold_up_the_others(driver: Driver) -> None:
    """Each starts when its topic's incarnation is known."""
    driver.join()
    driver.sync(P, R)
    asked = driver.get(cl.Identify)
    driver.tell(cl.Identified(serial=asked.serial, incarnations={P: CZXID}, problem="t/2: unreadable"))
    assert driver.get(cl.StartAssigned).incarnations == {P: CZXID}
    assert driver.machine.problem == "t/2: unreadable"
    driver.wait(0.1)
    assert driver.get(cl.Identify).partitions == {R}
    driver.identify()
    assert driver.get(cl.StartAssigned).incarnations == {R: CZXID}
    assert driver.machine.problem is None


def test_partitions_without_an_incarnation_and_without_a_reason_are_asked_for_again_after_a_pause(
    driver: Driver,
) -> None:
    """An answer that leaves one out must not make the member ask without end."""
    driver.join()
    driver.sync(P)
    driver.tell(cl.Identified(serial=driver.get(cl.Identify).serial, incarnations={}))
    assert driver.find(cl.Identify) is None
    assert driver.machine.problem is not None
    driver.wait(0.1)
    assert driver.get(cl.Identify).partitions == {P}


def test_a_heartbeat_does_not_hide_that_a_partition_cannot_start(driver: Driver) -> None:
    """The status page says what is wrong until it is mended."""
    driver.join()
    driver.sync(P)
    driver.tell(cl.Identified(serial=driver.get(cl.Identify).serial, incarnations={}, problem="t: unreadable"))
    driver.now = 3.0
    driver.tell(ev.Tick())
    driver.answer_heartbeat()
    assert driver.machine.problem == "t: unreadable"


def test_a_started_partition_does_not_hide_that_the_coordinator_is_silent(driver: Driver) -> None:
    """Nor the other way round."""
    driver.join()
    driver.sync(P)
    asked = driver.get(cl.Identify)
    driver.heartbeat(Refusal.UNAVAILABLE)
    driver.tell(cl.Identified(serial=asked.serial, incarnations={P: CZXID}))
    assert driver.machine.problem == "refused: unavailable"


def test_problems_of_an_older_assignment_end_with_it(driver: Driver) -> None:
    """A partition that is another member's now is no problem of ours."""
    driver.join()
    driver.sync(P)
    driver.tell(cl.Identified(serial=driver.get(cl.Identify).serial, incarnations={}, problem="t: unreadable"))
    driver.now = 2.9
    driver.tell(cl.SubscriptionChanged("topics changed"))
    assert driver.machine.problem is None


def test_failed_reads_of_topics_do_not_slow_heartbeats_down(driver: Driver) -> None:
    """Each has a pause of its own."""
    driver.join()
    driver.sync(P)
    for _ in range(4):
        driver.tell(cl.Identified(serial=driver.get(cl.Identify).serial, incarnations={}, problem="no"))
        driver.wait(driver.machine.deadline - driver.now)  # type: ignore[operator]  # it waits to ask again
    driver.now = 3.0
    driver.tell(ev.Tick())
    driver.answer_heartbeat(Refusal.UNAVAILABLE)
    assert driver.machine.deadline == pytest.approx(3.1)


def test_incarnations_of_an_older_generation_start_nothing(driver: Driver) -> None:
    """What was read for the assignment of generation 1 starts nothing of generation 2."""
    driver.join(1)
    driver.sync(P)
    old = driver.get(cl.Identify)
    driver.heartbeat(Refusal.FENCED)
    driver.join(2)
    driver.sync(P)
    assert driver.tell(cl.Identified(serial=old.serial, incarnations={P: Incarnation(4)})) == []
    assert driver.machine.owned == frozenset()


def test_a_disowned_partition_is_dropped_and_started_again_after_a_rest(driver: Driver) -> None:
    """Its topic may have been made again; the others go on. A partition that fails at once must not spin."""
    driver.own(P, Q)
    driver.tell(ev.Disowned(P, "the topic was re-created"))
    assert driver.effects[0] == ev.Revoke(frozenset({P}), "the topic was re-created")
    drop = driver.get(ev.Drop)
    assert drop.partitions == {P}
    assert driver.machine.owned == {Q}
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.find(cl.Identify) is None
    driver.wait(0.5)
    assert driver.get(cl.Identify).partitions == {P}
    asked = driver.get(cl.Identify)
    driver.tell(cl.Identified(serial=asked.serial, incarnations={P: Incarnation(9)}))
    assert driver.get(cl.StartAssigned) == cl.StartAssigned(1, {P: Incarnation(9)})


def test_a_partition_is_not_started_before_its_drop_has_ended(driver: Driver) -> None:
    """Nothing of the older claim may run beside the newer one."""
    driver.own(P, Q)
    driver.heartbeat(Refusal.FENCED)
    drop = driver.get(ev.Drop)
    driver.join(2)
    driver.sync(P, R)
    assert driver.get(cl.Identify).partitions == {R}
    driver.identify()
    assert driver.get(cl.StartAssigned).incarnations.keys() == {R}
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.get(cl.Identify).partitions == {P}


def test_disowned_reports_about_partitions_of_others_change_nothing(driver: Driver) -> None:
    """The claim may have been revoked while the report was on its way."""
    driver.own(P)
    assert driver.tell(ev.Disowned(Q, "late")) == []


# -- rebalances


@pytest.mark.parametrize("notice", ["heartbeat", "commit", "subscription"])
def test_a_rebalance_drains_everything_and_joins_again(driver: Driver, notice: str) -> None:
    """The eager protocol: what is not flushed and committed before the join is read again by the next owner."""
    driver.own(P, Q, generation=3)
    match notice:
        case "heartbeat":
            driver.heartbeat(Refusal.REBALANCE)
        case "commit":
            driver.tell(cl.CommitRefused(3, Refusal.REBALANCE, "the group rebalances"))
        case _:
            driver.tell(cl.SubscriptionChanged("topics changed"))
    drain = driver.get(ev.Drain)
    assert (drain.partitions, drain.deadline_s) == ({P, Q}, SETTINGS.drain_timeout_s)
    assert driver.find(ev.Revoke) is None
    assert driver.find(cl.JoinGroup) is None
    assert driver.machine.owned == {P, Q}
    assert driver.machine.generation == 3
    driver.tell(ev.DrainEnded(drain.serial))
    assert [type(effect) for effect in driver.effects] == [ev.Revoke, cl.JoinGroup]
    assert driver.get(ev.Revoke).partitions == {P, Q}
    assert (driver.machine.owned, driver.machine.generation) == (frozenset(), NO_GENERATION)


def test_heartbeats_go_on_during_a_drain(driver: Driver) -> None:
    """A drain may take longer than a session."""
    draining(driver)
    for _ in range(5):
        driver.heartbeat(Refusal.REBALANCE)
        assert driver.machine.phase(driver.now) is LeasePhase.FRESH
    assert driver.machine.state is ClassicState.DRAINING
    assert driver.find(ev.Drain) is None


def test_a_member_that_owns_nothing_joins_again_at_once(driver: Driver) -> None:
    """The others wait for it."""
    driver.join()
    driver.sync()
    driver.heartbeat(Refusal.REBALANCE)
    assert driver.get(cl.JoinGroup).member_id == "me"


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.SYNCING])
def test_a_subscription_that_changes_during_a_join_leads_to_another_join(driver: Driver, state: ClassicState) -> None:
    """JoinGroup was sent with the older subscription."""
    WAYS[state](driver)
    driver.tell(cl.SubscriptionChanged("topics changed"))
    assert driver.effects == []
    if state is ClassicState.JOINING:
        driver.tell(joined(1))
        serial = driver.get(cl.SyncGroup).serial
    else:
        serial = 2
    driver.tell(cl.GroupSynced(serial=serial, sent_at=0.0, partitions=frozenset({P})))
    assert driver.find(cl.StartAssigned) is None
    assert driver.find(cl.Identify) is None
    assert driver.get(cl.JoinGroup).member_id == "me"


@pytest.mark.parametrize(
    "state", [ClassicState.UNJOINED, ClassicState.DRAINING, ClassicState.LEAVING, ClassicState.STOPPED]
)
def test_a_subscription_that_changes_otherwise_waits_for_the_next_join(driver: Driver, state: ClassicState) -> None:
    """That join will carry it."""
    WAYS[state](driver)
    assert driver.tell(cl.SubscriptionChanged("topics changed")) == []
    assert driver.machine.state is state


def test_a_join_with_the_newer_subscription_is_not_followed_by_another(driver: Driver) -> None:
    """A change that the failed join did not carry is carried by the next one."""
    joining(driver)
    driver.tell(cl.SubscriptionChanged("topics changed"))
    driver.tell(cl.JoinFailed(serial=1, refusal=Refusal.UNAVAILABLE, reason="no"))
    driver.wait(1.0)
    driver.join()
    driver.sync(P)
    assert driver.machine.state is ClassicState.STABLE


def test_rebalances_are_reported_with_causes_and_time(driver: Driver) -> None:
    """From the notice to the assignment."""
    driver.tell(ev.Tick())
    driver.now = 2.0
    driver.tell(joined(1))
    driver.sync(P, Q)
    assert driver.get(ev.ReportRebalance).rebalance == ev.Rebalance(
        causes=("joined",), seconds=2.0, phases={}, gained=2, lost=0, stayed=0
    )
    driver.identify()
    driver.heartbeat(Refusal.REBALANCE)
    began = driver.now
    drain = driver.get(ev.Drain).serial
    driver.now += 1.5
    driver.tell(ev.DrainEnded(drain))
    driver.join(2)
    driver.sync(Q, R)
    report = driver.get(ev.ReportRebalance).rebalance
    assert report.causes == ("the group rebalances",)
    assert report.seconds == pytest.approx(driver.now - began)
    assert (report.gained, report.lost, report.stayed) == (1, 1, 1)


# -- fencing


@pytest.mark.parametrize("state", [ClassicState.STABLE, ClassicState.DRAINING])
@pytest.mark.parametrize("refusal", [Refusal.FENCED, Refusal.UNKNOWN_MEMBER])
@pytest.mark.parametrize("by", ["heartbeat", "commit"])
def test_a_fenced_member_drops_everything_at_once_and_joins_again(
    driver: Driver, state: ClassicState, refusal: Refusal, by: str
) -> None:
    """Others may own its partitions already: the revocation comes before all else."""
    WAYS[state](driver)
    drain = driver.find(ev.Drain)
    if by == "heartbeat":
        driver.heartbeat(refusal)
    else:
        driver.tell(cl.CommitRefused(1, refusal, "refused"))
    assert [type(effect) for effect in driver.effects] == [ev.Revoke, ev.Drop, cl.JoinGroup]
    assert driver.get(ev.Revoke).partitions == {P, Q}
    assert driver.get(cl.JoinGroup).member_id == ("" if refusal is Refusal.UNKNOWN_MEMBER else "me")
    assert driver.machine.phase(driver.now) is LeasePhase.NONE
    if drain is not None:
        assert driver.tell(ev.DrainEnded(drain.serial)) == []
        assert driver.machine.state is ClassicState.JOINING


def test_refused_commits_of_an_older_generation_change_nothing(driver: Driver) -> None:
    """They were sent before the member joined again, and say nothing about its present generation."""
    driver.own(P, generation=3)
    assert driver.tell(cl.CommitRefused(2, Refusal.FENCED, "late")) == []
    assert driver.tell(cl.CommitRefused(2, Refusal.UNKNOWN_MEMBER, "late")) == []
    assert (driver.machine.state, driver.machine.member_id) == (ClassicState.STABLE, "me")


def test_refused_commits_between_two_generations_change_nothing(driver: Driver) -> None:
    """The generation is that of the pending SyncGroup, but nothing was committed in it."""
    driver.join(3)
    assert driver.tell(cl.CommitRefused(3, Refusal.FENCED, "odd")) == []
    assert driver.machine.state is ClassicState.SYNCING


def test_commits_that_the_coordinator_could_not_take_do_not_end_the_membership(driver: Driver) -> None:
    """The store tries again; the lease says what that is worth."""
    driver.own(P)
    assert driver.tell(cl.CommitRefused(1, Refusal.UNAVAILABLE, "moved")) == []
    assert driver.tell(cl.CommitRefused(1, Refusal.REFUSED, "no permission")) == []
    assert (driver.machine.state, driver.machine.problem) == (ClassicState.STABLE, "no permission")
    driver.heartbeat()
    assert driver.machine.problem is None


@pytest.mark.parametrize(
    "state", [ClassicState.UNJOINED, ClassicState.JOINING, ClassicState.SYNCING, ClassicState.STOPPED]
)
def test_answers_of_heartbeats_of_an_ended_generation_change_nothing(driver: Driver, state: ClassicState) -> None:
    """One may be under way when the drain ends, and be answered after the join."""
    WAYS[state](driver)
    for serial in range(1, 10):
        ended = cl.HeartbeatEnded(serial=serial, sent_at=0.0, refusal=Refusal.UNKNOWN_MEMBER, reason="late")
        assert driver.tell(ended) == []
    assert driver.machine.state is state


def test_a_heartbeat_under_way_at_the_join_does_not_fence_the_next_generation(driver: Driver) -> None:
    """Its answer, ILLEGAL_GENERATION, is about the older one."""
    draining(driver)
    drain = driver.get(ev.Drain).serial
    driver.wait(3.0)
    late = driver.get(cl.Heartbeat).serial
    driver.tell(ev.DrainEnded(drain))
    driver.join(2)
    driver.sync(P)
    assert driver.tell(cl.HeartbeatEnded(serial=late, sent_at=3.0, refusal=Refusal.FENCED, reason="late")) == []
    assert driver.machine.state is ClassicState.STABLE


# -- heartbeats and leases


def test_heartbeats_are_sent_at_their_interval_and_one_at_a_time(driver: Driver) -> None:
    """From the sending of one to the sending of the next, however long the answer took."""
    driver.own(P)
    assert driver.machine.deadline == 3.0
    driver.wait(3.0)
    assert driver.get(cl.Heartbeat).generation == 1
    assert driver.get(cl.Heartbeat).member_id == "me"
    sent = driver.get(cl.Heartbeat)
    assert driver.wait(2.0) == []
    driver.tell(cl.HeartbeatEnded(serial=sent.serial, sent_at=3.0))
    assert driver.machine.deadline == 6.0
    driver.wait(1.0)
    slow = driver.get(cl.Heartbeat)
    driver.now = 11.0
    driver.tell(cl.HeartbeatEnded(serial=slow.serial, sent_at=6.0))
    assert driver.find(cl.Heartbeat) is not None


def test_the_lease_runs_from_the_sending_of_what_was_answered(driver: Driver) -> None:
    """The answer may have been under way for any time."""
    driver.own(P)
    driver.heartbeat(took_s=2.0)
    assert driver.now == 5.0
    phase = driver.machine.phase
    assert phase(8.99) is LeasePhase.FRESH
    assert phase(9.0) is LeasePhase.PAUSED
    assert phase(11.0) is LeasePhase.SUSPENDED


def test_the_lease_begins_with_the_sending_of_sync_group(driver: Driver) -> None:
    """A follower may wait for its leader for long, and the first heartbeat goes out at once then."""
    driver.join()
    sync = driver.get(cl.SyncGroup).serial
    driver.now = 7.0
    driver.tell(cl.GroupSynced(serial=sync, sent_at=0.0, partitions=frozenset({P})))
    assert driver.machine.phase(driver.now) is LeasePhase.PAUSED
    driver.answer_heartbeat()
    assert driver.machine.phase(driver.now) is LeasePhase.FRESH


def test_a_silent_coordinator_pauses_claims_and_takes_nothing(driver: Driver) -> None:
    """It may come back, and then nothing has happened: no other member can have had the partitions."""
    driver.own(P)
    phases = []
    while driver.now < 30.0:
        driver.heartbeat(Refusal.UNAVAILABLE)
        phases.append(driver.machine.phase(driver.now))
        assert driver.find(ev.Revoke) is None
    assert phases == sorted(phases, key=[LeasePhase.FRESH, LeasePhase.PAUSED, LeasePhase.SUSPENDED].index)
    assert phases[-1] is LeasePhase.SUSPENDED
    assert driver.machine.problem == "refused: unavailable"
    driver.heartbeat()
    assert driver.machine.phase(driver.now) is LeasePhase.FRESH
    assert (driver.machine.owned, driver.machine.problem) == ({P}, None)


def test_unanswered_heartbeats_are_repeated_soon_and_at_least_at_the_interval(driver: Driver) -> None:
    """One that was lost costs a fraction of the lease."""
    driver.own(P)
    pauses = []
    for _ in range(7):
        driver.heartbeat(Refusal.UNAVAILABLE)
        assert driver.machine.deadline is not None
        pauses.append(round(driver.machine.deadline - driver.now, 6))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0]
    driver.heartbeat()
    driver.heartbeat(Refusal.UNAVAILABLE)
    assert driver.machine.deadline == pytest.approx(driver.now + 0.1)


def test_a_refused_heartbeat_renews_nothing(driver: Driver) -> None:
    """Without the permission to read the group, the coordinator does not count the member as alive."""
    driver.own(P)
    driver.heartbeat(Refusal.REFUSED)
    assert driver.machine.problem == "refused: refused"
    assert driver.machine.deadline == 6.0
    driver.now = 6.0
    assert driver.machine.phase(driver.now) is LeasePhase.PAUSED


def test_a_drain_that_hangs_loses_its_lease_although_heartbeats_are_answered(driver: Driver) -> None:
    """The coordinator waits for the rebalance timeout, and then gives the partitions to others."""
    driver.own(P)
    driver.heartbeat()
    noticed = driver.now
    while driver.now < noticed + 60.0:
        assert driver.machine.phase(driver.now) is (
            LeasePhase.FRESH
            if driver.now < noticed + 30.0
            else LeasePhase.PAUSED
            if driver.now < noticed + 40.0
            else LeasePhase.SUSPENDED
        )
        driver.heartbeat(Refusal.REBALANCE)


def test_a_silence_longer_than_the_rebalance_timeout_suspends_claims() -> None:
    """A rebalance that began after the last answer may have ended without this member."""
    driver = Driver(
        ClassicSettings(session_timeout_s=30.0, heartbeat_s=3.0, drain_timeout_s=1.0), rebalance_timeout_s=9.0
    )
    driver.own(P)
    driver.now = 6.0
    assert driver.machine.phase(driver.now) is LeasePhase.SUSPENDED


def test_both_leases_begin_anew_with_each_generation(driver: Driver) -> None:
    """A generation that has just begun was stable a moment ago."""
    draining(driver)
    for _ in range(11):
        driver.heartbeat(Refusal.REBALANCE)
    assert driver.machine.phase(driver.now) is LeasePhase.PAUSED
    driver.end_drain()
    driver.join(2)
    driver.sync(P)
    assert driver.machine.phase(driver.now) is LeasePhase.FRESH


# -- leaving


def test_leaving_flushes_commits_and_tells_the_coordinator(driver: Driver) -> None:
    """The others take over at once, at the committed position."""
    driver.own(P)
    driver.tell(ev.LeaveRequested())
    assert driver.get(ev.Drain).partitions == {P}
    driver.end_drain()
    assert [type(effect) for effect in driver.effects] == [ev.Revoke, cl.LeaveGroup]
    assert driver.machine.generation == NO_GENERATION
    assert driver.tell(ev.LeaveRequested()) == []


def test_heartbeats_go_on_while_a_leaving_member_drains(driver: Driver) -> None:
    """Else it would be removed before it has committed."""
    leaving(driver)
    driver.heartbeat()
    driver.heartbeat(Refusal.REBALANCE)
    assert driver.machine.state is ClassicState.LEAVING
    assert driver.find(ev.Drain) is None


def test_a_drain_for_a_rebalance_goes_on_when_the_member_leaves(driver: Driver) -> None:
    """It is not begun twice."""
    draining(driver)
    drain = driver.get(ev.Drain).serial
    assert driver.tell(ev.LeaveRequested()) == []
    driver.tell(ev.DrainEnded(drain))
    assert driver.get(cl.LeaveGroup).member_id == "me"


def test_a_first_join_is_awaited_for_its_id_before_leaving(driver: Driver) -> None:
    """The coordinator counts the member in already: the group would wait for it until its session timeout."""
    joining(driver)
    assert driver.tell(ev.LeaveRequested()) == []
    assert driver.machine.state is ClassicState.LEAVING
    driver.now = 1.0
    driver.tell(joined(1, member_id="given"))
    assert driver.effects == [cl.LeaveGroup(2, "given")]
    driver.tell(cl.Left(2))
    assert driver.machine.state is ClassicState.STOPPED


def test_a_first_join_is_not_awaited_for_ever(driver: Driver) -> None:
    """It is answered when all others have joined, which may take minutes."""
    joining(driver)
    driver.tell(ev.LeaveRequested())
    assert driver.machine.deadline == SETTINGS.drain_timeout_s
    driver.wait(SETTINGS.drain_timeout_s)
    assert driver.machine.state is ClassicState.STOPPED
    assert driver.tell(joined(1)) == []


@pytest.mark.parametrize("refusal", Refusal)
def test_a_first_join_that_fails_ends_the_departure(driver: Driver, refusal: Refusal) -> None:
    """There is nothing to leave."""
    joining(driver)
    driver.tell(ev.LeaveRequested())
    driver.tell(cl.JoinFailed(serial=1, refusal=refusal, reason="no"))
    assert driver.machine.state is ClassicState.STOPPED


def test_a_member_that_joins_again_leaves_under_its_id_at_once(driver: Driver) -> None:
    """The answer of the join, late, changes nothing."""
    draining(driver)
    driver.end_drain()
    join = driver.get(cl.JoinGroup).serial
    driver.tell(ev.LeaveRequested())
    leave = driver.get(cl.LeaveGroup)
    assert leave.member_id == "me"
    assert driver.tell(joined(join, 2)) == []
    assert driver.tell(cl.JoinFailed(serial=join, refusal=Refusal.UNKNOWN_MEMBER, reason="late")) == []
    driver.tell(cl.Left(leave.serial))
    assert driver.machine.state is ClassicState.STOPPED


def test_a_leaving_member_of_an_older_generation_still_leaves(driver: Driver) -> None:
    """ILLEGAL_GENERATION: the coordinator knows the id, and would wait for this member's next join."""
    leaving(driver)
    driver.heartbeat(Refusal.FENCED)
    drop = driver.get(ev.Drop)
    assert driver.get(cl.LeaveGroup).member_id == "me"
    driver.tell(cl.Left(driver.get(cl.LeaveGroup).serial))
    assert driver.machine.state is ClassicState.LEAVING
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.machine.state is ClassicState.STOPPED


def test_a_leaving_member_that_was_removed_drops_and_stops(driver: Driver) -> None:
    """UNKNOWN_MEMBER_ID: there is nothing to leave."""
    leaving(driver)
    drain = driver.get(ev.Drain).serial
    driver.heartbeat(Refusal.UNKNOWN_MEMBER)
    drop = driver.get(ev.Drop)
    assert driver.find(cl.LeaveGroup) is None
    assert driver.machine.state is ClassicState.LEAVING
    assert driver.tell(ev.DrainEnded(drain)) == []
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.machine.state is ClassicState.STOPPED


@pytest.mark.parametrize("refusal", [Refusal.FENCED, Refusal.UNKNOWN_MEMBER])
def test_a_member_stops_only_after_its_drops_have_ended(driver: Driver, refusal: Refusal) -> None:
    """The caller of the machine ends with it: what it drops must not be cut short."""
    driver.own(P)
    driver.heartbeat(refusal)
    drop = driver.get(ev.Drop)
    driver.tell(cl.JoinFailed(serial=driver.get(cl.JoinGroup).serial, refusal=refusal, reason="no"))
    driver.tell(ev.LeaveRequested())
    if (leave := driver.find(cl.LeaveGroup)) is not None:
        driver.tell(cl.Left(leave.serial))
    assert driver.machine.state is ClassicState.LEAVING
    driver.tell(ev.DropEnded(drop.serial))
    assert driver.machine.state is ClassicState.STOPPED


def test_a_member_that_never_joined_stops_at_once(driver: Driver) -> None:
    """It has told the coordinator nothing."""
    assert driver.tell(ev.LeaveRequested()) == []
    assert driver.machine.state is ClassicState.STOPPED


@pytest.mark.parametrize(
    "event",
    [
        ev.LeaveRequested(),
        ev.Tick(),
        ev.DrainEnded(1),
        ev.DropEnded(1),
        ev.Disowned(P, "late"),
        cl.SubscriptionChanged("topics changed"),
        cl.CommitRefused(1, Refusal.FENCED, "late"),
        cl.CommitRefused(NO_GENERATION, Refusal.FENCED, "odd"),
        joined(1),
        cl.JoinFailed(serial=1, refusal=Refusal.UNAVAILABLE, reason="late"),
        cl.GroupSynced(serial=2, sent_at=0.0, partitions=frozenset({P})),
        cl.Identified(serial=3, incarnations={P: CZXID}),
        cl.HeartbeatEnded(serial=1, sent_at=0.0, refusal=Refusal.FENCED),
        cl.Left(1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_stopped_machine_does_nothing_more(driver: Driver, event: cl.Event) -> None:
    """Whatever arrives late."""
    stopped(driver)
    driver.now += 100.0
    assert driver.tell(event) == []
    assert (driver.machine.state, driver.machine.deadline) == (ClassicState.STOPPED, None)


def test_partitions_of_several_topics_move_as_one(driver: Driver) -> None:
    """One drain and one revocation for the whole assignment."""
    other = TopicPartition.modern("u", 0)
    driver.own(P, other)
    driver.heartbeat(Refusal.REBALANCE)
    assert driver.get(ev.Drain).partitions == {P, other}
