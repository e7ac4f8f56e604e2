# SPDX-License-Identifier: Apache-2.0
"""The embedded broker as a whole: what it keeps, what it makes, and what our own clients see of it."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import open_access
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.embedded.broker import BrokerSettings, EmbeddedBroker
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.faults import FillableFiles
from consumerd.embedded.log.errors import LogLocked
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import IMITATIONS
from consumerd.errors import ConfigError
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.metadata import MetadataRequest
from tests.support.broker_script import T0, records
from tests.support.raw_client import fetch, produce, raw_client

PARTITION = TopicPartition.modern("t", 0)


@pytest.mark.parametrize("release", IMITATIONS)
async def test_our_own_clients_find_partitions_offsets_and_times(release: str, zookeeper: str) -> None:
    """Release by release: what it says of its versions, in ZooKeeper and in Metadata leads to its records."""
    make = partial(BrokerSettings, as_release=release)
    async with EmbeddedCluster(zookeeper=zookeeper, make_broker=make, topics={"t": 1}) as cluster:
        magic = cluster.broker.topics.logs()[0].settings.message_format
        async with raw_client(cluster.broker.port) as client:
            await client.ask(produce("t", records(magic)), 3 if magic == 2 else magic)
        address = ClusterAddress(zookeeper=cluster.zookeeper, client_id="own", session_timeout_s=6)
        async with open_cluster(address, wait_s=10) as opened, open_access(opened) as own:
            own.directory.follow(["t"])
            assert {PARTITION: LogRange(0, 3)} == await own.ranges.read([PARTITION])
            consumer = SimpleConsumer(own.pool, own.directory, random=random.random, max_message_bytes=1 << 20)
            assert (None if magic == 0 else T0 + 1000) == await consumer.read_timestamp(PARTITION, 1)
            if magic:
                assert {PARTITION: 2} == await own.ranges.offset_for_time([PARTITION], T0 + 1500)


async def test_records_and_topics_outlast_a_restart(zookeeper: str, tmp_path: Path) -> None:
    """They are on disk and in ZooKeeper; the broker itself remembers nothing else."""
    settings = BrokerSettings(directory=tmp_path / "logs", zookeeper=zookeeper)
    async with EmbeddedBroker(settings) as broker:
        await broker.create_topic("t", 2, retention_ms="-1")
        async with raw_client(broker.port) as client:
            await client.ask(produce("t", records(2), partition=1), 3)
        port = broker.port
    async with EmbeddedBroker(replace(settings, port=port)) as broker, raw_client(port) as client:
        answer = await client.ask(fetch("t", partition=1), 5)
        assert 3 == answer.topics[0].partitions[0].high_watermark
        await client.ask(produce("t", records(2), partition=1), 3)


async def test_topic_comes_into_being_by_being_asked_for(zookeeper: str, tmp_path: Path) -> None:
    """As with Kafka, the first answer says that there is no leader yet; the next one names it."""
    settings = BrokerSettings(directory=tmp_path / "logs", zookeeper=f"{zookeeper}/deep/down", num_partitions=3)
    async with EmbeddedBroker(settings) as broker, raw_client(broker.port) as client:
        (first,) = (await client.ask(MetadataRequest(topics=("new",)), 1)).topics
        (second,) = (await client.ask(MetadataRequest(topics=("new",)), 1)).topics
        (refused,) = (await client.ask(MetadataRequest(topics=("a b",)), 1)).topics
    assert (ErrorCode.LEADER_NOT_AVAILABLE, 0) == (first.error_code, len(first.partitions))
    assert [(0, 0), (0, 0), (0, 0)] == [(one.error_code, one.leader) for one in second.partitions]
    assert ErrorCode.INVALID_TOPIC_EXCEPTION == refused.error_code


async def test_poll_hears_that_its_topic_was_deleted(zookeeper: str, tmp_path: Path) -> None:
    """A consumer that waits for records which can never come has to ask anew."""
    async with EmbeddedBroker(BrokerSettings(directory=tmp_path / "logs", zookeeper=zookeeper)) as broker:
        await broker.create_topic("t")
        async with raw_client(broker.port) as client:
            client.send_request(fetch("t", wait_ms=3_600_000), 5, correlation_id=4)
            async with raw_client(broker.port) as other:
                await other.ask(MetadataRequest(topics=("t",)), 1)
            await broker.topics.delete("t")
            correlation_id, body = await client.receive()
        (one,) = fetch("t").decode_response(5, memoryview(body)).topics[0].partitions
        assert (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == (correlation_id, one.error_code)


async def test_flushes_and_retention_happen_by_the_clock(zookeeper: str, tmp_path: Path) -> None:
    """Nobody has to write for what was written to become durable, or to go."""
    settings = BrokerSettings(
        directory=tmp_path / "logs",
        zookeeper=zookeeper,
        log=LogSettings(flush_interval_ms=100, retention_ms=1000),
        retention_check_interval_s=0.2,
    )
    async with EmbeddedBroker(settings) as broker:
        await broker.create_topic("t")
        await broker.create_topic("kept", retention_ms="-1")
        async with raw_client(broker.port) as client:
            # their times are of 2017, so that retention takes them at once, but only with the segment
            for topic in ("t", "kept"):
                await client.ask(produce(topic, records(2)), 3)
        log, kept = (broker.topics.find_log(TopicPartition.modern(topic, 0)) for topic in ("t", "kept"))
        assert log is not None
        assert kept is not None
        async with timeout(20):
            while kept.unflushed or log.start_offset != 3:  # noqa: ASYNC110 - housekeeping tells nobody
                await asyncio.sleep(0.02)
        assert 0 == kept.start_offset


async def test_port_that_is_taken_is_named(zookeeper: str, tmp_path: Path) -> None:
    """The one thing that a user gets wrong first; and nothing is left behind."""
    settings = BrokerSettings(directory=tmp_path / "logs", zookeeper=zookeeper)
    async with EmbeddedBroker(settings) as broker:
        taken = replace(settings, port=broker.port, directory=tmp_path / "others")
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{broker.port}"):
            async with EmbeddedBroker(taken):
                pass
        with pytest.raises(LogLocked):
            async with EmbeddedBroker(replace(settings, broker_id=1)):
                pass


async def test_start_that_is_cancelled_lets_the_directory_go(tmp_path: Path) -> None:
    """A thread opens it, which no cancellation stops; whoever comes next must find it free."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(FillableFiles):
        def make_folder(self, path: Path) -> None:
            inside.set()
            go_on.wait(20)
            super().make_folder(path)

    broker = EmbeddedBroker(BrokerSettings(directory=tmp_path / "logs", zookeeper="127.0.0.1:1"))
    broker.faults.files = Slow()
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(broker.__aenter__())
        await asyncio.to_thread(inside.wait, 20)
        starting.cancel()
        await asyncio.sleep(0)
        go_on.set()
    assert starting.cancelled()
    LogDirectory.open(tmp_path / "logs", files=OsLogFiles(), now_ms=lambda: 0).close()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_port_that_is_none_is_refused(port: int, tmp_path: Path) -> None:
    """The system would take it modulo 65536, and the broker listen at another one than it was told."""
    with pytest.raises(ConfigError, match=f"port: expected 0 to 65535, got {port}"):
        BrokerSettings(directory=tmp_path, zookeeper="127.0.0.1:1", port=port)


def test_release_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """With those that are."""
    with pytest.raises(ConfigError, match=r"one of 0.8.2, 0.9, 0.10, 1.1, 4.0, got '3.0'"):
        BrokerSettings(directory=tmp_path, zookeeper="127.0.0.1:1", as_release="3.0")
