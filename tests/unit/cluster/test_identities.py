# SPDX-License-Identifier: Apache-2.0
"""The record of identities: what it says of topics and clusters, and what is refused."""

from __future__ import annotations

import json
import uuid
from typing import Final

import pytest

from consumerd.cluster.identities import ClusterIdentities, parse_identities
from consumerd.errors import ConfigError
from consumerd.model import UNKNOWN_INCARNATION, Incarnation
from consumerd.wire.declaration import NO_UUID

ORDERS: Final = uuid.UUID(int=1)
OTHER: Final = uuid.UUID(int=2)
RECORD: Final = ClusterIdentities(
    cluster="25-1700000000000",
    cluster_id="kSqpHgfDQEKzdGSYfrhfAA",
    topics={("orders", Incarnation.of_topic_id(ORDERS)): Incarnation(77)},
)


def test_a_record_is_read_as_it_was_written() -> None:
    """With one topic per line."""
    assert RECORD == parse_identities(RECORD.encode(), "file")
    assert 3 == len(RECORD.encode().splitlines())


def test_a_topic_with_the_recorded_id_keeps_its_identity() -> None:
    """A topic of another name or id has its own."""
    assert Incarnation(77) == RECORD.identify_topic("orders", ORDERS)
    assert Incarnation.of_topic_id(OTHER) == RECORD.identify_topic("orders", OTHER)
    assert Incarnation.of_topic_id(ORDERS) == RECORD.identify_topic("clicks", ORDERS)
    assert UNKNOWN_INCARNATION == RECORD.identify_topic("orders", NO_UUID)


def test_the_cluster_keeps_its_identity_too() -> None:
    """Another cluster has its own id, and is not that of the record."""
    assert RECORD.cluster == RECORD.identify_cluster("kSqpHgfDQEKzdGSYfrhfAA")
    assert RECORD.find_fault(RECORD.cluster) is None
    assert "other" == RECORD.identify_cluster("other")
    assert (
        "it is a record of cluster kSqpHgfDQEKzdGSYfrhfAA, and the brokers are of cluster other"
        == RECORD.find_fault("other")
    )


def test_without_a_record_ids_are_identities() -> None:
    """An empty cluster id of old brokers included."""
    nothing = ClusterIdentities()
    assert Incarnation.of_topic_id(ORDERS) == nothing.identify_topic("orders", ORDERS)
    assert [None, "", "one"] == [nothing.identify_cluster(one) for one in (None, "", "one")]
    assert nothing.find_fault("one") is None


@pytest.mark.parametrize(
    ("known", "found", "is_recreated"),
    [
        (Incarnation(77), Incarnation(77), False),
        (Incarnation(77), Incarnation.of_topic_id(OTHER), True),
        (Incarnation.of_topic_id(ORDERS), Incarnation(77), False),
        (Incarnation.of_topic_id(OTHER), Incarnation(77), True),
        (Incarnation(78), Incarnation(77), True),
        (Incarnation(78), Incarnation.of_topic_id(OTHER), False),
        (Incarnation.of_topic_id(OTHER), Incarnation(78), False),
        (Incarnation.of_topic_id(OTHER), Incarnation.of_topic_id(ORDERS), True),
    ],
)
def test_a_record_tells_a_topic_from_the_former_one(known: Incarnation, found: Incarnation, is_recreated: bool) -> None:
    """Identities of two kinds are compared if the record has the one of ZooKeeper."""
    assert is_recreated == RECORD.is_recreated("orders", known, found)


def test_identities_of_two_kinds_are_not_compared_without_a_record() -> None:
    """As for a topic of another name."""
    of_brokers = Incarnation.of_topic_id(OTHER)
    assert not RECORD.is_recreated("clicks", Incarnation(77), of_brokers)
    assert not ClusterIdentities().is_recreated("orders", Incarnation(77), of_brokers)
    assert ClusterIdentities().is_recreated("orders", Incarnation(77), Incarnation(78))


TOPIC: Final = {"topic": "orders", "czxid": 77, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": "consumerd offsets"}, "expected a document as `consumerd identities` writes it"),
        ({"version": 2}, "version: expected 1"),
        ({"cluster": ""}, "expected cluster and cluster_id"),
        ({"cluster_id": 3}, "expected cluster and cluster_id"),
        ({"topics": {}}, "topics: expected a list"),
        ({"topics": [3]}, r"topics\[0\]: expected an object"),
        ({"topics": [{**TOPIC, "topic": 3}]}, r"topics\[0\]: expected topic and topic_id"),
        ({"topics": [TOPIC, {**TOPIC, "czxid": 0}]}, r"topics\[1\]: czxid: expected a number above 0"),
        ({"topics": [{**TOPIC, "czxid": True}]}, "czxid"),
        ({"topics": [{**TOPIC, "czxid": 2**63}]}, "czxid"),
        ({"topics": [{**TOPIC, "topic_id": "77"}]}, "topic_id: expected 22 characters"),
        ({"topics": [{**TOPIC, "topic_id": "unknown"}]}, "topic_id: expected 22 characters"),
        ({"topics": [{**TOPIC, "topic_id": "a b"}]}, "topic_id: incarnation 'a b'"),
    ],
)
def test_what_is_no_record_is_refused(changes: dict[str, object], told: str) -> None:
    """With the file's name, and the element."""
    text = json.dumps({**json.loads(RECORD.encode()), **changes})

    with pytest.raises(ConfigError, match=f"^file: .*{told}|^file: {told}"):
        parse_identities(text, "file")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    """A file that was cut off, and one that nests too deep."""
    with pytest.raises(ConfigError, match=r"^file: expected"):
        parse_identities(text, "file")
