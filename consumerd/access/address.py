# SPDX-License-Identifier: Apache-2.0
"""Address of a cluster, the same value whether settings, Spark options or a command name it.

Opens nothing. It is pickled into Spark's plans, so that credentials are the names of files; only a credential that came
from the daemon's environment is held as text, and no ``repr`` shows it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumerd.cluster.view import Broker
from consumerd.errors import ConfigError
from consumerd.model import BrokerId
from consumerd.net.tls import make_context

_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files for TLS to the brokers, in PEM; they must exist on each machine that connects.

    Attributes:
        setting: Name of the setting or option, for errors.
        trusted: Certificates of authorities; None means those of the system.
        certificate: Our certificate chain.
        key: Our private key; None where it is in the file of the certificate.
    """

    setting: str
    trusted: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    check_hostname: bool = True

    def make_context(self) -> ssl.SSLContext:
        """Load the files. Raises ConfigError that names the setting and the file."""
        return make_context(
            self.setting,
            trusted=self.trusted,
            certificate=self.certificate,
            key=self.key,
            check_hostname=self.check_hostname,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperCredential:
    """Identity in ZooKeeper, in a file or as text; ``setting`` names the file's setting or option, for errors."""

    setting: str
    scheme: str
    file: Path | None = None
    text: str = field(default="", repr=False)

    def read(self) -> tuple[str, bytes]:
        """Return scheme and credential. Raises ConfigError where the file cannot be read."""
        if self.file is None:
            return self.scheme, self.text.encode()
        try:
            return self.scheme, self.file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{self.setting}: cannot be read: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Everything that connecting to a cluster needs. At least one of ``bootstrap`` and ``zookeeper`` is given.

    Attributes:
        bootstrap: Brokers to ask first, ``host:port,host:port``.
        zookeeper: Connect string, with a chroot where there is one.
        trusts_modern: Brokers of 0.6 or 0.7 registered beside modern ones are passed over (``cluster.generation: modern``).
        tls: None is plain text.
        broker_version: Release that the brokers are taken for, or ``auto``.
        client_id: Name by which brokers know us, in their logs and quotas.
        metadata_backoff_s: First delay before the brokers are asked again about leaders.
    """

    bootstrap: str | None = None
    zookeeper: str | None = None
    zookeeper_auth: ZooKeeperCredential | None = None
    trusts_modern: bool = False
    tls: TlsFiles | None = None
    broker_version: str = "auto"
    client_id: str
    session_timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    metadata_backoff_s: float = 0.2

    def first_brokers(self) -> tuple[Broker, ...]:
        """Return the brokers of ``bootstrap``, none where it is not given. Raises ConfigError."""
        return () if self.bootstrap is None else parse_bootstrap(self.bootstrap, tls=self.tls is not None)


def parse_bootstrap(text: str, *, tls: bool = False) -> tuple[Broker, ...]:
    """Read ``host:port,host:port``. Raises ConfigError.

    The brokers have numbers below 0, since their own are not known yet.
    """
    brokers = []
    for number, one in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        host, colon, port = one.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= _LAST_PORT):
            raise ConfigError(f"bootstrap: expected host:port, got {one!r}")
        brokers.append(Broker(id=BrokerId(-number), host=host, port=int(port), tls=tls))
    if not brokers:
        raise ConfigError("bootstrap: expected at least one host:port")
    return tuple(brokers)
