# SPDX-License-Identifier: Apache-2.0
"""Fetching from real brokers: everything that was produced comes out once, in order and unchanged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import OffsetOutOfRange, RecordTooLarge
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import TopicPartition
from tests.interop.conftest import ClusterFactory
from tests.support.fetching import fetching
from tests.support.kafka import CODECS, Cluster, Sent, has_headers

pytestmark = pytest.mark.records

MIB = 1 << 20
Ledger = Mapping[tuple[str, int, int], Sent]
Unique = Callable[[str], str]


def make_records(topic: str, partitions: int, count: int, *, seed: int, headers: bool) -> list[Sent]:
    """Keys and values of all kinds: null, empty, short, long."""
    source = random.Random(seed)

    def data() -> bytes | None:
        return source.choice([None, b"", b"x", source.randbytes(20), source.randbytes(source.randrange(3000))])

    some = (("name", b"value"), ("null", None))
    return [
        Sent(
            topic=topic,
            partition=source.randrange(partitions),
            key=data(),
            value=data(),
            headers=source.choice([(), some]) if headers else (),
        )
        for _ in range(count)
    ]


def produce(cluster: Cluster, topic: str, partitions: int, count: int, codec: str, seed: int) -> Ledger:
    """Send records with the release's own producer and return where each is."""
    producer = cluster.ledger_producer(codec)
    producer.send(make_records(topic, partitions, count, seed=seed, headers=has_headers(cluster.release)))
    return producer.finish()


async def consume(
    fetcher: Fetcher, topic: str, partition: int, end: int, seen: dict[tuple[str, int, int], Sent]
) -> None:
    """Take one partition up to offset ``end`` into ``seen``."""
    feed = fetcher.feed(TopicPartition.modern(topic, partition), 0)
    position = 0
    while position < end:
        batch = await feed.next()
        assert batch.start == position
        for record in batch.records():
            place = (topic, partition, record.offset)
            assert place not in seen
            seen[place] = Sent(
                topic=topic, partition=partition, key=record.key, value=record.value, headers=record.headers
            )
        position = batch.next_offset
        feed.done(batch)
    feed.close()


def ends_of(ledger: Ledger) -> dict[int, int]:
    """Where each partition's log ends."""
    ends: dict[int, int] = {}
    for _, partition, offset in ledger:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


async def consume_all(cluster: Cluster, topic: str, ledger: Ledger, settings: FetchSettings | None = None) -> None:
    """Take everything and compare it with what was produced."""
    seen: dict[tuple[str, int, int], Sent] = {}
    async with timeout(50), fetching(cluster.bootstrap, [topic], settings=settings) as running:
        async with asyncio.TaskGroup() as group:
            for partition, end in ends_of(ledger).items():
                group.create_task(consume(running.fetcher, topic, partition, end, seen))
        assert running.budget.held_bytes <= running.budget.limit_bytes
    assert running.budget.held_bytes == 0
    assert seen == dict(ledger)


@pytest.mark.smoke
async def test_every_codec_from_several_partitions_of_two_brokers(
    release: str, shared_clusters: ClusterFactory, unique: Unique
) -> None:
    """Null and empty keys and values, headers where there are any, all codecs in one log."""
    cluster = shared_clusters(release, 2)
    topic = unique("codecs")
    cluster.create_topic(topic, partitions=5)
    ledger: dict[tuple[str, int, int], Sent] = {}
    for seed, codec in enumerate(CODECS[release]):
        ledger |= produce(cluster, topic, 5, 600, codec, seed)
    await consume_all(cluster, topic, ledger)


@pytest.mark.smoke
async def test_small_fetches_and_slices_give_the_same(
    release: str, shared_clusters: ClusterFactory, unique: Unique
) -> None:
    """Messages larger than a fetch, sets cut off anywhere, a full partition after each answer."""
    cluster = shared_clusters(release, 2)
    topic = unique("small")
    cluster.create_topic(topic, partitions=3)
    ledger = produce(cluster, topic, 3, 500, "none", 1)
    settings = FetchSettings(max_partition_bytes=2000, slice_bytes=500, max_response_bytes=5000)
    await consume_all(cluster, topic, ledger, settings)


@pytest.mark.smoke
async def test_large_messages(release: str, shared_clusters: ClusterFactory, unique: Unique) -> None:
    """A message larger than the fetch size arrives; one above the limit is raised, and can be passed over."""
    cluster = shared_clusters(release, 2)
    topic = unique("large")
    cluster.create_topic(topic)
    producer = cluster.ledger_producer("none")
    sizes = [10, 3 * MIB, 10, 5 * MIB, 10]
    producer.send(Sent(topic=topic, partition=0, key=None, value=b"%d" % size + b"L" * size) for size in sizes)
    producer.finish()
    settings = FetchSettings(max_partition_bytes=64 * 1024, max_message_bytes=4 * MIB)
    async with timeout(50), fetching(cluster.bootstrap, [topic], settings=settings) as running:
        feed = running.fetcher.feed(TopicPartition.modern(topic, 0), 0)
        taken: list[int] = []
        while len(taken) < 3:
            batch = await feed.next()
            taken += [len(record.value or b"") for record in batch.records()]
            feed.done(batch)
        assert taken == [12, 3 * MIB + 7, 12]
        with pytest.raises(RecordTooLarge) as caught:
            await feed.next()
        assert caught.value.offset == 3
        assert caught.value.size is not None
        assert caught.value.size > 5 * MIB
        feed.seek(4)
        assert [record.offset for record in (await feed.next()).records()] == [4]
        feed.close()
    assert running.budget.held_bytes == 0


@pytest.mark.smoke
async def test_out_of_range_is_confirmed_and_the_log_end_is_not_out_of_range(
    release: str, shared_clusters: ClusterFactory, unique: Unique
) -> None:
    """Both ends, on a real broker's error 1."""
    cluster = shared_clusters(release, 2)
    topic = unique("range")
    cluster.create_topic(topic)
    produce(cluster, topic, 1, 20, "none", 1)
    partition = TopicPartition.modern(topic, 0)
    async with timeout(30), fetching(cluster.bootstrap, [topic]) as running:
        with pytest.raises(OffsetOutOfRange) as caught:
            await running.fetcher.feed(partition, 100).next()
        assert (caught.value.earliest, caught.value.latest) == (0, 20)
        at_end = running.fetcher.feed(TopicPartition.modern(topic, 0), 20)
        with pytest.raises(TimeoutError):
            async with timeout(2):
                await at_end.next()
        assert at_end.high_watermark == 20


async def test_a_log_cut_by_retention_says_where_it_begins(
    release: str, own_cluster: ClusterFactory, unique: Unique
) -> None:
    """Small segments and a short retention: the position is below the log by the time it is fetched."""
    cluster = own_cluster(release, 1, properties={"log.retention.check.interval.ms": "500"})
    topic = unique("retention")
    cluster.create_topic(
        topic, segment_bytes="20000", retention_bytes="60000", file_delete_delay_ms="100", retention_ms="3600000"
    )
    producer = cluster.ledger_producer("none")
    producer.send(Sent(topic=topic, partition=0, key=None, value=b"x" * 1000) for _ in range(400))
    producer.finish()
    async with timeout(50), fetching(cluster.bootstrap, [topic]) as running:
        earliest = latest = 0
        while earliest == 0:
            feed = running.fetcher.feed(TopicPartition.modern(topic, 0), 0)
            try:
                async with timeout(2):
                    feed.done(await feed.next())
            except OffsetOutOfRange as error:
                earliest, latest = error.earliest, error.latest
            except TimeoutError:
                pass
            feed.close()
            await asyncio.sleep(0.2)
        assert latest == 400
        feed = running.fetcher.feed(TopicPartition.modern(topic, 0), earliest)
        batch = await feed.next()
        assert batch.start == earliest
        assert batch.offsets[0] == earliest


async def test_a_leader_killed_in_the_middle_loses_and_repeats_nothing(
    release: str, own_cluster: ClusterFactory, unique: Unique
) -> None:
    """Replication 2: the other broker takes over, and later the first one is back."""
    cluster = own_cluster(release, 2)
    topic = unique("failover")
    cluster.create_topic(topic, partitions=4, replication=2)
    ledger: dict[tuple[str, int, int], Sent] = dict(produce(cluster, topic, 4, 400, "none", 1))
    ends = ends_of(ledger)
    seen: dict[tuple[str, int, int], Sent] = {}
    settings = FetchSettings(max_partition_bytes=4000)
    async with timeout(55), fetching(cluster.bootstrap, [topic], settings=settings) as running:
        feeds = [running.fetcher.feed(TopicPartition.modern(topic, number), 0) for number in range(4)]
        positions = dict.fromkeys(range(4), 0)

        async def take(number: int, end: int) -> None:
            while positions[number] < end:
                batch = await feeds[number].next()
                assert batch.start == positions[number]
                for record in batch.records():
                    place = (topic, number, record.offset)
                    assert place not in seen
                    seen[place] = Sent(
                        topic=topic, partition=number, key=record.key, value=record.value, headers=record.headers
                    )
                positions[number] = batch.next_offset
                feeds[number].done(batch)

        async def take_all() -> None:
            async with asyncio.TaskGroup() as group:
                for number, end in ends_of(ledger).items():
                    group.create_task(take(number, end))

        async with asyncio.TaskGroup() as group:
            for number, end in ends.items():
                group.create_task(take(number, end // 3))
        await asyncio.to_thread(cluster.kill_broker, 0)
        await take_all()
        assert seen == ledger
        ledger |= await asyncio.to_thread(produce, cluster, topic, 4, 200, "gzip", 2)
        await take_all()
        await asyncio.to_thread(cluster.restart_broker, 0)
        ledger |= await asyncio.to_thread(produce, cluster, topic, 4, 200, "none", 3)
        await take_all()
        assert seen == ledger
        for feed in feeds:
            feed.close()
        assert running.budget.held_bytes <= running.budget.limit_bytes // 2
    assert running.budget.held_bytes == 0
