# SPDX-License-Identifier: Apache-2.0
"""One member after the other is killed right before or after a step that others can see, while records flow.

The process dies at a named point in its own code (``consumerd.failpoints``), which no timing from outside can hit. The
files are read by an independent reader (pyarrow and json, none of our code) and compared with the producer's own ledger.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumerd.failpoints import MEMBER_POINTS
from tests.interop.conftest import FULL, MAIN_RELEASE, ClusterFactory, Figure
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, JavaConsumer
from tests.support.kill_points import die_at
from tests.support.landing_check import find_faults, log_ends
from tests.support.load import SteadyLoad
from tests.support.registry import open_registry
from tests.support.seeds import draw_seed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

FULL_ROUNDS = 5
"""How often a process dies at each point in the full run on the main release, for each of the four: Parquet and JSON lines,
each in a group of daemons and beside a Java member.
"""
LIMIT_S = 7200 if FULL else 300

PARTITIONS = 8
PER_PARTITION = 25
SESSION_MS = 3000


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_a_member_killed_at_each_point_beside_java_loses_and_doubles_nothing(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Promises 1 and 2 in a mixed group: what is not in our files, once, was consumed by the Java member, and said so."""
    kill_at_each_point(shared_clusters(release), unique("killed"), "jsonl", tmp_path, figure, java=True)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("sink", "java"), [("parquet", False), *([("jsonl", False), ("parquet", True)] if FULL else [])]
)
def test_a_member_killed_at_each_point_loses_and_doubles_nothing(
    release: str,
    sink: str,
    java: bool,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    figure: Figure,
) -> None:
    """Promises 1 and 2: every record lands once, whichever step of a member was its last."""
    kill_at_each_point(shared_clusters(release), unique("killed"), sink, tmp_path, figure, java=java)


def plan_deaths(release: str, dice: random.Random) -> list[tuple[str, bool]]:
    """Return the points to die at, one after the other, and whether the point of a release is to be come to in a rebalance.

    In every second round it is; where there is one round only, each of those points has its turn again.
    """
    rounds = FULL_ROUNDS if FULL and release == MAIN_RELEASE else 1
    deaths = [
        (point, number % 2 == 1) for number in range(rounds) for point in dice.sample(MEMBER_POINTS, len(MEMBER_POINTS))
    ]
    return deaths if rounds > 1 else [*deaths, *((point, True) for point in MEMBER_POINTS if point.endswith("release"))]


def kill_at_each_point(cluster: Cluster, name: str, sink: str, folder: Path, figure: Figure, *, java: bool) -> None:
    """Let a steady member, and perhaps one of Java's, go on while victims come and die; then judge the files."""
    cluster.create_topic(name, PARTITIONS)
    landing = folder / "landing"
    settings = settings_for(
        cluster.zookeeper,
        name,
        topics=(name,),
        sink={"type": sink, "path": str(landing), "roll_ms": 400},
        group={"session_timeout_ms": SESSION_MS},
        offsets={"commit_interval_ms": 300},
        log={"level": "info"},
    )
    dice = random.Random(draw_seed(f"kill points with {sink}, {'with' if java else 'without'} Java"))
    deaths = plan_deaths(cluster.release, dice)
    producer = cluster.ledger_producer(linger_ms="5")
    began = time.monotonic()
    with (
        open_registry(cluster.zookeeper) as registry,
        running_java(cluster, name, wanted=java) as oracle,
        Daemon(folder, "steady", settings) as steady,
    ):
        with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
            steady.wait(lambda: bool(registry.offsets(name, name)), "the first commits", 60)
            for number, (point, by_join) in enumerate(deaths):
                die_at(point, folder, f"victim-{number}", settings, dice, by_join=by_join)
                assert steady.process.poll() is None, steady.log()[-3000:]
        figure("deaths", len(deaths))
        figure("seconds a death", (time.monotonic() - began) / len(deaths))
        ledger = producer.finish()
        ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
        wait_until(lambda: registry.offsets(name, name) == ends, "everything consumed and committed", 60, 0.2)
        assert steady.terminate() == 0, steady.log()[-3000:]

    elsewhere = {(topic, partition, offset) for topic, partition, offset, _ in oracle.records()} if oracle else set()
    figure("records", len(ledger))
    figure("of them consumed by Java", len(elsewhere))
    assert bool(elsewhere) == java
    assert find_faults(landing, ledger, elsewhere) == []


@contextlib.contextmanager
def running_java(cluster: Cluster, group: str, *, wanted: bool) -> Iterator[JavaConsumer | None]:
    """Run a Java member, and let it leave in order at the end, so that all it has consumed is committed and printed."""
    if not wanted:
        yield None
        return
    member = cluster.java_consumer(group, group)
    try:
        yield member
    finally:
        member.terminate()
