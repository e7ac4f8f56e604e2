# SPDX-License-Identifier: Apache-2.0
"""The one-shot commands against a real cluster with a Java group and one of ours, and a start from a Java team's file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.deleted_topic import check_commands
from tests.support.kafka import Cluster, Sent, parse_release
from tests.support.registry import open_registry
from tests.support.waiting import wait_until


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "consumerd", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def rows(*arguments: str) -> list[dict[str, object]]:
    """Run a command with --json and return its rows."""
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def produce(cluster: Cluster, topic: str, partitions: int, count: int) -> None:
    producer = cluster.ledger_producer()
    producer.send(Sent(topic, number % partitions, None, b"value") for number in range(count))
    producer.finish()


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_what_the_commands_say_of_a_java_group(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """A team looks before it moves: topics, the Java group's lag and offsets, and what a replica of ours would change."""
    cluster = shared_clusters(release)
    topic, group = unique("java"), unique("java")
    cluster.create_topic(topic, 4)
    produce(cluster, topic, 4, 40)
    java = cluster.java_consumer(group, topic, streams=2)
    with open_registry(cluster.zookeeper) as registry:
        wait_until(
            lambda: registry.offsets(group, topic) == dict.fromkeys(range(4), 10), "the Java member has committed", 40
        )
        at = ("--zookeeper", cluster.zookeeper)
        topics = {row["topic"]: row for row in rows("topics", *at)}
        owned = rows("lag", *at, "--group", group)
        plan = rows("explain-rebalance", *at, "--group", group, "--replicas", "2")
        java.terminate()
        produce(cluster, topic, 4, 8)
        behind = rows("lag", *at, "--group", group, topic)
        offsets = rows("offsets", "show", *at, "--group", group)

    assert topics[topic]["partitions"] == 4
    assert [(row["position"], row["latest"], row["lag"]) for row in owned] == [(10, 10, 0)] * 4
    assert len({row["owner"] for row in owned}) == 2
    assert [row["owner"] == row["assigned"] for row in plan] == [True] * 4
    assert sum(bool(row["moves"]) for row in plan) == 2
    assert [(row["owner"], row["lag"]) for row in behind] == [(None, 2)] * 4
    has_timestamps = parse_release(release) >= (0, 10)
    assert all((row["seconds"] is not None) == has_timestamps for row in behind)
    assert [row["position"] for row in offsets] == [10] * 4


@pytest.mark.timeout(60)
def test_what_is_not_there_is_said_with_what_is(release: str, shared_clusters: ClusterFactory) -> None:
    """A typo in a group or a topic."""
    cluster = shared_clusters(release)
    no_group = command("lag", "--zookeeper", cluster.zookeeper, "--group", "nobody")
    no_topic = command("topics", "--zookeeper", cluster.zookeeper, "nothing")
    no_chroot = command("topics", "--zookeeper", f"{cluster.zookeeper}/nowhere", "--timeout", "10")

    assert (no_group.returncode, no_topic.returncode) == (1, 2)
    assert "nobody" in no_group.stderr
    assert "nothing" in no_topic.stderr
    assert no_chroot.returncode in {2, 3}
    assert "nowhere" in no_chroot.stderr


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_the_doctor_finds_nothing_in_a_java_group_that_works_and_what_is_wrong_before_a_start(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """What a team sees on the day of the move: a clean bill first, then the two things that would stop partitions."""
    cluster = shared_clusters(release)
    topic, group = unique("doctor"), unique("doctor")
    cluster.create_topic(topic, 3)
    produce(cluster, topic, 3, 30)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings_for(cluster.zookeeper, group, topics=(topic,))))
    java = cluster.java_consumer(group, topic)
    with open_registry(cluster.zookeeper) as registry:
        wait_until(
            lambda: registry.offsets(group, topic) == dict.fromkeys(range(3), 10), "the Java member has committed", 40
        )
        healthy = command("doctor", "--zookeeper", cluster.zookeeper, "--group", group)
        java.terminate()
        registry.client.set(f"/consumers/{group}/offsets/{topic}/0", b"99")
        registry.client.set(f"/consumers/{group}/offsets/{topic}/1", b"ninety-nine")
        ill = command("doctor", "--config", str(config), "--json")

    assert (healthy.returncode, healthy.stdout) == (0, "nothing found\n"), healthy.stderr
    assert ill.returncode == 1
    findings = list(map(json.loads, ill.stdout.splitlines()))
    # before a start nothing answers at http.listen, which is a notice
    found = {one["check"]: one for one in findings if one["severity"] != "notice"}
    assert found.keys() == {"position-above-log", "position-malformed"}
    assert found["position-above-log"]["where"] == f"/consumers/{group}/offsets/{topic}/0"
    assert "above the log [0, 10)" in found["position-above-log"]["what"]
    assert "offsets.on_above is stop" in found["position-above-log"]["what"]


@pytest.mark.timeout(60)
def test_impatient_java_members_are_pointed_out(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Retries times backoff must outlast a session, or a crash leaves partitions unowned."""
    cluster = shared_clusters(release)
    topic, group = unique("patience"), unique("patience")
    cluster.create_topic(topic, 2)
    with Daemon(tmp_path, "member", settings_for(cluster.zookeeper, group, topics=(topic,))) as member:
        member.wait_ready()
        at = ("explain-rebalance", "--zookeeper", cluster.zookeeper, "--group", group)
        fine = command(*at)
        impatient = command(*at, "--java-retries", "4", "--java-backoff-ms", "200")
        member.terminate()

    assert (fine.returncode, fine.stderr) == (0, "")
    assert "times rebalance.backoff.ms=200 is 800 ms" in impatient.stderr


@pytest.mark.timeout(90)
def test_a_java_teams_file_starts_a_member_where_the_java_one_stopped(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The same consumer.properties, the same group: the position is taken over, nothing is read twice or skipped."""
    cluster = shared_clusters(release)
    topic, group = unique("moved"), unique("moved")
    cluster.create_topic(topic, 2)
    produce(cluster, topic, 2, 20)
    java = cluster.java_consumer(group, topic)
    wait_until(lambda: len(java.records()) == 20, "the Java member has read all", 40)
    java.terminate()
    produce(cluster, topic, 2, 6)
    properties = tmp_path / "consumer.properties"
    properties.write_text(
        f"zookeeper.connect={cluster.zookeeper}\ngroup.id={group}\nauto.offset.reset=smallest\n"
        "zookeeper.session.timeout.ms=6000\nauto.commit.interval.ms=1000\nrebalance.backoff.ms=2000\n"
    )
    done = tmp_path / "out"
    with done.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "consumerd", "run", "--properties", str(properties), "--topics", topic,
             "--set", "http.listen=off"],
            stdout=out, stderr=subprocess.PIPE,
        )  # fmt: skip
    try:
        wait_until(lambda: done.read_bytes().count(b"\n") >= 6, "six records", 40)
    finally:
        process.terminate()
        log = process.communicate(timeout=20)[1].decode()
        sys.stderr.write(log)

    read = [json.loads(line) for line in done.read_text().splitlines()]
    assert process.returncode == 0, log[-2000:]
    assert sorted((row["partition"], row["offset"]) for row in read) == [(p, o) for p in (0, 1) for o in (10, 11, 12)]


@pytest.mark.timeout(180)
def test_commands_tell_a_position_of_a_deleted_topic(
    release: str,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Believed, it hides records of the new topic from lag, and from the consumer once it was exported and set."""
    check_commands(shared_clusters(release), unique("again"), unique("again"), tmp_path, capsys)
