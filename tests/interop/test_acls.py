# SPDX-License-Identifier: Apache-2.0
"""ACLs of real brokers: given, taken away and given again under load; told everywhere, with a command that mends it."""

from __future__ import annotations

import html
import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.cli.main import FAILED, main
from tests.interop.conftest import Figure, SecureFactory
from tests.interop.test_lasting_faults import acknowledged, gauge
from tests.support.daemon import Daemon, settings_for
from tests.support.landing_check import check_landing, wait_landed
from tests.support.load import SteadyLoad
from tests.support.secure_kafka import SecureCluster

pytestmark = [pytest.mark.drawn(parts=5), pytest.mark.records, pytest.mark.timeout(300)]

GUARDED, OPEN = "guarded", "open"
TOLD_S: Final = 30.0
AUTHORIZER: Final = "kafka.security.auth.SimpleAclAuthorizer"
_COMMAND: Final = re.compile(r"`(kafka-acls [^`]*)`")


def change_acls(cluster: SecureCluster, *arguments: str) -> None:
    """Run the tool of the operator's."""
    cluster.run_tool("kafka.admin.AclCommand", *arguments, brisk=True)


def allow(cluster: SecureCluster, topic: str) -> None:
    reach = ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}")
    change_acls(cluster, *reach, "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", topic)


def forbid(cluster: SecureCluster, topic: str) -> None:
    """Take every rule of a topic away: nobody but the broker may use it then."""
    reach = ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}")
    change_acls(cluster, *reach, "--remove", "--force", "--topic", topic)


def partition_of(daemon: Daemon, topic: str) -> dict[str, Any]:
    return next((dict(one) for one in daemon.status()["partitions"] if one["topic"] == topic), {"state": "none"})


def check_told(daemon: Daemon, *, seconds: float) -> None:
    """Wait until API, page, log and metrics say that the topic may not be read."""
    began = time.monotonic()
    daemon.wait(
        lambda: (
            partition_of(daemon, GUARDED)["state"] == "failing"
            and "kafka-acls" in str(partition_of(daemon, GUARDED)["reason"])
        ),
        "the API tells the right that is missing",
        seconds,
    )
    assert time.monotonic() - began <= seconds
    reason = partition_of(daemon, GUARDED)["reason"]
    assert "`Topic:guarded` for User:alice" in reason
    assert _COMMAND.findall(html.unescape(daemon.get("/")[1])), "the page has the command"
    assert gauge(daemon, "consumerd_failing_partitions") == 1
    assert gauge(daemon, "consumerd_partition_failing_seconds", GUARDED) > 0
    assert [one["topic"] for one in daemon.events("delivery_failing")][-1] == GUARDED


def mend(daemon: Daemon, cluster: SecureCluster) -> float:
    """Do what the reason says; return the seconds after it until records land again."""
    (command,) = _COMMAND.findall(partition_of(daemon, GUARDED)["reason"])
    change_acls(cluster, *shlex.split(command)[1:])
    began, before = time.monotonic(), acknowledged(daemon, GUARDED)
    daemon.wait(lambda: acknowledged(daemon, GUARDED) > before, f"records land after {command}", TOLD_S)
    assert partition_of(daemon, GUARDED)["state"] == "running"
    return time.monotonic() - began


Doctor = Callable[[Daemon], dict[str, tuple[str, str]]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run the doctor with a daemon's settings; returns place and advice of each finding."""

    def run(daemon: Daemon) -> dict[str, tuple[str, str]]:
        capsys.readouterr()
        code = main(["doctor", "--config", f"{daemon.directory}/{daemon.name}.yaml", "--json", "--timeout", "20"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert code == FAILED
        return {one["check"]: (one["where"], one["advice"]) for one in lines}

    return run


@pytest.mark.parametrize("secured", [pytest.param("0.10.2.2", marks=pytest.mark.full), "1.1.1"], scope="module")
def test_acl_given_taken_away_and_given_again_under_load(
    secured: str, own_secure_cluster: SecureFactory, tmp_path: Path, figure: Figure, doctor: Doctor
) -> None:
    """The other topic goes on; what was told ends soon after the grant; every record lands once."""
    cluster = own_secure_cluster(secured, authorizer_class_name=AUTHORIZER)
    for topic in (GUARDED, OPEN):
        cluster.create_topic(topic, 1)
    allow(cluster, OPEN)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, "acls", topics=(GUARDED, OPEN), sink=sink)
    settings["cluster"] = cluster.section("SCRAM-SHA-256", tls=False)
    settings["offsets"] = {"on_missing": "earliest"}
    producer = cluster.ledger_producer(linger_ms="5")
    with Daemon(tmp_path, "member", settings) as member:
        with SteadyLoad(producer, {GUARDED: 1, OPEN: 1}, per_second=40) as load:
            member.wait(lambda: partition_of(member, GUARDED)["state"] != "none", "the partition is claimed", 60)
            check_told(member, seconds=TOLD_S)
            check = "topic-unknown-to-brokers" if secured == "0.10.2.2" else "topic-not-described"
            where, advice = doctor(member)[check]
            assert (where, "--topic guarded" in advice) == (GUARDED, True)
            figure("seconds from the grant until records land", mend(member, cluster))
            member.wait(lambda: acknowledged(member, GUARDED) > 20, "records land", 60)

            assert gauge(member, "consumerd_failing_partitions") == 0
            forbid(cluster, GUARDED)
            check_told(member, seconds=TOLD_S)
            flowing = acknowledged(member, OPEN)
            member.wait(lambda: f"{GUARDED}/0" in member.get("/readyz")[1], "the probe names it", 60)
            assert member.get("/readyz")[0] == 200
            assert acknowledged(member, OPEN) > flowing, "the other topic went on"
            assert len(member.events("delivery_failing")) == 2, "each loss of the right is told once"
            stopped = acknowledged(member, GUARDED)

            figure("seconds from the second grant until records land", mend(member, cluster))
            member.wait(lambda: acknowledged(member, GUARDED) > stopped + 20, "records land again", 60)
            member.wait(lambda: member.get("/readyz") == (200, "ok\n"), "all is well", 60)
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        member.wait(lambda: len(member.events("delivery_recovered")) == 2, "the log says that both are over")
        assert member.terminate() == 0

    check_landing(landing, ledger)
