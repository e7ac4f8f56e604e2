# SPDX-License-Identifier: Apache-2.0
"""Real ZooKeepers with SASL, ACLs and TLS: groups with Java members of the same user, of another one, and of none.

Kafka 0.10.2.2 and 1.1.1 with ``zookeeper.set.acl=true`` bring ZooKeeper 3.4, 2.8.2 brings 3.5.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.conftest import SecureFactory, require, start_secured
from tests.support.daemon import Daemon, settings_for
from tests.support.load import SteadyLoad
from tests.support.mixed_group import MixedGroup, wait_acknowledged
from tests.support.proxy_thread import ProxyThread
from tests.support.secure_kafka import PASSWORDS, SecureCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.drawn(parts=5)]

CLUSTERS = [
    ("1.1.1", "DIGEST-MD5"),
    ("1.1.1", "GSSAPI"),
    pytest.param(("0.10.2.2", "DIGEST-MD5"), marks=pytest.mark.full),
    pytest.param(("0.10.2.2", "GSSAPI"), marks=pytest.mark.full),
]
OPEN = ["world:anyone:cdrwa"]
OURS = ["sasl:alice:cdrwa", "world:anyone:r"]


@pytest.fixture(scope="module", params=CLUSTERS, ids="-".join)
def secured(request: pytest.FixtureRequest) -> Iterator[SecureCluster]:
    """A cluster whose ZooKeeper knows kafka, alice and bob; ``/consumers`` is open to them."""
    release, mechanism = request.param
    kdc = request.getfixturevalue("kdc") if mechanism == "GSSAPI" else None
    require(release)
    cluster = start_secured(release, kdc, zookeeper_sasl=mechanism)
    try:
        set_acl(cluster, "/consumers", "world:anyone:cdrwa")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def digest_cluster(own_secure_cluster: SecureFactory) -> SecureCluster:
    """A cluster of the same kind that a test may change."""
    return own_secure_cluster("1.1.1", zookeeper_sasl="DIGEST-MD5")


def set_acl(cluster: SecureCluster, path: str, acl: str) -> None:
    """Set an ACL as the brokers' user, with the shell that operators have."""
    cluster.run_tool("org.apache.zookeeper.ZooKeeperMain", "-server", cluster.zookeeper, "setAcl", path, acl)


def environment_of(cluster: SecureCluster) -> Mapping[str, str]:
    return {} if cluster.kdc is None else cluster.kdc.environment


def section_of(cluster: SecureCluster, user: str | None, **changes: Any) -> dict[str, Any]:
    """Return the settings of the cluster for a user of ZooKeeper; None for nobody."""
    login = {} if user is None else {"zookeeper_sasl": dict(cluster.zookeeper_login(user))}
    return {"zookeeper": cluster.zookeeper, **login, **changes}


def run_command(
    cluster: SecureCluster, section: Mapping[str, Any], *args: str, group: str = "g"
) -> subprocess.CompletedProcess[str]:
    """Run a command of consumerd with these settings of the cluster."""
    config = cluster.directory / "consumerd.yaml"
    settings = settings_for(None, group, topics=("any",), cluster=section)
    config.write_text(yaml.safe_dump(settings))
    return subprocess.run(
        [sys.executable, "-m", "consumerd", *args, "--config", str(config)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment_of(cluster)},
        timeout=120,
        check=False,
    )


def refusal_of(cluster: SecureCluster, section: Mapping[str, Any]) -> str:
    done = run_command(cluster, section, "topics", "--timeout", "5")
    assert done.returncode != 0
    return done.stderr


def acl_of(group: MixedGroup, path: str) -> list[str]:
    """Return the ACL of a node of the group, by a client that is not ours."""
    acls, _ = group.registry.client.get_acls(f"/consumers/{group.group}{path}")
    return sorted(f"{one.id.scheme}:{one.id.id}:{_rights(one.perms)}" for one in acls)


def _rights(bits: int) -> str:
    return "".join(letter for letter, bit in (("c", 4), ("d", 8), ("r", 1), ("w", 2), ("a", 16)) if bits & bit)


@pytest.mark.records
def test_members_of_one_user_share_partitions_and_a_resumed_session_keeps_its_rights(
    secured: SecureCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Ours comes first and makes the directories; Java works in them; a cut connection costs neither claims nor rights."""
    topic, name = unique("shared"), unique("shared")
    secured.create_topic(topic, 4)
    secured.java_user = "alice"
    with (
        ProxyThread(secured.zk_port) as between,
        MixedGroup(
            secured,
            tmp_path,
            name,
            {topic: 4},
            section=section_of(secured, "alice", zookeeper=f"localhost:{between.port}"),
            environment=environment_of(secured),
        ) as group,
    ):
        ours = group.start()
        group.settle(1)
        group.start_java()
        group.settle(2)
        producer = secured.ledger_producer(linger_ms="5")
        with SteadyLoad(producer, {topic: 4}, per_second=40) as load:
            group.wait_flowing()
            rebalances = len(ours.status()["rebalances"])
            epoch = ours.events("zookeeper_connected")[-1]["epoch"]
            between.cut()
            wait_until(lambda: len(ours.events("zookeeper_connected")) == 2, "ours is connected again")
            group.wait_flowing()
            load.stop()
        ledger = wait_acknowledged([producer])
        group.wait_delivered(ledger)

        again = ours.events("zookeeper_connected")[-1]
        assert (again["resumed"], again["epoch"]) == (True, epoch)
        assert len(ours.status()["rebalances"]) == rebalances
        assert [] == group.given_up() + ours.events("claim_failed") + ours.events("commit_failed")
        assert [acl_of(group, path) for path in ("", "/ids")] == [OPEN, OPEN]
        for path in ("/owners", f"/owners/{topic}", "/offsets", f"/offsets/{topic}", f"/offsets/{topic}/0"):
            assert acl_of(group, path) == OURS
        assert [acl_of(group, f"/owners/{topic}/{one}") for one in range(4)] == [OURS] * 4
        assert ours.terminate() == 0
        shown = ours.log()
    assert [] == [one for one in PASSWORDS.values() if one in shown]


def test_member_of_another_user_does_not_join_and_java_goes_on(
    secured: SecureCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Registered, it would be given partitions that it cannot claim; Java's own newcomers starve the group so."""
    topic, name = unique("other"), unique("other")
    secured.create_topic(topic, 2)
    secured.java_user = "alice"
    with MixedGroup(secured, tmp_path, name, {topic: 2}, environment=environment_of(secured)) as group:
        java = group.start_java()
        group.settle(1)
        before = dict(group.owners())
        for user, identity in (("bob", "sasl:bob"), (None, "world:anyone")):
            group.section = section_of(secured, user)
            ours = group.start()
            assert ours.wait_end(60) != 0
            said = ours.log()
            assert f"group {name} is not joined, since no topic is left to subscribe to" in said
            assert f"/owners/{topic}: no permission to create nodes below it: its ACL is " in said
            assert "sasl:alice:cdrwa" in said
            assert f"our identity is {identity}" in said
            assert len(group.registry.members(name)) == 1
        assert group.owners() == before
        secured.produce(topic, b"k\tv\n")
        wait_until(lambda: bool(java.records()), "Java's member consumes")
        assert group.given_up() == []

        # what the doctor says for bob, as an operator reads it
        found = run_command(secured, section_of(secured, "bob"), "doctor", group=name)
        login = dict(secured.zookeeper_login("bob"))
        who = login.get("username", login.get("principal"))
        assert f"setAcl /consumers/{name}/owners/{topic} " in found.stdout, found.stderr
        assert f"sasl:{who}:cdrwa" in found.stdout


def test_closed_consumers_and_a_wrong_password_are_told_and_mended(
    digest_cluster: SecureCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Brokers of 1.1 close /consumers to everybody, which ends ours; a password is mended without a restart."""
    topic, name = unique("closed"), unique("closed")
    digest_cluster.create_topic(topic, 1)
    digest_cluster.produce(topic, b"k\tv\n")
    settings = settings_for(digest_cluster.zookeeper, name, topics=(topic,), offsets={"on_missing": "earliest"})
    settings["cluster"] = section_of(digest_cluster, "alice")
    with Daemon(tmp_path, "refused", settings) as refused:
        assert refused.wait_end(60) != 0
        assert "/consumers: no permission to create nodes below it: its ACL is " in refused.log()
        assert "sasl:kafka:cdrwa" in refused.log()
        assert "setAcl /consumers world:anyone:cdrwa" in refused.log()
    set_acl(digest_cluster, "/consumers", "world:anyone:cdrwa")
    digest_cluster.password_file("alice", "wrong-secret")
    with Daemon(tmp_path, "member", settings) as member:
        member.wait(lambda: "ZooKeeper 3.4 refuses so" in member.get("/")[1], "the page tells", 60)
        digest_cluster.password_file("alice")
        member.wait(lambda: len(member.deliveries) == 1, "the record is delivered", 60)
        for command in ("lag", "topics", "groups"):
            assert run_command(digest_cluster, settings["cluster"], command, group=name).returncode == 0
        shown = run_command(digest_cluster, settings["cluster"], "offsets", "show", group=name)
        assert topic in shown.stdout, shown.stderr
        assert member.terminate() == 0
        assert len([one for one in member.events("zookeeper_unusable") if one["level"] == "error"]) == 1
        assert "wrong-secret" not in member.log()


def test_refusals_are_told_apart(secured: SecureCluster) -> None:
    """As far as ZooKeeper 3.4 lets us: it closes the connection without a word."""
    if secured.kdc is None:
        wrong = {**secured.zookeeper_login("alice"), "password_file": str(secured.password_file("bob"))}
        said = refusal_of(secured, section_of(secured, None, zookeeper_sasl=wrong))
        assert "ZooKeeper 3.4 refuses so, or the server went down; if it refuses sasl:alice, the password is" in said
        assert PASSWORDS["bob"] not in said
        return
    login = dict(secured.zookeeper_login("alice"))
    for changes, reason in (
        ({"service_name": "nosuch"}, "compare service_name, and the server's address"),
        ({"service_name": "kafka"}, "compare cluster.zookeeper_sasl.service_name"),
        ({"principal": "bob@TEST.LOCAL"}, "the keytab has no key for the principal"),
        ({"keytab": None, "principal": None}, "there is no ticket: run kinit as this user"),
    ):
        changed = {name: value for name, value in {**login, **changes}.items() if value is not None}
        assert reason in refusal_of(secured, section_of(secured, None, zookeeper_sasl=changed))
    by_number = section_of(secured, "alice", zookeeper=f"127.0.0.1:{secured.zk_port}")
    assert "Server zookeeper/127.0.0.1@TEST.LOCAL not found in Kerberos database" in refusal_of(secured, by_number)
    secured.kdc.kinit("bob", "-l", "3s")
    expired = ["klist", "-s"]
    environment = {**os.environ, **secured.kdc.environment}
    wait_until(lambda: subprocess.run(expired, env=environment, check=False).returncode != 0, "the ticket expires")
    cached = {"mechanism": "GSSAPI"}
    assert "Ticket expired; renew it (kinit)" in refusal_of(secured, section_of(secured, None, zookeeper_sasl=cached))


# -- TLS


def tls_of(cluster: SecureCluster, **files: str) -> dict[str, Any]:
    return {
        "zookeeper": f"localhost:{cluster.zookeeper_tls_port}",
        "zookeeper_tls": {"enabled": True, "ca_file": str(cluster.ca_file), **files},
    }


def test_zookeeper_by_tls(own_secure_cluster: SecureFactory) -> None:
    """The server's name is checked; the two kinds of ports are not mixed up in silence."""
    cluster = own_secure_cluster("2.8.2", zookeeper_tls="none")
    done = run_command(cluster, tls_of(cluster), "topics")
    assert done.returncode == 0, done.stderr

    trusting = tls_of(cluster)
    del trusting["zookeeper_tls"]["ca_file"]
    assert "certificate verify failed" in refusal_of(cluster, trusting)
    plain = {"zookeeper": f"localhost:{cluster.zookeeper_tls_port}"}
    assert "has TLS only (cluster.zookeeper_tls)" in refusal_of(cluster, plain)
    assert "TLS: " in refusal_of(cluster, {**tls_of(cluster), "zookeeper": cluster.zookeeper})


def test_zookeeper_by_tls_with_client_certificates(
    own_secure_cluster: SecureFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The certificate is an identity, to which claims and positions can be given."""
    cluster = own_secure_cluster("2.8.2", zookeeper_tls="need")
    assert "certificate" in refusal_of(cluster, tls_of(cluster))

    issued = cluster.trusted.issue_cert("lake.example", common_name="lake")
    (tmp_path / "client.pem").write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    key = tmp_path / "client.key"
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    files = {"certificate_file": str(tmp_path / "client.pem"), "key_file": str(key)}
    topic, name = unique("tls"), unique("tls")
    cluster.create_topic(topic, 1)
    cluster.produce(topic, b"k\tv\n")
    settings = settings_for(cluster.zookeeper, name, topics=(topic,), offsets={"on_missing": "earliest"})
    settings["cluster"] = {**tls_of(cluster, **files), "zookeeper_acl": "java"}
    with Daemon(tmp_path, "member", settings) as member, MixedGroup(cluster, tmp_path, name, {topic: 1}) as group:
        member.wait(lambda: len(member.deliveries) == 1, "the record is delivered", 60)
        others, ours = acl_of(group, f"/owners/{topic}/0")
        assert others == "world:anyone:r"
        assert ours.startswith("x509:CN=lake,")
        assert ours.endswith(":cdrwa")
        assert "consumerd_tls_certificate_expiry_timestamp_seconds" in member.get("/metrics")[1]
        assert member.terminate() == 0
