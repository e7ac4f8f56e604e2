# SPDX-License-Identifier: Apache-2.0
"""Plan of a mirror's topics in the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from consumerd.client.new_topic import NewTopic
from consumerd.cluster.topic_description import TopicDescription
from consumerd.errors import ConfigError
from consumerd.mirror.target_topics import (
    TargetCluster,
    TargetTopic,
    TargetTopicPlan,
    TopicPolicy,
    TopicWish,
    check_template,
    map_topic,
    plan_topics,
)
from consumerd.model import PartitionKey


def describe(name: str, *partitions: str, replicas: int | None = 1, **settings: str) -> TopicDescription:
    keys = tuple(map(PartitionKey.parse, partitions or ("0", "1", "2")))
    own = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicDescription(name=name, partitions=keys, replication_factor=replicas, settings=own)


def wish(source: TopicDescription, **fields: Any) -> TopicWish:
    return TopicWish(source=source, name=fields.pop("name", source.name), **fields)


def target(brokers: int = 3, cluster_id: str | None = None, **topics: int) -> TargetCluster:
    found = {name: TargetTopic(partitions=count) for name, count in topics.items()}
    return TargetCluster(topics=found, brokers=brokers, cluster_id=cluster_id)


def plan(*wishes: TopicWish, there: TargetCluster, **policy: Any) -> TargetTopicPlan:
    return plan_topics(wishes, there, TopicPolicy(**policy))


# -- names


@pytest.mark.parametrize("template", ["{topic}", "old.{topic}", "{topic}-copy", "a_{topic}"])
def test_templates_with_the_name_once_are_taken(template: str) -> None:
    """Two source topics never get one name then."""
    check_template(template)
    assert map_topic(template, "orders") == template.replace("{topic}", "orders")


@pytest.mark.parametrize("template", ["", "orders", "{topic}{topic}", "{topic", "old/{topic}", "{topic} ", "{}"])
def test_templates_without_a_name_of_each_topic_are_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"topic: "):
        check_template(template)


def test_names_too_long_for_the_target_are_refused() -> None:
    """Kafka allows 249 characters."""
    assert map_topic("old.{topic}", "t" * 245) == "old." + "t" * 245
    with pytest.raises(ConfigError, match="250 characters, 249 are allowed; change the sink's topic"):
        map_topic("old.{topic}", "t" * 246)


def test_topics_of_kafka_itself_are_refused() -> None:
    with pytest.raises(ConfigError, match="Kafka's own"):
        map_topic("old.{topic}", "__consumer_offsets")


# -- creating


def test_missing_topic_gets_count_replicas_and_settings() -> None:
    source = describe("orders", replicas=2, retention_ms="1000", cleanup_policy="compact")
    found = plan(wish(source, name="old.orders"), there=target())
    wanted = NewTopic(
        name="old.orders",
        partitions=3,
        replication_factor=2,
        configs={"retention.ms": "1000", "cleanup.policy": "compact"},
    )
    assert found == TargetTopicPlan(creations={"old.orders": wanted}, additions={}, refusals={}, notes={})


def test_partition_count_is_that_of_the_largest_number() -> None:
    """A hole in the numbers (a damaged node) would else leave the last partition without a place."""
    found = plan(wish(describe("t", "0", "4")), there=target())
    assert found.creations["t"].partitions == 5


@pytest.mark.parametrize(("chosen", "replicas"), [("source", 2), ("target", -1), (3, 3)])
def test_replication_factor_is_chosen(chosen: Any, replicas: int) -> None:
    found = plan(wish(describe("t", replicas=2)), there=target(), replication_factor=chosen)
    assert found.creations["t"].replication_factor == replicas


def test_legacy_topic_has_a_partition_for_each_of_all_brokers() -> None:
    """Partitions that were given a place count, also if their brokers have left."""
    source = describe("t", "0-0", "0-1", "7-0", replicas=None)
    assert plan(wish(source), there=target()).creations["t"].partitions == 3
    found = plan(wish(source, least_partitions=5), there=target())
    assert found.creations["t"].partitions == 5
    assert found.creations["t"].replication_factor == -1


def test_settings_of_brokers_times_and_formats_are_not_copied() -> None:
    """They name brokers of the source, or make the target refuse old records or change their times."""
    source = TopicDescription(
        name="t",
        partitions=(PartitionKey(0),),
        replication_factor=1,
        settings={
            "leader.replication.throttled.replicas": "0:1",
            "message.format.version": "0.9.0",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.difference.max.ms": "1000",
            "remote.storage.enable": "true",
            "local.retention.ms": "5",
            "segment.bytes": "2097152",
        },
    )
    found = plan(wish(source), there=target())
    assert found.creations["t"].configs == {"segment.bytes": "2097152"}
    assert len(found.notes["t"]) == 6
    assert "message.timestamp.type=LogAppendTime of the source is not copied" in found.notes["t"]


def test_in_sync_replicas_above_the_replicas_are_not_copied() -> None:
    """No record with acks=all could be written to such a topic."""
    source = describe("t", replicas=3, min_insync_replicas="2")
    assert plan(wish(source), there=target()).creations["t"].configs == {"min.insync.replicas": "2"}
    found = plan(wish(source), there=target(), replication_factor=1)
    assert found.creations["t"].configs == {}
    assert found.notes == {"t": ("min.insync.replicas=2 of the source is not copied: the topic has 1 replicas",)}


def test_largest_message_still_fits_as_a_batch() -> None:
    """A batch's header is larger than that of a message of the old formats."""
    found = plan(wish(describe("t", max_message_bytes="1000")), there=target())
    assert found.creations["t"].configs == {"max.message.bytes": "1128"}
    found = plan(wish(describe("t", max_message_bytes=str(2**31 - 1))), there=target())
    assert found.creations["t"].configs == {"max.message.bytes": str(2**31 - 1)}


def test_more_replicas_than_brokers_are_refused_with_the_setting() -> None:
    found = plan(wish(describe("t", replicas=3)), there=target(brokers=1))
    assert not found.creations
    assert found.refusals == {
        "t": "topic t would have 3 replicas; the target has 1 broker: set the sink's replication_factor"
    }


def test_unknown_settings_and_forbidden_creation_name_the_command() -> None:
    """An operator can create the topic."""
    source = TopicDescription(name="t", partitions=(PartitionKey(0),), replication_factor=2, untold="no right")
    command = "kafka-topics.sh --bootstrap-server TARGET --create --topic t --partitions 1 --replication-factor 2"
    found = plan(wish(source), there=target())
    assert "no right" in found.refusals["t"]
    assert found.refusals["t"].endswith(command)
    assert plan(wish(source), there=target(t=1)) == TargetTopicPlan(creations={}, additions={}, refusals={}, notes={})
    found = plan(wish(describe("t", replicas=1, retention_ms="5")), there=target(), creates=False)
    assert found.refusals["t"].endswith("--replication-factor 1 --config retention.ms=5")


def test_names_that_are_one_in_metrics_are_refused() -> None:
    """Kafka refuses them too, with less to go by; of two new ones the first gets the name."""
    found = plan(wish(describe("a.b")), there=target(a_b=3))
    assert "there is a_b" in found.refusals["a.b"]
    found = plan(wish(describe("a.b")), wish(describe("a_b")), there=target())
    assert list(found.creations) == ["a.b"]
    assert "there is a.b" in found.refusals["a_b"]


# -- topics that are there


@pytest.mark.parametrize("count", [3, 6])
def test_topic_with_enough_partitions_is_used(count: int) -> None:
    assert plan(wish(describe("t")), there=target(t=count)) == TargetTopicPlan(
        creations={}, additions={}, refusals={}, notes={}
    )


def test_partitions_are_added_to_our_topic_only() -> None:
    """Other producers would put their keys into other partitions."""
    found = plan(wish(describe("t")), there=target(t=1))
    assert not found.additions
    assert "t has 1 partition in the target, and 3 are needed" in found.refusals["t"]
    assert "add_partitions: true" in found.refusals["t"]
    assert plan(wish(describe("t"), is_ours=True), there=target(t=1)).additions == {"t": 3}
    assert plan(wish(describe("t")), there=target(t=1), add_partitions=True).additions == {"t": 3}
    found = plan(wish(describe("t"), is_ours=True), there=target(t=1), creates=False, add_partitions=True)
    assert "t" in found.refusals


def test_other_settings_of_a_topic_that_is_there_are_told() -> None:
    """Retention decides how long the copy stays."""
    settings: Mapping[str, str] = {"retention.ms": "7"}
    there = TargetCluster(topics={"t": TargetTopic(partitions=3, settings=settings)}, brokers=1)
    found = plan(wish(describe("t", retention_ms="5", cleanup_policy="compact")), there=there)
    assert found.notes == {
        "t": (
            "cleanup.policy is not set in the target, and compact in the source",
            "retention.ms is 7 in the target, and 5 in the source",
        )
    }


def test_mirror_into_itself_is_refused() -> None:
    """It would copy its own copies for ever."""
    there = target(cluster_id="abc", t=3)
    found = plan_topics([wish(describe("t"))], there, TopicPolicy(), source_id="abc")
    assert "would be mirrored into itself" in found.refusals["t"]
    other = plan_topics([wish(describe("t"), name="old.t")], there, TopicPolicy(), source_id="abc")
    assert "old.t" in other.creations


def test_topic_without_partitions_is_refused() -> None:
    """All brokers of a topic of Kafka 0.7 may be away."""
    empty = TopicDescription(name="t", partitions=())
    assert "no partitions" in plan(wish(empty), there=target()).refusals["t"]
