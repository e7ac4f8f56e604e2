# SPDX-License-Identifier: Apache-2.0
"""One group's states, on a clock that the test moves: what each request gets, in each state, and what time does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from consumerd.embedded.coordinator.exchange import (
    GroupState,
    Join,
    Joined,
    JoinResult,
    SyncResult,
)
from consumerd.embedded.coordinator.group import CoordinatedGroup
from consumerd.embedded.coordinator.member import Protocol, Ticket
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offsets_topic import GroupMember, GroupValue
from tests.support.group_driver import BOTH, BOTH_RELUCTANT, RANGE, REBALANCE_S, SESSION_S, Driver, stable


def test_a_first_member_leads_a_generation_of_its_own() -> None:
    """Nobody is waited for when nobody else is there."""
    driver = Driver()

    answer = driver.joined(driver.join("a"))

    expected = JoinResult(member_id="a", generation=1, protocol="range", leader="a", members=(("a", b"sub-range"),))
    assert (expected, GroupState.COMPLETING_REBALANCE) == (answer, driver.group.state)


def test_a_second_member_waits_until_the_first_has_joined_again() -> None:
    """The first barrier: nobody goes on with a membership that others do not know yet."""
    driver = stable("a")

    waiting = driver.join("b")
    told = driver.heartbeat("a", 1)
    leader = driver.rejoin("a")

    assert told is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.joined(waiting) == JoinResult(member_id="b", generation=2, protocol="range", leader="a")
    assert driver.joined(leader).members == (("a", b"sub-range"), ("b", b"sub-range"))


def test_followers_get_their_part_when_the_leader_has_sent_it() -> None:
    """The second barrier, and what is written before anybody acts upon it."""
    driver = stable("a")
    driver.join("b")
    driver.rejoin("a")
    driver.stores_at_once = False

    follower = driver.sync("b", 2)
    leader = driver.sync("a", 2, {"b": b"part"})
    unanswered = driver.answers.keys() & {follower, leader}
    driver.stored(ErrorCode.NONE)

    assert unanswered == set()
    # who is not named gets nothing
    assert (SyncResult(assignment=b"part"), SyncResult()) == (driver.synced(follower), driver.synced(leader))
    stored = driver.stores[-1].group
    assert (2, "range", "a") == (stored.generation, stored.protocol, stored.leader)
    assert [("a", b""), ("b", b"part")] == [(one.member_id, one.assignment) for one in stored.members]
    assert driver.synced(driver.sync("b", 2)) == SyncResult(assignment=b"part")


def test_an_assignment_that_could_not_be_written_counts_for_nothing() -> None:
    """Whoever waits is told, and all join again."""
    driver = stable("a")
    driver.stores_at_once = False
    driver.rejoin("a")
    leader = driver.sync("a", 2, {"a": b"part"})

    driver.stored(ErrorCode.NOT_COORDINATOR)

    assert driver.synced(leader) == SyncResult(error=ErrorCode.NOT_COORDINATOR)
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_what_was_written_for_a_generation_that_is_over_changes_nothing() -> None:
    """A member joined while the log was slow: the assignment does not know it."""
    driver = stable("a")
    driver.stores_at_once = False
    driver.rejoin("a")
    leader = driver.sync("a", 2, {"a": b"part"})
    driver.join("b")

    driver.stored(ErrorCode.NONE)

    assert driver.synced(leader) == SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_what_was_written_for_a_generation_does_not_count_for_the_next_one() -> None:
    """Its members have joined by then, and wait for an assignment of their own."""
    driver = stable("a")
    driver.stores_at_once = False
    driver.rejoin("a")
    driver.sync("a", 2, {"a": b"part"})
    driver.join("b")
    driver.rejoin("a")

    driver.stored(ErrorCode.NONE)

    assert (GroupState.COMPLETING_REBALANCE, 3) == (driver.group.state, driver.group.generation)


def test_whoever_does_not_join_again_in_time_is_no_longer_a_member() -> None:
    """The longest rebalance timeout bounds the first barrier, however diligently one sends heartbeats."""
    driver = stable("a", "b")
    waiting = driver.join("c")
    driver.rejoin("a")
    for _ in range(11):
        driver.pass_to(driver.now + 5)
        driver.heartbeat("b", 2)
    before = waiting in driver.answers
    driver.pass_to(REBALANCE_S)

    assert not before
    assert driver.joined(waiting).generation == 3
    assert driver.heartbeat("b", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts() -> None:
    """KIP-62: a slow member's patience is everybody's."""
    driver = stable("a")
    patient = driver.join("b", rebalance_s=300)
    driver.pass_to(5)
    driver.heartbeat("a", 1)
    for _ in range(29):
        driver.pass_to(driver.now + 9)
        driver.heartbeat("a", 1)

    assert driver.now > 4 * REBALANCE_S
    assert patient not in driver.answers


def test_a_member_that_is_not_heard_of_is_removed_and_the_others_told() -> None:
    """The session timeout, from the last sign of life."""
    driver = stable("a", "b")
    driver.pass_to(6)
    driver.heartbeat("a", 2)
    driver.pass_to(SESSION_S - 0.001)
    before = driver.group.state
    driver.pass_to(SESSION_S)

    assert (before, driver.group.state) == (GroupState.STABLE, GroupState.PREPARING_REBALANCE)
    assert driver.heartbeat("a", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat("b", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_dies_is_followed_by_another_member() -> None:
    """Else nobody would send an assignment."""
    driver = stable("a", "b")
    driver.pass_to(6)
    driver.heartbeat("b", 2)
    driver.pass_to(11)

    answer = driver.joined(driver.rejoin("b"))

    assert ("b", (("b", b"sub-range"),)) == (answer.leader, answer.members)


def test_a_leader_that_never_sends_the_assignment_is_removed() -> None:
    """The followers wait in their SyncGroup, and join again when the leader's session has ended."""
    driver = stable("a", "b")
    driver.rejoin("a")
    driver.rejoin("b")
    waiting = driver.sync("b", 3)
    driver.pass_to(driver.now + SESSION_S)

    assert driver.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat("a", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.rejoin("b")).leader == "b"


def test_who_waits_at_a_barrier_does_not_expire() -> None:
    """It cannot send heartbeats on the connection that waits, and clients of 0.9 have no other."""
    driver = stable("a", "b")
    new, old = driver.join("c"), driver.rejoin("b")
    for _ in range(5):
        driver.pass_to(driver.now + 8)
        driver.heartbeat("a", 2)
    driver.rejoin("a")

    assert driver.now > 2 * SESSION_S
    assert (ErrorCode.NONE, ErrorCode.NONE) == (driver.joined(new).error, driver.joined(old).error)
    driver.pass_to(driver.now + SESSION_S - 0.001)
    assert driver.heartbeat("b", 3) is ErrorCode.REBALANCE_IN_PROGRESS  # it lives: its session began with the answer


def test_a_member_leaves_at_once() -> None:
    """The others need not wait for its session to end."""
    driver = stable("a", "b")

    assert driver.leave("b") is ErrorCode.NONE
    assert driver.leave("b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.rejoin("a")).generation == 3


def test_the_last_member_leaves_an_empty_group_behind() -> None:
    """Its generation goes on counting, and is written down, so that no old member is taken for a new one."""
    driver = stable("a")
    driver.leave("a")

    assert (GroupState.EMPTY, 2) == (driver.group.state, driver.group.generation)
    assert (2, None, ()) == (
        driver.stores[-1].group.generation,
        driver.stores[-1].group.protocol,
        driver.stores[-1].group.members,
    )
    assert driver.joined(driver.join("b")).generation == 3


def test_who_leaves_while_its_join_waits_is_answered_and_waited_for_no_more() -> None:
    """A ticket that is never answered would hold a connection for ever."""
    driver = stable("a")
    gone = driver.join("b")
    other = driver.join("c")
    driver.leave("b")
    driver.rejoin("a")

    assert driver.joined(gone).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(other).generation == 2


def test_who_leaves_while_it_waits_for_its_part_is_answered() -> None:
    """Between the barriers, too."""
    driver = stable("a", "b")
    driver.rejoin("a")
    driver.rejoin("b")
    gone = driver.sync("b", 3)
    driver.leave("b")

    assert driver.synced(gone).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize(
    ("protocols", "protocol_type"),
    [((Protocol("sticky", b""),), "consumer"), (RANGE, "connect"), ((), "consumer")],
    ids=["no common protocol", "another type", "none at all"],
)
def test_who_does_not_fit_into_the_group_is_refused(protocols: tuple[Protocol, ...], protocol_type: str) -> None:
    """INCONSISTENT_GROUP_PROTOCOL: the members would not understand each other."""
    driver = stable("a")

    answer = driver.joined(driver.join("b", protocols=protocols, protocol_type=protocol_type))

    assert (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, GroupState.STABLE) == (answer.error, driver.group.state)


@pytest.mark.parametrize(("protocols", "protocol_type"), [((), "consumer"), (RANGE, "")])
def test_a_first_member_that_names_no_protocol_is_refused(protocols: tuple[Protocol, ...], protocol_type: str) -> None:
    """It would decide for all that follow."""
    driver = Driver()

    answer = driver.joined(driver.join("a", protocols=protocols, protocol_type=protocol_type))

    assert (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, GroupState.EMPTY) == (answer.error, driver.group.state)


def test_the_protocol_that_most_members_like_best_is_chosen_of_those_that_all_speak() -> None:
    """Members vote; what one of them lacks is no candidate."""
    driver = stable("a", protocols=BOTH)
    driver.join("b", protocols=BOTH_RELUCTANT)
    driver.join("c", protocols=(*BOTH_RELUCTANT, Protocol("sticky", b"")))
    everybody = driver.joined(driver.rejoin("a", BOTH))
    driver.join("d", protocols=RANGE)
    for name in ("b", "c"):
        driver.rejoin(name, BOTH_RELUCTANT)
    one_lacks = driver.joined(driver.rejoin("a", BOTH))

    assert ("roundrobin", "range") == (everybody.protocol, one_lacks.protocol)
    assert everybody.members[0] == ("a", b"sub-rr")


def test_a_join_under_an_id_that_is_not_known_is_refused() -> None:
    """UNKNOWN_MEMBER_ID makes the client begin anew, with no id."""
    driver = stable("a")

    assert driver.joined(driver.rejoin("stranger")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_of_a_stable_group_that_asks_again_disturbs_nobody() -> None:
    """It has lost its answer; a leader that asks wants a new assignment."""
    driver = stable("a", "b")

    again = driver.joined(driver.rejoin("b"))
    quiet = driver.group.state
    driver.rejoin("a")

    assert JoinResult(member_id="b", generation=2, protocol="range", leader="a") == again
    assert (GroupState.STABLE, GroupState.PREPARING_REBALANCE) == (quiet, driver.group.state)


def test_a_changed_subscription_makes_a_new_generation() -> None:
    """What a member says of itself is what the leader divides by."""
    driver = stable("a", "b")
    changed = (Protocol("range", b"other"),)

    waiting = driver.rejoin("b", changed)
    answer = driver.joined(driver.rejoin("a"))

    assert driver.joined(waiting).generation == 3
    assert answer.members == (("a", b"sub-range"), ("b", b"other"))


def test_a_join_that_is_sent_again_between_the_barriers_is_answered_again() -> None:
    """The answer was lost; the leader's has the members."""
    driver = stable("a", "b")
    driver.rejoin("a")
    driver.rejoin("b")

    leader, follower = driver.joined(driver.rejoin("a")), driver.joined(driver.rejoin("b"))

    assert (3, 3) == (leader.generation, follower.generation)
    assert (2, 0) == (len(leader.members), len(follower.members))
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_a_request_that_is_sent_again_while_the_first_one_waits_takes_its_place() -> None:
    """The first one's connection is gone; nothing waits for ever."""
    driver = stable("a", "b")
    first = driver.rejoin("b", BOTH)
    second = driver.rejoin("b", BOTH)
    driver.rejoin("a")
    first_sync, second_sync = driver.sync("b", 3), driver.sync("b", 3)
    driver.sync("a", 3, {"b": b"part"})

    assert (ErrorCode.REBALANCE_IN_PROGRESS, 3) == (driver.joined(first).error, driver.joined(second).generation)
    assert driver.synced(first_sync).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.synced(second_sync).assignment == b"part"


def test_a_sync_is_refused_by_who_asks_and_when() -> None:
    """Unknown before illegal before not now."""
    driver = stable("a")
    stranger = driver.synced(driver.sync("stranger", 1)).error
    stale = driver.synced(driver.sync("a", 0)).error
    driver.join("b")
    early = driver.synced(driver.sync("a", 1)).error

    expected = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
    assert expected == (stranger, stale, early)


def test_heartbeats_say_what_the_group_is_about() -> None:
    """In each state, to members and to others."""
    driver = stable("a")
    fine, stale, stranger = driver.heartbeat("a", 1), driver.heartbeat("a", 0), driver.heartbeat("b", 1)
    driver.join("b")
    preparing, stale_preparing = driver.heartbeat("a", 1), driver.heartbeat("a", 7)
    driver.rejoin("a")
    completing, stranger_completing = driver.heartbeat("a", 1), driver.heartbeat("c", 2)

    assert (ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID) == (fine, stale, stranger)
    assert (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION) == (preparing, stale_preparing)
    assert (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID) == (completing, stranger_completing)
    assert Driver().heartbeat("a", 0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_without_members_takes_commits_of_clients_without_a_generation() -> None:
    """Simple consumers, and tools that set positions; not once somebody is in the group."""
    driver = Driver()
    simple = driver.group.admit_commit("", -1, 0.0)
    stray = driver.group.admit_commit("a", 1, 0.0)
    busy = stable("a").group.admit_commit("", -1, 0.0)

    assert (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID) == (simple, stray, busy)


def test_members_commit_in_their_generation_and_until_the_next_begins() -> None:
    """While the others join, what was read is still theirs to commit; between the barriers it is not."""
    driver = stable("a")
    stable_commit = driver.group.admit_commit("a", 1, 0.0)
    stale = driver.group.admit_commit("a", 0, 0.0)
    driver.join("b")
    preparing = driver.group.admit_commit("a", 1, 0.0)
    driver.rejoin("a")
    completing = driver.group.admit_commit("a", 2, 0.0)

    assert (ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION) == (stable_commit, stale)
    assert (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS) == (preparing, completing)


def test_a_commit_is_a_sign_of_life() -> None:
    """A client that commits more often than it sends heartbeats lives."""
    driver = stable("a")
    driver.pass_to(9)
    driver.group.admit_commit("a", 1, driver.now)
    driver.pass_to(18)

    assert driver.group.state is GroupState.STABLE


def test_a_first_rebalance_waits_for_more_members_when_told_to() -> None:
    """KIP-134: three members that start together make one generation, not three; each one that comes prolongs the wait."""
    driver = Driver(initial_delay_s=3.0)
    tickets = [driver.join("a")]
    driver.pass_to(2)
    tickets.append(driver.join("b"))
    driver.pass_to(3)
    prolonged = not driver.answers
    driver.pass_to(5.9)
    tickets.append(driver.join("c"))
    driver.pass_to(9)

    assert prolonged
    assert [1, 1, 1] == [driver.joined(ticket).generation for ticket in tickets]


def test_the_wait_for_more_first_members_ends_with_the_rebalance_timeout() -> None:
    """However many come."""
    driver = Driver(initial_delay_s=3.0)
    first = driver.join("m0", rebalance_s=10)
    for number in range(1, 10):
        driver.pass_to(number + 0.5)
        driver.join(f"m{number}", rebalance_s=10)
    before = first in driver.answers
    driver.pass_to(10)

    assert (False, 1) == (before, driver.joined(first).generation)


def test_a_group_is_what_it_was_after_a_restart() -> None:
    """Members go on where they were; who has died meanwhile expires."""
    before = stable("a", "b")
    restored = Driver(CoordinatedGroup.restore("g", before.stores[-1].group, 100.0))
    restored.now = 100.0

    alive, assignment = restored.heartbeat("a", 2), restored.synced(restored.sync("b", 2)).assignment
    restored.pass_to(105)
    restored.heartbeat("a", 2)
    restored.pass_to(110)

    assert (ErrorCode.NONE, b"b") == (alive, assignment)
    assert (GroupState.PREPARING_REBALANCE, ErrorCode.UNKNOWN_MEMBER_ID) == (
        restored.group.state,
        restored.heartbeat("b", 2),
    )


def test_an_empty_group_keeps_its_generation_over_a_restart() -> None:
    """Or a member of an old one could commit into a new one."""
    before = stable("a")
    before.leave("a")
    restored = Driver(CoordinatedGroup.restore("g", before.stores[-1].group, 0.0))

    assert (GroupState.EMPTY, math.inf) == (restored.group.state, restored.group.deadline)
    assert restored.joined(restored.join("b")).generation == 3


def test_a_group_that_is_removed_answers_whoever_waits() -> None:
    """And refuses everything from then on."""
    driver = stable("a")
    waiting = driver.join("b")
    driver.do(driver.group.kill())

    assert driver.joined(waiting).error is ErrorCode.NOT_COORDINATOR
    assert driver.joined(driver.join("c")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.synced(driver.sync("a", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("a") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.admit_commit("", -1, 0.0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_description_shows_parts_of_a_stable_group_only() -> None:
    """In between they belong to no generation."""
    driver = stable("a")
    whole = driver.group.describe()
    driver.join("b")
    between = driver.group.describe()

    assert ("consumer", "range", [b"sub-range"], [b"a"]) == (
        whole.protocol_type,
        whole.protocol,
        [one.subscription for one in whole.members],
        [one.assignment for one in whole.members],
    )
    assert (GroupState.PREPARING_REBALANCE, "", [b"", b""]) == (
        between.state,
        between.protocol,
        [one.subscription for one in between.members],
    )


def test_a_member_without_protocols_is_refused_while_nobody_else_is_there_to_differ_from() -> None:
    """The first rebalance waits for more members although the only one has left: with it, no protocol could be chosen."""
    group = CoordinatedGroup("g", initial_delay_s=3.0)
    group.join(replace(_request("a", (Protocol("range", b""),)), member_id=""), 0.0)
    group.leave("a", 1.0)

    (answer,) = group.join(replace(_request("b", ()), member_id=""), 2.0)
    group.expire(3.0)

    assert isinstance(answer, Joined)
    assert (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, GroupState.EMPTY) == (answer.result.error, group.state)


def test_a_stored_leader_that_is_no_member_is_replaced() -> None:
    """Nobody would send an assignment, and whoever waits for one does not expire."""
    member = GroupMember(
        member_id="a",
        client_id="c",
        client_host="/h",
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        subscription=b"",
        assignment=b"",
    )
    stored = GroupValue(protocol_type="consumer", generation=3, protocol="range", leader="gone", members=(member,))

    group = CoordinatedGroup.restore("g", stored, 0.0)
    effects = group.join(_request("a", (Protocol("other", b""), Protocol("range", b"new"))), 1.0)

    (answer,) = [effect.result for effect in effects if isinstance(effect, Joined)]
    assert ("a", 4) == (answer.leader, answer.generation)


def _request(member_id: str, protocols: tuple[Protocol, ...]) -> Join:
    return Join(
        ticket=Ticket(1),
        member_id=member_id,
        new_member_id=member_id,
        client_id="c",
        client_host="/h",
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        protocol_type="consumer",
        protocols=protocols,
    )
