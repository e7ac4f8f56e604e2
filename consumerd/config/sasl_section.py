# SPDX-License-Identifier: Apache-2.0
"""Settings of SASL at the brokers and at ZooKeeper."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from consumerd.access.sasl_login import SERVICE, ZOOKEEPER_SERVICE, SaslLogin, ZooKeeperLogin
from consumerd.config.section import FilePath, Section, SettingFault, refuse


class SaslSection(Section):
    """Settings of authentication at the brokers by SASL.

    The password is given in the file ``password_file``, or as ``password`` by the environment only.

    Attributes:
        mechanism: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` or ``GSSAPI`` (Kerberos).
        username: User name for PLAIN and SCRAM.
        keytab: File with the Kerberos keys of ``principal``; None for tickets of the system's cache.
        principal: Kerberos principal; None for that of the cache.
        service_name: First part of the brokers' Kerberos principals, ``kafka`` of ``kafka/host@REALM``.
        allow_plaintext_password: True to send the password of PLAIN over connections that are not encrypted.
    """

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"]
    username: str | None = Field(default=None, min_length=1)
    password: SecretStr | None = None
    password_file: FilePath | None = None
    keytab: FilePath | None = None
    principal: str | None = Field(default=None, min_length=1)
    service_name: str = Field(default=SERVICE, min_length=1)
    allow_plaintext_password: bool = False

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        # TLS is known to the section around this one, which looks at the password of PLAIN
        if (fault := self.locate().find_fault(tls=True)) is not None:
            refuse([SettingFault((fault[0],), fault[1])])
        return self

    def locate(self) -> SaslLogin:
        """Return the identity, for the cluster's address."""
        return SaslLogin(
            setting="cluster.sasl",
            mechanism=self.mechanism,
            username=self.username,
            password_file=self.password_file,
            password="" if self.password is None else self.password.get_secret_value(),
            keytab=self.keytab,
            principal=self.principal,
            service_name=self.service_name,
            allow_plaintext_password=self.allow_plaintext_password,
        )


class ZookeeperSaslSection(Section):
    """Settings of authentication at ZooKeeper by SASL.

    The password is given in the file ``password_file``, or as ``password`` by the environment only.

    Attributes:
        mechanism: ``DIGEST-MD5`` or ``GSSAPI`` (Kerberos).
        username: User name for DIGEST-MD5.
        keytab: File with the Kerberos keys of ``principal``; None for that of ``cluster.sasl``, or for tickets of the
            system's cache.
        principal: Kerberos principal; None for that of ``cluster.sasl``, or of the cache.
        service_name: First part of the servers' Kerberos principals, ``zookeeper`` of ``zookeeper/host@REALM``.
    """

    mechanism: Literal["DIGEST-MD5", "GSSAPI"]
    username: str | None = Field(default=None, min_length=1)
    password: SecretStr | None = None
    password_file: FilePath | None = None
    keytab: FilePath | None = None
    principal: str | None = Field(default=None, min_length=1)
    service_name: str = Field(default=ZOOKEEPER_SERVICE, min_length=1)

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if (fault := self.locate().find_identity_fault()) is not None:
            refuse([SettingFault((fault[0],), fault[1])])
        return self

    def locate(self) -> ZooKeeperLogin:
        """Return the identity of this section alone, for the cluster's address."""
        return ZooKeeperLogin(
            setting="cluster.zookeeper_sasl",
            mechanism=self.mechanism,
            username=self.username,
            password_file=self.password_file,
            password="" if self.password is None else self.password.get_secret_value(),
            keytab=self.keytab,
            principal=self.principal,
            service_name=self.service_name,
        )
