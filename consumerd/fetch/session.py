# SPDX-License-Identifier: Apache-2.0
"""The client's half of a fetch session (KIP-227): send only what changed, name what is left out.

Pure. A session lives on one connection's broker: the broker remembers each partition's offset and size, a request names
those that changed and those to forget, and the answer has only partitions with news. ``session_id`` 0 with epoch 0 asks
for a new session and names everything; an answer with id 0 means that the broker keeps none. Errors 70
(FETCH_SESSION_ID_NOT_FOUND) and 71 (INVALID_FETCH_SESSION_EPOCH), and a request without an answer, begin anew;
with a known id and epoch 0 the broker replaces its session instead of keeping a dead one.

Brokers of 1.1 keep a session's partitions in a hash table that degenerates where topics are named by number: to begin one of
ten thousand partitions takes minutes then. So after a request that asked for a session and was not answered in time none is
asked for for an hour, and twice as long each time that it happens again: it may have been a broker that hung for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.fetch.cursor import Key
from consumerd.fetch.planner import Ask
from consumerd.wire.modern.fetch import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, NO_SESSION_ID
from consumerd.wire.primitives import MAX_INT32

SESSION_ID_NOT_FOUND: Final = 70
INVALID_SESSION_EPOCH: Final = 71
SESSION_ERRORS: Final = frozenset({SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH})
_FIRST_REST_S: Final = 3600.0
_LONGEST_REST_S: Final = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStep:
    """What the next request says of the session."""

    session_id: int
    epoch: int
    asks: Sequence[Ask]
    forgotten: Sequence[Key]


class FetchSession:
    """One broker's session, or the wish for one. ``now`` is a clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._id = NO_SESSION_ID
        self._epoch = INITIAL_SESSION_EPOCH
        self._known: dict[Key, Ask] = {}
        self._begins = False
        self._without_until = -math.inf
        self._rest_s = _FIRST_REST_S

    @property
    def incremental(self) -> bool:
        """Whether the next request names only changes."""
        return self._epoch != INITIAL_SESSION_EPOCH

    def plan(self, asks: Mapping[Key, Ask], news: Collection[Key] | None = None) -> SessionStep:
        """Return what to send so that the broker's session covers exactly ``asks``.

        ``news`` are the partitions to compare with what was said last; None compares all.

        Where another cursor has taken a partition's place the session begins anew: the broker leaves out what it has said
        of the log before, and whoever is new has not heard it.
        """
        self._begins = False
        if self._now() < self._without_until:
            everything = tuple(asks.values())
            return SessionStep(session_id=NO_SESSION_ID, epoch=FINAL_SESSION_EPOCH, asks=everything, forgotten=())
        known = self._known
        if news is None:
            news = dict.fromkeys([*asks, *known])
        if any(key in asks and key in known and asks[key].cursor is not known[key].cursor for key in news):
            self._epoch = INITIAL_SESSION_EPOCH
        if not self.incremental:
            self._begins = True
            self._known = dict(asks)
            return SessionStep(session_id=self._id, epoch=self._epoch, asks=tuple(asks.values()), forgotten=())
        changed: list[Ask] = []
        forgotten: list[Key] = []
        for key in news:
            ask, before = asks.get(key), known.get(key)
            if ask is not None:
                known[key] = ask
                if before is None or (before.offset, before.max_bytes) != (ask.offset, ask.max_bytes):
                    changed.append(ask)
            elif before is not None:
                del known[key]
                forgotten.append(key)
        return SessionStep(session_id=self._id, epoch=self._epoch, asks=changed, forgotten=forgotten)

    def answered(self, session_id: int) -> None:
        """Go on after an answer without error; id 0 means that the broker keeps no session."""
        if session_id == NO_SESSION_ID:
            self._id, self._epoch = NO_SESSION_ID, INITIAL_SESSION_EPOCH
        elif session_id != self._id or not self.incremental:
            self._id, self._epoch = session_id, 1
            self._rest_s = _FIRST_REST_S
        else:
            self._epoch = 1 if self._epoch == MAX_INT32 else self._epoch + 1

    def refused(self, error_code: int) -> None:
        """Begin anew after error 70 or 71."""
        if error_code == SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION_ID
        self._epoch = INITIAL_SESSION_EPOCH

    def unanswered(self, *, late: bool = False) -> None:
        """Begin anew after a request whose answer never came: the broker may or may not have taken it.

        ``late``: it ended by its timeout. If it was to open a session, none is opened for a while, since the broker may
        be slow because of that.
        """
        if late and self._begins:
            self._without_until = self._now() + self._rest_s
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        self._begins = False
        self._epoch = INITIAL_SESSION_EPOCH
