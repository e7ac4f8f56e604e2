# SPDX-License-Identifier: Apache-2.0
"""aiokafka, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiokafka
import aiokafka.admin
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

from consumerd.aio.timeouts import timeout
from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, Record, Row, describe_group


class AiokafkaMember:
    """A member of a group, by aiokafka; its assignors are aiokafka's own, unless given. ``login`` is aiokafka's for SASL."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        name: str,
        assignors: Sequence[Any] = (RoundRobinPartitionAssignor,),
        **login: str,
    ) -> None:
        self._runner = asyncio.Runner()
        self._consumer = self._runner.run(self._start(bootstrap, group, topic, name, assignors, login))

    async def _start(
        self, bootstrap: str, group: str, topic: str, name: str, assignors: Sequence[Any], login: Mapping[str, str]
    ) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=tuple(assignors),
            **login,
        )
        await consumer.start()
        return consumer

    def poll(self) -> list[int]:
        """See Member."""
        found = self._runner.run(self._consumer.getmany(timeout_ms=100))
        return [int(record.value) for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        """See Member."""
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        """See Member."""
        self._runner.run(self._consumer.commit())

    def close(self) -> None:
        """See Member."""
        self._runner.run(self._consumer.stop())
        self._runner.close()


class Aiokafka(ForeignClient):
    """aiokafka's producer, consumer and admin client."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """See ForeignClient."""
        self._runner.close()

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> list[int]:
        """See ForeignClient."""
        compression = None if codec == "none" else codec
        asked = acks if acks == "all" else int(acks)
        return self._runner.run(self._send(topic, records, acks=asked, compression_type=compression))

    def produce_idempotently(self, topic: str, records: Sequence[Record]) -> list[int]:
        """See ForeignClient."""
        return self._runner.run(self._send(topic, records, enable_idempotence=True))

    async def _send(self, topic: str, records: Sequence[Record], **settings: Any) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap, **settings)
        try:
            async with timeout(PATIENCE_S):
                await producer.start()
                sent = [
                    await producer.send(
                        topic,
                        one.value,
                        key=one.key,
                        headers=list(one.headers),
                        partition=0,
                        timestamp_ms=one.timestamp_ms,
                    )
                    for one in records
                ]
                # without acknowledgements there is nothing to be told
                told = [await future for future in sent]
                return [-1 if one is None else one.offset for one in told]
        finally:
            await producer.stop()

    def _consumer(self) -> Any:
        return aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", group_id=None)

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """See ForeignClient."""
        return self._runner.run(self._read(counts))

    async def _read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {topic: [] for topic in counts}
        async with timeout(PATIENCE_S), self._consumer() as consumer:
            consumer.assign([aiokafka.TopicPartition(topic, 0) for topic in counts])
            for _ in range(sum(counts.values())):
                one = await consumer.getone()
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

    def offsets(self, topic: str) -> list[int]:
        """See ForeignClient."""
        return self._runner.run(self._offsets(aiokafka.TopicPartition(topic, 0)))

    async def _offsets(self, here: Any) -> list[int]:
        async with timeout(PATIENCE_S), self._consumer() as consumer:
            return [(await consumer.beginning_offsets([here]))[here], (await consumer.end_offsets([here]))[here]]

    def offsets_at(self, topic: str, times_ms: Sequence[int]) -> list[list[int] | None]:
        """See ForeignClient."""
        return self._runner.run(self._offsets_at(aiokafka.TopicPartition(topic, 0), times_ms))

    async def _offsets_at(self, here: Any, times_ms: Sequence[int]) -> list[list[int] | None]:
        async with timeout(PATIENCE_S), self._consumer() as consumer:
            found = [(await consumer.offsets_for_times({here: time}))[here] for time in times_ms]
        return [None if one is None else [one.offset, one.timestamp] for one in found]

    def first_after_reset(self, topic: str, offset: int) -> int:
        """See ForeignClient."""
        return self._runner.run(self._first_after_reset(aiokafka.TopicPartition(topic, 0), offset))

    async def _first_after_reset(self, here: Any, offset: int) -> int:
        async with timeout(PATIENCE_S), self._consumer() as consumer:
            consumer.assign([here])
            consumer.seek(here, offset)
            return int((await consumer.getone()).offset)

    def metadata(self, topic: str) -> Answer:
        """See ForeignClient."""
        cluster, (found,) = self._runner.run(self._admin("describe_cluster", "describe_topics", topics=[topic]))
        return {
            "brokers": sorted([one["node_id"], one["host"]] for one in cluster["brokers"]),
            "partitions": sorted(
                [one["partition"], one["leader"], one["replicas"], one["isr"]] for one in found["partitions"]
            ),
        }

    async def _admin(self, *calls: str, **arguments: Any) -> Any:
        """Make calls of the admin client, the last of them with arguments; return what they return."""
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        try:
            async with timeout(PATIENCE_S):
                await admin.start()
                first = [await getattr(admin, call)() for call in calls[:-1]]
                last = await getattr(admin, calls[-1])(**arguments)
        finally:
            await admin.close()
        return (*first, last) if first else last

    def join(self, group: str, topic: str, name: str) -> Member:
        """See ForeignClient."""
        return AiokafkaMember(self._bootstrap, group, topic, name)

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """See ForeignClient."""
        asked = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
        found = self._runner.run(self._admin("list_consumer_group_offsets", group_id=group, partitions=asked))
        return {partition.partition: one.offset for partition, one in found.items()}

    def describe(self, group: str, topic: str) -> Answer:
        """See ForeignClient."""
        (answer,) = self._runner.run(self._admin("describe_consumer_groups", group_ids=[group]))
        ((_error, _name, state, _kind, protocol, found, *_),) = answer.groups
        members = [(client, host, self._partitions(assignment, topic)) for _, client, host, _, assignment in found]
        return describe_group(state, protocol, members)

    @staticmethod
    def _partitions(assignment: bytes, topic: str) -> list[int]:
        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
        return [number for name, numbers in decoded.assignment if name == topic for number in numbers]

    def groups(self) -> list[str]:
        """See ForeignClient."""
        return [name for name, _kind in self._runner.run(self._admin("list_consumer_groups"))]

    def create_topic(self, topic: str, partitions: int) -> None:
        """See ForeignClient."""
        new = aiokafka.admin.NewTopic(topic, partitions, 1)
        self._runner.run(self._admin("create_topics", new_topics=[new]))
