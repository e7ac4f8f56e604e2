# SPDX-License-Identifier: Apache-2.0
"""A daemon whose target is not ready, too narrow, or away: the page says what to do, and doing it is all it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Cluster
from tests.support.mirror_sources import read_records
from tests.support.registry import open_registry

pytestmark = [pytest.mark.records, pytest.mark.timeout(300), pytest.mark.drawn(parts=5)]

RELEASE: Final = "1.1.1"
LARGE: Final = 5000


@pytest.fixture
def target(own_cluster: ClusterFactory) -> Cluster:
    return own_cluster(RELEASE)


@pytest.fixture
def source(target: Cluster, tmp_path: Path) -> Iterator[EmbeddedThread]:
    """An embedded source, whose ZooKeeper is that of the target."""
    chroot = "/source"
    with open_registry(target.zookeeper) as registry:
        registry.client.ensure_path(chroot)
    with EmbeddedThread(tmp_path / "source", f"{target.zookeeper}{chroot}") as running:
        yield running


def send(source: EmbeddedThread, topic: str, partition: int, *values: bytes) -> None:
    """Send values to a partition, and wait until they are acknowledged."""
    producer = Producer({"bootstrap.servers": source.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert 0 == producer.flush(60)


def partitions_of(daemon: Daemon) -> Mapping[int, Mapping[str, Any]]:
    """Return what the page says of each partition."""
    return {int(one["partition"]): one for one in daemon.status()["partitions"]}


def reads(daemon: Daemon, partition: int, state: str, *words: str) -> bool:
    """Return True if the page says this of a partition."""
    shown = partitions_of(daemon).get(partition, {})
    return shown.get("state") == state and all(word in (shown.get("reason") or "") for word in words)


def values_of(target: Cluster, topic: str, partition: int) -> list[bytes | None]:
    return [one.value for one in read_records(target.bootstrap, topic, partition)]


def test_what_the_page_tells_to_do_is_all_that_a_mirror_needs(
    target: Cluster, source: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A topic that is missing, partitions that are, a record that is too large, a target that is away: no restart."""
    topic = unique("mirrored")
    copy = f"{topic}-copy"
    source.create_topic(topic, 2)
    before, after = [b"before %d" % number for number in range(20)], [b"after %d" % number for number in range(20)]
    large = b"x" * LARGE
    send(source, topic, 0, *before, large, *after)
    send(source, topic, 1, *before)
    settings = settings_for(
        source.zookeeper,
        topic,
        topics=(topic,),
        sink={
            "type": "kafka",
            "bootstrap": target.bootstrap,
            "topic": "{topic}-copy",
            "create_topics": False,
            "flush_ms": 100,
            "request_timeout_ms": 3000,
        },
    )
    with Daemon(tmp_path, "mirror", settings) as daemon:
        for number in (0, 1):
            daemon.wait(
                lambda number=number: reads(daemon, number, "failing", f"topic {copy} is missing", "--create"),
                "told",
                60,
            )
        target.create_topic(copy, 1, max_message_bytes="2000")
        daemon.wait(
            lambda: all(
                reads(daemon, one, "failing", f"{copy} has 1 partition in the target", "--alter") for one in (0, 1)
            ),
            "told",
            60,
        )

        target.add_partitions(copy, 2)
        daemon.wait(lambda: reads(daemon, 0, "stopped", "max.message.bytes", f"about {LARGE // 100}"), "told", 60)
        daemon.wait(lambda: partitions_of(daemon)[1]["committed"] == len(before), "partition 1 is mirrored", 60)
        target.configure_topic(copy, max_message_bytes="100000")
        daemon.wait(lambda: partitions_of(daemon)[0]["committed"] == len(before) + 1 + len(after), "partition 0", 90)

        target.kill_broker(0)
        send(source, topic, 1, *after)
        daemon.wait(lambda: reads(daemon, 1, "failing", target.bootstrap), "told", 60)
        daemon.wait(lambda: "failing for" in daemon.get("/readyz")[1], "listed after 30 s", 90)
        assert 200 == daemon.get("/readyz")[0]
        assert re.search(
            r'consumerd_partition_failing_seconds\{[^}]*partition="1"[^}]*\} [1-9]', daemon.get("/metrics")[1]
        )
        target.restart_broker(0)
        daemon.wait(lambda: partitions_of(daemon)[1]["committed"] == len(before) + len(after), "it goes on", 90)
        assert daemon.terminate() == 0
    assert [*before, large, *after] == values_of(target, copy, 0)
    assert [*before, *after] == values_of(target, copy, 1)
