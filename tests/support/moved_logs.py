# SPDX-License-Identifier: Apache-2.0
"""Logs of a source that are hard to translate, and which record a group at any position reads next.

Each value is there once, so records of source and target can be compared by content.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.kafka import Cluster, Sent
from tests.support.ledger import send_all
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

Record: TypeAlias = tuple[Any, ...]
"""Key, value, headers and timestamp."""
_WAIT_S: Final = 60


def consumer_of(cluster: Cluster) -> Consumer:
    """Return librdkafka's consumer, for committed records."""
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )


def read_range(cluster: Cluster, topic: str) -> tuple[int, int]:
    """Return log start offset and high watermark of partition 0."""
    consumer = consumer_of(cluster)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_WAIT_S)
        return int(low), int(high)
    finally:
        consumer.close()


def read_all(cluster: Cluster, topic: str) -> dict[int, Record]:
    """Return the committed records of partition 0 by offset."""
    low, _ = read_range(cluster, topic)
    consumer = consumer_of(cluster)
    found: dict[int, Record] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, low)])
        while (message := consumer.poll(_WAIT_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            assert error is None, error
            found[message.offset() or 0] = (message.key(), message.value(), message.headers(), message.timestamp())
        raise TimeoutError(topic)
    finally:
        consumer.close()


def create_topics(cluster: Cluster, topics: Mapping[str, dict[str, str]]) -> None:
    """Create topics of one partition with their configs, without a Java process for each."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = [NewTopic(topic, 1, 1, config=configs) for topic, configs in topics.items()]
    for created in admin.create_topics(new).values():
        created.result(_WAIT_S)
    for topic in topics:
        cluster.wait_topic(topic, 1)


def create_again(cluster: Cluster, topic: str) -> None:
    """Delete a topic, and create it again under its name."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result(_WAIT_S)
    with open_registry(cluster.zookeeper) as registry:
        wait_until(lambda: not registry.client.exists(f"/brokers/topics/{topic}"), f"{topic} is deleted", _WAIT_S)
    create_topics(cluster, {topic: {}})


def fill(cluster: Cluster, topic: str, transactions: int, stem: str = "") -> None:
    """Write transactions of one to eight records, of which each third is aborted, the last one, too."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-{stem}"})
    producer.init_transactions(_WAIT_S)
    dice = random.Random(transactions)
    for transaction in range(transactions - transactions % 3):
        producer.begin_transaction()
        for number in range(dice.randint(1, 8)):
            value = f"{stem}{transaction}-{number}".encode()
            producer.produce(topic, value, b"k%d" % number, partition=0, headers=[("n", b"%d" % number)])
        if transaction % 3 == 2:
            producer.flush(_WAIT_S)
            producer.abort_transaction(_WAIT_S)
        else:
            producer.commit_transaction(_WAIT_S)


def fill_with_holes(cluster: Cluster, topic: str) -> None:
    """Write the same keys over and over into a compacted topic, until some offsets are gone, and let it be then."""
    for turn in range(12):
        keys = [b"k%d" % (one % (4 + turn)) for one in range(15)]
        rows = [(key, b"%d-%d-%s" % (turn, one, key * 20)) for one, key in enumerate(keys)]
        send_all(cluster.bootstrap, [Sent(topic, 0, key, value) for key, value in rows])
    wait_until(lambda: len(read_all(cluster, topic)) < 100, "records are compacted away", 90)
    cluster.configure_topic(topic, cleanup_policy="delete")


def fill_and_expire(cluster: Cluster, topic: str) -> None:
    """Write records, of which retention deletes the first ones."""
    for turn in range(5):
        send_all(cluster.bootstrap, [Sent(topic, 0, None, b"%d-%d" % (turn, one) + b"x" * 100) for one in range(8)])
    assert 0 < cluster.expire(topic) < 40


def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    """Move the log start of partition 0 to an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        deleted.result(_WAIT_S)
    wait_until(lambda: read_range(cluster, topic)[0] == offset, f"{topic} begins at {offset}", _WAIT_S)


class MovedLog:
    """Partition 0 of a topic in the source, and its copy.

    Args:
        records: committed records of the source by offset, also those that it has deleted since they were mirrored.
        start: log start offset of the source.
        end: its high watermark.
        copies: committed records that the target has, by offset.
    """

    def __init__(self, records: Mapping[int, Record], start: int, end: int, copies: Mapping[int, Record]) -> None:
        self.records = records
        self.start = start
        self.end = end
        self.copies = copies
        self._offsets = sorted(records)
        self._targets = sorted(copies)
        self._kept = {repr(one) for one in copies.values()}

    def find_next(self, position: int) -> int | None:
        """Return the offset of the record that a group of the source at a position has to read next; None at the end.

        Where both clusters have deleted it, it is the first one that the target has. Raises LookupError where it is in
        the source only.
        """
        offset = self._find(position)
        if offset is None or self._is_kept(offset):
            return offset
        present = self._find(max(position, self.start))
        if present is not None and not self._is_kept(present):
            raise LookupError(f"the target has deleted {present}")
        return next(one for one in self._offsets if self._is_kept(one))

    def find_copy(self, target: int) -> Record | None:
        """Return the record that a reader at an offset of the target reads next."""
        at = bisect_left(self._targets, target)
        return self.copies[self._targets[at]] if at < len(self._targets) else None

    def find_edges(self) -> list[int]:
        """Return begin and end of the log, and of each of its holes, and where the target begins."""
        first = next(one for one in self._offsets if self._is_kept(one))
        beside = {at for one in self._offsets for at in (one, one + 1) if at not in self.records}
        around = {one + by for one in (self.start, first) for by in (-1, 0, 1)}
        return sorted(one for one in {0, self.end, *beside, *around} if 0 <= one <= self.end)

    def _find(self, position: int) -> int | None:
        at = bisect_left(self._offsets, position)
        return self._offsets[at] if at < len(self._offsets) else None

    def _is_kept(self, offset: int) -> bool:
        return repr(self.records[offset]) in self._kept


def read_committed_positions(cluster: Cluster, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
    """Return the positions of groups by topic and partition, as Kafka's coordinator tells them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = {}
    for group in groups:
        (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        lines = future.result(_WAIT_S).topic_partitions
        found[group] = {(one.topic, one.partition): one.offset for one in lines if one.error is None}
    return found
