# SPDX-License-Identifier: Apache-2.0
"""Sources of a mirror under load, from Kafka 0.7 (Jafka) on, and their records as others than we read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, TopicPartition

from consumerd.wire.record_fields import NO_TIMESTAMP
from tests.support.jafka import JafkaCluster
from tests.support.kafka import Cluster, LedgerProducer, Sent, parse_release
from tests.support.load import SteadyLoad
from tests.support.registry import Registry

PARTITIONS: Final = 4
PER_PARTITION: Final = 40
"""Records a second for each partition."""

_FIRST_WITH_VERSIONS: Final = (0, 10)
_FIRST_WITH_HEADERS: Final = (0, 11)
_MESSAGE_HEAD: Final = 10
"""Bytes before the value of a message of Jafka: length, magic, attributes, CRC."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record that librdkafka has read, or that is in a broker's file."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = NO_TIMESTAMP

    @property
    def content(self) -> tuple[object, ...]:
        """All but the offset."""
        return self.key, self.value, self.headers, self.timestamp


def read_records(bootstrap: str, topic: str, partition: int, **settings: Any) -> list[Found]:
    """Return the committed records of a partition, up to its last stable offset, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    found: list[Found] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(60)
            assert message is not None, f"no end of {topic}/{partition} within 60 s"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            kind, timestamp = message.timestamp()
            found.append(
                Found(
                    message.offset() or 0,
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),  # type: ignore[arg-type]
                    NO_TIMESTAMP if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
                )
            )
    finally:
        consumer.close()


class MirrorSource(Protocol):
    """A topic of a source cluster. Partitions are named as in ZooKeeper."""

    cluster: Cluster
    topic: str
    partitions: Sequence[str]

    def load(self) -> Any:
        """Send records while the block runs, and end when all are acknowledged; a context manager."""

    def read(self) -> Mapping[str, Sequence[Found]]:
        """Return the records of each partition."""

    def ends(self) -> Mapping[str, int]:
        """Return the log end offset of each partition."""


def positions(registry: Registry, group: str, topic: str) -> dict[str, int]:
    """Return a group's stored positions by the name of the partition."""
    at = f"/consumers/{group}/offsets/{topic}"
    if not registry.client.exists(at):
        return {}
    return {name: int(registry.client.get(f"{at}/{name}")[0]) for name in registry.client.get_children(at)}


class KafkaSource:
    """A topic of 0.8.2 or later."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
        self.cluster, self.topic = cluster, topic
        self.partitions = [str(number) for number in range(partitions)]
        cluster.create_topic(topic, partitions)

    @contextmanager
    def load(self) -> Iterator[None]:
        """See MirrorSource."""
        # a broker that is killed is away for longer than the producer's own patience
        producer = self.cluster.ledger_producer(linger_ms="5", retry_backoff_ms="500", request_timeout_ms="110000")
        varied = _Varied(producer, has_headers=parse_release(self.cluster.release) >= _FIRST_WITH_HEADERS)
        with SteadyLoad(varied, {self.topic: len(self.partitions)}, per_second=PER_PARTITION):
            yield
        producer.finish(180)

    def read(self) -> Mapping[str, Sequence[Found]]:
        """See MirrorSource."""
        release = self.cluster.release
        old = parse_release(release) < _FIRST_WITH_VERSIONS
        settings = {"api_version_request": False, "broker_version_fallback": release} if old else {}
        return {
            name: read_records(self.cluster.bootstrap, self.topic, int(name), **settings) for name in self.partitions
        }

    def ends(self) -> Mapping[str, int]:
        """See MirrorSource."""
        return {name: records[-1].offset + 1 for name, records in self.read().items()}


@dataclass
class _Varied:
    """Gives each record a shape of its own: keys, values and headers that are missing, empty or large."""

    producer: LedgerProducer
    has_headers: bool
    _count: int = field(default=0)

    def send(self, records: Iterable[Sent]) -> None:
        """See ``ledger.Sends``."""
        self.producer.send([self._vary(record) for record in records])

    def _vary(self, record: Sent) -> Sent:
        self._count += 1
        number = self._count
        key = (record.key, None, b"")[number % 3]
        value = (record.value, (record.value or b"") * 60, b"", None)[number % 4]
        headers = ((), (("a", b"%d" % number), ("a", None), ("b", b"")))[number % 2] if self.has_headers else ()
        return replace(record, key=key, value=value, headers=headers)


class JafkaSource:
    """A topic of 0.7: values only, and offsets that count bytes. Its brokers must not die: its producer does not ask."""

    def __init__(self, cluster: JafkaCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        cluster.send(topic, 1)
        count = int(cluster.properties["num.partitions"])
        self.partitions = [f"{broker}-{number}" for broker in range(cluster.brokers) for number in range(count)]

    @contextmanager
    def load(self) -> Iterator[None]:
        """See MirrorSource."""
        rate = PER_PARTITION * len(self.partitions)
        sender = self.cluster.start_sender(self.topic, rate * 3600, per_second=rate)
        try:
            yield
        finally:
            # what the broker has by now is what counts
            ended = sender.poll()
            sender.terminate()
            sender.wait(30)
            assert ended is None, f"the sender ended with {ended}:\n{self.cluster.log_of('sender')[-2000:]}"

    def read(self) -> Mapping[str, Sequence[Found]]:
        """See MirrorSource."""
        return {name: list(self._read_files(name)) for name in self.partitions}

    def _read_files(self, name: str) -> Iterator[Found]:
        for path in sorted(self.cluster.segment_of(self.topic, name).parent.glob("*.jafka")):
            data, at, base = path.read_bytes(), 0, int(path.stem)
            while at < len(data):
                size = 4 + int.from_bytes(data[at : at + 4])
                yield Found(base + at, None, data[at + _MESSAGE_HEAD : at + size])
                at += size

    def ends(self) -> Mapping[str, int]:
        """See MirrorSource."""
        return {
            name: records[-1].offset + _MESSAGE_HEAD + len(records[-1].value or b"")
            for name, records in self.read().items()
        }
