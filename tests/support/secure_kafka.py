# SPDX-License-Identifier: Apache-2.0
"""Real Kafka with SASL and TLS on this machine, for the interop tests; on top of :mod:`tests.support.kafka`.

Each broker has three listeners: PLAINTEXT, for itself and the tests' own tools, SASL_PLAINTEXT and SASL_SSL. The brokers
are known as ``localhost``, as which the certificate and the Kerberos keys are made.

ZooKeeper may be secured, too: with SASL the brokers log in as the user ``kafka`` and protect what they create
(``zookeeper.set.acl``). With TLS it has a second port, beside the one in plain text that the brokers use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trustme

from tests.support.kafka import Cluster, free_port, parse_release
from tests.support.kdc import Kdc

PASSWORDS: Final[Mapping[str, str]] = {"alice": "alice-secret", "bob": "bob-secret"}
BROKERS_PASSWORD: Final = "kafka-secret"
"""Of the brokers' user at ZooKeeper."""
STORE_PASSWORD: Final = "store-secret"
_FIRST_WITH_MECHANISMS: Final = (0, 10)
_DIGEST_LOGIN: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_KERBEROS_NAMES: Final = "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED"
"""Without it, brokers up to 2.x on a newer Java do not find the default realm, and so no rule for any principal."""


@dataclass
class SecureCluster(Cluster):
    """Brokers of one release with the listeners above. GSSAPI needs a ``kdc``; brokers of 0.9 have nothing else.

    Args:
        zookeeper_sasl: Mechanism of SASL at ZooKeeper, ``DIGEST-MD5`` or ``GSSAPI``; None for none.
        zookeeper_tls: ``none`` or ``need``: whether ZooKeeper's port for TLS wants a client certificate, which
            :attr:`trusted` has issued; None for no such port.
    """

    kdc: Kdc | None = None
    zookeeper_sasl: str | None = None
    zookeeper_tls: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sasl_ports = [free_port() for _ in range(self.brokers)]
        self.sasl_ssl_ports = [free_port() for _ in range(self.brokers)]
        self.zookeeper_tls_port = free_port()
        self.trusted = trustme.CA()
        """Authority whose certificates ZooKeeper takes from clients."""
        self.java_user: str | None = None
        """Who the Java consumers are at ZooKeeper that are started from now on; None for nobody."""

    @property
    def zookeeper(self) -> str:
        """See Cluster; by the name that the Kerberos key is made for."""
        return f"localhost:{self.zk_port}{self.chroot}"

    @property
    def zookeeper_properties(self) -> Mapping[str, str]:
        """See Cluster."""
        found = {}
        if self.zookeeper_sasl is not None:
            found["authProvider.1"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        if self.zookeeper_sasl == "GSSAPI":
            found |= {"kerberos.removeHostFromPrincipal": "true", "kerberos.removeRealmFromPrincipal": "true"}
        if self.zookeeper_tls is not None:
            found |= {
                "secureClientPort": str(self.zookeeper_tls_port),
                "secureClientPortAddress": "127.0.0.1",
                "ssl.keyStore.location": f"{self.directory}/broker.jks",
                "ssl.keyStore.password": STORE_PASSWORD,
                "ssl.trustStore.location": f"{self.directory}/trust.jks",
                "ssl.trustStore.password": STORE_PASSWORD,
                "ssl.clientAuth": self.zookeeper_tls,
                "authProvider.2": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            }
        return found

    def zookeeper_login(self, user: str) -> Mapping[str, Any]:
        """Return ``cluster.zookeeper_sasl`` of a daemon's settings for a user."""
        if self.zookeeper_sasl == "GSSAPI":
            assert self.kdc is not None
            return {
                "mechanism": "GSSAPI",
                "keytab": str(self.kdc.keytab(user)),
                "principal": f"{user}@{self.kdc.realm}",
            }
        return {"mechanism": "DIGEST-MD5", "username": user, "password_file": str(self.password_file(user))}

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of the brokers."""
        kerberos = ("GSSAPI",) if self.kdc is not None else ()
        if parse_release(self.release) < _FIRST_WITH_MECHANISMS:
            return kerberos
        return ("PLAIN", *_SCRAM, *kerberos)

    @property
    def ca_file(self) -> Path:
        """The certificate of the brokers, which is its own authority."""
        return self.directory / "ca.pem"

    def sasl_bootstrap(self, *, tls: bool) -> str:
        """Return the addresses of listeners with SASL."""
        return ",".join(f"localhost:{port}" for port in (self.sasl_ssl_ports if tls else self.sasl_ports))

    def password_file(self, user: str, password: str | None = None) -> Path:
        """Write a file with a user's password, or another one, that nobody else can read; return it."""
        path = self.directory / f"password-{user}"
        path.touch(mode=0o600)
        path.write_text(f"{PASSWORDS[user] if password is None else password}\n")
        return path

    def section(self, mechanism: str, *, tls: bool, user: str = "alice", **sasl: Any) -> Mapping[str, Any]:
        """Return the ``cluster`` section of a daemon's settings that logs in as ``user``."""
        login: dict[str, Any] = {"mechanism": mechanism}
        if mechanism == "GSSAPI":
            assert self.kdc is not None
            login |= {"keytab": str(self.kdc.keytab(user)), "principal": f"{user}@{self.kdc.realm}"}
        else:
            login |= {"username": user, "password_file": str(self.password_file(user))}
        if mechanism == "PLAIN" and not tls:
            login["allow_plaintext_password"] = True
        secured = {"enabled": True, "ca_file": str(self.ca_file)} if tls else {"enabled": False}
        return {**self.cluster_settings, "tls": secured, "sasl": login | sasl}

    def start_zookeeper(self) -> None:
        """See Cluster; the brokers' certificate is made before anything needs it."""
        if not self.ca_file.exists():
            self._make_certificate()
        super().start_zookeeper()

    def start_broker(self, index: int, *, wait: bool = True) -> None:
        """See Cluster."""
        listeners = (
            f"PLAINTEXT://127.0.0.1:{self.ports[index]},SASL_PLAINTEXT://localhost:{self.sasl_ports[index]},"
            f"SASL_SSL://localhost:{self.sasl_ssl_ports[index]}"
        )
        secured = {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "sasl.kerberos.service.name": "kafka",
            "ssl.keystore.location": f"{self.directory}/broker.jks",
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
            "ssl.truststore.location": f"{self.directory}/broker.jks",
            "ssl.truststore.password": STORE_PASSWORD,
            "ssl.enabled.protocols": "TLSv1.2",
            "security.inter.broker.protocol": "PLAINTEXT",
            "super.users": "User:ANONYMOUS",
        }
        if self.zookeeper_sasl is not None:
            secured["zookeeper.set.acl"] = "true"
        if parse_release(self.release) >= _FIRST_WITH_MECHANISMS:
            secured["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        own, self.properties = self.properties, {**secured, **self.properties}
        try:
            super().start_broker(index, wait=wait)
        finally:
            self.properties = own

    def secure_command(self, name: str, command: list[str]) -> list[str]:
        """See Cluster: brokers, ZooKeeper and tools are given their logins, Java consumers those of ``java_user``."""
        options: list[str] = []
        if name == "zookeeper" and self.zookeeper_tls is not None:
            options.append(
                "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            )
        logins = None
        if name.startswith("broker") or (self.zookeeper_sasl is not None and name in {"zookeeper", "tool"}):
            logins = self._write_logins()
        elif name.startswith("java-consumer") and self.zookeeper_sasl is not None and self.java_user is not None:
            logins = self.directory / f"jaas-{self.java_user}.conf"
            logins.write_text(f"Client {{\n {self._zookeeper_client(self.java_user)}\n}};\n")
        if logins is None:
            return [command[0], *options, *command[1:]]
        options += [f"-Djava.security.auth.login.config={logins}", _KERBEROS_NAMES]
        if self.kdc is not None:
            options.append(f"-Djava.security.krb5.conf={self.kdc.config}")
        program = next(index for index, word in enumerate(command) if word.endswith("java"))
        kept = [
            word
            for word in command[program + 1 :]
            if self.zookeeper_sasl is None or word != "-Dzookeeper.sasl.client=false"
        ]
        return [*command[: program + 1], *options, *kept]

    def add_scram_users(self) -> None:
        """Keep the passwords of all users in ZooKeeper, as brokers with SCRAM want them."""
        for user in PASSWORDS:
            self.set_scram_password(user, PASSWORDS[user])

    def set_scram_password(self, user: str, password: str) -> None:
        """Set a user's password for SCRAM."""
        config = ",".join(f"{mechanism}=[iterations=4096,password={password}]" for mechanism in _SCRAM)
        self.run_tool(
            "kafka.admin.ConfigCommand", "--zookeeper", self.zookeeper, "--alter", "--entity-type", "users",
            "--entity-name", user, "--add-config", config, brisk=True,
        )  # fmt: skip

    def _write_logins(self) -> Path:
        """Write the brokers' JAAS file."""
        modules = []
        if self.kdc is not None:
            modules.append(self._kerberos_login("kafka/localhost"))
        if "PLAIN" in self.mechanisms:
            users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
            modules.append(f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};")
            modules.append("org.apache.kafka.common.security.scram.ScramLoginModule required;")
        sections = {"KafkaServer": "\n ".join(modules)}
        if self.zookeeper_sasl == "GSSAPI":
            sections["Server"] = self._kerberos_login("zookeeper/localhost")
        elif self.zookeeper_sasl is not None:
            known = {**PASSWORDS, "kafka": BROKERS_PASSWORD}
            users = " ".join(f'user_{user}="{password}"' for user, password in known.items())
            sections["Server"] = f"{_DIGEST_LOGIN} required {users};"
        if self.zookeeper_sasl is not None:
            sections["Client"] = self._zookeeper_client("kafka")
        path = self.directory / "jaas.conf"
        path.write_text("".join(f"{name} {{\n {body}\n}};\n" for name, body in sections.items() if body))
        return path

    def _zookeeper_client(self, user: str) -> str:
        """Return the login of a client of ZooKeeper; ``kafka`` is that of the brokers."""
        if self.zookeeper_sasl == "GSSAPI":
            return self._kerberos_login("kafka/localhost" if user == "kafka" else user)
        password = BROKERS_PASSWORD if user == "kafka" else PASSWORDS[user]
        return f'{_DIGEST_LOGIN} required username="{user}" password="{password}";'

    def _kerberos_login(self, principal: str) -> str:
        assert self.kdc is not None
        return (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            f'useTicketCache=false keyTab="{self.kdc.keytab(principal)}" principal="{principal}@{self.kdc.realm}";'
        )

    def _make_certificate(self) -> None:
        keytool = ["keytool", "-noprompt", "-storepass", STORE_PASSWORD, "-alias", "broker"]
        keytool += ["-keystore", f"{self.directory}/broker.jks"]
        names = ["-ext", "san=dns:localhost,ip:127.0.0.1", "-ext", "bc:c"]
        made = ["-genkeypair", "-keyalg", "RSA", "-keysize", "2048", "-dname", "CN=localhost", "-validity", "3650"]
        store = ["-storetype", "JKS", "-keypass", STORE_PASSWORD]  # brokers of 0.10 know no other type by default
        subprocess.run([*keytool, *made, *names, *store], check=True, capture_output=True)
        exported = subprocess.run([*keytool, "-exportcert", "-rfc"], check=True, capture_output=True)
        self.ca_file.write_bytes(exported.stdout)
        self.trusted.cert_pem.write_to_path(self.directory / "trusted.pem")
        trusted = ["-importcert", "-alias", "clients", "-file", f"{self.directory}/trusted.pem", "-storetype", "JKS"]
        store = ["-keystore", f"{self.directory}/trust.jks", "-storepass", STORE_PASSWORD]
        subprocess.run(["keytool", "-noprompt", *store, *trusted], check=True, capture_output=True)
