# SPDX-License-Identifier: Apache-2.0
"""Members come, go and die under load, and the landed files hold every record once.

Judged by an independent reader of the files (pyarrow and json, none of our code) against the producer's own ledger.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import FULL, ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster
from tests.support.landing_check import find_faults, log_ends
from tests.support.landing_reader import read_landing
from tests.support.load import SteadyLoad
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records

PARTITIONS = 12
RATE = 2000
SECONDS = 60 if FULL else 30


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sink", ["parquet", "jsonl"] if FULL else ["parquet"])
def test_churn_loses_nothing_and_doubles_nothing(
    release: str, sink: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Promises 1 and 2: members started, stopped (SIGTERM) and killed (SIGKILL) every few seconds, for SECONDS."""
    cluster = shared_clusters(release)
    topic, group = unique("churn"), unique("churners")
    cluster.create_topic(topic, PARTITIONS)
    members = Members(cluster, group, topic, tmp_path, sink)
    dice = random.Random(20261121)
    try:
        producer = cluster.ledger_producer(linger_ms="5")
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=RATE / PARTITIONS):
            members.start()
            members.start()
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                members.change(dice)
                pause = time.monotonic() + dice.uniform(1.5, 4.0)
                wait_until(lambda pause=pause: time.monotonic() > pause, "the next change", 10)  # type: ignore[misc]
        ledger = producer.finish()
        if not members.running:
            members.start()
        wait_until(
            lambda: chain_ends(tmp_path / "landing", topic) == log_ends(ledger),
            "chains that end where logs do",
            60,
            0.5,
        )
    finally:
        members.close()

    assert find_faults(tmp_path / "landing", ledger) == []
    assert members.killed >= SECONDS // 20
    assert members.stopped >= SECONDS // 20


class Members:
    """The daemons of the group, all into one shared folder."""

    def __init__(self, cluster: Cluster, group: str, topic: str, folder: Path, sink: str) -> None:
        options = {"type": sink, "path": str(folder / "landing"), "roll_ms": 700, "roll_bytes": 200_000}
        self._settings = settings_for(
            cluster.zookeeper,
            group,
            topics=(topic,),
            sink=options,
            log={"level": "info"},
            group={"session_timeout_ms": 4000},
        )
        self._folder = folder
        self._count = 0
        self.running: list[Daemon] = []
        self.killed = self.stopped = 0

    def start(self) -> None:
        """Start one more."""
        self._count += 1
        self.running.append(Daemon(self._folder, f"member-{self._count}", self._settings))

    def change(self, dice: random.Random) -> None:
        """Start, stop or kill one."""
        if len(self.running) < 2 or (len(self.running) < 4 and dice.random() < 0.4):
            self.start()
            return
        member = self.running.pop(dice.randrange(len(self.running)))
        if dice.random() < 0.5:
            self.killed += 1
            member.kill()
        else:
            self.stopped += 1
            began = bool(
                member.events("http_started")
            )  # before that, a signal finds no handler yet, and nothing to drain
            assert member.terminate() == 0 or not began, member.log()[-3000:]

    def close(self) -> None:
        """Stop what runs."""
        for member in self.running:
            member.terminate()


def chain_ends(landing: Path, topic: str) -> dict[tuple[str, int], int]:
    """Return where each partition's landed files end, by their metadata."""
    if not landing.exists():
        return {}
    partitions = read_landing(landing).partitions
    return {(one.topic, int(one.partition)): one.end for one in partitions.values() if one.topic == topic and one.end}
