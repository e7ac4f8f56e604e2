# SPDX-License-Identifier: Apache-2.0
"""Assignments of a leader, against those that Java's published algorithms give, worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.group.classic.assignment import GroupAssignor, assign
from consumerd.model import TopicPartition

RANGE, ROUNDROBIN = GroupAssignor.RANGE, GroupAssignor.ROUNDROBIN


def assign_names(assignor: GroupAssignor, subscriptions: dict[str, str], **counts: int) -> dict[str, str]:
    """Return the partitions of each member as one text, such as ``t/0 t/1``."""
    assigned = assign(assignor, {member: topics.split() for member, topics in subscriptions.items()}, counts)
    return {member: " ".join(str(one) for one in sorted(partitions)) for member, partitions in assigned.items()}


def test_assignors_have_the_names_that_members_exchange() -> None:
    """Java's names: ``RangeAssignor.name()`` and ``RoundRobinAssignor.name()``."""
    assert [one.value for one in GroupAssignor] == ["range", "roundrobin"]


@pytest.mark.parametrize(
    ("subscriptions", "counts", "expected"),
    [
        # 10 / 3 = 3, rest 1: the first member has one more
        ({"a": "t", "b": "t", "c": "t"}, {"t": 10}, {"a": range(4), "b": range(4, 7), "c": range(7, 10)}),
        # 11 / 3 = 3, rest 2: the first two have one more
        ({"a": "t", "b": "t", "c": "t"}, {"t": 11}, {"a": range(4), "b": range(4, 8), "c": range(8, 11)}),
        # 2 / 3 = 0, rest 2: the last one has none
        ({"a": "t", "b": "t", "c": "t"}, {"t": 2}, {"a": range(1), "b": range(1, 2), "c": range(0)}),
    ],
)
def test_range_gives_contiguous_chunks_and_extras_to_the_first(
    subscriptions: dict[str, str], counts: dict[str, int], expected: dict[str, range]
) -> None:
    """RangeAssignor.java: ``start = share * i + min(i, extra)``, ``length = share + (i + 1 > extra ? 0 : 1)``."""
    names = {member: " ".join(f"t/{number}" for number in numbers) for member, numbers in expected.items()}
    assert assign_names(RANGE, subscriptions, **counts) == names


def test_range_begins_anew_with_each_topic() -> None:
    """So the first member has the extras of all topics: RangeAssignor.java's own example."""
    assigned = assign_names(RANGE, {"C0": "t0 t1", "C1": "t0 t1"}, t0=3, t1=3)
    assert assigned == {"C0": "t0/0 t0/1 t1/0 t1/1", "C1": "t0/2 t1/2"}


def test_range_divides_a_topic_among_its_subscribers_only() -> None:
    """T: a and b, 3 / 2 = 1, rest 1. U: b and c, 1 each. V: c alone."""
    assigned = assign_names(RANGE, {"c": "u v", "a": "t", "b": "t u"}, t=3, u=2, v=2)
    assert assigned == {"a": "t/0 t/1", "b": "t/2 u/0", "c": "u/1 v/0 v/1"}


def test_roundrobin_deals_out_all_topics_as_one() -> None:
    """RoundRobinAssignor.java's first example."""
    assigned = assign_names(ROUNDROBIN, {"C0": "t0 t1", "C1": "t0 t1"}, t0=3, t1=3)
    assert assigned == {"C0": "t0/0 t0/2 t1/1", "C1": "t0/1 t1/0 t1/2"}


def test_roundrobin_passes_over_members_that_do_not_subscribe() -> None:
    """RoundRobinAssignor.java's second example: C1 is not asked twice for t1, and t2 is C2's alone."""
    assigned = assign_names(ROUNDROBIN, {"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}, t0=1, t1=2, t2=3)
    assert assigned == {"C0": "t0/0", "C1": "t1/0", "C2": "t1/1 t2/0 t2/1 t2/2"}


def test_roundrobin_goes_on_behind_the_member_that_it_gave_to_last() -> None:
    """T/0 a, T/1 b, U/0 c (its turn), U/1 c (a and b are passed over), V/0 a."""
    assigned = assign_names(ROUNDROBIN, {"a": "t v", "b": "t v", "c": "u"}, t=2, u=2, v=1)
    assert assigned == {"a": "t/0 v/0", "b": "t/1", "c": "u/0 u/1"}


@pytest.mark.parametrize("assignor", GroupAssignor)
def test_members_are_sorted_as_java_sorts_strings(assignor: GroupAssignor) -> None:
    """By UTF-16 units: ``-10`` before ``-2``, upper case first, and a character beyond U+FFFF before U+FF5E."""
    for first, second in (("m-10", "m-2"), ("Z", "a"), ("m\U0001f600", "m\uff5e"), ("m", "m0")):
        assert assign_names(assignor, {second: "t", first: "t"}, t=1) == {first: "t/0", second: ""}


def test_topics_are_sorted_as_strings() -> None:
    """``t10`` comes before ``t2``: it is a's turn first."""
    assert assign_names(ROUNDROBIN, {"b": "t2 t10", "a": "t2 t10"}, t2=1, t10=1) == {"a": "t10/0", "b": "t2/0"}


@pytest.mark.parametrize("assignor", GroupAssignor)
@pytest.mark.parametrize("counts", [{}, {"t": 0}, {"u": 3}])
def test_topics_that_do_not_exist_or_have_no_subscriber_are_passed_over(
    assignor: GroupAssignor, counts: dict[str, int]
) -> None:
    """Members of a group may name topics that are still to be created."""
    assert assign_names(assignor, {"a": "t", "b": ""}, **counts) == {"a": "", "b": ""}


@given(
    st.sampled_from(GroupAssignor),
    st.dictionaries(st.text("ab01-\U0001f600\uff5e", min_size=1, max_size=4), st.frozensets(st.sampled_from("tuvw"))),
    st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 9)),
)
def test_every_partition_has_one_owner_who_subscribes(
    assignor: GroupAssignor, subscriptions: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    """One that no member owns would never be consumed."""
    assigned = assign(assignor, subscriptions, counts)
    owners = Counter(partition for partitions in assigned.values() for partition in partitions)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert assigned.keys() == subscriptions.keys()
    assert owners == {TopicPartition.modern(t, n): 1 for t in wanted & counts.keys() for n in range(counts[t])}
    assert all(one.topic in subscriptions[member] for member, partitions in assigned.items() for one in partitions)
