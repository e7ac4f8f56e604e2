# SPDX-License-Identifier: Apache-2.0
"""A fetcher on brokers of Kafka 0.7 in memory, in virtual time: pauses, sizes, refused offsets, damage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import CorruptMessageError, OffsetOutOfRange, RecordTooLarge
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.model import TopicPartition
from consumerd.wire.legacy.message_set import build_message_set
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.legacy_frames import Row, get_exchange, list_rows
from tests.support.legacy_peer import LegacyCluster, LegacyPeer, encode_messages, legacy_partition
from tests.support.virtual_time import run

P = legacy_partition("t", 0)


class World:
    """One broker with the partition P, unless a test says otherwise."""

    def __init__(self, *peers: LegacyPeer, partitions: tuple[TopicPartition, ...] = (P,)) -> None:
        self.cluster = LegacyCluster(*peers)
        self.partitions = partitions

    @property
    def peer(self) -> LegacyPeer:
        return self.cluster.peers[0]

    def produce(self, *payloads: bytes) -> None:
        self.peer.log("t", 0).append(encode_messages(payloads))

    def run(self, scenario: Callable[[Fetcher], Awaitable[None]], **settings: int) -> None:
        async def play() -> None:
            async with self.cluster.fetching(*self.partitions, **settings) as fetcher:
                await scenario(fetcher)

        run(play())


async def read(feed: PartitionFeed, count: int, *, timeout_s: float = 60.0) -> list[Row]:
    """Take ``count`` records; batches must follow each other without a hole."""
    rows: list[Row] = []
    position: int | None = None
    async with timeout(timeout_s):
        while len(rows) < count:
            batch = await feed.next()
            assert position is None or batch.start == position
            position = batch.next_offset
            rows += list_rows(batch)
            feed.done(batch)
    return rows


# -- pauses in place of the long poll


def test_an_idle_partition_is_asked_for_less_and_less_often_up_to_max_wait_ms() -> None:
    """10 ms after the first empty answer, then twice as long each time: the broker itself never waits."""
    world = World()

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.feed(P, 0)
        await asyncio.sleep(60)

    world.run(scenario, max_wait_ms=500)
    times = world.peer.fetch_times
    pauses = [round(after - before - 0.001, 3) for before, after in pairwise(times)]
    assert pauses[:8] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert 115 <= len(times) <= 130


def test_records_end_the_long_pauses() -> None:
    """A partition in use is read within milliseconds, whatever the pauses were before."""
    world = World()

    async def scenario(fetcher: Fetcher) -> None:
        feed, now = fetcher.feed(P, 0), asyncio.get_running_loop().time
        await asyncio.sleep(20)
        world.produce(b"first")
        began = now()
        assert len(await read(feed, 1)) == 1
        assert now() - began < 0.51  # not later than in a long poll that had begun before
        for number in range(5):
            await asyncio.sleep(0.004)
            world.produce(b"%d" % number)
            began = now()
            await read(feed, 1)
            assert now() - began < 0.03

    world.run(scenario)


def test_a_distant_broker_is_not_taken_for_one_that_waits() -> None:
    """Its answers take longer than half of max_wait_ms; without a pause it would be asked all the time."""
    peer = LegacyPeer(delay_s=0.3)
    world = World(peer)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.feed(P, 0)
        await asyncio.sleep(60)

    world.run(scenario, max_wait_ms=500)
    assert len(peer.fetch_times) < 85  # 0.8 s each, but for the first few


def test_without_a_wait_time_there_is_still_a_pause() -> None:
    """``max_wait_ms: 0`` asks brokers not to wait; it must not make an idle consumer spin."""
    world = World()

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.feed(P, 0)
        await asyncio.sleep(10)

    world.run(scenario, max_wait_ms=0)
    assert len(world.peer.fetch_times) < 1000


def test_partitions_of_two_brokers_with_one_number_are_not_mixed_up() -> None:
    """Keys of requests are topic and number; ``0-0`` and ``1-0`` are in different loops."""
    here, there = P, legacy_partition("t", 0, broker=1)
    world = World(LegacyPeer(), LegacyPeer(), partitions=(here, there))
    world.cluster.peers[0].log("t", 0).append(encode_messages([b"of 0"]))
    world.cluster.peers[1].log("t", 0).append(encode_messages([b"of 1", b"more"]))

    async def scenario(fetcher: Fetcher) -> None:
        assert [value for *_, value in await read(fetcher.feed(here, 0), 1)] == [b"of 0"]
        assert [value for *_, value in await read(fetcher.feed(there, 0), 2)] == [b"of 1", b"more"]

    world.run(scenario)


# -- the points in which a real broker differs from the document


@pytest.mark.parametrize("ask_bytes", [3, 40, 1000])
def test_point_1_a_size_that_is_too_small_is_enlarged(ask_bytes: int) -> None:
    """By the header if that was fetched, else twice as much, until the message fits."""
    world = World()
    world.produce(b"s" * 5, b"l" * 20_000, b"s" * 7)

    async def scenario(fetcher: Fetcher) -> None:
        rows = await read(fetcher.feed(P, 0), 3)
        assert [len(value) for *_, value in rows] == [5, 20_000, 7]

    world.run(scenario, max_partition_bytes=ask_bytes)
    assert len(world.peer.asked(LegacyMultiFetchRequest)) < 40


def test_point_1_a_message_above_the_limit_is_an_error_with_its_claimed_end() -> None:
    """It cannot be fetched whole; what follows it can be read."""
    world = World()
    world.produce(b"l" * 20_000, b"small")

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(P, 0)
        with pytest.raises(RecordTooLarge) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.size, caught.value.next_offset) == (0, 20_010, 20_010)
        feed.seek(20_010)
        assert [value for *_, value in await read(feed, 1)] == [b"small"]

    world.run(scenario, max_partition_bytes=1000, max_message_bytes=10_000)


def test_point_2_an_offset_inside_of_a_message_is_corruption_and_tells_the_next_message() -> None:
    """The broker answers it without an error; the garbage length must not be believed."""
    plain = legacy_partition("vKAFaplain", 0)
    world = World(LegacyPeer.from_recordings(), partitions=(plain,))

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(plain, 3)
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.next_offset) == (3, 15)
        feed.seek(15)
        _, _, _, value = (await read(feed, 1))[0]
        assert value == b"beta"

    world.run(scenario)
    assert len(world.peer.asked(LegacyMultiFetchRequest)) < 10


def test_point_3_a_wrong_partition_backs_off_alone() -> None:
    """MULTIFETCH answers error 3 for it; the others of the same request go on."""
    wrong = legacy_partition("t", 99)
    world = World(partitions=(P, wrong))

    async def scenario(fetcher: Fetcher) -> None:
        bad, good = fetcher.feed(wrong, 0), fetcher.feed(P, 0)
        await asyncio.sleep(10)
        assert bad.fault is not None
        assert bad.fault.code == 3
        assert good.fault is None
        world.produce(b"x")
        assert len(await read(good, 1)) == 1

    world.run(scenario)
    asked = sum(
        any(entry.partition == 99 for entry in request.requests)
        for request in world.peer.asked(LegacyMultiFetchRequest)
    )
    assert asked < 20
    assert world.cluster.refreshes


@pytest.mark.parametrize("offset", [0, 5])
def test_point_4_a_partition_that_was_never_written_is_empty_at_any_offset(offset: int) -> None:
    """It is no fault, and what is written then is read."""
    world = World()

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(P, offset)
        await asyncio.sleep(5)
        assert feed.fault is None
        assert feed.high_watermark is None
        assert feed.heard_at is not None
        if offset == 0:
            world.produce(b"x")
            assert await read(feed, 1) == [(0, 0, 11, b"x")]

    world.run(scenario)


def test_point_5_the_log_end_is_empty_and_beyond_it_is_out_of_range() -> None:
    """The recorded log ends at 55; a position above it is one of another log, whatever OFFSETS says later."""
    plain = legacy_partition("vKAFaplain", 0)
    world = World(LegacyPeer.from_recordings(), partitions=(plain,))

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(plain, 55)
        await asyncio.sleep(5)
        assert feed.fault is None
        feed.seek(56)
        with pytest.raises(OffsetOutOfRange) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.earliest, caught.value.latest) == (56, 0, 55)
        assert caught.value.replaced

    world.run(scenario)


@pytest.mark.parametrize("offset", [-1, 0, 99])
def test_point_5_a_deleted_offset_is_out_of_range(offset: int) -> None:
    """Retention has removed it; a negative one never was."""
    world = World()
    world.produce(b"x")
    world.peer.log("t", 0).starts = [100]

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(OffsetOutOfRange) as caught:
            await fetcher.feed(P, offset).next()
        assert (caught.value.earliest, caught.value.latest) == (100, 111)

    world.run(scenario)


def test_a_fetch_that_stops_at_the_end_of_a_segment_goes_on_in_the_next() -> None:
    """The recorded log has three; an answer never crosses from one to the next."""
    segments = legacy_partition("vKAFasegs", 0)
    world = World(LegacyPeer.from_recordings(), partitions=(segments,))

    async def scenario(fetcher: Fetcher) -> None:
        rows = await read(fetcher.feed(segments, 0), 120)
        assert [(offset, value[:4]) for offset, _, _, value in rows] == [(60 * n, b"%04d" % n) for n in range(120)]

    world.run(scenario)


def test_point_15_a_restart_inside_of_a_compressed_message_reads_all_of_it_again() -> None:
    """Its records share the offset of the compressed message, so there is no position between them."""
    world = World()
    compressed = build_message_set([b"a", b"b", b"c"], codec=1)
    world.peer.log("t", 0).append(encode_message(b"before") + compressed + encode_message(b"after"))

    async def scenario(fetcher: Fetcher) -> None:
        rows = await read(fetcher.feed(P, 0), 5)
        inside = 16
        assert [(offset, index) for offset, index, *_ in rows] == [(0, 0), (16, 0), (16, 1), (16, 2), (rows[4][0], 0)]
        assert rows[4][0] == inside + len(compressed)
        again = await read(fetcher.feed(P, inside), 4)
        assert [value for *_, value in again] == [b"a", b"b", b"c", b"after"]

    world.run(scenario)


def test_messages_of_the_java_producer_are_delivered() -> None:
    """All three of its codecs, as a real broker returned them."""
    for codec in range(3):
        partition = legacy_partition(f"jprod{codec}", 0)
        world = World(LegacyPeer.from_recordings(), partitions=(partition,))

        async def scenario(fetcher: Fetcher, partition: TopicPartition = partition) -> None:
            rows = await read(fetcher.feed(partition, 0), 3)
            assert [value for *_, value in rows] == [b"m-one", b"m-two", "m-thrée".encode()]

        world.run(scenario)
    assert get_exchange("k072_fetch_javaproducer_codec2").response is not None


# -- damage


def test_damage_is_fetched_again_and_then_tells_where_the_next_message_begins() -> None:
    """Policies that skip or quarantine pass over it as over damage of known size."""
    world = World()
    bad = bytearray(encode_message(b"bad" * 20))
    bad[2] ^= 0x01  # the length, which no checksum covers
    world.produce(b"before")
    world.peer.log("t", 0).append(bytes(bad) + encode_messages([b"after"]))

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(P, 0)
        await read(feed, 1)
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.next_offset) == (16, 16 + len(bad))
        assert caught.value.raw == bad
        feed.seek(16 + len(bad))
        assert [value for *_, value in await read(feed, 1)] == [b"after"]

    world.run(scenario)


@pytest.mark.parametrize("ask_bytes", [80, 1000, 100_000])
def test_damage_without_a_proof_ends_with_the_log(ask_bytes: int) -> None:
    """Few messages behind it may lie inside of a damaged one: they are part of it, and the next ones are read."""
    world = World()
    chance = encode_message(b"c" * 900)[:11]  # a header of a message that is not there
    garbage = (b"\xee" * 70 + chance) * 5
    world.produce(b"before")
    world.peer.log("t", 0).append(garbage + encode_messages([b"after"] * 3))

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(P, 0)
        assert [value for *_, value in await read(feed, 1)] == [b"before"]
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        end = 16 + len(garbage) + 3 * 15
        assert (caught.value.offset, caught.value.next_offset) == (16, end)
        world.produce(b"later")
        feed.seek(end)
        assert [value for *_, value in await read(feed, 1)] == [b"later"]

    world.run(scenario, max_partition_bytes=ask_bytes)


def test_damaged_length_of_a_message_larger_than_a_fetch_is_told_by_a_larger_one() -> None:
    """The second fetch is as large as a proof may need."""
    world = World()
    world.produce(b"before", b"x" * 5000, b"after")
    world.peer.log("t", 0).data[18] ^= 0x10

    async def scenario(fetcher: Fetcher) -> None:
        feed = fetcher.feed(P, 0)
        await read(feed, 1)
        with pytest.raises(CorruptMessageError) as caught:
            await feed.next()
        assert (caught.value.offset, caught.value.next_offset) == (16, 16 + 5010)

    world.run(scenario, max_partition_bytes=100)
