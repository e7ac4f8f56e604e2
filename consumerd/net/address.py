# SPDX-License-Identifier: Apache-2.0
"""Addresses of listeners."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Host and port of a listener; ``tls`` is true if it speaks TLS."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def reachable_host(host: str) -> str:
    """Return the host at which this machine reaches a listener of its own.

    That is loopback for a listener on all addresses.
    """
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - looked for, not listened on
