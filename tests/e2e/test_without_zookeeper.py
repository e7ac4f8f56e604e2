# SPDX-License-Identifier: Apache-2.0
"""Daemons without ZooKeeper: members share, stop and die, each record lands once, topics are re-created."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.embedded.cluster import EmbeddedCluster
from tests.support.coordinated_faults import acknowledged
from tests.support.coordinated_faults import share as share_out
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedThread
from tests.support.foreign.librdkafka import Librdkafka
from tests.support.landing_check import log_ends
from tests.support.landing_job import LandingJob
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad

pytestmark = pytest.mark.records

PARTITIONS: Final = 4
PER_PARTITION: Final = 20

share = partial(share_out, partitions=2 * PARTITIONS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedThread]:
    """One broker of 4.0."""
    with EmbeddedThread(tmp_path / "cluster", None) as running:
        yield running


def member(job: LandingJob, cluster: EmbeddedThread, name: str) -> Daemon:
    return job.daemon(
        name,
        cluster={"zookeeper": None, "bootstrap": cluster.bootstrap},
        group={"membership": "kafka", "session_timeout_ms": 6000},
        offsets={"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
    )


def find_incarnation(cluster: EmbeddedThread, topic: str) -> str:
    command = [sys.executable, "-m", "consumerd", "topics", topic, "--bootstrap", cluster.bootstrap, "--json"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    return str(json.loads(done.stdout)["incarnation"])


def chains(job: LandingJob, topic: str, partition: int = 0) -> list[tuple[str, int]]:
    """Return the incarnation and origin of each chain of a partition."""
    home = job.landing(topic) / f"topic={topic}" / f"partition={partition}"
    records = [json.loads(path.read_bytes()) for path in sorted(home.glob("chain=*/_chain.json"))]
    return [(record["incarnation"], record["origin"]) for record in records]


@pytest.mark.timeout(300)
def test_members_come_and_die_and_each_record_lands_once(cluster: EmbeddedThread, tmp_path: Path) -> None:
    """Two daemons, a SIGKILL, a newcomer, and a stop in order."""
    job = LandingJob.make(cluster, "lake", tmp_path, partitions=PARTITIONS)
    producer = Ledger(cluster.bootstrap, "lz4")
    load = SteadyLoad(
        producer, dict.fromkeys(job.topics, PARTITIONS), per_second=PER_PARTITION, make_value=b"%d".__mod__
    )
    with contextlib.ExitStack() as running:
        one, two = (running.enter_context(member(job, cluster, name)) for name in ("one", "two"))
        with load:
            share(one, two)
            before = acknowledged(one)
            one.wait(lambda: acknowledged(one) > before + 100, "it lands records")
            one.kill()
            share(two)
            three = running.enter_context(member(job, cluster, "three"))
            share(two, three)
            before = acknowledged(three)
            three.wait(lambda: acknowledged(three) > before + 100, "it goes on")
        ledger = producer.finish()
        job.wait_landed(ledger)
        status: dict[str, Any] = three.status()
        stopped = [two.terminate(), three.terminate()]
    asked = Librdkafka(cluster.bootstrap)
    committed = {topic: asked.committed(job.group, topic, PARTITIONS) for topic in job.topics}

    assert [0, 0] == stopped
    assert job.find_faults(ledger) == []
    assert log_ends(ledger) == {(topic, one): at for topic in job.topics for one, at in committed[topic].items()}
    assert status["coordination"]["phase"] == "fresh"
    assert {find_incarnation(cluster, job.parquet)} == {made for made, _ in chains(job, job.parquet)}


@pytest.mark.timeout(300)
def test_recreated_topic_is_a_new_incarnation_with_a_chain_of_its_own(cluster: EmbeddedThread, tmp_path: Path) -> None:
    """Nothing of the new topic is skipped, though it has more records than were consumed of the old one."""
    job = LandingJob.make(cluster, "lake", tmp_path, partitions=1)
    old = find_incarnation(cluster, job.jsonl)
    cluster.produce(job.jsonl, b"".join(b"k\told-%d\n" % number for number in range(50)))

    async def recreate(inner: EmbeddedCluster) -> None:
        await inner.broker.topics.delete(job.jsonl)
        await inner.broker.create_topic(job.jsonl)

    with member(job, cluster, "one") as one:
        one.wait(lambda: acknowledged(one) >= 50, "the old topic has landed")
        cluster.do(recreate)
        new = find_incarnation(cluster, job.jsonl)
        cluster.produce(job.jsonl, b"".join(b"k\tnew-%d\n" % number for number in range(80)))
        one.wait(lambda: any(end[0] == new for end in chains(job, job.jsonl)), "a chain of the new topic", 90)
        one.wait(lambda: acknowledged(one) >= 80, "the new topic has landed", 60)
        stopped = one.terminate()

    assert 0 == stopped
    assert old != new
    assert [(old, 0), (new, 0)] == chains(job, job.jsonl)
    second = job.landing(job.jsonl) / f"topic={job.jsonl}" / "partition=0" / "chain=2"
    rows = [json.loads(line) for path in sorted(second.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [(number, f"new-{number}") for number in range(80)] == [(row["offset"], row["value"]) for row in rows]
