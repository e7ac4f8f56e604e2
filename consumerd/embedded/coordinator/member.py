# SPDX-License-Identifier: Apache-2.0
"""A group member in the coordinator's memory. Pure.

Source: Kafka's ``MemberMetadata.scala`` (0.9 to 1.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NewType

Ticket = NewType("Ticket", int)
"""The number of a pending request, chosen by the caller."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol that a member supports, with its metadata (for consumers, a subscription)."""

    name: str
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class CoordinatedMember:
    """A member. Timeouts are in ms, ``expires_at`` in seconds of the coordinator's clock."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    expires_at: float = math.inf
    joining: Ticket | None = None
    """Its pending JoinGroup, which waits for other members."""
    syncing: Ticket | None = None
    """Its pending SyncGroup, which waits for the leader's."""

    @property
    def waiting(self) -> bool:
        """True while a response to it is pending.

        It cannot send heartbeats then, and so does not expire.
        """
        return self.joining is not None or self.syncing is not None

    @property
    def deadline(self) -> float:
        """Time at which it expires, unless it sends a request."""
        return math.inf if self.waiting else self.expires_at

    @property
    def protocol_names(self) -> frozenset[str]:
        """The protocols that it supports."""
        return frozenset(protocol.name for protocol in self.protocols)

    def heard(self, now: float) -> None:
        """Restart its session timeout."""
        self.expires_at = now + self.session_timeout_ms / 1000

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata for a protocol that it supports."""
        return next(one.metadata for one in self.protocols if one.name == protocol)

    def vote(self, candidates: Collection[str]) -> str:
        """Return the first candidate among its protocols, in its own order."""
        return next(one.name for one in self.protocols if one.name in candidates)
