# SPDX-License-Identifier: Apache-2.0
"""Options of readers and writers for TLS and SASL. Pure.

Names are those of Java's clients, where they have such an option.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.access.address import TlsFiles
from consumerd.access.sasl_login import SERVICE, ZOOKEEPER_SERVICE, SaslLogin, ZooKeeperLogin
from consumerd.cluster.security_protocol import SecurityProtocol
from consumerd.errors import ConfigError
from consumerd.sasl.gssapi_client import GSSAPI

if TYPE_CHECKING:
    from consumerd.spark.datasource.options import OptionReader


def parse_protocol(reader: OptionReader) -> SecurityProtocol:
    """Read the security protocol of the brokers' listeners. Raises ConfigError."""
    protocols = [one.value.lower() for one in SecurityProtocol]
    return SecurityProtocol(reader.choice("kafka.security.protocol", protocols).upper())


def parse_tls(reader: OptionReader, protocol: SecurityProtocol) -> TlsFiles | None:
    """Read the files of TLS to brokers; None without TLS. Raises ConfigError."""
    files = _parse_stores(reader, "kafka.ssl")
    return files if protocol.tls else None


def parse_zookeeper_tls(reader: OptionReader) -> TlsFiles | None:
    """Read the files of TLS to ZooKeeper; None without TLS. Raises ConfigError."""
    files = _parse_stores(reader, "zookeeper.ssl")
    return files if reader.flag("zookeeper.ssl.client.enable", default=False) else None


def _parse_stores(reader: OptionReader, prefix: str) -> TlsFiles:
    """Read the files of TLS from the options with a prefix."""
    files = {}
    for store in ("truststore", "keystore"):
        file = reader.text(f"{prefix}.{store}.location")
        kind = reader.text(f"{prefix}.{store}.type") or "JKS"
        if file is not None and kind.upper() != "PEM":
            raise ConfigError(
                f"{prefix}.{store}.location: a file of type {kind} cannot be read here; export it as PEM and set "
                f"{prefix}.{store}.type to PEM"
            )
        files[store] = None if file is None else Path(file)
    algorithm = f"{prefix}.endpoint.identification.algorithm"
    named = reader.text(algorithm)
    empty = reader.is_given(algorithm) and named is None
    if named is not None and named.lower() != "https":
        raise ConfigError(f"{algorithm}: expected https, or nothing for no check, got {named!r}")
    return TlsFiles(
        setting=prefix, trusted=files["truststore"], certificate=files["keystore"], check_hostname=not empty
    )


def parse_sasl(reader: OptionReader, protocol: SecurityProtocol) -> SaslLogin | None:
    """Read the identity at brokers; None without SASL.

    A password is read from its file by the driver and by each executor, so that no plan holds it. Raises ConfigError.
    """
    files = {name: reader.text(f"sasl.{name}") for name in ("password.file", "keytab")}
    login = SaslLogin(
        setting="sasl",
        mechanism=reader.text("kafka.sasl.mechanism") or GSSAPI,
        username=reader.text("sasl.username"),
        password_file=None if files["password.file"] is None else Path(files["password.file"]),
        keytab=None if files["keytab"] is None else Path(files["keytab"]),
        principal=reader.text("sasl.principal"),
        service_name=reader.text("kafka.sasl.kerberos.service.name") or SERVICE,
        allow_plaintext_password=reader.flag("sasl.allow.plaintext.password", default=False),
    )
    if not protocol.sasl:
        return None
    if (fault := login.find_fault(tls=protocol.tls)) is not None:
        key = "kafka.sasl.mechanism" if fault[0] == "mechanism" else f"sasl.{fault[0].replace('_', '.')}"
        text = fault[1].replace("allow_plaintext_password: true", "the option sasl.allow.plaintext.password as true")
        raise ConfigError(f"{key}: {text}")
    return login


def parse_zookeeper_sasl(reader: OptionReader, brokers: SaslLogin | None) -> ZooKeeperLogin | None:
    """Read the identity at ZooKeeper, which the driver alone needs; None without SASL. Raises ConfigError.

    Args:
        brokers: Identity at brokers, whose keytab counts for ZooKeeper, too, unless another one is given.
    """
    names = ("username", "password.file", "keytab", "principal")
    given = {name: reader.text(f"zookeeper.sasl.{name}") for name in names}
    mechanism = reader.text("zookeeper.sasl.mechanism")
    service = reader.text("zookeeper.sasl.service.name") or ZOOKEEPER_SERVICE
    if mechanism is None:
        if (lone := next((name for name in names if given[name] is not None), None)) is not None:
            raise ConfigError(f"zookeeper.sasl.{lone}: it needs zookeeper.sasl.mechanism: DIGEST-MD5 or GSSAPI")
        return None
    login = ZooKeeperLogin(
        setting="zookeeper.sasl",
        mechanism=mechanism,
        username=given["username"],
        password_file=None if given["password.file"] is None else Path(given["password.file"]),
        keytab=None if given["keytab"] is None else Path(given["keytab"]),
        principal=given["principal"],
        service_name=service,
    )
    if (fault := login.find_identity_fault()) is not None:
        raise ConfigError(f"zookeeper.sasl.{fault[0].replace('_', '.')}: {fault[1]}")
    return login.complete(brokers)
