# SPDX-License-Identifier: Apache-2.0
"""The reader of a group's positions: which of them belong to today's topics."""

from __future__ import annotations

import pytest

from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.positions import GroupPositions, Position
from consumerd.offsets.store import StoredOffset, Validity, judge
from consumerd.zk.layout import offset_path, offsets_path
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run

P, Q, R = (TopicPartition.modern("orders", number) for number in range(3))
TOPIC = Incarnation(100)


@pytest.mark.parametrize(
    ("stored", "incarnation", "expected"),
    [
        (None, TOPIC, Validity.ABSENT),
        (None, None, Validity.ABSENT),
        (StoredOffset(position=5, mzxid=101, version=0), TOPIC, Validity.VALID),
        (StoredOffset(position=5, mzxid=100, version=0), TOPIC, Validity.ANOTHER_INCARNATION),
        (StoredOffset(position=5, mzxid=99, version=0), TOPIC, Validity.ANOTHER_INCARNATION),
        (StoredOffset(position=5, mzxid=99, version=0), None, Validity.UNKNOWN_AGE),
        (StoredOffset(position=-1, mzxid=101, version=0, malformed="x"), TOPIC, Validity.MALFORMED),
        (StoredOffset(position=-1, mzxid=101, version=0, malformed="x"), None, Validity.MALFORMED),
        # nothing of a deleted topic stops a partition, whatever was written there
        (StoredOffset(position=-1, mzxid=99, version=0, malformed="x"), TOPIC, Validity.ANOTHER_INCARNATION),
    ],
)
def test_a_position_belongs_to_the_topic_that_was_created_before_it_was_written(
    stored: StoredOffset | None, incarnation: Incarnation | None, expected: Validity
) -> None:
    """One comparison for daemon, commands, doctor and Spark."""
    assert expected is judge(stored, incarnation)


def connect(server: FakeZooKeeper) -> FakeZkClient:
    client = server.client("reader")
    client.connect()
    return client


def test_positions_are_judged_by_the_topics_of_today() -> None:
    """A position outlives its topic, and its node does not say so."""

    async def scenario() -> None:
        server = FakeZooKeeper()
        gone, old = TopicPartition.modern("gone", 0), TopicPartition.modern("again", 0)
        server.put_topic("orders", 10)
        for partition, data in ((P, b"7"), (Q, b"junk"), (gone, b"5"), (old, b"1000")):
            server.put(offset_path("g", partition), data)
        server.put_topic("again", 50)
        server.put(f"{offsets_path('g', 'orders')}/.moving")  # the name is no partition's

        found = await GroupPositions(connect(server), "g").read()

        assert {
            P: (7, 7, Validity.VALID),
            Q: (None, None, Validity.MALFORMED),
            gone: (5, None, Validity.UNKNOWN_AGE),
            old: (1000, None, Validity.ANOTHER_INCARNATION),
        } == {one: (position.value, position.valid, position.validity) for one, position in found.items()}
        assert (Incarnation(10), 0) == (found[P].incarnation, found[P].version)
        assert "junk" in found[Q].explain()
        assert "position 1000 is of a deleted topic of the same name" in found[old].explain()

    run(scenario())


def test_partitions_that_are_asked_for_are_answered_without_a_node_too() -> None:
    """Lag is asked of every partition of a topic, committed or not."""

    async def scenario() -> None:
        server = FakeZooKeeper()
        server.put_topic("orders", 10)
        server.put(offset_path("g", P), b"7")

        found = await GroupPositions(connect(server), "g").find([P, R])

        assert Position(value=None, validity=Validity.ABSENT, incarnation=Incarnation(10)) == found[R]
        assert 7 == found[P].valid

    run(scenario())


def test_a_topic_created_again_between_the_two_reads_voids_its_positions() -> None:
    """The topic is read after its positions: judged by an older topic, an old position would look valid."""

    async def scenario() -> None:
        server = FakeZooKeeper()
        server.put_topic("orders", 10)
        server.put(offset_path("g", P), b"7")
        client = connect(server)
        find = client.find

        async def find_then_recreate(path: str):
            found = await find(path)
            if path == offset_path("g", P):
                server.put_topic("orders", 500)
            return found

        client.find = find_then_recreate

        assert Validity.ANOTHER_INCARNATION is (await GroupPositions(client, "g").find([P]))[P].validity

    run(scenario())


def test_a_first_generation_partition_is_a_partition() -> None:
    """``1-0`` is a broker's partition of the first generation."""

    async def scenario() -> None:
        server = FakeZooKeeper()
        key = TopicPartition("orders", PartitionKey.parse("1-0"))
        server.put_topic("orders", 10)
        server.put(offset_path("g", key), b"7")

        assert [key] == list(await GroupPositions(connect(server), "g").read(["orders", "other"]))

    run(scenario())
