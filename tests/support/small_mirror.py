# SPDX-License-Identifier: Apache-2.0
"""A mirror in miniature: copies partitions into a target, with positions and offset maps, in real transactions.

It is for tests of what reads a mirror's records. Each transaction has some records of one partition, the segments that
have changed and the position, as :mod:`consumerd.mirror.records` has them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.admin.positions import read_cluster
from consumerd.client.new_topic import NewTopic
from consumerd.client.opening import make_simple_consumer, open_access, open_producer
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.client.topic_admin import TopicAdmin
from consumerd.mirror.offset_map import MapWriter, count_removable
from consumerd.mirror.positions import DEFAULT_TOPIC, make_target_directory
from consumerd.mirror.positions_topic import create_positions_topic
from consumerd.mirror.records import PositionKey, SegmentKey, SourceLog, StoredPosition, encode_key, encode_position
from consumerd.mirror.runs import find_runs
from consumerd.mirror.segment import MOST_RUNS, read_starts
from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch

GROUP: Final = "mirror"


@dataclass
class _State:
    """Positions of one partition."""

    source: int
    writer: MapWriter
    goal: TopicPartition
    target: int = 0
    first_segment: int = 0
    starts: list[int] = field(default_factory=list)
    """First target offset of each segment, from the first one on."""

    def note_segment(self, number: int, data: bytes) -> None:
        """Note a segment that was written."""
        del self.starts[number - self.first_segment :]
        self.starts.append(read_starts(data)[1])

    @property
    def stored(self) -> StoredPosition:
        """What is stored of it."""
        return StoredPosition(
            source=self.source,
            target=self.target,
            target_topic=self.goal.topic,
            target_partition=self.goal.partition.number,
            first_segment=self.first_segment,
            last_segment=self.first_segment + len(self.starts) - 1,
        )


class SmallMirror:
    """Copies partitions, each to the partition of the same number and topic.

    Args:
        source: address of the source.
        bootstrap: brokers of the target.
        per_transaction: number of records in a transaction.
        most_runs: number of runs of a full segment of the map.
    """

    def __init__(
        self, source: ClusterAddress, bootstrap: str, *, per_transaction: int = 7, most_runs: int = MOST_RUNS
    ) -> None:
        self._source = source
        self._bootstrap = bootstrap
        self._per_transaction = per_transaction
        self._most_runs = most_runs
        self._states: dict[SourceLog, _State] = {}

    def create_topics(self, topics: Mapping[str, int], **configs: str) -> None:
        """Create topics in the target, by partition count, and that of the positions."""
        asyncio.run(self._create(topics, {name.replace("_", "."): value for name, value in configs.items()}))

    async def _create(self, topics: Mapping[str, int], configs: Mapping[str, str]) -> None:
        address = ClusterAddress(bootstrap=self._bootstrap, client_id="small-mirror")
        async with open_cluster(address, wait_s=None) as cluster:
            admin = TopicAdmin(cluster.pool, make_target_directory(cluster), random=random.random)
            await create_positions_topic(admin, DEFAULT_TOPIC, brokers=1, replication_factor=1)
            made = await admin.create_topics(
                [
                    NewTopic(name=name, partitions=count, replication_factor=1, configs=configs)
                    for name, count in topics.items()
                ]
            )
            if any(made.values()):
                raise AssertionError(made)

    def copy(
        self, topic: str, partitions: int = 1, *, begin: int = 0, until: int | None = None, target: str = ""
    ) -> None:
        """Copy what is new of a topic's partitions.

        Args:
            begin: source offset at which a partition begins that was not copied before.
            until: source offset before which to stop; None for all that is there.
            target: topic of the target; empty for the same name.
        """
        asyncio.run(
            self._copy([TopicPartition.modern(topic, one) for one in range(partitions)], begin, until, target or topic)
        )

    def skip(self, topic: str, source: int) -> None:
        """Go on at a later offset in partition 0, as an operator may ask for."""
        self._find_state(topic)[1].source = source

    def _find_state(self, topic: str) -> tuple[SourceLog, _State]:
        """Return the newest log of partition 0 of a topic."""
        found = [one for one in self._states.items() if one[0][2:4] == (topic, "0")]
        return found[-1]

    def thin(self, topic: str, log_start: int) -> int:
        """Remove what the target has deleted from the map of partition 0, as a mirror does; return how many segments.

        Args:
            log_start: log start offset of the target partition.
        """
        log, state = self._find_state(topic)
        removed = count_removable(state.starts, log_start)
        numbers = range(state.first_segment, state.first_segment + removed)
        del state.starts[:removed]
        state.first_segment += removed
        asyncio.run(self._remove(log, state, numbers))
        return removed

    async def _remove(self, log: SourceLog, state: _State, numbers: Sequence[int]) -> None:
        settings = ProducerSettings(transactional_id=f"small-mirror-{log.topic}-thin")
        async with open_producer(self._bootstrap, settings=settings) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            for number in numbers:
                await producer.enqueue(DEFAULT_TOPIC, None, key=encode_key(SegmentKey(log, number)), partition=0)
            await _store_position(log, state, producer)
            await producer.commit_transaction()

    async def _copy(self, partitions: Sequence[TopicPartition], begin: int, until: int | None, target: str) -> None:
        settings = ProducerSettings(transactional_id=f"small-mirror-{partitions[0]}")
        async with (
            open_cluster(self._source, wait_s=30.0, await_broker=True) as cluster,
            open_access(cluster, read_committed=True) as access,
            open_producer(self._bootstrap, settings=settings) as producer,
        ):
            access.directory.follow({partitions[0].topic})
            await access.directory.refresh("a test copies")
            await producer.init_transactions()
            consumer = make_simple_consumer(access, max_message_bytes=1 << 24, read_committed=True)
            incarnation = (await access.topics.find_incarnations({partitions[0].topic}))[partitions[0].topic]
            cluster_id, logs = await read_cluster(access), await access.ranges.read(partitions)
            for one in partitions:
                log = SourceLog(cluster_id, GROUP, one.topic, str(one.partition), str(incarnation))
                if (state := self._states.get(log)) is None:
                    writer = MapWriter(counts_bytes=False, most_runs=self._most_runs)
                    goal = TopicPartition.modern(target, one.partition.number)
                    state = self._states[log] = _State(max(begin, logs[one].earliest), writer, goal)
                end = logs[one].latest if until is None else min(until, logs[one].latest)
                await self._copy_partition(one, log, state, end, consumer, producer)

    async def _copy_partition(
        self,
        partition: TopicPartition,
        log: SourceLog,
        state: _State,
        end: int,
        consumer: SimpleConsumer,
        producer: Producer,
    ) -> None:
        position = state.source
        while position < end:
            batch = (await consumer.fetch(partition, position)).batch.slice_to(end)
            for first in range(0, len(batch), self._per_transaction):
                await self._write(
                    batch.rows(first, min(first + self._per_transaction, len(batch))), log, state, producer
                )
            if batch.next_offset <= position:
                return
            position = batch.next_offset

    async def _write(self, batch: RecordBatch, log: SourceLog, state: _State, producer: Producer) -> None:
        producer.begin_transaction()
        deliveries = [
            await producer.enqueue(
                state.goal.topic,
                record.value,
                key=record.key,
                partition=state.goal.partition.number,
                headers=record.headers,
                timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
            )
            for record in batch.records()
        ]
        await producer.flush()
        start = (await deliveries[0]).offset
        assert start is not None, "brokers tell the offset of what they acknowledge"
        following = [offset + 1 for offset in batch.offsets]
        state.writer.add(find_runs(list(batch.offsets), following, start, counts_bytes=False))
        for number, data in state.writer.take_changed().items():
            await producer.enqueue(DEFAULT_TOPIC, data, key=encode_key(SegmentKey(log, number)), partition=0)
            state.note_segment(number, data)
        state.source, state.target = following[-1], start + len(deliveries)
        await _store_position(log, state, producer)
        await producer.commit_transaction()


async def _store_position(log: SourceLog, state: _State, producer: Producer) -> None:
    key, value = encode_key(PositionKey(log)), encode_position(state.stored)
    await producer.enqueue(DEFAULT_TOPIC, value, key=key, partition=0)
