# SPDX-License-Identifier: Apache-2.0
"""A proxy's hook that loses answers of Produce, or of other requests: it is done, and the producer is not told."""

from __future__ import annotations

from consumerd.wire.apikeys import ApiKey
from tests.support.tcp_proxy import Action, Direction


class LostAnswers:
    """Cuts all connections instead of passing on the answer to every ``nth`` request; the proxy's hook."""

    def __init__(self, nth: int, *apis: ApiKey) -> None:
        self._nth = nth
        self._apis = apis or (ApiKey.PRODUCE,)
        self._asked: set[bytes] = set()
        self._answers = 0
        self.lost = 0

    def __call__(self, direction: Direction, frame: bytes) -> Action:
        """Decide on a frame."""
        if direction is Direction.TO_SERVER:
            # length, API key, version, correlation id
            if int.from_bytes(frame[4:6]) in self._apis:
                self._asked.add(frame[8:12])
        elif frame[4:8] in self._asked:
            self._asked.discard(frame[4:8])
            self._answers += 1
            if self._answers % self._nth == 0:
                self.lost += 1
                return Action.CUT
        return Action.FORWARD
