# SPDX-License-Identifier: Apache-2.0
"""The doctor before the target of a mirror: what would stop the mirror is named, and nothing is created there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from consumerd.admin.doctor.mirror_checks import examine_targets
from consumerd.cli.main import DONE, FAILED, main
from consumerd.config.settings import Settings
from consumerd.mirror.positions import DEFAULT_TOPIC
from consumerd.mirror.records import PositionKey, SourceLog, encode_key
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import free_port
from tests.support.registry import open_registry
from tests.support.zookeeper import run_server

Examine = Callable[..., Mapping[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def source() -> Iterator[str]:
    """ZooKeeper of a source with one topic."""
    with run_server() as server:
        with open_registry(server.connect_string) as registry:
            registry.client.ensure_path("/old-target")
            registry.client.ensure_path("/source/brokers/topics")
            registry.client.create("/source/brokers/topics/orders", b'{"version": 1, "partitions": {"0": [0]}}')
        yield f"{server.connect_string}/source"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path / "target", None, auto_create_topics=False) as running:
        yield running


@pytest.fixture
def examine(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Run the command for a mirror into a target; findings about the target by their names."""

    def run(bootstrap: str, *, code: int = FAILED, **sink: str) -> Mapping[str, list[dict[str, Any]]]:
        settings = {
            "cluster": {"zookeeper": source},
            "group": {"id": "mirror"},
            "subscriptions": [{"topics": ["orders"], "sink": "new"}],
            "sinks": {"new": {"type": "kafka", "bootstrap": bootstrap, **sink}},
            "http": {"listen": "off"},
        }
        config = tmp_path / "mirror.yaml"
        config.write_text(json.dumps(settings))
        capsys.readouterr()
        ended = main(["doctor", "--config", str(config), "--json", "--timeout", "20"])
        found: dict[str, list[dict[str, Any]]] = {}
        for line in capsys.readouterr().out.splitlines():
            one = json.loads(line)
            if one["where"].startswith("sinks.new"):
                found.setdefault(one["check"], []).append(one)
        assert ended in (FAILED, DONE)
        assert any(one["severity"] != "notice" for ones in found.values() for one in ones) == (code == FAILED)
        return found

    return run


def topics_of(target: EmbeddedThread) -> set[str]:
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "looks"})
    try:
        return set(consumer.list_topics(timeout=30).topics)
    finally:
        consumer.close()


def test_a_target_without_a_positions_topic_is_in_order_and_stays_as_it_is(
    target: EmbeddedThread, examine: Examine
) -> None:
    """The mirror creates the topic; the doctor only asks if it could."""
    found = examine(target.bootstrap, code=DONE)

    assert list(found) == ["positions-topic-missing"]
    assert DEFAULT_TOPIC not in topics_of(target)


def test_a_target_in_order_has_no_finding(target: EmbeddedThread, examine: Examine) -> None:
    """All that mirrors have stored can be read."""
    target.create_topic(DEFAULT_TOPIC, 2, cleanup_policy="compact")

    assert examine(target.bootstrap, code=DONE) == {}


def test_a_positions_topic_from_which_brokers_delete_is_named(target: EmbeddedThread, examine: Examine) -> None:
    target.create_topic(DEFAULT_TOPIC, 1)

    (refused,) = examine(target.bootstrap)["positions-topic-refused"]
    assert "cleanup.policy=delete" in refused["what"]
    assert "cleanup.policy=compact" in refused["what"]


def test_a_stored_position_that_cannot_be_read_is_named(target: EmbeddedThread, examine: Examine) -> None:
    """The mirror would be told only when it comes to the partition."""
    target.create_topic(DEFAULT_TOPIC, 1, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": target.bootstrap})
    key = encode_key(PositionKey(SourceLog("c", "mirror", "orders", "0", "7")))
    producer.produce(DEFAULT_TOPIC, b"junk", key=key, partition=0)
    assert 0 == producer.flush(30)

    (found,) = examine(target.bootstrap)["positions-not-read"]
    assert found["where"] == f"sinks.new: {DEFAULT_TOPIC}"


def test_a_target_that_does_not_answer_is_named_with_its_address(examine: Examine) -> None:
    bootstrap = f"127.0.0.1:{free_port()}"

    (found,) = examine(bootstrap)["target-not-reached"]
    assert bootstrap in found["what"]


async def test_a_target_without_transactions_is_named_with_the_way_out(source: str, tmp_path: Path) -> None:
    settings = {
        "cluster": {"zookeeper": source},
        "group": {"id": "mirror"},
        "subscriptions": [{"topics": ["orders"], "sink": "new"}],
    }
    old_zookeeper = source.replace("/source", "/old-target")
    with EmbeddedThread(tmp_path / "old", old_zookeeper, as_release="0.10") as old:
        for delivery, expected in (("exactly-once", ["target-without-transactions"]), ("at-least-once", [])):
            sink = {"type": "kafka", "bootstrap": old.bootstrap, "delivery": delivery}
            found = await examine_targets(Settings.model_validate({**settings, "sinks": {"new": sink}}), timeout_s=20)
            assert [one.kind for one in found] == expected
            assert all("at-least-once" in one.advice for one in found)
