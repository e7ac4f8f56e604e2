# SPDX-License-Identifier: Apache-2.0
"""The sink ``kafka`` with an embedded target; librdkafka reads what is committed there."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.new_topic import NewTopic
from consumerd.client.partitioner import hash_murmur2
from consumerd.client.topic_admin import TopicAdmin
from consumerd.errors import ConfigError, OwnershipLost, PermanentSinkError, RetriableSinkError
from consumerd.mirror.offset_map import NotMirrored
from consumerd.mirror.positions import make_target_directory
from consumerd.model import BrokerId, Gap, GapReason, Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.kafka.writer import KafkaWriter
from consumerd.wire.records import empty_batch
from tests.support.claims import StubClaim
from tests.support.embedded import EmbeddedThread
from tests.support.mirroring import MirrorRig, P, Seen, numbers, open_mirror, read_committed
from tests.support.record_batches import build_batch, record

pytestmark = pytest.mark.records


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path, None) as running:
        asyncio.run(create(running, "orders"))
        yield running


async def create(broker: EmbeddedThread, topic: str, partitions: int = 1, **configs: str) -> None:
    async with open_cluster(ClusterAddress(bootstrap=broker.bootstrap, client_id="test"), wait_s=None) as cluster:
        admin = TopicAdmin(cluster.pool, make_target_directory(cluster), random=random.random)
        new = NewTopic(
            name=topic,
            partitions=partitions,
            replication_factor=1,
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
        assert {topic: None} == await admin.create_topics([new])


def offsets(seen: list[Seen]) -> list[int]:
    return [int(one.value or b"-1") for one in seen]


async def test_a_flush_is_a_transaction_with_records_position_and_map(broker: EmbeddedThread) -> None:
    """Nothing of it is visible before, and all of it afterwards."""
    async with open_mirror(broker.bootstrap) as rig:
        writer = await rig.open()
        assert writer.resume_position is None
        assert 0 == await writer.write(numbers(0, 10))
        assert 0 == await writer.write(numbers(10, 25))
        assert [] == await asyncio.to_thread(read_committed, broker.bootstrap, "orders")
        assert await rig.find() is None
        assert writer.deadline() == rig.clock() + 1.0
        assert 25 == await writer.flush()
        assert writer.deadline() is None
        assert list(range(25)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))
        await writer.write(numbers(25, 30))
        assert 30 == await writer.flush()
        state = await rig.find()
        assert state is not None
        assert (30, 31) == (state.stored.source, state.stored.target)  # a marker lies between the transactions
        translated = [state.offset_map().translate(position).offset for position in (0, 24, 25, 30)]
        assert [0, 24, 26, 31] == translated
        await writer.abandon()
        assert 0 == rig.charged

        again = await rig.sink.open(StubClaim(P))
        assert 30 == again.resume_position
        await again.start(Start(position=30, reason="resumed"))
        await again.write(numbers(30, 31))
        await again.flush()
    seen = await asyncio.to_thread(read_committed, broker.bootstrap, "orders")
    assert list(range(31)) == offsets(seen)
    assert [1000 + offset for offset in range(31)] == [one.timestamp for one in seen]


async def test_every_part_of_a_record_is_kept(broker: EmbeddedThread) -> None:
    """Key, value, headers and timestamp, and what is missing of them."""
    headers = (("a", b"1"), ("a", None), ("\N{SNOWMAN}", b""))
    rows = [
        record(3, b"value", key=b"key", timestamp=5, headers=headers),
        record(4, None, key=b"tombstone", timestamp=7),
        record(6, b"", key=b"", timestamp=6),
        record(9, b"none"),
    ]
    gaps = (Gap(5, 6, GapReason.COMPACTION), Gap(7, 9, GapReason.CONTROL))
    for compression in ("none", "gzip", "snappy", "lz4"):
        topic = f"parts-{compression}-orders"
        await create(broker, topic)
        async with open_mirror(
            broker.bootstrap,
            topic=f"parts-{compression}-{{topic}}",
            compression=compression,
            positions_topic=topic[:-1],
        ) as rig:
            writer = await rig.sink.open(StubClaim(P))
            await writer.start(Start(position=3, reason="committed"))
            await writer.write(build_batch(P, rows, gaps=gaps))
            assert 10 == await writer.flush()
        assert [
            Seen(0, b"key", b"value", headers, 5),
            Seen(1, b"tombstone", None, (), 7),
            Seen(2, b"", b"", (), 6),
            Seen(3, None, b"none", (), -1),
        ] == await asyncio.to_thread(read_committed, broker.bootstrap, topic)


async def test_large_batches_are_cut_and_small_ones_put_together(broker: EmbeddedThread) -> None:
    """In order, and with an exact map, wherever the cuts are."""
    async with open_mirror(broker.bootstrap, batch_bytes=1000) as rig:
        writer = await rig.open()
        start = 0
        for count in (1, 2, 300, 5, 70, 1):
            await writer.write(numbers(start, start + count, size=random.Random(count).choice((8, 100, 2000))))
            start += count
            await writer.write(empty_batch(P, start, start + 3, (Gap(start, start + 3, GapReason.COMPACTION),)))
            start += 3
        assert start == await writer.flush()
        state = await rig.find()
        assert state is not None
    seen = await asyncio.to_thread(read_committed, broker.bootstrap, "orders")
    translation = state.offset_map()
    assert 379 == len(seen)
    assert [one.offset for one in seen] == [translation.translate(offset).offset for offset in offsets(seen)]


async def test_a_stalled_predecessor_is_fenced_and_its_records_are_never_visible(broker: EmbeddedThread) -> None:
    """The successor fences it before it reads the position, so that nothing can be committed in between."""
    async with open_mirror(broker.bootstrap) as old, open_mirror(broker.bootstrap) as new:
        claim = StubClaim(P)
        first = await old.open(claim)
        await first.write(numbers(0, 10))
        await first.flush()
        await first.write(numbers(10, 20))
        second = await new.open()
        assert 10 == second.resume_position
        # it does not know yet that its claim is gone, as after a stall between the check and the commit
        with pytest.raises(RetriableSinkError, match="fenced") as caught:
            await first.flush()
        assert 10 == caught.value.resume_position
        with pytest.raises(RetriableSinkError, match="fenced") as caught:
            await second.write(numbers(10, 12))
            await second.flush()
        assert 10 == caught.value.resume_position
        claim.failure = OwnershipLost("gone")
        await second.write(numbers(10, 15))
        assert 15 == await second.flush()
        with pytest.raises(OwnershipLost):
            await first.write(numbers(10, 30))
            await first.flush()
    assert list(range(15)) == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def test_operators_request_moves_the_mirror_once(broker: EmbeddedThread) -> None:
    """Backwards records are mirrored again, and the map begins anew; a crash before the commit repeats nothing."""
    async with open_mirror(broker.bootstrap) as rig:
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        await writer.flush()
        await writer.abandon()

        moved = Start(position=4, reason="requested", new_chain=True, request_id="request-1")
        writer = await rig.sink.open(StubClaim(P))
        await writer.start(moved)
        await writer.abandon()
        writer = await rig.sink.open(StubClaim(P))
        assert (4, "request-1") == (writer.resume_position, writer.request_id)
        await writer.start(moved)
        await writer.write(numbers(4, 6))
        await writer.flush()
        await writer.start(moved)  # done already
        state = await rig.find()
        assert state is not None
        assert 6 == state.stored.source
        assert state.offset_map().translate_back(state.offset_map().translate(4).offset).offset == 4
    assert [*range(10), 4, 5] == offsets(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def test_another_topic_of_the_name_is_another_log(broker: EmbeddedThread) -> None:
    """Its offsets mean other records; so do those after a truncation."""
    async with open_mirror(broker.bootstrap) as rig:
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        await writer.flush()
        await writer.abandon()

        later = StubClaim(P, incarnation=Incarnation(9))
        writer = await rig.sink.open(later)
        assert (None, True) == (writer.resume_position, writer.has_earlier_topic)
        await writer.start(Start(position=0, reason="new incarnation", new_chain=True))
        await writer.write(numbers(0, 3))
        await writer.flush()
        await writer.abandon()

        writer = await rig.sink.open(later)
        assert (3, 0, False) == (writer.resume_position, writer.truncation, writer.has_earlier_topic)
        await writer.start(Start(position=1, reason="truncated", new_chain=True, truncation=1))
        await writer.write(numbers(1, 2))
        await writer.flush()
        await writer.abandon()
        writer = await rig.sink.open(later)
        assert (2, 1) == (writer.resume_position, writer.truncation)


async def test_refused_record_is_found_and_the_others_are_mirrored(broker: EmbeddedThread) -> None:
    """Too large for the target's topic: the policy decides, and nothing else is lost or repeated."""
    await create(broker, "small-orders", max_message_bytes="3000")
    async with open_mirror(broker.bootstrap, topic="small-{topic}") as rig:
        writer = await rig.open()
        rows = [record(offset, b"%d" % offset if offset != 37 else b"x" * 4000) for offset in range(60)]
        whole = build_batch(P, rows)
        await writer.write(numbers(0, 5))
        await writer.write(whole)
        with pytest.raises(RetriableSinkError, match=r"error 10 .* max.message.bytes") as caught:
            await writer.flush()
        assert 0 == caught.value.resume_position
        with pytest.raises(PermanentSinkError, match=r"about 40\d\d bytes") as refused:
            await writer.write(whole)
        assert 37 == refused.value.refused
        await writer.write(whole.without(37, GapReason.SKIPPED))
        assert 60 == await writer.flush()
    seen = await asyncio.to_thread(read_committed, broker.bootstrap, "small-orders")
    assert [offset for offset in range(60) if offset != 37] == offsets(seen)


async def test_missing_topics_and_partitions_are_told(broker: EmbeddedThread) -> None:
    """With what to do; and a topic of positions that brokers would delete from is refused at the start."""
    async with open_mirror(broker.bootstrap, topic="absent-{topic}") as rig:
        with pytest.raises(RetriableSinkError, match="the target has no topic absent-orders"):
            await rig.sink.open(StubClaim(P))
    async with open_mirror(broker.bootstrap) as rig:
        with pytest.raises(RetriableSinkError, match=r"topic orders of the target has 1 partitions.*partition 1"):
            await rig.sink.open(StubClaim(TopicPartition.modern("orders", 1)))
    async with open_mirror(broker.bootstrap, positions_topic="orders") as rig:
        with pytest.raises(ConfigError, match=r"cleanup\.policy"):
            await rig.sink.check()
    async with open_mirror("127.0.0.1:1", request_timeout_ms=300) as rig:
        with pytest.raises(RetriableSinkError, match=r"sink new: 127.0.0.1:1: "):
            await rig.sink.check()


async def test_messages_of_kafka_0_7_share_offsets_and_are_mapped(broker: EmbeddedThread) -> None:
    """All records of a compressed message have its offset; a map's run is a whole message."""
    legacy = TopicPartition("orders", PartitionKey(0, BrokerId(0)))
    rows = [record(40 * message, b"%d" % (40 * message), index=index) for message in range(20) for index in range(5)]
    following = [40 * message + 40 for message in range(20) for _ in range(5)]
    batch = build_batch(legacy, rows, next_offsets=following, next_offset=800)
    async with open_mirror(broker.bootstrap, batch_bytes=70) as rig:
        writer = await rig.sink.open(StubClaim(legacy))
        await writer.start(Start(position=0, reason="committed"))
        await writer.write(batch)
        assert 800 == await writer.flush()
        state = await rig.find(legacy)
        assert state is not None
        assert [0, 5, 95, 100] == [state.offset_map().translate(position).offset for position in (0, 40, 760, 800)]
    assert 100 == len(await asyncio.to_thread(read_committed, broker.bootstrap, "orders"))


async def open_again(rig: MirrorRig, source: TopicPartition) -> KafkaWriter:
    """Open a partition, as often as another member comes between."""
    for _ in range(10):
        with contextlib.suppress(RetriableSinkError):
            return await rig.sink.open(StubClaim(source))
    raise AssertionError(f"{source} cannot be opened")


async def test_partitions_of_kafka_0_7_get_the_next_target_partition_for_good(broker: EmbeddedThread) -> None:
    """Whichever member sees them first, also at the same time."""
    await create(broker, "four-orders", 4)
    sources = [TopicPartition("orders", PartitionKey(number, BrokerId(one))) for one in (0, 1) for number in (0, 1)]
    options = {"topic": "four-{topic}", "positions_topic": "four-positions"}
    async with open_mirror(broker.bootstrap, **options) as one, open_mirror(broker.bootstrap, **options) as other:
        await one.sink.check()

        async def mirror(rig: MirrorRig, source: TopicPartition) -> None:
            writer = await open_again(rig, source)
            await writer.start(Start(position=0, reason="committed"))
            await writer.write(build_batch(source, [record(0, str(source).encode())]))
            await writer.flush()
            await writer.abandon()

        async with asyncio.TaskGroup() as tasks:
            for number, source in enumerate(sources[:3]):
                tasks.create_task(mirror((one, other)[number % 2], source))
        await mirror(other, sources[3])
    seen = [await asyncio.to_thread(read_committed, broker.bootstrap, "four-orders", number) for number in range(4)]
    assert {str(source).encode() for source in sources} == {records[0].value for records in seen}
    assert seen[3][0].value == b"orders/1-1"


async def test_records_are_distributed_by_key_as_javas_producer_does(broker: EmbeddedThread) -> None:
    """In the order of each key; there is a position, and no map."""
    await create(broker, "hashed-orders", 3)
    rows = [
        record(offset, b"%d" % offset, key=None if offset % 5 == 0 else b"%d" % (offset % 7)) for offset in range(300)
    ]
    async with open_mirror(broker.bootstrap, topic="hashed-{topic}", partitioner="key", batch_bytes=500) as rig:
        writer = await rig.sink.open(StubClaim(TopicPartition.modern("orders", 4)))
        await writer.start(Start(position=0, reason="committed"))
        await writer.write(build_batch(TopicPartition.modern("orders", 4), rows))
        assert 300 == await writer.flush()
        state = await rig.find(TopicPartition.modern("orders", 4))
        assert state is not None
        assert 300 == state.stored.source
        with pytest.raises(NotMirrored):
            state.offset_map()
    for number in range(3):
        expected = [one.value for one in rows if (4 if one.key is None else hash_murmur2(None, one.key)) % 3 == number]
        assert expected == [
            one.value for one in await asyncio.to_thread(read_committed, broker.bootstrap, "hashed-orders", number)
        ]


async def test_much_memory_is_sent_before_the_flush(broker: EmbeddedThread) -> None:
    """A writer keeps records only while all writers together hold little."""
    async with open_mirror(broker.bootstrap) as rig:
        rig.sink.target.charge(40 << 20)
        writer = await rig.open()
        await writer.write(numbers(0, 100))
        assert 40 << 20 == rig.charged
        assert 100 == await writer.flush()
        rig.sink.target.charge(-(40 << 20))
