# SPDX-License-Identifier: Apache-2.0
"""Writes into the target cluster: positions of groups, checkpoints of MirrorMaker 2, and the journal.

A position is committed as a client that is no member does it, so the coordinator refuses it while the group has
members: a member that joins between the look and the write is never overwritten.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from consumerd.client.new_topic import NewTopic
from consumerd.client.opening import ClusterAccess, make_simple_consumer, run_producer
from consumerd.client.partitioner import hash_murmur2
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topic_admin import TopicAdmin
from consumerd.cluster.view import Broker
from consumerd.errors import ConfigError, UnsupportedVersion
from consumerd.mirror.checkpoint import Checkpoint, encode_checkpoint, name_checkpoints_topic
from consumerd.mirror.journal import CutoverEntry, JournalKey, decode_entry, encode_entry, encode_journal_key
from consumerd.model import TopicPartition
from consumerd.offsets.commit_metadata import parse_metadata
from consumerd.offsets.opening import open_kafka_writer
from consumerd.wire.compression import Codec
from consumerd.wire.errorcodes import ErrorCode

RETENTION_MS: Final = 90 * 24 * 3600 * 1000
"""Time for which brokers keep a position that no member has committed yet.

With their own setting, seven days by default, a group that starts later would begin at ``auto.offset.reset``.
"""
_PATIENCE_S: Final = 15.0
_CHECKPOINT_CONFIGS: Final = {"cleanup.policy": "compact"}
_MOST_REPLICAS: Final = 3
"""Replication factor for brokers before 2.4, which cannot be asked for their default; with fewer brokers, all."""
_LONGEST_BATCH: Final = 16 << 20


class TargetWriter:
    """Writes into the target cluster, while the block of :func:`open_target_writer` runs.

    Args:
        positions_topic: Topic of the mirror's positions, which has the journal, too.
    """

    def __init__(self, target: ClusterAccess, producer: Producer, positions_topic: str) -> None:
        self._target = target
        self._producer = producer
        self._topic = positions_topic

    # -- positions

    async def commit(self, group: str, positions: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit a group's positions with their metadata.

        Raises OffsetError if the coordinator refuses them, such as while the group has members; CoordinationError.
        """
        writer = open_kafka_writer(self._target.cluster, group, patience_s=_PATIENCE_S)
        texts = {one: (offset, carry_metadata(text)) for one, (offset, text) in positions.items()}
        await writer.write_translated(texts, retention_ms=RETENTION_MS)

    # -- checkpoints

    async def write_checkpoints(self, alias: str, checkpoints: Sequence[Checkpoint]) -> None:
        """Write checkpoints, so that Java programs can look up the translated positions.

        The topic is created if it does not exist.

        Args:
            alias: Name of the source cluster, as programs give it to ``RemoteClusterUtils``.

        Raises ConfigError if the topic cannot be created; ProduceError.
        """
        topic = name_checkpoints_topic(alias)
        await self._create(topic)
        deliveries = []
        for one in checkpoints:
            key, value = encode_checkpoint(one)
            deliveries.append(await self._producer.enqueue(topic, value, key=key, partition=0))
        for delivery in deliveries:
            await delivery

    async def _create(self, topic: str) -> None:
        if topic in await self._target.topics.list_topics():
            return
        admin = TopicAdmin(self._target.pool, self._target.directory, random=random.random)
        new = NewTopic(name=topic, partitions=1, configs=_CHECKPOINT_CONFIGS)
        try:
            failure = (await admin.create_topics([new]))[topic]
        except UnsupportedVersion:
            brokers = len(self._target.directory.view.brokers)
            new = NewTopic(
                name=topic,
                partitions=1,
                replication_factor=min(_MOST_REPLICAS, brokers),
                configs=_CHECKPOINT_CONFIGS,
            )
            failure = (await admin.create_topics([new]))[topic]
        if failure is not None and failure.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise ConfigError(
                f"topic {topic} for checkpoints cannot be created in the target: {failure}. Create it with one "
                "partition and cleanup.policy=compact, or give --no-checkpoints"
            )

    # -- journal

    async def note(self, key: JournalKey, entry: CutoverEntry) -> None:
        """Write a group's journal entry. Raises ProduceError."""
        await self._producer.send(self._topic, encode_entry(entry), key=encode_journal_key(key))

    async def find_entry(self, key: JournalKey) -> CutoverEntry | None:
        """Return a group's last journal entry; None if there is none.

        Records of the mirror's open transactions do not hide it: the journal is written without transactions.

        Raises CorruptMessageError, BrokerError, ConnectionLost.
        """
        wanted = encode_journal_key(key)
        self._target.directory.follow({self._topic})
        view = await self._target.directory.refresh("the journal is read")
        count = len(view.topics[self._topic].partitions)
        partition = TopicPartition.modern(self._topic, hash_murmur2(None, wanted) % count)
        log = (await self._target.ranges.read([partition]))[partition]
        consumer = make_simple_consumer(self._target, max_message_bytes=_LONGEST_BATCH)
        position, found = log.earliest, None
        while position < log.latest:
            batch = (await consumer.fetch(partition, position)).batch
            for record_key, value in zip(batch.keys(), batch.values(), strict=True):
                if record_key == wanted:
                    found = value
            if batch.next_offset == position:
                break
            position = batch.next_offset
        return None if found is None else decode_entry(found)


def carry_metadata(text: str) -> str:
    """Return the metadata with which a translated position is committed.

    The text of an application is kept. That of consumerd names the topic of the source, so it is left out.
    """
    return "" if parse_metadata(text) is not None else text


@asynccontextmanager
async def open_target_writer(target: ClusterAccess, positions_topic: str) -> AsyncIterator[TargetWriter]:
    """Make what writes into the target, while the block runs."""
    settings = ProducerSettings(codec=Codec.GZIP, enable_idempotence=True, max_block_s=_PATIENCE_S)

    def brokers() -> Collection[Broker]:
        return target.directory.view.brokers.values()

    async with run_producer(target.pool, brokers, settings=settings) as producer:
        yield TargetWriter(target, producer, positions_topic)
