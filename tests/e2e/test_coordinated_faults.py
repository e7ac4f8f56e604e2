# SPDX-License-Identifier: Apache-2.0
"""Groups that the embedded broker coordinates: members cut off, stopped and killed, and a coordinator that goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.failpoints import MEMBER_POINTS
from tests.support import coordinated_faults as stories
from tests.support.coordinated_faults import CoordinatedJob
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import free_port
from tests.support.proxy_thread import ProxyThread
from tests.support.seeds import draw_seed, some_of

pytestmark = [pytest.mark.records, pytest.mark.timeout(300), pytest.mark.drawn]


DEATHS: Final = 2
WITHOUT: Final = "without zookeeper"

on_either = pytest.mark.parametrize("connect", some_of("coordinated faults", ["zookeeper", WITHOUT], 1), indirect=True)
without = pytest.mark.parametrize("connect", [WITHOUT], indirect=True)


@pytest.fixture
def connect(request: pytest.FixtureRequest, zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str]) -> str | None:
    """The connect string of a cluster of the test's own; None for one without ZooKeeper."""
    return None if request.param == WITHOUT else f"{zookeeper.connect_string}/{unique('own')}"


@pytest.fixture
def place(connect: str | None, tmp_path: Path) -> Iterator[tuple[CoordinatedJob, ProxyThread]]:
    """A job on a broker that sends its clients to a proxy before it, and the proxy."""
    port = free_port()
    with (
        ProxyThread(port) as proxy,
        EmbeddedThread(
            tmp_path / "cluster", connect, port=port, advertised_port=proxy.port, min_group_session_timeout_ms=1000
        ) as cluster,
    ):
        job = CoordinatedJob(cluster=cluster, group="cut", folder=tmp_path)
        job.create_topics()
        yield job, proxy


@without
def test_a_cut_shorter_than_the_session_repeats_nothing_and_moves_nothing(
    place: tuple[CoordinatedJob, ProxyThread],
) -> None:
    """Its records come from the same broker all the time: the lease alone makes it pause."""
    stories.cut_for_a_moment(*place)


@on_either
def test_a_member_that_is_cut_off_stops_before_another_has_its_partitions(
    place: tuple[CoordinatedJob, ProxyThread], record_property: Callable[[str, object], None]
) -> None:
    """Requests that were held back come to the coordinator late: they move no position."""
    stories.cut_past_session(*place, record_property)


@without
def test_a_member_stopped_past_its_session_writes_and_commits_nothing_when_it_goes_on(
    place: tuple[CoordinatedJob, ProxyThread], record_property: Callable[[str, object], None]
) -> None:
    """Nothing is written meanwhile that others would be blamed for."""
    stories.stopped_past_session(*place, record_property)


@without
def test_a_member_stopped_at_a_point_of_its_own_writes_and_commits_nothing_when_it_goes_on(
    place: tuple[CoordinatedJob, ProxyThread], record_property: Callable[[str, object], None]
) -> None:
    """One drawn point; the interop test has each."""
    dice = Random(draw_seed("stop points of a coordinated member"))
    stories.stop_at_points(place[0], dice.sample(MEMBER_POINTS, 1), record_property)


@without
def test_a_coordinator_that_moves_and_dies_loses_and_doubles_nothing(connect: str | None, tmp_path: Path) -> None:
    """Of two nodes it is stopped in order, started again, and killed."""
    with EmbeddedThread(tmp_path / "cluster", connect, nodes=2, session_timeout_ms=2000) as cluster:
        job = CoordinatedJob(cluster=cluster, group="moved", folder=tmp_path, sink="parquet")
        job.create_topics()
        first: list[int] = []

        def coordinator() -> int:
            found = cluster.find_coordinator(job.group)
            assert found is not None
            return found

        def stop() -> None:
            first.append(coordinator())
            cluster.stop_node(first[0])

        def start() -> None:
            cluster.start_node(first[0])
            cluster.elect_preferred_leaders()

        def kill() -> None:
            assert coordinator() == first[0]
            cluster.kill_node(first[0])

        stories.coordinator_goes(job, stop, start, kill)


@without
def test_a_member_killed_at_a_point_of_its_own_loses_and_doubles_nothing(
    place: tuple[CoordinatedJob, ProxyThread], record_property: Callable[[str, object], None]
) -> None:
    """Joining, publishing, committing, leaving: a draw of them; the interop test has each one."""
    dice = Random(draw_seed("kill points of a coordinated member"))
    stories.die_at_points(place[0], stories.plan_deaths(dice)[:DEATHS], dice, record_property)
