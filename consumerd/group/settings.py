# SPDX-License-Identifier: Apache-2.0
"""The settings of a rebalance, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceSettings:
    """How a member takes part in a rebalance; the defaults keep a handover inside a Java member's 6 s of patience."""

    settle_ms: int = 200
    """How long changes are gathered before the registry is read; up to half of it more by chance."""
    max_retries: int = 4
    """After so many tries to claim a partition that another member holds, the member says that it is not ready."""
    backoff_ms: int = 2000
    """Between two such tries; they happen besides the watch on the holder."""
    drain_timeout_ms: int = 3000
    """How long a partition that goes away may be flushed and committed; what is not done by then is abandoned."""
    release_grace_ms: int = 250
    """How long a drained partition is still held: a Java member reads the committed offset before it claims."""
    reconcile_ms: int = 5000
    """Between two comparisons of what should be owned, what ZooKeeper says and what runs."""

    @property
    def settle_s(self) -> float:
        """``settle_ms`` in seconds."""
        return self.settle_ms / 1000

    @property
    def backoff_s(self) -> float:
        """``backoff_ms`` in seconds."""
        return self.backoff_ms / 1000

    @property
    def drain_timeout_s(self) -> float:
        """``drain_timeout_ms`` in seconds."""
        return self.drain_timeout_ms / 1000

    @property
    def release_grace_s(self) -> float:
        """``release_grace_ms`` in seconds."""
        return self.release_grace_ms / 1000

    @property
    def reconcile_s(self) -> float:
        """``reconcile_ms`` in seconds."""
        return self.reconcile_ms / 1000
