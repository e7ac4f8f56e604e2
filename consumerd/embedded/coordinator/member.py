# SPDX-License-Identifier: Apache-2.0
"""A member of a group, as the coordinator keeps it. Pure.

Source: Kafka's ``MemberMetadata.scala`` (0.9 to 1.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NewType

Ticket = NewType("Ticket", int)
"""Names a request that waits for its answer; whoever asks chooses it."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol that a member can speak, and what it says of itself in it (a subscription, for consumers)."""

    name: str
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class CoordinatedMember:
    """A member. Timeouts in ms, as the wire has them; ``expires_at`` in seconds of the coordinator's clock."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    expires_at: float = math.inf
    joining: Ticket | None = None
    """Its JoinGroup that waits for the others."""
    syncing: Ticket | None = None
    """Its SyncGroup that waits for the leader's."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for an answer of ours: then it cannot be expected to send heartbeats, and does not expire."""
        return self.joining is not None or self.syncing is not None

    @property
    def deadline(self) -> float:
        """When it counts as gone unless it is heard of before."""
        return math.inf if self.waiting else self.expires_at

    @property
    def protocol_names(self) -> frozenset[str]:
        """The protocols that it speaks."""
        return frozenset(protocol.name for protocol in self.protocols)

    def heard(self, now: float) -> None:
        """Count its session's time from now."""
        self.expires_at = now + self.session_timeout_ms / 1000

    def metadata(self, protocol: str) -> bytes:
        """Return what it says of itself in a protocol that it speaks."""
        return next(one.metadata for one in self.protocols if one.name == protocol)

    def vote(self, candidates: Collection[str]) -> str:
        """Return the first of its protocols, in its own order, that is a candidate."""
        return next(one.name for one in self.protocols if one.name in candidates)
