# SPDX-License-Identifier: Apache-2.0
"""``consumerd migrate translate`` over a restored topic, between two embedded clusters."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumerd.cli.main import DONE, main
from consumerd.mirror.positions import DEFAULT_GROUP
from consumerd.model import Incarnation
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.spark.replay_mapped import prepare_target
from consumerd.spark.replay_plan import PlannedLog
from consumerd.spark.replay_tasks import ReplayTarget, replay_rows
from consumerd.zk.layout import BROKER_TOPICS
from tests.support.embedded import EmbeddedThread
from tests.support.mirroring import P, read_committed
from tests.support.registry import open_registry
from tests.support.replay_rows import end_row, make_rows, row
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records


def test_a_group_goes_on_at_the_record_that_it_would_have_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its position in the old cluster's ZooKeeper becomes one in the new cluster."""
    with (
        run_server() as server,
        EmbeddedThread(tmp_path / "source", f"{server.connect_string}/old") as source,
        EmbeddedThread(tmp_path / "target", None) as target,
        open_registry(source.zookeeper) as registry,
    ):
        source.create_topic("orders", 1)
        source.produce("orders", b"".join(b"k%d\tv%d\n" % (number, number) for number in range(50)))
        topics, orders = (registry.client.exists(path) for path in (BROKER_TOPICS, f"{BROKER_TOPICS}/orders"))
        assert topics is not None
        assert orders is not None
        cluster, creation = f"{topics.czxid}-{topics.ctime}", Incarnation(orders.czxid)
        landed = [
            row(offset, key=k, value=v, incarnation=str(creation))
            for offset, (k, v) in enumerate(source.read("orders"))
        ]
        log = PlannedLog(partition=P, incarnation=creation, start=0, end=50, position=0)
        place = ReplayTarget(options=KafkaOptions(bootstrap=target.bootstrap), group=DEFAULT_GROUP, cluster=cluster)
        prepare_target(place, [log])
        batches = [make_rows(*landed[begin : begin + 7]) for begin in range(0, 50, 7)]
        list(replay_rows(place, {log.name: log}, [*batches, make_rows(end_row(50, incarnation=str(creation)))]))
        restored = {one.offset: one.value for one in read_committed(target.bootstrap, "orders")}

        for position in (0, 1, 6, 7, 30, 49):
            group = f"shop-{position}"
            path = f"/consumers/{group}/offsets/orders/0"
            registry.client.ensure_path(path)
            registry.client.set(path, b"%d" % position)
            addresses = ["-z", source.zookeeper, "--target", target.bootstrap, "--mirror-group", DEFAULT_GROUP]
            assert DONE == main(["migrate", "translate", *addresses, "-g", group, "--yes"]), capsys.readouterr().err
            assert b"v%d" % position == restored[read_position(target, group)]


def read_position(cluster: EmbeddedThread, group: str) -> int:
    """Return the group's committed position, as librdkafka reads it."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition("orders", 0)], timeout=10)[0].offset)
    finally:
        consumer.close()
