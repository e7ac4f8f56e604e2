# SPDX-License-Identifier: Apache-2.0
"""A fetcher against a cluster in memory, in virtual time: what comes out of feeds, whatever brokers do."""

import asyncio
import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import structlog

from consumerd.aio.timeouts import timeout
from consumerd.errors import (
    ConfigError,
    ConnectionLost,
    CorruptMessageError,
    LocalProtocolError,
    OffsetOutOfRange,
    RecordTooLarge,
)
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.fetch.cursor import CursorState
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, LogRange, TopicPartition
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.records import RecordBatch
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.record_sets import TRANSACTIONAL, RecordSpec, batch, marker, message
from tests.support.virtual_time import run
from tests.support.waiting import until

P0, P1, P2 = (TopicPartition.modern("t", number) for number in range(3))
KIB = 1024
MIB = 1 << 20
VERSIONS = [0, 2, 3, 4, 7, 11]


class Recorder(Hooks):
    """Counts what fetching reports."""

    def __init__(self) -> None:
        self.errors: list[tuple[TopicPartition, str]] = []
        self.fetched = 0

    def batch_fetched(self, partition: TopicPartition, *, records: int, size: int, high_watermark: int) -> None:
        self.fetched += records

    def fetch_error(self, partition: TopicPartition, error: str) -> None:
        self.errors.append((partition, error))


class World:
    """A cluster, a fetcher on it, and what tests look at."""

    def __init__(self, *, brokers: int = 1, version: int = 11, budget: int = 64 * MIB, **settings: Any) -> None:
        self.cluster = FakeCluster(brokers=brokers, version=version)
        self.budget = MemoryBudget(budget)
        self.hooks = Recorder()
        # both ways alike, and threads only where a test asks for them: virtual time would not wait for them
        alike = {"native_slice_bytes": settings["slice_bytes"]} if "slice_bytes" in settings else {}
        self.settings = FetchSettings(**{"native_thread_bytes": 1 << 30, **alike, **settings})

    def fetcher(self) -> AbstractAsyncContextManager[Fetcher]:
        return fetching_from(self.cluster, self.budget, self.settings, hooks=self.hooks)

    def broker(self, number: int = 0):
        return self.cluster.brokers[BrokerId(number)]


async def read(feed: PartitionFeed, count: int, *, timeout_s: float = 60.0) -> list[tuple[int, bytes | None]]:
    """Take ``count`` records, checking that batches follow each other without a hole."""
    records: list[tuple[int, bytes | None]] = []
    position: int | None = None
    async with timeout(timeout_s):
        while len(records) < count:
            got = await feed.next()
            assert position is None or got.start == position
            position = got.next_offset
            records += [(one.offset, one.value) for one in got.records()]
            feed.done(got)
    return records


async def quiet(feed: PartitionFeed, seconds: float) -> bool:
    """Whether nothing comes for so long."""
    try:
        async with timeout(seconds):
            await feed.next()
    except TimeoutError:
        return True
    return False


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


def in_virtual_time(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the virtual loop."""

    @functools.wraps(scenario)
    def test(**arguments: Any) -> None:
        run(scenario(**arguments))

    return test


# -- the plain case


@pytest.mark.parametrize("version", VERSIONS)
@in_virtual_time
async def test_delivers_every_record_of_several_partitions_in_order(version: int) -> None:
    """The one thing that all the rest is for, in every version that brokers of our range speak."""
    world = World(brokers=2, version=version)
    for partition, leader in ((P0, 0), (P1, 1), (P2, 0)):
        world.cluster.lead(partition, leader)
        for first in range(0, 50, 5):
            world.cluster.produce(partition, *values(5, first))
    async with world.fetcher() as fetcher:
        feeds = [fetcher.feed(partition, 0) for partition in (P0, P1, P2)]
        async with timeout(10):
            for feed in feeds:
                assert await read(feed, 50) == list(enumerate(values(50)))
                assert feed.high_watermark == 50
                feed.close()

    assert world.budget.held_bytes == 0


@pytest.mark.parametrize("version", VERSIONS)
@in_virtual_time
async def test_new_records_arrive_at_once(version: int) -> None:
    """A long poll ends with the first byte."""
    world = World(version=version)
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(3.2)
        produced = asyncio.get_running_loop().time()
        world.cluster.produce(P0, b"now")
        await read(feed, 1)

        assert asyncio.get_running_loop().time() - produced < 0.01


@in_virtual_time
async def test_starts_in_the_middle_of_a_batch() -> None:
    """Brokers return the whole batch that holds the offset."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10))
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 7), 3) == [(7, b"value 7"), (8, b"value 8"), (9, b"value 9")]


@in_virtual_time
async def test_an_offset_equal_to_the_log_end_waits() -> None:
    """It is not out of range."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(3))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 3)
        assert await quiet(feed, 5)
        world.cluster.produce(P0, b"next")
        assert await read(feed, 1) == [(3, b"next")]
    assert world.cluster.range_readings == []


@in_virtual_time
async def test_what_brokers_say_of_the_log_is_kept() -> None:
    """Lag is computed from it."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(3))
    world.cluster.logs[P0].last_stable_offset = 2
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        assert (feed.high_watermark, feed.last_stable_offset) == (None, None)
        await read(feed, 3)
        assert (feed.high_watermark, feed.last_stable_offset) == (3, 2)


@pytest.mark.parametrize(("version", "partitions", "requests"), [(11, 1, 40), (11, 1000, 40), (4, 1000, 4)])
@in_virtual_time
async def test_a_rest_between_small_answers_is_as_long_as_the_request_was_costly(
    version: int, partitions: int, requests: int
) -> None:
    """A record need not wait where a request has few lines; where it has thousands, each record may not cost one."""
    world = World(version=version)
    every = [TopicPartition.modern("t", number) for number in range(partitions)]
    for one in every:
        world.cluster.lead(one, 0)
    async with world.fetcher() as fetcher:
        feed, *_ = [fetcher.feed(one, 0) for one in every]
        await asyncio.sleep(2)
        before = len(world.broker().requests)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read(feed, 40))
            for number in range(40):
                world.cluster.produce(P0, b"%d" % number)
                await asyncio.sleep(0.002)
            await reading
        assert requests <= len(world.broker().requests) - before <= requests + 3


@in_virtual_time
async def test_a_broker_that_does_not_begin_a_session_in_time_is_asked_without_one() -> None:
    """Brokers of 1.1 may need minutes for a large one; the feeds leave their loop meanwhile, and come back."""
    world = World(version=11)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"x")
    world.broker().silent = True
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(40)
        world.broker().silent = False
        assert await read(feed, 1) == [(0, b"x")]
        epochs = [request.session_epoch for _, request in world.broker().requests]
        assert epochs[0] == 0
        assert set(epochs[1:]) == {-1}


@in_virtual_time
async def test_a_broker_that_hung_has_its_sessions_back_when_it_answers_again() -> None:
    """Where it does not even answer who connects, no session was asked for."""
    world = World(version=11)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"x")
    broker = world.broker()
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await read(feed, 1)
        broker.silent = broker.hanging = True
        await asyncio.sleep(200)
        broker.silent = broker.hanging = False
        world.cluster.produce(P0, b"y")
        assert await read(feed, 1) == [(1, b"y")]
        world.cluster.produce(P0, b"z")
        await read(feed, 1)
        assert broker.requests[-1][1].session_epoch > 0
        feed.close()


@in_virtual_time
async def test_a_second_feed_of_a_quiet_partition_learns_of_the_log_too() -> None:
    """A position is moved to the end, and nothing is written: the lag is 0, not unknown."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(3))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await read(feed, 3)
        # another one keeps the loop, and with it the session, while the first is replaced
        fetcher.feed(P1, 0)
        feed.close()
        feed = fetcher.feed(P0, 3)
        await asyncio.sleep(10)
        assert feed.high_watermark == 3


@in_virtual_time
async def test_brokers_that_come_back_at_another_address_are_fetched_from_and_leave_nothing_behind() -> None:
    """In some clusters each restart gives a new address; a session remembers all of its partitions."""
    world = World()
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        for restart in range(1000, 1020):
            world.broker().broker = replace(world.broker().broker, port=restart)
            world.cluster.announce()
            world.cluster.produce(P0, b"x")
            await read(feed, 1)
        await asyncio.sleep(1)
        assert (
            len(fetcher._channels) <= 2
        )  # nobody else can tell; the loop of the last address may have been there still
        feed.close()


# -- idle and busy


@pytest.mark.parametrize("version", VERSIONS)
@in_virtual_time
async def test_an_idle_fetcher_asks_twice_a_second_and_no_more(version: int) -> None:
    """Empty answers never make it spin."""
    world = World(version=version)
    for partition in (P0, P1, P2):
        world.cluster.lead(partition, 0)
    async with world.fetcher() as fetcher:
        for partition in (P0, P1, P2):
            fetcher.feed(partition, 0)
        await asyncio.sleep(60)

    assert 100 <= len(world.cluster.fetches()) <= 125


@in_virtual_time
async def test_a_broker_that_answers_empty_at_once_is_not_hammered() -> None:
    """Whatever the reason: no long poll, no data, no error."""
    world = World(min_bytes=0)
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        fetcher.feed(P0, 0)
        await asyncio.sleep(60)

    assert len(world.cluster.fetches()) < 150


@in_virtual_time
async def test_without_feeds_nothing_is_asked() -> None:
    """A loop ends with its last feed."""
    world = World()
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        fetcher.feed(P0, 0).close()
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(2)
        feed.close()
        await asyncio.sleep(1)
        before = len(world.cluster.fetches())
        await asyncio.sleep(60)

    assert len(world.cluster.fetches()) == before


@in_virtual_time
async def test_a_partition_that_nobody_consumes_is_left_out_and_costs_nothing() -> None:
    """Its neighbours keep their long polls; it is asked for again as soon as it is consumed."""
    world = World(max_partition_bytes=4 * KIB)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
    for _ in range(200):
        world.cluster.produce(P0, b"x" * 500)
    async with world.fetcher() as fetcher:
        stuck, idle = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await asyncio.sleep(5)
        before = len(world.cluster.fetches())
        await asyncio.sleep(60)
        assert len(world.cluster.fetches()) - before < 130
        world.cluster.produce(P1, b"hello")
        assert await read(idle, 1) == [(0, b"hello")]
        assert len(await read(stuck, 200)) == 200
        assert stuck.account.held_bytes <= 10 * KIB
        stuck.close()
        idle.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_an_active_partition_does_not_wait_for_the_long_poll_of_idle_ones() -> None:
    """While it is full the others are polled alone: it must not sit that out."""
    world = World(max_partition_bytes=4 * KIB)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
    for _ in range(400):
        world.cluster.produce(P0, b"x" * 500)
    async with world.fetcher() as fetcher:
        feed, _ = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await asyncio.sleep(0.01)  # it fills up
        started = asyncio.get_running_loop().time()
        await read(feed, 400)

        # 400 records in some 60 fetches; with waits of 500 ms it would take 15 s
        assert asyncio.get_running_loop().time() - started < 2.0


@in_virtual_time
async def test_the_next_request_is_under_way_while_an_answer_is_consumed() -> None:
    """Pipelining: the broker works while we do."""
    world = World(max_partition_bytes=4 * KIB)
    world.cluster.lead(P0, 0)
    for _ in range(20):
        world.cluster.produce(P0, b"x" * 1000)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        first = await feed.next()
        await asyncio.sleep(0.01)
        offsets = [request.topics[0].partitions[0].fetch_offset for request in world.cluster.fetches()]

        assert offsets[:2] == [0, first.next_offset]


@in_virtual_time
async def test_no_partition_starves_behind_others_in_a_bounded_response() -> None:
    """Partitions that brought data go to the end of the line."""
    world = World(version=3, max_partition_bytes=8 * KIB, max_response_bytes=8 * KIB)
    partitions = [TopicPartition.modern("t", number) for number in range(6)]
    for partition in partitions:
        world.cluster.lead(partition, 0)
        for _ in range(60):
            world.cluster.produce(partition, b"x" * 1000)
    taken = dict.fromkeys(partitions, 0)

    async def consume(feed: PartitionFeed) -> None:
        while taken[feed.partition] < 60:
            got = await feed.next()
            taken[feed.partition] += len(got)
            feed.done(got)
            # each response has room for one partition: no other may have been served twice in between
            assert max(taken.values()) - min(taken.values()) <= 32

    async with world.fetcher() as fetcher, timeout(30), asyncio.TaskGroup() as group:
        for partition in partitions:
            group.create_task(consume(fetcher.feed(partition, 0)))


# -- sessions


@in_virtual_time
async def test_in_a_session_only_news_is_sent() -> None:
    """A hundred quiet partitions beside one that moves cost a request with one line."""
    world = World(version=7)
    partitions = [TopicPartition.modern("t", number) for number in range(100)]
    for partition in partitions:
        world.cluster.leaders[partition] = BrokerId(0)
    world.cluster.announce()
    async with world.fetcher() as fetcher:
        feeds = [fetcher.feed(partition, 0) for partition in partitions]
        await asyncio.sleep(2)
        for number in range(10):
            world.cluster.produce(partitions[5], b"news")
            assert await read(feeds[5], 1) == [(number, b"news")]
        await asyncio.sleep(0.1)
        lines = [sum(len(topic.partitions) for topic in request.topics) for request in world.cluster.fetches()]

        assert lines[0] == 100
        assert max(lines[1:]) == 1


@pytest.mark.parametrize("error", [70, 71])
@in_virtual_time
async def test_a_lost_session_is_replaced_without_losing_anything(error: int) -> None:
    """Brokers evict sessions as they like."""
    world = World(version=7)
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        world.cluster.produce(P0, b"a")
        await read(feed, 1)
        if error == 70:
            world.broker().drop_sessions()
        else:
            world.broker().response_errors.append(71)
        world.cluster.produce(P0, b"b")
        assert await read(feed, 1) == [(1, b"b")]
        full = [request for request in world.cluster.fetches() if request.session_epoch == 0]
        assert len(full) == 2
    assert world.hooks.errors == []


@in_virtual_time
async def test_a_broker_without_room_for_sessions_is_served_in_full() -> None:
    """Its cache holds a thousand sessions; we may be the one too many."""
    world = World(version=7)
    world.broker().sessions_allowed = False
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        for number in range(5):
            world.cluster.produce(P0, b"x")
            assert await read(feed, 1) == [(number, b"x")]


@in_virtual_time
async def test_closing_a_feed_forgets_it_in_the_session() -> None:
    """Otherwise the broker would go on sending what nobody takes."""
    world = World(version=7)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
    async with world.fetcher() as fetcher:
        keep, leave = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await asyncio.sleep(1)
        leave.close()
        world.cluster.produce(P1, b"for nobody")
        world.cluster.produce(P0, b"x")
        await read(keep, 1)
        await asyncio.sleep(2)
        assert next(one for request in world.cluster.fetches() for one in request.forgotten_topics).partitions == (1,)
        assert leave.account.held_bytes == 0


# -- leaders and brokers


@pytest.mark.parametrize("version", [2, 11])
@in_virtual_time
async def test_a_moved_leader_is_followed_and_others_do_not_pause(version: int) -> None:
    """Error 6: the directory is asked to look again; nothing is lost or repeated."""
    world = World(brokers=2, version=version)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
        world.cluster.produce(partition, *values(10))
    async with world.fetcher() as fetcher:
        moving, staying = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await read(moving, 10)
        await read(staying, 10)
        world.cluster.lead(P0, 1, known=False)
        world.cluster.produce(P0, *values(10, 10))
        started = asyncio.get_running_loop().time()
        world.cluster.produce(P1, b"still flowing")
        await read(staying, 1)
        assert asyncio.get_running_loop().time() - started < 0.1
        assert await quiet(moving, 5)
        assert world.cluster.refreshes
        world.cluster.announce()
        assert await read(moving, 10) == list(enumerate(values(10, 10), 10))
        assert asyncio.get_running_loop().time() - started < 6
    assert {error for _, error in world.hooks.errors} == {"NOT_LEADER_OR_FOLLOWER"}


@in_virtual_time
async def test_errors_of_a_partition_are_retried_with_backoff() -> None:
    """An unclean shutdown may leave a partition without a leader for long: a few requests a second are enough."""
    world = World()
    world.cluster.lead(P0, 0)
    world.broker().errors[P0] = [5] * 10_000
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(60)
        assert len(world.cluster.fetches()) < 40
        world.broker().errors[P0] = []
        world.cluster.produce(P0, b"x")
        await read(feed, 1, timeout_s=5)


@pytest.mark.parametrize("code", [-1, 3, 5, 6, 7, 9, 29, 56, 74, 75, 76, 78, 99])
@in_virtual_time
async def test_no_error_code_loses_a_record_or_stops_a_partition_for_good(code: int) -> None:
    """Known or not, retriable or not: an operator may put it right, and until then it is reported."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(3))
    world.broker().errors[P0] = [code, code]
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 0), 3) == list(enumerate(values(3)))
    assert len(world.hooks.errors) == 2


@in_virtual_time
async def test_a_dead_broker_stops_only_its_own_partitions() -> None:
    """Each broker has a loop of its own."""
    world = World(brokers=2)
    world.cluster.lead(P0, 0)
    world.cluster.lead(P1, 1)
    async with world.fetcher() as fetcher:
        dead, alive = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await asyncio.sleep(1)
        world.broker(0).kill()
        for number in range(20):
            world.cluster.produce(P1, b"x")
            started = asyncio.get_running_loop().time()
            assert await read(alive, 1) == [(number, b"x")]
            assert asyncio.get_running_loop().time() - started < 0.01
            await asyncio.sleep(1)
        world.broker(0).start()
        world.cluster.produce(P0, b"back")
        assert await read(dead, 1, timeout_s=5) == [(0, b"back")]


@in_virtual_time
async def test_a_dead_broker_is_tried_again_with_growing_backoff() -> None:
    """Thousands of clients that dial without a rest are what keeps a broker that starts from starting."""
    world = World(backoff_initial_s=0.1, backoff_maximum_s=10.0)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
    attempts: list[float] = []
    dial = world.cluster.get

    async def noted(broker: PooledBroker, purpose: Purpose) -> FakeBroker:
        attempts.append(asyncio.get_running_loop().time())
        return await dial(broker, purpose)

    world.cluster.get = noted  # type: ignore[method-assign]  # the port, with a note of each call
    async with world.fetcher() as fetcher:
        feeds = [fetcher.feed(partition, 0) for partition in (P0, P1)]
        await asyncio.sleep(1)
        attempts.clear()
        world.broker().kill()
        await asyncio.sleep(120)
        rests = [after - before for before, after in pairwise(attempts)]
        # growing to 10 s, of which chance takes up to a half
        assert 120 / 10 <= len(attempts) <= 120 / 5 + 10
        assert all(rest >= 5 for rest in rests[-8:])
        world.broker().start()
        world.cluster.produce(P0, b"back")
        assert await read(feeds[0], 1, timeout_s=15) == [(0, b"back")]


@in_virtual_time
async def test_partitions_of_a_dead_broker_go_on_at_their_new_leader() -> None:
    """From exactly where they were."""
    world = World(brokers=2)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
        world.cluster.produce(partition, *values(10))
    async with world.fetcher() as fetcher:
        feeds = [fetcher.feed(partition, 0) for partition in (P0, P1)]
        for feed in feeds:
            await read(feed, 10)
        world.broker(0).kill()
        await asyncio.sleep(1)
        for partition in (P0, P1):
            world.cluster.lead(partition, 1)
            world.cluster.produce(partition, *values(10, 10))
        started = asyncio.get_running_loop().time()
        for feed in feeds:
            assert await read(feed, 10) == list(enumerate(values(10, 10), 10))
        assert asyncio.get_running_loop().time() - started < 0.1  # the new view ends the backoff


@in_virtual_time
async def test_a_silent_broker_does_not_hold_partitions_whose_leader_has_moved() -> None:
    """A frozen machine answers nothing; ZooKeeper elects another leader long before our request times out."""
    world = World(brokers=2)
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(1)
        world.broker(0).silent = True
        world.cluster.produce(P0, b"x")
        await asyncio.sleep(2)
        world.cluster.lead(P0, 1)
        assert await read(feed, 1, timeout_s=1) == [(0, b"x")]


@in_virtual_time
async def test_a_broker_that_owes_an_answer_is_told_apart_from_one_that_has_nothing_new() -> None:
    """A long poll is no silence; a request that outlasts it is, long before it is given up."""
    world = World(version=11)
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read(feed, 1))
            for _ in range(50):
                await asyncio.sleep(0.1)
                assert feed.unanswered_since is None
            world.broker().silent = True
            await asyncio.sleep(10)
            assert feed.unanswered_since is not None
            assert 9 < asyncio.get_running_loop().time() - feed.unanswered_since < 11
            world.broker().silent = False
            world.cluster.produce(P0, b"at last")
            await reading
            assert feed.unanswered_since is None


@in_virtual_time
async def test_an_answer_of_the_old_leader_that_comes_late_is_dropped() -> None:
    """The same records would be delivered twice, or those of a truncated log at all."""
    world = World(brokers=2)
    world.cluster.lead(P0, 0)
    world.broker(0).latency_s = 2.0
    world.cluster.produce(P0, *values(5))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(1)
        world.cluster.views.set(world.cluster.views.value)
        world.cluster.leaders[P0] = BrokerId(1)
        world.cluster.announce()
        world.cluster.leaders[P0] = BrokerId(0)  # so that the old one still answers with data
        await asyncio.sleep(2.5)
        assert feed.account.held_bytes == 0
        world.cluster.leaders[P0] = BrokerId(1)
        assert await read(feed, 5) == list(enumerate(values(5)))


@in_virtual_time
async def test_a_partition_without_a_leader_waits_for_one() -> None:
    """At the start of a cluster, or after the last replica died."""
    world = World()
    world.cluster.lead(P0, None)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(30)
        assert 5 < len(world.cluster.refreshes) < 40
        world.cluster.lead(P0, 0)
        world.cluster.produce(P0, b"x")
        await read(feed, 1, timeout_s=3)


# -- seek, close, cancellation


@in_virtual_time
async def test_seek_drops_what_was_fetched_and_what_is_under_way() -> None:
    """The pipeline has resolved a new position."""
    world = World()
    world.cluster.lead(P0, 0)
    for first in range(0, 100, 10):
        world.cluster.produce(P0, *values(10, first))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await read(feed, 10)
        feed.seek(50)
        assert (await read(feed, 50))[0] == (50, b"value 50")
        feed.seek(0)
        assert await read(feed, 100) == list(enumerate(values(100)))
        feed.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_a_cancelled_next_loses_nothing() -> None:
    """Pipelines wait for records with the deadline of their open file."""
    world = World(slice_bytes=300)
    world.cluster.lead(P0, 0)
    for first in range(0, 100, 10):
        world.cluster.produce(P0, *values(10, first))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        records: list[int] = []
        attempts = 0
        while len(records) < 100:
            attempts += 1
            try:
                async with timeout(0.0003 * (attempts % 4)):
                    got = await feed.next()
            except TimeoutError:
                continue
            records += list(got.offsets)
            feed.done(got)
        assert records == list(range(100))
        feed.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_a_closed_feed_gives_everything_back_even_batches_that_are_out() -> None:
    """A pipeline that is dropped has no time for manners."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        got = await feed.next()
        feed.close()
        feed.close()
        feed.done(got)
        await asyncio.sleep(1)
        assert world.budget.held_bytes == 0
        with pytest.raises(LocalProtocolError, match="closed"):
            await feed.next()


@in_virtual_time
async def test_stopping_the_fetcher_in_a_long_poll_leaves_no_reservation() -> None:
    """Cancellation is normal."""
    world = World()
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        fetcher.feed(P0, 0)
        await asyncio.sleep(0.1)
        assert world.budget.held_bytes > 0
    assert world.budget.held_bytes == 0


# -- out of range


@in_virtual_time
async def test_an_offset_below_the_log_is_confirmed_and_raised() -> None:
    """Retention has deleted what was to be read."""
    world = World()
    world.cluster.lead(P0, 0)
    for first in range(0, 20, 5):
        world.cluster.produce(P0, *values(5, first))
    world.cluster.logs[P0].log_start = 10
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 3)
        with pytest.raises(OffsetOutOfRange) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.earliest, caught.value.latest) == (3, 10, 20)
        assert world.cluster.range_readings == [P0]
        fetches = len(world.cluster.fetches())
        await asyncio.sleep(30)
        assert len(world.cluster.fetches()) == fetches  # nothing until the pipeline says what to do
        feed.seek(10)
        assert len(await read(feed, 10)) == 10


@in_virtual_time
async def test_records_before_the_failure_are_delivered_first() -> None:
    """The error is about a position that the pipeline has not reached yet."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(5))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(0.3)
        world.cluster.logs[P0].log_start = 8
        world.cluster.logs[P0].units.clear()
        world.cluster.stir()
        await asyncio.sleep(3)
        assert len(await read(feed, 5)) == 5
        with pytest.raises(OffsetOutOfRange):
            await feed.next()


@in_virtual_time
async def test_an_offset_above_the_log_gets_a_second_chance() -> None:
    """A new leader may trail for a moment after a failover."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(5))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 8)
        assert await quiet(feed, 0.5)
        world.cluster.produce(P0, *values(5, 5))
        assert await read(feed, 2) == [(8, b"value 8"), (9, b"value 9")]


@in_virtual_time
async def test_an_offset_that_stays_above_the_log_is_raised() -> None:
    """An unclean election has cut the log."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(5))
    async with world.fetcher() as fetcher:
        with pytest.raises(OffsetOutOfRange, match=r"offset 8 .* \[0, 5\]"):
            await fetcher.feed(P0, 8).next()
    assert len(world.cluster.range_readings) == 2


@in_virtual_time
@pytest.mark.parametrize(("latest", "grown"), [(5, 5), (5, 20), (20, 20)])
async def test_an_offset_above_a_log_without_replicas_is_raised_at_once(latest: int, grown: int) -> None:
    """It is another log, which may grow beyond the offset before the second look, and even before the first."""
    world = World()
    world.cluster.logs_are_replicated = False
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(20))
    world.cluster.range_overrides = [LogRange(0, latest), LogRange(0, grown)]
    world.broker().errors[P0] = [1]
    async with world.fetcher() as fetcher:
        with pytest.raises(OffsetOutOfRange, match=r"offset 8 is of an earlier log") as raised:
            await fetcher.feed(P0, 8).next()
    assert raised.value.replaced
    assert len(world.cluster.range_readings) == 1


@in_virtual_time
async def test_an_offset_below_a_log_without_replicas_was_deleted_by_retention() -> None:
    """It is no sign of another log."""
    world = World()
    world.cluster.logs_are_replicated = False
    world.cluster.lead(P0, 0)
    world.cluster.logs[P0].log_start = 10
    async with world.fetcher() as fetcher:
        with pytest.raises(OffsetOutOfRange) as raised:
            await fetcher.feed(P0, 3).next()
    assert not raised.value.replaced


@in_virtual_time
async def test_an_unconfirmed_out_of_range_is_not_raised() -> None:
    """Fetch said so, ListOffsets does not: it was a leader that did not know its log yet."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(5))
    world.broker().errors[P0] = [1, 1, 1]
    with structlog.testing.capture_logs() as logged:
        async with world.fetcher() as fetcher:
            assert len(await read(fetcher.feed(P0, 0), 5)) == 5
    assert ["fetch_failed", "fetch_recovered"] == [entry["event"] for entry in logged]
    assert "does not confirm" in logged[0]["reason"]


@in_virtual_time
async def test_an_open_transaction_confirms_nothing() -> None:
    """Under read_committed ListOffsets answers with the last stable offset, and what lies behind it is in the log."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10))
    world.cluster.range_overrides = [LogRange(0, 5)] * 3
    world.cluster.high_watermark = 10
    world.broker().errors[P0] = [1, 1, 1]
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 8), 2) == [(8, b"value 8"), (9, b"value 9")]


@in_virtual_time
async def test_a_confirmation_that_fails_is_tried_again() -> None:
    """Nothing is concluded from not having heard."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.logs[P0].log_start = 10
    world.cluster.range_failures = [ConnectionLost("one"), ConnectionLost("two")]
    async with world.fetcher() as fetcher:
        with pytest.raises(OffsetOutOfRange):
            await fetcher.feed(P0, 3).next()
    assert len(world.cluster.range_readings) == 3


@in_virtual_time
async def test_a_seek_during_the_confirmation_wins() -> None:
    """Its result is about a position that is not wanted any more."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(5))
    world.cluster.range_overrides = [LogRange(90, 100)]
    world.broker().errors[P0] = [1]
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(0.0015)  # the fetch takes one millisecond, and so does the confirmation
        assert feed.cursor.state is CursorState.CONFIRMING
        feed.seek(2)
        assert (await read(feed, 3))[0][0] == 2


@in_virtual_time
async def test_a_partition_that_is_lost_as_its_offset_is_refused_ends_nothing_else() -> None:
    """A topic that is re-created refuses the old offset while the group takes the partition away."""
    world = World()
    world.cluster.lead(P0, 0)
    world.cluster.lead(P1, 0)
    world.cluster.produce(P0, *values(5))
    world.cluster.produce(P1, *values(5))
    async with world.fetcher() as fetcher:
        lost, other = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await read(lost, 5)
        fetcher.confirm_out_of_range(lost)
        lost.close()  # before the confirmation has begun
        assert len(await read(other, 5)) == 5
        await asyncio.sleep(5)
        assert lost.cursor.state is CursorState.CLOSED


@in_virtual_time
async def test_a_leader_that_moves_during_the_confirmation_is_asked_itself() -> None:
    """What the old one said of the position is void; both happen at once in a failover."""
    world = World(brokers=2)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(5))
    world.broker().errors[P0] = [1]
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(0.0015)  # the fetch takes one millisecond, and so does the confirmation
        assert feed.cursor.state is CursorState.CONFIRMING
        world.cluster.lead(P0, 1)
        assert len(await read(feed, 5)) == 5


@in_virtual_time
async def test_next_after_the_error_tries_again() -> None:
    """The policy `stop` waits for the offset to become valid."""
    world = World()
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 2)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange):
                await feed.next()
        world.cluster.produce(P0, *values(5))
        assert len(await read(feed, 3)) == 3


# -- sizes


@pytest.mark.parametrize("version", [0, 2])
@in_virtual_time
async def test_a_message_larger_than_the_fetch_size_doubles_it(version: int) -> None:
    """Before version 3 brokers cut it off."""
    world = World(version=version, max_partition_bytes=4 * KIB)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"small", b"L" * 50 * KIB, b"small again")
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        records = await read(feed, 3)
        assert [len(value or b"") for _, value in records] == [5, 50 * KIB, 11]
        sizes = [request.topics[0].partitions[0].partition_max_bytes for request in world.cluster.fetches()]
        assert max(sizes) < 51 * KIB  # its header came along: one more request, of the right size


@in_virtual_time
async def test_a_message_whose_header_does_not_fit_is_found_by_doubling() -> None:
    """A fetch size of a few bytes is nobody's configuration, but it is a limit like any other."""
    world = World(version=2, max_partition_bytes=8, max_message_bytes=64 * KIB)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"x" * 3000)
    async with world.fetcher() as fetcher:
        assert len(await read(fetcher.feed(P0, 0), 1)) == 1


@pytest.mark.parametrize("version", [2, 3, 11])
@in_virtual_time
async def test_a_message_above_the_limit_is_raised_and_can_be_skipped(version: int) -> None:
    """The same on every release, also on those that return it whole."""
    world = World(version=version, max_partition_bytes=4 * KIB, max_message_bytes=16 * KIB)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"before")
    world.cluster.produce(P0, b"L" * 17 * KIB)
    world.cluster.produce(P0, b"after")
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        assert await read(feed, 1) == [(0, b"before")]
        with pytest.raises(RecordTooLarge) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.limit) == (1, 16 * KIB)
        assert caught.value.size is not None
        assert caught.value.size > 17 * KIB
        assert caught.value.next_offset == 2
        assert (
            caught.value.raw[:20] == next(unit.data for unit in world.cluster.logs[P0].units if unit.first == 1)[:20]
        )  # as much as came of it
        feed.seek(2)
        assert await read(feed, 1) == [(2, b"after")]
        feed.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_what_came_of_a_large_message_is_held_until_somebody_hears_of_it() -> None:
    """A stalled sink asks for nothing: the bytes of what it will be told must count meanwhile."""
    world = World(version=11, max_partition_bytes=4 * KIB, max_message_bytes=16 * KIB)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"L" * 17 * KIB)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        await asyncio.sleep(5)
        assert world.budget.held_by_kind[Kind.FETCHED] > 17 * KIB
        with pytest.raises(RecordTooLarge):
            await feed.next()
        assert world.budget.held_by_kind[Kind.FETCHED] == 0
        with pytest.raises(RecordTooLarge):
            await feed.next()
        feed.close()
    assert world.budget.held_bytes == 0


@pytest.mark.parametrize("version", [2, 11])
@in_virtual_time
async def test_a_size_that_was_damaged_on_the_way_is_no_large_message(version: int) -> None:
    """No checksum covers it: believed at once, a policy would pass over a record that is fine."""
    world = World(version=version, max_partition_bytes=4 * KIB, max_message_bytes=16 * KIB)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(3))
    seen = []

    def mangle(_partition: TopicPartition, data: bytes) -> bytes:
        seen.append(len(data))
        return data[:8] + b"\x40" + data[9:] if len(seen) == 1 else data

    world.broker().mangle = mangle
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 0), 3) == list(enumerate(values(3)))
    assert len(seen) >= 2


@pytest.mark.parametrize("damaged", [0, 1, 16])
@pytest.mark.parametrize("version", [2, 11])
@in_virtual_time
async def test_a_size_in_a_head_that_can_be_no_units_is_damage(version: int, damaged: int) -> None:
    """A broker that has lost its way ends up anywhere: whatever stands there is not a large message, to be stopped at."""
    world = World(version=version, max_partition_bytes=4 * KIB, max_message_bytes=16 * KIB)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, b"L" * 17 * KIB)

    def mangle(_partition: TopicPartition, data: bytes) -> bytes:
        return data[:damaged] + b"\x7f" + data[damaged + 1 :]

    world.broker().mangle = mangle
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.next_offset) == (0, None)
        assert len(caught.value.raw) >= 4 * KIB
        feed.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_a_budget_smaller_than_a_message_still_lets_it_through() -> None:
    """One at a time, never a deadlock."""
    world = World(budget=8 * KIB, max_partition_bytes=4 * KIB)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
        for _ in range(5):
            world.cluster.produce(partition, b"L" * 50 * KIB)
    async with world.fetcher() as fetcher:
        feeds = [fetcher.feed(partition, 0) for partition in (P0, P1)]
        async with asyncio.TaskGroup() as group:
            for feed in feeds:
                group.create_task(read(feed, 5))
        for feed in feeds:
            feed.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_memory_that_nobody_consumes_is_taken_back_when_others_need_it() -> None:
    """A failing sink's partitions hold what came; however small the budget, the others go on."""
    world = World(budget=8 * KIB, max_partition_bytes=4 * KIB)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
        for _ in range(5):
            world.cluster.produce(partition, b"L" * 50 * KIB)
    async with world.fetcher() as fetcher:
        stuck, flowing = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await read(stuck, 1)
        assert len(await read(flowing, 5, timeout_s=20)) == 5
        assert [offset for offset, _ in await read(stuck, 4)] == [1, 2, 3, 4]
        stuck.close()
        flowing.close()
    assert world.budget.held_bytes == 0


@in_virtual_time
async def test_memory_that_nobody_consumes_is_taken_back_when_a_batch_needs_it() -> None:
    """A sink that stands still has the batch that is let through beyond the limit, and everybody has fetched enough."""
    world = World(max_partition_bytes=25_000, slice_bytes=6000)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
        for _ in range(6):
            world.cluster.produce(partition, *[bytes(1000)] * 10)
    async with world.fetcher() as fetcher:
        stuck, flowing = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        await until(lambda: min(feed.account.held_bytes for feed in (stuck, flowing)) > fetcher.marks.high)
        await until(lambda: not world.budget.held_by_kind[Kind.REQUESTED])
        taken = world.budget.limit_bytes - world.budget.held_bytes - 10_000  # less than a batch takes
        world.budget.charge(taken)
        first = await stuck.next()
        assert [offset for offset, _ in await read(flowing, 10, timeout_s=20)] == list(range(10))
        stuck.done(first)
        assert [offset for offset, _ in await read(stuck, 50)] == list(range(10, 60))
        stuck.close()
        flowing.close()
    assert world.budget.held_bytes == taken


@in_virtual_time
async def test_open_files_that_take_all_memory_slow_fetching_down_but_do_not_end_it() -> None:
    """They are flushed by what is fetched next, or by their age."""
    world = World(budget=MIB)
    world.cluster.lead(P0, 0)
    for _ in range(10):
        world.cluster.produce(P0, b"x" * 1000)
    world.budget.charge(2 * MIB)
    async with world.fetcher() as fetcher:
        assert len(await read(fetcher.feed(P0, 0), 10)) == 10


@in_virtual_time
async def test_a_message_larger_than_any_frame_fails_its_own_partition_only() -> None:
    """The connection breaks with every answer that holds it; the others must not go down with it for ever."""
    world = World(version=11)
    partitions = [TopicPartition.modern("t", number) for number in range(5)]
    for partition in partitions:
        world.cluster.lead(partition, 0)
        world.cluster.produce(partition, *values(3))

    world.broker().unframeable = {P1}
    async with world.fetcher() as fetcher:
        feeds = {partition: fetcher.feed(partition, 0) for partition in partitions}
        for partition, feed in feeds.items():
            if partition == P1:
                with pytest.raises(RecordTooLarge):
                    await feed.next()
            else:
                assert len(await read(feed, 3)) == 3
                world.cluster.produce(partition, b"on")
                assert len(await read(feed, 1)) == 1
        assert asyncio.get_running_loop().time() < 3


# -- corruption


@pytest.mark.parametrize("version", [2, 11])
@in_virtual_time
async def test_corruption_on_the_way_is_fetched_again(version: int) -> None:
    """Once: nobody need hear of it."""
    world = World(version=version)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10))
    seen = []

    def mangle(_partition: TopicPartition, data: bytes) -> bytes:
        seen.append(len(data))
        return data[:-1] + b"!" if len(seen) == 1 else data

    world.broker().mangle = mangle
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 0), 10) == list(enumerate(values(10)))
    assert len(seen) >= 2


@pytest.mark.parametrize("magic", [1, 2])
@in_virtual_time
async def test_corruption_on_disk_is_raised_after_what_is_whole(magic: int) -> None:
    """The unit that cannot be read is named; what comes before it is delivered, what comes after it can be reached."""
    world = World(version=11 if magic == 2 else 2)
    world.cluster.lead(P0, 0)
    log = world.cluster.logs[P0]
    for offset in range(5):
        unit = (
            message(offset, b"value", magic=1) if magic == 1 else batch(offset, [RecordSpec(delta=0, value=b"value")])
        )
        log.append(unit[:-1] + b"!" if offset == 2 else unit)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        assert [offset for offset, _ in await read(feed, 2)] == [0, 1]
        for _ in range(2):  # and again when it is tried again
            with pytest.raises(CorruptMessageError) as caught:
                await feed.next()
            assert (caught.value.partition, caught.value.offset) == (P0, 2)
            assert (caught.value.next_offset, caught.value.raw) == (3, log.units[2].data)
        feed.seek(3)
        assert [offset for offset, _ in await read(feed, 2)] == [3, 4]
        feed.close()
    assert world.budget.held_bytes == 0
    assert len(world.cluster.fetches()) < 20


@pytest.mark.parametrize("in_thread", [False, True])
async def test_codec_without_its_library_is_no_corruption(in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as it is, each time, and what was fetched is let go of."""
    world = World(thread_bytes=10, native_thread_bytes=10) if in_thread else World()
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10), codec=4)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        for _ in range(2):
            with pytest.raises(ConfigError, match="the package zstandard is not usable"):
                await feed.next()
        monkeypatch.undo()
        assert await read(feed, 10) == list(enumerate(values(10)))
        feed.close()
    assert world.budget.held_bytes == 0


@pytest.mark.parametrize("garbage", [b"\0" * 200, b"\xff" * 200])
@in_virtual_time
async def test_garbage_where_a_unit_should_begin_is_corruption(garbage: bytes) -> None:
    """A size that no unit has: the same as a failed checksum, and no reason to ask for more and more."""
    world = World(version=2)
    world.cluster.lead(P0, 0)
    world.cluster.logs[P0].append(garbage)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        with pytest.raises(CorruptMessageError):
            await feed.next()
        await asyncio.sleep(10)
    assert len(world.cluster.fetches()) < 5


@pytest.mark.parametrize("magic", [1, 2])
@in_virtual_time
async def test_offsets_beyond_the_log_are_corruption(magic: int) -> None:
    """No checksum covers a unit's offset: believed, it would lose everything up to it, and be committed."""
    world = World(version=11 if magic == 2 else 2)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(3))
    seen = []

    def mangle(_partition: TopicPartition, data: bytes) -> bytes:
        seen.append(len(data))
        return b"\x01" + data[1:] if len(seen) == 1 else data

    world.broker().mangle = mangle
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 0), 3) == list(enumerate(values(3)))
    assert world.hooks.errors == [(P0, "CORRUPT_MESSAGE")]
    assert world.cluster.range_readings == []


@in_virtual_time
async def test_what_follows_a_damaged_unit_says_where_it_ends_though_it_is_decoded_apart() -> None:
    """Compaction has left holes, so that its own word is not enough; and a record set is decoded in small pieces."""
    world = World(version=11, slice_bytes=1)
    world.cluster.lead(P0, 0)
    log = world.cluster.logs[P0]
    log.append(batch(0, [RecordSpec(delta=0, value=b"value")]))
    compacted = batch(1, [RecordSpec(delta=0, value=b"value"), RecordSpec(delta=6, value=b"value")], last_delta=6)
    log.append(compacted[:-1] + b"!", 7)
    log.append(batch(8, [RecordSpec(delta=0, value=b"value")]))
    log.append(batch(9, [RecordSpec(delta=0, value=b"value")]))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        assert [offset for offset, _ in await read(feed, 1)] == [0]
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.next_offset) == (1, 8)


@pytest.mark.parametrize("magic", [1, 2])
@in_virtual_time
async def test_an_offset_beyond_the_log_that_stays_is_one_unit_s_trouble(magic: int) -> None:
    """Damaged on disk, it costs its own record; those before it are delivered, those behind it can be reached."""
    world = World(version=11 if magic == 2 else 2)
    world.cluster.lead(P0, 0)
    log = world.cluster.logs[P0]
    for offset in range(5):
        unit = (
            message(offset, b"value", magic=1) if magic == 1 else batch(offset, [RecordSpec(delta=0, value=b"value")])
        )
        log.append(unit)
    whole = log.units[2].data

    def mangle(_partition: TopicPartition, data: bytes) -> bytes:
        return data.replace(whole, b"\x01" + whole[1:])

    world.broker().mangle = mangle
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        assert [offset for offset, _ in await read(feed, 2)] == [0, 1]
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.next_offset) == (2, 3)
        assert caught.value.raw == b"\x01" + whole[1:]
        feed.seek(3)
        assert [offset for offset, _ in await read(feed, 2)] == [3, 4]


# -- compressed and transactional


async def test_what_a_thread_decodes_for_nobody_is_given_back() -> None:
    """A seek or a close does not wait for the thread; its memory is held until it is done."""
    world = World(thread_bytes=10, native_thread_bytes=10)
    world.cluster.lead(P0, 0)
    for first in range(0, 40, 10):
        world.cluster.produce(P0, *values(10, first), codec=1)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        for end in ("seek", "close"):
            feed.seek(0)
            free = threading.Event()
            fetcher._tools.executor.submit(free.wait)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(feed.next())
                await until(lambda: feed._decoder.under_way is not None)
                if end == "close":
                    waiting.cancel()
                    feed.close()
                    free.set()
                    continue
                feed.seek(20)
                free.set()
                got = await waiting
                assert (got.start, got.offsets[0]) == (20, 20)
                feed.done(got)
        await until(lambda: not world.budget.held_bytes)


async def test_corruption_found_in_a_thread_is_fetched_again() -> None:
    """As anywhere else."""
    world = World(thread_bytes=10, native_thread_bytes=10)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10), codec=1)
    seen = []

    def mangle(_partition: TopicPartition, data: bytes) -> bytes:
        seen.append(len(data))
        return data[:-1] + b"!" if len(seen) == 1 else data

    world.broker().mangle = mangle
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 0), 10) == list(enumerate(values(10)))


async def test_what_a_thread_found_corrupt_does_not_stay_in_memory_unseen() -> None:
    """A failure and the frame that took it from the thread must not keep each other, and with them what was fetched."""
    world = World(thread_bytes=10, native_thread_bytes=10)
    world.cluster.lead(P0, 0)
    world.cluster.produce(P0, *values(10), codec=1)
    failures: list[weakref.ref[BaseException]] = []
    world.broker().mangle = lambda _partition, data: data[:-1] + b"!" if not failures else data
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        source = feed._batches
        collect = source._collect

        def note() -> RecordBatch | None:
            if feed._decoder.under_way is not None and (error := feed._decoder.under_way[0].exception()) is not None:
                failures.append(weakref.ref(error))
            error = None
            return collect()

        source._collect = note  # type: ignore[method-assign]
        gc.disable()
        try:
            await read(feed, 10)
            assert [failure() for failure in failures] == [None]
        finally:
            gc.enable()


@in_virtual_time
async def test_a_seek_while_a_decode_waits_for_memory_wins() -> None:
    """What it was waiting to decode is gone by then."""
    world = World(budget=KIB)
    for partition in (P0, P1):
        world.cluster.lead(partition, 0)
        for first in range(0, 20, 10):
            world.cluster.produce(partition, *values(10, first))
    world.budget.charge(KIB)
    async with world.fetcher() as fetcher:
        holder, seeker = fetcher.feed(P0, 0), fetcher.feed(P1, 0)
        held = await holder.next()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(seeker.next())
            await until(lambda: seeker.account.held_bytes)
            await asyncio.sleep(0.01)
            seeker.seek(10)
            holder.done(held)
            got = await waiting
        assert got.start == 10
        for feed in (holder, seeker):
            feed.close()
    assert world.budget.held_bytes == KIB


@in_virtual_time
async def test_representations_say_what_goes_on() -> None:
    """They are what a debugger shows first."""
    world = World()
    world.cluster.lead(P0, 0)
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        assert repr(fetcher) == "<Fetcher 1 feeds, 1 homeless; >"
        await asyncio.sleep(0.1)
        assert repr(fetcher) == "<Fetcher 1 feeds, 0 homeless; <BrokerLoop 0, 1 feeds>>"
        assert repr(feed) == "<PartitionFeed t/0 at 0 active, 0 chunks>"


async def test_large_compressed_units_are_decoded_in_a_thread_and_stay_in_order() -> None:
    """The loop turns meanwhile; cancelling the wait does not lose the thread's work. Real time, since threads take it."""
    world = World(thread_bytes=10, native_thread_bytes=10)
    world.cluster.lead(P0, 0)
    for first in range(0, 40, 10):
        world.cluster.produce(P0, *values(10, first), codec=1)

    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        records: list[int] = []
        while len(records) < 40:
            try:
                async with timeout(0):
                    got = await feed.next()
            except TimeoutError:
                await asyncio.sleep(0.001)
                continue
            records += list(got.offsets)
            feed.done(got)
        assert records == list(range(40))
        feed.seek(0)
        await asyncio.sleep(0.1)
        feed.close()
        await asyncio.sleep(0.1)


@in_virtual_time
async def test_read_committed_drops_aborted_records_only() -> None:
    """The end of an aborted transaction is in the records: cutting a set into slices must not lose it."""
    world = World(read_committed=True, slice_bytes=1)
    world.cluster.lead(P0, 0)
    log = world.cluster.logs[P0]
    log.append(_transactional(0, b"aborted", 7))
    log.append(_transactional(1, b"other", 8))
    log.append(marker(2, 7, abort=True))
    log.append(_transactional(3, b"committed", 7))
    log.append(marker(4, 7, abort=False))
    log.append(marker(5, 8, abort=False))
    log.aborted = [(AbortedTransaction(producer_id=7, first_offset=0), 2)]
    async with world.fetcher() as fetcher:
        assert await read(fetcher.feed(P0, 0), 2) == [(1, b"other"), (3, b"committed")]


@in_virtual_time
async def test_read_uncommitted_delivers_all_and_markers_move_the_position() -> None:
    """A batch without records still has a later next offset."""
    world = World(slice_bytes=1)
    world.cluster.lead(P0, 0)
    log = world.cluster.logs[P0]
    log.append(_transactional(0, b"aborted", 7))
    log.append(marker(1, 7, abort=True))
    async with world.fetcher() as fetcher:
        feed = fetcher.feed(P0, 0)
        first, second = await feed.next(), await feed.next()
        assert (len(first), first.next_offset) == (1, 1)
        assert (len(second), second.start, second.next_offset) == (0, 1, 2)


def _transactional(offset: int, value: bytes, producer_id: int) -> bytes:
    return batch(offset, [RecordSpec(delta=0, value=value)], attributes=TRANSACTIONAL, producer_id=producer_id)
