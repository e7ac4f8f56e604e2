# SPDX-License-Identifier: Apache-2.0
"""One range taken out of a feed, on a cluster in memory and in virtual time: whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from consumerd.access.address import ClusterAddress
from consumerd.errors import CorruptMessageError, OffsetOutOfRange, RequestTimedOut
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.ports import FetchSettings
from consumerd.model import TopicPartition
from consumerd.spark.datasource.options import FetchOptions
from consumerd.spark.datasource.planning import Lost, OffsetRange
from consumerd.spark.datasource.reading import MessageTooLarge, RangeReader, ReadTask
from tests.support.fake_broker import FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.legacy_peer import LegacyCluster, LegacyLog, encode_messages, legacy_partition
from tests.support.record_sets import RecordSpec, batch
from tests.support.virtual_time import run

P = TopicPartition.modern("orders", 3)


class World:
    """A cluster with one partition, and what a reader has left out of it."""

    def __init__(self, **brokers: int) -> None:
        self.cluster = FakeCluster(**brokers)
        self.cluster.lead(P, 0)
        self.lost: list[Lost] = []

    @asynccontextmanager
    async def reading(
        self, start: int, end: int, *, strict: bool = True, most: int = 1 << 20, **fetch: Any
    ) -> AsyncIterator[RangeReader]:
        """Read a range; ``most`` is how large a message may be."""
        task = ReadTask(
            range=OffsetRange(partition=P, start=start, end=end),
            cluster=ClusterAddress(client_id="consumerd-spark", bootstrap="nowhere:1"),
            fetch=FetchOptions(patience_s=60, **fetch),
            fail_on_data_loss=strict,
        )
        settings = FetchSettings(
            native_thread_bytes=1 << 30, max_message_bytes=most, max_partition_bytes=min(most, 4096), max_wait_ms=100
        )
        async with fetching_from(self.cluster, MemoryBudget(16 << 20), settings) as fetcher:
            feed = fetcher.feed(P, start, end)
            reader = RangeReader(task, feed, self.cluster, report=self.lost.append, explain=lambda: "nobody knows")
            yield reader
            reader.close()


async def offsets_of(reader: RangeReader, *, after_first: Callable[[], None] = lambda: None) -> list[int]:
    """Read to the end; something may happen behind the first rows."""
    found: list[int] = []
    while (rows := await reader.next()) is not None:
        if not found:
            after_first()
        found += rows.column("offset").to_pylist()
    return found


def fill(cluster: FakeCluster, batches: int, each: int = 10, size: int = 100) -> None:
    for _ in range(batches):
        cluster.produce(P, *[b"v" * size] * each)


@pytest.mark.parametrize("version", [0, 2, 3, 4, 11])
def test_a_range_ends_where_it_is_to_end(version: int) -> None:
    """In the middle of batches, at both ends, on every kind of release; and nothing is asked for behind the end."""

    async def scenario() -> None:
        world = World(version=version)
        fill(world.cluster, 20)
        async with world.reading(13, 187) as reader:
            assert list(range(13, 187)) == await offsets_of(reader)
            asked = len(world.cluster.fetches())
            await asyncio.sleep(10)
            assert asked == len(world.cluster.fetches())

    run(scenario())


def test_nothing_is_fetched_ahead_behind_the_end() -> None:
    """A stream's trigger ends in the middle of a log: what follows is the next trigger's, and would be fetched twice."""

    async def scenario() -> None:
        world = World()
        fill(world.cluster, 400)
        async with world.reading(0, 500) as reader:
            assert list(range(500)) == await offsets_of(reader)
        asked = [
            partition.fetch_offset
            for request in world.cluster.fetches()
            for topic in request.topics
            for partition in topic.partitions
        ]
        assert asked
        assert max(asked) < 500

    run(scenario())


def test_a_range_of_nothing_is_over_at_once() -> None:
    """An empty range needs no broker."""

    async def scenario() -> None:
        world = World()
        world.cluster.lead(P, None)
        async with world.reading(5, 5) as reader:
            assert await reader.next() is None

    run(scenario())


def test_holes_are_passed_over() -> None:
    """A compacted log has fewer records than offsets, and may have none at the end of a range."""

    async def scenario() -> None:
        world = World()
        log = world.cluster.logs[P]
        log.append(batch(0, [RecordSpec(delta=delta, value=b"v") for delta in (0, 7)], last_delta=9), 10)
        log.append(batch(10, [RecordSpec(delta=9, value=b"v")], last_delta=9), 10)
        async with world.reading(0, 15) as reader:
            assert await offsets_of(reader) == [0, 7]
        assert world.lost == []

    run(scenario())


def test_a_leader_that_moves_is_followed() -> None:
    """A broker that dies in the middle of a range costs nothing but time."""

    async def scenario() -> None:
        world = World(brokers=2)
        fill(world.cluster, 100, size=200)

        def move() -> None:
            world.cluster.brokers[world.cluster.leaders[P]].kill()  # type: ignore[index]
            world.cluster.lead(P, 1)

        async with world.reading(0, 1000) as reader:
            assert list(range(1000)) == await offsets_of(reader, after_first=move)

    run(scenario())


def test_nothing_coming_ends_the_task_by_name() -> None:
    """Spark tries a task again; one that hangs for ever it does not."""

    async def scenario() -> None:
        world = World()
        fill(world.cluster, 100, size=200)
        async with world.reading(0, 1000) as reader:
            with pytest.raises(RequestTimedOut, match=r"orders/3: nothing came from offset \d+ on within 60 s: nobody"):
                await offsets_of(reader, after_first=lambda: world.cluster.lead(P, None))
        assert 60 <= asyncio.get_running_loop().time() < 70

    run(scenario())


@pytest.mark.parametrize("strict", [True, False])
def test_retention_during_a_read(strict: bool) -> None:
    """What is deleted before it is read is an error that names it, or a gap that is reported; never silence."""

    async def scenario() -> None:
        world = World()
        fill(world.cluster, 100, size=200)

        def expire() -> None:
            world.cluster.logs[P].log_start = 700

        async with world.reading(0, 1000, strict=strict) as reader:
            if strict:
                with pytest.raises(OffsetOutOfRange, match=r"orders/3: offset \d+ is outside the broker's log \[700,"):
                    await offsets_of(reader, after_first=expire)
                return
            found = await offsets_of(reader, after_first=expire)
        (lost,) = world.lost
        assert found == [*range(lost.start), *range(700, 1000)]
        assert (lost.partition, lost.end) == (P, 700)
        assert "the log begins with offset 700" in str(lost)

    run(scenario())


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("held", [40, 100], ids=["below", "at"])
def test_a_log_that_ends_below_the_range(strict: bool, held: int) -> None:
    """An unclean election takes what was planned: the position may lie at the log's end, or above it."""

    async def scenario() -> None:
        world = World()
        fill(world.cluster, held // 10)
        start = 100
        async with world.reading(start, 130, strict=strict) as reader:
            if strict:
                with pytest.raises(OffsetOutOfRange, match=rf"orders/3: offset 100 is outside .*{held}\]"):
                    await offsets_of(reader)
                return
            assert await offsets_of(reader) == []
        (lost,) = world.lost
        assert (lost.start, lost.end) == (100, 130)
        assert f"the log ends at offset {held}" in str(lost)

    run(scenario())


def test_a_message_above_the_limit_names_the_option() -> None:
    """The daemon's settings mean nothing to whoever writes a job."""

    async def scenario() -> None:
        world = World()
        fill(world.cluster, 1, each=1, size=5000)
        async with world.reading(0, 1, most=2048) as reader:
            with pytest.raises(
                MessageTooLarge, match=r"orders/3: the message at offset 0 has 5\d+ bytes, .*maxMessage"
            ):
                await reader.next()

    run(scenario())


def test_corrupt_records_name_their_offset() -> None:
    """Never rows that were not written."""

    async def scenario() -> None:
        world = World()
        fill(world.cluster, 1)
        world.cluster.brokers[world.cluster.leaders[P]].mangle = (
            lambda _partition, data: (  # type: ignore[index]
                data[:-1] + bytes([data[-1] ^ 1])
            )
        )
        async with world.reading(0, 10) as reader:
            with pytest.raises(CorruptMessageError, match="orders/3") as caught:
                await reader.next()
            assert caught.value.offset == 0

    run(scenario())


def test_an_end_that_brokers_of_kafka_0_7_have_lost_is_told_before_the_time_limit() -> None:
    """A wiped broker begins at 0 again. Its responses are empty, and have no high watermark that would tell."""
    partition = legacy_partition("orders", 0)
    cluster, start = LegacyCluster(), 2 * len(encode_messages([b"v"]))
    cluster.peers[0].logs["orders", 0] = LegacyLog(encode_messages([b"v", b"v"]))
    task = ReadTask(
        range=OffsetRange(partition=partition, start=start, end=1000),
        cluster=ClusterAddress(client_id="consumerd-spark", bootstrap="nowhere:1"),
        fetch=FetchOptions(patience_s=60),
    )

    async def scenario() -> None:
        async with cluster.reading(partition) as (fetcher, ranges):
            feed = fetcher.feed(partition, start, 1000)
            reader = RangeReader(task, feed, ranges, report=lambda _: None, explain=lambda: "nobody knows")
            with pytest.raises(OffsetOutOfRange, match=rf"^orders/0-0: offset {start} is outside"):
                await reader.next()
            reader.close()
        assert asyncio.get_running_loop().time() < 60

    run(scenario())
