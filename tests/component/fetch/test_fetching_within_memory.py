# SPDX-License-Identifier: Apache-2.0
"""What fetching and decoding may take of the memory account, in virtual time, against a cluster in memory."""

import asyncio
import gzip
import struct
from dataclasses import replace

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import RecordTooLarge
from consumerd.fetch.buffer import Hold, Kind, Lane, MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.ports import FetchSettings
from consumerd.model import TopicPartition
from consumerd.wire.modern.fetch import AbortedTransaction
from tests.support.fake_broker import FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.record_sets import TRANSACTIONAL, RecordSpec, batch, marker, message, record, wrapper
from tests.support.virtual_time import run

MIB = 1 << 20
UNIT_BYTES = 60 * 1024
UNITS = 160
P0 = TopicPartition.modern("t", 0)
SETTINGS = FetchSettings(max_message_bytes=16 * MIB, thread_bytes=1 << 30, native_thread_bytes=1 << 30)
"""Nothing is decoded in a thread, which virtual time would not wait for."""


def test_one_partition_flows_beside_199_whose_sink_stands_still() -> None:
    """The stalled ones keep their share and no more: the other one is not slowed to a crawl, nor stopped."""

    async def scenario() -> None:
        cluster, budget = FakeCluster(), MemoryBudget(64 * MIB, sink_bytes=16 * MIB)
        partitions = [TopicPartition.modern("t", number) for number in range(200)]
        unit = batch(0, [RecordSpec(delta=0, value=bytes(UNIT_BYTES))])
        for partition in partitions:
            cluster.lead(partition, 0, known=False)
            log = cluster.logs[partition]
            for offset in range(UNITS if partition is partitions[0] else 16):
                log.append(struct.pack(">q", offset) + unit[8:])  # no checksum covers the offset
        cluster.announce()
        async with fetching_from(cluster, budget, SETTINGS) as fetcher:
            flowing, *stalled = [fetcher.feed(partition, 0) for partition in partitions]
            budget.charge(16 * MIB)  # what their sink keeps
            async with timeout(60):
                batches = [(feed, await feed.next()) for feed in stalled]  # in the middle of a write, all of them
            before, began = len(cluster.fetches()), asyncio.get_running_loop().time()
            count = 0
            async with timeout(60):
                while count < UNITS:
                    found = await flowing.next()
                    count += len(found)
                    flowing.done(found)
                    assert budget.held_bytes <= budget.limit_bytes
            assert len(cluster.fetches()) - before <= UNITS * 1.2, "a unit a request, which is its share"
            assert asyncio.get_running_loop().time() - began < UNITS * 0.01, "a request takes a millisecond"
            for feed, one in batches:
                feed.done(one)
            for feed in (flowing, *stalled):
                feed.close()

    run(scenario())


def held_of_what_came(budget: MemoryBudget) -> int:
    """Return what is held but for the next request, which may be under way."""
    return budget.held_bytes - budget.held_by_kind[Kind.REQUESTED]


def members(data: bytes, count: int) -> bytes:
    """Compress into several gzip members, so that the last four bytes tell the size of the last one only."""
    step = -(-len(data) // count)
    return b"".join(gzip.compress(data[at : at + step], mtime=0) for at in range(0, len(data), step))


@pytest.mark.parametrize("magic", [1, 2])
def test_a_unit_that_gives_more_than_it_says_is_given_all_the_room_there_is(magic: int) -> None:
    """What a stream declares is reserved, not believed; and it is not taken for damage either."""
    value = bytes(3 * MIB)
    if magic == 2:
        spec = RecordSpec(delta=0, value=value)
        unit = batch(0, b"", count=1, last_delta=0, codec=1, compressed=members(record(spec), 3))
    else:
        inner = message(0, value)
        unit = wrapper(0, b"", 1, compressed=members(inner, 3))

    async def scenario() -> None:
        cluster, budget = FakeCluster(version=4 if magic == 2 else 2), MemoryBudget(64 * MIB)
        cluster.lead(P0, 0)
        cluster.logs[P0].append(unit)
        async with fetching_from(cluster, budget, SETTINGS) as fetcher:
            feed = fetcher.feed(P0, 0)
            async with timeout(30):
                found = await feed.next()
            assert found.values() == [value]
            assert budget.held_by_kind[Kind.BATCHES] == held_of_what_came(budget) >= len(value)
            feed.done(found)
            assert held_of_what_came(budget) == 0
            feed.close()

    run(scenario())


@pytest.mark.parametrize("count", [1, 3])
def test_a_unit_above_the_limit_when_decompressed_is_too_large_and_can_be_passed_over(count: int) -> None:
    """It stops its own partition, by the same policy as a message that is too large as it is."""
    spec = RecordSpec(delta=0, value=bytes(20 * MIB))
    unit = batch(0, b"", count=1, last_delta=0, codec=1, compressed=members(record(spec), count))

    async def scenario() -> None:
        cluster, budget = FakeCluster(), MemoryBudget(64 * MIB)
        cluster.lead(P0, 0)
        cluster.logs[P0].append(unit)
        cluster.produce(P0, b"next")
        async with fetching_from(cluster, budget, SETTINGS) as fetcher:
            feed: PartitionFeed = fetcher.feed(P0, 0)
            async with timeout(30):
                with pytest.raises(RecordTooLarge) as caught:
                    await feed.next()
            error = caught.value
            assert (error.offset, error.next_offset, error.limit, error.raw) == (0, 1, 16 * MIB, unit)
            feed.seek(1)
            async with timeout(30):
                found = await feed.next()
            assert found.values() == [b"next"]
            feed.close()
            assert budget.held_bytes == 0

    run(scenario())


@pytest.mark.parametrize("codec", [0, 2])
@pytest.mark.parametrize("closes", [False, True])
def test_batches_that_are_out_count_for_their_partition_until_they_are_given_back(codec: int, closes: bool) -> None:
    """As copies, as what was decompressed, and as views of an answer; to the byte, or a partition would stop for ever."""

    async def scenario() -> None:
        cluster, budget = FakeCluster(), MemoryBudget(64 * MIB)
        cluster.lead(P0, 0)
        for _ in range(30):
            cluster.produce(P0, *[bytes(10_000)] * 10, codec=codec)
        settings = FetchSettings(slice_bytes=250_000, native_slice_bytes=250_000, native_thread_bytes=1 << 30)
        async with fetching_from(cluster, budget, settings) as fetcher:
            feed = fetcher.feed(P0, 0)
            batches, position = [], 0
            while position < 300:
                batches.append(await feed.next())
                position = batches[-1].next_offset
                assert feed.account.lent_bytes >= sum(len(batch) for batch in batches) * (10_000 if codec else 0)
            assert len(batches) > 3
            assert feed.account.held_bytes == 0
            assert feed.account.lent_bytes == budget.held_by_kind[Kind.BATCHES] >= 300 * 10_000
            if closes:
                feed.close()
            for batch in batches:
                feed.done(batch)
            assert feed.account.lent_bytes == 0
            feed.close()
        assert budget.held_bytes == 0

    run(scenario())


class NotingBudget(MemoryBudget):
    """Notes how much is reserved for each decoding."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.for_decoding: list[int] = []

    def take(self, lane: Lane, *, least: int, most: int) -> Hold | None:
        """Note it, and reserve."""
        if lane is Lane.BATCH:
            self.for_decoding.append(most)
        return super().take(lane, least=least, most=most)


def test_a_set_with_aborted_transactions_reserves_what_its_units_say_and_is_decoded_once() -> None:
    """Its pieces become one, which gives the sum of what they give: no need for the largest size that is allowed."""

    async def scenario() -> None:
        cluster, budget = FakeCluster(), NotingBudget(64 * MIB)
        cluster.lead(P0, 0)
        log, count = cluster.logs[P0], 20
        for offset in range(count):
            spec = RecordSpec(delta=0, value=bytes(10_000))
            log.append(batch(offset, [spec], codec=2, attributes=TRANSACTIONAL, producer_id=7 + offset % 2))
        log.append(marker(count, 7, abort=True))
        log.append(marker(count + 1, 8, abort=False))
        log.aborted = [(AbortedTransaction(producer_id=7, first_offset=0), count)]
        async with fetching_from(cluster, budget, replace(SETTINGS, read_committed=True)) as fetcher:
            feed = fetcher.feed(P0, 0)
            async with timeout(30):
                found = await feed.next()
            assert list(found.offsets) == list(range(1, count, 2))
            assert found.next_offset == count + 2
            feed.close()
        (reserved,) = budget.for_decoding
        assert 2 * count * 10_000 < reserved < 2 * MIB

    run(scenario())
