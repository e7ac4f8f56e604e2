# SPDX-License-Identifier: Apache-2.0
"""Topics of a mirror, made in an embedded cluster like those of another one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.new_topic import NewTopic
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.client.topic_admin import TopicAdmin
from consumerd.client.topic_descriptions import make_topic_descriptions
from consumerd.cluster.topic_description import TopicDescription
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.mirror.target_topics import TopicPolicy
from consumerd.mirror.topic_maker import TopicMaker
from consumerd.model import PartitionKey

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True, kw_only=True)
class Rig:
    """One cluster of two brokers without ZooKeeper, which is source and target."""

    access: ClusterAccess
    admin: TopicAdmin

    async def create(self, name: str, partitions: int, **configs: str) -> None:
        own = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(name=name, partitions=partitions, replication_factor=2, configs=own)
        assert {name: None} == await self.admin.create_topics([topic])

    def maker(self, **options: Any) -> TopicMaker:
        template = options.pop("template", "old.{topic}")
        return TopicMaker(
            make_topic_descriptions(self.access),
            self.access.cluster.make_source(self.access.cluster.list_known),
            self.admin,
            template=template,
            policy=TopicPolicy(**options),
        )

    async def describe(self, name: str) -> tuple[int, dict[str, str | None]]:
        found = await make_topic_descriptions(self.access).describe(name)
        assert found is not None
        assert found.replication_factor == 2
        return len(found.partitions), dict(found.settings)


@asynccontextmanager
async def open_rig(cluster: EmbeddedCluster) -> AsyncIterator[Rig]:
    address = ClusterAddress(bootstrap=cluster.bootstrap, client_id="tests")
    async with open_cluster(address, wait_s=10) as opened, open_access(opened) as access:
        yield Rig(access=access, admin=TopicAdmin(access.pool, access.directory, random=random.random))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    make = partial(BrokerSettings, as_release="4.0")
    async with (
        EmbeddedCluster(without_zookeeper=True, nodes=2, make_broker=make) as cluster,
        open_rig(cluster) as found,
    ):
        yield found


async def test_topic_is_made_like_its_source(rig: Rig) -> None:
    """With its partitions, replicas and own settings, under the other name; again nothing happens."""
    await rig.create("orders", 3, retention_ms="5000", cleanup_policy="compact")
    maker = rig.maker()
    assert "old.orders" == await maker.require("orders", 2)
    assert (3, {"retention.ms": "5000", "cleanup.policy": "compact"}) == await rig.describe("old.orders")
    assert "old.orders" == await maker.require("orders", 0)
    assert "old.orders" == await rig.maker().require("orders", 1)


async def test_several_makers_and_partitions_make_a_topic_once(rig: Rig) -> None:
    """Replicas begin at the same time; each partition is opened by itself."""
    for name in ("a", "b"):
        await rig.create(name, 4)
    makers = [rig.maker() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(maker.require(topic, number)) for maker in makers for topic in "ab" for number in range(4)
        ]
    assert {"old.a", "old.b"} == {task.result() for task in asked}
    assert (4, {}) == await rig.describe("old.a")


async def test_partitions_follow_the_source(rig: Rig) -> None:
    """A topic that the mirror has made grows with the source, also after a restart that knows it by its positions."""
    await rig.create("orders", 2)
    maker = rig.maker()
    await maker.require("orders", 0)
    assert {"orders": None} == await rig.admin.add_partitions({"orders": 3})
    assert "old.orders" == await maker.require("orders", 2)
    assert (3, {}) == await rig.describe("old.orders")
    assert {"orders": None} == await rig.admin.add_partitions({"orders": 5})
    with pytest.raises(RetriableSinkError, match=r"old[.]orders has 3 partitions in the target, and 5 are needed"):
        await rig.maker().require("orders", 4)
    assert "old.orders" == await rig.maker().require("orders", 4, is_ours=True)
    assert (5, {}) == await rig.describe("old.orders")


async def test_refusal_ends_when_the_operator_has_acted(rig: Rig) -> None:
    """It is asked again with each attempt, so nothing needs a restart."""
    await rig.create("orders", 2)
    await rig.create("old.orders", 1)
    maker = rig.maker()
    with pytest.raises(RetriableSinkError, match="add_partitions: true"):
        await maker.require("orders", 1)
    assert {"old.orders": None} == await rig.admin.add_partitions({"old.orders": 2})
    assert "old.orders" == await maker.require("orders", 1)


async def test_settings_that_the_target_refuses_are_left_out(rig: Rig) -> None:
    """A value of another release must not keep a topic from being mirrored."""
    source = TopicDescription(
        name="orders",
        partitions=(PartitionKey(0),),
        replication_factor=2,
        settings={"no.such.setting": "1", "retention.ms": "much", "segment.ms": "7000"},
    )
    maker = TopicMaker(
        Described(source),
        rig.access.cluster.make_source(rig.access.cluster.list_known),
        rig.admin,
        template="{topic}",
        policy=TopicPolicy(),
    )
    assert "orders" == await maker.require("orders", 0)
    assert (1, {"segment.ms": "7000"}) == await rig.describe("orders")


async def test_topic_is_not_mirrored_into_itself(rig: Rig) -> None:
    """Source and target are known by their cluster id, whatever their addresses are."""
    await rig.create("orders", 1)
    with pytest.raises(RetriableSinkError, match="source and target are one cluster"):
        await rig.maker(template="{topic}").require("orders", 0)


async def test_what_the_target_refuses_is_told_with_the_command(rig: Rig) -> None:
    """An operator with the right can create the topic."""
    await rig.create("orders", 1)
    with pytest.raises(RetriableSinkError, match=r"old[.]orders would have 5 replicas; the target has 2 brokers"):
        await rig.maker(replication_factor=5).require("orders", 0)
    with pytest.raises(
        RetriableSinkError, match=r"--create --topic old[.]orders --partitions 1 --replication-factor 2"
    ):
        await rig.maker(creates=False).require("orders", 0)
    with pytest.raises(RetriableSinkError, match=r"old[.]missing is not in the target yet"):
        await rig.maker().require("missing", 0)
    with pytest.raises(ConfigError, match="249 are allowed"):
        await rig.maker().require("t" * 248, 0)


@dataclass(frozen=True)
class Described:
    """A source with one topic."""

    topic: TopicDescription

    async def find_cluster_id(self) -> str | None:
        return None

    async def describe(self, topic: str) -> TopicDescription | None:
        return self.topic if topic == self.topic.name else None
