# SPDX-License-Identifier: Apache-2.0
"""Producing to real brokers that speak the protocol of Kafka 0.7; the fetcher and their Java consumer read it."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.client.legacy_producer import run_legacy_producer
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import encode_text
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import DeliveryTimedOut
from consumerd.wire.compression import Codec
from consumerd.zk.aiozk_client import AiozkClient
from tests.support import jafka
from tests.support.jafka import JafkaCluster
from tests.support.legacy_reading import legacy_pool, list_legacy_partitions, read_legacy_topic
from tests.support.tools import require_jars
from tests.support.waiting import until
from tests.support.zookeeper import make_client

pytestmark = pytest.mark.interop

PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[JafkaCluster]:
    with require_jars():
        jafka.jars()
    with JafkaCluster(partitions=PARTITIONS) as started:
        yield started


@asynccontextmanager
async def session(cluster: JafkaCluster) -> AsyncIterator[AiozkClient]:
    async with make_client(cluster.zookeeper) as zk:
        await zk.wait_connected()
        yield zk


@asynccontextmanager
async def producing(cluster: JafkaCluster, **settings: Any) -> AsyncIterator[Producer]:
    async with (
        session(cluster) as zk,
        legacy_pool() as pool,
        run_legacy_producer(zk, pool, settings=ProducerSettings(**settings), key_encoder=encode_text) as producer,
    ):
        yield producer


async def is_registered(cluster: JafkaCluster, topic: str) -> bool:
    async with session(cluster) as zk:
        return len(await list_legacy_partitions(zk, topic)) == PARTITIONS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_each_record_is_stored_once_where_its_delivery_says(cluster: JafkaCluster, codec: Codec) -> None:
    """A new topic: the first record goes to 0-0, and the watch brings the other partitions."""
    topic = f"made-{codec.name.lower()}"
    places: dict[str, list[bytes]] = defaultdict(list)
    numbers = itertools.count()
    async with timeout(60):
        async with producing(cluster, codec=codec, linger_s=0.01) as producer:

            async def send_some(count: int) -> bool:
                values = [b"value-%d" % next(numbers) for _ in range(count)]
                deliveries = [
                    await producer.enqueue(topic, value, key=f"k{number % 7}" if number % 2 else None)
                    for number, value in enumerate(values)
                ]
                for value, delivery in zip(values, deliveries, strict=True):
                    metadata = await delivery
                    places[f"{metadata.broker}-{metadata.partition}"].append(value)
                return len(places) == PARTITIONS

            await send_some(1)
            assert {"0-0"} == set(places)
            await until(lambda: send_some(1))
            await send_some(300)
        async with session(cluster) as zk:
            found = await read_legacy_topic(zk, topic)
    assert {"0-0", "0-1", "0-2"} == set(places)
    assert places == {key: [one.value for one in records] for key, records in found.items()}


async def test_a_codec_that_this_broker_does_not_know_is_told_by_the_closed_connection(cluster: JafkaCluster) -> None:
    """Jafka has no snappy; Kafka 0.7.2 has. Nothing of the set is stored."""
    settings = {"codec": Codec.SNAPPY, "request_timeout_s": 1, "delivery_timeout_s": 2}
    async with timeout(60), producing(cluster, **settings) as producer:
        with pytest.raises(DeliveryTimedOut, match="Jafka: magic 0 and snappy") as caught:
            await producer.send("refused", b"x" * 100)
    assert caught.value.in_doubt


async def test_the_java_consumer_reads_what_was_written(cluster: JafkaCluster) -> None:
    """Payloads, checksums and compressed sets as it expects them."""
    topic, count = "for-java", 100
    async with timeout(90):
        for codec in (Codec.NONE, Codec.GZIP):
            async with producing(cluster, codec=codec, linger_s=0.01) as producer:
                for number in range(count):
                    await producer.enqueue(topic, b"%s-%d" % (codec.name.encode(), number))
        await until(functools.partial(is_registered, cluster, topic))
        member = await asyncio.to_thread(cluster.start_member, "reader", topic, "readers")
        expected = {f"{name}-{number}" for name in ("NONE", "GZIP") for number in range(count)}
        await until(lambda: len(member.values()) >= 2 * count, within_s=60)
    assert sorted(expected) == sorted(member.values())
