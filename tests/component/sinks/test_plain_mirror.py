# SPDX-License-Identifier: Apache-2.0
"""The sink ``kafka`` without transactions: each record at least once, on brokers of each record format."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from consumerd.client.opening import open_simple_consumer
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.errors import ConfigError, PermanentSinkError, RetriableSinkError
from consumerd.mirror.provenance import HEADER, RecordOrigin, find_origin, open_envelope
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.kafka.plain_writer import PlainWriter
from consumerd.wire.records import Record, RecordBatch
from tests.support.claims import StubClaim
from tests.support.mirroring import MirrorRig, P, numbers, open_mirror
from tests.support.record_batches import build_batch, record

pytestmark = [pytest.mark.records, pytest.mark.timeout(120)]

OLD = ("0.8.2", "0.9", "0.10")
"""Releases without headers and transactions."""
TARGET = TopicPartition.modern("orders", 0)


@asynccontextmanager
async def target(release: str) -> AsyncIterator[EmbeddedCluster]:
    make = partial(BrokerSettings, as_release=release)
    without = release == "4.0"
    async with EmbeddedCluster(without_zookeeper=without, make_broker=make, topics={"orders": 1}) as cluster:
        yield cluster


@pytest.fixture(params=[*OLD, "1.1", "4.0"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    async with target(request.param) as running:
        yield running


@pytest.fixture
async def newest() -> AsyncIterator[EmbeddedCluster]:
    async with target("4.0") as running:
        yield running


async def open_writer(rig: MirrorRig, partition: TopicPartition = P, truncation: int = 0) -> PlainWriter:
    writer = await rig.sink.open(StubClaim(partition))
    assert isinstance(writer, PlainWriter)
    start = Start(position=writer.resume_position or 0, reason="committed", truncation=truncation)
    await writer.start(start)
    return writer


async def write_until_taken(writer: PlainWriter, batch: RecordBatch) -> int:
    """Make the same call again and again, as the pipeline does; connections to a broker that was away have a backoff."""
    while True:
        with contextlib.suppress(RetriableSinkError):
            return await writer.write(batch)


async def read(cluster: EmbeddedCluster) -> list[Record]:
    found: list[Record] = []
    async with open_simple_consumer(cluster.bootstrap) as consumer:
        while True:
            batch = (await consumer.fetch(TARGET, found[-1].offset + 1 if found else 0)).batch
            if not len(batch):
                return found
            found += batch.records()


def unwrap(one: Record) -> tuple[RecordOrigin, bytes]:
    """Return a record's origin and value, from its header or its envelope."""
    if one.headers:
        origin = find_origin(one.headers)
        assert origin is not None
        return origin, one.value or b""
    return open_envelope(one.value or b"")


async def offsets(cluster: EmbeddedCluster) -> list[int]:
    return [unwrap(one)[0].offset for one in await read(cluster)]


async def test_records_carry_their_origin_and_a_successor_goes_on_behind_the_last(cluster: EmbeddedCluster) -> None:
    """Nothing but the target is asked where to go on."""
    async with open_mirror(cluster.bootstrap, delivery="at-least-once", batch_bytes=2000) as rig:
        writer = await open_writer(rig)
        assert writer.resume_position is None
        assert 60 == await writer.write(numbers(0, 60))
        assert (60, None) == (await writer.flush(), writer.deadline())
        writer = await open_writer(rig)
        assert writer.resume_position == 60
        assert 100 == await writer.write(numbers(60, 100))
        await writer.abandon()
    found = [unwrap(one) for one in await read(cluster)]
    assert list(range(100)) == [int(value) for _, value in found]
    wanted = RecordOrigin("2-1700000000000", "orders", "0", "7", 99, 100)
    assert wanted == found[-1][0]


async def test_batch_that_is_written_again_is_passed_over(newest: EmbeddedCluster) -> None:
    """The pipeline repeats a call that has failed half-way."""
    async with open_mirror(newest.bootstrap, delivery="at-least-once", batch_bytes=1000) as rig:
        writer = await open_writer(rig)
        await writer.write(numbers(0, 30))
        assert 50 == await writer.write(numbers(0, 50))
        assert 50 == await writer.write(numbers(20, 50))
    assert list(range(50)) == await offsets(newest)


async def test_headers_keys_nulls_and_times_are_kept(newest: EmbeddedCluster) -> None:
    """The origin is one header more, behind the others."""
    rows = [
        record(0, b"v", key=b"k", headers=(("a", b"1"), ("a", None)), timestamp=5),
        record(1, None, key=b"k", timestamp=6),
    ]
    async with open_mirror(newest.bootstrap, delivery="at-least-once") as rig:
        await (await open_writer(rig)).write(build_batch(P, rows))
    first, second = await read(newest)
    assert (b"k", b"v", 5) == (first.key, first.value, first.timestamp)
    assert (("a", b"1"), ("a", None)) == first.headers[:2]
    assert [HEADER] == [name for name, _ in first.headers[2:]]
    assert (b"k", None, 6) == (second.key, second.value, second.timestamp)


async def test_old_target_gets_nulls_as_nulls_and_refuses_headers() -> None:
    """Compaction goes by null values; and headers are not lost without the policy's word."""
    async with target("0.10") as cluster:
        async with open_mirror(cluster.bootstrap, delivery="at-least-once") as rig:
            writer = await open_writer(rig)
            rows = [record(0, b"v"), record(1, None, key=b"k"), record(2, b"w", headers=(("a", b"1"),))]
            with pytest.raises(PermanentSinkError, match=r"headers, which brokers before 0\.11") as refused:
                await writer.write(build_batch(P, rows))
            assert refused.value.refused == 2
            assert 2 == await writer.write(build_batch(P, rows[:2]))
        assert [False, True] == [one.value is None for one in await read(cluster)]


@pytest.mark.parametrize("release", ["0.10", "4.0"])
async def test_kafka_0_7_is_refused_and_neither_refusal_sends_back_to_the_other(release: str) -> None:
    """The places of its partitions are stored in transactions, which a target before 0.11 does not have."""
    legacy = TopicPartition("orders", PartitionKey(0, BrokerId(0)))
    async with target(release) as cluster:
        async with open_mirror(cluster.bootstrap, delivery="at-least-once") as rig:
            with pytest.raises(
                RetriableSinkError, match=r"orders/0-0 is of Kafka 0\.6 or 0\.7.*exactly-once, and mirror to .* 0\.11"
            ):
                await rig.sink.open(StubClaim(legacy))
        if release in OLD:
            async with open_mirror(cluster.bootstrap, request_timeout_ms=3000) as rig:
                with pytest.raises(ConfigError, match=r"at-least-once.*not for topics of Kafka 0\.6 and 0\.7"):
                    await rig.sink.check()
        assert not await read(cluster)


async def test_record_that_the_target_refuses_is_found(newest: EmbeddedCluster) -> None:
    """The others of its part are written once."""
    rows = [record(offset, b"x" * (2_000_000 if offset == 7 else 5)) for offset in range(12)]
    async with open_mirror(newest.bootstrap, delivery="at-least-once", batch_bytes=8 << 20) as rig:
        writer = await open_writer(rig)
        batch = build_batch(P, rows)
        with pytest.raises(PermanentSinkError, match=r"max\.message\.bytes") as refused:
            await writer.write(batch)
        assert refused.value.refused == 7
        assert writer.finished_position == 7
        left = build_batch(P, [one for one in rows if one.offset != 7], start=0)
        assert 12 == await writer.write(left)
    assert [offset for offset in range(12) if offset != 7] == await offsets(newest)


async def test_topic_that_was_made_again_begins_anew(newest: EmbeddedCluster) -> None:
    """Offsets of the former topic mean nothing in it; those of a truncated log do."""
    async with open_mirror(newest.bootstrap, delivery="at-least-once") as rig:
        await (await open_writer(rig, truncation=2)).write(numbers(0, 10))
        writer = await rig.sink.open(StubClaim(P))
        assert isinstance(writer, PlainWriter)
        assert (10, 2) == (writer.resume_position, writer.truncation)
        claim = StubClaim(P)
        claim.incarnation = claim.incarnation.__class__(8)
        again = await rig.sink.open(claim)
        assert again.resume_position is None


async def test_target_that_is_away_is_told(newest: EmbeddedCluster) -> None:
    """Nothing is dropped, and the same call may be made again."""
    async with open_mirror(newest.bootstrap, delivery="at-least-once", request_timeout_ms=500) as rig:
        writer = await open_writer(rig)
        await newest.stop_broker()
        with pytest.raises(RetriableSinkError, match=r"sink new: .*no acknowledgement within"):
            await writer.write(numbers(0, 5))
        await newest.start_broker()
        assert 5 == await write_until_taken(writer, numbers(0, 5))
    assert list(range(5)) == sorted({*await offsets(newest)})


@pytest.mark.parametrize("release", OLD)
async def test_old_target_names_the_setting(release: str) -> None:
    """Exactly once cannot be had there, and nothing is weakened silently."""
    async with target(release) as cluster, open_mirror(cluster.bootstrap, request_timeout_ms=3000) as rig:
        with pytest.raises(ConfigError, match="delivery: at-least-once"):
            await rig.sink.open(StubClaim(P))
