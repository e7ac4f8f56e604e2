# SPDX-License-Identifier: Apache-2.0
"""Addresses of clusters: files that they name, and secrets that they must not show."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from consumerd.access.address import ClusterAddress, TlsFiles, ZooKeeperCredential
from consumerd.access.sasl_login import ZooKeeperLogin
from consumerd.errors import ConfigError
from consumerd.zk.node_acl import AclProfile


def test_an_encrypted_key_is_refused_by_its_file(tmp_path: Path) -> None:
    """OpenSSL would ask for its password on the terminal, or read a worker's stdin, and wait."""
    issued = trustme.CA().issue_cert("client.example")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    identity = tmp_path / "locked.pem"
    identity.write_bytes(locked + issued.cert_chain_pems[0].bytes())
    identity.chmod(0o600)

    with pytest.raises(ConfigError, match=r"kafka.ssl: .*locked.pem cannot be used: its key is encrypted"):
        TlsFiles(setting="kafka.ssl", certificate=identity).make_context()


def test_a_key_without_a_password_is_taken(tmp_path: Path) -> None:
    """One file with both, as Java's PEM key stores are; not from one that everybody can read."""
    issued = trustme.CA().issue_cert("client.example")
    identity = tmp_path / "open.pem"
    identity.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    identity.chmod(0o604)
    files = TlsFiles(setting="kafka.ssl", certificate=identity, check_hostname=False)
    with pytest.raises(
        ConfigError, match=r"kafka\.ssl\.certificate_file: .*open\.pem can be read by everybody \(mode 0604\): chmod o="
    ):
        files.make_context()
    identity.chmod(0o640)

    assert not files.make_context().check_hostname


@pytest.mark.parametrize(("key", "setting"), [("key.pem", "key_file"), (None, "certificate_file")])
def test_a_key_that_everybody_can_read_is_refused(key: str | None, setting: str, tmp_path: Path) -> None:
    """In a file of its own or beside the certificate; for brokers, sinks and Spark alike."""
    issued = trustme.CA().issue_cert("client.example")
    identity = tmp_path / "identity.pem"
    identity.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    for file in tmp_path.iterdir():
        file.chmod(0o644)

    with pytest.raises(ConfigError, match=rf"kafka\.ssl\.{setting}: .* can be read by everybody .*chmod o="):
        TlsFiles(setting="kafka.ssl", certificate=identity, key=None if key is None else tmp_path / key).make_context()


def test_ends_are_the_first_of_our_chain_and_the_last_of_the_authorities(tmp_path: Path) -> None:
    """While authorities are renewed, one that has ended stays in the file beside its successor."""
    soon, late = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC), datetime(2044, 1, 2, tzinfo=UTC)
    authority = trustme.CA()
    chains = [
        b"".join(pem.bytes() for pem in authority.issue_cert("client", not_after=one).cert_chain_pems)
        for one in (late, soon)
    ]
    file = tmp_path / "two.pem"
    file.write_bytes(b"".join(chains))

    both = TlsFiles(setting="cluster.tls", trusted=file, certificate=file).read_ends()
    assert both == {"certificate_file": soon.timestamp(), "ca_file": late.timestamp()}
    assert TlsFiles(setting="cluster.tls").read_ends() == {}
    assert TlsFiles(setting="cluster.tls", trusted=tmp_path / "gone.pem").read_ends() == {}


def test_a_credential_is_read_from_its_file_or_from_the_environment_and_never_shown(tmp_path: Path) -> None:
    """Plans of Spark and tracebacks end in logs."""
    file = tmp_path / "secret"
    file.write_text("user:from-file\n")
    file.chmod(0o600)
    in_file = ZooKeeperCredential(setting="zookeeper.auth.file", scheme="digest", file=file)
    in_text = ZooKeeperCredential(setting="zookeeper.auth.file", scheme="digest", text="user:from-text")

    assert ("digest", b"user:from-file") == in_file.read()
    assert ("digest", b"user:from-text") == in_text.read()
    assert "from-text" not in repr(in_text)
    file.chmod(0o604)
    with pytest.raises(ConfigError, match=r"zookeeper\.auth\.file: .*secret can be read by everybody"):
        in_file.read()


def test_nodes_are_made_as_java_members_of_the_same_identity_make_them() -> None:
    """Unless a setting says otherwise."""
    login = ZooKeeperLogin(mechanism="DIGEST-MD5", username="lake", password="p")

    assert ClusterAddress(client_id="c").node_acl is AclProfile.OPEN
    assert ClusterAddress(client_id="c", zookeeper_sasl=login).node_acl is AclProfile.JAVA
    assert (
        ClusterAddress(client_id="c", zookeeper_sasl=login, zookeeper_acl=AclProfile.OPEN).node_acl is AclProfile.OPEN
    )


def test_tasks_of_spark_are_given_nothing_of_zookeeper() -> None:
    """They ask brokers alone, and their plans are files that others read."""
    login = ZooKeeperLogin(mechanism="DIGEST-MD5", username="lake", password="p")
    tls = TlsFiles()
    whole = ClusterAddress(
        client_id="c", zookeeper="z:1", zookeeper_sasl=login, zookeeper_tls=tls, zookeeper_acl=AclProfile.JAVA, tls=tls
    )

    assert whole.without_zookeeper("b:1") == ClusterAddress(client_id="c", bootstrap="b:1", tls=tls)
