# SPDX-License-Identifier: Apache-2.0
"""Connectors on the embedded cluster: groups of programs, over real sockets and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.api import (
    Blacklist,
    ConfigError,
    ConnectorSettings,
    ConsumerConnector,
    ConsumerRecord,
    CoordinationError,
    CorruptMessageError,
    LocalProtocolError,
    MessageStream,
    Whitelist,
    open_producer,
    read_connector_settings,
)
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.model import TopicPartition
from consumerd.zk.layout import offset_path, owner_path
from tests.support.damage import flip_byte
from tests.support.record_batches import build_batch
from tests.support.record_batches import record as make_record
from tests.support.waiting import until
from tests.support.zookeeper import make_client

pytestmark = [pytest.mark.records, pytest.mark.timeout(120)]

GROUP = "programs"
Place = tuple[str, int, int]


def settings_of(cluster: EmbeddedCluster, **sections: Mapping[str, object]) -> ConnectorSettings:
    given: dict[str, dict[str, object]] = {
        "cluster": {"zookeeper": cluster.zookeeper},
        "group": {"id": GROUP, "session_timeout_ms": 6000},
        "offsets": {"commit_interval_ms": 200},
        "rebalance": {"settle_ms": 50},
        "fetch": {"max_wait_ms": 100},
    }
    for name, section in sections.items():
        given.setdefault(name, {}).update(section)
    return read_connector_settings(given)


async def produce(cluster: EmbeddedCluster, topic: str, partitions: int, numbers: Iterable[int]) -> set[Place]:
    async with open_producer(cluster.bootstrap) as producer:
        sent = [
            await producer.enqueue(topic, b"value-%d" % number, key=b"k", partition=number % partitions)
            for number in numbers
        ]
        return {(topic, where.partition, where.offset or 0) for where in [await one for one in sent]}


def place_of(record: ConsumerRecord) -> Place:
    return record.topic, record.partition, record.offset


async def take(stream: MessageStream, count: int) -> list[ConsumerRecord]:
    records = []
    async with timeout(30):
        async for record in stream:
            records.append(record)
            if len(records) == count:
                break
    return records


async def committed(cluster: EmbeddedCluster, topic: str, partitions: int) -> list[int | None]:
    async with make_client(cluster.zookeeper) as zk:
        await zk.wait_connected()
        found = [await zk.find(offset_path(GROUP, TopicPartition.modern(topic, one))) for one in range(partitions)]
    return [None if one is None else int(one[0]) for one in found]


async def owners(cluster: EmbeddedCluster, topic: str, partitions: int) -> list[str | None]:
    async with make_client(cluster.zookeeper) as zk:
        await zk.wait_connected()
        found = [await zk.find(owner_path(GROUP, TopicPartition.modern(topic, one))) for one in range(partitions)]
    return [None if one is None else one[0].decode() for one in found]


async def test_each_record_comes_once_and_the_next_program_goes_on_behind_the_last() -> None:
    """Two streams share the partitions; what was finished when the first program ended does not come again."""
    async with EmbeddedCluster(topics={"orders": 4}) as cluster:
        sent = await produce(cluster, "orders", 4, range(400))
        seen: list[list[ConsumerRecord]] = [[], []]
        done = asyncio.Event()

        async def consume(number: int, stream: MessageStream) -> None:
            async for record in stream:
                seen[number].append(record)
                if sum(map(len, seen)) == 400:
                    done.set()

        async with ConsumerConnector(settings_of(cluster)) as connector, asyncio.TaskGroup() as tasks:
            streams = await connector.create_message_streams({"orders": 2})
            for number, stream in enumerate(streams["orders"]):
                tasks.create_task(consume(number, stream))
            await done.wait()
            await connector.shutdown()

        assert sorted(sent) == sorted(place_of(record) for one in seen for record in one)
        shares = [{record.partition for record in one} for one in seen]
        assert [2, 2] == [len(share) for share in shares]
        assert {0, 1, 2, 3} == shares[0] | shares[1]
        assert seen[0][0].value is not None
        assert b"k" == seen[0][0].key
        assert [100] * 4 == await committed(cluster, "orders", 4)
        assert [None] * 4 == await owners(cluster, "orders", 4)

        later = await produce(cluster, "orders", 4, range(8))
        async with ConsumerConnector(settings_of(cluster)) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            assert sorted(later) == sorted(place_of(record) for record in await take(stream, 8))
        assert [102] * 4 == await committed(cluster, "orders", 4)


async def test_without_auto_commit_only_the_program_commits() -> None:
    """Not the interval, not the end of the program."""
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        await produce(cluster, "orders", 1, range(30))
        manual = settings_of(cluster, offsets={"auto_commit": False})
        async with ConsumerConnector(manual) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            await take(stream, 10)
            await connector.commit_offsets()
            assert [10] == await committed(cluster, "orders", 1)
            await take(stream, 10)
        assert [10] == await committed(cluster, "orders", 1)

        async with ConsumerConnector(manual) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            assert [10, 11] == [record.offset for record in await take(stream, 2)]


async def test_a_program_that_fails_does_not_commit_the_record_that_it_failed_with() -> None:
    """The block ends with an error: the record in hand comes again."""
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        await produce(cluster, "orders", 1, range(10))
        with pytest.raises(ZeroDivisionError):
            async with ConsumerConnector(settings_of(cluster)) as connector:
                (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
                async with timeout(30):
                    async for record in stream:
                        _ = 1 // (record.offset - 4)
        assert [4] == await committed(cluster, "orders", 1)


def test_batches_are_columns_and_arrow() -> None:
    """Whole batches, each finished when the next one is asked for."""
    # the first conversion loads libraries, for seconds on a busy machine, in which the session would end
    build_batch(TopicPartition.modern("orders", 0), [make_record(0, value=b"v")]).to_arrow()
    asyncio.run(_read_batches())


async def _read_batches() -> None:
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        await produce(cluster, "orders", 1, range(100))
        values: list[object] = []
        async with ConsumerConnector(settings_of(cluster)) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            async with timeout(30):
                async for batch in stream.batches():
                    values += batch.to_arrow().column("value").to_pylist()
                    if len(values) == 100:
                        break
        assert [b"value-%d" % number for number in range(100)] == values
        assert [100] == await committed(cluster, "orders", 1)


async def test_filters_find_topics_and_leave_some_out() -> None:
    """Also one that is created later."""
    async with EmbeddedCluster(topics={"eu-a": 1, "eu-b": 1, "us": 1}) as cluster:
        for topic in ("eu-a", "eu-b", "us"):
            await produce(cluster, topic, 1, range(3))
        async with ConsumerConnector(settings_of(cluster)) as connector:
            (stream,) = await connector.create_message_streams_by_filter(Whitelist("eu-.*"))
            assert {"eu-a": 3, "eu-b": 3} == Counter(record.topic for record in await take(stream, 6))
            await cluster.broker.create_topic("eu-c", 1)
            await produce(cluster, "eu-c", 1, range(2))
            assert {"eu-c": 2} == Counter(record.topic for record in await take(stream, 2))
        other = settings_of(cluster, group={"id": "others"})
        async with ConsumerConnector(other) as connector:
            streams = await connector.create_message_streams_by_filter(Blacklist("eu-.*"), 2)
            assert 2 == len(streams)
            found = [await take_any(streams, 3)]
            assert {"us": 3} == Counter(record.topic for record in found[0])


async def take_any(streams: Iterable[MessageStream], count: int) -> list[ConsumerRecord]:
    """Take records from whichever stream has them."""
    records: list[ConsumerRecord] = []
    enough = asyncio.Event()

    async def read(stream: MessageStream) -> None:
        async for record in stream:
            records.append(record)
            if len(records) >= count:
                enough.set()

    async with timeout(30), asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(read(stream)) for stream in streams]
        await enough.wait()
        for task in reading:
            task.cancel()
    return records


@asynccontextmanager
async def reading(cluster: EmbeddedCluster, seen: list[Place]) -> AsyncIterator[ConsumerConnector]:
    """Run a program of the group that notes each record."""

    async def consume(stream: MessageStream) -> None:
        async for record in stream:
            seen.append(place_of(record))
            await asyncio.sleep(0.001)  # as long as some work takes

    async with ConsumerConnector(settings_of(cluster)) as connector, asyncio.TaskGroup() as tasks:
        (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
        tasks.create_task(consume(stream))
        yield connector
        await connector.shutdown()


async def test_programs_that_come_and_go_hand_over_without_a_record_twice() -> None:
    """Each record once while nobody is killed: in a rebalance, the position after the record in hand is committed."""
    async with EmbeddedCluster(topics={"orders": 6}) as cluster:
        sent = await produce(cluster, "orders", 6, range(3000))
        first: list[Place] = []
        second: list[Place] = []
        third: list[Place] = []
        async with reading(cluster, first):
            await until(lambda: len(first) > 300)
            async with reading(cluster, second):
                await until(lambda: len(second) > 100)
                async with reading(cluster, third):
                    await until(lambda: len(third) > 100)
                await until(lambda: len(second) > 300)
            await until(lambda: len(first) + len(second) + len(third) >= len(sent), within_s=40)

        counts = Counter([*first, *second, *third])
        assert {} == {place: count for place, count in counts.items() if count > 1}
        assert sent == set(counts)


PROGRAM = """
import asyncio, sys
from consumerd.api import ConsumerConnector, read_connector_settings

async def main():
    settings = read_connector_settings({
        "cluster": {"zookeeper": sys.argv[1]},
        "group": {"id": "programs", "session_timeout_ms": 4000},
        "offsets": {"commit_interval_ms": 200},
    })
    async with ConsumerConnector(settings) as connector:
        streams = await connector.create_message_streams({"orders": 1})
        async for record in streams["orders"][0]:
            print(record.topic, record.partition, record.offset, flush=True)
            await asyncio.sleep(0.002)

asyncio.run(main())
"""


async def test_records_of_a_killed_program_come_to_the_others() -> None:
    """Nothing is left out, and only what the killed one had not committed comes twice."""
    async with EmbeddedCluster(topics={"orders": 4}) as cluster:
        sent = await produce(cluster, "orders", 4, range(1200))
        killed: list[Place] = []
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, cluster.zookeeper, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            async with timeout(30):
                while len(killed) < 100:
                    killed.append(_parse(await child.stdout.readline()))
        finally:
            child.send_signal(signal.SIGKILL)
            rest = await child.stdout.read()
            await child.wait()
        killed += [_parse(line) for line in rest.splitlines() if line.count(b" ") == 2]
        before = await committed(cluster, "orders", 4)
        seen: list[Place] = []
        async with reading(cluster, seen):
            await until(lambda: sent == {*seen, *killed}, within_s=40)

        counts = Counter(seen)
        assert {} == {place: count for place, count in counts.items() if count > 1}
        twice = set(killed) & set(seen)
        assert all(offset >= (before[partition] or 0) for _, partition, offset in twice)


def _parse(line: bytes) -> Place:
    topic, partition, offset = line.decode().split()
    return topic, int(partition), int(offset)


async def test_a_cancelled_program_leaves_the_group() -> None:
    """Ctrl-C is a cancellation: the next owner need not wait for the session's end."""
    async with EmbeddedCluster(topics={"orders": 2}) as cluster:
        await produce(cluster, "orders", 2, range(10))
        got = asyncio.Event()

        async def program() -> None:
            async with ConsumerConnector(settings_of(cluster)) as connector:
                (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
                async for _ in stream:
                    got.set()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(program())
            await got.wait()
            assert None not in await owners(cluster, "orders", 2)
            task.cancel()
        assert [None, None] == await owners(cluster, "orders", 2)


async def test_a_corrupt_record_ends_the_stream_with_its_error(tmp_path: Path) -> None:
    """By name, after the records before it; with the policy ``skip`` it is passed over."""
    async with EmbeddedCluster(tmp_path, topics={"orders": 1}) as cluster:
        for number in range(3):  # a batch each
            await produce(cluster, "orders", 1, [number])
        await cluster.stop_broker()
        (log,) = (tmp_path / "logs" / "orders-0").glob("*.log")
        flip_byte(log, b"value-1")
        await cluster.start_broker()

        async with ConsumerConnector(settings_of(cluster)) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            assert [0] == [record.offset for record in await take(stream, 1)]
            with pytest.raises(CorruptMessageError, match="orders/0"):
                await take(stream, 1)
            assert [] == [record async for record in stream]
        assert [1] == await committed(cluster, "orders", 1)

        async with ConsumerConnector(settings_of(cluster, fetch={"on_corrupt": "skip"})) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            assert [2] == [record.offset for record in await take(stream, 1)]


async def test_streams_are_created_once() -> None:
    """A member registers one subscription."""
    async with EmbeddedCluster(topics={"orders": 1}) as cluster, ConsumerConnector(settings_of(cluster)) as connector:
        await connector.create_message_streams({"orders": 1})
        with pytest.raises(LocalProtocolError, match="created once"):
            await connector.create_message_streams({"orders": 1})


async def test_a_zookeeper_that_does_not_answer_is_an_error() -> None:
    """A daemon waits; a program wants to know."""
    settings = read_connector_settings(
        {"cluster": {"zookeeper": "127.0.0.1:1", "connect_timeout_ms": 300}, "group": {"id": GROUP}}
    )
    with pytest.raises(CoordinationError, match=r"127\.0\.0\.1:1"):
        async with ConsumerConnector(settings):
            pass


def test_settings_are_checked_in_our_words() -> None:
    """All mistakes at once."""
    with pytest.raises(ConfigError) as refused:
        read_connector_settings(
            {
                "group": {"id": "a b", "streams": 2},
                "fetch": {"max_wait": 3, "on_corrupt": "quarantine"},
                "offsets": {"auto_commit": False},
            }
        )
    text = str(refused.value)
    assert "cluster.zookeeper: missing" in text
    assert "fetch.max_wait" in text
    assert "group.id" in text
