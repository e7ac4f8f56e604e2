# SPDX-License-Identifier: Apache-2.0
"""Fetching from real brokers that speak the protocol of Kafka 0.7, and what their Java producer wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.api import EARLIEST, LATEST, ClusterAddress, ConsumerRecord, open_simple_consumer
from consumerd.client.log_range import LogRangeReader
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.errors import BrokerError, CorruptMessageError, OffsetOutOfRange
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from tests.support import jafka
from tests.support.jafka import JafkaCluster
from tests.support.legacy_peer import encode_messages
from tests.support.legacy_reading import legacy_fetching
from tests.support.tools import require_jars
from tests.support.waiting import until

pytestmark = pytest.mark.interop

TOPIC, COUNT, PARTITIONS = "orders", 500, 3
SENT_BYTES = len(encode_messages([b"value-%d" % number for number in range(COUNT)]))
WRONG = TopicPartition(TOPIC, PartitionKey(99, BrokerId(0)))
KNOWN = [TopicPartition(TOPIC, PartitionKey(number, BrokerId(0))) for number in range(PARTITIONS)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[JafkaCluster]:
    with require_jars():
        jafka.jars()
    with JafkaCluster(partitions=PARTITIONS) as started:
        started.send(TOPIC, COUNT)
        yield started


@asynccontextmanager
async def fetching(cluster: JafkaCluster) -> AsyncIterator[tuple[Fetcher, LogRangeReader]]:
    leader = BrokerId(0)
    view = ClusterView(
        brokers={leader: Broker(id=leader, host="127.0.0.1", port=cluster.ports[0])},
        topics={
            TOPIC: TopicView(
                name=TOPIC, partitions={one.partition: PartitionView(leader=leader) for one in [*KNOWN, WRONG]}
            )
        },
    )
    async with legacy_fetching(view, settings=FetchSettings(confirm_delay_s=0.1), timeout_s=3) as opened:
        yield opened


async def test_every_message_is_fetched_once_and_the_logs_end_where_offsets_say(cluster: JafkaCluster) -> None:
    """MULTIFETCH and OFFSETS of a real broker, over real sockets; the producer's last messages may still be on the way."""
    seen: list[bytes] = []
    ends = dict.fromkeys(KNOWN, 0)
    complete = asyncio.Event()

    async with timeout(60), fetching(cluster) as (fetcher, ranges):

        async def drain(partition: TopicPartition) -> None:
            feed = fetcher.feed(partition, 0)
            while True:
                batch = await feed.next()
                assert batch.start == ends[partition]
                ends[partition] = batch.next_offset
                seen.extend(one.value or b"" for one in batch.records())
                feed.done(batch)
                if len(seen) >= COUNT:
                    complete.set()

        async with asyncio.TaskGroup() as group:
            draining = [group.create_task(drain(partition)) for partition in KNOWN]
            await complete.wait()
            for task in draining:
                task.cancel()
        assert {one: log.latest for one, log in (await ranges.read(KNOWN)).items()} == ends
    assert sorted(seen) == sorted(b"value-%d" % number for number in range(COUNT))


async def test_the_low_level_consumer_reads_every_message_and_goes_on_where_offsets_say(cluster: JafkaCluster) -> None:
    """By the library's own entry, through ZooKeeper; small fetches cut off the last message of each."""
    address = ClusterAddress(zookeeper=cluster.zookeeper, client_id="test")
    seen: list[ConsumerRecord] = []
    async with timeout(60), open_simple_consumer(address) as consumer:
        positions = {one: (await consumer.offsets_before(one, EARLIEST))[0] for one in KNOWN}
        assert set(positions.values()) == {0}
        while len(seen) < COUNT:  # the producer's last messages may still be on the way
            found = await consumer.multifetch(positions, max_bytes=300, max_wait_s=1.0)
            assert not found.errors
            seen += [record for batch in found.fetched.values() for record in batch.records()]
            positions |= {one: batch.batch.next_offset for one, batch in found.fetched.items()}
        assert {one: (await consumer.offsets_before(one, LATEST))[0] for one in KNOWN} == positions

        inside, latest = KNOWN[0], positions[KNOWN[0]]
        with pytest.raises(CorruptMessageError, match="no message begins there"):
            await consumer.fetch(inside, 1)
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            await consumer.fetch(inside, latest + 1)
    assert sorted(one.value or b"" for one in seen) == sorted(b"value-%d" % number for number in range(COUNT))
    assert len({(one.broker, one.partition, one.offset, one.index) for one in seen}) == COUNT
    assert {(one.broker, one.partition) for one in seen} == {(BrokerId(0), number) for number in range(PARTITIONS)}


async def test_an_unknown_partition_is_an_error_and_no_lost_connection(cluster: JafkaCluster) -> None:
    """The broker would close the connection on OFFSETS; a fetch of 0 bytes tells it before."""
    async with timeout(60), fetching(cluster) as (_, ranges):
        found = await ranges.find_or_explain([*KNOWN, WRONG])
        assert set(found.ranges) == set(KNOWN)
        error = found.failures[WRONG]
        assert isinstance(error, BrokerError)
        assert error.code == 3


async def test_a_position_beyond_the_log_is_confirmed(cluster: JafkaCluster) -> None:
    """Error 1 of a fetch, and both ends by OFFSETS."""
    async with timeout(60), fetching(cluster) as (fetcher, ranges):

        async def is_complete() -> bool:
            return sum(log.latest for log in (await ranges.read(KNOWN)).values()) == SENT_BYTES

        await until(is_complete)  # a log that grows may have a message there
        partition = KNOWN[0]
        latest = (await ranges.read([partition]))[partition].latest
        with pytest.raises(OffsetOutOfRange) as caught:
            await fetcher.feed(partition, latest + 1).next()
        assert caught.value.latest == latest
