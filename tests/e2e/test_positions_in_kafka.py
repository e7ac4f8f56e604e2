# SPDX-License-Identifier: Apache-2.0
"""A group moves its positions from ZooKeeper to Kafka and back, and nothing is delivered twice or left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.offset_commands import offsets, read_landed, rows
from tests.support.registry import open_registry

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 2


def produce(cluster: EmbeddedThread, topic: str, count: int) -> None:
    send_all(cluster.bootstrap, (Sent(topic, one % PARTITIONS, None, b"value %d" % one) for one in range(count)))


def read_kafka(cluster: EmbeddedThread, group: str, topic: str) -> dict[int, int]:
    """Return the positions in Kafka, by a client that is not ours; -1001 without one."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(wanted, timeout=10)}
    finally:
        consumer.close()


def keep_in(storage: str, *, dual: bool | None = None) -> dict[str, Any]:
    return {"storage": storage, "dual_commit": dual, "commit_interval_ms": 200}


@pytest.mark.timeout(120)
def test_a_group_moves_to_kafka_and_back_by_restarts(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """ZooKeeper, both, Kafka alone, both, ZooKeeper: each step goes on exactly where the one before has stopped."""
    topic, group = unique("moving"), unique("movers")
    cluster.create_topic(topic, PARTITIONS)
    steps = [
        keep_in("zookeeper"),
        keep_in("kafka"),
        keep_in("kafka", dual=False),
        keep_in("kafka", dual=True),
        keep_in("zookeeper"),
    ]
    seen: list[tuple[dict[int, int], dict[int, int]]] = []
    read: list[tuple[int, int]] = []
    with open_registry(cluster.zookeeper) as registry:
        for number, section in enumerate(steps):
            produce(cluster, topic, 40)
            settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets=section)
            with Daemon(tmp_path, f"step-{number}", settings) as daemon:
                daemon.wait(lambda: len(daemon.deliveries) >= 40, "the new records")
                assert daemon.terminate() == 0
                read += [(one.partition, one.offset) for one in daemon.deliveries]
            seen.append((registry.offsets(group, topic), read_kafka(cluster, group, topic)))

    assert sorted(read) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(100)]
    none = dict.fromkeys(range(PARTITIONS), -1001)
    assert seen == [
        ({0: 20, 1: 20}, none),
        ({0: 40, 1: 40}, {0: 40, 1: 40}),
        ({0: 40, 1: 40}, {0: 60, 1: 60}),
        ({0: 80, 1: 80}, {0: 80, 1: 80}),
        ({0: 100, 1: 100}, {0: 80, 1: 80}),
    ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dual", [True, False], ids=["both", "kafka alone"])
def test_a_killed_member_goes_on_from_kafka_and_files_hold_each_record_once(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path, dual: bool
) -> None:
    """Killed right before and right after a commit: the files' chain and the position in Kafka fit together."""
    topic, group = unique("killed"), unique("kafka")
    cluster.create_topic(topic, PARTITIONS)
    folder = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper,
        group,
        topics=(topic,),
        sink={"type": "parquet", "path": str(folder), "roll_ms": 200},
        offsets=keep_in("kafka", dual=dual),
    )
    for round_, point in enumerate(("before_commit=kill@2", "after_commit=kill@2", "")):
        produce(cluster, topic, 40)
        with Daemon(tmp_path, f"round-{round_}", settings, fail_points=point) as daemon:
            if point:
                produce(cluster, topic, 40)
                daemon.wait_killed()
                continue
            expected = {0: 100, 1: 100}
            daemon.wait(lambda: read_kafka(cluster, group, topic) == expected, "all is committed")  # noqa: B023
            assert daemon.terminate() == 0

    assert [read_landed(folder, topic, number).offsets for number in range(PARTITIONS)] == [[*range(100)]] * 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dual", [True, False], ids=["both", "kafka alone"])
def test_a_rewind_by_request_moves_the_positions_in_kafka(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path, dual: bool
) -> None:
    """If one place were left behind, the larger position would undo the rewind at the next start."""
    topic, group = unique("rewound"), unique("rewinders")
    cluster.create_topic(topic, PARTITIONS)
    produce(cluster, topic, 40)
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets=keep_in("kafka", dual=dual))
    with open_registry(cluster.zookeeper) as registry:
        with Daemon(tmp_path, "one", settings) as one:
            one.wait(lambda: read_kafka(cluster, group, topic) == {0: 20, 1: 20}, "all is committed")
            (moved,) = rows(offsets(cluster.zookeeper, group, "set", f"{topic}/0=5", "--yes", "--json"))
            one.wait(lambda: len(one.deliveries) == 55, "15 records again")
            one.wait(lambda: read_kafka(cluster, group, topic) == {0: 20, 1: 20}, "they are committed again")
            requests = registry.client.get_children(f"/consumers/{group}/consumerd/requests/{topic}")
            assert one.terminate() == 0
        with Daemon(tmp_path, "two", settings) as two:
            two.wait_ready()
            produce(cluster, topic, 2)
            two.wait(lambda: len(two.deliveries) == 2, "only what is new")
            assert two.terminate() == 0

    assert moved["outcome"] == "carried out"
    assert requests == []
