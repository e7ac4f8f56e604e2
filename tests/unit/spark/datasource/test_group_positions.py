# SPDX-License-Identifier: Apache-2.0
"""Where a read begins whose start is a group with positions in ZooKeeper and in Kafka."""

from __future__ import annotations

import pytest

from consumerd.errors import ConfigError
from consumerd.model import Incarnation, TopicPartition
from consumerd.offsets.positions import NO_POSITION, KeptPositions, Place, Position
from consumerd.offsets.store import ZOOKEEPER_ONLY, Validity
from consumerd.spark.audit import explain_kafka
from consumerd.spark.datasource.lookup import choose_positions
from consumerd.spark.datasource.options import AtGroup, GroupPlace

P, Q, R = (TopicPartition.modern("orders", number) for number in range(3))
TOPIC = Incarnation(7)


def kept_in_zookeeper(value: int) -> Position:
    return Position(value=value, validity=Validity.VALID, incarnation=TOPIC)


def kept_in_kafka(value: int) -> Position:
    return Position(value=value, validity=Validity.UNKNOWN_AGE, place=Place.KAFKA, incarnation=TOPIC)


AHEAD = KeptPositions(
    zookeeper={P: kept_in_zookeeper(200), Q: kept_in_zookeeper(70), R: NO_POSITION},
    kafka={P: kept_in_kafka(300), Q: kept_in_kafka(60)},
)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (GroupPlace.ZOOKEEPER, {P: 200, Q: 70}),
        (GroupPlace.KAFKA, {P: 300, Q: 60}),
        (GroupPlace.LARGER, {P: 300, Q: 70}),
    ],
)
def test_the_option_says_which_place_counts(place: GroupPlace, expected: dict[TopicPartition, int]) -> None:
    """As consumerd reads, as Java with offsets in Kafka alone, and as Java that commits to both."""
    assert expected == choose_positions(AHEAD, AtGroup("lake", place))


def test_without_the_option_a_larger_position_in_kafka_is_refused() -> None:
    """The stale one in ZooKeeper was read without a word."""
    with pytest.raises(ConfigError) as refused:
        choose_positions(AHEAD, AtGroup("lake"))

    text = str(refused.value)
    assert "orders/0 (300 in Kafka, 200 in ZooKeeper)" in text
    assert "orders/1" not in text
    assert "groupPositionsIn" in text


def test_without_the_option_a_partition_may_be_in_one_place_only() -> None:
    """A group that only Kafka knows is read from there."""
    kept = KeptPositions(zookeeper={P: NO_POSITION, Q: kept_in_zookeeper(70)}, kafka={P: kept_in_kafka(300)})

    assert {P: 300, Q: 70} == choose_positions(kept, AtGroup("lake"))


@pytest.mark.parametrize("place", GroupPlace)
def test_unknown_positions_in_kafka_fail_a_read_that_asks_for_them(place: GroupPlace) -> None:
    """One that does not ask goes by ZooKeeper, as before."""
    kept = KeptPositions(zookeeper={P: kept_in_zookeeper(200)}, unknown="no coordinator")
    if place in {GroupPlace.KAFKA, GroupPlace.LARGER}:
        with pytest.raises(ConfigError, match="its positions in Kafka are unknown: no coordinator"):
            choose_positions(kept, AtGroup("lake", place))
    else:
        assert {P: 200} == choose_positions(kept, AtGroup("lake", place))


def test_an_audit_notes_both_places() -> None:
    """It compares what has landed with the position that counts for consumerd."""
    assert [] == explain_kafka(KeptPositions(zookeeper={P: kept_in_zookeeper(200)}), ZOOKEEPER_ONLY)

    both, ahead = explain_kafka(AHEAD, ZOOKEEPER_ONLY)

    assert "Here count those in ZooKeeper" in both
    assert "not compared with what has landed: orders/0 (300 in Kafka, 200 in ZooKeeper)" in ahead
    assert ["positions in Kafka are unknown: away"] == explain_kafka(KeptPositions(zookeeper={}, unknown="away"), Place)
    (both,) = explain_kafka(AHEAD, Place)
    assert "Here count the larger of both" in both
