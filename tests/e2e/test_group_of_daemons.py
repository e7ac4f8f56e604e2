# SPDX-License-Identifier: Apache-2.0
"""A group of daemons on a broker: members come, stop, stall and die under load, and every record lands once.

Judged by an independent reader of the files (pyarrow and json) against the ledger of a producer that is not ours.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.coordinated_faults import acknowledged
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedThread
from tests.support.landing_check import log_ends
from tests.support.landing_job import LandingJob
from tests.support.landing_reader import read_landing
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.registry import CommitWatch, open_registry

pytestmark = pytest.mark.records

PARTITIONS = 6
PER_PARTITION = 40


def share(*members: Daemon) -> None:
    """Wait until all partitions of both topics are owned, by as many members as there are."""
    each = 2 * PARTITIONS // len(members)
    for member in members:
        member.wait(lambda member=member: len(member.owned()) == each, f"{each} partitions are its own")


def load(job: LandingJob, producer: Ledger) -> SteadyLoad:
    return SteadyLoad(producer, dict.fromkeys(job.topics, PARTITIONS), per_second=PER_PARTITION)


@pytest.mark.timeout(120)
def test_members_that_join_are_replaced_and_die_lose_nothing_and_double_nothing(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Two daemons, a third, a rolling restart, a SIGKILL: each record lands once, and no position goes backwards."""
    job = LandingJob.make(cluster, unique("churn"), tmp_path, partitions=PARTITIONS)
    producer = Ledger(cluster.bootstrap, "lz4")
    with (
        open_registry(cluster.zookeeper) as registry,
        CommitWatch(registry, job.group, job.parquet) as commits,
        contextlib.ExitStack() as running,
    ):
        one, two = (running.enter_context(job.daemon(name)) for name in ("one", "two"))
        with load(job, producer):
            share(one, two)
            three = running.enter_context(job.daemon("three"))
            share(one, two, three)
            assert one.terminate() == 0
            four = running.enter_context(job.daemon("four"))
            share(two, three, four)
            assert two.terminate() == 0
            share(three, four)
            three.kill()
            share(four)
            before = acknowledged(four)
            four.wait(lambda: acknowledged(four) > before + 200, "it goes on")
        ledger = producer.finish()
        job.wait_landed(ledger)
        assert four.terminate() == 0
        left = registry.members(job.group), *(registry.owners(job.group, topic) for topic in job.topics)
        committed = {topic: registry.offsets(job.group, topic) for topic in job.topics}

    assert job.find_faults(ledger) == []
    assert commits.regressions == []
    assert left == ({}, {}, {})
    assert log_ends(ledger) == {(topic, one): at for topic in job.topics for one, at in committed[topic].items()}


@pytest.mark.timeout(90)
def test_a_member_that_stalls_past_its_session_repeats_nothing_when_it_wakes(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A paused virtual machine: the other one has gone on with its partitions, and it must find out before it writes."""
    job = LandingJob.make(cluster, unique("stall"), tmp_path, partitions=PARTITIONS)
    producer = Ledger(cluster.bootstrap)
    with job.daemon("stalled") as stalled, job.daemon("other") as other:
        with load(job, producer):
            share(stalled, other)
            before = acknowledged(stalled)
            stalled.wait(lambda: acknowledged(stalled) > before + 100, "it lands records")
            stalled.stop()
            share(other)
            before = acknowledged(other)
            other.wait(lambda: acknowledged(other) > before + 200, "the other goes on with all of them")
            stalled.resume()
            share(stalled, other)
        ledger = producer.finish()
        job.wait_landed(ledger)
        assert stalled.terminate() == 0
        assert other.terminate() == 0

    assert job.find_faults(ledger) == []


@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_flushes_commits_releases_and_leaves(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path, number: signal.Signals
) -> None:
    """What was taken has landed and is committed; nodes are gone when the process is."""
    # nothing rolls by itself, so that whatever has landed was flushed by the end
    job = LandingJob.make(cluster, unique("signal"), tmp_path, partitions=PARTITIONS, roll_ms=3_600_000)
    producer = Ledger(cluster.bootstrap, "gzip")
    with open_registry(cluster.zookeeper) as registry, job.daemon("member") as member:
        with load(job, producer):
            member.wait(lambda: position(member) > 500, "records are taken")
            member.wait(lambda: all(one["position"] for one in member.status()["partitions"]), "of every partition")
            assert set(registry.offsets(job.group, job.parquet).values()) <= {0}, "committed before it was safe"
            member.process.send_signal(number)
            assert member.wait_end() == 0
            left = registry.members(job.group), *(registry.owners(job.group, topic) for topic in job.topics)
            committed = {topic: registry.offsets(job.group, topic) for topic in job.topics}
        ledger = producer.finish()

    assert left == ({}, {}, {}), "nodes outlive the process"
    for topic in job.topics:
        landed = read_landing(job.landing(topic)).partitions.values()
        assert committed[topic] == {int(one.partition): one.end for one in landed}
    taken = {place: sent for place, sent in ledger.items() if place[2] < committed[place[0]][place[1]]}
    assert len(taken) > 500
    assert job.find_faults(taken) == []


@pytest.mark.timeout(90)
def test_a_second_signal_ends_at_once_and_loses_nothing(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Somebody is in a hurry: what was not safe is fetched again by the next process."""
    job = LandingJob.make(cluster, unique("hurry"), tmp_path, partitions=PARTITIONS)
    producer = Ledger(cluster.bootstrap, "snappy")
    with load(job, producer):
        with job.daemon("first") as first:
            first.wait(lambda: acknowledged(first) > 300, "records land")
            first.process.terminate()
            first.wait(lambda: bool(first.events("shutdown_requested")), "the first signal is heard")
            first.process.terminate()
            assert first.wait_end(5) == 1
            assert "Traceback" not in first.log()
        second = job.daemon("second")
    with second:
        ledger = producer.finish()
        job.wait_landed(ledger)
        assert second.terminate() == 0

    assert job.find_faults(ledger) == []


def position(member: Daemon) -> int:
    return sum(one["position"] or 0 for one in member.status()["partitions"])
