# SPDX-License-Identifier: Apache-2.0
"""Sinks of type ``kafka`` before a real or embedded target, and what a reader of committed records sees there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from consumerd.access.address import ClusterAddress
from consumerd.mirror.journal import CutoverEntry, decode_entry, find_journal_key
from consumerd.mirror.positions import DEFAULT_TOPIC, open_mirror_positions
from consumerd.mirror.positions_index import MirrorState
from consumerd.model import Incarnation
from consumerd.model import TopicPartition as SourcePartition
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.sink import KafkaSink
from consumerd.sinks.kafka.writer import KafkaWriter
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.record_batches import build_batch, record

P = SourcePartition.modern("orders", 0)

_FOR_MARKERS_S: Final = 5.0
"""Time for markers to follow, in seconds; where a transaction is left open on purpose, it passes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that a reader of committed records has got."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = -1


def read_committed(bootstrap: str, topic: str, partition: int = 0) -> list[Seen]:
    """Return the committed records of a partition, up to its last stable offset, as librdkafka reads them.

    Markers follow the answer to EndTxn. So where records wait for one, they get some time.
    """
    found: list[Seen] = []
    deadline = monotonic() + 30
    with contextlib.closing(_consume(bootstrap, topic, partition, "read_committed")) as consumer:
        end = None
        while end is None or (end < _find_end(bootstrap, topic, partition) and monotonic() < deadline):
            message = consumer.poll(0.1 if end is not None else 30)
            if message is None:
                assert end is not None, "no end of the partition within 30 s"
            elif (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                deadline = deadline if end is not None else monotonic() + _FOR_MARKERS_S
                end = message.offset() or 0
            else:
                found.append(
                    Seen(
                        message.offset() or 0,
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),  # type: ignore[arg-type]
                        message.timestamp()[1],
                    )
                )
    return found


def read_topic(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of all committed records of a topic, each partition in its order."""
    with contextlib.closing(_consume(bootstrap, topic, 0, "read_committed")) as consumer:
        partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
        found: list[tuple[bytes | None, bytes | None]] = []
        ended = set[int | None]()
        while len(ended) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, f"no end of {topic} within 30 s"
            if (error := message.error()) is None:
                found.append((message.key(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    return found


def read_journal(bootstrap: str, group: str) -> list[CutoverEntry]:
    """Return all entries in the journal of a group's cut-over, the oldest first."""
    rows = [(find_journal_key(key or b""), value) for key, value in read_topic(bootstrap, DEFAULT_TOPIC)]
    return [decode_entry(value or b"") for key, value in rows if key is not None and key.group == group]


def _find_end(bootstrap: str, topic: str, partition: int) -> int:
    """Return the high watermark, behind records of open transactions."""
    with contextlib.closing(_consume(bootstrap, topic, partition, "read_uncommitted")) as consumer:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1])


def _consume(bootstrap: str, topic: str, partition: int, isolation: str) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0)])
    return consumer


@dataclass
class MirrorRig:
    """A sink and what it was given; ``charged`` is the memory that it holds."""

    bootstrap: str
    options: Mapping[str, Any] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    charged: int = 0
    wall_ms: int = 1_700_000_000_000
    sink: KafkaSink = field(init=False)

    def __post_init__(self) -> None:
        context = SinkContext(
            sink_name="new",
            group="mirror",
            cluster_id="2-1700000000000",
            writer_id="member1",
            now=self.clock,
            charge=self._charge,
        )
        options = KafkaOptions.model_validate({"bootstrap": self.bootstrap, **self.options})
        self.sink = KafkaSink(context, options, wall_ms=lambda: self.wall_ms)

    def _charge(self, difference: int) -> None:
        self.charged += difference

    async def open(self, claim: StubClaim | None = None) -> KafkaWriter:
        """Open a partition, and start where it ends, or at 0."""
        writer = await self.sink.open(claim or StubClaim(P))
        assert isinstance(writer, KafkaWriter)
        await writer.start(Start(position=writer.resume_position or 0, reason="committed"))
        return writer

    async def find(self, source: SourcePartition = P, incarnation: Incarnation | None = None) -> MirrorState | None:
        """Return what is stored for a source partition, as a reader without a sink sees it."""
        address = ClusterAddress(bootstrap=self.bootstrap, client_id="test")
        async with open_mirror_positions(address) as positions:
            await positions.refresh()
            wanted = str(incarnation or Incarnation(7))
            for log in positions.list():
                if (log.topic, log.partition, log.incarnation) == (source.topic, str(source.partition), wanted):
                    return positions.find(log)
        return None


@asynccontextmanager
async def open_mirror(bootstrap: str, **options: Any) -> AsyncIterator[MirrorRig]:
    """Make a sink that mirrors into a cluster, and close it; at the end it holds no memory."""
    rig = MirrorRig(bootstrap, options)
    try:
        yield rig
    finally:
        await rig.sink.close()


def numbers(start: int, end: int, partition: SourcePartition = P, *, size: int = 8) -> RecordBatch:
    """Return a batch with the records ``[start, end)``, whose values tell them apart."""
    return build_batch(
        partition,
        [record(offset, b"%*d" % (size, offset), timestamp=1000 + offset) for offset in range(start, end)],
    )
