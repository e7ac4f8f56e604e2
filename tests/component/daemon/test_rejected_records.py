"""A sink of another distribution refuses one record: what a whole daemon makes of it under each policy.

The broker is one of ours in a process of its own; ZooKeeper is a real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.cli.main import main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import Daemon, settings_for
from tests.support.endless_broker import TOPIC, TRICKLE, VALUE
from tests.support.landing_reader import LandedPartition, read_landing
from tests.support.memory import run_broker
from tests.support.refusing_sink import REASON, REFUSED_OFFSET, REFUSED_PARTITION
from tests.support.registry import open_registry
from tests.support.stalling_sinks import install
from tests.support.zookeeper import run_server

PARTITIONS = 2
ENOUGH = REFUSED_OFFSET + 50
ROOT = Path(__file__).parents[3]
GAP = {"start": REFUSED_OFFSET, "end": REFUSED_OFFSET + 1, "reason": "skipped", "offsets": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def run(server: EmbeddedZooKeeper, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Daemon]]:
    """Start the daemon with a policy, on a chroot of the test's own; it is killed at the end."""
    daemons: list[Daemon] = []
    zookeeper = f"{server.connect_string}/{request.node.name.partition('[')[2].rstrip(']') or 'stop'}"
    with open_registry(server.connect_string) as registry:
        registry.client.ensure_path(f"/{zookeeper.rpartition('/')[2]}")

    def start(policy: str) -> Daemon:
        settings = settings_for(
            zookeeper,
            "rejected",
            topics=(TOPIC,),
            sink={"type": "refusing", "path": str(tmp_path / "landing"), "roll_ms": 200, "on_rejected": policy},
            quarantine={"path": str(tmp_path / "quarantine")},
            offsets={"commit_interval_ms": 200},
        )
        python_path = (str(install(tmp_path / "sinks")), str(ROOT))
        daemons.append(Daemon(tmp_path, "daemon", settings, python_path=python_path))
        return daemons[0]

    with run_broker(zookeeper, PARTITIONS, TRICKLE):
        yield start
        for daemon in daemons:
            daemon.__exit__()


def committed(daemon: Daemon, partition: int) -> int:
    return next((int(p["committed"] or 0) for p in partitions(daemon) if int(p["partition"]) == partition), 0)


def partitions(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.status()["partitions"]
    return found


def landed(folder: Path) -> dict[int, LandedPartition]:
    landing = read_landing(folder / "landing")
    assert landing.problems == []
    assert {record.value for one in landing.partitions.values() for record in one.records} == {VALUE}
    return {int(one.partition): one for one in landing.partitions.values()}


def events(daemon: Daemon, name: str) -> list[tuple[str, int]]:
    """Return topic and partition of each entry of the log."""
    return [(entry["topic"], int(entry["partition"])) for entry in daemon.events(name)]


def units_passed(daemon: Daemon) -> list[str]:
    return [line for line in daemon.get("/metrics")[1].splitlines() if line.startswith("consumerd_units_passed_total{")]


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_the_refused_record_alone_is_passed_over(
    policy: str, run: Callable[[str], Daemon], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The others land once each, and what is left out shows in the files, the log, the metrics and the quarantine."""
    daemon = run(policy)
    daemon.wait(lambda: all(committed(daemon, number) >= ENOUGH for number in range(PARTITIONS)), "both go on")
    metrics = units_passed(daemon)
    assert daemon.terminate() == 0

    refused, other = landed(tmp_path)[REFUSED_PARTITION], landed(tmp_path)[1 - REFUSED_PARTITION]
    assert refused.offsets == [offset for offset in range(refused.end) if offset != REFUSED_OFFSET]
    assert refused.gaps == [GAP]
    assert other.offsets == list(range(other.end))
    assert other.gaps == []
    (skipped,) = daemon.events("range_skipped")
    assert (skipped["start"], skipped["end"], skipped["reason"], skipped["records"]) == (150, 151, "skipped", "1")
    told = "unit_quarantined" if policy == "quarantine" else "unit_skipped"
    assert events(daemon, told) == events(daemon, "range_skipped") == [(TOPIC, REFUSED_PARTITION)]
    assert [line.rpartition(" ")[2] for line in metrics] == ["1.0"]
    assert 'cause="rejected"' in metrics[0]

    capsysbinary.readouterr()
    path = ["--path", str(tmp_path / "quarantine")]
    if policy == "skip":
        assert not (tmp_path / "quarantine" / TOPIC).exists()
        return
    assert main(["quarantine", "list", *path, "--json"]) == 0
    (kept,) = (json.loads(line) for line in capsysbinary.readouterr().out.splitlines())
    expected = {"topic": TOPIC, "offset": 150, "next_offset": 151, "cause": "rejected", "reason": REASON}
    assert {name: kept[name] for name in expected} == expected
    assert main(["quarantine", "show", f"{TOPIC}/{REFUSED_PARTITION}@{REFUSED_OFFSET}", *path, "--raw"]) == 0
    assert capsysbinary.readouterr().out == VALUE


def test_by_default_the_partition_stops_before_the_record_and_the_others_go_on(
    run: Callable[[str], Daemon], tmp_path: Path
) -> None:
    """Nothing is left out that nobody has said may be; the reason says what to do."""
    daemon = run("stop")
    daemon.wait(lambda: any(one["state"] == "stopped" for one in partitions(daemon)), "one is stopped")
    before = committed(daemon, 1 - REFUSED_PARTITION)
    daemon.wait(lambda: committed(daemon, 1 - REFUSED_PARTITION) >= before + ENOUGH, "the other goes on")
    (stopped,) = (one for one in partitions(daemon) if one["state"] == "stopped")
    assert int(stopped["partition"]) == REFUSED_PARTITION
    assert REASON in stopped["reason"]
    assert "set the sink's on_rejected" in stopped["reason"]
    assert units_passed(daemon) == []
    assert daemon.terminate() == 0

    refused, other = landed(tmp_path)[REFUSED_PARTITION], landed(tmp_path)[1 - REFUSED_PARTITION]
    assert refused.offsets == list(range(refused.end))
    assert refused.end <= REFUSED_OFFSET
    assert other.offsets == list(range(other.end))
    assert refused.gaps == other.gaps == []
    assert daemon.events("range_skipped") == []
