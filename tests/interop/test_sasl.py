# SPDX-License-Identifier: Apache-2.0
"""Authentication at real brokers: each mechanism and framing, what refusals are told as, and a job that goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.opening import open_producer, open_simple_consumer
from consumerd.config.cluster_section import ClusterSection
from consumerd.errors import AuthenticationFailed
from consumerd.model import TopicPartition
from consumerd.net.authentication import Authenticator
from consumerd.net.pool import Purpose
from consumerd.net.sasl_dialer import SaslDialer
from consumerd.net.stream import TcpConnector
from consumerd.wire.modern.metadata import MetadataRequest
from tests.interop.conftest import SecureFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.foreign.aiokafka_client import AiokafkaMember
from tests.support.foreign.membership import Driven
from tests.support.kafka import parse_release
from tests.support.landing_check import check_landed_with_resent, check_landing, wait_landed
from tests.support.load import SteadyLoad
from tests.support.sasl_broker import PlayedClient
from tests.support.secure_kafka import PASSWORDS, SecureCluster

pytestmark = pytest.mark.drawn(parts=3)

BOTH = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
NEWEST = pytest.param("2.8.2", marks=pytest.mark.full)
"""To a client it differs from 1.1.1 in versions of requests alone, and in the lifetime of connections."""
RELEASES = pytest.mark.parametrize("secured", ["0.10.2.2", "1.1.1", NEWEST], scope="module")
JOBS = pytest.mark.parametrize(
    "secured", [pytest.param("0.10.2.2", marks=pytest.mark.full), "1.1.1", NEWEST], scope="module"
)
"""Releases for daemons that run for a while."""
PASSWORD_MECHANISMS = pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
TIMEOUT_S = 30.0


def address_of(section: Mapping[str, Any]) -> ClusterAddress:
    """Return the address that settings mean, as the daemon and every command make it."""
    located = ClusterSection.model_validate(section).locate(client_id="test", session_timeout_ms=6000)
    assert located.sasl is not None
    return located


def by_brokers(cluster: SecureCluster, section: Mapping[str, Any], *, tls: bool) -> Mapping[str, Any]:
    """Return the same settings without ZooKeeper."""
    return {**section, "zookeeper": None, "bootstrap": cluster.sasl_bootstrap(tls=tls)}


async def ask_metadata(address: ClusterAddress) -> list[int]:
    """Return the ports of the brokers that Metadata names."""
    async with open_cluster(address, wait_s=TIMEOUT_S) as connections:
        (broker,) = await connections.find_brokers()
        connection = await connections.pool.get(broker, Purpose.CONTROL)
        response = await connection.request(MetadataRequest(topics=()), timeout_s=TIMEOUT_S)
        return [one.port for one in response.brokers]


def refusal_of(address: ClusterAddress) -> str:
    with pytest.raises(AuthenticationFailed) as refused:
        asyncio.run(ask_metadata(address))
    return str(refused.value)


async def write_and_read(address: ClusterAddress, topic: str) -> list[bytes | None]:
    async with open_producer(address) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number, partition=0)
    async with open_simple_consumer(address) as consumer:
        fetched = await consumer.fetch(TopicPartition.modern(topic, 0), 0)
        return fetched.batch.values()


@RELEASES
@BOTH
@PASSWORD_MECHANISMS
def test_each_mechanism_is_accepted(
    secured: str, mechanism: str, tls: bool, secure_clusters: SecureFactory, unique: Callable[[str], str]
) -> None:
    """The listener is found in ZooKeeper and in Metadata alike, and records go there and back."""
    cluster = secure_clusters(secured)
    topic = unique("sasl")
    cluster.create_topic(topic, 1)
    section = cluster.section(mechanism, tls=tls)
    ports = cluster.sasl_ssl_ports if tls else cluster.sasl_ports

    assert ports == asyncio.run(ask_metadata(address_of(section)))
    direct = address_of(by_brokers(cluster, section, tls=tls))
    assert ports == asyncio.run(ask_metadata(direct))
    assert [b"%d" % number for number in range(10)] == asyncio.run(write_and_read(direct, topic))


@RELEASES
@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.full)], ids=["plain", "tls"])
@PASSWORD_MECHANISMS
def test_wrong_passwords_and_unknown_users_are_told(
    secured: str, mechanism: str, tls: bool, secure_clusters: SecureFactory
) -> None:
    """As far as the release tells them apart."""
    cluster = secure_clusters(secured)
    section = cluster.section(mechanism, tls=tls)
    wrong = {**section, "sasl": {**section["sasl"], "password_file": str(cluster.password_file("bob"))}}
    unknown = {**section, "sasl": {**section["sasl"], "username": "nobody"}}
    old = parse_release(secured) < (1, 0)
    expected = ("or the broker went down",) * 2 if old else ("the broker refuses (error 58)",) * 2
    if old and mechanism != "PLAIN":
        expected = ("the password is wrong", "it does not know the user")

    for said, part in zip((refusal_of(address_of(wrong)), refusal_of(address_of(unknown))), expected, strict=True):
        assert f": {mechanism}: " in said
        assert part in said
        assert PASSWORDS["alice"] not in said
        assert PASSWORDS["bob"] not in said


@RELEASES
def test_unknown_mechanism_is_told_with_those_that_there_are(secured: str, secure_clusters: SecureFactory) -> None:
    """The operator reads what to write."""
    cluster = secure_clusters(secured)
    (broker,) = address_of(by_brokers(cluster, cluster.section("PLAIN", tls=False), tls=False)).first_brokers()

    async def dial() -> None:
        authenticator = Authenticator(lambda _address: PlayedClient("OAUTHBEARER", [b"x"]), "OAUTHBEARER")
        connector = TcpConnector(max_frame_bytes=1 << 20)
        now = asyncio.get_running_loop().time
        try:
            await SaslDialer(connector, authenticator, client_id="test", now=now).dial(broker.address)
        finally:
            await authenticator.aclose()

    with pytest.raises(AuthenticationFailed, match=r"not have the mechanism OAUTHBEARER; it has .*SCRAM-SHA-512"):
        asyncio.run(dial())


@RELEASES
def test_listener_without_sasl_is_told(secured: str, secure_clusters: SecureFactory) -> None:
    """The wrong port of the right broker."""
    cluster = secure_clusters(secured)
    section = {**by_brokers(cluster, cluster.section("PLAIN", tls=False), tls=False), "bootstrap": cluster.bootstrap}

    assert "the listener has no SASL (error 34)" in refusal_of(address_of(section))


@pytest.mark.records
@pytest.mark.timeout(240)
def test_a_job_over_sasl_and_tls_while_the_broker_restarts(
    own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Every record lands once; and nothing that the process shows has the password in it."""
    cluster = own_secure_cluster("1.1.1")
    topic, group = unique("job"), unique("job")
    cluster.create_topic(topic, 3)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    settings["cluster"] = cluster.section("SCRAM-SHA-512", tls=True)
    producer = cluster.ledger_producer(linger_ms="5", retry_backoff_ms="200")
    with Daemon(tmp_path, "member", settings) as member:
        with SteadyLoad(producer, {topic: 3}, per_second=50) as load:
            member.wait_ready()
            member.wait(lambda: acknowledged(member) > 100, "records land")
            rebalances = count_of(member, "consumerd_rebalances_total")
            cluster.restart_broker(0)
            restarted = acknowledged(member)
            member.wait(lambda: acknowledged(member) > restarted + 200, "records land again", 60)
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        assert rebalances == count_of(member, "consumerd_rebalances_total")
        shown = [member.get(path)[1] for path in ("/", "/metrics", "/api/v1/status", "/readyz")]
        shown += [Path(f"/proc/{member.process.pid}/{name}").read_text() for name in ("cmdline", "environ")]
        assert member.terminate() == 0
        shown.append(member.log())

    check_landed_with_resent(landing, ledger)
    assert [text for text in shown if PASSWORDS["alice"] in text] == []


@JOBS
@pytest.mark.records
@pytest.mark.timeout(240)
def test_a_password_that_is_changed_is_no_reason_to_stop(
    secured: str, own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """What runs goes on; after a restart of the broker one trouble tells; the file's new password mends it by itself."""
    cluster = own_secure_cluster(secured)
    topic, group = unique("changed"), unique("changed")
    cluster.create_topic(topic, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    settings["cluster"] = cluster.section("SCRAM-SHA-256", tls=False)
    producer = cluster.ledger_producer(linger_ms="5", retry_backoff_ms="200")
    with Daemon(tmp_path, "member", settings) as member:
        with SteadyLoad(producer, {topic: 2}, per_second=30) as load:
            member.wait(lambda: acknowledged(member) > 60, "records land", 60)
            rebalances = count_of(member, "consumerd_rebalances_total")
            cluster.set_scram_password("alice", "another-secret")
            before = acknowledged(member)
            member.wait(lambda: acknowledged(member) > before + 60, "open connections go on", 60)
            cluster.restart_broker(0)
            member.wait(lambda: bool(member.events("authentication_refused")), "the refusal is told", 60)
            assert len(member.owned()) == 2
            cluster.password_file("alice", "another-secret")
            mended = acknowledged(member)
            member.wait(lambda: acknowledged(member) > mended + 60, "records land again", 90)
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        assert rebalances == count_of(member, "consumerd_rebalances_total")
        assert 1 == len(member.events("authentication_refused")) == len(member.events("authentication_accepted"))
        assert 'consumerd_troubles_total{kind="authentication_refused"} 1.0' in member.get("/metrics")[1]
        assert "another-secret" not in member.log()
        assert member.terminate() == 0

    check_landed_with_resent(landing, ledger)


@JOBS
@pytest.mark.timeout(120)
def test_a_wrong_password_at_the_start_is_told_and_mended_without_a_restart(
    secured: str, secure_clusters: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The page says which broker and why; the process lives."""
    cluster = secure_clusters(secured)
    said = "check the user name and the password" if secured == "0.10.2.2" else "Invalid username or password"
    topic, group = unique("start"), unique("start")
    cluster.create_topic(topic, 1)
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets={"on_missing": "earliest"})
    settings["cluster"] = cluster.section("PLAIN", tls=True)
    cluster.produce(topic, b"k\tv\n")
    cluster.password_file("alice", "wrong-secret")
    with Daemon(tmp_path, "member", settings) as member:
        member.wait(lambda: said in member.get("/")[1], "the page tells", 60)
        cluster.password_file("alice")
        member.wait(lambda: len(member.deliveries) == 1, "the record is delivered", 90)
        assert "wrong-secret" not in member.log() + member.get("/")[1] + member.get("/api/v1/status")[1]
        assert member.terminate() == 0


@pytest.mark.parametrize(
    ("mechanism", "tls"),
    [
        pytest.param("PLAIN", True, marks=pytest.mark.full),
        pytest.param("SCRAM-SHA-256", False, marks=pytest.mark.full),
        ("SCRAM-SHA-512", True),
        pytest.param("GSSAPI", False, marks=pytest.mark.full),
        pytest.param("GSSAPI", True, marks=pytest.mark.full),
    ],
)
@pytest.mark.records
@pytest.mark.timeout(240)
def test_connections_with_a_lifetime_are_replaced_in_time(
    mechanism: str,
    tls: bool,
    request: pytest.FixtureRequest,
    own_secure_cluster: SecureFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Brokers of 2.8.2 close a connection at the first request after its lifetime; no request of ours fails of it."""
    kdc = request.getfixturevalue("kdc") if mechanism == "GSSAPI" else None
    cluster = own_secure_cluster("2.8.2", kdc, connections_max_reauth_ms="4000")
    topic, group = unique("lifetime"), unique("lifetime")
    cluster.create_topic(topic, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    settings["cluster"] = cluster.section(mechanism, tls=tls)
    producer = cluster.ledger_producer(linger_ms="5")
    environment = {} if kdc is None else kdc.environment
    with Daemon(tmp_path, "member", settings, environment=environment) as member:
        with SteadyLoad(producer, {topic: 2}, per_second=30) as load:
            member.wait(lambda: acknowledged(member) > 60, "records land", 60)
            failed = count_of(member, "consumerd_broker_request_failures_total")
            accepted = _authentications(member)
            # five lifetimes of the fetching connection
            member.wait(lambda: _authentications(member) >= accepted + 5, "connections are replaced", 90)
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        assert failed == count_of(member, "consumerd_broker_request_failures_total")
        assert member.terminate() == 0

    check_landing(landing, ledger)


@JOBS
@pytest.mark.records
@pytest.mark.timeout(240)
def test_aiokafka_and_ours_share_a_group_of_a_sasl_broker(
    secured: str, own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Under load and with ACLs: each partition has one owner, and all lands once when aiokafka has left."""
    cluster = own_secure_cluster(secured, authorizer_class_name="kafka.security.auth.SimpleAclAuthorizer")
    topic, group = unique("shared"), unique("shared")
    cluster.create_topic(topic, 4)
    reach = ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}", "--add")
    for kind, name in (("--topic", topic), ("--group", group)):
        cluster.run_tool(
            "kafka.admin.AclCommand", *reach, "--allow-principal", "User:alice", "--operation", "Read", kind, name
        )
    landing = tmp_path / "landing"
    settings = settings_for(
        None,
        group,
        cluster=cluster.section("SCRAM-SHA-512", tls=False),
        topics=(topic,),
        sink={"type": "jsonl", "path": str(landing), "roll_ms": 500},
        group={"membership": "kafka", "session_timeout_ms": 6000},
        offsets={"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200, "on_missing": "earliest"},
    )
    make = partial(
        AiokafkaMember, cluster.sasl_bootstrap(tls=False), group, topic, "aiokafka", (RangePartitionAssignor,),
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_plain_username="alice",
        sasl_plain_password=PASSWORDS["alice"],
    )  # fmt: skip
    producer = cluster.ledger_producer(linger_ms="5")
    with Daemon(tmp_path, "member", settings) as member:
        with SteadyLoad(producer, {topic: 4}, per_second=50, make_value=b"%d".__mod__) as load:
            member.wait(lambda: len(member.owned()) == 4, "it owns all", 90)
            other = Driven(make)
            try:
                member.wait(
                    lambda: (
                        len(member.owned()) == len(other.assigned) == 2
                        and {int(one["partition"]) for one in member.status()["partitions"]}.isdisjoint(other.assigned)
                    ),
                    "both have two, each its own",
                    90,
                )
            finally:
                other.leave()
            member.wait(lambda: len(member.owned()) == 4, "it owns all again", 90)
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        assert member.events("authentication_refused") == []
        assert member.terminate() == 0

    check_landing(landing, ledger)


def acknowledged(member: Daemon) -> int:
    """Return how many records of all partitions are acknowledged, by their offsets."""
    return sum(one["acknowledged"] or 0 for one in member.status()["partitions"])


def count_of(member: Daemon, metric: str) -> float:
    """Return the sum of a counter's series."""
    lines = member.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{metric} ", f"{metric}{{")))


def _authentications(member: Daemon) -> float:
    return count_of(member, 'consumerd_broker_request_seconds_count{api="SASL_HANDSHAKE"}')
