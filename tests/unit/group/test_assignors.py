# SPDX-License-Identifier: Apache-2.0
"""Assignments, against owners that real Java groups computed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from consumerd.group.assignors import Member, Strategy, assign, find_objection, java_hash, java_order, threads_by_topic
from consumerd.group.subscription import plan_streams
from consumerd.model import ConsumerId, PartitionKey
from consumerd.zk.znodes import parse_registration

ZNODES = Path(__file__).parents[2] / "vectors" / "znodes"


def registries() -> list[tuple[str, Strategy, dict[str, dict[str, str]]]]:
    """Every group in every recorded registry: its strategy, and path to node."""
    found = []
    for path in sorted(ZNODES.glob("kafka-*.json")):
        recorded = json.loads(path.read_text())
        for name, nodes in {"znodes": recorded.get("znodes"), **recorded.get("dumps", {})}.items():
            groups: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
            for node, content in (nodes or {}).items():
                if node.startswith("/consumers/"):
                    groups[node.split("/")[2]][node] = content
            for group, content in groups.items():
                if any("/ids/" in node for node in content) and any("/owners/" in node for node in content):
                    strategy = Strategy.RANGE
                    if "roundrobin" in name:
                        older = recorded["old_consumer_client"].startswith("0.")
                        strategy = Strategy.ROUNDROBIN_0_8 if older else Strategy.ROUNDROBIN_1_0
                    found.append((f"{path.stem}: {name}: {group}", strategy, content))
    return found


@pytest.mark.parametrize(
    ("strategy", "nodes"), [pytest.param(strategy, nodes, id=name) for name, strategy, nodes in registries()]
)
def test_assignors_give_the_owners_that_real_java_groups_had(
    strategy: Strategy, nodes: dict[str, dict[str, str]]
) -> None:
    """The oracle is Java itself: whatever it owned by its registration, we compute."""
    owners = {
        tuple(path.split("/")[4:]): node["data"]
        for path, node in nodes.items()
        if path.count("/") == 5 and "/owners/" in path
    }
    counts: dict[str, int] = defaultdict(int)
    for topic, key in owners:
        counts[topic] = max(counts[topic], int(key) + 1)
    members = [
        Member(
            consumer=ConsumerId(path.rpartition("/")[2]),
            streams=plan_streams(parse_registration(node["data"].encode()), counts),
        )
        for path, node in nodes.items()
        if "/ids/" in path
    ]
    partitions = {topic: tuple(PartitionKey(n) for n in range(count)) for topic, count in counts.items()}
    assigned = assign(strategy, members, partitions)
    assert owners == {(p.topic, str(p.partition)): thread for p, thread in assigned.items()}


def make_members(**streams: dict[str, int]) -> list[Member]:
    return [Member(consumer=ConsumerId(f"g_{name}"), streams=topics) for name, topics in streams.items()]


def assign_numbers(strategy: Strategy, members: list[Member], **topics: int) -> dict[str, str]:
    partitions = {topic: tuple(PartitionKey(n) for n in range(count)) for topic, count in topics.items()}
    return {str(partition): thread for partition, thread in assign(strategy, members, partitions).items()}


def test_range_gives_contiguous_chunks_and_extras_to_the_first() -> None:
    """Two members with two streams on ten partitions own 3, 3, 2, 2."""
    assigned = assign_numbers(Strategy.RANGE, make_members(c0={"t": 2}, c1={"t": 2}), t=10)
    expected = ["g_c0-0"] * 3 + ["g_c0-1"] * 3 + ["g_c1-0"] * 2 + ["g_c1-1"] * 2
    assert [assigned[f"t/{n}"] for n in range(10)] == expected


def test_threads_are_sorted_as_strings() -> None:
    """Thread 10 comes before thread 2, as Java sorts."""
    threads = threads_by_topic(make_members(c={"t": 12}))["t"]
    assert threads[:4] == ("g_c-0", "g_c-1", "g_c-10", "g_c-11")


def test_threads_without_a_partition_own_nothing() -> None:
    """More streams than partitions is legal."""
    assert sorted(assign_numbers(Strategy.RANGE, make_members(c={"t": 5}), t=2).values()) == ["g_c-0", "g_c-1"]


def test_a_topic_that_is_not_there_has_no_owners() -> None:
    """It may come later."""
    assert assign_numbers(Strategy.RANGE, make_members(c={"t": 1, "gone": 1}), t=1) == {"t/0": "g_c-0"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("[orders,0]", -1093576615),
        ("orders-0", 1234322248),
        ("polygenelubricants", -2147483648),
        ("\U0001f600", 1772899),
    ],
)
def test_hash_codes_are_javas(text: str, expected: int) -> None:
    """Computed by Java itself; a character beyond 16 bits counts as its two halves, and the number has a sign."""
    assert java_hash(text) == expected


def test_strings_are_ordered_by_utf16_code_units() -> None:
    """Beyond 16 bits Java's order differs from that of code points."""
    assert java_order("\U0001f600") < java_order("\uffee")
    assert "\U0001f600" > "\uffee"


def test_roundrobin_skips_threads_that_do_not_subscribe() -> None:
    """Since KAFKA-2434: a thread that does not subscribe to the topic loses its turn."""
    members = make_members(a={"t": 1}, b={"u": 1})
    assigned = assign_numbers(Strategy.ROUNDROBIN_1_0, members, t=3, u=2)
    assert {partition.partition("/")[0]: thread for partition, thread in assigned.items()} == {
        "t": "g_a-0",
        "u": "g_b-0",
    }


def test_the_two_roundrobins_differ() -> None:
    """The name that is hashed changed its form in 1.0: members before and after cannot share a group."""
    members = make_members(a={"t": 2, "orders": 2}, b={"t": 2, "orders": 2})
    older = assign_numbers(Strategy.ROUNDROBIN_0_8, members, t=7, orders=12)
    newer = assign_numbers(Strategy.ROUNDROBIN_1_0, members, t=7, orders=12)
    assert older.keys() == newer.keys()
    assert older != newer


def test_members_up_to_0_10_1_object_to_unequal_subscriptions() -> None:
    """They refuse to rebalance at all."""
    assert find_objection(make_members(a={"t": 2, "u": 2}, b={"t": 1, "u": 1})) is None
    assert "'t' and 'u'" in (find_objection(make_members(a={"t": 1, "u": 1}, b={"t": 1})) or "")
    assert find_objection(make_members(a={"t": 1, "u": 2})) is not None
    assert find_objection([]) is None
