# SPDX-License-Identifier: Apache-2.0
"""Assignments, against owners that real Java groups computed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from consumerd.group.assignors import Member, Strategy, assign, find_objection, java_hash, java_order, threads_by_topic
from consumerd.group.subscription import plan_streams
from consumerd.model import BrokerId, ConsumerId, PartitionKey, Partitions
from consumerd.zk import znodes_legacy
from consumerd.zk.znodes import parse_registration
from tests.support.znode_recordings import LEGACY, load_legacy

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


def legacy_partitions(**brokers: dict[int, int]) -> Partitions:
    """Topics with their numbers of partitions by broker, as 0.7 registers them."""
    return {
        topic: tuple(
            PartitionKey(number, BrokerId(broker)) for broker, count in counts.items() for number in range(count)
        )
        for topic, counts in brokers.items()
    }


def shares(members: list[Member], partitions: Partitions) -> dict[str, list[str]]:
    """Return the partitions of each thread, in the order of their assignment."""
    found: dict[str, list[str]] = defaultdict(list)
    for partition, thread in assign(Strategy.RANGE, members, partitions).items():
        found[thread].append(str(partition.partition))
    return dict(found)


@pytest.mark.parametrize("name", [name for name in LEGACY if any("/ids/" in path for path in load_legacy(name))])
def test_range_gives_the_owners_that_real_groups_of_0_7_had(name: str) -> None:
    """Those of Kafka 0.7.2 and Jafka 3.0.6, with static topics and with a white list."""
    nodes = {path: node.data.decode() for path, node in load_legacy(name).items() if node.ephemeral}
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    members = []
    for path, data in nodes.items():
        match path.split("/")[1:]:
            case ["brokers", "topics", topic, broker]:
                counts[topic][int(broker)] = int(data)
            case ["consumers", _, "ids", consumer]:
                registration = znodes_legacy.parse_registration(data.encode())
                members.append((ConsumerId(consumer), registration))
    partitions = legacy_partitions(**counts)
    joined = [Member(consumer=consumer, streams=plan_streams(one, counts)) for consumer, one in members]

    assigned = assign(Strategy.RANGE, joined, partitions)

    owners = {tuple(path.split("/")[4:]): data for path, data in nodes.items() if "/owners/" in path}
    assert owners == {(p.topic, str(p.partition)): thread for p, thread in assigned.items()}


def test_three_consumers_share_two_brokers_of_three_partitions_as_the_document_says() -> None:
    """Partitions are sorted by broker and number, so that a consumer has few brokers to read from."""
    members = make_members(a={"t": 1}, b={"t": 1}, c={"t": 1})
    assert shares(members, legacy_partitions(t={0: 3, 1: 3})) == {
        "g_a-0": ["0-0", "0-1"],
        "g_b-0": ["0-2", "1-0"],
        "g_c-0": ["1-1", "1-2"],
    }


@pytest.mark.parametrize(
    ("brokers", "expected"), [({0: 8, 1: 8}, [4, 4, 4, 4]), ({0: 8, 1: 9}, [5, 4, 4, 4]), ({0: 9, 1: 9}, [5, 5, 4, 4])]
)
def test_extra_partitions_go_to_the_earlier_consumers(brokers: dict[int, int], expected: list[int]) -> None:
    """5-5-4-4, never 4-4-4-5 or 4-5-4-4."""
    members = make_members(d={"t": 1}, c={"t": 1}, b={"t": 1}, a={"t": 1})
    found = shares(members, legacy_partitions(t=brokers))
    assert expected == [len(found[f"g_{name}-0"]) for name in "abcd"]


def test_partitions_of_0_7_are_sorted_as_text() -> None:
    """Of twelve partitions, 0-10 and 0-11 come before 0-2; broker 10 comes before broker 2."""
    members = make_members(a={"t": 1, "u": 1}, b={"t": 1})
    found = shares(members, legacy_partitions(t={0: 12}))
    assert found == {
        "g_a-0": ["0-0", "0-1", "0-10", "0-11", "0-2", "0-3"],
        "g_b-0": ["0-4", "0-5", "0-6", "0-7", "0-8", "0-9"],
    }
    assert ["10-0", "2-0"] == shares(members, legacy_partitions(u={2: 1, 10: 1}))["g_a-0"]


def test_twelve_threads_get_twelve_partitions_of_0_7_by_text() -> None:
    """Both are sorted as text, so each thread has the partition of its number."""
    found = shares(make_members(a={"t": 12}), legacy_partitions(t={0: 12}))
    assert {f"g_a-{number}": [f"0-{number}"] for number in range(12)} == found
