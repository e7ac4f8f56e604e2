"""Clients that are not ours write to the embedded broker and read from it, as members of no group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import get_imitation
from tests.support.served_logs import served_logs

CODECS = ("none", "gzip", "snappy", "lz4")
VALUES = [b"value-%d-" % number + b"x" * number for number in range(40)]
T0 = 1_600_000_000_000
"""The time of the first record, in ms; the others are a second apart."""
PATIENCE_S = 30

Row = tuple[int, bytes | None, bytes | None, int | None]
"""Offset, key, value, time."""


# -- aiokafka


async def _aiokafka_produce(bootstrap: str, topic: str, codec: str) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, acks="all"
    ) as producer:
        sent = [
            await producer.send(topic, value, key=b"k", timestamp_ms=T0 + 1000 * n) for n, value in enumerate(VALUES)
        ]
        await asyncio.gather(*sent)


async def _aiokafka_consume(bootstrap: str, topic: str, count: int) -> list[Row]:
    partition = AioTopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None) as consumer:
        consumer.assign([partition])
        rows = [await consumer.getone() for _ in range(count)]
        assert count == (await consumer.end_offsets([partition]))[partition]
        found = (await consumer.offsets_for_times({partition: T0 + 2500}))[partition]
        assert (3, T0 + 3000) == (found.offset, found.timestamp)
    return [(row.offset, row.key, row.value, row.timestamp) for row in rows]


# -- kafka-python


def _kafka_python_produce(bootstrap: str, topic: str, codec: str, **settings: Any) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, acks=1, **settings
    )
    for number, value in enumerate(VALUES):
        producer.send(topic, value, key=b"k", timestamp_ms=T0 + 1000 * number)
    producer.flush(PATIENCE_S)
    producer.close(PATIENCE_S)


def _kafka_python_consume(bootstrap: str, topic: str, count: int, **settings: Any) -> list[Row]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        consumer_timeout_ms=1000 * PATIENCE_S,
        **settings,
    )
    try:
        consumer.assign([PythonTopicPartition(topic, 0)])
        rows = [next(consumer) for _ in range(count)]
    finally:
        consumer.close()
    return [(row.offset, row.key, row.value, row.timestamp) for row in rows]


# -- confluent-kafka, on librdkafka


def _confluent_produce(bootstrap: str, topic: str, codec: str) -> None:
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = ConfluentProducer({"bootstrap.servers": bootstrap, "compression.codec": codec, "linger.ms": 5})
    for number, value in enumerate(VALUES):
        producer.produce(topic, value, b"k", 0, delivered, timestamp=T0 + 1000 * number)
    assert 0 == producer.flush(PATIENCE_S)
    assert failures == []


def _confluent_consume(bootstrap: str, topic: str, count: int) -> list[Row]:
    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([ConfluentTopicPartition(topic, 0, 0)])
        rows: list[Row] = []
        while len(rows) < count:
            (message,) = consumer.consume(1, timeout=PATIENCE_S)
            assert message.error() is None
            rows.append((message.offset(), message.key(), message.value(), message.timestamp()[1]))
        assert (0, count) == consumer.get_watermark_offsets(ConfluentTopicPartition(topic, 0), timeout=PATIENCE_S)
    finally:
        consumer.close()
    return rows


Produce = Callable[[str, str, str], Awaitable[None]]
Consume = Callable[[str, str, int], Awaitable[list[Row]]]

CLIENTS: dict[str, tuple[Produce, Consume]] = {
    "aiokafka": (_aiokafka_produce, _aiokafka_consume),
    "kafka-python": (
        partial(asyncio.to_thread, _kafka_python_produce),
        partial(asyncio.to_thread, _kafka_python_consume),
    ),
    "confluent-kafka": (partial(asyncio.to_thread, _confluent_produce), partial(asyncio.to_thread, _confluent_consume)),
}


@pytest.mark.parametrize("release", ["0.10", "1.1"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_what_a_client_writes_every_client_reads(client: str, release: str, tmp_path: Path) -> None:
    """Every codec; the topic comes into being by being written to; records keep key, value, time and order."""
    produce, _ = CLIENTS[client]
    async with served_logs(tmp_path, as_release=release) as broker:
        for number, codec in enumerate(CODECS):
            topic = f"t-{codec}"
            await produce(broker.bootstrap, topic, codec)
            # each reader once for each writer and release: the codecs take turns with the readers
            _, consume = list(CLIENTS.values())[number % len(CLIENTS)]
            rows = await consume(broker.bootstrap, topic, len(VALUES))
            assert [(n, b"k", value, T0 + 1000 * n) for n, value in enumerate(VALUES)] == rows


@pytest.mark.parametrize(("release", "api_version"), [("0.8.2", (0, 8, 2)), ("0.9", (0, 9))])
async def test_clients_that_are_told_an_old_release_speak_to_it(
    release: str, api_version: tuple[int, ...], tmp_path: Path
) -> None:
    """Brokers of that time list no versions; records have no times there."""
    async with served_logs(tmp_path, as_release=release) as broker:
        for codec in ("none", "gzip", "snappy"):
            topic = f"t-{codec}"
            settings = {"api_version": api_version}
            await asyncio.to_thread(_kafka_python_produce, broker.bootstrap, topic, codec, **settings)
            rows = await asyncio.to_thread(_kafka_python_consume, broker.bootstrap, topic, len(VALUES), **settings)
            assert [(n, b"k", value) for n, value in enumerate(VALUES)] == [row[:3] for row in rows]


@pytest.mark.parametrize("message_format", [0, 1])
async def test_new_clients_read_old_formats(message_format: int, tmp_path: Path) -> None:
    """A broker of 1.1 that keeps an old format for its old consumers converts up what new producers send."""
    settings = replace(LogSettings(), message_format=message_format)
    async with served_logs(tmp_path, settings=settings) as broker:
        await _aiokafka_produce(broker.bootstrap, "t", "gzip")
        rows = await asyncio.to_thread(_confluent_consume, broker.bootstrap, "t", len(VALUES))
        times = [None if message_format == 0 else row[3] for row in rows]
        expected_times = [None if message_format == 0 else T0 + 1000 * n for n in range(len(VALUES))]
        assert (VALUES, expected_times) == ([row[2] for row in rows], times)


def test_imitated_releases_store_what_theirs_did() -> None:
    """The tests above rest on it."""
    assert [0, 0, 1, 2] == [get_imitation(name).message_format for name in ("0.8.2", "0.9", "0.10", "1.1")]
