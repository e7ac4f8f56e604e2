# SPDX-License-Identifier: Apache-2.0
"""Assignments of any group, and expressions of any shape."""

from __future__ import annotations

import warnings
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.group.assignors import Assignment, Member, Strategy, assign, java_hash, java_order, threads_by_topic
from consumerd.group.java_regex import UnsupportedPattern, compile_java
from consumerd.model import ConsumerId, PartitionKey, Partitions, TopicPartition

TOPICS = ["t", "u", "orders", "Aa", "BB"]

streams = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)
members = st.dictionaries(
    st.text("abz-019_", min_size=1, max_size=4).map(lambda name: ConsumerId(f"g_{name}")), streams, max_size=6
).map(lambda group: [Member(consumer=consumer, streams=topics) for consumer, topics in group.items()])
partitions = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 25)).map(
    lambda counts: {topic: tuple(PartitionKey(n) for n in range(count)) for topic, count in counts.items()}
)
strategies = st.sampled_from(Strategy)


def check_complete(assignment: Assignment, group: list[Member], topics: Partitions) -> None:
    """Every partition of a topic that somebody subscribes to has one owner, who does subscribe to it."""
    threads = threads_by_topic(group)
    expected = {TopicPartition(topic, key) for topic in threads for key in topics.get(topic, ())}
    assert expected == set(assignment)
    assert all(thread in threads[partition.topic] for partition, thread in assignment.items())


@given(strategies, members, partitions)
def test_every_partition_has_one_owner_who_subscribes(
    strategy: Strategy, group: list[Member], topics: Partitions
) -> None:
    """One that nobody owns would never be consumed."""
    check_complete(assign(strategy, group, topics), group, topics)


@given(strategies, members, partitions, st.randoms())
def test_the_order_in_which_members_are_listed_does_not_matter(
    strategy: Strategy, group: list[Member], topics: Partitions, chance: object
) -> None:
    """Each member reads them in whatever order ZooKeeper lists them."""
    shuffled = list(group)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # a Random
    assert assign(strategy, group, topics) == assign(strategy, shuffled, topics)


@given(members, partitions)
def test_range_gives_contiguous_chunks_with_extras_first(group: list[Member], topics: Partitions) -> None:
    """As the documents say: chunks differ by one at most, and the longer ones come first."""
    assignment = assign(Strategy.RANGE, group, topics)
    for topic, threads in threads_by_topic(group).items():
        owners = [assignment[TopicPartition(topic, key)] for key in topics.get(topic, ())]
        assert owners == sorted(owners, key=java_order)
        counts = [Counter(owners)[thread] for thread in threads]
        assert counts == sorted(counts, reverse=True)
        assert not counts or max(counts) - min(counts) <= 1


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    partitions,
    st.sampled_from([Strategy.ROUNDROBIN_0_8, Strategy.ROUNDROBIN_1_0]),
)
def test_roundrobin_is_even_where_all_subscribe_alike(
    count: int, each: int, topics: Partitions, strategy: Strategy
) -> None:
    """Over all topics together, not topic by topic."""
    group = [Member(consumer=ConsumerId(f"g_{n}"), streams=dict.fromkeys(TOPICS, each)) for n in range(count)]
    counts = Counter(assign(strategy, group, topics).values())
    every = [counts[thread] for thread in threads_by_topic(group)["t"]]
    assert max(every) - min(every) <= 1


@given(st.text())
def test_hash_codes_are_sums_of_code_units(text: str) -> None:
    """s[0]*31^(n-1) + ... + s[n-1], as the documentation of String.hashCode has it."""
    units = [
        int.from_bytes(text.encode("utf-16-be", "surrogatepass")[at : at + 2])
        for at in range(0, 2 * len(text.encode("utf-16-be", "surrogatepass")) // 2, 2)
    ]
    total = sum(unit * 31 ** (len(units) - 1 - place) for place, unit in enumerate(units))
    assert java_hash(text) == (total + 2**31) % 2**32 - 2**31


@settings(max_examples=300)
@given(st.text(r"ab.*+?()[]{}|^$\1dpQE&-<>=!:i,", max_size=12))
def test_any_text_compiles_or_is_refused_and_never_warns(text: str) -> None:
    """What another member registered is not ours to trust."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compiled = compile_java(text)
        except UnsupportedPattern:
            return
    compiled.match_names(["", "a", "a.b", "__consumer_offsets"])


@given(st.text(st.characters(max_codepoint=127), min_size=1, max_size=20))
def test_quoted_text_matches_itself_only(text: str) -> None:
    r"""\Q..\E is how a topic's name becomes an expression."""
    if "\\E" in text:
        return
    compiled = compile_java(f"\\Q{text}\\E")
    assert compiled.match_names((text,))
    assert not compiled.match_names((text + "x",))
