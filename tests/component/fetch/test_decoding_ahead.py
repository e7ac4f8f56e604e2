# SPDX-License-Identifier: Apache-2.0
"""What the native kernel changes about a feed: decoding in place, in a thread, and ahead of the sink; memory held all the same.

In real time, since threads take it.
"""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.records import RecordBatch
from tests.support.fake_broker import FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.waiting import until

MIB = 1 << 20
P0, P1 = (TopicPartition.modern("t", number) for number in range(2))
VALUE_BYTES = 1000

pytestmark = pytest.mark.skipif(kernel.records is None, reason="the native kernel is not built")


class World:
    """A cluster whose partitions hold batches of ten values, and a fetcher whose every piece is one batch, in a thread."""

    def __init__(self, *, budget: int = 64 * MIB, batches: int = 6, slice_bytes: int = 1, ask: int = 25_000) -> None:
        self.cluster = FakeCluster()
        self.budget = MemoryBudget(budget)
        self.settings = FetchSettings(
            native_slice_bytes=slice_bytes, native_thread_bytes=10, max_partition_bytes=ask, max_wait_ms=50
        )
        for partition in (P0, P1):
            self.cluster.lead(partition, 0)
            for first in range(0, batches * 10, 10):
                self.cluster.produce(partition, *(bytes((first + row,)) * VALUE_BYTES for row in range(10)))

    def fetcher(self) -> AbstractAsyncContextManager[Fetcher]:
        return fetching_from(self.cluster, self.budget, self.settings)


def is_decoded_ahead(feed: PartitionFeed) -> bool:
    return feed._decoder.under_way is not None and feed._decoder.under_way[0].done()


async def take(feed: PartitionFeed) -> RecordBatch:
    async with timeout(20):
        return await feed.next()


async def test_the_next_batch_is_decoded_while_the_sink_has_one() -> None:
    """In order, one ahead and no more."""
    world = World()
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        offsets: list[int] = []
        for number in range(6):
            batch = await take(feed)
            if number < 5:
                await until(lambda: is_decoded_ahead(feed))
            assert len(feed._backlog._lent) == 1
            offsets += batch.offsets
            feed.done(batch)
        assert offsets == list(range(60))
        assert feed._decoder.under_way is None
        feed.close()
        await until(lambda: not world.budget.held_bytes)


async def test_what_was_decoded_ahead_goes_with_a_seek_a_close_and_what_nobody_consumes() -> None:
    """It was a guess; its memory comes back at once."""
    world = World()
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        for end in (lambda: feed.seek(40), feed.park, feed.close):
            feed.seek(0)
            batch = await take(feed)
            assert batch.offsets[0] == 0
            await until(lambda: is_decoded_ahead(feed))
            end()
            held = world.budget.held_by_kind
            assert (held[Kind.FETCHED], held[Kind.DECODING]) == (0, 0)
            assert (held[Kind.BATCHES] > 0) == (end != feed.close)
            feed.done(batch)
            assert not world.budget.held_by_kind[Kind.BATCHES]
            if end == feed.park:
                found = await take(feed)
                assert found.offsets[0] == 10, "where the last batch ended"
                feed.done(found)


async def test_nothing_is_decoded_ahead_in_memory_that_others_may_need() -> None:
    """The overdraft is there so that somebody goes on, not for guesses."""
    world = World()
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        batch = await take(feed)
        await until(lambda: is_decoded_ahead(feed))
        feed.done(batch)
        world.budget.charge(world.budget.limit_bytes)
        second = await take(feed)
        for _ in range(100):  # whatever would be begun is begun by then: memory is taken on the loop
            await asyncio.sleep(0)
        assert feed._decoder.under_way is None
        feed.done(second)
        third = await take(feed)  # by the overdraft
        assert third.offsets[0] == 20
        feed.done(third)
        feed.close()
        world.budget.charge(-world.budget.limit_bytes)


async def test_a_batch_that_is_a_view_of_its_answer_holds_all_of_that_until_it_is_done() -> None:
    """Nothing is copied, and nothing is in memory that is not counted."""
    world = World(slice_bytes=MIB, ask=MIB)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        batch = await take(feed)
        assert isinstance(batch.buffer, memoryview)
        answer_bytes = memoryview(batch.buffer.obj).nbytes
        assert len(batch.buffer) < answer_bytes < 2 * len(batch.buffer)
        held = world.budget.held_by_kind
        assert (held[Kind.FETCHED], held[Kind.DECODING]) == (0, 0)
        assert held[Kind.BATCHES] == answer_bytes + batch.size_bytes - len(batch.buffer)
        feed.done(batch)
        feed.done(batch)
        assert not world.budget.held_by_kind[Kind.BATCHES]
        feed.close()


async def test_the_next_fetch_leaves_while_a_whole_one_waits_behind_the_one_that_was_consumed() -> None:
    """That an answer is larger than its records by a head must not have it wait until everything is consumed."""
    ask = 20_302  # two batches, to the byte
    world = World(batches=9, ask=ask)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await until(lambda: feed.account.held_bytes > 2 * ask)
        for _ in range(2):
            feed.done(await take(feed))
        assert ask < feed.account.held_bytes < 2 * ask, "the second answer, whole"
        await until(lambda: feed.account.held_bytes > 2 * ask)
        feed.close()


async def test_an_answer_is_held_until_the_last_of_its_batches_is_done() -> None:
    """Several pieces of a set are views of one answer."""
    world = World(ask=MIB)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        batches = [await take(feed) for _ in range(6)]
        answer_bytes = memoryview(batches[0].buffer.obj).nbytes  # type: ignore[union-attr]
        for batch in batches[:-1]:
            feed.done(batch)
        held = world.budget.held_by_kind
        assert held[Kind.BATCHES] == answer_bytes + batches[-1].size_bytes - len(batches[-1].buffer)
        feed.done(batches[-1])
        assert not world.budget.held_by_kind[Kind.BATCHES]
        feed.close()


async def test_a_small_part_of_an_answer_is_copied_out_of_it() -> None:
    """A partition whose sink is slow does not keep the answer's memory, of which the rest is others'."""
    world = World(batches=2, slice_bytes=MIB, ask=MIB)
    for first in range(0, 80, 10):
        world.cluster.produce(P1, *(bytes((first,)) * VALUE_BYTES for row in range(10)))
    async with world.fetcher() as fetcher:
        one, other = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        small, large = await take(one), await take(other)
        assert memoryview(small.buffer.obj).nbytes < memoryview(large.buffer.obj).nbytes / 4  # type: ignore[union-attr]
        for feed, batch in ((one, small), (other, large)):
            feed.done(batch)
            feed.close()


async def test_a_batch_over_the_limit_does_not_keep_requests_from_being_sent() -> None:
    """The request that brought it was let through beyond the limit; what it brought is the batch's now."""
    world = World(budget=1000, slice_bytes=MIB)
    world.budget.charge(1000)
    async with world.fetcher() as fetcher:
        holder, other = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        held = await take(holder)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(take(other))
            await until(lambda: other.account.held_bytes)
            assert not waiting.done(), "decoding has an overdraft of its own, which is taken"
            holder.done(held)
            other.done(await waiting)
        for feed in (holder, other):
            feed.close()
