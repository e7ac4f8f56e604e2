# SPDX-License-Identifier: Apache-2.0
"""Addresses of clusters: files that they name, and secrets that they must not show."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from consumerd.access.address import TlsFiles, ZooKeeperCredential
from consumerd.errors import ConfigError


def test_an_encrypted_key_is_refused_by_its_file(tmp_path: Path) -> None:
    """OpenSSL would ask for its password on the terminal, or read a worker's stdin, and wait."""
    issued = trustme.CA().issue_cert("client.example")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    identity = tmp_path / "locked.pem"
    identity.write_bytes(locked + issued.cert_chain_pems[0].bytes())

    with pytest.raises(ConfigError, match=r"kafka.ssl: .*locked.pem cannot be used: its key is encrypted"):
        TlsFiles(setting="kafka.ssl", certificate=identity).make_context()


def test_a_key_without_a_password_is_taken(tmp_path: Path) -> None:
    """One file with both, as Java's PEM key stores are."""
    issued = trustme.CA().issue_cert("client.example")
    identity = tmp_path / "open.pem"
    identity.write_bytes(issued.private_key_and_cert_chain_pem.bytes())

    files = TlsFiles(setting="kafka.ssl", certificate=identity, check_hostname=False)
    assert not files.make_context().check_hostname


def test_a_credential_is_read_from_its_file_or_from_the_environment_and_never_shown(tmp_path: Path) -> None:
    """Plans of Spark and tracebacks end in logs."""
    file = tmp_path / "secret"
    file.write_text("user:from-file\n")
    in_file = ZooKeeperCredential(setting="zookeeper.auth.file", scheme="digest", file=file)
    in_text = ZooKeeperCredential(setting="zookeeper.auth.file", scheme="digest", text="user:from-text")

    assert ("digest", b"user:from-file") == in_file.read()
    assert ("digest", b"user:from-text") == in_text.read()
    assert "from-text" not in repr(in_text)
