# SPDX-License-Identifier: Apache-2.0
"""A cluster of Kafka 0.7 in memory that is produced to, on virtual time: brokers, and their ZooKeeper.

:class:`LegacyProduceCluster` keeps what its brokers stored, and registers topics as they do. :func:`produce_to_legacy` runs a
scenario with a real producer over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from consumerd.client.legacy_producer import run_legacy_producer
from consumerd.client.producer import Producer
from consumerd.cluster.view import Broker
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.net.legacy_dialer import LegacyDialer
from consumerd.net.pool import ConnectionPool
from consumerd.wire.legacy.message_set import check_message_set, decode_message_set
from consumerd.wire.legacy.messages import (
    LegacyMultiFetchRequest,
    LegacyMultiProduceRequest,
    LegacyProduceRequest,
)
from consumerd.wire.legacy.session import encode_legacy_request
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.legacy_peer import LegacyPeer
from tests.support.scripted_broker import FakeNetwork, Reaction

T = TypeVar("T")


class ProducedPeer(LegacyPeer):
    """A broker that also stores, and refuses what a test says."""

    def __init__(self, cluster: LegacyProduceCluster, number: int, *, partitions: int) -> None:
        super().__init__(partitions=partitions)
        self.number = number
        self.partitions = partitions
        self.frames: list[bytes] = []
        """PRODUCE and MULTIPRODUCE requests, with their sizes."""
        self.refused: set[int] = set()
        """Numbers of partitions, for which the connection is closed."""
        self.hangs: set[int] = set()
        """Numbers of partitions after whose messages, which are stored, nothing is answered any more."""
        self.loses = 0
        """Number of next MULTIFETCHes after which the connection is closed: the sets before them are stored."""
        self._cluster = cluster

    def _answer(self, request: object) -> bytes | Reaction:
        if isinstance(request, LegacyProduceRequest):
            return self._take(request, (request,))
        if isinstance(request, LegacyMultiProduceRequest):
            return self._take(request, request.requests)
        if isinstance(request, LegacyMultiFetchRequest) and self.loses:
            self.loses -= 1
            return Reaction.CLOSE
        return super()._answer(request)

    def _take(
        self, whole: LegacyProduceRequest | LegacyMultiProduceRequest, parts: tuple[LegacyProduceRequest, ...]
    ) -> bytes | Reaction:
        self.frames.append(encode_legacy_request(whole))
        for part in parts:
            if part.partition in self.refused or not 0 <= part.partition < self.partitions:
                return Reaction.CLOSE
            assert check_message_set(part.messages) == len(part.messages)
            self.log(part.topic, part.partition).append(bytes(part.messages))
            self._cluster.register_topic(part.topic, self.number)
            self.silent = self.silent or part.partition in self.hangs
        return b""  # no response

    def values(self, topic: str, number: int = 0) -> list[bytes]:
        """Return the payloads in a log, also those in compressed messages."""
        partition = TopicPartition(topic, PartitionKey(number, BrokerId(self.number)))
        data = bytes(self.log(topic, number).data)
        return [one.value or b"" for one in decode_message_set(data, partition=partition, start=0).records()]


class LegacyProduceCluster:
    """Brokers ``0`` to ``brokers - 1`` over one network, each with ``partitions`` partitions of any topic."""

    def __init__(self, brokers: int = 1, *, partitions: int = 1) -> None:
        self.network = FakeNetwork()
        self.zookeeper = FakeZooKeeper()
        self.peers = [ProducedPeer(self, number, partitions=partitions) for number in range(brokers)]
        self.session: FakeZkClient | None = None
        """ZooKeeper session of the producer."""
        for peer in self.peers:
            self.start(peer.number)

    def address_of(self, number: int) -> Broker:
        """Return a broker with its address."""
        return make_broker(number)

    def start(self, number: int) -> None:
        """Let a broker listen, and register it with the topics that it has."""
        broker = self.address_of(number)
        self.network.brokers[broker.address] = self.peers[number]
        self.zookeeper.put(f"/brokers/ids/{number}", f"{broker.host}-1:{broker.host}:{broker.port}".encode())
        for topic in sorted({topic for topic, _ in self.peers[number].logs}):
            self.register_topic(topic, number)

    def register_topic(self, topic: str, number: int) -> None:
        """Register how many partitions a broker has of a topic."""
        if self.zookeeper.read(f"/brokers/topics/{topic}/{number}") is None:
            self.zookeeper.put(f"/brokers/topics/{topic}/{number}", b"%d" % self.peers[number].partitions)

    def kill(self, number: int) -> None:
        """Let a broker vanish with its connections; its nodes stay."""
        address = self.address_of(number).address
        del self.network.brokers[address]
        for stream in self.network.streams:
            if stream.address == address:
                stream.close()

    def expire(self, number: int) -> None:
        """Remove a broker's nodes, as the end of its session does."""
        self.zookeeper.remove(f"/brokers/ids/{number}")
        for topic in self.zookeeper.names("/brokers/topics"):
            self.zookeeper.remove(f"/brokers/topics/{topic}/{number}")

    def values(self, topic: str) -> list[bytes]:
        """Return the payloads of a topic in all logs, sorted."""
        return sorted(
            value for peer in self.peers for number in range(peer.partitions) for value in peer.values(topic, number)
        )


def produce_to_legacy(
    cluster: LegacyProduceCluster, scenario: Callable[[Producer], Coroutine[Any, Any, T]], **options: Any
) -> T:
    """Run a scenario on virtual time, with a producer of ``options`` that has a session of its own."""

    async def run() -> T:
        now = asyncio.get_running_loop().time
        zk = cluster.session = cluster.zookeeper.client("producer")
        zk.connect()
        options.setdefault("random", lambda: 0.5)
        async with (
            ConnectionPool(LegacyDialer(cluster.network, now=now), now=now, random=lambda: 0.0) as pool,
            run_legacy_producer(zk, pool, now=now, wall_ms=lambda: 1_300_000_000_000, **options) as producer,
        ):
            found = await scenario(producer)
        zk.close()
        return found

    return virtual_time.run(run())
