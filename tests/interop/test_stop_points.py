# SPDX-License-Identifier: Apache-2.0
"""A member that stalls at any point of its work for longer than its session, while another takes over, harms nobody.

It stops (SIGSTOP) at a named point in its own code, as in a virtual machine that is paused at the worst moment, and goes
on in the belief that nothing has happened. Judged by an independent reader of the files, the producer's own ledger, and
somebody who reads the stored positions all the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumerd.failpoints import MEMBER_POINTS
from tests.interop.conftest import FULL, ClusterFactory, Figure
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster
from tests.support.landing_check import find_faults, log_ends
from tests.support.load import SteadyLoad
from tests.support.registry import CommitWatch, Registry, open_registry
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until
from tests.support.zookeeper import live_sessions

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 6
PER_PARTITION = 25
SESSION_MS = 2000
LIMIT_S = 60.0
AWAKE_S = 2.0


@dataclass
class Group:
    """What everybody sees of the members."""

    registry: Registry
    name: str
    commits: CommitWatch
    zk_port: int

    def owned_by(self, members: int) -> bool:
        """Whether so many members own everything by the rule."""
        return len(self.registry.members(self.name)) == members and self.registry.is_settled(
            self.name, self.name, PARTITIONS
        )

    def wait_taken_over(self, sleeper: Daemon, members: int) -> None:
        """Wait until the sleeper's session is over, the others own everything, and have committed more of it."""
        session = int(sleeper.events("zookeeper_connected")[-1]["session"], 16)
        wait_until(lambda: session not in live_sessions(self.zk_port), "the end of the session", LIMIT_S)
        wait_until(lambda: self.owned_by(members), "the others take over", LIMIT_S)
        before = self.commits.count
        wait_until(lambda: self.commits.count > before + PARTITIONS, "the others commit", LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sink", ["jsonl", "parquet"] if FULL else ["parquet"])
def test_a_member_stopped_at_each_point_past_its_session_overlaps_nothing_and_moves_no_position_back(
    release: str,
    sink: str,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    figure: Figure,
) -> None:
    """Promise 3: at most the one call in flight completes, and where another has been meanwhile, it has no effect."""
    cluster, name = shared_clusters(release), unique("stopped")
    cluster.create_topic(name, PARTITIONS)
    landing = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper,
        name,
        topics=(name,),
        sink={"type": sink, "path": str(landing), "roll_ms": 300},
        group={"session_timeout_ms": SESSION_MS},
        offsets={"commit_interval_ms": 200},
        log={"level": "info"},
    )
    producer = cluster.ledger_producer(linger_ms="5")
    stops: list[str] = []
    with (
        open_registry(cluster.zookeeper) as registry,
        CommitWatch(registry, name, name) as commits,
        Daemon(tmp_path, "heir", settings) as heir,
    ):
        group = Group(registry, name, commits, cluster.zk_port)
        with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
            heir.wait(lambda: group.owned_by(1), "the heir owns everything")
            with Daemon(
                tmp_path, "sleeper", settings, fail_points=",".join(f"{p}=stop" for p in MEMBER_POINTS)
            ) as sleeper:
                for _ in MEMBER_POINTS[:-2]:
                    stops.append(sleeper.wait_stopped(LIMIT_S))
                    group.wait_taken_over(sleeper, 1)
                    sleeper.resume()
                heir.wait(lambda: group.owned_by(2), "the sleeper is a member again", LIMIT_S)
                with Daemon(tmp_path, "third", settings) as third:
                    stops.append(sleeper.wait_stopped(LIMIT_S))
                    group.wait_taken_over(sleeper, 2)
                    sleeper.resume()
                    heir.wait(lambda: group.owned_by(3), "the sleeper is a member again", LIMIT_S)
                    assert third.terminate() == 0, third.log()[-3000:]
                heir.wait(lambda: group.owned_by(2), "two are left", LIMIT_S)
                sleeper.process.terminate()
                stops.append(sleeper.wait_stopped(LIMIT_S))
                group.wait_taken_over(sleeper, 1)
                sleeper.resume()
                assert sleeper.wait_end() == 0, sleeper.log()[-3000:]
        ledger = producer.finish()
        ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
        wait_until(lambda: registry.offsets(name, name) == ends, "everything consumed and committed", LIMIT_S, 0.2)
        assert heir.terminate() == 0, heir.log()[-3000:]

    figure("stops", len(stops))
    figure("records", len(ledger))
    assert sorted(stops) == sorted(MEMBER_POINTS)
    assert commits.regressions == []
    assert find_faults(landing, ledger) == []


@pytest.mark.timeout(150)
async def test_a_member_that_wakes_up_past_its_session_delivers_nothing_that_came_meanwhile(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Promise 3 where no name fences it: standard output may get the call in flight, and nothing after it.

    ZooKeeper is out of reach when it wakes up, so that nobody but its own clock tells it that it has slept.
    """
    cluster, name = shared_clusters(release), unique("woken")
    await asyncio.to_thread(cluster.create_topic, name, PARTITIONS)
    async with TcpProxy(cluster.zk_port) as proxy:
        wake = asyncio.get_running_loop().call_soon_threadsafe
        await asyncio.to_thread(
            sleep_and_wake_up, cluster, name, tmp_path, figure, proxy.connect_string,
            lose=lambda: wake(proxy.blackhole), heal=lambda: wake(proxy.heal),
        )  # fmt: skip


def sleep_and_wake_up(
    cluster: Cluster,
    name: str,
    folder: Path,
    figure: Figure,
    zookeeper: str,
    *,
    lose: Callable[[], object],
    heal: Callable[[], object],
) -> None:
    """Stop a member past its session, lose its way to ZooKeeper, let it go on, and judge what it delivers."""
    options = {"topics": (name,), "group": {"session_timeout_ms": SESSION_MS}}
    producer = cluster.ledger_producer(linger_ms="5")
    with (
        open_registry(cluster.zookeeper) as registry,
        CommitWatch(registry, name, name) as commits,
        Daemon(folder, "sleeper", settings_for(zookeeper, name, **options)) as sleeper,
    ):
        group = Group(registry, name, commits, cluster.zk_port)
        with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
            sleeper.wait(lambda: group.owned_by(1), "the sleeper owns everything")
            with Daemon(folder, "heir", settings_for(cluster.zookeeper, name, **options)) as heir:
                heir.wait(lambda: group.owned_by(2), "they share")
                sleeper.wait(lambda: len(sleeper.deliveries) > 200, "records flow")
                sleeper.stop()
                produced = log_ends(producer.acknowledged())
                group.wait_taken_over(sleeper, 1)
                lose()
                before = len(sleeper.deliveries)
                sleeper.resume()
                woken_at = time.monotonic()
                wait_until(lambda: time.monotonic() - woken_at > AWAKE_S, "it had its chance")
                woken = sleeper.deliveries[before:]
                heal()
                heir.wait(lambda: group.owned_by(2), "they share again", LIMIT_S)
                assert heir.terminate() == 0
        ledger = producer.finish()
        sleeper.wait(
            lambda: (
                {(one.topic, one.partition, one.offset) for one in [*sleeper.deliveries, *heir.deliveries]}
                >= set(ledger)
            ),
            "everything delivered",
            LIMIT_S,
        )
        assert sleeper.terminate() == 0
    figure("records delivered on waking up", len(woken))
    # what was acknowledged while the process was being stopped may have reached it
    slack = PER_PARTITION // 5
    assert [one for one in woken if one.offset >= produced[one.topic, one.partition] + slack] == []
    assert commits.regressions == []
