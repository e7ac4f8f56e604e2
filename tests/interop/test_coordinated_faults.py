# SPDX-License-Identifier: Apache-2.0
"""Faults of groups that a real broker coordinates.

Members are cut off, stopped and killed, and the coordinator goes away.

The stories are those of ``tests/e2e/test_coordinated_faults.py``, on the embedded broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from consumerd.failpoints import MEMBER_POINTS
from tests.interop.conftest import FULL, ClusterFactory, Figure, require
from tests.support import coordinated_faults as stories
from tests.support.coordinated_faults import CoordinatedJob
from tests.support.foreign.librdkafka import Librdkafka
from tests.support.kafka import Cluster
from tests.support.kraft import make_cluster
from tests.support.proxy_thread import ProxyThread
from tests.support.seeds import draw_seed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.timeout(7200 if FULL else 300)]

WITH_ZOOKEEPER: Final = ("1.1.1", *(pytest.param(one, marks=pytest.mark.full) for one in ("0.10.2.2", "2.8.2")))
RELEASES: Final = (*WITH_ZOOKEEPER, pytest.param("4.3.1", marks=pytest.mark.full))
SHORT_SESSIONS: Final = {"group.min.session.timeout.ms": "1000"}
REPLICATED: Final = {"offsets.topic.replication.factor": "2", "controlled.shutdown.enable": "true"}
ROUNDS: Final = 3
"""How often a process dies at each point."""

on_each_release = pytest.mark.parametrize("kafka_release", RELEASES, scope="module")


@pytest.fixture(scope="module")
def proxied(kafka_release: str) -> Iterator[tuple[Cluster, ProxyThread]]:
    """A broker of a release, and the proxy to which it sends its clients."""
    require(kafka_release)
    cluster = make_cluster(kafka_release, properties=SHORT_SESSIONS)
    with ProxyThread(cluster.ports[0]) as proxy:
        cluster.advertise(proxy.port)
        with cluster:
            yield cluster, proxy


@pytest.fixture
def place(
    proxied: tuple[Cluster, ProxyThread], unique: Callable[[str], str], tmp_path: Path
) -> tuple[CoordinatedJob, ProxyThread]:
    """A job of a test's own, and the proxy."""
    cluster, proxy = proxied
    job = CoordinatedJob(cluster=cluster, group=unique("cut"), folder=tmp_path)
    job.create_topics()
    return job, proxy


@pytest.mark.full  # tests/e2e/test_coordinated_faults.py has it in every run
@on_each_release
def test_a_cut_shorter_than_the_session_repeats_nothing_and_moves_nothing(
    place: tuple[CoordinatedJob, ProxyThread],
) -> None:
    """Records come from the same broker meanwhile: the lease alone makes the member pause."""
    stories.cut_for_a_moment(*place)


@pytest.mark.full  # as above
@on_each_release
def test_a_member_that_is_cut_off_stops_before_another_has_its_partitions(
    place: tuple[CoordinatedJob, ProxyThread], figure: Figure
) -> None:
    """Requests that were held back come to the coordinator late: they move no position."""
    stories.cut_past_session(*place, figure)


@on_each_release
def test_a_member_stopped_past_its_session_writes_and_commits_nothing_when_it_goes_on(
    place: tuple[CoordinatedJob, ProxyThread], figure: Figure
) -> None:
    """Nothing is written meanwhile that others would be blamed for."""
    stories.stopped_past_session(*place, figure)


@pytest.mark.slow
@pytest.mark.full
@on_each_release
def test_a_member_stopped_at_each_point_past_its_session_writes_and_commits_nothing_when_it_goes_on(
    place: tuple[CoordinatedJob, ProxyThread], figure: Figure
) -> None:
    """Whichever call was in flight completes, and has no effect where another member has been meanwhile."""
    stories.stop_at_points(place[0], MEMBER_POINTS, figure)


@pytest.mark.full
@on_each_release
def test_a_coordinator_that_becomes_slow_costs_time_and_nothing_else(place: tuple[CoordinatedJob, ProxyThread]) -> None:
    """Each answer comes 300 ms late, of a session of 6 s."""
    stories.coordinator_is_slow(*place)


@pytest.mark.full
@on_each_release
def test_a_topic_that_grows_is_consumed_whole(
    kafka_release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """New partitions are shared out in a rebalance, and read from their beginning."""
    cluster = shared_clusters(kafka_release)
    job = CoordinatedJob(cluster=cluster, group=unique("grows"), folder=tmp_path)
    job.create_topics()

    def grow(topic: str, total: int) -> None:
        cluster.add_partitions(topic, total)
        cluster.wait_topic(topic, total)

    stories.topic_grows(job, grow)


@pytest.mark.full
@on_each_release
def test_a_coordinator_that_is_killed_and_restarted_loses_and_doubles_nothing(
    kafka_release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The only broker, which leads all partitions as well."""
    cluster = own_cluster(kafka_release)
    job = CoordinatedJob(cluster=cluster, group=unique("killed"), folder=tmp_path, sink="parquet")
    job.create_topics()

    def kill_and_start() -> None:
        cluster.kill_broker(0)
        cluster.start_broker(0)

    stories.coordinator_goes(job, kill_and_start, kill_and_start)


@pytest.mark.parametrize("kafka_release", WITH_ZOOKEEPER, scope="module")
def test_a_coordinator_that_dies_is_replaced_and_comes_back(
    kafka_release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each of two brokers is killed once: one of them is the coordinator."""
    cluster = own_cluster(kafka_release, 2, properties=REPLICATED)
    job = CoordinatedJob(cluster=cluster, group=unique("moved"), folder=tmp_path)
    job.create_topics(2)
    client = Librdkafka(cluster.bootstrap)

    def start(number: int) -> None:
        cluster.start_broker(number)
        wait_until(lambda: in_sync(client, 2, job.printed, job.landed, "__consumer_offsets"), "all is in sync", 90, 0.3)

    changes = [partial(act, number) for number in (0, 1) for act in (cluster.kill_broker, start)]
    stories.coordinator_goes(job, *changes)


def in_sync(client: Librdkafka, replicas: int, *topics: str) -> bool:
    """Return True if every partition of the topics has ``replicas`` replicas in sync."""
    found: list[Any] = [client.metadata(topic) for topic in topics]
    return all(len(isrs) == replicas for one in found for _, _, _, isrs in one["partitions"])


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["jsonl", "parquet"])
@pytest.mark.full
@on_each_release
def test_a_member_killed_at_each_point_loses_and_doubles_nothing(
    place: tuple[CoordinatedJob, ProxyThread], sink: str, figure: Figure
) -> None:
    """Joining, publishing, committing, leaving: whichever step of a member was its last."""
    dice = Random(draw_seed(f"kill points of a coordinated member with {sink}"))
    stories.die_at_points(replace(place[0], sink=sink), stories.plan_deaths(dice, ROUNDS), dice, figure)
