# SPDX-License-Identifier: Apache-2.0
"""Connections and the cluster view against real brokers."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRangeReader
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.from_zookeeper import ZooKeeperSource
from consumerd.cluster.security_protocol import SecurityProtocol
from consumerd.cluster.view import compare_views
from consumerd.errors import ConnectionLost, RemoteProtocolError
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool, Purpose
from consumerd.net.stream import TcpConnector
from consumerd.net.versions import RELEASE_0_9, Origin, VersionMemory, assume_release, parse_broker_version
from consumerd.wire.modern.fetch import FetchRequest
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import topic_path
from consumerd.zk.layout_modern import MODERN
from tests.interop.conftest import ClusterFactory
from tests.support.cluster import wait_leader
from tests.support.kafka import Cluster, free_port, parse_release
from tests.support.raw_client import fetch
from tests.support.waiting import until
from tests.support.zookeeper import make_client

MAX_FRAME = 1 << 26
PASSWORD = b"changeit"


@dataclass(frozen=True)
class Joined:
    """What a daemon has of a cluster."""

    zk: AiozkClient
    pool: ConnectionPool
    directory: ClusterDirectory
    ranges: LogRangeReader
    records: SimpleConsumer


def make_dialer(
    *, tls: ssl.SSLContext | None = None, broker_version: str = "auto", memory: VersionMemory | None = None
) -> Dialer:
    return Dialer(
        TcpConnector(max_frame_bytes=MAX_FRAME, tls=tls),
        client_id="consumerd-test",
        now=time.monotonic,
        pinned=parse_broker_version(broker_version),
        memory=memory,
    )


@asynccontextmanager
async def dialed(dialer: Dialer, address: Address) -> AsyncIterator[BrokerConnection]:
    """Connect, and close whatever happens."""
    connection = await dialer.dial(address)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


@asynccontextmanager
async def joined(cluster: Cluster, *topics: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Joined]:
    """Run a directory on a real cluster."""
    protocol = SecurityProtocol.choose(tls=tls is not None, sasl=False)
    async with (
        make_client(cluster.zookeeper) as zk,
        ConnectionPool(make_dialer(tls=tls), now=time.monotonic, random=random.random) as pool,
        asyncio.TaskGroup() as tasks,
    ):
        directory = ClusterDirectory(
            zk,
            ZooKeeperSource(zk, protocol=protocol, layout=MODERN),
            lambda known: BrokerSource(pool, known, random=random.random),
            now=time.monotonic,
            random=random.random,
            layout=MODERN,
        )
        directory.follow(topics)
        running = tasks.create_task(directory.run())
        yield Joined(
            zk,
            pool,
            directory,
            LogRangeReader(pool, directory, random=random.random, timeout_s=20),
            SimpleConsumer(pool, directory, random=random.random, max_message_bytes=1 << 24, timeout_s=20),
        )
        running.cancel()


def first_address(cluster: Cluster) -> Address:
    return Address(host="127.0.0.1", port=cluster.ports[0])


async def ask_until_known(connection: BrokerConnection) -> None:
    """A broker that has just started answers before its controller has told it of any broker."""

    async def knows_a_broker() -> bool:
        return bool((await connection.request(MetadataRequest(topics=None), timeout_s=10)).brokers)

    await until(knows_a_broker, within_s=30)


@pytest.mark.parametrize(
    ("kafka", "known_as", "fetch"),
    [
        ("0.8.2.2", "assumed 0.8.2", 0),
        ("0.9.0.1", "assumed 0.9", 1),
        ("0.10.2.2", "negotiated", 3),
        ("1.1.1", "negotiated", 7),
        ("2.8.2", "negotiated", 11),
    ],
)
async def test_release_is_found_out(own_cluster: ClusterFactory, kafka: str, known_as: str, fetch: int) -> None:
    """By listing, by closing, by silence; and a second connection knows it at once."""
    cluster = await asyncio.to_thread(own_cluster, kafka)
    dialer = make_dialer()
    for attempt in range(2):
        started = time.monotonic()
        async with dialed(dialer, first_address(cluster)) as connection:
            assert attempt == 0 or time.monotonic() - started < 1.0
            assert str(connection.versions) == known_as
            assert connection.version_of(FetchRequest) == fetch
            if kafka != "0.8.2.2":  # which knows no broker before there is a topic
                await ask_until_known(connection)
            if connection.versions.origin is Origin.NEGOTIATED and kafka != "2.8.2":
                listed = connection.versions.ranges
                assumed = assume_release(parse_release(kafka)).ranges
                assert {key: listed[key] for key in assumed} == dict(assumed)


async def test_a_broker_of_0_8_that_was_taken_for_0_9_is_asked_again(
    shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """It answers Fetch v1 as if it were v0, and a partition would not be fetched for as long as that was believed."""
    cluster, topic = await asyncio.to_thread(shared_clusters, "0.8.2.2"), unique("taken")
    await asyncio.to_thread(cluster.create_topic, topic, 1)
    address, memory = first_address(cluster), VersionMemory()
    memory.remember(address, assume_release(RELEASE_0_9), time.monotonic())
    dialer = make_dialer(memory=memory)
    async with dialed(dialer, address) as connection:
        assert str(connection.versions) == "assumed 0.9"
        with pytest.raises(RemoteProtocolError):
            await connection.request(fetch(topic), timeout_s=10)
    async with dialed(dialer, address) as connection:
        assert str(connection.versions) == "assumed 0.8.2"
        assert [one.topic for one in (await connection.request(fetch(topic), timeout_s=10)).topics] == [topic]


@pytest.mark.smoke
async def test_pinned_release_works_without_asking(shared_clusters: ClusterFactory, release: str) -> None:
    """For those who do not want to be asked."""
    cluster = await asyncio.to_thread(shared_clusters, release)
    async with dialed(make_dialer(broker_version=release), first_address(cluster)) as connection:
        assert connection.versions.origin is Origin.PINNED
        await connection.request(MetadataRequest(topics=None), timeout_s=10)


@pytest.mark.smoke
async def test_both_accounts_of_a_real_cluster_agree(
    shared_clusters: ClusterFactory, release: str, unique: Callable[[str], str]
) -> None:
    """Leaders, partitions, brokers; the incarnation is the topic's czxid; new partitions show by themselves."""
    cluster = await asyncio.to_thread(shared_clusters, release)
    topic = unique("view")
    async with joined(cluster, topic) as here:
        await asyncio.to_thread(cluster.create_topic, topic, 3)
        async with timeout(20):
            for number in range(3):
                leader = await wait_leader(here.directory, TopicPartition.modern(topic, number))
                assert leader.address == first_address(cluster)
            stat = await here.zk.exists(topic_path(topic))
            assert stat is not None
            assert here.directory.view.topics[topic].incarnation == Incarnation(stat.czxid)

            zookeeper = await ZooKeeperSource(here.zk, layout=MODERN).read({topic})
            brokers = BrokerSource(here.pool, zookeeper.brokers.values, random=random.random)
            assert compare_views(zookeeper, await brokers.read({topic})) == []

            await asyncio.to_thread(cluster.add_partitions, topic, 5)
            await wait_leader(here.directory, TopicPartition.modern(topic, 4))


@pytest.mark.smoke
async def test_offsets_and_times_of_a_real_log(
    shared_clusters: ClusterFactory, release: str, unique: Callable[[str], str]
) -> None:
    """ListOffsets v0 to v2 tell the same of an empty log and of one with records; lag in seconds needs a timestamp."""
    cluster = await asyncio.to_thread(shared_clusters, release)
    topic = unique("log")
    await asyncio.to_thread(cluster.create_topic, topic, 2)
    partitions = [TopicPartition.modern(topic, number) for number in range(2)]
    async with joined(cluster, topic) as here:
        assert await here.ranges.read(partitions) == dict.fromkeys(partitions, LogRange(0, 0))
        assert await here.records.read_timestamp(partitions[0], 0) is None

        before_ms = int(time.time() * 1000)
        lines = b"".join(b"key-%d\tvalue-%d\n" % (number, number) for number in range(200))
        await asyncio.to_thread(cluster.produce, topic, lines, "gzip")

        ranges = await here.ranges.read(partitions)
        assert sum(found.latest for found in ranges.values()) == 200
        assert {found.earliest for found in ranges.values()} == {0}
        (full,) = [partition for partition in partitions if ranges[partition].latest > 0][:1]
        last = ranges[full].latest - 1
        timestamp = await here.records.read_timestamp(full, last)
        assert await here.records.read_timestamp(full, last + 1) is None
        if parse_release(release) >= (0, 10):
            assert timestamp is not None
            assert before_ms - 1 <= timestamp <= time.time() * 1000 + 1
            assert await here.ranges.offset_for_time([full], before_ms) == {full: 0}
            assert await here.ranges.offset_for_time([full], timestamp + 1000) == {full: None}
        else:
            assert timestamp is None
            assert await here.ranges.offset_for_time([full], before_ms - 60_000) == {full: 0}


@pytest.mark.smoke
async def test_deleted_topic_is_never_made_again(own_cluster: ClusterFactory, release: str) -> None:
    """Auto-creation is on, as it is by default: looking for a topic must not create it."""
    cluster = await asyncio.to_thread(
        own_cluster, release, properties={"auto.create.topics.enable": "true", "num.partitions": "1"}
    )
    topic, kept = "deleted", "kept"
    partition = TopicPartition.modern(topic, 0)
    for name in (topic, kept):
        await asyncio.to_thread(cluster.create_topic, name)
    async with joined(cluster, topic, kept) as here:
        async with timeout(20):
            await wait_leader(here.directory, partition)
        hurried = LogRangeReader(here.pool, here.directory, random=random.random, timeout_s=0.5)
        assert await hurried.read([partition]) == {partition: LogRange(0, 0)}
        await asyncio.to_thread(cluster.delete_topic, topic)

        async def gone() -> bool:
            await hurried.find([partition])
            return await here.zk.exists(topic_path(topic)) is None and topic not in here.directory.view.topics

        await until(gone, within_s=20)
        for _ in range(4):
            await here.directory.refresh("looking for the deleted topic")
            await hurried.find([partition])
            assert await here.zk.exists(topic_path(topic)) is None
        assert kept in here.directory.view.topics

        # and it would have been made again by naming it, so that this test can fail
        connection = await here.pool.get(
            here.directory.view.brokers[next(iter(here.directory.view.brokers))], Purpose.CONTROL
        )
        await connection.request(MetadataRequest(topics=(topic,)), timeout_s=10, version=0)
        async with timeout(20):
            await wait_leader(here.directory, partition)


def leaders_of(here: Joined, partitions: list[TopicPartition]) -> set[int]:
    return {leader.id for leader in map(here.directory.find_leader, partitions) if leader is not None}


async def test_killed_leader_is_replaced_in_the_view(own_cluster: ClusterFactory, release: str) -> None:
    """Its partitions are found at the other broker, and its own come back with it."""
    cluster = await asyncio.to_thread(own_cluster, release, 2)
    topic = "replicated"
    await asyncio.to_thread(cluster.create_topic, topic, 4, 2)
    partitions = [TopicPartition.modern(topic, number) for number in range(4)]
    async with joined(cluster, topic) as here:
        before = await here.ranges.read(partitions)
        assert leaders_of(here, partitions) == {0, 1}
        control = await here.pool.get(here.directory.view.brokers[min(here.directory.view.brokers)], Purpose.CONTROL)

        await asyncio.to_thread(cluster.kill_broker, 0)
        assert await here.ranges.read(partitions) == before
        assert leaders_of(here, partitions) == {1}
        assert control.closed
        with pytest.raises(ConnectionLost):
            await control.request(MetadataRequest(topics=None), timeout_s=1)

        await asyncio.to_thread(cluster.start_broker, 0)
        await until(lambda: {0, 1} == set(here.directory.view.brokers), within_s=20)


async def test_tls_only_broker(own_cluster: ClusterFactory, tmp_path: Path) -> None:
    """It registers endpoints and no host; Metadata comes back with the TLS listener, and is used with TLS."""
    authority = trustme.CA()
    keystore, truststore = write_stores(authority, tmp_path)
    port = free_port()
    cluster = await asyncio.to_thread(
        own_cluster,
        "1.1.1",
        properties={
            "listeners": f"SSL://127.0.0.1:{port}",
            "advertised.listeners": f"SSL://127.0.0.1:{port}",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(keystore),
            "ssl.keystore.password": PASSWORD.decode(),
            "ssl.key.password": PASSWORD.decode(),
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": str(truststore),
            "ssl.truststore.password": PASSWORD.decode(),
            "auto.create.topics.enable": "true",
        },
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    partition = TopicPartition.modern("secret", 0)
    async with joined(cluster, "secret", tls=context) as here, timeout(30):
        view = await here.directory.views.wait(lambda view: bool(view.brokers))
        (broker,) = view.brokers.values()
        assert (broker.address, broker.tls) == (Address(host="127.0.0.1", port=port, tls=True), True)
        connection = await here.pool.get(broker, Purpose.CONTROL)
        assert connection.versions.origin is Origin.NEGOTIATED
        await connection.request(MetadataRequest(topics=("secret",)), timeout_s=10)
        assert (await wait_leader(here.directory, partition)).tls
        assert await here.ranges.read([partition]) == {partition: LogRange(0, 0)}

    with pytest.raises(ConnectionLost):
        await make_dialer().dial(Address(host="127.0.0.1", port=port))
    with pytest.raises(ConnectionLost, match="certificate"):
        await make_dialer(tls=ssl.create_default_context()).dial(Address(host="127.0.0.1", port=port, tls=True))


def write_stores(authority: trustme.CA, folder: Path) -> tuple[Path, Path]:
    """Write a key store and a trust store that Java reads."""
    issued = authority.issue_cert("127.0.0.1")
    chain = [load_pem_x509_certificate(blob.bytes()) for blob in issued.cert_chain_pems]
    root = load_pem_x509_certificate(authority.cert_pem.bytes())
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(PASSWORD)
    keystore, truststore = folder / "keystore.p12", folder / "truststore.p12"
    keystore.write_bytes(
        pkcs12.serialize_key_and_certificates(b"broker", key, chain[0], [*chain[1:], root], encryption)
    )  # type: ignore[arg-type]  # trustme makes EC or RSA keys
    truststore.write_bytes(pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(root, b"root")], encryption))
    return keystore, truststore
