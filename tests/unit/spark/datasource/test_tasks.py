# SPDX-License-Identifier: Apache-2.0
"""What a task of a read knows of the cluster: brokers' addresses, and nothing that only the driver has."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from consumerd.cluster.view import Broker
from consumerd.model import TopicPartition
from consumerd.spark.datasource.batch import make_partitions
from consumerd.spark.datasource.options import parse_read_options
from consumerd.spark.datasource.planning import OffsetRange


class _Lookup:
    """The driver's lookup, of a cluster of 0.8 or later."""

    def bootstrap(self) -> str:
        return "two:9092"

    def find_brokers(self, _partitions: object) -> dict[TopicPartition, Broker]:
        return {}

    def find_segments(self, _partitions: object) -> dict[TopicPartition, tuple[int, ...]]:
        return {}


def _lookup() -> Any:
    return _Lookup()


RANGE = OffsetRange(partition=TopicPartition.modern("orders", 0), start=0, end=10)


@pytest.mark.parametrize(
    "given",
    [
        {"kafka.bootstrap.servers": "one:9092", "identities": "/none.json"},
        {"zookeeper": "zk:2181", "zookeeper.auth.scheme": "digest", "zookeeper.auth.file": "/none"},
    ],
)
def test_tasks_have_addresses_of_brokers_alone(given: dict[str, str]) -> None:
    """Files of the driver are not named in what is pickled for executors."""
    options = parse_read_options({**given, "subscribe": "orders", "minPartitions": "2"}, streaming=True)
    found = make_partitions([RANGE], options, _lookup())

    clusters = [one.task.cluster for one in found if one.task is not None]
    assert 2 == len(clusters)
    for cluster in clusters:
        assert ("two:9092", None, None, None) == (
            cluster.bootstrap,
            cluster.zookeeper,
            cluster.zookeeper_auth,
            cluster.identities,
        )
    assert b"none" not in pickle.dumps(found)
