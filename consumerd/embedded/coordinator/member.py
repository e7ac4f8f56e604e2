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
    """A protocol that a group member supports, such as the assignor ``range``, with its metadata.

    For consumers, the metadata are the member's subscription.
    """

    name: str
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class CoordinatedMember:
    """A member of a group in the coordinator's memory.

    Timeouts are in ms, ``expires_at`` in seconds of the coordinator's clock.
    """

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    expires_at: float = math.inf
    joining: Ticket | None = None
    """Ticket number of the member's pending JoinGroup; None if none is pending."""
    syncing: Ticket | None = None
    """Ticket number of the member's pending SyncGroup; None if none is pending."""

    @property
    def waiting(self) -> bool:
        """True while the member waits for the response to a JoinGroup or SyncGroup.

        It cannot send heartbeats then, and so does not expire.
        """
        return self.joining is not None or self.syncing is not None

    @property
    def deadline(self) -> float:
        """Time at which the member expires unless it sends a request.

        In seconds of the coordinator's clock.
        """
        return math.inf if self.waiting else self.expires_at

    @property
    def protocol_names(self) -> frozenset[str]:
        """The names of the protocols (assignors) that the member supports."""
        return frozenset(protocol.name for protocol in self.protocols)

    def heard(self, now: float) -> None:
        """Restart the member's session timeout: it has sent a request."""
        self.expires_at = now + self.session_timeout_ms / 1000

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata, such as its subscription, for a protocol that it supports."""
        return next(one.metadata for one in self.protocols if one.name == protocol)

    def vote(self, candidates: Collection[str]) -> str:
        """Return the first of the candidates in the member's own order of protocols."""
        return next(one.name for one in self.protocols if one.name in candidates)
