# SPDX-License-Identifier: Apache-2.0
"""Merging and comparing two accounts of a cluster."""

from __future__ import annotations

from consumerd.cluster.view import (
    EMPTY_VIEW,
    Aspect,
    Broker,
    ClusterView,
    MetadataDisagreement,
    PartitionView,
    TopicView,
    compare_views,
    merge_views,
)
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from tests.support.cluster import make_view


def leader_of(view: ClusterView, topic: str = "t", number: int = 0) -> int | None:
    partition = view.find_partition(TopicPartition.modern(topic, number))
    return partition.leader if partition else None


def test_one_account_alone_is_the_view() -> None:
    """At start one source answers before the other; a missing one is no reason to know nothing."""
    view = make_view({1, 2}, {"t": [1, 2]})

    assert merge_views(view, None) is view
    assert merge_views(None, view) is view
    assert merge_views(None, None) is EMPTY_VIEW


def test_leader_is_zookeepers_while_it_can_be_read() -> None:
    """Brokers act upon ZooKeeper; one that is cut off from its controller tells old leaders for ever."""
    zookeeper, metadata = make_view({1, 2}, {"t": [1]}, epoch=7), make_view({1, 2}, {"t": [2]})

    assert leader_of(merge_views(zookeeper, metadata)) == 1
    assert leader_of(merge_views(zookeeper, metadata, stale_zookeeper=True)) == 2


def test_lost_leader_is_believed() -> None:
    """ZooKeeper saying that there is none is news; only where it has nothing written does Metadata fill in."""
    metadata = make_view({1}, {"t": [1]})
    without_leader, without_state = make_view({1}, {"t": [None]}, epoch=3), make_view({1}, {"t": [None]})

    assert leader_of(merge_views(without_leader, metadata)) is None
    assert leader_of(merge_views(without_state, metadata)) == 1


def test_broker_that_was_not_told_yet_does_not_hide_a_leader() -> None:
    """A broker answers Metadata before it has heard from its controller."""
    zookeeper, metadata = make_view({1}, {"t": [1]}, epoch=1), make_view({1}, {"t": [None]})

    assert leader_of(merge_views(zookeeper, metadata, stale_zookeeper=True)) == 1


def test_addresses_are_metadatas() -> None:
    """A broker tells the listener that we came by; ZooKeeper lists them all."""
    zookeeper = ClusterView(brokers={BrokerId(1): Broker(id=BrokerId(1), host="inside", port=1)})
    metadata = ClusterView(brokers={BrokerId(1): Broker(id=BrokerId(1), host="outside", port=2)})

    merged = merge_views(zookeeper, metadata)

    assert merged.brokers[BrokerId(1)].host == "outside"
    assert str(merged.brokers[BrokerId(1)]) == "1 at outside:2"


def test_brokers_of_either_account_are_kept() -> None:
    """One that has just registered is not in Metadata yet."""
    assert sorted(merge_views(make_view({1}, {}), make_view({2}, {})).brokers) == [1, 2]


def test_deleted_topic_does_not_linger() -> None:
    """Brokers tell of a topic for a while after it is gone; ZooKeeper is where topics are made and deleted."""
    zookeeper, metadata = make_view({1}, {"kept": [1]}), make_view({1}, {"kept": [1], "deleted": [1]})

    assert list(merge_views(zookeeper, metadata).topics) == ["kept"]
    assert list(merge_views(zookeeper, metadata, stale_zookeeper=True).topics) == ["deleted", "kept"]


def test_incarnation_and_new_partitions_survive_the_merge() -> None:
    """Incarnations are ZooKeeper's alone; a partition counts as soon as either tells of it."""
    zookeeper = make_view({1}, {"t": [1]}, incarnation=42)
    metadata = make_view({1}, {"t": [1, 1]})

    topic = merge_views(zookeeper, metadata).topics["t"]

    assert topic.incarnation == Incarnation(42)
    assert list(topic.partitions) == [PartitionKey(0), PartitionKey(1)]


def test_leader_without_address_is_no_leader() -> None:
    """There is nobody to ask; it counts as leaderless, so that the view is read again."""
    view = make_view({1}, {"t": [1, 9, None]})

    assert view.find_leader(TopicPartition.modern("t", 0)) == view.brokers[BrokerId(1)]
    assert view.find_leader(TopicPartition.modern("t", 1)) is None
    assert view.find_leader(TopicPartition.modern("t", 7)) is None
    assert view.find_leader(TopicPartition.modern("u", 0)) is None
    assert view.leaderless == (TopicPartition.modern("t", 1), TopicPartition.modern("t", 2))


def test_agreement_is_silent() -> None:
    """Replica order, epochs and incarnations are no disagreement."""
    zookeeper = make_view({1, 2}, {"t": [1, 2]}, epoch=5, incarnation=3)

    assert compare_views(zookeeper, make_view({1, 2}, {"t": [1, 2]})) == []


def test_a_leader_that_was_not_read_is_no_disagreement() -> None:
    """Nothing is known of it, which is something else than that there is none."""
    assert compare_views(make_view({1}, {"t": [None]}), make_view({1}, {"t": [1]})) == []


def test_differences_are_listed_in_order() -> None:
    """What an operator reads when they do not pass."""
    zookeeper = make_view({1, 2}, {"a": [1, 1], "b": [1], "c": [1, None]}, epoch=5)
    metadata = make_view({1}, {"a": [1], "c": [2, 1], "d": [1]})

    assert compare_views(zookeeper, metadata) == [
        MetadataDisagreement(Aspect.BROKERS, "", "1, 2", "1"),
        MetadataDisagreement(Aspect.PARTITIONS, "a", "0, 1", "0"),
        MetadataDisagreement(Aspect.TOPIC, "b", "the topic", "no such topic"),
        MetadataDisagreement(Aspect.LEADER, "c/0", "1", "2"),
        MetadataDisagreement(Aspect.LEADER, "c/1", "none", "1"),
        MetadataDisagreement(Aspect.TOPIC, "d", "no such topic", "the topic"),
    ]
    assert str(MetadataDisagreement(Aspect.LEADER, "c/0", "1", "2")) == "leader c/0: ZooKeeper has 1, Metadata has 2"


def test_broker_that_lists_no_brokers_is_not_taken_at_its_word() -> None:
    """0.8 does so until the first topic is made."""
    assert compare_views(make_view({1}, {}), EMPTY_VIEW) == []


def test_topic_that_a_broker_refuses_to_describe_is_a_disagreement() -> None:
    """Not authorized, for example: the code is what helps."""
    refused = ClusterView(topics={"t": TopicView(name="t", error=29)})

    assert compare_views(make_view({1}, {"t": [1]}), refused) == [
        MetadataDisagreement(Aspect.TOPIC, "t", "the topic", "error 29")
    ]
    assert merge_views(make_view({1}, {"t": [1]}), refused).topics["t"].error == 29


def test_partition_error_comes_with_metadatas_account() -> None:
    """Where it is Metadata's leader that counts, so does its error."""
    key = PartitionKey(0)
    metadata = ClusterView(topics={"t": TopicView(name="t", partitions={key: PartitionView(leader=None, error=5)})})

    assert merge_views(None, metadata).topics["t"].partitions[key].error == 5


def test_disagreement_about_many_partitions_names_a_few() -> None:
    """It becomes a line of the log, and an event."""
    (one,) = compare_views(make_view({1}, {"t": [1]}), make_view({1}, {"t": [1] * 10_000}))
    assert one.metadata.startswith("0, 1, 2")
    assert one.metadata.endswith("and 9980 more")
