# SPDX-License-Identifier: Apache-2.0
"""The producers that ``bench.produce`` compares, each with the same settings.

All are idempotent with ``acks=all``, and have the same batch size and linger time. A producer sends a list of values
and waits until all are acknowledged. Whether all are in the log is checked by the caller, from the log ends, so that no
producer has to keep or to report an outcome for each record.

Each sends the first few records before the clock starts: connections, metadata and producer id are there, and the JVM
is warm.
"""

from __future__ import annotations

import asyncio
import enum
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer as ConfluentProducer

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.wire.compression import Codec
from tests.support.kafka import Cluster, compile_java, java_command, write_properties
from tests.support.programs import ProgramFailed

WARM_UP: Final = 20_000
"""Records that a producer in this process sends before the clock starts."""
JAVA_WARM_UP: Final = 1_000_000
"""The same for the JVM, which compiles meanwhile."""

_JAVA: Final = Path(__file__).with_name("java") / "TimedProducer.java"
_FLUSH_S: Final = 60.0


class Who(enum.StrEnum):
    """Producers by their names in the tables."""

    OURS = "consumerd"
    LIBRDKAFKA = "librdkafka"
    """By confluent-kafka, from Python; no callback is called for records that were written."""
    JAVA = "Java"
    """The producer of the broker's release, in a JVM of its own with 512 MB of heap."""
    AIOKAFKA = "aiokafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The values of one reading, and the settings of the producer.

    Attributes:
        cluster: where the topic is.
        codec: compression, by Kafka's name.
        batch_bytes: size limit of a batch before compression.
        linger_ms: time that a batch waits for more records.
        java_warm_up: records that Java's producer sends first.
    """

    cluster: Cluster
    topic: str
    values: Sequence[bytes]
    codec: str
    batch_bytes: int
    linger_ms: int
    java_warm_up: int = JAVA_WARM_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Result of sending.

    Attributes:
        wall_s: seconds by the clock.
        cpu_s: CPU seconds of the producer's process.
        records: records that were sent in all, with those before the clock started.
    """

    wall_s: float
    cpu_s: float
    records: int


class _Stopwatch:
    """Seconds of the clock and of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def stop(self, records: int) -> Sent:
        return Sent(wall_s=time.monotonic() - self._wall, cpu_s=time.process_time() - self._cpu, records=records)


async def _run_ours(sending: Sending) -> Sent:
    settings = ProducerSettings(
        enable_idempotence=True,
        codec=Codec[sending.codec.upper()],
        batch_bytes=sending.batch_bytes,
        linger_s=sending.linger_ms / 1000,
    )
    topic, values = sending.topic, sending.values
    async with open_producer(sending.cluster.bootstrap, settings=settings) as producer:
        for value in values[:WARM_UP]:
            await producer.enqueue(topic, value)
        await producer.flush()
        stopwatch = _Stopwatch()
        for value in values:
            await producer.enqueue(topic, value)
        await producer.flush()
        return stopwatch.stop(len(values) + len(values[:WARM_UP]))


async def _run_aiokafka(sending: Sending) -> Sent:
    producer = AIOKafkaProducer(
        bootstrap_servers=sending.cluster.bootstrap,
        enable_idempotence=True,
        compression_type=None if sending.codec == "none" else sending.codec,
        max_batch_size=sending.batch_bytes,
        linger_ms=sending.linger_ms,
    )
    topic, values = sending.topic, sending.values
    await producer.start()
    try:
        for value in values[:WARM_UP]:
            await producer.send(topic, value)
        await producer.flush()
        stopwatch = _Stopwatch()
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        return stopwatch.stop(len(values) + len(values[:WARM_UP]))
    finally:
        await producer.stop()


def _run_librdkafka(sending: Sending) -> Sent:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": sending.cluster.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": sending.codec,
            "batch.size": sending.batch_bytes,
            "linger.ms": sending.linger_ms,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 1_000_000,
        }
    )

    def send(values: Sequence[bytes]) -> None:
        produce, topic = producer.produce, sending.topic
        for value in values:
            while True:
                try:
                    produce(topic, value)
                except BufferError:  # its queue is full: nothing but waiting helps
                    producer.poll(0.01)
                else:
                    break
        producer.flush(_FLUSH_S)

    values = sending.values
    send(values[:WARM_UP])
    stopwatch = _Stopwatch()
    send(values)
    return stopwatch.stop(len(values) + len(values[:WARM_UP]))


def _run_java(sending: Sending) -> Sent:
    release = sending.cluster.release
    with tempfile.TemporaryDirectory(prefix="consumerd-bench-") as scratch:
        folder = Path(scratch)
        (folder / "values").write_bytes(b"\n".join(sending.values))
        settings = write_properties(
            folder / "producer.properties",
            {
                "bootstrap.servers": sending.cluster.bootstrap,
                "enable.idempotence": "true",
                "acks": "all",
                "compression.type": sending.codec,
                "batch.size": str(sending.batch_bytes),
                "linger.ms": str(sending.linger_ms),
            },
        )
        arguments = (str(settings), sending.topic, str(folder / "values"), str(sending.java_warm_up))
        command = java_command(release, _JAVA.stem, *arguments, classes=compile_java(release, [_JAVA]))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProgramFailed(f"Java's producer failed ({done.returncode}): {done.stderr[-2000:]}")
    wall_s, cpu_s = map(float, done.stdout.split())
    return Sent(wall_s=wall_s, cpu_s=cpu_s, records=len(sending.values) + sending.java_warm_up)


RUNS: Final[Mapping[Who, Callable[[Sending], Sent]]] = {
    Who.OURS: lambda sending: asyncio.run(_run_ours(sending)),
    Who.LIBRDKAFKA: _run_librdkafka,
    Who.JAVA: _run_java,
    Who.AIOKAFKA: lambda sending: asyncio.run(_run_aiokafka(sending)),
}
"""Sends all values of a :class:`Sending`, and returns when they are acknowledged."""
