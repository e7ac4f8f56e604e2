"""A member that stalls at any point of its work for longer than its session, while another takes over, harms nobody.

It stops (SIGSTOP) at a named point in its own code, as in a virtual machine that is paused at the worst moment, and goes
on in the belief that nothing has happened. Judged by an independent reader of the files, the producer's own ledger, and
somebody who reads the stored positions all the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumerd.failpoints import POINTS
from tests.interop.conftest import ClusterFactory, Figure
from tests.support.daemon import Daemon, settings_for, wait_until
from tests.support.landing_check import find_faults, log_ends
from tests.support.load import SteadyLoad
from tests.support.registry import CommitWatch, Registry, open_registry
from tests.support.zookeeper import live_sessions

FULL = os.environ.get("CONSUMERD_FULL_MATRIX") == "1"

PARTITIONS = 6
PER_PARTITION = 25
SESSION_MS = 2000
LIMIT_S = 60.0


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
            with Daemon(tmp_path, "sleeper", settings, fail_points=",".join(f"{p}=stop" for p in POINTS)) as sleeper:
                for _ in POINTS[:-2]:
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
    assert sorted(stops) == sorted(POINTS)
    assert commits.regressions == []
    assert find_faults(landing, ledger) == []
