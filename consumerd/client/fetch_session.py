# SPDX-License-Identifier: Apache-2.0
"""Client side of a fetch session (KIP-227), in which Fetch requests name only changes.

The broker remembers each partition's offset and size limit. A request names the partitions that changed and those to
forget; the response names only partitions with new records or state.

| session id, epoch of a request | meaning |
|---|---|
| 0, 0 | open a session; names everything |
| 0, -1 | no session; names everything |
| known id, 0 | replace the session by a new one; names everything |
| known id, 1 and up | changes only |

An answer with id 0 means that the broker keeps no session. Errors 70 (FETCH_SESSION_ID_NOT_FOUND) and 71
(INVALID_FETCH_SESSION_EPOCH), and a request without an answer, open a new session.

Brokers of 1.1 keep a session's partitions in a hash table that degenerates where topics differ only in a number:
opening a session of ten thousand partitions takes minutes. So after a request that asked for a session and timed out,
no session is asked for during an hour. The time doubles with each repetition; the broker may just have hung for a
while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.client.fetch_protocol import FetchAsk, Key
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.fetch import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, NO_SESSION_ID
from consumerd.wire.primitives import MAX_INT32

SESSION_ERRORS: Final = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})
_FIRST_REST_S: Final = 3600.0
_LONGEST_REST_S: Final = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStep:
    """Fields of the next Fetch request that belong to the fetch session (KIP-227).

    Attributes:
        asks: Partitions that the request names: all, or those that changed.
        forgotten: Partitions that the broker removes from the session.
    """

    session_id: int
    epoch: int
    asks: Sequence[FetchAsk]
    forgotten: Sequence[Key]


def ask_without_session(asks: Mapping[Key, FetchAsk]) -> SessionStep:
    """Return the session fields of a Fetch request without a fetch session.

    Such a request names all partitions.
    """
    return SessionStep(session_id=NO_SESSION_ID, epoch=FINAL_SESSION_EPOCH, asks=tuple(asks.values()), forgotten=())


class FetchSession:
    """State of the fetch session with one broker (KIP-227).

    Args:
        now: Monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._id = NO_SESSION_ID
        self._epoch = INITIAL_SESSION_EPOCH
        self._known: dict[Key, FetchAsk] = {}
        self._begins = False
        self._without_until = -math.inf
        self._rest_s = _FIRST_REST_S

    @property
    def incremental(self) -> bool:
        """True if the next request names only partitions that have changed."""
        return self._epoch != INITIAL_SESSION_EPOCH

    def plan(self, asks: Mapping[Key, FetchAsk], news: Collection[Key] | None = None) -> SessionStep:
        """Return the session fields of the next request.

        After this request, the session covers exactly the partitions of ``asks``.

        Args:
            asks: Partitions to read, each with its offset and size limit.
            news: Partitions that may have been added, changed or removed since the last request, among them each one
                that ``asks`` no longer has. Only these are compared with the last request; None compares all.
        """
        self._begins = False
        if self._now() < self._without_until:
            return ask_without_session(asks)
        known = self._known
        if news is None:
            news = dict.fromkeys([*asks, *known])
        # A new cursor of a known partition has not heard what the broker told the one before. It would never hear it: a
        # session leaves out what has not changed.
        if any(key in asks and key in known and asks[key].cursor is not known[key].cursor for key in news):
            self._epoch = INITIAL_SESSION_EPOCH
        if not self.incremental:
            self._begins = True
            self._known = dict(asks)
            return SessionStep(session_id=self._id, epoch=self._epoch, asks=tuple(asks.values()), forgotten=())
        changed: list[FetchAsk] = []
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
        """Note an answer without error: the next request names only changes.

        Args:
            session_id: Id in the response; 0 means that the broker keeps no session.
        """
        if session_id == NO_SESSION_ID:
            self._id, self._epoch = NO_SESSION_ID, INITIAL_SESSION_EPOCH
        elif session_id != self._id or not self.incremental:
            self._id, self._epoch = session_id, 1
            self._rest_s = _FIRST_REST_S
        else:
            self._epoch = 1 if self._epoch == MAX_INT32 else self._epoch + 1

    def refused(self, error_code: int) -> None:
        """Note error 70 or 71 of the broker: the next request opens a new session."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION_ID
        self._epoch = INITIAL_SESSION_EPOCH

    def unanswered(self, *, late: bool = False) -> None:
        """Note that a request got no response: the next one opens a new session.

        The broker may have processed the request, so its state of the session is unknown.

        Args:
            late: True if the request timed out. If that request was to open a session, no session is asked for during
                an hour (twice as long at each repetition), since opening one may be too slow for the broker.
        """
        if late and self._begins:
            self._without_until = self._now() + self._rest_s
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        self._begins = False
        self._epoch = INITIAL_SESSION_EPOCH
