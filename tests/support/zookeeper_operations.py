# SPDX-License-Identifier: Apache-2.0
"""What members ask of ZooKeeper, counted by kind on its way there: a hook for :class:`~tests.support.tcp_proxy.TcpProxy`.

Counted is every request of every connection that the proxy carries, so that Java's members are counted as ours are. What
keeps a session alive (pings, and ``sync``, with which ours probe the leader) is left out: it goes on by the clock.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.support.tcp_proxy import Action, Direction
from tests.support.zookeeper import opcode

KINDS: Final = {
    1: "create",
    2: "delete",
    3: "exists",
    4: "get",
    5: "set",
    6: "get acl",
    8: "children",
    12: "children",
    13: "check",
    14: "multi",
    15: "create",
    101: "set watches",
}
"""Opcode to kind; ``getChildren`` and ``getChildren2`` are one, and so are ``create`` and ``create2``."""
READS: Final = frozenset({"exists", "get", "children"})
_KEPT_ALIVE: Final = frozenset({0, 9, 11, 100, -11})
"""What is no operation: events, probes, pings, credentials, the end of a session."""
_MULTI_HEADER: Final = struct.Struct("!i?i")
_INT: Final = struct.Struct("!i")
_BODY: Final = 12
"""Where a request's body begins: behind its length, xid and opcode."""


@dataclass
class OperationCounter:
    """Requests by kind, and by kind what went out inside of ``multi``\\ s."""

    requests: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)

    def __call__(self, direction: Direction, frame: bytes) -> Action:
        """Count a frame and pass it on."""
        if direction is Direction.TO_SERVER and (code := opcode(frame)) not in _KEPT_ALIVE:
            kind = KINDS.get(code, f"opcode {code}")
            self.requests[kind] += 1
            if kind == "multi":
                self.inside.update(_read_multi(frame))
        return Action.FORWARD

    @property
    def total(self) -> int:
        """How many requests there were."""
        return self.requests.total()

    @property
    def reads(self) -> int:
        """How many of them read."""
        return sum(count for kind, count in self.requests.items() if kind in READS)

    def clear(self) -> None:
        """Begin to count anew."""
        self.requests.clear()
        self.inside.clear()

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.requests.items()))
        held = ", ".join(f"{kind} {count}" for kind, count in sorted(self.inside.items()))
        return f"{self.total} requests ({kinds}{f'; in multis: {held}' if held else ''})"


def _read_multi(frame: bytes) -> Iterator[str]:
    """Yield the kind of each operation of a multi."""
    at = _BODY
    while True:
        code, done, _ = _MULTI_HEADER.unpack_from(frame, at)
        at += _MULTI_HEADER.size
        if done:
            return
        kind = KINDS[code]
        yield kind
        at = _skip_bytes(frame, at)  # the path
        if kind in {"create", "set"}:
            at = _skip_bytes(frame, at)
        if kind == "create":
            (entries,) = _INT.unpack_from(frame, at)
            at += _INT.size
            for _ in range(entries):
                at = _skip_bytes(frame, _skip_bytes(frame, at + _INT.size))  # permissions, scheme, id
        at += _INT.size  # flags of a create, else the version


def _skip_bytes(frame: bytes, at: int) -> int:
    """Return where what follows a string or buffer begins."""
    length: int = _INT.unpack_from(frame, at)[0]
    return at + _INT.size + max(0, length)
