# SPDX-License-Identifier: Apache-2.0
"""How long the server is sure to keep our session: the lease, on our own clock. Pure.

The ensemble ends a session one timeout after its *leader* last heard of it. What it last heard is at least as late as
the moment we *sent* the newest request that the leader has answered: from that moment the lease runs, never from the
answer's arrival, which may have been held up for any time. A follower's own answers, to reads, prove nothing: one that
is cut off from its leader goes on giving them for seconds after the leader has ended the session.

Followers pass on what they hear of sessions every half tick (1 s by default), so the leader may be that much behind
when it answers: well within the third of a timeout that lies between SUSPENDED and the end.
"""

from __future__ import annotations

import math
from typing import Final

from consumerd.zk.port import LeasePhase

_PAUSED_FROM: Final = 1 / 2
_SUSPENDED_FROM: Final = 2 / 3


class Lease:
    """A session's lease: its timeout, and when the newest request that the leader has answered was sent."""

    def __init__(self, timeout_s: float, sent_at: float) -> None:
        self.timeout_s = timeout_s
        self._sent_at = sent_at

    def renew(self, sent_at: float) -> None:
        """The leader has answered a request that was sent then; answers may come in any order."""
        self._sent_at = max(self._sent_at, sent_at)

    def age(self, now: float) -> float:
        """Seconds since the newest request that the leader has answered was sent."""
        return now - self._sent_at

    def phase(self, now: float) -> LeasePhase:
        """FRESH below half a timeout, PAUSED from there, SUSPENDED from two thirds."""
        age = self.age(now)
        if age < _PAUSED_FROM * self.timeout_s:
            return LeasePhase.FRESH
        return LeasePhase.PAUSED if age < _SUSPENDED_FROM * self.timeout_s else LeasePhase.SUSPENDED

    def next_change_s(self, now: float) -> float:
        """Seconds until the phase changes if nothing is answered; infinite once SUSPENDED."""
        age = self.age(now)
        for fraction in (_PAUSED_FROM, _SUSPENDED_FROM):
            if age < fraction * self.timeout_s:
                return fraction * self.timeout_s - age
        return math.inf
