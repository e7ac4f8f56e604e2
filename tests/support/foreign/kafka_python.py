# SPDX-License-Identifier: Apache-2.0
"""kafka-python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import kafka
import kafka.admin
import kafka.errors

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, Part, Record, Row, describe_group
from tests.support.waiting import wait_until


class KafkaPythonMember:
    """A member of a group, by kafka-python. ``settings`` go before those here."""

    def __init__(self, bootstrap: str, group: str, topic: str, name: str, **settings: Any) -> None:
        self._consumer = kafka.KafkaConsumer(
            topic,
            **{
                "bootstrap_servers": bootstrap,
                "group_id": group,
                "client_id": name,
                "auto_offset_reset": "earliest",
                "enable_auto_commit": False,
                "session_timeout_ms": 6000,
                "heartbeat_interval_ms": 200,
                "max_poll_interval_ms": 6000,  # brokers before 0.10.1 have but one timeout
                **settings,
            },
        )

    def poll(self) -> list[int]:
        """See Member."""
        found = self._consumer.poll(timeout_ms=100)
        # its release 3.0 forgets a join that ends between two polls: no partitions, no heartbeats, for good
        coordinator = self._consumer._coordinator
        if coordinator._join_task is not None and coordinator._join_task.is_done:
            coordinator.request_rejoin()
        return [int(record.value) for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        """See Member."""
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        """See Member."""
        self._consumer.commit()

    def close(self) -> None:
        """See Member."""
        self._consumer.close(autocommit=False)


class KafkaPython(ForeignClient):
    """kafka-python's producer, consumer and admin client.

    ``api_version`` tells it what a broker is that cannot be asked for versions, whose records have no headers and times.
    """

    name = "kafka-python"
    lacks = frozenset({Part.NULL_HEADERS})

    def __init__(self, bootstrap: str, api_version: tuple[int, ...] | None = None) -> None:
        if api_version is not None:
            self.lacks = frozenset({Part.NULL_HEADERS, Part.HEADERS, Part.TIMES})
        self._bootstrap = bootstrap
        self._version = {} if api_version is None else {"api_version": api_version}
        self._shared: Any = None

    def close(self) -> None:
        """See ForeignClient."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _admin(self) -> Any:
        if self._shared is None:
            self._shared = kafka.admin.KafkaAdminClient(bootstrap_servers=self._bootstrap)
        return self._shared

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> list[int]:
        """See ForeignClient."""
        settings = {"compression_type": None if codec == "none" else codec, "enable_idempotence": False}
        return self._send(topic, records, acks=acks if acks == "all" else int(acks), **settings)

    def produce_idempotently(self, topic: str, records: Sequence[Record]) -> list[int]:
        """See ForeignClient."""
        return self._send(topic, records, enable_idempotence=True)

    def _send(self, topic: str, records: Sequence[Record], **settings: Any) -> list[int]:
        producer = kafka.KafkaProducer(bootstrap_servers=self._bootstrap, **self._version, **settings)
        try:
            sent = [
                producer.send(
                    topic,
                    one.value,
                    key=one.key,
                    headers=list(one.headers),
                    partition=0,
                    timestamp_ms=one.timestamp_ms,
                )
                for one in records
            ]
            return [future.get(PATIENCE_S).offset for future in sent]
        finally:
            producer.close(PATIENCE_S)

    def write_values(self, topic: str, values: Sequence[bytes], partitions: int) -> None:
        """Write values, in turn to each partition, and wait until they are acknowledged."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=False, **self._version
        )
        try:
            sent = [producer.send(topic, value, partition=n % partitions) for n, value in enumerate(values)]
            for future in sent:
                future.get(PATIENCE_S)
        finally:
            producer.close(PATIENCE_S)

    def wait_served(self, partitions: Mapping[str, int]) -> None:
        """Wait until all partitions of these topics are served."""
        consumer = self._consumer()
        here = [kafka.TopicPartition(topic, one) for topic, count in partitions.items() for one in range(count)]

        def served() -> bool:
            try:
                return len(consumer.beginning_offsets(here, timeout_ms=5000)) == len(here)
            except (KeyError, kafka.errors.KafkaError):  # not of all, and not yet
                return False

        try:
            wait_until(served, f"{', '.join(partitions)} are served", PATIENCE_S)
        finally:
            consumer.close()

    def _consumer(self) -> Any:
        return kafka.KafkaConsumer(
            **{
                "bootstrap_servers": self._bootstrap,
                "group_id": None,
                "auto_offset_reset": "earliest",
                "consumer_timeout_ms": 1000 * PATIENCE_S,
                **self._version,
            }
        )

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """See ForeignClient."""
        consumer = self._consumer()
        try:
            consumer.assign([kafka.TopicPartition(topic, 0) for topic in counts])
            rows: dict[str, list[Row]] = {topic: [] for topic in counts}
            for _ in range(sum(counts.values())):
                one = next(consumer)
                rows[one.topic].append(
                    Row(
                        offset=one.offset,
                        key=one.key,
                        value=one.value,
                        timestamp_ms=one.timestamp,
                        headers=tuple(one.headers),
                    )
                )
            return rows
        finally:
            consumer.close()

    def offsets(self, topic: str) -> list[int]:
        """See ForeignClient."""
        consumer, here = self._consumer(), kafka.TopicPartition(topic, 0)
        try:
            return [consumer.beginning_offsets([here])[here], consumer.end_offsets([here])[here]]
        finally:
            consumer.close()

    def offsets_at(self, topic: str, times_ms: Sequence[int]) -> list[list[int] | None]:
        """See ForeignClient."""
        consumer, here = self._consumer(), kafka.TopicPartition(topic, 0)
        try:
            found = [consumer.offsets_for_times({here: time})[here] for time in times_ms]
        finally:
            consumer.close()
        return [None if one is None else [one.offset, one.timestamp] for one in found]

    def first_after_reset(self, topic: str, offset: int) -> int:
        """See ForeignClient."""
        consumer, here = self._consumer(), kafka.TopicPartition(topic, 0)
        try:
            consumer.assign([here])
            consumer.seek(here, offset)
            return int(next(consumer).offset)
        finally:
            consumer.close()

    def metadata(self, topic: str) -> Answer:
        """See ForeignClient."""
        (found,) = self._admin().describe_topics([topic])
        brokers = self._admin().describe_cluster()["brokers"]
        return {
            "brokers": sorted([one["broker_id"], one["host"]] for one in brokers),
            "partitions": sorted(
                [one["partition_index"], one["leader_id"], one["replica_nodes"], one["isr_nodes"]]
                for one in found["partitions"]
            ),
        }

    def join(self, group: str, topic: str, name: str) -> Member:
        """See ForeignClient."""
        return KafkaPythonMember(self._bootstrap, group, topic, name)

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """See ForeignClient."""
        asked = [kafka.TopicPartition(topic, number) for number in range(partitions)]
        found = self._admin().list_group_offsets({group: asked})[group]
        return {partition.partition: one.offset for partition, one in found.items()}

    def describe(self, group: str, topic: str) -> Answer:
        """See ForeignClient."""
        found = self._admin().describe_groups([group])[group]
        members = [
            (one["client_id"], one["client_host"], self._partitions(one["member_assignment"], topic))
            for one in found["members"]
        ]
        return describe_group(found["group_state"], found["protocol_data"], members)

    @staticmethod
    def _partitions(assignment: Any, topic: str) -> list[int]:
        return [
            number for one in assignment["assigned_partitions"] if one["topic"] == topic for number in one["partitions"]
        ]

    def groups(self) -> list[str]:
        """See ForeignClient."""
        return [one["group_id"] for one in self._admin().list_groups()]

    def create_topic(self, topic: str, partitions: int) -> None:
        """See ForeignClient."""
        self._admin().create_topics([kafka.admin.NewTopic(topic, partitions, 1)])
