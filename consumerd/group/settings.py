# SPDX-License-Identifier: Apache-2.0
"""The settings of a rebalance, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceSettings:
    """The settings of a rebalance.

    With the defaults a handover takes at most 3.55 s, which fits into the 6 s that a Java member keeps trying.
    """

    settle_ms: int = 200
    """Time, in milliseconds, that the member waits for further changes before it reads the group. Up to half of it more
    is added at random.
    """
    max_retries: int = 4
    """Number of retries to claim a partition that another member holds.

    After them, this member reports that it is not ready. It goes on trying.
    """
    backoff_ms: int = 2000
    """Interval, in milliseconds, between two such retries. A change of the owner node causes one at once."""
    drain_timeout_ms: int = 3000
    """Longest time, in milliseconds, to flush and commit a partition that is given up.

    Records that are not flushed by then are discarded here; the next owner fetches them again.
    """
    release_grace_ms: int = 250
    """Time, in milliseconds, that a drained partition is still held: a Java member reads the committed offset before it
    claims.
    """
    reconcile_ms: int = 5000
    """Interval, in milliseconds, between two comparisons of what should be owned, what ZooKeeper holds and what runs.
    """

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
