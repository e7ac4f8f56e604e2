# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets set | reset | export`` on real clusters: with a daemon that runs, one that is away, and Java members."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, Sent
from tests.support.offset_commands import offsets, read_landed, rows
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records


def produce(cluster: Cluster, topic: str, partitions: int, count: int, **options: str) -> None:
    producer = cluster.ledger_producer(**options)
    producer.send(Sent(topic, number % partitions, None, b"value %d" % number) for number in range(count))
    producer.finish()


@pytest.mark.timeout(150)
def test_a_partition_is_moved_back_and_forth_by_its_daemon_and_by_the_next_start(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Back: the records again, in a chain of their own. Ahead: a gap that says why. The other partition does not notice."""
    cluster = shared_clusters(release)
    topic, group = unique("moved"), unique("moved")
    cluster.create_topic(topic, 2)
    produce(cluster, topic, 2, 200)
    folder = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper, group, topics=(topic,), sink={"type": "jsonl", "path": str(folder), "roll_ms": 300}
    )
    with open_registry(cluster.zookeeper) as registry:
        with Daemon(tmp_path, "running", settings) as daemon:
            daemon.wait(lambda: registry.offsets(group, topic) == {0: 100, 1: 100}, "all is landed and committed")
            outside = offsets(cluster.zookeeper, group, "set", f"{topic}/0=101", "--yes")
            unasked = offsets(cluster.zookeeper, group, "set", f"{topic}/0=30")
            (dry,) = rows(offsets(cluster.zookeeper, group, "set", f"{topic}/0=30", "--dry-run", "--json"))
            (back,) = rows(offsets(cluster.zookeeper, group, "set", f"{topic}/0=30", "--yes", "--json"))
            daemon.wait(lambda: registry.offsets(group, topic) == {0: 100, 1: 100}, "they are landed again")
            assert registry.client.get_children(f"/consumers/{group}/consumerd/requests/{topic}") == []
            assert daemon.terminate() == 0
        produce(cluster, topic, 2, 100)
        (ahead,) = rows(offsets(cluster.zookeeper, group, "set", f"{topic}/1=140", "--yes", "--json"))
        (_, standing) = rows(offsets(cluster.zookeeper, group, "show", "--json"))
        with Daemon(tmp_path, "next", settings) as daemon:
            daemon.wait(lambda: registry.offsets(group, topic) == {0: 150, 1: 150}, "the rest is landed")
            assert daemon.terminate() == 0

    assert (outside.returncode, unasked.returncode) == (2, 2)
    assert "outside the log [0, 100]" in outside.stderr
    assert "--yes" in unasked.stderr
    assert (dry["position"], dry["effect"], dry["way"]) == (100, "reads 70 again", "by its owner")
    assert (back["effect"], back["outcome"]) == ("reads 70 again", "carried out")
    assert (ahead["effect"], ahead["outcome"]) == ("skips 40", "left for the next of ours that claims it")
    assert (standing["position"], standing["request"]) == (100, 140)
    moved, other = read_landed(folder, topic, 0), read_landed(folder, topic, 1)
    assert [chain.origin for chain in moved.chains] == [0, 30]
    assert moved.offsets == [*range(100), *range(30, 150)]
    assert other.offsets == [*range(100), *range(140, 150)]
    assert [chain.origin for chain in other.chains] in ([0], [0, 140])
    assert [(gap["start"], gap["end"], gap["reason"]) for gap in other.gaps] == [(100, 140, "reset")]


@pytest.mark.timeout(120)
def test_a_partition_that_is_stopped_below_its_log_goes_on_where_the_operator_says(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The daemon runs on; what retention took is recorded with what follows."""
    cluster = shared_clusters(release)
    topic, group = unique("below"), unique("below")
    cluster.create_topic(topic, segment_bytes="1000")
    produce(cluster, topic, 1, 100, batch_size="200")
    start = cluster.expire(topic)
    folder = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper, group, topics=(topic,), sink={"type": "jsonl", "path": str(folder), "roll_ms": 300}
    )
    with open_registry(cluster.zookeeper) as registry:
        registry.client.create(f"/consumers/{group}/offsets/{topic}/0", b"0", makepath=True)
        with Daemon(tmp_path, "member", settings) as daemon:
            daemon.wait(lambda: [one["state"] for one in daemon.status()["partitions"]] == ["stopped"], "it is stopped")
            assert "offsets" in daemon.get("/readyz")[1]
            (moved,) = rows(offsets(cluster.zookeeper, group, "reset", topic, "--to", "earliest", "--yes", "--json"))
            daemon.wait_ready()
            daemon.wait(lambda: registry.offsets(group, topic) == {0: 100}, "the rest is landed and committed")
            assert daemon.terminate() == 0

    assert (moved["target"], moved["outcome"]) == (start, "carried out")
    assert read_landed(folder, topic, 0).offsets == list(range(start, 100))


@pytest.mark.timeout(150)
def test_a_java_groups_positions_are_moved_only_while_no_java_member_runs(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """It would commit over what is written; stopped, it goes on where it was told to, by time, and by an older export."""
    cluster = shared_clusters(release)
    topic, group, copy = unique("java"), unique("java"), unique("copy")
    cluster.create_topic(topic, 2)
    produce(cluster, topic, 2, 40)
    kept = tmp_path / "kept.json"
    with open_registry(cluster.zookeeper) as registry:
        java = cluster.java_consumer(group, topic)
        wait_until(lambda: registry.offsets(group, topic) == {0: 20, 1: 20}, "the Java member has committed", 40)
        refused = offsets(cluster.zookeeper, group, "set", f"{topic}/0=5", "--yes")
        looked = offsets(cluster.zookeeper, group, "set", f"{topic}/0=5", "--dry-run", "--json")
        exported = offsets(cluster.zookeeper, group, "export", "--output", str(kept))
        assert registry.offsets(group, topic) == {0: 20, 1: 20}
        java.terminate()
        wait_until(lambda: not registry.members(group), "it has left")
        moved = rows(offsets(cluster.zookeeper, group, "reset", "--all-topics", "--to", "earliest", "--yes", "--json"))
        assert registry.offsets(group, topic) == {0: 0, 1: 0}
        future = rows(offsets(cluster.zookeeper, group, "reset", f"{topic}/1", "--to", "2100-01-01", "--yes", "--json"))
        past = rows(
            offsets(cluster.zookeeper, group, "reset", f"{topic}/0", "--to", "2001-01-01", "--dry-run", "--json")
        )
        assert registry.offsets(group, topic) == {0: 0, 1: 20}
        java = cluster.java_consumer(group, topic)
        wait_until(lambda: len(java.records()) == 20, "the Java member reads partition 0 again", 40)
        java.terminate()
        copied = rows(offsets(cluster.zookeeper, copy, "set", "--from-file", str(kept), "--yes", "--json"))
        assert registry.offsets(copy, topic) == {0: 20, 1: 20}

    assert (refused.returncode, looked.returncode) == (1, 1)
    assert json.loads(looked.stdout)["way"] == "not at all"
    assert f"{topic}/0: it is held by" in refused.stderr
    assert "Java members" in refused.stderr
    assert (exported.returncode, exported.stdout) == (0, "")
    assert Counter(row["outcome"] for row in [*moved, *future]) == {"written": 3}
    # a time is known to the segment only before 0.10.1: never after what is meant
    assert [row["target"] for row in future] == [20]
    assert [row["target"] for row in past] == [0]
    assert [row["effect"] for row in copied] == ["first position"] * 2
    assert Counter(record[1] for record in java.records()) == {0: 20}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("typed", "code", "position"), [(b"y\n", 0, 3), (b"\n", 1, 7)])
def test_on_a_terminal_it_shows_the_plan_and_asks(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], typed: bytes, code: int, position: int
) -> None:
    """Whoever just presses enter has moved nothing."""
    cluster = shared_clusters(release)
    topic, group = unique("asks"), unique("asks")
    cluster.create_topic(topic)
    produce(cluster, topic, 1, 10)
    ours, theirs = pty.openpty()
    with open_registry(cluster.zookeeper) as registry:
        registry.client.create(f"/consumers/{group}/offsets/{topic}/0", b"7", makepath=True)
        command = ["offsets", "set", "-z", cluster.zookeeper, "-g", group, f"{topic}/0=3"]
        with subprocess.Popen(
            [sys.executable, "-m", "consumerd", *command], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            os.close(theirs)
            os.write(ours, typed)
            shown, said = process.communicate(timeout=40)
        os.close(ours)
        assert registry.offsets(group, topic) == {0: position}

    assert process.returncode == code, said
    assert b"reads 4 again" in shown
    assert b"Move 1 partition of" in said
