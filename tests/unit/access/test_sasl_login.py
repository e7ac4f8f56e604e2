# SPDX-License-Identifier: Apache-2.0
"""Identities at brokers: what is refused before anything is connected to, and secrets that must not show."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.access.sasl_login import SaslLogin, ZooKeeperLogin
from consumerd.access.secret_file import read_password
from consumerd.errors import ConfigError
from consumerd.net.address import Address
from consumerd.sasl.plain import PlainClient
from consumerd.sasl.scram import ScramClient

BROKER = Address(host="b", port=9093)
GOOD: list[dict[str, Any]] = [
    {"mechanism": "PLAIN", "username": "u", "password": "p"},
    {"mechanism": "SCRAM-SHA-256", "username": "u", "password_file": Path("/f")},
    {"mechanism": "GSSAPI"},
    {"mechanism": "GSSAPI", "keytab": Path("/k"), "principal": "u@R"},
    {"mechanism": "GSSAPI", "principal": "u@R"},
]


@pytest.mark.parametrize("login", GOOD, ids=str)
def test_whole_identities_have_no_fault(login: dict[str, Any]) -> None:
    """With TLS, under which a password is nobody else's."""
    assert SaslLogin(**login).find_fault(tls=True) is None


@pytest.mark.parametrize(
    ("login", "key"),
    [
        ({"mechanism": "OAUTHBEARER"}, "mechanism"),
        ({"mechanism": "PLAIN", "password": "p"}, "username"),
        ({"mechanism": "PLAIN", "username": "", "password": "p"}, "username"),
        ({"mechanism": "PLAIN", "username": "u"}, "password_file"),
        ({"mechanism": "PLAIN", "username": "u", "password": "p", "password_file": Path("/f")}, "password_file"),
        ({"mechanism": "PLAIN", "username": "u", "password": "p", "keytab": Path("/k")}, "keytab"),
        ({"mechanism": "SCRAM-SHA-512", "username": "u", "password": "p", "principal": "u@R"}, "principal"),
        ({"mechanism": "PLAIN", "username": "\udcff", "password": "p"}, "username"),
        ({"mechanism": "PLAIN", "username": "u", "password": "\udcff"}, "password"),
        ({"mechanism": "GSSAPI", "username": "u"}, "username"),
        ({"mechanism": "GSSAPI", "password_file": Path("/f")}, "password_file"),
        ({"mechanism": "GSSAPI", "password": "p"}, "password"),
        ({"mechanism": "GSSAPI", "keytab": Path("/k")}, "keytab"),
    ],
    ids=str,
)
def test_parts_that_do_not_go_together_are_refused(login: dict[str, Any], key: str) -> None:
    """The key that is wrong is named."""
    fault = SaslLogin(**login).find_fault(tls=True)

    assert fault is not None
    assert fault[0] == key


def test_password_of_plain_needs_tls_or_a_word() -> None:
    """It would be sent as it is."""
    plain = {"mechanism": "PLAIN", "username": "u", "password": "p"}
    fault = SaslLogin(**plain).find_fault(tls=False)  # type: ignore[arg-type]  # texts all

    assert fault is not None
    assert "allow_plaintext_password" in fault[1]
    assert SaslLogin(**plain, allow_plaintext_password=True).find_fault(tls=False) is None  # type: ignore[arg-type]  # as above
    assert SaslLogin(mechanism="SCRAM-SHA-256", username="u", password="p").find_fault(tls=False) is None


async def test_exposed_password_is_refused_before_anything_is_connected_to() -> None:
    """By whichever way the cluster is opened: settings, options of Spark, or the library."""
    login = SaslLogin(mechanism="PLAIN", username="u", password="hunter2")
    address = ClusterAddress(bootstrap="127.0.0.1:1", client_id="c", sasl=login)

    with pytest.raises(ConfigError, match=r"cluster\.sasl\.mechanism: PLAIN sends the password as it is"):
        async with open_cluster(address, wait_s=0.0):
            pass


def secret(folder: Path, text: bytes, mode: int = 0o600) -> Path:
    path = folder / "password"
    path.write_bytes(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "password"), [(b"p", "p"), (b"p\n", "p"), (b"p\r\n", "p"), (b" p \n\n", " p \n"), ("ä".encode(), "ä")]
)
def test_one_line_end_is_not_part_of_a_password(tmp_path: Path, text: bytes, password: str) -> None:
    """Editors add it; spaces may be meant."""
    assert password == read_password("x", secret(tmp_path, text))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o666])
def test_file_that_everybody_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """And one that everybody can write."""
    with pytest.raises(ConfigError, match=rf"^x: .*password can be read by everybody \(mode {mode:04o}\): chmod o= "):
        read_password("x", secret(tmp_path, b"hunter2", mode))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_file_of_a_group_is_taken(tmp_path: Path, mode: int) -> None:
    """That is how a service gets a secret that root owns."""
    assert read_password("x", secret(tmp_path, b"hunter2", mode)) == "hunter2"


@pytest.mark.parametrize(("text", "reason"), [(b"", "is empty"), (b"\n", "is empty"), (b"\xff", "expected UTF-8")])
def test_file_without_a_password_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    """An empty password is a mistake of a script."""
    with pytest.raises(ConfigError, match=reason):
        read_password("x", secret(tmp_path, text))


def test_missing_files_are_named(tmp_path: Path) -> None:
    """With the setting."""
    login = SaslLogin(mechanism="PLAIN", username="u", password_file=tmp_path / "none")

    with pytest.raises(ConfigError, match=r"cluster\.sasl\.password_file: .*none cannot be read: No such file"):
        login.check(tls=True)


def test_password_is_read_for_each_connection(tmp_path: Path) -> None:
    """A changed password needs no restart."""
    login = SaslLogin(mechanism="PLAIN", username="u", password_file=secret(tmp_path, b"one\n"))
    first = login.make_client(BROKER).first().data
    secret(tmp_path, b"two\n")

    assert (first, login.make_client(BROKER).first().data) == (b"\0u\0one", b"\0u\0two")


def test_each_mechanism_has_its_client() -> None:
    """SCRAM has a new nonce for each authentication."""
    plain, scram = (SaslLogin(mechanism=one, username="u", password="p") for one in ("PLAIN", "SCRAM-SHA-512"))

    assert isinstance(plain.make_client(BROKER), PlainClient)
    clients = [scram.make_client(BROKER) for _ in range(2)]
    assert [(type(one), one.mechanism) for one in clients] == [(ScramClient, "SCRAM-SHA-512")] * 2
    assert clients[0].first().data != clients[1].first().data


def test_password_is_in_no_repr_and_files_are_pickled_by_name(tmp_path: Path) -> None:
    """Addresses are logged, and are in Spark's plans."""
    by_file = SaslLogin(mechanism="PLAIN", username="u", password_file=secret(tmp_path, b"hunter2"))
    by_text = SaslLogin(mechanism="PLAIN", username="u", password="hunter2")
    addresses = [ClusterAddress(bootstrap="b:1", client_id="c", sasl=login) for login in (by_file, by_text)]

    assert "hunter2" not in repr(addresses)
    assert b"hunter2" not in pickle.dumps(addresses[0])
    assert pickle.loads(pickle.dumps(addresses[0])) == addresses[0]


@pytest.mark.parametrize(
    ("login", "identity"),
    [
        (SaslLogin(mechanism="PLAIN", username="u", password="p"), "User:u"),
        (SaslLogin(mechanism="GSSAPI", principal="u@R"), "the Kerberos principal u@R"),
        (SaslLogin(mechanism="GSSAPI"), "the Kerberos principal of the ticket cache"),
    ],
)
def test_identity_is_described(login: SaslLogin, identity: str) -> None:
    """For errors of authorization."""
    assert identity == login.describe()


# -- at ZooKeeper


@pytest.mark.parametrize(
    ("login", "key"),
    [
        ({"mechanism": "PLAIN", "username": "u", "password": "p"}, "mechanism"),
        ({"mechanism": "DIGEST-MD5", "password": "p"}, "username"),
        ({"mechanism": "DIGEST-MD5", "username": "u"}, "password_file"),
        ({"mechanism": "DIGEST-MD5", "username": "u", "password": "p", "keytab": Path("/k")}, "keytab"),
        ({"mechanism": "GSSAPI", "keytab": Path("/k")}, "keytab"),
        ({"mechanism": "GSSAPI", "username": "u"}, "username"),
    ],
    ids=str,
)
def test_parts_that_do_not_go_together_are_refused_at_zookeeper_too(login: dict[str, Any], key: str) -> None:
    """By the same rules, with its own mechanisms."""
    with pytest.raises(ConfigError, match=rf"cluster\.zookeeper_sasl\.{key}: "):
        ZooKeeperLogin(**login).check()


def test_identity_by_kerberos_is_that_for_brokers_unless_another_is_given() -> None:
    """One keytab is what most processes have."""
    brokers = SaslLogin(mechanism="GSSAPI", keytab=Path("/k"), principal="lake@R", service_name="kafka2")
    bare = ZooKeeperLogin(mechanism="GSSAPI")
    own = ZooKeeperLogin(mechanism="GSSAPI", principal="other@R")
    digest = ZooKeeperLogin(mechanism="DIGEST-MD5", username="u", password="p")

    assert bare.complete(brokers) == ZooKeeperLogin(mechanism="GSSAPI", keytab=Path("/k"), principal="lake@R")
    assert bare.complete(brokers).kerberos == brokers.kerberos
    assert bare.complete(None) == bare
    assert bare.complete(SaslLogin(mechanism="PLAIN", username="u", password="p")) == bare
    assert own.complete(brokers) == own
    assert digest.complete(brokers) == digest
    assert digest.kerberos is None


def test_identities_at_zookeeper_are_named_as_acls_name_them() -> None:
    """For messages; servers may cut host and realm off a principal."""
    assert ZooKeeperLogin(mechanism="DIGEST-MD5", username="lake", password="p").describe() == "sasl:lake"
    assert ZooKeeperLogin(mechanism="GSSAPI", principal="lake@R").describe() == "sasl:lake@R"
    assert ZooKeeperLogin(mechanism="GSSAPI").describe() == "sasl:(principal of the ticket cache)"
