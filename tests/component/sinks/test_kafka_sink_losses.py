# SPDX-License-Identifier: Apache-2.0
"""The sink ``kafka`` before a target that changes: its topic begins anew, its positions topic gets more partitions."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.topic_admin import TopicAdmin
from consumerd.mirror.positions import DEFAULT_TOPIC, make_target_directory
from consumerd.mirror.positions_topic import PARTITIONS
from consumerd.model import TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.kafka.writer import KafkaWriter
from tests.component.sinks.test_kafka_sink import create, offsets
from tests.support.claims import StubClaim
from tests.support.embedded import EmbeddedThread
from tests.support.mirroring import MirrorRig, P, numbers, open_mirror, read_committed

pytestmark = pytest.mark.records


async def test_a_target_whose_log_begins_anew_is_mirrored_into_with_a_new_map(tmp_path: Path) -> None:
    """Its offsets are lower than those of the map, which cannot grow downwards."""
    with EmbeddedThread(tmp_path, None) as broker:
        await create(broker, "orders")
        async with open_mirror(broker.bootstrap) as rig:
            writer = await rig.open()
            await writer.write(numbers(0, 50))
            assert 50 == await writer.flush()
            await writer.abandon()
    for log in tmp_path.rglob("orders-0"):
        shutil.rmtree(log)
    with EmbeddedThread(tmp_path, None) as broker:
        async with open_mirror(broker.bootstrap) as rig:
            writer = await rig.open()
            assert 50 == writer.resume_position
            await writer.write(numbers(50, 70))
            assert 70 == await writer.flush()
            state = await rig.find()
            assert state is not None
            translation = state.offset_map()
            assert list(range(20)) == [translation.translate(number).offset for number in range(50, 70)]
            assert 50 == translation.translate_back(0).offset
        assert list(range(50, 70)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def test_a_partition_without_records_stores_its_start_once(tmp_path: Path) -> None:
    """With the target's end at that time: nothing that is there already is a copy, and what comes is behind it."""
    with EmbeddedThread(tmp_path, None) as broker:
        await create(broker, "orders")
        broker.produce("orders", b"k\tothers\n" * 3)
        async with open_mirror(broker.bootstrap) as rig:
            writer = await rig.sink.open(StubClaim(P))
            await writer.start(Start(position=40, reason="committed"))
            assert writer.deadline() == rig.clock() + 1.0
            assert await rig.find() is None
            assert 40 == await writer.flush()
            state = await rig.find()
            assert state is not None
            assert (40, 3) == (state.stored.source, state.stored.target)
            assert (3, 40) == (state.offset_map().translate(40).offset, state.offset_map().translate_back(3).offset)
            assert writer.deadline() is None

            stored = await rig.open()
            assert (40, None) == (stored.resume_position, stored.deadline())
            await stored.write(numbers(40, 50))
            assert 50 == await stored.flush()
            state = await rig.find()
            assert state is not None
            assert [3, 4, 12] == [state.offset_map().translate(one).offset for one in (40, 41, 49)]
            await stored.abandon()


async def test_a_start_is_stored_anew_for_another_topic_of_the_target(tmp_path: Path) -> None:
    """Else a group would be sent to the topic that nothing is mirrored into any more."""
    with EmbeddedThread(tmp_path, None) as broker:
        await create(broker, "orders")
        await create(broker, "new.orders")
        async with open_mirror(broker.bootstrap) as rig:
            writer = await rig.open()
            await writer.write(numbers(0, 50))
            assert 50 == await writer.flush()
        async with open_mirror(broker.bootstrap, topic="new.{topic}") as rig:
            writer = await rig.open()
            assert 50 == writer.resume_position
            assert 50 == await writer.flush()
            state = await rig.find()
            assert state is not None
            assert ("new.orders", 50, 0) == (state.stored.target_topic, state.stored.source, state.stored.target)
            assert 0 == state.offset_map().translate(50).offset


async def test_positions_are_found_by_members_that_know_other_numbers_of_partitions(tmp_path: Path) -> None:
    """Partitions were added to the positions topic while one member ran: the other must not begin again."""
    sources = [TopicPartition.modern("orders", number) for number in range(8)]
    with EmbeddedThread(tmp_path, None) as broker:
        await create(broker, "orders", len(sources))
        async with open_mirror(broker.bootstrap) as early, open_mirror(broker.bootstrap) as late:
            await early.sink.check()
            await add_partitions(broker, DEFAULT_TOPIC, 2 * PARTITIONS)
            await late.sink.check()
            for number, source in enumerate(sources):
                first, second = (early, late) if number % 2 else (late, early)
                writer = await open_at(first, source)
                await writer.write(numbers(0, 10, source))
                assert 10 == await writer.flush()
                await writer.abandon()
                assert 10 == (await open_at(second, source)).resume_position, source


async def open_at(rig: MirrorRig, source: TopicPartition) -> KafkaWriter:
    writer = await rig.sink.open(StubClaim(source))
    await writer.start(Start(position=writer.resume_position or 0, reason="committed"))
    return writer


async def add_partitions(broker: EmbeddedThread, topic: str, total: int) -> None:
    async with open_cluster(ClusterAddress(bootstrap=broker.bootstrap, client_id="test"), wait_s=None) as cluster:
        admin = TopicAdmin(cluster.pool, make_target_directory(cluster), random=random.random)
        assert {topic: None} == await admin.add_partitions({topic: total})
