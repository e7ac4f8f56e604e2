# SPDX-License-Identifier: Apache-2.0
"""The library's low-level consumer against embedded brokers of Kafka 0.7: fetches at byte offsets, and OFFSETS."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumerd.api import (
    EARLIEST,
    LATEST,
    BrokerError,
    ClusterAddress,
    ConsumerRecord,
    CorruptMessageError,
    RecordTooLarge,
    RequestTimedOut,
    SimpleConsumer,
    TopicPartition,
    open_simple_consumer,
)
from consumerd.embedded.legacy.broker import LegacyBrokerSettings
from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS
from consumerd.embedded.legacy.cluster import LegacyCluster
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.model import BrokerId, PartitionKey
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set
from tests.support.legacy_client import legacy_client
from tests.support.waiting import until
from tests.support.zookeeper import make_client, run_server

_chroots = itertools.count()
VALUES = [b"value-%d" % number for number in range(10)]
SIZE = len(build_message_set(VALUES[:1]))
"""Bytes of each stored message of VALUES."""


def at(key: str, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionKey.parse(key))


ZERO, ONE = at("0-0"), at("1-0")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for all tests; each has a chroot of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def run(server: EmbeddedZooKeeper, tmp_path: Path) -> Any:
    """Return a function that runs a cluster of two brokers for a block, with the logs' settings."""

    @asynccontextmanager
    async def running(**log: Any) -> AsyncIterator[LegacyCluster]:
        make_broker = partial(LegacyBrokerSettings, num_partitions=2, log=replace(DEFAULT_SETTINGS, **log))
        zookeeper = f"{server.connect_string}/legacy-simple-{next(_chroots)}"
        async with LegacyCluster(tmp_path, zookeeper=zookeeper, nodes=2, make_broker=make_broker) as cluster:
            yield cluster

    return running


async def store(
    cluster: LegacyCluster, values: Sequence[bytes], partition: TopicPartition = ZERO, codec: Codec = Codec.NONE
) -> None:
    """Store messages, together if they are compressed; return when they and their partition can be found."""
    messages = build_message_set(values)
    broker = partition.partition.broker
    assert broker is not None
    async with legacy_client(cluster.brokers[broker].port) as client:
        stored = messages if codec is Codec.NONE else compress_message_set(messages, codec)
        await client.produce(stored, partition.topic, partition.partition.number)
    async with make_client(cluster.zookeeper) as zk:

        async def is_registered() -> bool:
            return await zk.find(f"/brokers/topics/{partition.topic}/{broker}") is not None

        await until(is_registered)


@asynccontextmanager
async def consuming(cluster: LegacyCluster, **options: Any) -> AsyncIterator[SimpleConsumer]:
    """Open the consumer as a program does."""
    address = ClusterAddress(zookeeper=cluster.zookeeper, client_id="test")
    async with open_simple_consumer(address, **{"timeout_s": 20.0, **options}) as consumer:
        yield consumer


async def read(consumer: SimpleConsumer, partition: TopicPartition, **options: Any) -> list[ConsumerRecord]:
    """Return all records, from the start of the log to its end."""
    (position,) = await consumer.offsets_before(partition, EARLIEST)
    (end,) = await consumer.offsets_before(partition, LATEST)
    records: list[ConsumerRecord] = []
    while position < end:
        found = await consumer.fetch(partition, position, **options)
        assert (found.batch.start, found.high_watermark) == (position, None)
        assert found.batch.next_offset > position
        records += found.records()
        position = found.batch.next_offset
    assert position == end
    return records


@pytest.mark.parametrize("max_bytes", [1, SIZE + 1, 1 << 20])
async def test_records_have_their_broker_partition_offset_and_index(run: Any, max_bytes: int) -> None:
    """Those that were compressed together share an offset, whatever the size of a fetch."""
    async with run() as cluster:
        await store(cluster, VALUES[:3], at("1-1"))
        await store(cluster, VALUES[3:8], at("1-1"), Codec.GZIP)
        await store(cluster, VALUES[8:], at("1-1"), Codec.SNAPPY)
        async with consuming(cluster) as consumer:
            records = await read(consumer, at("1-1"), max_bytes=max_bytes)
            starts = await consumer.offsets_before(at("1-1"), LATEST, 10)

    compressed = len(compress_message_set(build_message_set(VALUES[3:8]), Codec.GZIP))
    offsets = [0, SIZE, 2 * SIZE, *[3 * SIZE] * 5, *[3 * SIZE + compressed] * 2]
    assert [one.value for one in records] == VALUES
    assert [one.offset for one in records] == offsets
    assert [one.index for one in records] == [0, 0, 0, 0, 1, 2, 3, 4, 0, 1]
    assert {(one.topic, one.broker, one.partition, one.key, one.timestamp) for one in records} == {
        ("t", BrokerId(1), 1, None, -1)
    }
    assert starts[1:] == [0]


async def test_the_offset_after_each_record_is_told(run: Any) -> None:
    """It is no offset plus one: offsets count bytes."""
    async with run() as cluster:
        await store(cluster, VALUES[:2])
        await store(cluster, VALUES[2:4], codec=Codec.GZIP)
        async with consuming(cluster) as consumer:
            batch = (await consumer.fetch(ZERO, SIZE)).batch
            end = await consumer.fetch(ZERO, batch.next_offset)

    assert [batch.following(row) for row in range(len(batch))] == [2 * SIZE, batch.next_offset, batch.next_offset]
    assert (len(end.batch), end.batch.next_offset) == (0, batch.next_offset)


async def test_offsets_by_time_are_starts_of_segments(run: Any, tmp_path: Path) -> None:
    """Messages have no timestamps: a segment counts by the time of its file."""
    async with run(segment_bytes=3 * SIZE - 1) as cluster:
        for value in VALUES:
            await store(cluster, [value])
        async with consuming(cluster) as consumer:
            everything = await consumer.offsets_before(ZERO, LATEST, 100)
            assert everything == [10 * SIZE, 9 * SIZE, 6 * SIZE, 3 * SIZE, 0]
            assert await consumer.offsets_before(ZERO, LATEST, 2) == everything[:2]
            assert await consumer.offsets_before(ZERO, EARLIEST, 100) == [0]
            for number, segment in enumerate(sorted(tmp_path.rglob("t-0/*.kafka")), 1):
                os.utime(segment, (1000 * number, 1000 * number))
            assert await consumer.offsets_before(ZERO, 2_500_000, 100) == [3 * SIZE, 0]
            assert await consumer.offsets_before(ZERO, 2_500_000) == [3 * SIZE]
            assert await consumer.offsets_before(ZERO, 500_000, 100) == []
            assert await consumer.read_timestamp(ZERO, 0) is None
            seen = [one.value for one in await read(consumer, ZERO)]

    assert seen == VALUES


async def test_partitions_of_two_brokers_are_fetched_together(run: Any) -> None:
    """``0-0`` and ``1-0`` have one number; each has its own records or its own error."""
    async with run() as cluster:
        await store(cluster, VALUES[:2], ZERO)
        await store(cluster, VALUES[2:4], ONE)
        async with consuming(cluster, timeout_s=2.0) as consumer:
            found = await consumer.multifetch({ZERO: 0, ONE: SIZE, at("0-1"): 0, at("1-1"): 5000, at("1-9"): 0})

    values = {one: [record.value for record in batch.records()] for one, batch in found.fetched.items()}
    assert values == {ZERO: VALUES[:2], ONE: VALUES[3:4], at("0-1"): [], at("1-1"): []}
    assert set(found.errors) == {at("1-9")}
    assert isinstance(found.errors[at("1-9")], RequestTimedOut)


async def test_a_broker_that_is_away_does_not_keep_others_from_being_read(run: Any) -> None:
    """Its partitions are nowhere else; they are there again when it is back, at the same offsets."""
    async with run() as cluster:
        await store(cluster, VALUES[:2], ZERO)
        await store(cluster, VALUES[2:4], ONE)
        async with consuming(cluster, timeout_s=2.0) as consumer:
            await cluster.stop_broker(1)
            found = await consumer.multifetch({ZERO: 0, ONE: 0})
            assert set(found.fetched) == {ZERO}
            assert isinstance(found.errors[ONE], RequestTimedOut)
            with pytest.raises(RequestTimedOut, match="t/1-0"):
                await consumer.offsets_before(ONE, LATEST)

        async with consuming(cluster) as consumer:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read(consumer, ONE))
                await cluster.start_broker(1)
            assert [one.value for one in reading.result()] == VALUES[2:4]


async def test_an_offset_outside_of_the_log_is_an_error(run: Any) -> None:
    """As with later releases."""
    async with run() as cluster:
        await store(cluster, VALUES)
        async with consuming(cluster) as consumer:
            with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
                await consumer.fetch(ZERO, 10 * SIZE + 1)


async def test_an_offset_inside_of_a_message_yields_no_records(run: Any) -> None:
    """The broker returns the bytes from there on, and valid messages may lie in them: here a whole message set."""
    inner = build_message_set(VALUES)
    async with run() as cluster:
        await store(cluster, [b"before", inner, b"behind", *VALUES])
        async with consuming(cluster) as consumer:
            (first, _, behind, *_) = [one.offset for one in await read(consumer, ZERO)][0:4]
            begin = behind - len(inner)
            for _ in range(2):
                with pytest.raises(CorruptMessageError, match="no message begins there") as caught:
                    await consumer.fetch(ZERO, begin)
                assert (caught.value.offset, caught.value.next_offset) == (begin, behind)
            rest = await consumer.fetch(ZERO, behind)

    assert first == 0
    assert [one.value for one in rest.records()] == [b"behind", *VALUES]


async def test_a_large_message_is_fetched_whole_up_to_the_limit(run: Any) -> None:
    """Brokers cut off the first message, too."""
    large = bytes(300_000)
    async with run() as cluster:
        await store(cluster, [*VALUES[:1], large, *VALUES[1:2]])
        async with consuming(cluster) as consumer:
            records = await read(consumer, ZERO, max_bytes=1000)
        async with consuming(cluster, max_message_bytes=100_000) as consumer:
            with pytest.raises(RecordTooLarge, match="t/0-0"):
                await consumer.fetch(ZERO, SIZE)

    assert [one.value for one in records] == [VALUES[0], large, VALUES[1]]


async def test_damaged_bytes_are_an_error_and_what_is_before_them_is_not(run: Any, tmp_path: Path) -> None:
    """The error has the offset at which a program can go on."""
    async with run() as cluster:
        await store(cluster, VALUES)
        await cluster.stop_broker(0)
        (segment,) = tmp_path.rglob("t-0/*.kafka")
        stored = bytearray(segment.read_bytes())
        stored[3 * SIZE - 1] ^= 1
        await cluster.start_broker(0)
        segment.write_bytes(stored)  # when it is open: a start would cut it there

        async with consuming(cluster) as consumer:
            before = await consumer.fetch(ZERO, 0)
            with pytest.raises(CorruptMessageError, match="t/0-0") as caught:
                await consumer.fetch(ZERO, before.batch.next_offset)
            assert caught.value.next_offset is not None
            behind = await consumer.fetch(ZERO, caught.value.next_offset)

    assert [one.value for one in before.records()] == VALUES[:2]
    assert caught.value.offset == 2 * SIZE
    assert [one.value for one in behind.records()] == VALUES[3:]


async def test_a_fetch_waits_for_records_although_brokers_do_not(run: Any) -> None:
    """``max_wait_s`` means the same as with later releases."""
    async with run() as cluster:
        await store(cluster, VALUES[:1])
        async with consuming(cluster) as consumer, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(consumer.fetch(ZERO, SIZE, max_wait_s=60.0))
            at_once = await consumer.fetch(ZERO, SIZE)
            short = await consumer.fetch(ZERO, SIZE, max_wait_s=0.15)
            assert (len(at_once.batch), len(short.batch), waiting.done()) == (0, 0, False)

            await store(cluster, VALUES[1:2])

    assert [one.value for one in waiting.result().records()] == VALUES[1:2]
