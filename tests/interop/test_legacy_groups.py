# SPDX-License-Identifier: Apache-2.0
"""Groups of daemons and a Java high-level consumer of the 0.7 generation, on two real brokers of that generation."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from consumerd.failpoints import MEMBER_POINTS
from tests.support.jafka import JafkaCluster
from tests.support.jafka_group import (
    BROKERS,
    GROUP,
    KEYS,
    TOPIC,
    children,
    count_values,
    has_settled,
    make_settings,
    owners,
    positions,
    running_brokers,
    start,
)
from tests.support.kill_points import die_at
from tests.support.seeds import draw_seed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.records]

RECORDS = 200


@pytest.fixture
def cluster() -> Iterator[JafkaCluster]:
    """Two brokers with three partitions of the topic each."""
    with running_brokers() as running:
        running.send(TOPIC, RECORDS)
        wait_until(lambda: len(children(running, f"/brokers/topics/{TOPIC}")) == BROKERS, "both have the topic", 60)
        yield running


def expect(times: int) -> dict[str, int]:
    return {f"value-{number}": times for number in range(RECORDS)}


def run_command(cluster: JafkaCluster, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "consumerd", *command, "--zookeeper", cluster.zookeeper, "--group", GROUP],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def read_json(done: subprocess.CompletedProcess[str]) -> list[Mapping[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(240)
def test_three_daemons_and_a_java_member_share_the_partitions_and_each_record_comes_out_once(
    cluster: JafkaCluster, tmp_path: Path
) -> None:
    """As the algorithm says, while members come, end and are killed; a broker that goes and comes back, too."""
    java = cluster.start_member("java", TOPIC, GROUP)
    wait_until(lambda: has_settled(cluster, 0, 2), "Java owns all", 60)
    wait_until(lambda: count_values([java], tmp_path) == expect(1), "Java has read all", 60)
    # to a topic that is new, its producer sends to partition 0 of each broker alone
    wait_until(lambda: {"0-0", "1-0"} <= positions(cluster).keys(), "Java has committed", 60)
    with ExitStack() as running:
        ours = [running.enter_context(start(cluster, tmp_path, f"ours-{number}")) for number in range(3)]
        wait_until(lambda: has_settled(cluster, 3, 2), "five threads share", 60)
        cluster.send(TOPIC, RECORDS)
        wait_until(lambda: count_values([java], tmp_path) == expect(2), "all once more", 60)
        lag = {}

        def caught_up() -> bool:
            lag.update({row["partition"]: row["lag"] for row in read_json(run_command(cluster, "lag", "--json"))})
            return lag == dict.fromkeys(KEYS, 0)

        wait_until(caught_up, "all is committed", 60)

        ours[0].kill()
        wait_until(lambda: has_settled(cluster, 2, 2), "the others have its partitions", 60)
        assert ours[1].terminate() == 0
        wait_until(lambda: has_settled(cluster, 1, 2), "those of one that left as well", 60)
        cluster.send(TOPIC, RECORDS)
        wait_until(lambda: count_values([java], tmp_path) == expect(3), "all for the third time", 60)
        wait_until(caught_up, "all is committed", 60)

        java.terminate()
        wait_until(lambda: has_settled(cluster, 1, 0), "ours has all", 60)
        assert "can't rebalance" not in java.log()
        assert ours[2].terminate() == 0
    assert count_values([java], tmp_path) == expect(3)
    assert owners(cluster) == {}


def restart_broker(cluster: JafkaCluster) -> None:
    """Kill broker 1 and start it again with its log; its partitions go away and come back."""
    cluster.kill_broker(1)
    left = [key for key in KEYS if key.startswith("0-")]
    wait_until(lambda: has_settled(cluster, 2, 2, left), "those of the other broker are shared", 60)
    cluster.restart_broker(1)


def restart_zookeeper(cluster: JafkaCluster) -> None:
    """Kill ZooKeeper and start it again with its data, within the sessions."""
    cluster.kill_zookeeper()
    cluster.start_zookeeper()


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", [restart_broker, restart_zookeeper])
def test_what_is_killed_and_comes_back_costs_and_doubles_nothing(
    cluster: JafkaCluster, tmp_path: Path, fault: Callable[[JafkaCluster], None]
) -> None:
    """A broker of the group's topic, and ZooKeeper, under two daemons and a Java member."""
    java = cluster.start_member("java", TOPIC, GROUP)
    with ExitStack() as running:
        ours = [running.enter_context(start(cluster, tmp_path, f"ours-{number}")) for number in range(2)]
        wait_until(lambda: has_settled(cluster, 2, 2), "four threads share", 60)
        wait_until(lambda: count_values([java], tmp_path) == expect(1), "all has come out", 60)
        fault(cluster)
        wait_until(lambda: has_settled(cluster, 2, 2), "four threads share again", 90)
        cluster.send(TOPIC, RECORDS)
        wait_until(lambda: set(count_values([java], tmp_path)) == set(expect(2)), "all has come out", 60)
        wait_until(lambda: sum(count_values([java], tmp_path).values()) >= 2 * RECORDS, "and once more", 60)
        assert [one.terminate() for one in ours] == [0, 0]
        java.terminate()
    # what is committed late by a Java member may come out of it again; of ours nothing does
    assert all(count >= 2 for count in count_values([java], tmp_path).values())
    assert max(count_values([], tmp_path).values()) <= 2


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_member_killed_at_each_point_loses_and_doubles_nothing(cluster: JafkaCluster, tmp_path: Path) -> None:
    """Each point of a member, while the Java producer goes on in bursts."""
    dice = random.Random(draw_seed("kill points on Jafka"))
    given, stopping, bursts = make_settings(cluster, tmp_path), threading.Event(), 1

    def send() -> int:
        sent = 0
        while not stopping.is_set():
            cluster.send(TOPIC, RECORDS)
            sent += 1
        return sent

    with start(cluster, tmp_path, "steady") as steady, ThreadPoolExecutor(1) as sender:
        wait_until(lambda: has_settled(cluster, 1, 0), "it owns all", 60)
        sending = sender.submit(send)
        try:
            for number, point in enumerate(MEMBER_POINTS):
                die_at(point, tmp_path, f"victim-{number}", given, dice, by_join=False)
        finally:
            stopping.set()
        bursts += sending.result(60)
        wait_until(lambda: count_values([], tmp_path) == expect(bursts), "each record has landed", 90)
        assert steady.terminate() == 0
    assert count_values([], tmp_path) == expect(bursts)
