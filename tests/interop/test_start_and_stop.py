# SPDX-License-Identifier: Apache-2.0
"""An orderly end under load, and one that is cut short."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.landing_reader import read_landing
from tests.support.load import SteadyLoad
from tests.support.registry import open_registry

pytestmark = pytest.mark.records

PARTITIONS = 6


@pytest.mark.full
@pytest.mark.timeout(120)
def test_sigterm_flushes_commits_releases_and_leaves(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """What was taken has landed and is committed; nodes are gone when the process is; it all fits in the timeout."""
    cluster = shared_clusters(release)
    topic, group = unique("stop"), unique("stop")
    cluster.create_topic(topic, PARTITIONS)
    landing = tmp_path / "landing"
    # nothing rolls by itself, so that whatever has landed was flushed by the end
    sink = {"type": "parquet", "path": str(landing), "roll_ms": 3_600_000}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink, shutdown={"timeout_ms": 10_000})
    producer = cluster.ledger_producer(linger_ms="5")
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(tmp_path, "member", settings) as member,
        SteadyLoad(producer, {topic: PARTITIONS}, per_second=100),
    ):
        member.wait_ready()
        member.wait(
            lambda: sum(one["position"] or 0 for one in member.status()["partitions"]) > 1000, "records are taken"
        )
        assert registry.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), 0), "committed before it was safe"
        began = time.monotonic()
        code = member.terminate()
        took = time.monotonic() - began
        members, owners = registry.members(group), registry.owners(group, topic)
        committed = registry.offsets(group, topic)

    landed = read_landing(landing)
    assert code == 0
    assert took < 10
    assert (members, owners) == ({}, {}), "nodes outlive the process"
    assert landed.problems == []
    assert committed == {int(one.partition): one.end for one in landed.partitions.values()}
    assert sum(committed.values()) > 1000
    producer.finish()


@pytest.mark.full
@pytest.mark.timeout(90)
def test_a_second_signal_ends_at_once_and_loses_nothing(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Somebody is in a hurry: what was not safe is fetched again by the next process."""
    cluster = shared_clusters(release)
    topic, group = unique("hurry"), unique("hurry")
    cluster.create_topic(topic, PARTITIONS)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    producer = cluster.ledger_producer(linger_ms="5")
    with SteadyLoad(producer, {topic: PARTITIONS}, per_second=100):
        with Daemon(tmp_path, "first", settings) as first:
            first.wait(
                lambda: sum(one["acknowledged"] or 0 for one in first.status()["partitions"]) > 500, "records land"
            )
            first.process.terminate()
            first.wait(lambda: bool(first.events("shutdown_requested")), "the first signal is heard")
            first.process.terminate()
            assert first.wait_end(5) == 1
            assert "Traceback" not in first.log()
        with Daemon(tmp_path, "second", settings) as second:
            second.wait(lambda: len(second.owned()) == PARTITIONS, "the next process owns all")
            second.wait(lambda: _lag(second) is not None and _lag(second) < 200, "it has caught up")  # type: ignore[operator]
            assert second.terminate() == 0
    ledger = producer.finish()

    landed = read_landing(landing)
    assert landed.problems == []
    found = {
        (one.topic, int(one.partition), record.offset) for one in landed.partitions.values() for record in one.records
    }
    assert {key for key in ledger if key[2] < landed.partitions[key[0], str(key[1])].end} == found


def _lag(member: Daemon) -> int | None:
    lags = [one["lag"] for one in member.status()["partitions"]]
    return None if None in lags or len(lags) < PARTITIONS else sum(lags)
