# SPDX-License-Identifier: Apache-2.0
"""Where one partition's fetching stands: position, fetch size, and whether it may be asked for now.

Pure: time and delays are given. A cursor belongs to one feed. ``generation`` changes whenever what is in flight stops
being wanted (a seek, a rewind, a close, another leader), so that an answer of an older generation is dropped.

A broker's agenda (:mod:`consumerd.fetch.planner`) holds thousands of cursors, of which few change between two requests.
So a cursor notes in its agenda's :attr:`Cursor.changes` whenever it may have to be asked for in another way, or not at all.

Fetch sizes. A partition is asked for its usual share. Where a broker answers with less than one whole message (Fetch
before version 3 cuts it off), the least to ask for grows to the message's size if its header came along, and to twice
what was asked for otherwise, up to the limit; it shrinks again after a run of successes, so that one large message does
not inflate every fetch after it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from consumerd.model import TopicPartition

_SUCCESSES_BEFORE_SHRINKING: Final = 16

Key = tuple[str, int]
"""Topic and partition, as Fetch names them."""


class CursorState(enum.Enum):
    """Whether a partition may be asked for."""

    ACTIVE = "active"
    BACKING_OFF = "backing off"
    """Not before :attr:`Cursor.due`."""
    CONFIRMING = "confirming"
    """Fetch said out of range; ListOffsets is being asked whether that is so."""
    FAILED = "failed"
    """An error waits for, or was given to, whoever consumes; only that side sets it going again."""
    PARKED = "parked"
    """Nobody consumes it and others want its memory: what came was dropped, and is fetched again when it is wanted."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """The message at the position cannot be fetched within the limit; ``size`` in bytes where its header came along."""

    size: int | None


class Round:
    """One broker's requests: shared by all cursors that the next one names, or the one under way."""

    __slots__ = ("answered_at", "asked_at")

    def __init__(self) -> None:
        self.answered_at: float | None = None
        """When one was answered last, without an error of its own."""
        self.asked_at: float | None = None
        """When the request under way was begun, connecting included; None between two of them."""


class Cursor:
    """Position, fetch size and state of one partition."""

    __slots__ = (
        "_grown_bytes",
        "_limit_bytes",
        "_successes",
        "_suspected",
        "changes",
        "due",
        "end",
        "expansion",
        "generation",
        "key",
        "partition",
        "position",
        "round",
        "state",
    )

    def __init__(self, partition: TopicPartition, position: int, *, limit_bytes: int, end: int | None = None) -> None:
        self.partition = partition
        self.key: Final[Key] = (partition.topic, partition.partition.number)
        """As Fetch names it; a tuple hashes several times faster than nested dataclasses."""
        self.position = position
        self.state = CursorState.ACTIVE
        self.generation = 0
        self.due = 0.0
        self.end: Final = end
        """The offset from which on nothing is wanted; None without one."""
        self.changes: dict[Key, None] | None = None
        """Where it notes that it has changed."""
        self.round: Round | None = None
        """The requests that name it; None while none does."""
        self.expansion: float | None = None
        """Decompressed size by fetched size, smoothed; None before anything was decoded."""
        self._limit_bytes = limit_bytes
        self._grown_bytes = 0
        self._successes = 0
        self._suspected = False

    def _note_change(self) -> None:
        if self.changes is not None:
            self.changes[self.key] = None

    @property
    def asked_at(self) -> float | None:
        """Since when a leader owes an answer for the partition; None while none does."""
        return None if self.round is None else self.round.asked_at

    @property
    def suspected(self) -> bool:
        """Whether its answer may be what broke a connection: it is asked for alone, once."""
        return self._suspected

    @suspected.setter
    def suspected(self, suspected: bool) -> None:
        self._suspected = suspected
        self._note_change()

    @property
    def grown_bytes(self) -> int:
        """The least that must be asked for to make progress; 0 unless a large message was met."""
        return self._grown_bytes

    def ready(self, now: float) -> bool:
        """Whether the partition may be asked for now."""
        if self.state is CursorState.BACKING_OFF and now >= self.due:
            self.state = CursorState.ACTIVE
        return self.state is CursorState.ACTIVE and (self.end is None or self.position < self.end)

    def advance(self, position: int) -> None:
        """Move on after whole messages arrived."""
        self.position = position
        self._note_change()
        if not self._grown_bytes:
            return
        self._successes += 1
        if self._successes >= _SUCCESSES_BEFORE_SHRINKING:
            self._successes = 0
            self._grown_bytes //= 2

    def grow(self, asked_bytes: int, unit_bytes: int | None) -> TooLarge | None:
        """Ask for more next time, since ``asked_bytes`` did not hold one whole message of ``unit_bytes`` (if known).

        Returns TooLarge when the limit leaves nothing to try.
        """
        if unit_bytes is not None and unit_bytes > self._limit_bytes:
            return TooLarge(size=unit_bytes)
        if asked_bytes >= self._limit_bytes:
            return TooLarge(size=unit_bytes)
        wanted = unit_bytes if unit_bytes is not None and unit_bytes > asked_bytes else 2 * asked_bytes
        self._grown_bytes = min(self._limit_bytes, wanted)
        self._successes = 0
        self._note_change()
        return None

    def observe_expansion(self, fetched_bytes: int, decoded_bytes: int) -> None:
        """Learn how much larger decoded records are than what was fetched."""
        if fetched_bytes > 0:
            seen = max(1.0, decoded_bytes / fetched_bytes)
            self.expansion = seen if self.expansion is None else self.expansion + (seen - self.expansion) / 4

    def back_off(self, due: float) -> None:
        """Leave the partition out until ``due``; what is in flight is not wanted any more."""
        self.generation += 1
        self.state = CursorState.BACKING_OFF
        self.due = due
        self._note_change()

    def move(self) -> None:
        """Leave the leader that was asked; what is in flight is not wanted any more, and what it said of the position void."""
        self.generation += 1
        self._note_change()
        if self.state is CursorState.CONFIRMING:
            self.activate()

    def confirm(self) -> None:
        """Leave the partition out until ListOffsets has answered."""
        self.generation += 1
        self.state = CursorState.CONFIRMING
        self._note_change()

    def fail(self) -> None:
        """Leave the partition out until :meth:`activate` or :meth:`seek`."""
        self.generation += 1
        self.state = CursorState.FAILED
        self._note_change()

    def park(self, position: int) -> None:
        """Go back to ``position`` and leave the partition out until :meth:`activate` or :meth:`seek`."""
        self.seek(position)
        self.state = CursorState.PARKED
        self._note_change()

    def activate(self) -> None:
        """Ask again from the same position."""
        if self.state is not CursorState.CLOSED:
            self.state = CursorState.ACTIVE
            self._note_change()

    def seek(self, position: int) -> None:
        """Go on at ``position``; what is in flight is not wanted any more."""
        self.generation += 1
        self.position = position
        self.activate()

    def close(self) -> None:
        """Never ask again."""
        self.generation += 1
        self.state = CursorState.CLOSED
        self._note_change()
