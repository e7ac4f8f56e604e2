# SPDX-License-Identifier: Apache-2.0
"""A real Kerberos server (MIT krb5kdc of Debian) on loopback, for tests; it needs no rights and is stopped by its own pid."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.support.kafka import free_port
from tests.support.programs import ProgramFailed

PACKAGES: Final = "krb5-kdc krb5-admin-server krb5-user"
"""Debian packages with the programs that are run here."""

SERVICES: Final = ("kafka/localhost", "zookeeper/localhost")
CLIENTS: Final = ("alice", "bob", "lake/host1")
_KEYS: Final = "aes256-cts-hmac-sha1-96 aes128-cts-hmac-sha1-96"
"""Types of keys that Java 8 to 17 and Debian's Kerberos have."""


def find_program(name: str) -> str | None:
    """Return the path of a program of Kerberos, which Debian keeps where only root looks by default."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass(eq=False)
class Kdc:
    """One realm with its server and principals; a context manager. ``ticket_life`` is as ``10h`` or ``40s``."""

    realm: str = "TEST.LOCAL"
    ticket_life: str = "10h"
    principals: tuple[str, ...] = (*SERVICES, *CLIENTS)
    directory: Path = field(init=False, default=Path())
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.port = free_port()

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="consumerd-kdc-"))
        try:
            self._write_config()
            self.run("kdb5_util", "create", "-r", self.realm, "-s", "-P", "master")
            for principal in self.principals:
                self.run("kadmin.local", "-r", self.realm, "addprinc", "-randkey", principal)
                self.export(principal)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and remove all keys."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def config(self) -> Path:
        """The ``krb5.conf`` of clients."""
        return self.directory / "krb5.conf"

    @property
    def environment(self) -> Mapping[str, str]:
        """What processes need to be clients of this realm, and of no other."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
            "KRB5RCACHETYPE": "none",
            "KRB5CCNAME": f"FILE:{self.directory}/cache",
        }

    def keytab(self, principal: str) -> Path:
        """Return the file with a principal's keys."""
        return self.directory / f"{principal.replace('/', '_')}.keytab"

    def export(self, principal: str) -> None:
        """Write the principal's keys anew, of the next version: keytabs that were made before are worth nothing then."""
        self.keytab(principal).unlink(missing_ok=True)
        self.run("kadmin.local", "-r", self.realm, "ktadd", "-k", str(self.keytab(principal)), principal)

    def kinit(self, principal: str, *options: str) -> None:
        """Get a ticket into the cache of :attr:`environment`."""
        self.run("kinit", "-k", "-t", str(self.keytab(principal)), *options, principal)

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the server on its port, with an addition to its environment, and wait until it listens."""
        program = find_program("krb5kdc")
        assert program is not None, f"the Debian packages {PACKAGES}"
        with (self.directory / "krb5kdc.out").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-n", "-P", str(self.directory / "kdc.pid")],
                env={**os.environ, **self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise ProgramFailed(f"krb5kdc did not start: {(self.directory / 'krb5kdc.out').read_text()}")

    def stop(self) -> None:
        """Stop the server; its principals stay."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
            self.process = None

    def run(self, program: str, *args: str) -> str:
        """Run a program of Kerberos in this realm. Raises ProgramFailed with what it says."""
        command = [find_program(program) or program, *args]
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise ProgramFailed(f"{command}: {done.stderr}{done.stdout}")
        return done.stdout

    def _write_config(self) -> None:
        # canonical names are what DNS says: the tests' brokers are known as localhost
        self.config.write_text(
            f"[libdefaults]\n default_realm = {self.realm}\n dns_lookup_realm = false\n dns_lookup_kdc = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f" ticket_lifetime = {self.ticket_life}\n default_tkt_enctypes = {_KEYS}\n default_tgs_enctypes = {_KEYS}\n"
            f" permitted_enctypes = {_KEYS}\n[realms]\n {self.realm} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
            f"[domain_realm]\n localhost = {self.realm}\n"
        )
        kinds = " ".join(f"{kind}:normal" for kind in _KEYS.split())
        (self.directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {self.realm} = {{\n  database_name = {self.directory}/principal\n"
            f"  key_stash_file = {self.directory}/stash\n  acl_file = {self.directory}/kadm5.acl\n"
            f"  max_life = {self.ticket_life}\n  supported_enctypes = {kinds}\n }}\n"
            f"[logging]\n kdc = FILE:{self.directory}/kdc.log\n default = FILE:{self.directory}/kdc-default.log\n"
        )
