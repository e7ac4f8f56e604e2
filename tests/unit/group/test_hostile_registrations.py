# SPDX-License-Identifier: Apache-2.0
"""Registrations that are made to cost: none takes the member more than a bounded share of work or memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from random import Random

import pytest

from consumerd.group.assignors import Strategy
from consumerd.group.java_regex import JavaPattern, UnsupportedPattern
from consumerd.group.plan import GroupSnapshot, GroupTopic, MemberView, Stamp, plan_assignment, resolve_members
from consumerd.group.subscription import plan_streams
from consumerd.model import ConsumerId, PartitionKey
from consumerd.zk.znodes import MalformedZnode, MemberRegistration, Pattern, parse_registration

OURS = MemberRegistration(pattern=Pattern.STATIC, subscription={"orders": 1}, timestamp_ms=1)


def snapshot(other: MemberRegistration) -> GroupSnapshot:
    members = {"evil": other, "me": OURS}
    return GroupSnapshot(
        stamp=Stamp(ids=(1, 1), names=None, topics={}),
        members=tuple(
            MemberView(consumer=ConsumerId(name), session_id=1, registration=registration)
            for name, registration in members.items()
        ),
        topics={"orders": GroupTopic(czxid=1, stamp=(1, 0), partitions=(PartitionKey(0), PartitionKey(1)))},
        names=frozenset({"orders", "a" * 240}),
    )


@pytest.mark.parametrize("streams", ["1000000000", '"1000000000"', "100001", "9" * 5000])
def test_more_streams_than_any_member_has_make_a_registration_unreadable(streams: str) -> None:
    """Each becomes a name in the plan: a billion of them take all memory, of a Java member as well."""
    with pytest.raises(MalformedZnode):
        parse_registration(b'{"version":1,"subscription":{"orders":%s},"pattern":"static"}' % streams.encode())


def test_streams_of_topics_that_are_not_planned_cost_nothing() -> None:
    """A node of one MB can name 20,000 topics with five streams each."""
    evil = parse_registration(
        b'{"version":1,"pattern":"static","subscription":{"orders":1,%s}}'
        % b",".join(b'"t%d":4' % number for number in range(20_000))
    )
    planned = snapshot(evil)
    tracemalloc.start()
    try:
        plan_assignment(planned, Strategy.RANGE)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|aa)+b", "(.*a){20}b"])
def test_an_expression_that_backtracking_never_finishes_is_decided_or_refused(expression: str) -> None:
    """The plan is made on the event loop that keeps the session: hours there would cost everything that is owned."""
    evil = MemberRegistration(pattern=Pattern.WHITE_LIST, subscription={expression: 1}, timestamp_ms=1)
    resolved = resolve_members(snapshot(evil).members, snapshot(evil).names)
    (mine,) = [one for one in resolved.members if one.streams]
    assert mine.consumer == "me"


def test_an_expression_that_is_refused_for_its_work_costs_that_work_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each view asks for every member's topics several times."""
    expression = "(?!" + "|".join(f"(.*a.{{{number}}}b)" for number in range(40)) + ").*"
    random = Random(1)
    names = frozenset("".join(random.choices("ab", k=240)) for _ in range(1_000))
    evil = MemberRegistration(pattern=Pattern.WHITE_LIST, subscription={expression: 1}, timestamp_ms=1)
    asked: list[str] = []
    match_names = JavaPattern.match_names

    def counting(self: JavaPattern, some: Iterable[str]) -> frozenset[str]:
        asked.append(expression)
        return match_names(self, some)

    monkeypatch.setattr(JavaPattern, "match_names", counting)
    for _ in range(3):
        with pytest.raises(UnsupportedPattern, match="too much work"):
            plan_streams(evil, names)
    assert len(asked) == 1
