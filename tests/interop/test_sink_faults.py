# SPDX-License-Identifier: Apache-2.0
"""Disks fill up, fail, slow down, go away and are swapped under a whole daemon: nothing is lost, and the rest goes on.

All faults of a test happen at the same time, each to a sink and a topic of its own, so that one may also disturb another.
Judged by an independent reader of the files and the producer's own ledger.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory, Figure
from tests.support import stalling_sinks
from tests.support.daemon import Daemon, settings_for
from tests.support.disk_faults import (
    DiskFault,
    FrozenDisk,
    FullDisk,
    FullDiskForParquet,
    NoFault,
    SlowDisk,
    SpoiltPartition,
    SwappedFolder,
    UnmountedVolume,
    find_why_no_freeze,
    find_why_no_mount,
)
from tests.support.kafka import Cluster
from tests.support.landing_check import find_faults, log_ends
from tests.support.load import SteadyLoad
from tests.support.registry import Registry, open_registry
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 2
PER_PARTITION = 25
FAULT_S = 10.0
LATE_S = 3.0
"""Whoever is not concerned must still go on this long before the end: a commit at the beginning says nothing."""
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_a_sink_that_fails_or_is_slow_for_ten_seconds_loses_nothing_and_stops_nobody_else(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """One partition's folder is spoilt, another sink's path swapped for an empty folder, a third's disk slow."""
    suffer(shared_clusters(release), unique, tmp_path, figure, [SpoiltPartition, SwappedFolder, SlowDisk])


@pytest.mark.timeout(180)
def test_a_full_disk_and_an_unmounted_volume_lose_nothing_and_stop_nobody_else(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Nothing is landed in the empty mount point either, where nobody would look for it."""
    require_mount()
    suffer(shared_clusters(release), unique, tmp_path, figure, [FullDisk, FullDiskForParquet, UnmountedVolume])


@pytest.mark.timeout(180)
def test_a_disk_that_hangs_is_told_and_stops_nobody_else(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """A call that never comes back raises nothing: only the time that it takes tells of it. All is landed after the thaw."""
    if why := find_why_no_freeze(tmp_path / "tried"):
        pytest.skip(f"takes the right to mount, and loop devices, which the kernel has or has not: {why}")
    suffer(shared_clusters(release), unique, tmp_path, figure, [FrozenDisk])


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_path_of_another_group_is_refused_and_left_alone(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Two groups that land in one folder would take each other's files for their own progress, and skip records."""
    cluster, topic = shared_clusters(release), unique("topic")
    cluster.create_topic(topic, PARTITIONS)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    owner, intruder = unique("owner"), unique("intruder")
    producer = cluster.ledger_producer(linger_ms="5")
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(tmp_path, "owner", settings_for(cluster.zookeeper, owner, topics=(topic,), sink=sink)) as theirs,
    ):
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=PER_PARTITION):
            theirs.wait(lambda: len(registry.offsets(owner, topic)) == PARTITIONS, "the owner lands files")
            settings = settings_for(cluster.zookeeper, intruder, topics=(topic,), sink=sink)
            with Daemon(tmp_path, "intruder", settings) as ours:
                assert ours.wait_end() == 2, ours.log()[-3000:]
                assert f"belongs to group {owner!r}" in ours.log()
                assert registry.offsets(intruder, topic) == {}
        ledger = producer.finish()
        ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
        theirs.wait(lambda: registry.offsets(owner, topic) == ends, "everything landed and committed")
        assert theirs.terminate() == 0
    assert find_faults(landing, ledger) == []


def require_mount() -> None:
    """Skip (or fail, where CI requires all there is) unless this process may mount."""
    if (why := find_why_no_mount()) is None:
        return
    if os.environ.get("CONSUMERD_REQUIRE_KAFKA") == "1":
        pytest.fail(f"full disks and unmounted volumes take the right to mount: {why}")
    pytest.skip(f"takes the right to mount: {why}")


def suffer(
    cluster: Cluster,
    unique: Callable[[str], str],
    folder: Path,
    figure: Figure,
    kinds: Sequence[Callable[[Path], DiskFault]],
) -> None:
    """Run a daemon with a sink and a topic for each fault, and one without any; let all happen; mend them; judge."""
    group = unique("disks")
    with contextlib.ExitStack() as stack:
        faults = {
            unique("topic"): stack.enter_context(kind(folder / f"disk-{number}"))
            for number, kind in enumerate([NoFault, *kinds])
        }
        for topic in faults:
            cluster.create_topic(topic, PARTITIONS)
        settings = settings_for(cluster.zookeeper, group, topics=("-",), offsets={"commit_interval_ms": 200})
        settings["subscriptions"] = [{"topics": [topic], "sink": topic} for topic in faults]
        settings["sinks"] = {
            topic: {
                "type": fault.sink,
                "path": str(fault.path),
                "roll_ms": 300,
            }
            for topic, fault in faults.items()
        }
        registry = stack.enter_context(open_registry(cluster.zookeeper))
        producer = cluster.ledger_producer(linger_ms="5")
        python_path = (str(stalling_sinks.install(folder / "sinks")), str(ROOT))
        with Daemon(folder, "daemon", settings, python_path=python_path) as daemon:
            with SteadyLoad(producer, dict.fromkeys(faults, PARTITIONS), per_second=PER_PARTITION):
                daemon.wait(
                    lambda: all(len(positions(registry, group, one)) == PARTITIONS for one in faults), "commits"
                )
                for fault in faults.values():
                    fault.begin()
                began = time.monotonic()
                daemon.wait(lambda: set(failing(daemon)) == expected_failing(faults), "what must fail fails")
                before = {topic: positions(registry, group, topic) for topic in faults}
                # a call that hangs is told after a while only
                lasts_s = max(FAULT_S, time.monotonic() - began + 2 * LATE_S)
                wait_until(lambda: time.monotonic() - began > lasts_s - LATE_S, "the faults have lasted", lasts_s + 5)
                late = {topic: positions(registry, group, topic) for topic in faults}
                wait_until(lambda: time.monotonic() - began > lasts_s, "they have lasted longer", lasts_s + 5)
                assert set(failing(daemon)) == expected_failing(faults)
                ended = {topic: positions(registry, group, topic) for topic in faults}
                for (topic, partition), position in flatten(ended).items():
                    if (topic, partition) not in expected_failing(faults):
                        assert position > late[topic][partition], f"{faults[topic].name}: {partition} stood still"
                    else:
                        assert position == before[topic][partition], f"{faults[topic].name}: {partition} went on"
                assert {fault.name: fault.strays() for fault in faults.values() if fault.strays()} == {}
                assert daemon.get("/livez")[0] == 200
                for fault in faults.values():
                    fault.end()
                mended = time.monotonic()
                daemon.wait(lambda: not failing(daemon), "all are well again", 60)
                figure("seconds until all were well again", time.monotonic() - mended)
            ledger = producer.finish()
            ends = log_ends(ledger)
            daemon.wait(
                lambda: all(
                    positions(registry, group, topic)[partition] == end for (topic, partition), end in ends.items()
                ),
                "everything landed and committed",
                60,
            )
            assert daemon.terminate() == 0, daemon.log()[-3000:]
        figure("records", len(ledger))
        for topic, fault in faults.items():
            sent = {place: record for place, record in ledger.items() if place[0] == topic}
            assert find_faults(fault.path, sent) == [], fault.name


def positions(registry: Registry, group: str, topic: str) -> dict[int, int]:
    """Return the stored positions of a topic."""
    return registry.offsets(group, topic)


def flatten(by_topic: dict[str, dict[int, int]]) -> dict[tuple[str, int], int]:
    """Return positions by topic and partition."""
    return {(topic, partition): position for topic, one in by_topic.items() for partition, position in one.items()}


def failing(daemon: Daemon) -> dict[tuple[str, int], str]:
    """Return the partitions of which the daemon says that they fail, and why."""
    return {
        (one["topic"], int(one["partition"])): one["reason"]
        for one in daemon.status()["partitions"]
        if one["state"] == "failing"
    }


def expected_failing(faults: dict[str, DiskFault]) -> set[tuple[str, int]]:
    """Return the partitions that cannot land anything."""
    return {
        (topic, partition)
        for topic, fault in faults.items()
        if fault.fails
        for partition in (range(PARTITIONS) if fault.spoils is None else fault.spoils)
    }
