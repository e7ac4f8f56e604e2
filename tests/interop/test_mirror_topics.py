# SPDX-License-Identifier: Apache-2.0
"""``consumerd mirror`` makes topics in a real cluster like those of another real cluster, and copies what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.interop.conftest import ClusterFactory, Figure, require
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster
from tests.support.kraft import make_cluster
from tests.support.mirroring import read_committed

pytestmark = [pytest.mark.records, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.drawn(parts=5)]

SOURCE: Final = "1.1.1"
PARTITIONS: Final = 3
COUNT: Final = 300
PART_BYTES: Final = 2000
PART_RECORDS: Final = PART_BYTES // 150
"""Records of a part at most: each has an origin of about 150 bytes."""
DEATHS: Final = ("before_commit", "after_commit")


@pytest.fixture(scope="module", params=[pytest.param("1.1.1", marks=pytest.mark.full), "4.3.1"])
def target(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without topics, whose brokers create none by themselves."""
    require(request.param)
    with make_cluster(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def old_target() -> Iterator[Cluster]:
    """A cluster that has no transactions."""
    require("0.10.2.2")
    with make_cluster("0.10.2.2") as running:
        yield running


def mirror(source: Cluster, target: Cluster, topic: str, **sink: Any) -> dict[str, Any]:
    return settings_for(
        source.zookeeper,
        topic,
        topics=(topic,),
        sink={"type": "kafka", "bootstrap": target.bootstrap, "flush_ms": 100, "topic": "old.{topic}", **sink},
        offsets={"commit_interval_ms": 300},
        group={"session_timeout_ms": 3000},
    )


def fill(source: Cluster, topic: str, begin: int, end: int) -> None:
    source.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(begin, end)))


def is_done(daemon: Daemon) -> bool:
    return bool(daemon.status()["mirror"]["safe_to_cut_over"])


def test_topic_has_the_partitions_and_settings_of_its_source(
    shared_clusters: ClusterFactory, target: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Also from a release that knows other settings; and partitions are added when the source grows."""
    source, topic = shared_clusters(SOURCE), unique("topics")
    source.create_topic(
        topic,
        PARTITIONS,
        retention_ms="123456789",
        max_message_bytes="2000000",
        cleanup_policy="compact,delete",
        message_format_version="0.10.2",
        segment_ms="86400000",
    )
    fill(source, topic, 0, COUNT)
    with Daemon(tmp_path, "mirror", mirror(source, target, topic), command="mirror") as daemon:
        daemon.wait(lambda: is_done(daemon), "everything is mirrored", timeout_s=90)
        assert wanted_settings() == own_settings(target, f"old.{topic}")
        assert PARTITIONS == count_partitions(target, f"old.{topic}")
        source.add_partitions(topic, PARTITIONS + 2)
        daemon.wait(
            lambda: count_partitions(target, f"old.{topic}") == PARTITIONS + 2, "partitions are added", timeout_s=90
        )
        fill(source, topic, COUNT, 2 * COUNT)
        daemon.wait(lambda: daemon.status()["owned"] == PARTITIONS + 2 and is_done(daemon), "the rest", timeout_s=90)
        assert 0 == daemon.terminate()
    for number in range(PARTITIONS + 2):
        original, copy = (
            [(one.key, one.value) for one in read_committed(where, name, number)]
            for where, name in ((source.bootstrap, topic), (target.bootstrap, f"old.{topic}"))
        )
        assert original == copy
        assert original


def wanted_settings() -> dict[str, str]:
    return {
        "retention.ms": "123456789",
        "max.message.bytes": "2000128",
        "cleanup.policy": "compact,delete",
        "segment.ms": "86400000",
    }


def own_settings(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return a topic's own settings, as librdkafka reads them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: one.value for name, one in found.result(30).items() if one.source == 1}


def count_partitions(cluster: Cluster, topic: str) -> int:
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=30).topics.get(topic)
    return 0 if found is None else len(found.partitions)


def test_target_without_transactions_gets_each_record_at_least_once(
    shared_clusters: ClusterFactory, old_target: Cluster, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Over kills, with values in envelopes; exactly once is refused with the name of the setting.

    A daemon that is killed repeats at most the part of a partition that it had under way.
    """
    source, topic = shared_clusters(SOURCE), unique("plain")
    source.create_topic(topic, PARTITIONS)
    fill(source, topic, 0, COUNT)
    with Daemon(tmp_path, "refused", mirror(source, old_target, topic), command="mirror") as daemon:
        assert 2 == daemon.wait_end(60)
        assert "delivery: at-least-once" in daemon.log()
    settings = mirror(source, old_target, topic, delivery="at-least-once", batch_bytes=PART_BYTES)
    with Daemon(tmp_path, "killed", settings, command="mirror") as daemon:
        daemon.wait(lambda: count_partitions(old_target, f"old.{topic}") == PARTITIONS, "the topic is made")
        daemon.kill()
    for number, point in enumerate(DEATHS, 1):
        fill(source, topic, number * COUNT, (number + 1) * COUNT)
        with Daemon(tmp_path, f"{number}", settings, command="mirror", fail_points=f"{point}=kill") as daemon:
            daemon.wait_killed(90)
    with Daemon(tmp_path, "next", settings, command="mirror") as daemon:
        daemon.wait(lambda: daemon.status()["owned"] == PARTITIONS and is_done(daemon), "everything", timeout_s=90)
    repeated = 0
    for number in range(PARTITIONS):
        wanted = [one.value for one in read_committed(source.bootstrap, topic, number)]
        found = [one.value for one in read_committed(old_target.bootstrap, f"old.{topic}", number)]
        values = [value.partition(b"\n")[2] for value in found if value is not None]
        assert list(dict.fromkeys(values)) == wanted
        assert len(values) - len(wanted) <= (1 + len(DEATHS)) * PART_RECORDS
        repeated += len(values) - len(wanted)
    figure("kills", 1 + len(DEATHS))
    figure("records", (1 + len(DEATHS)) * COUNT)
    figure("repeated", repeated)
