# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper connect strings: ``host:port,host:port/chroot``, as every Java client takes them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from consumerd.errors import ConfigError

DEFAULT_PORT: Final = 2181

_SERVER: Final = re.compile(
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:\[\]/]+))(?::(?P<port>[0-9]{1,5}))?"
)

_PORT_BEHIND_CHROOT: Final = re.compile(
    r"(?P<hosts>(?:[^/]*,)?(?:\[[^/\]]*\]|[^/:,]+))(?P<chroot>/[^:]*[^:/])/?:(?P<port>[0-9]{1,5})/?"
)
"""Connect string whose last server has no port, and whose chroot ends with one."""


@dataclass(frozen=True, slots=True)
class Server:
    """Host and port of one ZooKeeper server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectString:
    """ZooKeeper servers and chroot; ``chroot`` is empty if the connect string has none."""

    servers: tuple[Server, ...]
    chroot: str

    def __str__(self) -> str:
        return ",".join(map(str, self.servers)) + self.chroot


def parse_connect_string(text: str) -> ConnectString:
    """Parse ``host:port,host:port/chroot``. Raises ConfigError, which names the faulty part.

    Example: ``zk1:2181,zk2:2181/kafka`` gives two servers and the chroot ``/kafka``.
    """
    hosts, slash, rest = text.strip().partition("/")
    chroot = f"{slash}{rest}".rstrip("/")
    if "://" in text:
        raise ConfigError(f"ZooKeeper connect string {text!r}: expected host:port without a scheme such as http://")
    if "," in chroot:
        raise ConfigError(
            f"ZooKeeper connect string {text!r}: the chroot is given once, behind the last server: "
            f"write {_join_servers(text)}"
        )
    swapped = _PORT_BEHIND_CHROOT.fullmatch(text.strip())
    if swapped is not None:
        raise ConfigError(
            f"ZooKeeper connect string {text!r}: the port stands before the chroot: "
            f"write {swapped['hosts']}:{swapped['port']}{swapped['chroot']}"
        )
    if any(part in {"", ".", ".."} for part in chroot.split("/")[1:]):
        raise ConfigError(f"ZooKeeper connect string {text!r}: {chroot!r} is no path of a node")
    servers = tuple(_parse_server(text, part.strip()) for part in hosts.split(",") if part.strip())
    if not servers:
        raise ConfigError(f"ZooKeeper connect string {text!r}: expected host:port,host:port/chroot, got no host")
    for server in servers:
        if servers.count(server) > 1:
            raise ConfigError(f"ZooKeeper connect string {text!r}: server {server} is named twice: name each once")
    return ConnectString(servers, chroot)


def _join_servers(text: str) -> str:
    """Correct a connect string that repeats the chroot after each server."""
    parts = [part.strip().partition("/") for part in text.split(",")]
    chroots = [f"/{chroot}" for _, slash, chroot in parts if slash and chroot]
    return ",".join(server for server, _, _ in parts) + (chroots[-1].rstrip("/") if chroots else "")


def _parse_server(text: str, part: str) -> Server:
    match = _SERVER.fullmatch(part)
    if match is None:
        hint = ""
        if re.search(r"[\s;|]", part):
            hint = "; separate servers by commas"
        elif part.count(":") > 1 and "[" not in part:
            hint = "; write an IPv6 address in brackets"
        raise ConfigError(f"ZooKeeper connect string {text!r}: expected host:port, got {part!r}{hint}")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port <= 65535:
        raise ConfigError(f"ZooKeeper connect string {text!r}: {port} is no port: write 1 to 65535")
    return Server(match["bracketed"] or match["host"], port)
