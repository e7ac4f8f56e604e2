# SPDX-License-Identifier: Apache-2.0
"""Commands and daemons on real clusters without ZooKeeper: topics, lag, positions, records, and topic ids."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.conftest import require
from tests.support.daemon import Daemon
from tests.support.kafka import CODECS
from tests.support.kraft import KraftCluster
from tests.support.landing_reader import LandedPartition, read_landing

RELEASES: Final = (pytest.param("4.0.2", marks=pytest.mark.full), "4.3.1")

pytestmark = [pytest.mark.records, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=RELEASES)
def cluster(request: pytest.FixtureRequest) -> Iterator[KraftCluster]:
    """One node, for all tests of this file; each keeps to topics and groups of its own."""
    require(request.param)
    with KraftCluster(request.param) as running:
        yield running


@dataclass(frozen=True)
class Done:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Lines of ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(cluster: KraftCluster, *words: str, stdin: bytes = b"") -> Done:
    command = [sys.executable, "-m", "consumerd", *words, "--bootstrap", cluster.bootstrap, "--timeout", "60"]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def ask(cluster: KraftCluster, *words: str) -> list[dict[str, Any]]:
    done = run(cluster, *words, "--json")
    assert done.code == 0, done.err
    return done.rows


def fill(cluster: KraftCluster, topic: str, values: int = 10, partitions: int = 2, codec: str = "none") -> None:
    """Create a topic, and write the values into its partition 0."""
    cluster.create_topic(topic, partitions)
    produce(cluster, topic, values, codec)


def produce(cluster: KraftCluster, topic: str, values: int, codec: str = "none") -> None:
    lines = b"".join(b"value-%d\n" % number for number in range(values))
    done = run(cluster, "produce", topic, "--quiet", "--partition", "0", "--codec", codec, stdin=lines)
    assert done.code == 0, done.err


def find_incarnation(cluster: KraftCluster, topic: str) -> str:
    (row,) = ask(cluster, "topics", topic)
    return str(row["incarnation"])


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


def test_topics_have_their_ids(cluster: KraftCluster, unique: Callable[[str], str]) -> None:
    """As Kafka's own tool prints them."""
    topic = unique("topics")
    fill(cluster, topic)
    described = cluster.run_tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", cluster.bootstrap, "--describe", "--topic", topic
    )

    (row,) = ask(cluster, "topics", topic)
    partitions = ask(cluster, "topics", topic, "--partitions")

    assert (row["partitions"], row["replication"], row["leaderless"]) == (2, 1, 0)
    assert f"TopicId: {row['incarnation']}" in described
    assert [(one["partition"], one["leader"], one["earliest"], one["latest"]) for one in partitions] == [
        ("0", 1, 0, 10),
        ("1", 1, 0, 0),
    ]


@pytest.mark.full
def test_misspelt_topic_is_told(cluster: KraftCluster, unique: Callable[[str], str]) -> None:
    """As in a cluster with ZooKeeper."""
    topic = unique("spelt")
    fill(cluster, topic)

    done = run(cluster, "topics", f"{topic}x")

    assert done.code == 2
    assert f"did you mean {topic}?" in done.err


@pytest.mark.full
def test_records_are_shown(cluster: KraftCluster, unique: Callable[[str], str]) -> None:
    """Of every codec."""
    topic = unique("tail")
    cluster.create_topic(topic)
    for codec in CODECS[cluster.release]:
        produce(cluster, topic, 3, codec)

    done = run(cluster, "tail", topic, "--from", "EARLIEST", "--format", "value")

    assert done.code == 0, done.err
    assert done.out.splitlines() == ["value-0", "value-1", "value-2"] * len(CODECS[cluster.release])


def test_positions_are_set_shown_exported_and_reset(
    cluster: KraftCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """They are in Kafka, and are counted in the lag."""
    topic, group, document = unique("positions"), unique("g"), tmp_path / "positions.json"
    fill(cluster, topic)

    assert run(cluster, "lag", "-g", group).code == 1
    done = run(cluster, "offsets", "set", "-g", group, f"{topic}/0=4", "--yes")
    assert done.code == 0, done.err
    (shown,) = ask(cluster, "offsets", "show", "-g", group)
    lag = {row["partition"]: row for row in ask(cluster, "lag", "-g", group)}
    exported = run(cluster, "offsets", "export", "-g", group, "--output", str(document))

    assert (shown["position"], shown["validity"]) == (4, "valid")
    assert shown["note"] == "set by an operator: the next member that owns it goes on there"
    assert (lag["0"]["position"], lag["0"]["lag"], lag["0"]["owner"]) == (4, 6, None)
    assert exported.code == 0, exported.err
    (written,) = json.loads(document.read_text())["offsets"]
    assert (written["position"], written["incarnation"]) == (4, find_incarnation(cluster, topic))
    assert json.loads(document.read_text())["cluster"] == cluster.cluster_id

    assert run(cluster, "offsets", "reset", "-g", group, topic, "--to", "latest", "--yes").code == 0
    assert {row["partition"]: row["position"] for row in ask(cluster, "lag", "-g", group)} == {"0": 10, "1": 0}
    assert run(cluster, "offsets", "set", "-g", group, "--from-file", str(document), "--yes").code == 0
    assert {row["partition"]: row["position"] for row in ask(cluster, "lag", "-g", group)} == {"0": 4, "1": 0}
    outside = run(cluster, "offsets", "set", "-g", group, f"{topic}/0=11", "--yes")
    assert (outside.code, "outside the log [0, 10]" in outside.err) == (2, True)
    assert (run(cluster, "doctor", "-g", group).code, run(cluster, "offsets", "cancel", "-g", group).code) == (1, 2)


def test_topic_that_was_created_again_is_another_one(
    cluster: KraftCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Its positions are not those of the deleted one, not even those that were exported."""
    topic, group, document = unique("again"), unique("g"), tmp_path / "positions.json"
    fill(cluster, topic)
    assert run(cluster, "offsets", "set", "-g", group, f"{topic}/0=10", "--yes").code == 0
    assert run(cluster, "offsets", "export", "-g", group, "--output", str(document)).code == 0
    before = find_incarnation(cluster, topic)

    cluster.delete_topic(topic)
    wait_until(lambda: run(cluster, "topics", topic).code == 2)
    fill(cluster, topic, 25)

    assert find_incarnation(cluster, topic) != before
    lag = run(cluster, "lag", "-g", group, topic, "--json")
    assert all(row["position"] is None for row in lag.rows), "the coordinator drops them with the topic"
    done = run(cluster, "offsets", "set", "-g", group, "--from-file", str(document), "--yes")
    assert done.code == 2
    assert "was deleted and re-created since the export" in done.err


def test_a_group_with_members_is_shown_and_not_moved(cluster: KraftCluster, unique: Callable[[str], str]) -> None:
    """What is written below a member would be overwritten; it is said what to do."""
    topic, group = unique("members"), unique("g")
    fill(cluster, topic)
    name = f"consumer-{group}"
    cluster.console_consumer(group, topic)

    def owned() -> bool:
        done = run(cluster, "lag", "-g", group, "--json")
        return done.code == 0 and {row["owner"] for row in done.rows} - {None} != set() and len(done.rows) == 2

    wait_until(owned)
    rows = ask(cluster, "explain-rebalance", "-g", group)
    done = run(cluster, "offsets", "reset", "-g", group, topic, "--to", "earliest", "--yes")

    assert {row["owner"] for row in rows} == {row["assigned"] for row in rows}
    assert all(row["owner"].endswith("/127.0.0.1") for row in rows)
    assert done.code == 1
    assert f"group {group} has 1 member" in done.err
    assert "stop them" in done.err
    assert run(cluster, "explain-rebalance", "-g", group, "--replicas", "1").code == 2

    cluster.stop(name)
    wait_until(lambda: run(cluster, "offsets", "reset", "-g", group, topic, "--to", "earliest", "--yes").code == 0)
    assert {row["position"] for row in ask(cluster, "lag", "-g", group)} == {0}


def daemon(cluster: KraftCluster, folder: Path, name: str, group: str, topic: str) -> Daemon:
    """Start a member of a group that lands a topic as JSON lines."""
    settings = {
        "cluster": {"bootstrap": cluster.bootstrap},
        "group": {"id": group, "membership": "kafka", "session_timeout_ms": 6000},
        "offsets": {"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
        "subscriptions": [{"topics": [topic], "sink": "lake"}],
        "sinks": {"lake": {"type": "jsonl", "path": str(folder / "landing"), "roll_ms": 300}},
    }
    return Daemon(folder, name, settings)


def landed(folder: Path) -> dict[int, LandedPartition]:
    landing = read_landing(folder / "landing")
    assert landing.problems == []
    return {int(one.partition): one for one in landing.partitions.values()}


def count_landed(folder: Path) -> int:
    """Return the number of landed records; 0 while a file is being published."""
    try:
        return sum(len(one.offsets) for one in landed(folder).values())
    except (AssertionError, FileNotFoundError):
        return 0


def write_all(cluster: KraftCluster, topic: str, values: int) -> None:
    """Write as many values into each of two partitions."""
    lines = b"".join(b"value-%d\n" % number for number in range(values))
    for partition in ("0", "1"):
        done = run(cluster, "produce", topic, "--quiet", "--partition", partition, stdin=lines)
        assert done.code == 0, done.err


def test_daemons_share_die_and_follow_a_recreated_topic(
    cluster: KraftCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each record lands once; the topic that is created again has a chain of its own, from its first record on."""
    topic, group = unique("lake"), unique("g")
    cluster.create_topic(topic, 2)
    with daemon(cluster, tmp_path, "one", group, topic) as one, daemon(cluster, tmp_path, "two", group, topic) as two:
        one.wait(lambda: len(one.owned()) == len(two.owned()) == 1, "each has a partition", 90)
        write_all(cluster, topic, 20)
        wait_until(lambda: count_landed(tmp_path) == 40)
        one.kill()
        two.wait(lambda: len(two.owned()) == 2, "the other has both", 90)
        write_all(cluster, topic, 10)
        wait_until(lambda: count_landed(tmp_path) == 60)
        before = find_incarnation(cluster, topic)
        rows = ask(cluster, "lag", "-g", group)

        cluster.delete_topic(topic)
        wait_until(lambda: run(cluster, "topics", topic).code == 2)
        cluster.create_topic(topic, 2)
        write_all(cluster, topic, 50)
        wait_until(lambda: count_landed(tmp_path) == 160, 120)
        after = find_incarnation(cluster, topic)
        examined = run(cluster, "doctor", "--config", str(tmp_path / "two.yaml"))
        assert two.terminate() == 0

    found = landed(tmp_path)
    assert {row["owner"] is not None for row in rows} == {True}
    assert before != after
    for partition in (0, 1):
        chains = found[partition].chains
        assert [(before, 0, 30), (after, 0, 50)] == [(one.log, one.origin, one.end) for one in chains]
        offsets = [[record.offset for file in one.files for record in file.records] for one in chains]
        assert [list(range(30)), list(range(50))] == offsets
    assert examined.code in {0, 1}, examined.err
