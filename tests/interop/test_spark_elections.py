"""Unclean elections on real brokers, through daemons, files, audit and bronze: every record that was landed is in the table,
once, those that the log has lost beside those that have their offsets now. Then the topic is deleted and made again.

Tables are read by pyarrow, and compared with what the producer says it has sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from consumerd.spark.table.transaction import open_table
from tests.interop.conftest import FULL, MAIN_RELEASE, require
from tests.interop.test_changing_logs import _delete, _isr, _leaders, _make
from tests.interop.test_hard_cases import numbered, produce, states
from tests.support.daemon import Daemon, settings_for, wait_until
from tests.support.kafka import Cluster
from tests.support.registry import Registry, open_registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.records]

RELEASES = ("0.8.2.2", MAIN_RELEASE) if FULL else (MAIN_RELEASE,)
KEPT, LOST, NEW, NEWEST, AGAIN = 100, 50, 20, 40, 30


@dataclass
class Group:
    """One group: its replicas' settings by name, and where they land."""

    folder: Path
    cluster: Cluster
    topic: str
    name: str
    on_above: str
    replicas: tuple[str, ...] = ("shared",)
    running: dict[str, Daemon] = field(default_factory=dict)
    starts: int = 0

    def landing(self, replica: str) -> Path:
        return self.folder / self.name / replica

    def start(self, replica: str) -> Daemon:
        """Start a replica, which claims what is free."""
        own = len(self.replicas) > 1
        sink = {"type": "parquet", "path": str(self.landing(replica)), "roll_ms": 300, "shared": not own}
        settings = settings_for(
            self.cluster.zookeeper,
            f"{self.topic}-{self.name}",
            topics=(self.topic,),
            sink=sink,
            offsets={"on_above": self.on_above},
            **({"group": {"consumer_id": replica}} if own else {}),
        )
        self.starts += 1
        self.landing(replica).parent.mkdir(parents=True, exist_ok=True)
        daemon = self.running[replica] = Daemon(self.folder, f"{self.name}-{replica}-{self.starts}", settings)
        return daemon

    def hand_over(self, replica: str) -> Daemon:
        """Have another replica go on."""
        for daemon in self.running.values():
            if daemon.process.poll() is None:
                assert daemon.terminate() == 0
        return self.start(replica)

    def wait_committed(self, count: int, what: str) -> None:
        (daemon,) = (one for one in self.running.values() if one.process.poll() is None)
        daemon.wait(lambda: sum(one["committed"] or 0 for one in daemon.status()["partitions"]) == count, what, 60)

    def job(self, job: str, *options: str) -> dict[str, Any]:
        there = [one for one in map(self.landing, self.replicas) if one.exists()]
        roots = [word for one in there for word in ("--landing", str(one))]
        command = [sys.executable, "-m", "consumerd.spark", job, *roots, "--json", "--quiet", *options]
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        summary: dict[str, Any] = json.loads(ended.stdout)
        return summary

    def bronze(self) -> Counter[tuple[str, bytes]]:
        """Take over what has landed, and return the table's values with their incarnations."""
        lake = self.folder / f"lake-{self.name}"
        self.job("bronze", "--path", str(lake), "--master", "local[1]")
        table = open_table(lake / "bronze")
        found: Counter[tuple[str, bytes]] = Counter()
        for file in table.snapshot().files:
            rows = pq.read_table(table.path / file, columns=["incarnation", "value"], partitioning=None)
            found.update(zip(rows["incarnation"].to_pylist(), rows["value"].to_pylist(), strict=True))
        return found


def _czxid(registry: Registry, topic: str) -> int:
    return int(registry.client.get(f"/brokers/topics/{topic}")[1].czxid)


@pytest.mark.parametrize("version", RELEASES)
def test_bronze_holds_what_the_logs_held_through_an_election_and_a_topic_made_again(
    version: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Under a policy, by the request that a stop advises, and with replicas that land in folders of their own."""
    require(version)
    topic = unique("elected")
    kept, lost, new, newest, again = (
        numbered(stem, count)
        for stem, count in (("kept", KEPT), ("lost", LOST), ("new", NEW), ("newest", NEWEST), ("again", AGAIN))
    )
    with (
        Cluster(version, 2, properties={"auto.create.topics.enable": "false"}) as cluster,
        open_registry(cluster.zookeeper) as registry,
        contextlib.ExitStack() as stack,
    ):
        cluster.create_topic(topic, 1, 2, unclean_leader_election_enable="true")
        made = _czxid(registry, topic)
        by_policy = Group(tmp_path, cluster, topic, "policy", "nearest")
        by_request = Group(tmp_path, cluster, topic, "request", "stop")
        own = Group(tmp_path, cluster, topic, "own", "nearest", replicas=("a", "b"))
        groups = (by_policy, by_request, own)
        stack.callback(
            lambda: [one.kill() for group in groups for one in group.running.values() if one.process.poll() is None]
        )
        for group in groups:
            group.start(group.replicas[0])

        produce(cluster, topic, kept, 1)
        leader = _leaders(registry, topic, 1)[0]
        follower = 1 - leader
        for group in groups:
            group.wait_committed(KEPT, "what is kept has landed")
        cluster.stop(f"broker-{follower}")
        wait_until(lambda: _isr(registry, topic) == [leader], "the leader is alone", 60)
        produce(cluster, topic, lost, 1, bootstrap_servers=f"127.0.0.1:{cluster.ports[leader]}")
        for group in groups:
            group.wait_committed(KEPT + LOST, "what will be lost has landed")
        # a table that has these records already is where the others used to be left out
        assert {Counter((str(made), one) for one in kept + lost) == group.bronze() for group in groups} == {True}

        cluster.stop(f"broker-{leader}")
        cluster.start_broker(follower)
        wait_until(lambda: _leaders(registry, topic, 1) == {0: follower}, "the one that had stopped leads", 60)
        stopped = by_request.running["shared"]
        stopped.wait(lambda: states(stopped) == {"stopped": 1}, "it has stopped", 60)
        asked = subprocess.run(
            [
                *(sys.executable, "-m", "consumerd", "offsets", "set", "-z", cluster.zookeeper),
                *("-g", f"{topic}-request", f"{topic}/0={KEPT}", "--yes"),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, asked.stdout + asked.stderr
        for group in groups:
            group.wait_committed(KEPT, "it has moved back")
        produce(cluster, topic, new, 1, bootstrap_servers=f"127.0.0.1:{cluster.ports[follower]}")
        for group in groups:
            group.wait_committed(KEPT + NEW, "what is new has landed")
        own.hand_over("b")
        cluster.start_broker(leader)
        produce(cluster, topic, newest, 1)
        for group in groups:
            group.wait_committed(KEPT + NEW + NEWEST, "what is newest has landed")
        own.hand_over("a")
        own.wait_committed(KEPT + NEW + NEWEST, "the first replica is back")

        _delete(registry, topic)
        _make(registry, topic, 1)
        cluster.wait_topic(topic, 1)
        remade = _czxid(registry, topic)
        produce(cluster, topic, again, 1)
        for group in groups:
            group.wait_committed(AGAIN, "the topic that was made again has landed")
            assert all(one.terminate() == 0 for one in group.running.values() if one.process.poll() is None)

        expected = Counter((str(made), one) for one in kept + lost)
        expected.update((f"{made}.1", one) for one in new + newest)
        expected.update((str(remade), one) for one in again)
        for group in groups:
            assert group.bronze() == expected, group.name
            audit = group.job("audit")
            assert audit["status"] == "ok"
