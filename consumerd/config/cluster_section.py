# SPDX-License-Identifier: Apache-2.0
"""Settings of a cluster's address, and of the connections to its brokers and to ZooKeeper."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from consumerd.access.address import ClusterAddress, IdentitiesFile, TlsFiles, ZooKeeperCredential, parse_bootstrap
from consumerd.access.sasl_login import ZooKeeperLogin
from consumerd.config.sasl_section import SaslSection, ZookeeperSaslSection
from consumerd.config.section import (
    FilePath,
    MissingKeys,
    Name,
    Section,
    SettingFault,
    WireMilliseconds,
    in_our_words,
    refuse,
)
from consumerd.model import Generation
from consumerd.net.tls import find_unpaired
from consumerd.net.versions import parse_broker_version
from consumerd.sinks.option_types import read_milliseconds
from consumerd.zk.connect_string import parse_connect_string
from consumerd.zk.node_acl import AclProfile


class TlsSection(Section):
    """Settings of TLS to the brokers. Files are in PEM format."""

    KEY: ClassVar[str] = "cluster.tls"
    """Name of the section, for messages."""

    enabled: bool = False
    ca_file: FilePath | None = None
    certificate_file: FilePath | None = None
    key_file: FilePath | None = None
    check_hostname: bool = True

    @model_validator(mode="after")
    def _files_are_used(self) -> Self:
        named = [name for name in ("ca_file", "certificate_file", "key_file") if getattr(self, name) is not None]
        # one message only: these files are not read, so their own faults do not matter
        if not self.enabled and (named or not self.check_hostname):
            unused = (*named, *(() if self.check_hostname else ("check_hostname",)))
            message = (
                f"without {self.KEY}.enabled the connection is plain text: write enabled: true, "
                f"or remove {' and '.join(unused)}"
            )
            refuse([SettingFault(unused, message)])
        if (unpaired := find_unpaired(self.certificate_file, self.key_file)) is not None:
            given, other = unpaired
            refuse([SettingFault((given,), f"certificate_file and key_file go together: give {other}, too")])
        return self

    def locate(self) -> TlsFiles | None:
        """Return the TLS files, for the cluster's address; None if TLS is off."""
        if not self.enabled:
            return None
        return TlsFiles(
            setting=self.KEY,
            trusted=self.ca_file,
            certificate=self.certificate_file,
            key=self.key_file,
            check_hostname=self.check_hostname,
        )


class ZookeeperTlsSection(TlsSection):
    """Settings of TLS to ZooKeeper 3.5 and later. Files are in PEM format."""

    KEY: ClassVar[str] = "cluster.zookeeper_tls"


class ZookeeperAuthSection(Section):
    """Settings of digest authentication with ZooKeeper.

    The credential is ``user:password``. It is given in the file ``credential_file``, or as ``credential`` by the
    environment only.
    """

    scheme: Literal["digest"] = "digest"
    credential: SecretStr | None = None
    credential_file: FilePath | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        variable = "the environment variable CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL"
        if self.credential is None and self.credential_file is None:
            raise ValueError(f"give credential_file, or {variable}")
        if self.credential is not None and self.credential_file is not None:
            refuse([SettingFault(("credential_file", "credential"), f"give either this or {variable}, not both")])
        if self.credential is not None and not is_credential(self.credential.get_secret_value()):
            refuse([SettingFault(("credential",), f"{variable} does not hold user:password")])
        return self

    def locate(self) -> ZooKeeperCredential:
        """Return the credential, or the file that holds it, for the cluster's address."""
        return ZooKeeperCredential(
            setting="cluster.zookeeper_auth.credential_file",
            scheme=self.scheme,
            file=self.credential_file,
            text="" if self.credential is None else self.credential.get_secret_value(),
        )


def is_credential(text: str) -> bool:
    """Return True if a text has the form ``user:password`` of ZooKeeper's scheme ``digest``."""
    user, colon, password = text.strip().partition(":")
    return bool(user and colon and password)


class ClusterSection(Section):
    """Settings of the cluster's address, and of the connections to its brokers.

    A cluster without ZooKeeper has ``bootstrap`` in place of ``zookeeper``.

    Attributes:
        zookeeper: ZooKeeper's connect string, with the chroot.
        bootstrap: Brokers to ask first, ``host:port,host:port``.
        generation: ``auto`` finds it from the registered brokers: ``legacy`` is Kafka 0.6 and 0.7, ``modern`` is 0.8
            and later. If brokers of both are registered, those of the other generation than the setting are ignored.
        broker_version: Kafka release that all brokers are assumed to run; ``auto`` asks each broker.
        client_id: Name by which brokers know us, in their logs and quotas; None for the group's id.
        metadata_backoff_ms: First delay before brokers are asked again about leaders; it doubles up to 10 s.
        sasl: Identity at the brokers; None for listeners without SASL.
        zookeeper_auth: Credential for ZooKeeper; None for none.
        zookeeper_sasl: Identity for SASL at ZooKeeper; None for none.
        zookeeper_acl: ACLs of the nodes that are created in ZooKeeper; None for ``java`` with ``zookeeper_sasl``, else
            ``open``.
        identities: File with the identities that a cluster without ZooKeeper had while it was in ZooKeeper, as
            ``consumerd identities`` writes it; None for none.
    """

    NEEDED: ClassVar[tuple[str, ...]] = ("zookeeper",)

    zookeeper: Annotated[str, in_our_words(parse_connect_string)] | None = None
    bootstrap: Annotated[str, in_our_words(parse_bootstrap, "cluster.bootstrap")] | None = None
    generation: Literal["auto", "legacy", "modern"] = "auto"
    broker_version: Annotated[str, in_our_words(parse_broker_version, "cluster.broker_version")] = "auto"
    client_id: Name | None = None
    connect_timeout_ms: WireMilliseconds = 6000
    request_timeout_ms: WireMilliseconds = 30000
    metadata_backoff_ms: Annotated[int, BeforeValidator(read_milliseconds), Field(gt=0, le=10_000)] = 200
    tls: TlsSection = TlsSection()
    sasl: SaslSection | None = None
    zookeeper_auth: ZookeeperAuthSection | None = None
    zookeeper_sasl: ZookeeperSaslSection | None = None
    zookeeper_tls: ZookeeperTlsSection = ZookeeperTlsSection()
    zookeeper_acl: Literal["open", "java", "private"] | None = None
    identities: FilePath | None = None

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if self.zookeeper is None and self.bootstrap is None:
            raise MissingKeys(self.NEEDED)
        if self.bootstrap is not None:
            names = ("zookeeper", "zookeeper_auth", "zookeeper_sasl", "zookeeper_acl")
            used = [name for name in names if getattr(self, name) is not None]
            used += ["zookeeper_tls.enabled"] if self.zookeeper_tls.enabled else []
            if used:
                message = f"bootstrap is for a cluster without ZooKeeper: remove it, or {' and '.join(used)}"
                refuse([SettingFault(("bootstrap", *used), message)])
        elif self.identities is not None:
            message = (
                "identities is for a cluster without ZooKeeper: remove it, or give bootstrap in place of zookeeper"
            )
            refuse([SettingFault(("identities", "zookeeper"), message)])
        return self

    @model_validator(mode="after")
    def _password_is_encrypted(self) -> Self:
        if self.sasl is not None and (fault := self.sasl.locate().find_fault(tls=self.tls.enabled)) is not None:
            refuse([SettingFault((f"sasl.{fault[0]}", "tls.enabled"), fault[1])])
        return self

    @model_validator(mode="after")
    def _nodes_have_an_owner(self) -> Self:
        identities = (self.zookeeper_sasl, self.zookeeper_auth, self.zookeeper_tls.certificate_file)
        if self.zookeeper_acl not in (None, AclProfile.OPEN.value) and all(one is None for one in identities):
            message = f"{self.zookeeper_acl} gives nodes to our identity, and there is none: give zookeeper_sasl, or write open"
            refuse([SettingFault(("zookeeper_acl", "zookeeper_sasl"), message)])
        return self

    @property
    def expected_generation(self) -> Generation | None:
        """Generation that the settings name; None if the registered brokers tell it."""
        return None if self.generation == "auto" else Generation(self.generation)

    @property
    def place(self) -> str:
        """Address of the cluster for messages: ZooKeeper's connect string, or the brokers.

        The brokers are shown only if ZooKeeper is not given.
        """
        return self.zookeeper or self.bootstrap or ""

    def find_identities(self) -> IdentitiesFile | None:
        """Return the file of ``identities``; None if it is not given."""
        return None if self.identities is None else IdentitiesFile(setting="cluster.identities", file=self.identities)

    def locate_zookeeper_login(self) -> ZooKeeperLogin | None:
        """Return the identity for SASL at ZooKeeper; None without.

        By Kerberos without a keytab and principal of its own, it is that of ``cluster.sasl`` by Kerberos.
        """
        if self.zookeeper_sasl is None:
            return None
        return self.zookeeper_sasl.locate().complete(None if self.sasl is None else self.sasl.locate())

    def locate(self, *, client_id: str, session_timeout_ms: int) -> ClusterAddress:
        """Return the cluster's address, with all that is needed to connect to it.

        Args:
            client_id: Name by which brokers know us, if the setting ``client_id`` is not given.
            session_timeout_ms: ZooKeeper session timeout to ask for, in ms.
        """
        return ClusterAddress(
            bootstrap=self.bootstrap,
            zookeeper=self.zookeeper,
            zookeeper_auth=None if self.zookeeper_auth is None else self.zookeeper_auth.locate(),
            zookeeper_sasl=self.locate_zookeeper_login(),
            zookeeper_tls=self.zookeeper_tls.locate(),
            zookeeper_acl=None if self.zookeeper_acl is None else AclProfile(self.zookeeper_acl),
            identities=self.find_identities(),
            generation=self.expected_generation,
            tls=self.tls.locate(),
            sasl=None if self.sasl is None else self.sasl.locate(),
            broker_version=self.broker_version,
            client_id=self.client_id or client_id,
            session_timeout_s=session_timeout_ms / 1000,
            connect_timeout_s=self.connect_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            metadata_backoff_s=self.metadata_backoff_ms / 1000,
        )
