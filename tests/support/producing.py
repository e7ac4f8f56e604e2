# SPDX-License-Identifier: Apache-2.0
"""A cluster by script that is produced to: real bytes over a network in memory, on virtual time.

:class:`ProduceCluster` keeps what brokers took; what they answer next, who leads, and what they speak is the test's to say.
:func:`produce_to` runs a scenario with a real producer, its directory and its connections over it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from consumerd.aio.tasks import alongside
from consumerd.client.partitioner import Partitioner
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import Encoder, EventHandler, ProducerHooks, encode_nothing
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.view import Broker
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from consumerd.wire.modern.produce import ProducedPartition, ProducedTopic, ProduceRequest, ProduceResponse
from consumerd.wire.modern.record_set import decode_record_set
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.scripted_broker import Body, FakeNetwork, Late, Raw, Reaction, ScriptedBroker

T = TypeVar("T")

NOT_LEADER, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, TOO_LARGE, NOT_AUTHORIZED = 6, 3, 5, 10, 29
NOT_ENOUGH_REPLICAS = 19

_MAGIC_AT = 16


@dataclass(frozen=True)
class Stored:
    """A record that a broker took."""

    offset: int
    key: bytes | None
    value: bytes | None
    magic: int
    codec: int
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ProduceCluster:
    """Brokers ``1`` to ``brokers`` over one network, and their topics."""

    def __init__(self, brokers: int = 1, *, newest: int = 3, latency_s: float = 0.001) -> None:
        self.network = FakeNetwork(latency_s=latency_s)
        self.leaders: dict[str, list[int | None]] = {}
        self.logs: dict[TopicPartition, list[Stored]] = defaultdict(list)
        self.answers: dict[TopicPartition, deque[int | Reaction | Body]] = defaultdict(deque)
        """What the next requests for a partition are answered with instead: an error code (nothing is written), SILENT, CLOSE or
        a body (it is written, and nobody is told).
        """
        self.largest_set: int | None = None
        self.answer_delay_s = 0.0
        self.append_time: int = -1
        self.lists_dead = False
        """Whether Metadata names brokers that are gone, as it does until the controller has noticed."""
        self.creates: dict[str, int] = {}
        """Topics that are made when they are named, with as many partitions; first the answer is LEADER_NOT_AVAILABLE."""
        self.topic_errors: dict[str, int] = {}
        self.sizes: list[int] = []
        self.batches: list[tuple[TopicPartition, list[bytes | None]]] = []
        self.in_flight: dict[TopicPartition, int] = defaultdict(int)
        ranges = {ApiKey.PRODUCE: (0, newest), ApiKey.METADATA: (0, 1), ApiKey.LIST_OFFSETS: (0, 1)}
        self.brokers = {number: make_broker(number) for number in range(1, brokers + 1)}
        for broker in self.brokers.values():
            self.start(broker, ranges)

    def start(self, broker: Broker, ranges: Mapping[ApiKey, tuple[int, int]]) -> None:
        """Let a broker listen."""
        self.network.brokers[broker.address] = ScriptedBroker(
            {
                MetadataRequest: self._describe,
                ProduceRequest: lambda request, version: self._append(broker.id, request, version),
                ListOffsetsRequest: lambda _request, _version: ListOffsetsResponse(topics=()),
            },
            ranges=ranges,
        )

    def kill(self, number: int) -> None:
        """Let a broker vanish, with its connections."""
        address = self.brokers[number].address
        del self.network.brokers[address]
        for stream in self.network.streams:
            if stream.address == address:
                stream.close()

    def topic(self, name: str, *leaders: int | None) -> None:
        """Make a topic, given its partitions' leaders."""
        self.leaders[name] = list(leaders)

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Return what is in a log."""
        return [one.value for one in self.logs[TopicPartition.modern(topic, partition)]]

    def requests(self, kind: type[Any] = ProduceRequest) -> list[tuple[Any, int]]:
        """Return the requests of one kind to any broker, with their versions."""
        return [asked for broker in self.network.brokers.values() for asked in broker.asked(kind)]

    def _describe(self, request: MetadataRequest, _version: int) -> object:
        names = self.leaders.keys() if request.topics is None else request.topics
        return MetadataResponse(
            brokers=tuple(
                MetadataBroker(node_id=one.id, host=one.host, port=one.port)
                for one in self.brokers.values()
                if self.lists_dead or one.address in self.network.brokers
            ),
            controller_id=1,
            topics=tuple(self._describe_topic(name) for name in names),
        )

    def _describe_topic(self, name: str) -> MetadataTopic:
        if (error := self.topic_errors.get(name)) is not None:
            return MetadataTopic(topic=name, error_code=error, partitions=())
        if name not in self.leaders:
            if (count := self.creates.pop(name, None)) is None:
                return MetadataTopic(topic=name, error_code=UNKNOWN_TOPIC, partitions=())
            self.topic(name, *[1] * count)
            return MetadataTopic(topic=name, error_code=LEADER_NOT_AVAILABLE, partitions=())
        return MetadataTopic(
            topic=name,
            partitions=tuple(
                MetadataPartition(
                    partition=number,
                    leader=-1 if leader is None else leader,
                    error_code=LEADER_NOT_AVAILABLE if leader is None else 0,
                    replicas=(1,),
                    isr=(1,),
                )
                for number, leader in enumerate(self.leaders[name])
            ),
        )

    def _append(self, broker: BrokerId, request: ProduceRequest, version: int) -> object:
        reaction: Reaction | Body | None = None
        answered = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                partition = TopicPartition.modern(topic.topic, one.partition)
                answer = self.append_one(broker, partition, bytes(one.record_set or b""))
                if isinstance(answer, (Reaction, Body)):
                    reaction = answer
                else:
                    partitions.append(answer)
            answered.append(ProducedTopic(topic=topic.topic, partitions=tuple(partitions)))
        if reaction is not None:
            return reaction
        if not request.expects_response:
            failed = any(one.error_code for topic in answered for one in topic.partitions)
            return Reaction.CLOSE if failed else Raw(b"")
        if version < 2:
            answered = [
                ProducedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        ProducedPartition(
                            partition=one.partition, error_code=one.error_code, base_offset=one.base_offset
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in answered
            ]
        return Late(ProduceResponse(topics=tuple(answered)), self.answer_delay_s)

    def append_one(
        self, broker: BrokerId, partition: TopicPartition, data: bytes
    ) -> ProducedPartition | Reaction | Body:
        """Take one partition's record set, or do what the test wants instead."""
        number = partition.partition.number
        answer: int | Reaction | Body = 0
        if self.answers[partition]:
            answer = self.answers[partition].popleft()
        elif partition.topic not in self.leaders:
            answer = UNKNOWN_TOPIC
        elif self.leaders[partition.topic][number] != broker:
            answer = NOT_LEADER
        elif self.largest_set is not None and len(data) > self.largest_set:
            answer = TOO_LARGE
        self.sizes.append(len(data))
        if isinstance(answer, int) and answer:
            return ProducedPartition(partition=number, error_code=answer, base_offset=-1)
        base_offset = self._store(partition, data)
        if isinstance(answer, (Reaction, Body)):
            return answer
        return ProducedPartition(partition=number, base_offset=base_offset, log_append_time_ms=self.append_time)

    def _store(self, partition: TopicPartition, data: bytes) -> int:
        log = self.logs[partition]
        base_offset = len(log)
        magic = data[_MAGIC_AT]
        codec = (data[22] if magic == 2 else data[17]) & 7
        batch = decode_record_set(data, partition=partition, start=0)
        records = list(batch.records())
        self.batches.append((partition, [one.value for one in records]))
        log += [
            Stored(base_offset + number, one.key, one.value, magic, codec, one.timestamp, one.headers)
            for number, one in enumerate(records)
        ]
        return base_offset


Scenario = Callable[[Producer], Coroutine[Any, Any, T]]


def produce_to(
    cluster: ProduceCluster,
    scenario: Scenario[T],
    *,
    settings: ProducerSettings | None = None,
    partitioner: Partitioner | None = None,
    key_encoder: Encoder = encode_nothing,
    value_encoder: Encoder = encode_nothing,
    hooks: ProducerHooks | None = None,
    handler: EventHandler | None = None,
    random: Callable[[], float] = lambda: 0.5,
) -> T:
    """Run a scenario on virtual time, with a producer that knows broker 1's address."""

    async def run() -> T:
        now = asyncio.get_running_loop().time
        dialer = Dialer(cluster.network, client_id="test", now=now)
        async with ConnectionPool(dialer, now=now, random=random) as pool:
            directory = MetadataDirectory(
                lambda known: BrokerSource(pool, known, random=random, creates=True),
                lambda: [
                    Broker(id=BrokerId(-number), host=one.host, port=one.port)
                    for number, one in cluster.brokers.items()
                ],
                random=random,
            )
            producer = Producer(
                pool,
                directory,
                now=now,
                wall_ms=lambda: 1_500_000_000_000 + round(now() * 1000),
                random=random,
                settings=settings or ProducerSettings(),
                partitioner=partitioner,
                key_encoder=key_encoder,
                value_encoder=value_encoder,
                hooks=hooks,
                handler=handler,
            )
            async with alongside(directory.run(), name="directory"), producer:
                return await scenario(producer)

    return virtual_time.run(run())
