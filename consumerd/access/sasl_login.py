# SPDX-License-Identifier: Apache-2.0
"""Identities by SASL, at brokers and at ZooKeeper.

They are values for settings, Spark options and the library, and part of a cluster's address, so they are pickled into
Spark's plans. They hold the names of files with secrets, not their content. Only a password that came from the
environment is held as text, and no ``repr`` shows it. Files are read anew for each connection, so a changed password
needs no restart.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from consumerd.access.principal import short_name
from consumerd.access.secret_file import check_secret_file, read_password
from consumerd.errors import ConfigError
from consumerd.net.address import Address
from consumerd.sasl.client import SaslClient
from consumerd.sasl.digest_md5 import DIGEST_MD5, DigestClient
from consumerd.sasl.gssapi_client import GSSAPI, GssapiClient
from consumerd.sasl.kerberos import KerberosLogin, TicketCache, require_gssapi
from consumerd.sasl.plain import PLAIN, PlainClient
from consumerd.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramClient

SERVICE: Final = "kafka"
"""First part of the brokers' Kerberos principals, as most clusters have it."""
ZOOKEEPER_SERVICE: Final = "zookeeper"
"""First part of the Kerberos principals of ZooKeeper's servers, as most clusters have it."""

_DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
"""Service name of every ZooKeeper server in DIGEST-MD5, on any host."""
_EXPOSED: Final = (
    "PLAIN sends the password as it is, and the connections are not encrypted: use TLS or SCRAM, or write "
    "allow_plaintext_password: true if everybody on the network may know it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslIdentity:
    """Base of identities at brokers and at ZooKeeper.

    Attributes:
        setting: Name of the settings' section or of the options' prefix, for error messages.
        mechanism: One of :attr:`MECHANISMS`.
        username: User name for mechanisms with a password.
        password_file: File with the password; None if it is in ``password``.
        password: Password from the environment.
        keytab: File with the Kerberos keys of ``principal``; None for tickets of the system's cache.
        principal: Kerberos principal; None for that of the cache.
        service_name: First part of the servers' Kerberos principals, such as ``kafka`` of ``kafka/host@REALM``.
    """

    MECHANISMS: ClassVar[tuple[str, ...]] = ()
    """Mechanisms that the servers and we have."""

    setting: str
    mechanism: str
    username: str | None = None
    password_file: Path | None = None
    password: str = field(default="", repr=False)
    keytab: Path | None = None
    principal: str | None = None
    service_name: str = SERVICE

    def find_identity_fault(self) -> tuple[str, str] | None:
        """Return the first mistake as key and text; None without one. Reads no file."""
        if self.mechanism not in self.MECHANISMS:
            return "mechanism", f"expected one of {', '.join(self.MECHANISMS)}, got {self.mechanism!r}"
        for key, text in (("username", self.username), ("password", self.password), ("principal", self.principal)):
            if text is not None and not _is_text(text):
                return key, "it holds bytes that are no UTF-8"
        if self.mechanism == GSSAPI:
            return self._find_kerberos_fault()
        for key in ("keytab", "principal"):
            if getattr(self, key) is not None:
                return key, f"it is for GSSAPI, and the mechanism is {self.mechanism}: remove it"
        if not self.username:
            return "username", f"{self.mechanism} needs it: give the user's name"
        if (self.password_file is None) == (not self.password):
            return "password_file", f"{self.mechanism} needs one password: give it in a file, or by the environment"
        return None

    def _find_kerberos_fault(self) -> tuple[str, str] | None:
        for key, given in (("username", self.username), ("password_file", self.password_file)):
            if given is not None:
                return key, "GSSAPI has no password: remove it, and give keytab and principal"
        if self.password:
            return "password", "GSSAPI has no password: remove it, and give keytab and principal"
        if self.keytab is not None and self.principal is None:
            return "keytab", "a file of keys may hold several identities: give principal, too"
        return None

    def check_secrets(self) -> None:
        """Check the library for Kerberos, and the files with secrets. Raises ConfigError."""
        if self.mechanism == GSSAPI:
            require_gssapi(f"{self.setting}.mechanism")
            if self.keytab is not None:
                check_secret_file(f"{self.setting}.keytab", self.keytab)
        else:
            self.read_password()

    def read_password(self) -> str:
        """Return the password.

        Raises ConfigError for a file that cannot be read, or that everybody can read.
        """
        if self.password_file is None:
            return self.password
        return read_password(f"{self.setting}.password_file", self.password_file)

    @property
    def kerberos(self) -> KerberosLogin | None:
        """Kerberos identity; None for other mechanisms than GSSAPI."""
        if self.mechanism != GSSAPI:
            return None
        return KerberosLogin(principal=self.principal, keytab=self.keytab)

    def make_kerberos_client(self, host: str) -> SaslClient:
        """Make the client's side of an authentication by GSSAPI with the server on a host."""
        cache = TicketCache(KerberosLogin(principal=self.principal, keytab=self.keytab))
        return GssapiClient(lambda: cache.open_context(self.service_name, host))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslLogin(SaslIdentity):
    """Identity for SASL at brokers.

    Attributes:
        mechanism: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` or ``GSSAPI``.
        allow_plaintext_password: True to send the password of PLAIN over connections that are not encrypted.
    """

    MECHANISMS: ClassVar[tuple[str, ...]] = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, GSSAPI)

    setting: str = "cluster.sasl"
    allow_plaintext_password: bool = False

    def find_fault(self, *, tls: bool) -> tuple[str, str] | None:
        """Return the first mistake as key and text; None without one. Reads no file.

        Args:
            tls: True if connections to the brokers are encrypted.
        """
        if (fault := self.find_identity_fault()) is not None:
            return fault
        if self.mechanism == PLAIN and not tls and not self.allow_plaintext_password:
            return "mechanism", _EXPOSED
        return None

    def check(self, *, tls: bool) -> None:
        """Check everything that can be checked without connecting. Raises ConfigError.

        Args:
            tls: True if connections to the brokers are encrypted.
        """
        if (fault := self.find_fault(tls=tls)) is not None:
            raise ConfigError(f"{self.setting}.{fault[0]}: {fault[1]}")
        self.check_secrets()

    def make_client(self, address: Address) -> SaslClient:
        """Make the client's side of one authentication with the broker at an address.

        Reads the file of the password. May block. Raises ConfigError for a file that cannot be read.
        """
        if self.mechanism == GSSAPI:
            return self.make_kerberos_client(address.host)
        username, password = self.username or "", self.read_password()
        if self.mechanism == PLAIN:
            return PlainClient(username, password)
        return ScramClient(self.mechanism, username, password, secrets.token_urlsafe)

    @property
    def principal_name(self) -> str:
        """Name in the brokers' ACLs, such as ``User:lake``; empty if it is unknown.

        Of a Kerberos principal it is the one by Kafka's default rule.
        """
        if self.mechanism != GSSAPI:
            return f"User:{self.username}"
        return "" if self.principal is None else f"User:{short_name(self.principal)}"

    def describe(self) -> str:
        """Return the identity as brokers' ACLs name it, as far as we know it."""
        if self.mechanism != GSSAPI:
            return f"User:{self.username}"
        return f"the Kerberos principal {self.principal or 'of the ticket cache'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperLogin(SaslIdentity):
    """Identity for SASL at ZooKeeper.

    Attributes:
        mechanism: ``DIGEST-MD5`` or ``GSSAPI``.
    """

    MECHANISMS: ClassVar[tuple[str, ...]] = (DIGEST_MD5, GSSAPI)

    setting: str = "cluster.zookeeper_sasl"
    service_name: str = ZOOKEEPER_SERVICE

    def complete(self, brokers: SaslLogin | None) -> ZooKeeperLogin:
        """Return this identity, with the keytab and principal for brokers if it lacks both.

        Args:
            brokers: Identity at brokers; None without one.
        """
        is_bare = self.mechanism == GSSAPI and self.keytab is None and self.principal is None
        if not is_bare or brokers is None or brokers.mechanism != GSSAPI:
            return self
        return replace(self, keytab=brokers.keytab, principal=brokers.principal)

    def check(self) -> None:
        """Check everything that can be checked without connecting. Raises ConfigError."""
        if (fault := self.find_identity_fault()) is not None:
            raise ConfigError(f"{self.setting}.{fault[0]}: {fault[1]}")
        self.check_secrets()

    def make_client(self, address: Address) -> SaslClient:
        """Make the client's side of one authentication with the server at an address.

        Reads the file of the password. May block. Raises ConfigError for a file that cannot be read.
        """
        if self.mechanism == GSSAPI:
            return self.make_kerberos_client(address.host)
        username = self.username or ""
        return DigestClient(username, self.read_password(), uri=_DIGEST_URI, make_nonce=secrets.token_urlsafe)

    def describe(self) -> str:
        """Return the identity as ZooKeeper's ACLs name it, as far as we know it.

        Servers may cut host and realm off a Kerberos principal (``kerberos.removeHostFromPrincipal``).
        """
        if self.mechanism != GSSAPI:
            return f"sasl:{self.username}"
        return f"sasl:{self.principal}" if self.principal is not None else "sasl:(principal of the ticket cache)"


def _is_text(text: str) -> bool:
    """Return False for a text that cannot be encoded.

    Bytes of the environment that are no UTF-8 become such texts.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
