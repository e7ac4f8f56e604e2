# SPDX-License-Identifier: Apache-2.0
"""An audit's view of a group, from a real ZooKeeper."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from consumerd.config.cluster_section import ClusterSection
from consumerd.config.job import JobSettings
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError, CoordinationError
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.store import Validity
from consumerd.spark.audit import run
from consumerd.spark.job import Silent
from consumerd.spark.positions import read_positions
from consumerd.zk.layout import BROKER_TOPICS, offset_path, topic_path
from tests.support.landing_zone import LandingZone
from tests.support.zookeeper import make_client, run_server

P, Q, R = (TopicPartition.modern("orders", number) for number in range(3))
GONE, REMADE = TopicPartition.modern("gone", 0), TopicPartition.modern("remade", 0)
OLD = TopicPartition("orders", PartitionKey.parse("1-0"))


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A cluster with a group's positions in it."""
    with run_server() as zookeeper:
        yield zookeeper


def cluster(server: EmbeddedZooKeeper) -> ClusterSection:
    return ClusterSection(zookeeper=server.connect_string)


async def fill(server: EmbeddedZooKeeper, group: str) -> tuple[str, dict[str, int]]:
    """Write positions; return the cluster's id, and topics' czxids."""
    async with make_client(server.connect_string) as zk:
        await zk.wait_connected()
        for topic in ("orders", "remade"):
            await zk.ensure_path(topic_path(topic))
        for partition, data in ((P, b"100"), (Q, b"x"), (GONE, b"7"), (REMADE, b"5"), (OLD, b"3")):
            await zk.ensure_path(offset_path(group, partition), data)
        await zk.ensure_path(offset_path(group, P).rpartition("/")[0] + "/.moving", b"")
        await zk.delete(topic_path("remade"))
        await zk.ensure_path(topic_path("remade"))
        made = await zk.exists(BROKER_TOPICS)
        assert made is not None
        stats = {topic: await zk.exists(topic_path(topic)) for topic in ("orders", "remade")}
        return f"{made.czxid}-{made.ctime_ms}", {topic: stat.czxid for topic, stat in stats.items() if stat is not None}


def test_positions_of_a_group(server: EmbeddedZooKeeper) -> None:
    """Each as it counts now: one of an earlier making of its topic is none, text is no number."""
    cluster_id, made = asyncio.run(fill(server, "lake"))

    found = read_positions(cluster(server), "lake", cluster_id=cluster_id)

    assert {
        P: (100, Validity.VALID, made["orders"]),
        Q: (None, Validity.MALFORMED, made["orders"]),
        OLD: (3, Validity.VALID, made["orders"]),
        GONE: (7, Validity.UNKNOWN_AGE, None),
        REMADE: (5, Validity.ANOTHER_INCARNATION, made["remade"]),
    } == {
        one: (position.value, position.validity, position.incarnation.czxid if position.incarnation else None)
        for one, position in found.zookeeper.items()
    }


def test_positions_of_another_cluster_are_refused(server: EmbeddedZooKeeper) -> None:
    """Compared with another cluster's positions everything would look lost."""
    cluster_id, _ = asyncio.run(fill(server, "tide"))

    with pytest.raises(ConfigError, match=r"is cluster .*, and what has been landed is of cluster 1-2"):
        read_positions(cluster(server), "tide", cluster_id="1-2")
    with pytest.raises(ConfigError, match="there is no group 'none'"):
        read_positions(cluster(server), "none", cluster_id=cluster_id)


def test_unreachable_zookeeper_is_named() -> None:
    """Whoever has no ZooKeeper at hand is told which one did not answer."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(CoordinationError, match=f"no ZooKeeper answers at {address} within"):
            read_positions(ClusterSection(zookeeper=address), "lake", cluster_id="1-2", connect_timeout_s=0.5)


def test_audit_against_a_groups_positions(server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """What the group has committed and nobody has landed is found, by the settings that the daemon has."""
    cluster_id, made = asyncio.run(fill(server, "audited"))
    zone = LandingZone(tmp_path / "landing", cluster=cluster_id, group="audited")
    zone.land("orders", 0, 0, 90, czxid=made["orders"])
    settings = {
        "cluster": {"zookeeper": server.connect_string},
        "group": {"id": "audited"},
        "pipeline": {"landing": {"roots": [zone.path]}},
    }

    summary = run(no_session, JobSettings.model_validate(settings), Silent())

    assert "audited" == summary.numbers["group"]
    ahead, unlanded = summary.findings
    assert f"orders/0@{made['orders']}: the group has committed 100, and [90, 100) has not been landed" in ahead
    assert "committed ahead: orders/1-0: the group has committed 3, and none of the roots has a chain of it" == unlanded


def test_audit_of_another_groups_landing(server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """Positions of a group say nothing of what another one has landed."""
    zone = LandingZone(tmp_path / "landing", group="other")
    zone.land("orders", 0, 0, 90)
    settings = {
        "cluster": {"zookeeper": server.connect_string},
        "group": {"id": "audited"},
        "pipeline": {"landing": {"roots": [zone.path]}},
    }

    with pytest.raises(ConfigError, match=r"group\.id: 'audited', and what has been landed is of group other"):
        run(no_session, JobSettings.model_validate(settings), Silent())


def no_session() -> NoReturn:
    raise AssertionError("an audit of names and footers needs no Spark")
