# SPDX-License-Identifier: Apache-2.0
"""A sink of another distribution refuses one record: what a whole daemon makes of it under each policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.cli.main import main
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess
from tests.support.kafka import Sent
from tests.support.landing_reader import LandedPartition, read_landing
from tests.support.ledger import send_all
from tests.support.refusing_sink import REASON, REFUSED_OFFSET, REFUSED_PARTITION
from tests.support.stalling_sinks import install

pytestmark = pytest.mark.records

TOPIC = "orders"
PARTITIONS = 2
VALUE = b"a drop"
ENOUGH = REFUSED_OFFSET + 50
ROOT = Path(__file__).parents[3]
GAP = {"start": REFUSED_OFFSET, "end": REFUSED_OFFSET + 1, "reason": "skipped", "offsets": 1}


def produce(cluster: EmbeddedProcess) -> None:
    """Add as many records to each partition as are read before anything is looked at."""
    send_all(cluster.bootstrap, [Sent(TOPIC, one, None, VALUE) for one in range(PARTITIONS) for _ in range(ENOUGH)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedProcess]:
    """A broker for the module; each policy has a group of its own."""
    with EmbeddedProcess(tmp_path_factory.mktemp("cluster"), "--topic", f"{TOPIC}:{PARTITIONS}") as cluster:
        produce(cluster)
        yield cluster


@pytest.fixture
def run(cluster: EmbeddedProcess, tmp_path: Path) -> Iterator[Callable[[str], Daemon]]:
    """Start the daemon with a policy, in a group that is called so; it is killed at the end."""
    daemons: list[Daemon] = []

    def start(policy: str) -> Daemon:
        settings = settings_for(
            cluster.zookeeper,
            policy,
            topics=(TOPIC,),
            sink={"type": "refusing", "path": str(tmp_path / "landing"), "roll_ms": 200, "on_rejected": policy},
            quarantine={"path": str(tmp_path / "quarantine")},
            offsets={"commit_interval_ms": 200},
        )
        python_path = (str(install(tmp_path / "sinks")), str(ROOT))
        daemons.append(Daemon(tmp_path, "daemon", settings, python_path=python_path))
        return daemons[0]

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
    cluster: EmbeddedProcess, run: Callable[[str], Daemon], tmp_path: Path
) -> None:
    """Nothing is left out that nobody has said may be; the reason says what to do."""
    daemon = run("stop")
    daemon.wait(lambda: any(one["state"] == "stopped" for one in partitions(daemon)), "one is stopped")
    before = committed(daemon, 1 - REFUSED_PARTITION)
    produce(cluster)
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
