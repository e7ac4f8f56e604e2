# SPDX-License-Identifier: Apache-2.0
"""Connectors on Kafka 0.7, where the records of a compressed message share an offset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.api import ConsumerConnector, ConsumerRecord, MessageStream, PartitionKey, read_connector_settings
from consumerd.model import TopicPartition
from consumerd.wire.compression import Codec
from consumerd.zk.layout import offset_path
from tests.support.embedded_legacy import LegacyThread, SentMessage
from tests.support.zookeeper import make_client, run_server

pytestmark = [pytest.mark.records, pytest.mark.timeout(120)]

GROUP = "programs"
PLAIN = 2
INNER = 100
Identity = tuple[str, str, int, int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LegacyThread]:
    """Two brokers with one partition of a topic each."""
    with (
        run_server() as server,
        LegacyThread(tmp_path_factory.mktemp("legacy"), f"{server.connect_string}/connector", nodes=2) as brokers,
    ):
        yield brokers


def make_connector(cluster: LegacyThread) -> ConsumerConnector:
    return ConsumerConnector(
        read_connector_settings(
            {
                "cluster": {"zookeeper": cluster.zookeeper},
                "group": {"id": GROUP, "session_timeout_ms": 6000},
                "offsets": {"commit_interval_ms": 200, "on_missing": "earliest"},
                "rebalance": {"settle_ms": 50},
                "fetch": {"max_wait_ms": 100},
            }
        )
    )


def send(cluster: LegacyThread, topic: str, codec: Codec) -> list[SentMessage]:
    """Store plain messages, a compressed one and plain ones on the second broker."""
    values = [b"%d" % number for number in range(2 * PLAIN + INNER)]
    return [
        message
        for part, used in (
            (values[:PLAIN], Codec.NONE),
            (values[PLAIN:-PLAIN], codec),
            (values[-PLAIN:], Codec.NONE),
        )
        for message in cluster.send(topic, part, node=1, codec=used)
    ]


def identity_of(record: ConsumerRecord) -> Identity:
    return record.topic, str(PartitionKey(record.partition, record.broker)), record.offset, record.index


async def take(stream: MessageStream, count: int) -> list[ConsumerRecord]:
    async with timeout(30):
        return [await anext(stream) for _ in range(count)]


async def find_committed(cluster: LegacyThread, topic: str) -> int | None:
    async with make_client(cluster.zookeeper) as zk:
        await zk.wait_connected()
        found = await zk.find(offset_path(GROUP, TopicPartition(topic, PartitionKey.parse("1-0"))))
    return None if found is None else int(found[0])


@pytest.mark.parametrize("taken", [PLAIN + 1, PLAIN + INNER // 2, PLAIN + INNER - 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_a_successor_gets_a_compressed_message_whole_that_was_left_within(
    cluster: LegacyThread, codec: Codec, taken: int
) -> None:
    """The position stays before the message until its last record is finished, so that none is lost."""
    topic = f"{codec.name.lower()}-{taken}"
    sent = send(cluster, topic, codec)
    wrapper = sent[PLAIN]

    async def scenario() -> None:
        async with make_connector(cluster) as connector:
            (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
            first = await take(stream, taken)
            await connector.commit_offsets()
            assert wrapper.offset == await find_committed(cluster, topic)
        assert wrapper.offset == await find_committed(cluster, topic)
        async with make_connector(cluster) as connector:
            (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
            second = await take(stream, INNER + PLAIN)
        assert sent[-1].next_offset == await find_committed(cluster, topic)

        assert [one.identity for one in sent[:taken]] == [identity_of(one) for one in first]
        assert [one.identity for one in sent[PLAIN:]] == [identity_of(one) for one in second]
        assert [one.value for one in sent[PLAIN:]] == [one.value for one in second]

    asyncio.run(scenario())


def test_a_partition_that_moves_within_a_compressed_message_loses_no_record(cluster: LegacyThread) -> None:
    """The new owner begins at the message's start, beside the records that the old one has finished."""
    topic = "moved"
    sent = send(cluster, topic, Codec.GZIP)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks, timeout(60):
            old, new = make_connector(cluster), make_connector(cluster)
            async with old:
                (stream,) = (await old.create_message_streams({topic: 1}))[topic]
                first = await take(stream, PLAIN + 7)
                async with new:
                    (next_stream,) = (await new.create_message_streams({topic: 1}))[topic]
                    waiting = tasks.create_task(take(next_stream, PLAIN + INNER))
                    await old.shutdown()
                    second = await waiting
        assert [one.identity for one in sent[: PLAIN + 7]] == [identity_of(one) for one in first]
        assert {one.identity for one in sent} == {identity_of(one) for one in (*first, *second)}
        assert sent[PLAIN].identity == identity_of(second[0])

    asyncio.run(scenario())
