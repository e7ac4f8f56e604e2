# SPDX-License-Identifier: Apache-2.0
"""Faults under groups of daemons on two real brokers of the 0.7 generation (Jafka): the scenarios of later releases.

Members that come, leave and die under load; ZooKeeper out of reach for a part of a session; a process that is stopped
past its session; a byte of a broker's log that its disk has changed; SIGTERM under load.

All of it is for the full matrix: the code below is that of later releases, for which CI runs the same scenarios, and the
embedded broker of this generation has them in ``tests/e2e``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import FULL, Figure
from tests.support.churn import Members
from tests.support.daemon import Daemon
from tests.support.damage import flip_stored_byte
from tests.support.jafka import JafkaCluster
from tests.support.jafka_group import (
    BROKERS,
    GROUP,
    KEYS,
    TOPIC,
    children,
    count_values,
    has_settled,
    make_settings,
    owners,
    positions,
    running_brokers,
    start,
)
from tests.support.landing_reader import read_landing
from tests.support.registry import CommitWatch
from tests.support.seeds import draw_seed
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.records, pytest.mark.full]

PER_SECOND = 500
SECONDS = 60 if FULL else 20
FEW = 200


@pytest.fixture
def cluster() -> Iterator[JafkaCluster]:
    """Two brokers with three partitions of the topic each, and few records in it."""
    with running_brokers() as running:
        running.send(TOPIC, FEW)
        wait_until(lambda: len(children(running, f"/brokers/topics/{TOPIC}")) == BROKERS, "both have the topic", 60)
        yield running


class Load:
    """Records that the Java producer sends at a steady rate for :data:`SECONDS`, after those of the fixture."""

    def __init__(self, cluster: JafkaCluster, *, seconds: int = SECONDS) -> None:
        self._count = PER_SECOND * seconds
        self._process = cluster.start_sender(TOPIC, self._count, per_second=PER_SECOND)

    def finish(self) -> Mapping[str, int]:
        """Wait for its end; return how often each value must have come out."""
        assert self._process.wait(SECONDS + 60) == 0
        expected = Counter(f"value-{number}" for number in range(FEW))
        expected.update(f"value-{number}" for number in range(self._count))
        return expected


def wait_whole(folder: Path, expected: Mapping[str, int]) -> None:
    """Wait until as many records have landed as expected, then compare them."""
    landed: Counter[str] = Counter()

    def is_all_there() -> bool:
        nonlocal landed
        landed = count_values([], folder)
        return landed.total() >= sum(expected.values())

    wait_until(is_all_there, "all has landed", 90, 0.5)
    assert landed == expected


class Positions:
    """Stored positions by the number of the partition in :data:`KEYS`, for a watch over them."""

    def __init__(self, cluster: JafkaCluster) -> None:
        self._cluster = cluster

    def offsets(self, group: str, topic: str, /) -> Mapping[int, int]:
        """Return the position of each partition that has one."""
        assert (group, topic) == (GROUP, TOPIC)
        return {KEYS.index(name): position for name, position in positions(self._cluster).items()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sink", ["parquet", "jsonl"])
def test_churn_under_load_loses_nothing_and_doubles_nothing(
    cluster: JafkaCluster, sink: str, tmp_path: Path, figure: Figure
) -> None:
    """Members are started, stopped (SIGTERM) and killed (SIGKILL) every few seconds."""
    dice = random.Random(draw_seed("churn on Jafka"))
    members = Members(cluster.zookeeper, GROUP, TOPIC, tmp_path, sink)
    try:
        members.start()
        members.start()
        load = Load(cluster)
        members.churn(dice, SECONDS)
        expected = load.finish()
        wait_whole(tmp_path, expected)
    finally:
        members.close()
    figure("records", sum(expected.values()))
    figure("killed", members.killed)


@pytest.mark.timeout(240)
async def test_a_cut_from_zookeeper_within_the_session_repeats_nothing(cluster: JafkaCluster, tmp_path: Path) -> None:
    """For 0.7 of a session: the same session afterwards, and each record once."""
    async with TcpProxy(cluster.zk_port) as proxy:
        settings = make_settings(cluster, tmp_path)
        settings["cluster"]["zookeeper"] = f"{proxy.connect_string}{cluster.chroot}"
        with Daemon(tmp_path, "member", settings) as member:
            await asyncio.to_thread(member.wait, lambda: len(owners(cluster)) == len(KEYS), "it owns all", 60)
            load = await asyncio.to_thread(lambda: Load(cluster, seconds=10))
            await asyncio.to_thread(member.wait, lambda: count_values([], tmp_path).total() > 2 * FEW, "records land")
            before = await asyncio.to_thread(member.status)
            proxy.refuse()
            proxy.cut()
            end = time.monotonic() + 0.7 * settings["group"]["session_timeout_ms"] / 1000
            await asyncio.to_thread(wait_until, lambda: time.monotonic() > end, "0.7 of a session")
            await proxy.listen()
            expected = await asyncio.to_thread(load.finish)
            await asyncio.to_thread(wait_whole, tmp_path, expected)
            after = await asyncio.to_thread(member.status)
    assert (after["session_id"], after["session_epoch"]) == (before["session_id"], before["session_epoch"])
    assert len(after["rebalances"]) == len(before["rebalances"])


@pytest.mark.timeout(240)
def test_a_process_stopped_past_its_session_overlaps_nothing_and_moves_no_position_back(
    cluster: JafkaCluster, tmp_path: Path
) -> None:
    """Another has taken over when it wakes up; it comes back as a new member."""
    with (
        start(cluster, tmp_path, "sleeper") as sleeper,
        start(cluster, tmp_path, "heir") as heir,
        CommitWatch(Positions(cluster), GROUP, TOPIC) as commits,
    ):
        wait_until(lambda: has_settled(cluster, 2, 0), "both share", 60)
        load = Load(cluster)
        heir.wait(lambda: commits.count > 2 * len(KEYS), "commits", 60)
        sleeper.stop()
        heir.wait(lambda: has_settled(cluster, 1, 0), "the heir takes over", 60)
        taken = commits.count
        heir.wait(lambda: commits.count > taken + 2 * len(KEYS), "the heir commits", 60)
        sleeper.resume()
        heir.wait(lambda: has_settled(cluster, 2, 0), "both share again", 60)
        wait_whole(tmp_path, load.finish())
        assert [sleeper.status()["session_epoch"], sleeper.terminate(), heir.terminate()] == [2, 0, 0]
    assert commits.regressions == []


@pytest.mark.timeout(240)
def test_a_changed_byte_of_a_log_is_stopped_at_passed_over_or_kept(cluster: JafkaCluster, tmp_path: Path) -> None:
    """Three groups of one log, each with another policy; other partitions go on."""
    # the producer chose where they are
    largest = max(KEYS, key=lambda key: cluster.segment_of(TOPIC, key).stat().st_size)
    sent = Counter(f"value-{number}" for number in range(FEW))
    victim = flip_stored_byte(cluster.segment_of(TOPIC, largest), number=30)
    name = victim.value.decode()
    folders = {policy: tmp_path / policy for policy in ("stop", "skip", "quarantine")}
    with ExitStack() as running:
        members = {}
        for policy, folder in folders.items():
            folder.mkdir()
            settings = make_settings(cluster, folder)
            settings["group"]["id"] = f"{GROUP}-{policy}"
            settings["fetch"] = {"on_corrupt": policy}
            if policy == "quarantine":
                settings["quarantine"] = {"path": str(tmp_path / "kept")}
            members[policy] = running.enter_context(Daemon(folder, policy, settings))
        for policy in ("skip", "quarantine"):
            members[policy].wait(
                lambda policy=policy: count_values([], folders[policy]) == sent - Counter([name]), "the others", 60
            )
        state: dict[str, Any] = {}

        def has_stopped() -> bool:
            partitions = members["stop"].status()["partitions"]
            state.update(next((one for one in partitions if one["partition"] == largest), {}))
            return state.get("state") == "stopped" and state["committed"] == victim.start

        members["stop"].wait(has_stopped, "stopped at the damage", 60)
        assert "CRC" in state["reason"]
        assert [members[policy].terminate() for policy in folders] == [0, 0, 0]
    behind = set(victim.later_values)
    assert {value.decode() for value in behind} == sent.keys() - count_values([], folders["stop"]).keys() - {name}
    for policy in ("skip", "quarantine"):
        landed = read_landing(folders[policy] / "landed").partitions[TOPIC, largest]
        assert [(gap["start"], gap["end"], gap["reason"]) for gap in landed.gaps] == [
            (victim.start, victim.end, "corrupt")
        ]
    (path,) = (tmp_path / "kept").glob(f"{TOPIC}/{largest}/*/*.jsonl")
    kept = json.loads(path.read_bytes())
    assert (kept["offset"], kept["next_offset"]) == (victim.start, victim.end)
    assert base64.b64decode(kept["raw_base64"]) == victim.raw


@pytest.mark.timeout(240)
def test_sigterm_under_load_commits_what_has_landed_and_leaves(cluster: JafkaCluster, tmp_path: Path) -> None:
    """The next process begins behind it; what comes out of both is whole."""
    with start(cluster, tmp_path, "first") as first:
        first.wait(lambda: has_settled(cluster, 1, 0), "it owns all", 60)
        load = Load(cluster, seconds=10)
        first.wait(lambda: count_values([], tmp_path).total() > 2 * FEW, "records land", 60)
        assert first.terminate() == 0
    assert (owners(cluster), children(cluster, f"/consumers/{GROUP}/ids")) == ({}, {})
    landed = read_landing(tmp_path / "landed").partitions
    assert positions(cluster) == {one.partition: one.end for one in landed.values()}
    with start(cluster, tmp_path, "second") as second:
        wait_whole(tmp_path, load.finish())
        assert second.terminate() == 0
