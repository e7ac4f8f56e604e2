# SPDX-License-Identifier: Apache-2.0
"""An embedded cluster of Kafka 0.6 or 0.7 in a thread, for tests that are not asynchronous."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import cramjam

from consumerd.embedded.legacy.broker import LegacyBrokerSettings
from consumerd.embedded.legacy.cluster import LegacyCluster
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.cluster_thread import ClusterThread
from tests.support.kafka import Sent
from tests.support.legacy_client import legacy_client

COMPRESS: Final[Mapping[Codec, Callable[[bytes], bytes]]] = {
    Codec.GZIP: partial(gzip.compress, mtime=0),
    Codec.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that a broker has stored: its identity is (topic, partition, offset, index)."""

    topic: str
    partition: str
    """As ``B-P``."""
    offset: int
    index: int
    """Its place in the compressed message at ``offset``; 0 for one that is not compressed."""
    next_offset: int
    """The offset behind the stored message that it belongs to."""
    value: bytes

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """What tells it from all other messages of a cluster."""
        return self.topic, self.partition, self.offset, self.index


class LegacyThread(ClusterThread[LegacyCluster]):
    """Brokers of Kafka 0.6 or 0.7 in this process, with ZooKeeper at ``zookeeper``, and a chroot that no other broker uses.

    ``settings`` are those of LegacyBrokerSettings; a topic has ``num_partitions`` partitions on each broker that got a
    message of it.
    """

    def __init__(self, directory: Path, zookeeper: str, *, nodes: int = 2, **settings: Any) -> None:
        self.zookeeper = zookeeper
        super().__init__(
            LegacyCluster(
                directory, zookeeper=zookeeper, nodes=nodes, make_broker=partial(LegacyBrokerSettings, **settings)
            )
        )

    def wipe_node(self, number: int) -> None:
        """Stop a broker, delete its logs and start it again."""
        self.do(lambda cluster: cluster.wipe_broker(number))

    def send(
        self,
        topic: str,
        values: Iterable[bytes],
        *,
        node: int = 0,
        partition: int = 0,
        codec: Codec = Codec.NONE,
        magic: int = 1,
        nested: bool = False,
    ) -> list[SentMessage]:
        """Store messages in one partition; return when they are stored.

        With a codec they are compressed together, and with ``nested`` once more, each half of them in the message of all.
        """
        values = list(values)

        async def act(cluster: LegacyCluster) -> list[SentMessage]:
            broker = cluster.brokers[node]
            async with legacy_client(broker.port) as client:
                first = max(await client.offsets(topic=topic, partition=partition), default=0)
                stored = list(_encode(values, codec, magic, nested=nested))
                await client.produce(b"".join(data for data, _ in stored), topic, partition)
            ends = list(itertools.accumulate((len(data) for data, _ in stored), initial=first))
            return [
                SentMessage(topic, f"{node}-{partition}", offset, index, end, value)
                for (_, held), (offset, end) in zip(stored, itertools.pairwise(ends), strict=True)
                for index, value in enumerate(held)
            ]

        return self.do(act)


class LegacyLedger:
    """Sends to all partitions of the brokers, every second burst compressed, and keeps what was stored.

    The records' partitions are numbers from 0 on: those of the first broker, then those of the second.
    """

    def __init__(self, cluster: LegacyThread, partitions: int) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._bursts = itertools.count()
        self.stored: list[SentMessage] = []

    def send(self, records: Iterable[Sent]) -> None:
        """Store records; return when they are stored."""
        by_partition: dict[tuple[str, int], list[bytes]] = {}
        for one in records:
            by_partition.setdefault((one.topic, one.partition), []).append(one.value or b"")
        codec = Codec.GZIP if next(self._bursts) % 2 else Codec.NONE
        for (topic, number), values in by_partition.items():
            node, partition = divmod(number, self._partitions)
            self.stored += self._cluster.send(topic, values, node=node, partition=partition, codec=codec)


def _encode(
    values: Sequence[bytes], codec: Codec, magic: int, *, nested: bool
) -> Iterator[tuple[bytes, Sequence[bytes]]]:
    """Return each stored message with the values in it."""
    if nested:
        half = len(values) // 2
        inner = b"".join(
            data for some in (values[:half], values[half:]) for data, _ in _encode(some, codec, magic, nested=False)
        )
        yield encode_message(COMPRESS[codec](inner), magic=magic, codec=codec), values
        return
    plain = [encode_message(value, magic=magic) for value in values]
    if codec is Codec.NONE:
        yield from ((data, (value,)) for data, value in zip(plain, values, strict=True))
    else:
        yield encode_message(COMPRESS[codec](b"".join(plain)), magic=magic, codec=codec), values
