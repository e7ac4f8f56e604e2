# SPDX-License-Identifier: Apache-2.0
"""Kerberos at real brokers and a real Kerberos server: the commands and the daemon as processes of their own."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.gssapi_client import GssapiClient
from consumerd.sasl.kerberos import KerberosLogin, TicketCache
from tests.interop.conftest import Figure, SecureFactory
from tests.interop.test_sasl import acknowledged, count_of
from tests.support.daemon import Daemon, settings_for
from tests.support.kdc import Kdc
from tests.support.landing_check import check_landing, wait_landed
from tests.support.load import SteadyLoad
from tests.support.secure_kafka import SecureCluster
from tests.support.seeds import run_seed
from tests.support.shifted_clock import shift_clock
from tests.support.tools import require_kerberos
from tests.support.waiting import wait_until

pytestmark = pytest.mark.drawn(parts=5)

RELEASES = [
    "0.9.0.1",
    pytest.param("0.10.2.2", marks=pytest.mark.full),
    "1.1.1",
    pytest.param("2.8.2", marks=pytest.mark.full),
]
MOSTLY_MAIN = [pytest.param(one, marks=pytest.mark.full) for one in ("0.9.0.1", "0.10.2.2")]
MOSTLY_MAIN += ["1.1.1", pytest.param("2.8.2", marks=pytest.mark.full)]
"""Releases for tests that CI runs on one of them."""
SKEW_S = 3600
"""Kerberos allows five minutes."""


def run_command(
    cluster: SecureCluster, section: Mapping[str, Any], *args: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of consumerd in the realm, with these settings of the cluster."""
    assert cluster.kdc is not None
    config = cluster.directory / "consumerd.yaml"
    config.write_text(yaml.safe_dump({"cluster": dict(section), "group": {"id": "g"}}))
    return subprocess.run(
        [sys.executable, "-m", "consumerd", args[0], "--config", str(config), *args[1:]],
        input=stdin,
        capture_output=True,
        env={**os.environ, **cluster.kdc.environment},
        timeout=120,
        check=False,
    )


def login(cluster: SecureCluster, **changes: Any) -> Mapping[str, Any]:
    """Return settings of the cluster by its brokers alone, with changes of ``sasl``; None removes a key."""
    section = cluster.section("GSSAPI", tls=False)
    sasl = {name: value for name, value in {**section["sasl"], **changes}.items() if value is not None}
    return {**section, "zookeeper": None, "bootstrap": cluster.sasl_bootstrap(tls=False), "sasl": sasl}


def refusal_of(cluster: SecureCluster, section: Mapping[str, Any]) -> str:
    done = run_command(cluster, section, "topics")
    assert done.returncode != 0
    return done.stderr.decode()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("secured", RELEASES, scope="module")
def test_records_go_there_and_back(
    secured: str, tls: bool, kdc: Kdc, secure_clusters: SecureFactory, unique: Callable[[str], str]
) -> None:
    """In each of the three framings, with tickets from a keytab."""
    cluster = secure_clusters(secured, kdc)
    topic = unique("kerberos")
    cluster.create_topic(topic, 1)
    section = cluster.section("GSSAPI", tls=tls)

    written = run_command(cluster, section, "produce", topic, stdin=b"one\ntwo\n")
    assert written.returncode == 0, written.stderr
    read = run_command(cluster, section, "tail", topic, "--from", "EARLIEST", "--format", "value")
    assert (read.returncode, read.stdout) == (0, b"one\ntwo\n"), read.stderr


@pytest.mark.parametrize("secured", MOSTLY_MAIN, scope="module")
def test_tickets_of_the_systems_cache_are_used(
    secured: str, kdc: Kdc, secure_clusters: SecureFactory, unique: Callable[[str], str]
) -> None:
    """Without keytab and principal; after they have expired, the message says what to do."""
    cluster = secure_clusters(secured, kdc)
    topic = unique("cache")
    cluster.create_topic(topic, 1)
    section = login(cluster, keytab=None, principal=None)

    assert "there is no ticket: run kinit as this user" in refusal_of(cluster, section)
    kdc.kinit("bob", "-l", "5s")
    done = run_command(cluster, section, "produce", topic, stdin=b"one\n")
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, **kdc.environment}
    expired = ["klist", "-s"]
    wait_until(lambda: subprocess.run(expired, env=environment, check=False).returncode != 0, "the ticket expires")
    assert "Ticket expired; renew it (kinit)" in refusal_of(cluster, section)
    (kdc.directory / "cache").unlink()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"service_name": "nosuch"}, "compare service_name, and the server's address"),
        ({"service_name": "zookeeper"}, "check cluster.sasl.service_name"),
        ({"principal": "bob@TEST.LOCAL"}, "the keytab has no key for the principal, or an old one"),
    ],
    ids=str,
)
@pytest.mark.parametrize("secured", MOSTLY_MAIN, scope="module")
def test_wrong_names_are_told(
    secured: str, changes: Mapping[str, str], reason: str, kdc: Kdc, secure_clusters: SecureFactory
) -> None:
    """The Kerberos server does not know the service; or the broker not its ticket; or the keytab not the principal."""
    cluster = secure_clusters(secured, kdc)

    assert reason in refusal_of(cluster, login(cluster, **changes))


def test_address_that_is_no_name_of_the_brokers_principal_is_told(kdc: Kdc, secure_clusters: SecureFactory) -> None:
    """By its number, the broker is nobody that Kerberos knows."""
    cluster = secure_clusters("1.1.1", kdc)
    section = {**login(cluster), "bootstrap": f"127.0.0.1:{cluster.sasl_ports[0]}"}

    said = refusal_of(cluster, section)

    assert "Server kafka/127.0.0.1@TEST.LOCAL not found in Kerberos database" in said
    assert "compare service_name, and the server's address" in said


def test_keytab_of_an_old_key_is_told(kdc: Kdc, secure_clusters: SecureFactory, tmp_path: Path) -> None:
    """Somebody has exported the key anew, which makes all older keytabs worthless."""
    cluster = secure_clusters("1.1.1", kdc)
    old = tmp_path / "old.keytab"
    shutil.copy(kdc.keytab("lake/host1"), old)
    old.chmod(0o600)
    kdc.export("lake/host1")

    said = refusal_of(cluster, login(cluster, keytab=str(old), principal="lake/host1@TEST.LOCAL"))

    assert "the keytab has no key for the principal, or an old one" in said


@pytest.mark.timeout(120)
def test_principal_without_a_rule_is_told(kdc: Kdc, own_secure_cluster: SecureFactory) -> None:
    """1.1.1 accepts the authentication, and closes the connection at the first request."""
    rules = {"sasl_kerberos_principal_to_local_rules": r"RULE:[1:$1@$0](bob@TEST.LOCAL)s/@.*//"}
    cluster = own_secure_cluster("1.1.1", kdc, **rules)

    said = refusal_of(cluster, login(cluster))

    assert "the broker has no rule for this principal in sasl.kerberos.principal.to.local.rules" in said
    done = run_command(cluster, login(cluster, keytab=str(kdc.keytab("bob")), principal="bob"), "topics")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("secured", MOSTLY_MAIN, scope="module")
@pytest.mark.records
@pytest.mark.timeout(240)
def test_a_job_outlives_a_dead_and_a_silent_kerberos_server(
    secured: str, kdc: Kdc, own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Connections need none, so nothing stops and nothing is told."""
    cluster = own_secure_cluster(secured, kdc)
    topic, group = unique("dead"), unique("dead")
    cluster.create_topic(topic, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    settings["cluster"] = cluster.section("GSSAPI", tls=False)
    producer = cluster.ledger_producer(linger_ms="5", retry_backoff_ms="200")
    with Daemon(tmp_path, "member", settings, environment=kdc.environment) as member:
        with SteadyLoad(producer, {topic: 2}, per_second=30) as load:
            member.wait(lambda: acknowledged(member) > 60, "records land", 60)
            kdc.stop()
            try:
                before = acknowledged(member)
                member.wait(lambda: acknowledged(member) > before + 60, "connections go on while it is dead", 60)
                with silent(kdc.port):
                    before = acknowledged(member)
                    member.wait(lambda: acknowledged(member) > before + 60, "and while it is silent", 60)
            finally:
                kdc.start()
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        assert [] == member.events("authentication_refused") + member.events("ticket_not_renewed")
        assert member.terminate() == 0
    check_landing(landing, ledger)


@pytest.mark.timeout(240)
def test_a_silent_kerberos_server_at_the_start_is_told_and_waited_for(
    kdc: Kdc, secure_clusters: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """It answers nobody for most of a minute; the page works meanwhile, and the process can be ended at any time."""
    cluster = secure_clusters("1.1.1", kdc)
    topic, group = unique("silent"), unique("silent")
    cluster.create_topic(topic, 1)
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets={"on_missing": "earliest"})
    settings["cluster"] = cluster.section("GSSAPI", tls=False)
    kdc.stop()
    try:
        with silent(kdc.port), Daemon(tmp_path, "ended", settings, environment=kdc.environment) as member:
            member.wait(lambda: "no Kerberos ticket within 20 s" in member.get("/")[1], "the page tells", 60)
            assert member.terminate() == 0
        with Daemon(tmp_path, "member", settings, environment=kdc.environment) as member:
            member.wait(lambda: "no Kerberos server of the realm answers" in member.get("/")[1], "the page tells", 60)
            kdc.start()
            cluster.produce(topic, b"k\tv\n")
            member.wait(lambda: len(member.deliveries) == 1, "the record is delivered", 90)
            assert member.terminate() == 0
    finally:
        if kdc.process is None:
            kdc.start()


@pytest.mark.parametrize("secured", MOSTLY_MAIN, scope="module")
@pytest.mark.timeout(300)
def test_clocks_that_differ_are_told_and_mended_without_a_restart(
    secured: str, secure_clusters: SecureFactory, kdc: Kdc, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The Kerberos server's clock is an hour behind. The library follows it, so it is the broker that refuses."""
    cluster = secure_clusters(secured, kdc)
    topic, group = unique("skew"), unique("skew")
    cluster.create_topic(topic, 1)
    cluster.produce(topic, b"k\tv\n")
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets={"on_missing": "earliest"})
    settings["cluster"] = cluster.section("GSSAPI", tls=False)
    kdc.stop()
    try:
        kdc.start(shift_clock(kdc.directory, -SKEW_S))
        with Daemon(tmp_path, "member", settings, environment=kdc.environment) as member:
            member.wait(lambda: "the clocks of both hosts" in member.get("/")[1], "the page tells", 60)
            kdc.stop()
            kdc.start()
            member.wait(lambda: len(member.deliveries) == 1, "the record is delivered", 120)
            assert member.events("ticket_replaced")
            assert member.terminate() == 0
    finally:
        kdc.stop()
        kdc.start()


@pytest.mark.timeout(180)
def test_clock_that_is_not_followed_is_told(kdc: Kdc, secure_clusters: SecureFactory, tmp_path: Path) -> None:
    """With ``kdc_timesync = 0`` in krb5.conf, tickets of a clock that differs are not taken at all."""
    cluster = secure_clusters("1.1.1", kdc)
    text = kdc.config.read_text()
    kdc.stop()
    try:
        kdc.start(shift_clock(kdc.directory, SKEW_S))
        kdc.config.write_text(text.replace("[libdefaults]\n", "[libdefaults]\n kdc_timesync = 0\n"))
        said = refusal_of(cluster, login(cluster))
    finally:
        kdc.config.write_text(text)
        kdc.stop()
        kdc.start()

    assert "Clock skew too great in KDC reply" in said
    assert "the clocks of this host and of the Kerberos server differ by minutes: synchronise them" in said


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.full)], ids=["plain", "tls"])
@pytest.mark.records
@pytest.mark.full
@pytest.mark.timeout(300)
def test_tickets_that_end_while_the_kerberos_server_is_dead_are_told_and_nothing_is_lost(
    tls: bool, own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Connections live for four seconds here, so that new ones are needed; when the server is back, all goes on."""
    require_kerberos()
    with Kdc(ticket_life="20s") as short:
        cluster = own_secure_cluster("2.8.2", short, connections_max_reauth_ms="4000")
        topic, group = unique("ended"), unique("ended")
        cluster.create_topic(topic, 2)
        landing = tmp_path / "landing"
        sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
        settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
        settings["cluster"] = cluster.section("GSSAPI", tls=tls)
        producer = cluster.ledger_producer(linger_ms="5", retry_backoff_ms="200")
        with Daemon(tmp_path, "member", settings, environment=short.environment) as member:
            with SteadyLoad(producer, {topic: 2}, per_second=30) as load:
                member.wait(lambda: acknowledged(member) > 60, "records land", 60)
                rebalances = count_of(member, "consumerd_rebalances_total")
                short.stop()
                member.wait(lambda: bool(member.events("ticket_not_renewed")), "the end of the ticket is told", 60)
                told = "no Kerberos server of the realm answers"
                member.wait(lambda: bool(member.events("authentication_refused")), "the refusal is told", 60)
                member.wait(lambda: told in member.get("/")[1], "the page tells why", 60)
                assert len(member.owned()) == 2
                short.start()
                began, before = time.monotonic(), acknowledged(member)
                member.wait(lambda: acknowledged(member) > before + 60, "records land again", 90)
                figure("seconds from the server's return until records land", time.monotonic() - began)
                load.stop()
                ledger = producer.finish()
            wait_landed(landing, ledger)
            assert rebalances == count_of(member, "consumerd_rebalances_total")
            for kind in ("authentication_refused", "ticket_not_renewed"):
                assert f'consumerd_troubles_total{{kind="{kind}"}} ' in member.get("/metrics")[1]
            assert member.terminate() == 0
        check_landing(landing, ledger)


@pytest.mark.timeout(180)
def test_tickets_of_a_keytab_are_renewed_ahead(
    own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Tickets of 20 seconds: a connection that is made after several of them finds one that is good."""
    require_kerberos()
    with Kdc(ticket_life="20s") as short:
        cluster = own_secure_cluster("1.1.1", short)
        topic, group = unique("renewed"), unique("renewed")
        cluster.create_topic(topic, 1)
        settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets={"on_missing": "earliest"})
        settings["cluster"] = cluster.section("GSSAPI", tls=False)
        with Daemon(tmp_path, "member", settings, environment=short.environment) as member:
            member.wait_ready()
            (first,) = member.status()["tickets"]
            assert first["life_s"] <= 20.0
            member.wait(lambda: member.status()["tickets"][0]["end"] > first["end"] + 20.0, "tickets are renewed", 60)
            shown = f'consumerd_kerberos_ticket_expiry_timestamp_seconds{{identity="{first["identity"]}"}}'
            assert shown in member.get("/metrics")[1]
            cluster.restart_broker(0)
            cluster.produce(topic, b"k\tv\n")
            member.wait(lambda: len(member.deliveries) == 1, "the record is delivered", 60)
            assert [] == member.events("authentication_refused") + member.events("ticket_not_renewed")
            assert member.terminate() == 0


# -- the library, without a broker


@pytest.fixture
def realm(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kdc], TicketCache]:
    """Make this process a client of a realm; returns alice's tickets."""

    def enter(kdc: Kdc) -> TicketCache:
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        return TicketCache(KerberosLogin(principal="alice@TEST.LOCAL", keytab=kdc.keytab("alice")))

    return enter


def test_ticket_of_a_wrong_clock_is_replaced(realm: Callable[[Kdc], TicketCache]) -> None:
    """The library keeps the difference of the clocks with the ticket, also when there is none any more."""
    require_kerberos()
    with Kdc() as kdc:
        tickets = realm(kdc)
        kdc.stop()
        kdc.start(shift_clock(kdc.directory, -SKEW_S))
        tickets.acquire()
        kdc.stop()
        with pytest.raises(AuthenticationFailed, match="no Kerberos server of the realm answers"):
            tickets.replace()
        kdc.start()
        tickets.acquire()
        with pytest.raises(AuthenticationFailed, match="Clock skew too great; the clocks of this host"):
            tickets.open_context("kafka", "localhost").step(None)

        tickets.replace()
        assert tickets.open_context("kafka", "localhost").step(None)
        assert tickets.acquire() > 0


def test_ticket_that_has_ended_is_told(realm: Callable[[Kdc], TicketCache]) -> None:
    """The library's own words are "Success", and the keytab is right."""
    require_kerberos()
    with Kdc(ticket_life="2s") as kdc:
        tickets = realm(kdc)
        tickets.acquire()
        kdc.stop()

        def reason() -> str:
            try:
                tickets.acquire()
            except AuthenticationFailed as error:
                return str(error)
            return ""

        wait_until(lambda: bool(reason()), "the ticket ends")
        assert "credential has expired; it was not renewed in time" in reason()


def test_tokens_of_a_hostile_server_end_in_an_error_of_ours(kdc: Kdc, realm: Callable[[Kdc], TicketCache]) -> None:
    """The library reads them: nothing but our error may come of it, whatever is in them."""
    tickets = realm(kdc)
    tickets.acquire()
    chance = random.Random(run_seed())
    for _ in range(300):
        client = GssapiClient(lambda: tickets.open_context("kafka", "localhost"))
        own = bytearray(client.first().data)
        own[chance.randrange(len(own))] ^= 1 + chance.randrange(255)
        tokens = [chance.randbytes(chance.randrange(200)), own, own[: chance.randrange(len(own))], b"", bytes(60_000)]
        with pytest.raises((AuthenticationFailed, RemoteProtocolError)):
            for _ in range(20):
                client.next(bytes(chance.choice(tokens)))


@contextmanager
def silent(port: int) -> Iterator[None]:
    """Accept connections on a port, and say nothing."""
    with socket.create_server(("127.0.0.1", port)) as server:
        accepted: list[socket.socket] = []
        thread = threading.Thread(target=_accept, args=(server, accepted), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for one in accepted:
                one.close()


def _accept(server: socket.socket, accepted: list[socket.socket]) -> None:
    try:
        while True:
            accepted.append(server.accept()[0])
    except OSError:
        return
