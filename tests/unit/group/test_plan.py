# SPDX-License-Identifier: Apache-2.0
"""From a snapshot to what this member should own, and to what people should know."""

from __future__ import annotations

import pytest

from consumerd.errors import ConfigError
from consumerd.group.assignors import Strategy
from consumerd.group.explain import lint_patience, plan_explanation
from consumerd.group.plan import (
    DisagreementKind,
    Grant,
    GroupSnapshot,
    GroupTopic,
    Holder,
    MemberView,
    Stamp,
    plan_assignment,
    plan_disagreements,
    plan_grants,
    plan_owner_disagreements,
    plan_topics_to_read,
)
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, Incarnation, PartitionKey, ThreadId, TopicPartition
from consumerd.zk.znodes import MemberRegistration, Pattern

NO_STAMP = Stamp(ids=(0, 0), names=None, topics={})


def member(name: str, subscription: Subscription | None, problem: str | None = None) -> MemberView:
    registration = None if subscription is None else subscription.register(0)
    return MemberView(consumer=ConsumerId(f"g_{name}"), session_id=1, registration=registration, problem=problem)


def listed(name: str, pattern: Pattern, expression: str) -> MemberView:
    registration = MemberRegistration(pattern=pattern, subscription={expression: 1}, timestamp_ms=None)
    return MemberView(consumer=ConsumerId(f"g_{name}"), session_id=1, registration=registration)


def make_snapshot(*members: MemberView, **topics: int) -> GroupSnapshot:
    views = {
        topic: GroupTopic(
            czxid=100 + count, stamp=(100 + count, 0), partitions=tuple(PartitionKey(n) for n in range(count))
        )
        for topic, count in topics.items()
    }
    return GroupSnapshot(stamp=NO_STAMP, members=members, topics=views, names=frozenset(topics))


STATIC = Subscription.to_topics({"t": 1})


def test_grants_are_ours_with_the_incarnation_of_their_topic() -> None:
    """A member whose id begins like ours is another member."""
    snapshot = make_snapshot(member("a", STATIC), member("a-1", STATIC), t=2)
    grants = plan_grants(snapshot, plan_assignment(snapshot, Strategy.RANGE), ConsumerId("g_a"))
    assert grants == {TopicPartition.modern("t", 0): Grant(ThreadId("g_a-0"), Incarnation(102))}


def test_a_member_that_cannot_be_read_takes_no_part_and_is_reported() -> None:
    """Every Java member's rebalance fails because of it, so somebody has to be told."""
    snapshot = make_snapshot(member("a", STATIC), member("b", None, "no JSON"), t=2)
    assert set(plan_assignment(snapshot, Strategy.RANGE).values()) == {"g_a-0"}
    (found,) = plan_disagreements(snapshot, Strategy.RANGE)
    assert (found.kind, found.member) == (DisagreementKind.UNREADABLE, "g_b")
    assert "no JSON" in found.detail


def test_expressions_that_cannot_be_evaluated_or_differ_are_reported() -> None:
    """Members would compute different topics."""
    snapshot = make_snapshot(
        listed("a", Pattern.WHITE_LIST, r"\p{Alpha}+"), listed("b", Pattern.WHITE_LIST, r"te-\\d+"), t=2
    )
    found = plan_disagreements(snapshot, Strategy.RANGE)
    assert [(one.kind, one.member) for one in found] == [
        (DisagreementKind.PATTERN, "g_a"),
        (DisagreementKind.PATTERN, "g_b"),
        (DisagreementKind.SUBSCRIPTION, None),
    ]
    assert "escape backslashes twice" in found[1].detail


def test_unequal_streams_are_reported_for_the_older_roundrobin_only() -> None:
    """Members up to 0.10.1 refuse them; later ones do not."""
    snapshot = make_snapshot(member("a", Subscription.to_topics({"t": 1, "u": 2})), t=2, u=2)
    assert [one.kind for one in plan_disagreements(snapshot, Strategy.ROUNDROBIN_0_8)] == [
        DisagreementKind.SUBSCRIPTION
    ]
    assert plan_disagreements(snapshot, Strategy.ROUNDROBIN_1_0) == ()
    assert plan_disagreements(snapshot, Strategy.RANGE) == ()


def test_owners_of_another_strategy_are_told_with_its_name() -> None:
    """The commonest mistake: one member with another assignor."""
    both = Subscription.to_topics({"orders": 2, "t": 2})
    snapshot = make_snapshot(member("a", both), member("b", both), orders=12, t=7)
    dealt = plan_assignment(snapshot, Strategy.ROUNDROBIN_1_0)
    owners = {partition: Holder(thread, 1) for partition, thread in dealt.items()}
    assert plan_owner_disagreements(snapshot, Strategy.ROUNDROBIN_1_0, owners, ConsumerId("g_a")) == ()
    (found,) = plan_owner_disagreements(snapshot, Strategy.RANGE, owners, ConsumerId("g_a"))
    assert found.kind is DisagreementKind.STRATEGY
    assert "roundrobin-1.0 explains every owner" in found.detail


def test_every_strategy_that_explains_the_owners_is_named() -> None:
    """The two round robins deal many groups alike: naming one alone would send a person the wrong way."""
    snapshot = make_snapshot(member("a", STATIC), member("b", STATIC), t=4)
    dealt = plan_assignment(snapshot, Strategy.ROUNDROBIN_1_0)
    assert dealt == plan_assignment(snapshot, Strategy.ROUNDROBIN_0_8)
    owners = {partition: Holder(thread, 1) for partition, thread in dealt.items()}
    (found,) = plan_owner_disagreements(snapshot, Strategy.RANGE, owners, ConsumerId("g_a"))
    assert "roundrobin-0.8 or roundrobin-1.0 explains every owner" in found.detail


def test_partitions_that_another_member_does_not_claim_are_reported() -> None:
    """A Java member that gave up stays registered and owns nothing, and says so in its own log alone."""
    snapshot = make_snapshot(member("a", STATIC), member("b", STATIC), t=4)
    ours = {
        partition: Holder(thread, 1)
        for partition, thread in plan_assignment(snapshot, Strategy.RANGE).items()
        if thread == "g_a-0"
    }
    (found,) = plan_owner_disagreements(snapshot, Strategy.RANGE, ours, ConsumerId("g_a"))
    assert (found.kind, found.member) == (DisagreementKind.UNOWNED, "g_b")
    assert str(found).startswith("unowned: g_b: partitions that it has not claimed: 2;")
    assert "t/2, t/3" in found.detail
    # what we do not own ourselves is a conflict, and reported as such
    assert plan_owner_disagreements(snapshot, Strategy.RANGE, ours, ConsumerId("g_b")) == ()


def test_only_the_topics_that_matter_are_read() -> None:
    """Range looks at our topics; round robin at everybody's."""
    members = [member("a", STATIC), member("b", Subscription.to_topics({"u": 1}))]
    assert plan_topics_to_read(members, (), ConsumerId("g_a")) == {"t"}
    assert plan_topics_to_read(members, (), None) == {"t", "u"}


def test_an_explanation_says_what_moves_between_members() -> None:
    """A partition that only changes threads within its member does not move."""
    snapshot = make_snapshot(member("a", Subscription.to_topics({"t": 2})), t=4)
    explanation = plan_explanation(snapshot, Strategy.RANGE, joining=[ConsumerId("g_b")], subscription=STATIC)
    assert [(str(move.partition), move.before, move.after) for move in explanation.moves] == [("t/3", "g_a-1", "g_b-0")]
    back = plan_explanation(snapshot, Strategy.RANGE, leaving=[ConsumerId("g_a")])
    assert {move.after for move in back.moves} == {None}
    assert len(back.now) == 4
    assert back.then == {}
    with pytest.raises(ValueError, match="subscription"):
        plan_explanation(snapshot, Strategy.RANGE, joining=[ConsumerId("g_b")])


def test_patience_is_linted_against_sessions_and_drains() -> None:
    """Retries times backoff that do not outlast a session leave partitions unowned until the next change."""
    settings = RebalanceSettings()
    assert lint_patience(retries=4, backoff_ms=2000, session_timeout_ms=6000, settings=settings) == ()
    (crash,) = lint_patience(retries=4, backoff_ms=2000, session_timeout_ms=30000, settings=settings)
    assert "30000" in crash
    slow = RebalanceSettings(drain_timeout_ms=7000)
    (handover,) = lint_patience(retries=4, backoff_ms=2000, session_timeout_ms=6000, settings=slow)
    assert "drain_timeout_ms" in handover


def test_unusable_topics_are_refused_before_anything_is_planned() -> None:
    """The plan may trust what is subscribed to."""
    with pytest.raises(ConfigError):
        Subscription.to_topics({"a b": 1})
