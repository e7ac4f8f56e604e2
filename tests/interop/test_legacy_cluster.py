# SPDX-License-Identifier: Apache-2.0
"""consumerd refuses a real cluster of the 0.7 protocol; its Java group goes on rebalancing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import jafka
from tests.support.daemon import Daemon, settings_for
from tests.support.jafka import JafkaCluster, dump
from tests.support.tools import require_jars
from tests.support.waiting import wait_until

GROUP, TOPIC = "lake", "orders"
RECORDS = 200
"""Enough that each of the four partitions gets some: the producer chooses one at random for each record."""


@pytest.fixture
def cluster() -> Iterator[JafkaCluster]:
    """One broker of the 0.7 protocol, with records."""
    with require_jars():
        jafka.jars()
    with JafkaCluster(partitions=4) as running:
        running.send(TOPIC, RECORDS)
        yield running


def owning(cluster: JafkaCluster) -> dict[str, int]:
    """Return how many partitions each member owns."""
    nodes = dump(cluster.zookeeper, f"/consumers/{GROUP}/owners/{TOPIC}")
    return Counter(data.decode().rpartition("-")[0] for data, _, _ in nodes.values() if data)


def committed(cluster: JafkaCluster) -> int:
    """Return how many partitions the group has a position of."""
    return len(
        dump(cluster.zookeeper, f"/consumers/{GROUP}/offsets/{TOPIC}").keys() - {f"/consumers/{GROUP}/offsets/{TOPIC}"}
    )


@pytest.mark.timeout(180)
def test_a_group_of_0_7_goes_on_rebalancing_and_ours_refuses_its_cluster(cluster: JafkaCluster, tmp_path: Path) -> None:
    """consumerd registers nothing in a 0.7 cluster.

    Its registration would fail every rebalance of the Java members ("can't rebalance after 4 retries").
    """
    first = cluster.start_member("first", TOPIC, GROUP)
    wait_until(
        lambda: sorted(first.values()) == sorted(f"value-{n}" for n in range(RECORDS)), "the member has read all", 60
    )
    wait_until(lambda: committed(cluster) == 4, "it has committed", 60)
    written = {path for path in dump(cluster.zookeeper) if "/offsets/" not in path}
    with Daemon(tmp_path, "ours", settings_for(cluster.zookeeper, GROUP, topics=(TOPIC,))) as ours:
        assert ours.wait_end() == 2
    assert "brokers of Kafka 0.6 or 0.7 are registered" in ours.log()
    assert "/brokers/ids/0 holds '127.0.0.1-" in ours.log()
    assert {path for path in dump(cluster.zookeeper) if "/offsets/" not in path} == written
    second = cluster.start_member("second", TOPIC, GROUP)
    wait_until(lambda: sorted(owning(cluster).values()) == [2, 2], "both members own their halves", 60)
    second.terminate()
    wait_until(lambda: sorted(owning(cluster).values()) == [4], "the first has everything again", 60)
    assert "can't rebalance" not in first.log() + second.log()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "command",
    [
        ("lag",),
        ("doctor",),
        ("offsets", "show"),
        ("offsets", "reset", "--all-topics", "--to", "earliest"),
        ("explain-rebalance",),
    ],
    ids=" ".join,
)
def test_commands_say_that_the_cluster_is_of_0_7(cluster: JafkaCluster, command: tuple[str, ...]) -> None:
    """Commands end with exit code 2 and name the generation.

    By the rules of 0.8 they would call every node of this healthy group wrong, and advise to delete it.
    """
    member = cluster.start_member("member", TOPIC, GROUP)
    wait_until(lambda: len(member.values()) == RECORDS, "the member has read all", 60)
    done = subprocess.run(
        [sys.executable, "-m", "consumerd", *command, "--zookeeper", cluster.zookeeper, "--group", GROUP],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, json.dumps([done.stdout, done.stderr])
    assert "brokers of Kafka 0.6 or 0.7 are registered" in done.stderr
    assert done.stdout == ""
