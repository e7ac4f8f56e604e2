# SPDX-License-Identifier: Apache-2.0
"""A restore says what it needs before it touches the target, or asks for Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Bronze
from consumerd.errors import ConfigError
from consumerd.landing.coverage import Coverage
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import LogId
from consumerd.spark import replay
from consumerd.spark.bronze import open_bronze
from consumerd.spark.job import Silent
from consumerd.spark.replay_mapped import find_group, read_options
from consumerd.spark.table.commit import Operation

SINK = {"type": "kafka", "bootstrap": "new1:9092", "topic": "old.{topic}", "positions_topic": "places"}


def settings(sinks: dict[str, Any] | None = None, **options: Any) -> JobSettings:
    pipeline = {"path": "/data/lake", "replay": {"map": True, "topic": "orders", **options}}
    return JobSettings.model_validate({"group": {"id": "shop"}, "sinks": sinks or {}, "pipeline": pipeline})


def test_target_is_that_of_a_mirror() -> None:
    """By options, by a sink of the file, or by a sink and options that win over it."""
    plain = read_options(settings(bootstrap_servers="b:9092"))
    assert ("b:9092", "orders", "_consumerd_mirror") == (
        plain.bootstrap,
        plain.name_topic("orders"),
        plain.positions_topic,
    )
    sink = read_options(settings({"new": SINK}, sink="new"))
    assert ("new1:9092", "old.orders", "places") == (sink.bootstrap, sink.name_topic("orders"), sink.positions_topic)
    both = read_options(
        settings({"new": SINK}, sink="new", bootstrap_servers="b:9092", target="orders.v2", positions_topic="other")
    )
    assert ("b:9092", "orders.v2", "other") == (both.bootstrap, both.name_topic("orders"), both.positions_topic)


def test_group_is_that_which_would_mirror() -> None:
    """The file's group mirrors with the file's sink; without a sink, the file is of another daemon."""
    assert "consumerd-mirror" == find_group(settings(bootstrap_servers="b:9092"))
    assert "shop" == find_group(settings({"new": SINK}, sink="new"))
    assert "given" == find_group(settings({"new": SINK}, sink="new", group="given"))


@pytest.mark.parametrize(
    ("sinks", "options", "message"),
    [
        ({}, {}, r"there is no cluster to restore into; name its brokers with --bootstrap-servers"),
        ({"lake": {"type": "parquet"}, "new": SINK}, {"sink": "lake"}, "no sink lake of type kafka .*; there is new"),
        ({}, {"sink": "new"}, "there is no sink new of type kafka in the settings$"),
        ({"new": SINK | {"topic": "x"}}, {"sink": "new"}, r"sinks\.new: topic: "),
        ({"new": SINK | {"delivery": "at-least-once"}}, {"sink": "new"}, "delivery: at-least-once stores no map"),
        ({"new": SINK | {"partitioner": "key"}}, {"sink": "new"}, "partitioner: key stores no map"),
        ({}, {"bootstrap_servers": "b:9092", "target": "other"}, "expected a name with orders in it, .* got other"),
        ({}, {"bootstrap_servers": "b:port"}, r"pipeline\.replay: bootstrap: "),
    ],
)
def test_target_that_no_mirror_has_is_refused(sinks: dict[str, Any], options: dict[str, Any], message: str) -> None:
    """With what to do."""
    with pytest.raises(ConfigError, match=message):
        read_options(settings(sinks, **options))


def no_session() -> SparkSession:
    raise AssertionError("no session is needed")


def test_nothing_is_restored_without_a_topic() -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=r"pipeline\.replay\.topic: missing"):
        replay.run(no_session, settings(topic=None, bootstrap_servers="b:9092"), Silent())


def test_nothing_is_restored_of_an_unknown_cluster(tmp_path: Path) -> None:
    """Tables of earlier releases do not name it, and a map must."""
    table = open_bronze(str(tmp_path / "bronze"), Bronze()).table
    with table.begin(plan="first", job="bronze", operation=Operation.APPEND) as transaction:
        transaction.commit(covered=Coverage(covered={LogId.parse("orders/0@7"): RangeSet.of([(0, 9)])}))
    given = settings(bootstrap_servers="b:9092")
    pipeline = given.pipeline.model_copy(update={"path": str(tmp_path)})

    with pytest.raises(ConfigError, match="does not say of which cluster the records are"):
        replay.run(no_session, given.model_copy(update={"pipeline": pipeline}), Silent())
