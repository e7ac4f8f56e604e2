# SPDX-License-Identifier: Apache-2.0
"""The reader of a group's positions: which of them belong to today's topics."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.positions import OffsetNodeToken, Position, StoredEntry, node_version
from consumerd.offsets.store import LogTruncation, StoredOffset, Validity, judge
from consumerd.zk.layout import offset_path, offsets_path
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run

P, Q, R = (TopicPartition.modern("orders", number) for number in range(3))
TOPIC = Incarnation(100)


def offset(position: int, *, mzxid: int, malformed: str | None = None) -> StoredOffset:
    return StoredOffset(position=position, token=OffsetNodeToken(mzxid=mzxid, version=0), malformed=malformed)


@dataclass(frozen=True)
class TokenWithoutAge:
    """A store's token that knows no transaction numbers, as Kafka's."""

    mark: int

    def is_newer_than(self, incarnation: Incarnation) -> bool | None:
        return None


@pytest.mark.parametrize(
    ("stored", "incarnation", "expected"),
    [
        (None, TOPIC, Validity.ABSENT),
        (None, None, Validity.ABSENT),
        (offset(5, mzxid=101), TOPIC, Validity.VALID),
        (offset(5, mzxid=100), TOPIC, Validity.ANOTHER_INCARNATION),
        (offset(5, mzxid=99), TOPIC, Validity.ANOTHER_INCARNATION),
        (offset(5, mzxid=99), None, Validity.UNKNOWN_AGE),
        (offset(-1, mzxid=101, malformed="x"), TOPIC, Validity.MALFORMED),
        (offset(-1, mzxid=101, malformed="x"), None, Validity.MALFORMED),
        # nothing of a deleted topic stops a partition, whatever was written there
        (offset(-1, mzxid=99, malformed="x"), TOPIC, Validity.ANOTHER_INCARNATION),
    ],
)
def test_a_position_belongs_to_the_topic_that_was_created_before_it_was_written(
    stored: StoredOffset | None, incarnation: Incarnation | None, expected: Validity
) -> None:
    """One comparison for daemon, commands, doctor and Spark."""
    assert expected is judge(stored, incarnation)


def test_a_store_without_transaction_numbers_gives_positions_of_unknown_age() -> None:
    """A position kept in Kafka is read like any other, and the truncation that voids it is recognised by its mark."""
    position = StoredOffset(position=5, token=TokenWithoutAge(mark=17))
    assert Validity.UNKNOWN_AGE is judge(position, TOPIC)
    assert "" != Position(value=5, validity=Validity.UNKNOWN_AGE, token=position.token, incarnation=TOPIC).explain()
    assert LogTruncation(number=1, position=3, voids=17).makes_void(position)
    assert not LogTruncation(number=1, position=3, voids=18).makes_void(position)


def test_entries_are_told_with_where_they_are_also_under_names_of_no_partition() -> None:
    """The doctor names every node that should not be there; a name that begins with a dot is our own, for a moment."""

    async def scenario() -> None:
        server = FakeZooKeeper()
        server.put_topic("orders", 10)
        server.put(offset_path("g", P), b"7")
        server.put(f"{offsets_path('g', 'orders')}/x", b"5")
        server.put(f"{offsets_path('g', 'orders')}/.moving")

        kept = GroupPositions(connect(server), "g")
        found = {entry.path: entry for entry in await kept.list_entries()}

        assert {offset_path("g", P), f"{offsets_path('g', 'orders')}/x"} == found.keys()
        entry = found[offset_path("g", P)]
        position = (await kept.find([P]))[P]
        assert StoredEntry(path=entry.path, topic="orders", partition=P, session_id=0, position=position) == entry
        assert found[f"{offsets_path('g', 'orders')}/x"].partition is None
        assert ["orders"] == list(await kept.list_topics())

    run(scenario())


def test_a_group_without_a_node_is_absent() -> None:
    """A misspelt name must not look like a group that never committed."""

    async def scenario() -> None:
        server = FakeZooKeeper()
        server.put("/consumers/g")
        client = connect(server)
        assert await GroupPositions(client, "g").explain_absence() is None
        assert "there is no group 'gg' in ZooKeeper" == await GroupPositions(client, "gg").explain_absence()

    run(scenario())


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
        assert (Incarnation(10), 0) == (found[P].incarnation, node_version(found[P]))
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
