# SPDX-License-Identifier: Apache-2.0
"""The lease: the time in which the ensemble cannot have ended our session. Pure.

The ensemble ends a session one timeout after its *leader* last heard of the session. Once the leader has answered a
request, it has heard of the session no earlier than when the request was *sent*. So the lease runs from the sending of
the newest answered request, never from the arrival of the response, which may have been delayed for any time. Responses
of a follower alone, to reads, prove nothing: a follower that is cut off from its leader answers for seconds after the
leader has ended the session.

Followers report sessions to the leader every half tick (1 s by default), so the leader's knowledge may be that much
older when it answers. The lease is SUSPENDED at two thirds of the timeout, so the last third covers this delay.

Example, with a timeout of 6 s: a probe (a request that only the leader can answer) is sent at 10.0 s and answered at
12.9 s. The lease is FRESH until 13.0 s, PAUSED until 14.0 s, then SUSPENDED. The leader does not end the session
before 16.0 s.
"""

from __future__ import annotations

import math
from typing import Final

from consumerd.zk.port import LeasePhase

_PAUSED_FROM: Final = 1 / 2
_SUSPENDED_FROM: Final = 2 / 3


class Lease:
    """Lease of a ZooKeeper session: its timeout, and when the newest answered request was sent.

    Only requests answered by the ensemble's leader count. All times are in seconds on one monotonic clock.
    """

    def __init__(self, timeout_s: float, sent_at: float) -> None:
        self.timeout_s = timeout_s
        self._sent_at = sent_at

    def renew(self, sent_at: float) -> None:
        """Extend the lease: the ensemble's leader has answered a request sent at ``sent_at``.

        ``sent_at`` is in seconds on the lease's clock. An older time than a known one changes nothing.
        """
        self._sent_at = max(self._sent_at, sent_at)

    def age(self, now: float) -> float:
        """Return the seconds since the newest request that the leader has answered was sent."""
        return now - self._sent_at

    def phase(self, now: float) -> LeasePhase:
        """Return the phase: FRESH below half a timeout, PAUSED from there, SUSPENDED from two thirds."""
        age = self.age(now)
        if age < _PAUSED_FROM * self.timeout_s:
            return LeasePhase.FRESH
        return LeasePhase.PAUSED if age < _SUSPENDED_FROM * self.timeout_s else LeasePhase.SUSPENDED

    def next_change_s(self, now: float) -> float:
        """Return the seconds until the phase changes if the leader answers nothing more.

        Infinite if the phase is SUSPENDED, after which there is no other.
        """
        age = self.age(now)
        for fraction in (_PAUSED_FROM, _SUSPENDED_FROM):
            if age < fraction * self.timeout_s:
                return fraction * self.timeout_s - age
        return math.inf
