# SPDX-License-Identifier: Apache-2.0
"""Brokers of Kafka 0.7 that go away and come back, with their logs or without: what operators see, and what lands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.cli.main import main
from consumerd.config.job import JobSettings
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.spark.audit import run as run_audit
from consumerd.spark.job import Silent
from tests.e2e.test_legacy_groups import by_identity, landed, send_everywhere, settings, wait_committed
from tests.support.daemon import Daemon
from tests.support.embedded_legacy import LegacyThread
from tests.support.landing_reader import read_landing
from tests.support.registry import open_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.records

Run = Callable[..., tuple[str, str]]
AWAY = ["events/1-0", "events/1-1", "events/1-2"]
WIPED = (
    "broker 1 is registered without them, as if it had lost its logs; its partitions come back when it has messages of "
    "the topic again"
)
WHY = "broker 1 is not registered; its partitions come back with it, at their positions"


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path) -> Iterator[LegacyThread]:
    """Two brokers with three partitions of each topic."""
    at = f"{zookeeper.connect_string}/{unique('away')}"
    with LegacyThread(tmp_path / "brokers", at, num_partitions=3) as brokers:
        yield brokers


@pytest.fixture
def run(cluster: LegacyThread, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the cluster; return what it prints on stdout and stderr."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        done = main([*arguments, "-z", cluster.zookeeper])
        out, err = capsys.readouterr()
        assert done == code, out + err
        return out, err

    return run


def shown(status: dict[str, Any]) -> list[tuple[int, str, list[str]]]:
    return [(one["broker"], one["reason"], one["partitions"]) for one in status["away"]]


def test_a_broker_that_is_away_is_shown_until_it_is_back(cluster: LegacyThread, run: Run, tmp_path: Path) -> None:
    """The group goes on with the other broker, and at the stored positions when the broker is back."""
    sent = send_everywhere(cluster, "before")
    folder = tmp_path / "landed"
    with Daemon(tmp_path, "one", settings(cluster, folder)) as one:
        wait_committed([one], sent)
        cluster.stop_node(1)
        one.wait(lambda: shown(one.status()) == [(1, WHY, AWAY)], "the status shows what is away")
        with open_registry(cluster.zookeeper) as registry:
            owners = "/consumers/lake/owners/events"
            one.wait(lambda: len(registry.client.get_children(owners)) == 3, "what is away is released")
        assert (200, "ok\n") == one.get("/readyz")
        assert WHY in one.get("/")[1]
        assert "consumerd_partitions_away 3.0" in one.get("/metrics")[1]
        out, _ = run("lag", "-g", "lake")
        assert out.count("away: broker 1 is not registered; the partition comes back with it, at its position") == 3
        assert out.rstrip().endswith("unknown in 3 of 6 partitions, 3 of 6 partitions without an owner, 3 away")
        out, _ = run("doctor", "-g", "lake", "--json", code=1)
        (found,) = map(json.loads, out.splitlines())
        assert (found["check"], found["where"]) == ("partition-away", "/brokers/ids/1")
        assert "delete" not in found["advice"]
        assert f"away: {WHY}" in run("explain-rebalance", "-g", "lake")[1]
        assert run("offsets", "show", "-g", "lake")[0].count("away: broker 1 is not registered") == 3
        assert "3 away" in run("groups")[0]
        assert "their partitions, are not listed" in run("topics")[1]
        refused = run("offsets", "set", "-g", "lake", "events/1-0=0", "--yes", code=2)[1]
        assert "away: broker 1 is not registered" in refused
        assert "start the broker" in refused
        assert one.terminate() == 0
    with Daemon(tmp_path, "two", settings(cluster, folder)) as two:
        two.wait(lambda: shown(two.status()) == [(1, WHY, AWAY)], "the next process sees the same")
        cluster.start_node(1)
        two.wait(lambda: two.status()["owned"] == 6, "the partitions are back")
        sent += send_everywhere(cluster, "after")
        wait_committed([two], sent)
        assert shown(two.status()) == []
        assert two.terminate() == 0
    assert landed(folder) == by_identity(sent)
    assert run("doctor", "-g", "lake")[0] == "nothing found\n"


def test_commands_tell_what_is_away_while_every_broker_is(cluster: LegacyThread, run: Run, tmp_path: Path) -> None:
    """No registration tells the generation, but what the brokers and the group left does; and produce waits for one."""
    sent = send_everywhere(cluster, "before")
    with Daemon(tmp_path, "one", settings(cluster, tmp_path / "landed")) as one:
        wait_committed([one], sent)
        assert one.terminate() == 0
    for node in (0, 1):
        cluster.stop_node(node)
    out, _ = run("lag", "-g", "lake")
    assert out.count("is not registered; the partition comes back with it, at its position") == 6
    assert run("offsets", "show", "-g", "lake")[0].count("is not registered") == 6
    assert "6 away" in run("groups")[0]
    assert "are not listed" in run("topics")[1]
    lines = tmp_path / "lines"
    lines.write_text("late\n")
    starting = threading.Timer(1.0, cluster.start_node, [0])
    starting.start()
    run("produce", "--timeout", "20", "--file", str(lines), "events")
    starting.join()


def test_a_daemon_ends_when_the_brokers_are_of_another_generation(cluster: LegacyThread, tmp_path: Path) -> None:
    """An upgrade in place under the same chroot: all that it would write from then on is of the old format."""
    sent = send_everywhere(cluster, "before")
    with Daemon(tmp_path, "one", settings(cluster, tmp_path / "landed")) as one:
        wait_committed([one], sent)
        for node in (0, 1):
            cluster.stop_node(node)
        with open_registry(cluster.zookeeper) as registry:
            modern = b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":1,"port":9092}'
            registry.client.create("/brokers/ids/0", modern)
            assert one.wait_end() == 2


def test_a_broker_that_has_lost_its_logs_begins_anew_by_policy(cluster: LegacyThread, run: Run, tmp_path: Path) -> None:
    """Its offsets begin at 0 again under the same names: a new chain, with the next truncation number, keeps both."""
    first = send_everywhere(cluster, "first")
    folder = tmp_path / "landed"
    with Daemon(tmp_path, "one", settings(cluster, folder, offsets={"on_above": "earliest"})) as one:
        wait_committed([one], first)
        cluster.wipe_node(1)
        one.wait(lambda: shown(one.status()) == [(1, WIPED, AWAY)], "nothing of it is registered")
        second = [
            message
            for partition in range(3)
            for message in cluster.send("events", [b"2nd", b"2nd"], node=1, partition=partition)
        ]
        ends = {message.partition: message.next_offset for message in (*first, *second)}
        wait_committed(
            [one], (message for message in (*first, *second) if message.next_offset == ends[message.partition])
        )
        assert one.status()["away"] == []
        assert one.terminate() == 0
    zone = read_landing(folder)
    assert zone.problems == []
    for partition in range(3):
        old, new = zone.partitions["events", f"1-{partition}"].chains
        assert (new.incarnation[0], new.incarnation[1]) == (old.incarnation[0], old.incarnation[1] + 1)
        of_old, of_new = ([record.value for file in chain.files for record in file.records] for chain in (old, new))
        assert of_old == [one.value for one in first if one.partition == f"1-{partition}"]
        assert of_new == [b"2nd", b"2nd"]
    audit = JobSettings.model_validate(
        {
            "cluster": {"zookeeper": cluster.zookeeper},
            "group": {"id": "lake"},
            "pipeline": {"landing": {"roots": [str(folder)]}},
        }
    )
    summary = run_audit(no_spark, audit, Silent())
    assert summary.findings == ()
    assert summary.numbers["records"] == len(first) + len(second)
    assert run("doctor", "-g", "lake")[0] == "nothing found\n"


def no_spark() -> SparkSession:
    """Refuse: an audit of names and metadata needs no Spark."""
    raise AssertionError("no job of Spark is to run")
