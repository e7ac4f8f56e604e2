# SPDX-License-Identifier: Apache-2.0
"""Groups of daemons on brokers of Kafka 0.6 and 0.7: shares, files, brokers that go and come back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.failpoints import MEMBER_POINTS
from consumerd.wire.compression import Codec
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.embedded_legacy import LegacyLedger, LegacyThread, SentMessage
from tests.support.kafka import Sent
from tests.support.kill_points import die_at
from tests.support.landing_check import find_faults
from tests.support.landing_reader import read_landing
from tests.support.ledger import send_all
from tests.support.load import SteadyLoad
from tests.support.seeds import draw_seed

pytestmark = pytest.mark.records

PARTITIONS = 3
FULL = "CONSUMERD_FULL_MATRIX" in os.environ


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path) -> Iterator[LegacyThread]:
    """Two brokers with three partitions of each topic."""
    at = f"{zookeeper.connect_string}/{unique('legacy')}"
    with LegacyThread(tmp_path / "brokers", at, num_partitions=PARTITIONS) as brokers:
        yield brokers


def settings(cluster: LegacyThread, folder: Path, **changes: Any) -> dict[str, Any]:
    """Return settings of a member that lands JSON lines soon."""
    given = {
        "topics": ("events",),
        "sink": {"type": "jsonl", "path": str(folder), "roll_ms": 200},
        "offsets": {"commit_interval_ms": 100},
        **changes,
    }
    return settings_for(cluster.zookeeper, "lake", **given)


def send_everywhere(cluster: LegacyThread, stem: str, codec: Codec = Codec.NONE) -> list[SentMessage]:
    """Store ten messages in each partition of both brokers."""
    return [
        one
        for node in range(2)
        for partition in range(PARTITIONS)
        for one in cluster.send(
            "events",
            [f"{stem} {node}-{partition} {number}".encode() for number in range(10)],
            node=node,
            partition=partition,
            codec=codec,
        )
    ]


def landed(folder: Path) -> dict[tuple[str, str, int, int], tuple[int, bytes | None]]:
    """Return what has landed, by identity: its next offset and its value. Nothing may be in it twice."""
    found: dict[tuple[str, str, int, int], tuple[int, bytes | None]] = {}
    for (topic, partition), one in read_landing(folder).partitions.items():
        assert one.problems == []
        for record in one.records:
            identity = (topic, partition, record.offset, record.index)
            assert identity not in found
            found[identity] = (record.next_offset, record.value)
    return found


def by_identity(sent: Iterable[SentMessage]) -> dict[tuple[str, str, int, int], tuple[int, bytes | None]]:
    return {one.identity: (one.next_offset, one.value) for one in sent}


def wait_committed(members: Iterable[Daemon], sent: Iterable[SentMessage]) -> None:
    """Wait until the members together have committed all that was sent."""
    ends: dict[str, int] = {}
    for one in sent:
        ends[one.partition] = max(ends.get(one.partition, 0), one.next_offset)
    members = list(members)

    def committed() -> dict[str, int]:
        return {each["partition"]: each["committed"] for member in members for each in member.status()["partitions"]}

    members[0].wait(lambda: ends.items() <= committed().items(), "all is committed")


def test_two_daemons_share_the_partitions_of_two_brokers_and_land_each_message_once(
    cluster: LegacyThread, tmp_path: Path
) -> None:
    """Plain and compressed messages; the order of partitions is that of their names."""
    folder = tmp_path / "landed"
    sent = send_everywhere(cluster, "plain")
    with (
        Daemon(tmp_path, "one", settings(cluster, folder)) as one,
        Daemon(tmp_path, "two", settings(cluster, folder)) as two,
    ):
        members = (one, two)
        for member in members:
            member.wait(lambda member=member: member.status()["owned"] == PARTITIONS, "its share")
        shares = [{each["partition"] for each in member.status()["partitions"]} for member in members]
        assert sorted(map(sorted, shares)) == [["0-0", "0-1", "0-2"], ["1-0", "1-1", "1-2"]]
        sent += send_everywhere(cluster, "gzip", Codec.GZIP)
        wait_committed(members, sent)
        assert [member.terminate() for member in members] == [0, 0]
    assert landed(folder) == by_identity(sent)


def test_compressed_sets_nested_ones_and_messages_of_0_6_land_once_and_a_topic_appears_on_a_second_broker(
    cluster: LegacyThread, tmp_path: Path
) -> None:
    """Files of a few messages end between compressed sets, where the next member goes on."""
    folder = tmp_path / "landed"
    given = settings(cluster, folder, sink={"type": "jsonl", "path": str(folder), "roll_bytes": 500, "roll_ms": 200})
    values = [b"value %d of forty bytes or a little more" % number for number in range(40)]
    sent = cluster.send("events", [b"of 0.6", b"too"], magic=0)
    for codec in (Codec.GZIP, Codec.SNAPPY):
        sent += cluster.send("events", values, codec=codec)
        sent += cluster.send("events", values, codec=codec, nested=True)
    with Daemon(tmp_path, "one", given, fail_points="after_link=kill@3") as one:
        one.wait_killed(60)
    with Daemon(tmp_path, "two", given) as two:
        two.wait(lambda: two.status()["owned"] == PARTITIONS, "the first broker's partitions", 60)
        sent += cluster.send("events", values, node=1, partition=2, codec=Codec.SNAPPY)
        two.wait(lambda: two.status()["owned"] == 2 * PARTITIONS, "those of the second broker, too")
        wait_committed([two], sent)
        assert two.terminate() == 0
    assert landed(folder) == by_identity(sent)


@pytest.mark.timeout(300)
def test_members_killed_at_their_points_under_load_lose_and_double_nothing(
    cluster: LegacyThread, tmp_path: Path
) -> None:
    """500 records a second, half of them compressed; each of the full matrix's points, or a few that the seed draws."""
    folder, partitions = tmp_path / "landed", 2 * PARTITIONS
    given = settings(cluster, folder, group={"session_timeout_ms": 3000}, log={"level": "info"})
    dice = random.Random(draw_seed("kill points on Kafka 0.7"))
    points = MEMBER_POINTS if FULL else dice.sample(MEMBER_POINTS, 3)
    ledger = LegacyLedger(cluster, PARTITIONS)
    ledger.send(Sent("events", number, None, b"first") for number in range(partitions))
    with Daemon(tmp_path, "steady", given) as steady:
        with SteadyLoad(ledger, {"events": partitions}, per_second=500 / partitions):
            steady.wait(lambda: steady.status()["owned"] == partitions, "it consumes")
            for number, point in enumerate(points):
                die_at(point, tmp_path, f"victim-{number}", given, dice, by_join=False)
        steady.wait(lambda: steady.status()["owned"] == partitions, "it has all again", 60)
        wait_committed([steady], ledger.stored)
        assert steady.terminate() == 0, steady.log()[-3000:]
    assert landed(folder) == by_identity(ledger.stored)


@pytest.mark.drawn
@pytest.mark.timeout(120)
def test_a_member_stopped_past_its_session_overlaps_nothing_when_it_wakes_up(
    cluster: LegacyThread, tmp_path: Path
) -> None:
    """Another has taken over meanwhile, and goes on; the sleeper comes back as a new member."""
    folder, partitions = tmp_path / "landed", 2 * PARTITIONS
    given = settings(cluster, folder, group={"session_timeout_ms": 3000})
    ledger = LegacyLedger(cluster, PARTITIONS)
    ledger.send(Sent("events", number, None, b"first") for number in range(partitions))

    def owned(*members: Daemon) -> list[int]:
        return [member.status()["owned"] for member in members]

    with Daemon(tmp_path, "sleeper", given) as sleeper, Daemon(tmp_path, "heir", given) as heir:
        with SteadyLoad(ledger, {"events": partitions}, per_second=300 / partitions):
            heir.wait(lambda: owned(sleeper, heir) == [PARTITIONS, PARTITIONS], "both share", 60)
            sleeper.stop()
            heir.wait(lambda: owned(heir) == [partitions], "the heir takes over", 60)
            taken = len(ledger.stored)
            heir.wait(lambda: len(landed(folder)) > taken, "the heir lands what came meanwhile", 60)
            sleeper.resume()
            heir.wait(lambda: owned(sleeper, heir) == [PARTITIONS, PARTITIONS], "both share again", 60)
        wait_committed([sleeper, heir], ledger.stored)
        assert [sleeper.status()["session_epoch"], sleeper.terminate(), heir.terminate()] == [2, 0, 0]
    assert landed(folder) == by_identity(ledger.stored)


def test_a_legacy_and_a_modern_group_share_a_zookeeper_under_two_chroots(
    zookeeper: EmbeddedZooKeeper, cluster: LegacyThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The same names of groups and topics in both; each goes on as if it were alone."""
    at = f"{zookeeper.connect_string}/{unique('modern')}"
    with EmbeddedThread(tmp_path / "modern-broker", at) as modern:
        modern.create_topic("events", 2)
        produced = send_all(
            modern.bootstrap, [Sent("events", number % 2, None, b"%d" % number) for number in range(20)]
        )
        sent = send_everywhere(cluster, "plain")
        sink = {"type": "jsonl", "path": str(tmp_path / "modern"), "roll_ms": 200}
        with (
            Daemon(tmp_path, "old", settings(cluster, tmp_path / "legacy")) as old,
            Daemon(tmp_path, "new", settings_for(at, "lake", topics=("events",), sink=sink)) as new,
        ):
            wait_committed([old], sent)
            new.wait(lambda: [one["committed"] for one in new.status()["partitions"]] == [10, 10], "all is committed")
            assert [old.terminate(), new.terminate()] == [0, 0]
    assert landed(tmp_path / "legacy") == by_identity(sent)
    assert find_faults(tmp_path / "modern", produced) == []


def test_lines_that_are_produced_by_the_command_are_shown_by_tail(cluster: LegacyThread) -> None:
    """To all partitions of both brokers, once the topic is known on them."""
    send_everywhere(cluster, "before")
    lines = [f"line {number}" for number in range(200)]
    told = run_command(cluster, "produce", "events", input="\n".join(lines) + "\n")
    assert (told.returncode, told.stdout) == (0, ""), told.stderr
    shown = run_command(cluster, "tail", "events", "--from", "earliest", "--until", "latest", "--format", "value")
    assert shown.returncode == 0, shown.stderr
    assert sorted(line for line in shown.stdout.splitlines() if line.startswith("line")) == sorted(lines)


def run_command(cluster: LegacyThread, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``consumerd`` with the cluster's ZooKeeper."""
    command = [sys.executable, "-m", "consumerd", *arguments, "--zookeeper", cluster.zookeeper]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
