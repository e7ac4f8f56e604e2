# SPDX-License-Identifier: Apache-2.0
"""librdkafka, by way of confluent-kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, Record, Row, describe_group


class LibrdkafkaMember:
    """A member of a group, by librdkafka."""

    def __init__(self, bootstrap: str, group: str, topic: str, name: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[int]:
        """See Member."""
        found = self._consumer.consume(1000, timeout=0.1)
        for one in found:
            if one.error():
                raise KafkaException(one.error())
        return [int(one.value() or b"") for one in found]

    def assigned(self) -> set[int]:
        """See Member."""
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        """See Member."""
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        """See Member."""
        self._consumer.close()


class Librdkafka(ForeignClient):
    """confluent-kafka's producer, consumer and admin client."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "log_level": "0"}
        self._bootstrap = bootstrap
        self._admin = AdminClient(self._settings)

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> list[int]:
        """See ForeignClient."""
        return self._send(topic, records, {"compression.codec": codec, "acks": acks, "linger.ms": "20"})

    def produce_idempotently(self, topic: str, records: Sequence[Record]) -> list[int]:
        """See ForeignClient."""
        return self._send(topic, records, {"enable.idempotence": "true", "message.timeout.ms": "5000"})

    def _send(self, topic: str, records: Sequence[Record], settings: Mapping[str, str]) -> list[int]:
        failures: list[Any] = []
        producer = Producer({**self._settings, **settings, "error_cb": failures.append})
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(-1 if message.offset() is None else message.offset())

        for one in records:
            producer.produce(
                topic,
                one.value,
                one.key,
                partition=0,
                on_delivery=delivered,
                timestamp=one.timestamp_ms or 0,
                headers=list(one.headers),
            )
        left = producer.flush(PATIENCE_S)
        if failures:
            raise KafkaException(failures[0])
        if left:
            raise TimeoutError(f"{left} records of {topic} were not acknowledged")
        return offsets

    @contextlib.contextmanager
    def _consumer(self, group: str = "none", **settings: str) -> Iterator[Consumer]:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer({**self._settings, "group.id": group, "enable.auto.commit": False, **named})
        try:
            yield consumer
        finally:
            consumer.close()

    def _take(self, consumer: Consumer) -> Any:
        found = consumer.consume(1, timeout=PATIENCE_S)
        if not found:
            raise TimeoutError("no record came")
        if found[0].error():
            raise KafkaException(found[0].error())
        return found[0]

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """See ForeignClient."""
        rows: dict[str, list[Row]] = {topic: [] for topic in counts}
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0, 0) for topic in counts])
            for _ in range(sum(counts.values())):
                one = self._take(consumer)
                kind, timestamp_ms = one.timestamp()
                rows[one.topic()].append(
                    Row(
                        offset=one.offset(),
                        key=one.key(),
                        value=one.value(),
                        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
                        headers=tuple(one.headers() or ()),
                    )
                )
        return rows

    def offsets(self, topic: str) -> list[int]:
        """See ForeignClient."""
        with self._consumer() as consumer:
            return list(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S))

    def offsets_at(self, topic: str, times_ms: Sequence[int]) -> list[list[int] | None]:
        """See ForeignClient."""
        found: list[list[int] | None] = []
        with self._consumer() as consumer:
            for time in times_ms:
                (one,) = consumer.offsets_for_times([TopicPartition(topic, 0, time)], timeout=PATIENCE_S)
                # it gives the offset alone, and the end where nothing is so late
                found.append([one.offset])
        return found

    def first_after_reset(self, topic: str, offset: int) -> int:
        """See ForeignClient."""
        with self._consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0, offset)])
            return int(self._take(consumer).offset())

    def metadata(self, topic: str) -> Answer:
        """See ForeignClient."""
        found = self._admin.list_topics(topic, timeout=PATIENCE_S)
        return {
            "brokers": sorted([one.id, one.host] for one in found.brokers.values()),
            "controller": found.controller_id,
            "partitions": sorted(
                [one.id, one.leader, one.replicas, one.isrs] for one in found.topics[topic].partitions.values()
            ),
        }

    def join(self, group: str, topic: str, name: str) -> Member:
        """See ForeignClient."""
        return LibrdkafkaMember(self._bootstrap, group, topic, name)

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """See ForeignClient."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(partitions)])
        (answer,) = self._admin.list_consumer_group_offsets([asked]).values()
        return {one.partition: one.offset for one in answer.result(PATIENCE_S).topic_partitions}

    def describe(self, group: str, topic: str) -> Answer:
        """See ForeignClient."""
        found = self._admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
        members = [
            (
                one.client_id,
                one.host,
                [here.partition for here in one.assignment.topic_partitions if here.topic == topic],
            )
            for one in found.members
        ]
        return describe_group(found.state.name, found.partition_assignor, members)

    def groups(self) -> list[str]:
        """See ForeignClient."""
        return [one.group_id for one in self._admin.list_consumer_groups().result(PATIENCE_S).valid]

    def create_topic(self, topic: str, partitions: int) -> None:
        """See ForeignClient."""
        self._admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=10)[topic].result(PATIENCE_S)
