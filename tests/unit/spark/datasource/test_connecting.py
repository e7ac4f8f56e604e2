# SPDX-License-Identifier: Apache-2.0
"""TLS contexts of the files that options name."""

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

from consumerd.errors import ConfigError
from consumerd.spark.datasource.connecting import make_tls
from consumerd.spark.datasource.options import TlsOptions


def test_an_encrypted_key_is_refused_by_its_file(tmp_path: Path) -> None:
    """OpenSSL would ask for its password on the terminal, or read a worker's stdin, and wait."""
    issued = trustme.CA().issue_cert("client.example")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    identity = tmp_path / "locked.pem"
    identity.write_bytes(locked + issued.cert_chain_pems[0].bytes())

    with pytest.raises(ConfigError, match=r"kafka.ssl: .*locked.pem cannot be used: its key is encrypted"):
        make_tls(TlsOptions(identity=identity))


def test_a_key_without_a_password_is_taken(tmp_path: Path) -> None:
    """One file with both, as Java's PEM key stores are."""
    issued = trustme.CA().issue_cert("client.example")
    identity = tmp_path / "open.pem"
    identity.write_bytes(issued.private_key_and_cert_chain_pem.bytes())

    assert not make_tls(TlsOptions(identity=identity, checks_host=False)).check_hostname
