# SPDX-License-Identifier: Apache-2.0
"""Address of a cluster: one value for settings, Spark options and commands.

Making an address opens no file and no connection. The address is pickled into Spark's plans, so it holds the names of
files with credentials, not their content. Only a credential that came from the daemon's environment is held as text,
and no ``repr`` shows it.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from consumerd.access.principal import Principal
from consumerd.access.sasl_login import SaslLogin, ZooKeeperLogin
from consumerd.access.secret_file import check_secret_file
from consumerd.cluster.identities import ClusterIdentities, parse_identities
from consumerd.cluster.security_protocol import SecurityProtocol
from consumerd.cluster.view import Broker
from consumerd.errors import ConfigError
from consumerd.model import BrokerId, Generation
from consumerd.net.tls import make_context, read_ends, read_subject
from consumerd.zk.node_acl import AclProfile

_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files for TLS to brokers or to ZooKeeper, in PEM format.

    They must exist on each machine that connects.

    Attributes:
        setting: Name of the setting or option that gave the files, for error messages.
        trusted: Certificates of authorities; None means those of the system.
        certificate: Our certificate chain; None without a client certificate.
        key: Our private key; None if it is in the file of the certificate.
        check_hostname: True to check that a server's certificate is for its host name.
    """

    setting: str = "tls"
    trusted: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    check_hostname: bool = True

    def make_context(self) -> ssl.SSLContext:
        """Load the files into an SSL context.

        Raises ConfigError that names the setting and the file, also if everybody can read the file with our key.
        """
        if (secret := self.key or self.certificate) is not None:
            check_secret_file(f"{self.setting}.{'certificate_file' if self.key is None else 'key_file'}", secret)
        return make_context(
            self.setting,
            trusted=self.trusted,
            certificate=self.certificate,
            key=self.key,
            check_hostname=self.check_hostname,
        )

    def read_ends(self) -> Mapping[str, float]:
        """Return the expiry time of each certificate file, in seconds since the epoch.

        For our certificate chain this is the earliest expiry in the file. For the authorities it is the latest: during
        a renewal, the file holds old and new ones. A file that has changed since it was loaded, and cannot be read, is
        left out.
        """
        files = {"certificate_file": (self.certificate, min), "ca_file": (self.trusted, max)}
        ends = {}
        for name, (file, choose) in files.items():
            with contextlib.suppress(OSError, ValueError):
                if file is not None and (found := read_ends(file.read_text(encoding="ascii", errors="replace"))):
                    ends[name] = choose(found)
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperCredential:
    """Credential for ZooKeeper authentication, in a file or as text.

    Attributes:
        setting: Name of the setting or option that gave the file, for error messages.
        scheme: Scheme of ZooKeeper, such as ``digest``.
        file: File with the credential; None if it is in ``text``.
    """

    setting: str
    scheme: str
    file: Path | None = None
    text: str = field(default="", repr=False)

    def read(self) -> tuple[str, bytes]:
        """Return the scheme and the credential.

        Raises ConfigError if its file cannot be read, or everybody can read it.
        """
        if self.file is None:
            return self.scheme, self.text.encode()
        check_secret_file(self.setting, self.file)
        try:
            return self.scheme, self.file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{self.setting}: cannot be read: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitiesFile:
    """File with the identities that a cluster had in ZooKeeper, as ``consumerd identities`` writes it.

    Attributes:
        setting: Name of the setting or option that gave the file, for error messages.
    """

    setting: str
    file: Path

    def read(self) -> ClusterIdentities:
        """Read the file. Raises ConfigError that names the setting and the file."""
        try:
            text = self.file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{self}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self}: expected UTF-8, byte {error.start} is not") from error
        return parse_identities(text, str(self))

    def __str__(self) -> str:
        return f"{self.setting}: {self.file}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Everything needed to connect to a cluster.

    At least one of ``bootstrap`` and ``zookeeper`` is given.

    Attributes:
        bootstrap: Brokers to ask first, ``host:port,host:port``; None if only ZooKeeper is given.
        zookeeper: Connect string, with a chroot if there is one; None for a cluster without ZooKeeper.
        zookeeper_auth: Credential for ZooKeeper; None for none.
        zookeeper_sasl: Identity for SASL at ZooKeeper; None for none.
        zookeeper_tls: Files for TLS to ZooKeeper; None for plain text.
        zookeeper_acl: ACLs of the nodes that are created in ZooKeeper; None for those of Java members with the same
            identity: :attr:`AclProfile.JAVA` with ``zookeeper_sasl``, else :attr:`AclProfile.OPEN`.
        identities: Identities that the cluster had in ZooKeeper; None if it had none, or is still there.
        generation: Generation of the cluster's brokers; None to find it from their registrations in ZooKeeper. With
            brokers of both generations in one registry, those of the other one are ignored.
        tls: Files for TLS to the brokers; None for plain text.
        sasl: Identity for SASL at the brokers; None for listeners without SASL.
        broker_version: Kafka release that the brokers are assumed to run, or ``auto`` to detect it.
        client_id: Name by which brokers know us, in their logs and quotas.
        session_timeout_s: ZooKeeper session timeout to ask for, in seconds.
        connect_timeout_s: Time limit for connecting to a broker, in seconds.
        request_timeout_s: Time limit for a broker's response, in seconds.
        metadata_backoff_s: First delay before the brokers are asked again about leaders, in seconds.
    """

    bootstrap: str | None = None
    zookeeper: str | None = None
    zookeeper_auth: ZooKeeperCredential | None = None
    zookeeper_sasl: ZooKeeperLogin | None = None
    zookeeper_tls: TlsFiles | None = None
    zookeeper_acl: AclProfile | None = None
    identities: IdentitiesFile | None = None
    generation: Generation | None = None
    tls: TlsFiles | None = None
    sasl: SaslLogin | None = None
    broker_version: str = "auto"
    client_id: str
    session_timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    metadata_backoff_s: float = 0.2

    @property
    def protocol(self) -> SecurityProtocol:
        """Security protocol of the brokers' listeners that are used."""
        return SecurityProtocol.choose(tls=self.tls is not None, sasl=self.sasl is not None)

    @property
    def node_acl(self) -> AclProfile:
        """ACLs of the nodes that are created in ZooKeeper."""
        if self.zookeeper_acl is not None:
            return self.zookeeper_acl
        return AclProfile.OPEN if self.zookeeper_sasl is None else AclProfile.JAVA

    def without_zookeeper(self, bootstrap: str) -> ClusterAddress:
        """Return the address of the same cluster by its brokers alone.

        Args:
            bootstrap: Brokers to ask first, ``host:port,host:port``.
        """
        return replace(
            self,
            bootstrap=bootstrap,
            zookeeper=None,
            zookeeper_auth=None,
            zookeeper_sasl=None,
            zookeeper_tls=None,
            zookeeper_acl=None,
        )

    @property
    def principal(self) -> Principal:
        """Our identity as the brokers' ACLs name it.

        Reads the file of the client certificate, if that is the identity.
        """
        if self.sasl is not None:
            name, words = self.sasl.principal_name, self.sasl.describe()
            if words == name:
                words = ""
        elif self.tls is not None and self.tls.certificate is not None:
            name, words = self._name_certificate(self.tls.certificate)
        else:
            name, words = "User:ANONYMOUS", "neither cluster.sasl nor a client certificate is set"
        if self.zookeeper is not None:
            reach: tuple[str, ...] = ("--authorizer-properties", f"zookeeper.connect={self.zookeeper}")
        else:
            reach = ("--bootstrap-server", self.bootstrap or "", "--command-config", "admin.properties")
        return Principal(name=name, words=words, reach=reach)

    @staticmethod
    def _name_certificate(certificate: Path) -> tuple[str, str]:
        """Return a client certificate's principal by the brokers' default rule, and words about it."""
        words = f"the subject of the certificate {certificate}"
        try:
            subject = read_subject(certificate.read_text(encoding="ascii", errors="replace"))
        except (OSError, ValueError):
            return "", words
        return f"User:{subject}", f"{words}, unless ssl.principal.mapping.rules of the brokers rename it"

    def first_brokers(self) -> tuple[Broker, ...]:
        """Return the brokers of ``bootstrap``; empty if ``bootstrap`` is None. Raises ConfigError.

        They get negative ids, since their real ids are not known yet. ConfigError names a malformed address.
        """
        return () if self.bootstrap is None else parse_bootstrap(self.bootstrap, tls=self.tls is not None)


def parse_bootstrap(text: str, *, tls: bool = False) -> tuple[Broker, ...]:
    """Read broker addresses, ``host:port,host:port``. Raises ConfigError for malformed ones.

    The brokers get negative ids, since their real ids are not known yet.

    Args:
        tls: True if the brokers are reached by TLS.
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
