# SPDX-License-Identifier: Apache-2.0
"""Partitions and settings of topics, from ZooKeeper and from brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.opening import open_access, open_producer
from consumerd.client.topic_descriptions import make_topic_descriptions
from consumerd.cluster.topic_description import TopicDescription, TopicDescriptions
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.legacy.broker import LegacyBrokerSettings
from consumerd.embedded.legacy.cluster import LegacyCluster
from consumerd.model import PartitionKey


@asynccontextmanager
async def read(address: ClusterAddress) -> AsyncIterator[TopicDescriptions]:
    async with open_cluster(address, wait_s=20, await_broker=True) as cluster, open_access(cluster) as access:
        yield make_topic_descriptions(access)


@pytest.mark.parametrize("by_zookeeper", [True, False])
async def test_partitions_replicas_and_own_settings_are_told(*, by_zookeeper: bool) -> None:
    """The brokers' own settings are not among them: the target has its own."""
    async with EmbeddedCluster(nodes=2) as cluster:
        await cluster.broker.create_topic("orders", 3, retention_ms="5000")
        address = (
            ClusterAddress(zookeeper=cluster.zookeeper, client_id="tests")
            if by_zookeeper
            else ClusterAddress(bootstrap=cluster.bootstrap, client_id="tests")
        )
        async with read(address) as descriptions:
            wanted = TopicDescription(
                name="orders",
                partitions=tuple(map(PartitionKey, range(3))),
                replication_factor=2,
                settings={"retention.ms": "5000"},
            )
            assert wanted == await descriptions.describe("orders")
            assert await descriptions.describe("missing") is None
            assert await descriptions.find_cluster_id() is not None


async def test_settings_that_old_brokers_do_not_tell_are_named_as_such() -> None:
    """Nothing is made up: who creates such a topic must know them."""
    make = partial(BrokerSettings, as_release="0.10")
    async with EmbeddedCluster(make_broker=make, topics={"orders": 2}) as cluster:
        async with read(ClusterAddress(bootstrap=cluster.bootstrap, client_id="tests")) as descriptions:
            found = await descriptions.describe("orders")
        assert found is not None
        assert len(found.partitions) == 2
        assert found.untold is not None
        assert "cluster.zookeeper" in found.untold


async def test_partitions_of_kafka_0_7_are_those_of_each_broker() -> None:
    """They have neither replicas nor settings of the topic's own."""
    make = partial(LegacyBrokerSettings, num_partitions=2)
    async with LegacyCluster(make_broker=make) as cluster:
        address = ClusterAddress(zookeeper=cluster.zookeeper, client_id="tests")
        async with open_producer(address) as producer:
            await producer.send("orders", b"1")
            await producer.flush()
        async with read(address) as descriptions:
            found = await descriptions.describe("orders")
            assert found is not None
            assert ["0-0", "0-1"] == [str(key) for key in found.partitions]
            assert (None, {}, None) == (found.replication_factor, found.settings, found.untold)
            assert await descriptions.find_cluster_id() is None
