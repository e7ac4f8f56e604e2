# SPDX-License-Identifier: Apache-2.0
"""Groups of a cluster without ZooKeeper: what the brokers list, with positions and lag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from consumerd.cli.main import CONFIGURATION, DONE, main
from tests.support.embedded import EmbeddedThread


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedThread]:
    """A broker with 20 records of ``orders/0``, and a group that has read 15 of them."""
    with EmbeddedThread(tmp_path / "broker", None) as embedded:
        embedded.create_topic("orders", 1)
        producer = Producer({"bootstrap.servers": embedded.bootstrap})
        for number in range(20):
            producer.produce("orders", b"%d" % number, partition=0)
        assert 0 == producer.flush(60)
        consumer = Consumer({"bootstrap.servers": embedded.bootstrap, "group.id": "lake", "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("orders", 0, 15)], asynchronous=False)
        consumer.close()
        yield embedded


def test_groups_are_those_of_the_brokers(broker: EmbeddedThread, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no other place that could have groups, members or positions."""
    capsys.readouterr()
    code = main(["groups", "--json", "--bootstrap", broker.bootstrap, "--timeout", "20"])
    shown = capsys.readouterr()

    assert (DONE, "") == (code, shown.err)
    (row,) = map(json.loads, shown.out.splitlines())
    assert ("lake", "Empty", "kafka", 5) == (row["group"], row["state"], row["positions"], row["lag"])


def test_one_group_is_described_and_the_lag_of_all_is_shown(
    broker: EmbeddedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both read the same as the list."""
    for command in (["groups", "describe", "lake"], ["lag", "--all-groups"]):
        capsys.readouterr()
        code = main([*command, "--bootstrap", broker.bootstrap, "--timeout", "20"])
        shown = capsys.readouterr()

        assert DONE == code, shown.err
        assert "orders" in shown.out
        assert "15" in shown.out


def test_a_migration_needs_both_places(broker: EmbeddedThread, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option that is missing."""
    code = main(["offsets", "migrate", "plan", "--bootstrap", broker.bootstrap, "-g", "lake"])

    assert CONFIGURATION == code
    assert "give --zookeeper" in capsys.readouterr().err
