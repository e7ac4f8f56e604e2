# SPDX-License-Identifier: Apache-2.0
"""The embedded broker with SASL and ACLs, judged by librdkafka, aiokafka and kafka-python, and by our own clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.access.sasl_login import SaslLogin
from consumerd.admin.doctor.grants import check_grants, read_grants
from consumerd.client.opening import open_access, open_producer, open_simple_consumer
from consumerd.embedded.acls import AclFile
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.sasl import MECHANISMS, make_users, read_users
from consumerd.errors import AuthenticationFailed, BrokerError, ConfigError, ProduceError, TopicMissing, WriteRefused
from consumerd.landing.findings import Finding
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.groups import HeartbeatRequest
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.modern.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from consumerd.wire.schema import Request
from tests.support.broker_script import CLOSED, Asker, records

PASSWORDS: Final = {"alice": "alice-secret", "bob": "bob-secret"}
ALL: Final = "allow User:alice All *\n"
P: Final = TopicPartition.modern("orders", 0)
TIMEOUT_S: Final = 20.0
WAIT: Final = {"max_wait_ms": 1, "min_bytes": 1}

BOTH = pytest.mark.parametrize("release", ["0.10", "1.1"])
EACH = pytest.mark.parametrize("mechanism", MECHANISMS)


@asynccontextmanager
async def secured(tmp_path: Path, *, rules: str = ALL, release: str = "1.1") -> AsyncIterator[EmbeddedCluster]:
    """Run a broker with two users; ``rules`` are in a file, ``acls``, that a test may change."""
    path = tmp_path / "acls"
    path.write_text(rules)
    settings = partial(BrokerSettings, as_release=release, users=make_users(PASSWORDS), acls=AclFile(path).allows)
    async with EmbeddedCluster(topics={"orders": 1}, make_broker=settings) as cluster:
        yield cluster


def login(mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str | None = None) -> SaslLogin:
    return SaslLogin(
        mechanism=mechanism,
        username=user,
        password=PASSWORDS[user] if password is None else password,
        allow_plaintext_password=True,
    )


def address(cluster: EmbeddedCluster, sasl: SaslLogin | None, *, by_zookeeper: bool = False) -> ClusterAddress:
    where = {"zookeeper": cluster.zookeeper} if by_zookeeper else {"bootstrap": cluster.bootstrap}
    return ClusterAddress(client_id="test", sasl=sasl, request_timeout_s=5.0, **where)


@asynccontextmanager
async def connected(where: ClusterAddress) -> AsyncIterator[BrokerConnection]:
    """Open an authenticated connection to the one broker."""
    async with open_cluster(where, wait_s=TIMEOUT_S) as connections:
        (broker,) = await connections.find_brokers()
        yield await connections.pool.get(broker, Purpose.CONTROL)


async def send(where: ClusterAddress, value: bytes) -> None:
    async with open_producer(where) as producer:
        await producer.send("orders", value, partition=0)


async def fetch(where: ClusterAddress) -> list[bytes | None]:
    async with open_simple_consumer(where) as consumer:
        return (await consumer.fetch(P, 0)).batch.values()


@BOTH
@EACH
async def test_each_client_authenticates_by_each_mechanism(tmp_path: Path, release: str, mechanism: str) -> None:
    """Both framings of tokens: bare with 0.10, in requests with 1.1. What one writes, the others read."""
    async with secured(tmp_path, release=release) as cluster:
        await send(address(cluster, login(mechanism), by_zookeeper=True), b"ours")
        await asyncio.to_thread(_send_by_librdkafka, cluster.bootstrap, mechanism)
        await _send_by_aiokafka(cluster.bootstrap, mechanism)

        expected = [b"ours", b"librdkafka", b"aiokafka"]
        assert expected == await fetch(address(cluster, login(mechanism)))
        assert expected == await asyncio.to_thread(_read_by_librdkafka, cluster.bootstrap, mechanism, 3)
        assert expected == await _read_by_aiokafka(cluster.bootstrap, mechanism, 3)
        assert expected == await asyncio.to_thread(_read_by_kafka_python, cluster.bootstrap, mechanism, 3)


@BOTH
@EACH
async def test_wrong_passwords_and_unknown_users_are_refused(tmp_path: Path, release: str, mechanism: str) -> None:
    """With a text from 1.0 on; before, by the end of the connection. No password is in it."""
    async with secured(tmp_path, release=release) as cluster:
        for wrong in (login(mechanism, password="wrong"), login(mechanism, "bob", "alice-secret")):
            with pytest.raises(AuthenticationFailed) as refused:
                async with connected(address(cluster, wrong)):
                    pass
            assert ("error 58" in str(refused.value)) == (release == "1.1")
            assert "wrong" not in str(refused.value).replace("the password is wrong", "")
        if release == "1.1":  # before, it takes the end of the connection for a broker that went down
            with pytest.raises(aiokafka.errors.KafkaError):
                await _send_by_aiokafka(cluster.bootstrap, mechanism, "wrong")


@BOTH
async def test_a_connection_that_was_not_authenticated_is_asked_nothing(tmp_path: Path, release: str) -> None:
    """As recorded of 0.10.2.2 and 1.1.1: a second ApiVersions is answered by the first alone."""
    async with secured(tmp_path, release=release) as cluster:

        def play(*requests: tuple[Request[Any], int]) -> list[object]:
            asker = Asker(cluster.bootstrap)
            try:
                return [CLOSED if (one := asker.ask(*request)) == CLOSED else one["error_code"] for request in requests]
            finally:
                asker.close()

        versions, metadata = (ApiVersionsRequest(), 0), (MetadataRequest(topics=("orders",)), 0)
        hands, token = (SaslHandshakeRequest(mechanism="PLAIN"), 0), (SaslAuthenticateRequest(auth_bytes=b"x"), 0)
        other = (SaslHandshakeRequest(mechanism="OAUTHBEARER"), 0)
        scripts: dict[str, tuple[list[tuple[Request[Any], int]], list[object]]] = {
            "metadata": ([metadata], [CLOSED]),
            "twice": ([versions, versions], [0, 0 if release == "0.10" else CLOSED]),
            "late": ([versions, hands, versions], [0, 0, CLOSED]),
            "unknown": ([versions, other], [0, 33]),
            "token first": ([token], [CLOSED]),
        }
        for name, (requests, expected) in scripts.items():
            assert expected == await asyncio.to_thread(play, *requests), name


DENIED, GONE = 29, 3


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", {"1.1": [DENIED, DENIED, DENIED, DENIED, 30, 30, 30], "0.10": [GONE, GONE, GONE, GONE, 30, 30, 30]}),
        ("allow User:bob Describe Topic:orders", {"": [0, 0, DENIED, DENIED, 30, 30, 30]}),
        ("allow User:bob Read Topic:orders", {"": [0, 0, 0, DENIED, 30, 30, 30]}),
        ("allow User:bob Write Topic:orders", {"": [0, 0, DENIED, 0, 30, 30, 30]}),
        (
            "allow User:bob Read Group:g",
            {"1.1": [DENIED, DENIED, DENIED, DENIED, 15, 16, 16], "0.10": [GONE, GONE, GONE, GONE, 15, 16, 16]},
        ),
        ("allow User:bob Read Topic:orders\nallow User:bob Read Group:g", {"": [0, 0, 0, DENIED, 15, 16, 16]}),
    ],
)
@BOTH
async def test_requests_are_answered_by_what_is_granted(
    tmp_path: Path, release: str, rules: str, expected: dict[str, list[int]]
) -> None:
    """The table of answers of 0.10.2.2 and 1.1.1. A group has no coordinator yet: 15 and 16 say that it may be asked."""
    async with (
        secured(tmp_path, rules=rules, release=release) as cluster,
        connected(address(cluster, login(user="bob"))) as connection,
    ):

        async def ask(request: Request[Any]) -> Any:
            return await connection.request(request, timeout_s=TIMEOUT_S)

        fetch_one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        list_one = ListTopic(topic="orders", partitions=(ListPartition(partition=0, timestamp=-1),))
        sent = ProducePartition(partition=0, record_set=records(2, size=10))
        kept = OffsetFetchTopic(topic="orders", partitions=(0,))
        found = [
            (await ask(MetadataRequest(topics=("orders",)))).topics[0],
            (await ask(ListOffsetsRequest(topics=(list_one,)))).topics[0].partitions[0],
            (await ask(FetchRequest(topics=(FetchTopic(topic="orders", partitions=(fetch_one,)),), **WAIT)))
            .topics[0]
            .partitions[0],
            (
                await ask(
                    ProduceRequest(acks=1, timeout_ms=5000, topics=(ProduceTopic(topic="orders", partitions=(sent,)),))
                )
            )
            .topics[0]
            .partitions[0],
            await ask(FindCoordinatorRequest(key="g")),
        ]
        positions = await ask(OffsetFetchRequest(group_id="g", topics=(kept,)))
        found += [
            positions if positions.error_code else positions.topics[0].partitions[0],
            await ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m")),
        ]
        assert (expected.get(release) or expected[""]) == [one.error_code for one in found]


async def test_all_topics_are_those_that_may_be_seen(tmp_path: Path) -> None:
    """And requests about several topics are answered in part."""
    rules = "allow User:bob Read Topic:orders"
    async with secured(tmp_path, rules=rules) as cluster, connected(address(cluster, login(user="bob"))) as connection:
        await cluster.broker.create_topic("hidden")
        listed = await connection.request(MetadataRequest(topics=None), timeout_s=TIMEOUT_S)
        assert ["orders"] == [one.topic for one in listed.topics]
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topics = tuple(FetchTopic(topic=one, partitions=(part,)) for one in ("hidden", "orders", "none"))
        fetched = await connection.request(
            FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics), timeout_s=TIMEOUT_S
        )
        codes = [(one.topic, one.partitions[0].error_code) for one in fetched.topics]
        assert [("hidden", DENIED), ("orders", 0), ("none", DENIED)] == codes


async def test_other_clients_are_told_of_missing_rights_and_go_on_after_the_grant(tmp_path: Path) -> None:
    """Their own texts; the rules are read again by the next request."""
    async with secured(tmp_path) as cluster:
        await send(address(cluster, login()), b"v")
        with pytest.raises(WriteRefused, match="allow `Write`"):
            rules = f"{ALL}allow User:bob Describe Topic:orders\nallow User:bob Read Group:g\n"
            (tmp_path / "acls").write_text(rules)
            await send(address(cluster, login(user="bob")), b"refused")
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await fetch(address(cluster, login(user="bob")))
        refused = await asyncio.to_thread(_find_librdkafka_error, cluster.bootstrap, "bob")
        assert refused == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        (tmp_path / "acls").write_text(f"{ALL}allow User:bob Read Topic:orders\nallow User:bob Read Group:g\n")
        assert [b"v"] == await fetch(address(cluster, login(user="bob")))
        assert [b"v"] == await asyncio.to_thread(_read_by_librdkafka, cluster.bootstrap, "SCRAM-SHA-256", 1, "bob")


@pytest.mark.parametrize(
    ("release", "hidden", "refusal"),
    [("0.10", "topic-unknown-to-brokers", "the password is wrong"), ("1.1", "topic-not-described", "error 58")],
)
async def test_the_doctor_names_a_refused_identity_and_missing_rights(
    tmp_path: Path, release: str, hidden: str, refusal: str
) -> None:
    """With the command that mends it; what is allowed is not mentioned. Brokers of 0.10 hide a topic, and its leaders."""
    async with secured(
        tmp_path, rules="allow User:bob Describe Topic:described\nallow User:bob Read Topic:read\n", release=release
    ) as own:
        for topic in ("described", "read"):
            await own.broker.create_topic(topic)

        async def examine(sasl: SaslLogin) -> dict[str, Finding]:
            where = address(own, sasl, by_zookeeper=True)
            async with open_cluster(where, wait_s=TIMEOUT_S) as connections, open_access(connections) as access:
                grants = await read_grants(access, ["orders", "described", "read"], timeout_s=TIMEOUT_S)
                return {one.kind: one for one in check_grants(grants, where.principal)}

        found = await examine(login(user="bob"))
        assert {hidden: "orders", "topic-not-read": "described"} == {kind: one.where for kind, one in found.items()}
        assert "--allow-principal User:bob --operation Read --topic orders`" in (found[hidden].advice or "")
        (refused,) = (await examine(login(user="bob", password="wrong"))).values()
        assert ("identity-refused", True) == (refused.kind, "User:bob" in refused.detail)
        assert refusal in refused.detail
        (tmp_path / "acls").write_text("allow User:bob Read Topic:*\n")
        assert {} == await examine(login(user="bob"))


@pytest.mark.parametrize(
    ("rules", "error"),
    [("", TopicMissing), ("allow User:bob Describe Topic:orders\n", WriteRefused)],
    ids=["hidden", "described"],
)
async def test_a_producer_that_may_not_write_names_its_identity(
    tmp_path: Path, rules: str, error: type[ProduceError]
) -> None:
    """Metadata refuses the topic, or Produce does: either way the command can be run as it stands."""
    async with secured(tmp_path, rules=ALL + rules) as cluster:
        with pytest.raises(error) as refused:
            await send(address(cluster, login(user="bob")), b"v")

        command = f"kafka-acls --bootstrap-server {cluster.bootstrap} --command-config admin.properties --add"
        granted = "--allow-principal User:bob --operation Write --topic orders"
        assert f"allow `Write` on `Topic:orders` for User:bob: `{command} {granted}`" in str(refused.value)


async def test_a_large_frame_before_authentication_ends_the_connection(tmp_path: Path) -> None:
    """Nobody without a password makes the broker decode much."""
    async with secured(tmp_path) as cluster:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.broker.port)
        writer.write((1 << 20).to_bytes(4) + bytes(1 << 20))
        with suppress(ConnectionError):
            assert b"" == await asyncio.wait_for(reader.read(), TIMEOUT_S)  # noqa: TID251
        writer.close()
        await send(address(cluster, login()), b"others are served")


def test_users_are_read_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    """And no password is in an error."""
    path = tmp_path / "users"
    path.write_text("# users\nalice:with:colon\n\nbob:b\n")
    path.chmod(0o600)
    assert {"alice": "with:colon", "bob": "b"} == read_users(path).passwords
    assert "with:colon" not in repr(read_users(path))
    path.write_text("alice:a\nbob-b-secret\n")
    with pytest.raises(ConfigError, match=r"line 2: expected USER:PASSWORD") as wrong:
        read_users(path)
    assert "bob-b-secret" not in str(wrong.value)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by everybody"):
        read_users(path)


def test_a_release_without_passwords_is_refused() -> None:
    """0.9 has Kerberos alone."""
    with pytest.raises(ConfigError, match=r"0\.10 and later"):
        BrokerSettings(directory=Path("/x"), zookeeper="z:1", as_release="0.9", users=make_users({"a": "b"}))


# -- clients that are not ours


def _librdkafka(bootstrap: str, mechanism: str, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


def _send_by_librdkafka(bootstrap: str, mechanism: str) -> None:
    producer = confluent_kafka.Producer(_librdkafka(bootstrap, mechanism, "alice"))
    producer.produce("orders", b"librdkafka", partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def _consume_by_librdkafka(bootstrap: str, mechanism: str, user: str) -> confluent_kafka.Consumer:
    settings = _librdkafka(bootstrap, mechanism, user) | {"group.id": "g", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    return consumer


def _read_by_librdkafka(bootstrap: str, mechanism: str, count: int, user: str = "alice") -> list[bytes]:
    consumer = _consume_by_librdkafka(bootstrap, mechanism, user)
    try:
        return [one.value() for one in consumer.consume(count, TIMEOUT_S)]
    finally:
        consumer.close()


def _find_librdkafka_error(bootstrap: str, user: str) -> int:
    consumer = _consume_by_librdkafka(bootstrap, "SCRAM-SHA-256", user)
    try:
        (message,) = consumer.consume(1, TIMEOUT_S)
        return int(message.error().code())
    finally:
        consumer.close()


def _aiokafka(bootstrap: str, mechanism: str, password: str = "alice-secret") -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


async def _send_by_aiokafka(bootstrap: str, mechanism: str, password: str = "alice-secret") -> None:
    producer = aiokafka.AIOKafkaProducer(**_aiokafka(bootstrap, mechanism, password))
    try:
        await producer.start()
        await producer.send_and_wait("orders", b"aiokafka", partition=0)
    finally:
        await producer.stop()


async def _read_by_aiokafka(bootstrap: str, mechanism: str, count: int) -> list[bytes]:
    consumer = aiokafka.AIOKafkaConsumer(**_aiokafka(bootstrap, mechanism), group_id=None)
    try:
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition("orders", 0)])
        consumer.seek(aiokafka.TopicPartition("orders", 0), 0)
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def _read_by_kafka_python(bootstrap: str, mechanism: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(**_aiokafka(bootstrap, mechanism), group_id=None)
    try:
        partition = kafka.TopicPartition("orders", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()
