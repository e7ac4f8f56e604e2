# SPDX-License-Identifier: Apache-2.0
"""The reader of a mirror's positions topic, against the embedded broker."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.new_topic import NewTopic
from consumerd.client.opening import open_producer
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topic_admin import TopicAdmin
from consumerd.errors import ConfigError, NotFound
from consumerd.mirror.positions import MirrorPositions, make_target_directory, open_mirror_positions
from consumerd.mirror.positions_topic import PARTITIONS, check_positions_topic, create_positions_topic
from consumerd.mirror.records import (
    AssignmentKey,
    PositionKey,
    SegmentKey,
    SourceLog,
    StoredAssignment,
    StoredPosition,
    encode_assignment,
    encode_key,
    encode_position,
)
from consumerd.mirror.runs import Run
from consumerd.mirror.segment import encode_segment
from tests.support.embedded import EmbeddedThread

TOPIC = "positions"


@pytest.fixture
def broker(tmp_path: Path) -> AsyncIterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path, None) as running:
        yield running


def log_of(name: str) -> SourceLog:
    return SourceLog("cluster", "group", "orders", name, "7")


def address_of(broker: EmbeddedThread) -> ClusterAddress:
    return ClusterAddress(bootstrap=broker.bootstrap, client_id="test")


@asynccontextmanager
async def admin_of(broker: EmbeddedThread) -> AsyncIterator[TopicAdmin]:
    async with open_cluster(address_of(broker), wait_s=None) as cluster:
        yield TopicAdmin(cluster.pool, make_target_directory(cluster), random=random.random)


async def create(broker: EmbeddedThread, topic: str = TOPIC) -> None:
    async with admin_of(broker) as admin:
        await create_positions_topic(admin, topic, brokers=1)
        await check_positions_topic(admin, topic)


@asynccontextmanager
async def transactional(broker: EmbeddedThread, name: str) -> AsyncIterator[Producer]:
    async with open_producer(broker.bootstrap, settings=ProducerSettings(transactional_id=name)) as producer:
        await producer.init_transactions()
        yield producer


async def store(producer: Producer, log: SourceLog, source: int, segments: dict[int, bytes] | None = None) -> None:
    stored = StoredPosition(
        source=source,
        target=source,
        target_topic="orders",
        target_partition=0,
        last_segment=max(segments or {-1: b""}),
    )
    for number, data in (segments or {}).items():
        await producer.send(TOPIC, data, key=encode_key(SegmentKey(log, number)), partition=3)
    await producer.send(TOPIC, encode_position(stored), key=encode_key(PositionKey(log)), partition=3)


def position(positions: MirrorPositions, log: SourceLog) -> int | None:
    state = positions.find(log)
    return None if state is None else state.stored.source


async def test_topic_is_created_compacted_and_another_one_is_refused(broker: EmbeddedThread) -> None:
    """Brokers would delete positions from a topic that is not compacted."""
    await create(broker)
    await create(broker)
    async with admin_of(broker) as admin:
        other = NewTopic(name="other", partitions=1, replication_factor=1, configs={"cleanup.policy": "delete"})
        assert {"other": None} == await admin.create_topics([other])
        with pytest.raises(ConfigError, match=r"topic other .* cleanup.policy=delete"):
            await check_positions_topic(admin, "other")
    async with open_mirror_positions(address_of(broker), TOPIC) as positions:
        await positions.refresh()
        assert positions.partition_count == PARTITIONS
        assert [] == positions.list()
    async with open_mirror_positions(address_of(broker), "absent") as positions:
        with pytest.raises(NotFound, match="absent"):
            await positions.refresh()


async def test_committed_positions_are_read_and_aborted_ones_never(broker: EmbeddedThread) -> None:
    """Also those behind an open transaction of another producer, which a reader of committed records would wait for."""
    await create(broker)
    a, b, c = map(log_of, "012")
    async with (
        open_mirror_positions(address_of(broker), TOPIC) as positions,
        transactional(broker, "a") as first,
        transactional(broker, "b") as second,
    ):
        first.begin_transaction()
        await store(first, a, 10)
        await first.commit_transaction()
        first.begin_transaction()
        await store(first, a, 20)  # stays open: it holds back the last stable offset
        for source in (5, 6):
            second.begin_transaction()
            await store(second, b, source)
            await second.commit_transaction()
        second.begin_transaction()
        await store(second, b, 7)
        await second.abort_transaction()
        await positions.refresh(marks=True)
        assert (10, 6, None) == tuple(position(positions, log) for log in (a, b, c))

        await first.abort_transaction()
        await positions.refresh(marks=True)
        assert (10, 6) == (position(positions, a), position(positions, b))

        first.begin_transaction()
        await store(first, a, 30)
        await store(first, c, 1)
        await first.commit_transaction()
        await positions.refresh(marks=True)
        assert (30, 6, 1) == tuple(position(positions, log) for log in (a, b, c))
        assert [a, b, c] == positions.list()

    async with open_mirror_positions(address_of(broker), TOPIC) as positions:
        await positions.refresh()
        assert (30, 6, 1) == tuple(position(positions, log) for log in (a, b, c))


async def test_maps_and_assignments_come_with_their_positions(broker: EmbeddedThread) -> None:
    """Translation of any position, without a sink."""
    await create(broker)
    log = log_of("0-1")
    key = AssignmentKey(log.source)
    segments = {
        number: encode_segment([Run(first, first + 10, 2 * first, 10)], counts_bytes=False)
        for number, first in enumerate((100, 200, 300))
    }
    assigned = StoredAssignment(target_topic="orders", target_partition=4)
    async with open_mirror_positions(address_of(broker), TOPIC) as positions, transactional(broker, "a") as producer:
        for stop in (1, 3):
            producer.begin_transaction()
            await store(producer, log, 310, dict(list(segments.items())[:stop]))
            await producer.send(TOPIC, encode_assignment(assigned), key=encode_key(key), partition=0)
            await producer.commit_transaction()
            await positions.refresh()
            state = positions.find(log)
            assert state is not None
            assert list(range(stop)) == list(state.segments)
            assert [200, 400, 600][:stop] == list(state.target_starts)
            assert 205 == state.offset_map().translate(105).offset
            assert {key: assigned} == positions.assignments()
