# SPDX-License-Identifier: Apache-2.0
"""Cursor of one partition: position, fetch size, and whether it may be fetched now.

Pure: callers pass the time and the delays. A cursor belongs to one feed. A seek, a rewind, a close or a new leader
increments ``generation``; responses to requests of an earlier generation are dropped.

The planner's agenda of a broker (:mod:`consumerd.fetch.planner`) holds thousands of cursors. Few of them change between
two requests. A cursor that changes adds its key to the agenda's :attr:`Cursor.changes`, so only those are read again.

Fetch size. A partition's fetch size is its share of the memory. Before Fetch 3 a broker cuts off a message that is
larger than that. The fetch size then grows to the message's size if its header was fetched, otherwise to twice the last
size, up to the limit. It is halved after a run of successes, so one large message does not enlarge every later fetch.

Example: the share is 1 MB, and the next message has 3 MB. The first response holds 1 MB of it. The header says 3 MB, so
the next request asks for 3 MB. After 16 successes the size is 1.5 MB, and after 16 more the share again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from consumerd.client.fetch_protocol import Key
from consumerd.model import TopicPartition

_SUCCESSES_BEFORE_SHRINKING: Final = 16


class CursorState(enum.Enum):
    """State of a partition: fetched, or the reason why it is not fetched."""

    ACTIVE = "active"
    BACKING_OFF = "backing off"
    """Not fetched before :attr:`Cursor.due`."""
    CONFIRMING = "confirming"
    """Out of range according to Fetch; ListOffsets is checking that."""
    FAILED = "failed"
    """An error is queued for the consumer, or was raised; only the consumer can resume fetching."""
    PARKED = "parked"
    """Not consumed, while others wait for memory: its record sets were dropped, and are fetched again later."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """Result of :meth:`Cursor.grow` if the message at the position exceeds the size limit.

    ``size`` is the message's size in bytes; None if its header was not fetched.
    """

    size: int | None


class Round:
    """Times of the newest requests to one broker, shared by all partitions named in them.

    All times are in seconds of the fetcher's monotonic clock.
    """

    __slots__ = ("answered_at", "asked_at")

    def __init__(self) -> None:
        self.answered_at: float | None = None
        """Time of the last response without a top-level error."""
        self.asked_at: float | None = None
        """Start of the pending request, including connecting; None between two requests."""


class Cursor:
    """Fetch position of one partition, with its fetch size and state."""

    __slots__ = (
        "_limit_bytes",
        "_successes",
        "_suspected",
        "changes",
        "due",
        "end",
        "expansion",
        "generation",
        "grown_bytes",
        "key",
        "partition",
        "position",
        "round",
        "state",
    )

    def __init__(self, partition: TopicPartition, position: int, *, limit_bytes: int, end: int | None = None) -> None:
        self.partition = partition
        self.key: Final[Key] = (partition.topic, partition.partition.number)
        """Topic and partition number, as in Fetch; a tuple hashes several times faster than nested dataclasses."""
        self.position = position
        self.state = CursorState.ACTIVE
        self.generation = 0
        self.due = 0.0
        self.end: Final = end
        """Offset at which fetching stops; None for no end."""
        self.changes: dict[Key, None] | None = None
        """Set of changed cursors of the agenda, to which this one adds its key; None without an agenda.

        The agenda keeps the partitions of one broker (:class:`~consumerd.fetch.planner.Agenda`).
        """
        self.round: Round | None = None
        """Times of the requests that name the partition; None if none does."""
        self.expansion: float | None = None
        """Average ratio of decompressed to fetched size; None before anything was decoded."""
        self._limit_bytes = limit_bytes
        self.grown_bytes = 0
        """Fetch size that a large message at the position needs; 0 without one."""
        self._successes = 0
        self._suspected = False

    def _note_change(self) -> None:
        if self.changes is not None:
            self.changes[self.key] = None

    @property
    def asked_at(self) -> float | None:
        """Time at which the pending request began; None without a pending request.

        In seconds of the fetcher's monotonic clock. Only a request that names the partition counts.
        """
        return None if self.round is None else self.round.asked_at

    @property
    def suspected(self) -> bool:
        """True if the partition may have broken a connection; it is then fetched alone, once."""
        return self._suspected

    @suspected.setter
    def suspected(self, suspected: bool) -> None:
        self._suspected = suspected
        self._note_change()

    def ready(self, now: float) -> bool:
        """Return True if the partition may be fetched at the time ``now``.

        ``now`` is in seconds of the fetcher's monotonic clock. False in these cases: the partition backs off;
        ListOffsets is asked if its position is in the log; its record sets were dropped to save memory (it is parked);
        it has failed or was closed; it is at the end of its range.
        """
        if self.state is CursorState.BACKING_OFF and now >= self.due:
            self.state = CursorState.ACTIVE
        return self.state is CursorState.ACTIVE and (self.end is None or self.position < self.end)

    def advance(self, position: int) -> None:
        """Set the position to ``position``, because complete messages up to there were fetched.

        If the fetch size was enlarged by :meth:`grow`, it is halved after each 16 calls.
        """
        self.position = position
        self._note_change()
        if not self.grown_bytes:
            return
        self._successes += 1
        if self._successes >= _SUCCESSES_BEFORE_SHRINKING:
            self._successes = 0
            self.grown_bytes //= 2

    def grow(self, asked_bytes: int, unit_bytes: int | None) -> TooLarge | None:
        """Enlarge the fetch size, because the message at the position was cut off.

        The new size is the message's own size, or twice ``asked_bytes`` if that is unknown, up to the size limit.
        Returns None then, or TooLarge if the message does not fit into the size limit.

        Args:
            asked_bytes: Fetch size that did not hold the message.
            unit_bytes: The message's size in bytes; None if its header was not fetched.
        """
        if unit_bytes is not None and unit_bytes > self._limit_bytes:
            return TooLarge(size=unit_bytes)
        if asked_bytes >= self._limit_bytes:
            return TooLarge(size=unit_bytes)
        wanted = unit_bytes if unit_bytes is not None and unit_bytes > asked_bytes else 2 * asked_bytes
        self.grown_bytes = min(self._limit_bytes, wanted)
        self._successes = 0
        self._note_change()
        return None

    def enlarge(self, size: int) -> None:
        """Fetch at least ``size`` bytes next, up to the size limit.

        Fewer bytes do not prove where damaged data ends.
        """
        if (wanted := min(self._limit_bytes, size)) > self.grown_bytes:
            self.grown_bytes = wanted
            self._successes = 0
            self._note_change()

    def observe_expansion(self, fetched_bytes: int, decoded_bytes: int) -> None:
        """Update the moving average of decoded bytes per fetched byte (:attr:`expansion`).

        Args:
            fetched_bytes: Size of a decoded piece as it was fetched.
            decoded_bytes: Size of the batch that it gave.
        """
        if fetched_bytes > 0:
            seen = max(1.0, decoded_bytes / fetched_bytes)
            self.expansion = seen if self.expansion is None else self.expansion + (seen - self.expansion) / 4

    def back_off(self, due: float) -> None:
        """Do not fetch the partition until the time ``due``; drop pending responses.

        ``due`` is in seconds of the fetcher's monotonic clock.
        """
        self.generation += 1
        self.state = CursorState.BACKING_OFF
        self.due = due
        self._note_change()

    def move(self) -> None:
        """Prepare for another leader: discard responses in flight from the former one.

        A pending ListOffsets check of the position ends too, because it was that leader's Fetch error that began it.
        """
        self.generation += 1
        self._note_change()
        if self.state is CursorState.CONFIRMING:
            self.activate()

    def confirm(self) -> None:
        """Stop fetching until ListOffsets has told whether the position is out of range."""
        self.generation += 1
        self.state = CursorState.CONFIRMING
        self._note_change()

    def fail(self) -> None:
        """Stop fetching the partition until :meth:`activate` or :meth:`seek`."""
        self.generation += 1
        self.state = CursorState.FAILED
        self._note_change()

    def park(self, position: int) -> None:
        """Set the position back to ``position``, and stop fetching to save memory.

        Fetching resumes with :meth:`activate` or :meth:`seek`.
        """
        self.seek(position)
        self.state = CursorState.PARKED
        self._note_change()

    def activate(self) -> None:
        """Resume fetching at the present position; no effect on a closed cursor."""
        if self.state is not CursorState.CLOSED:
            self.state = CursorState.ACTIVE
            self._note_change()

    def seek(self, position: int) -> None:
        """Continue fetching at ``position``; discard responses in flight."""
        self.generation += 1
        self.position = position
        self.activate()

    def close(self) -> None:
        """Stop fetching the partition for good."""
        self.generation += 1
        self.state = CursorState.CLOSED
        self._note_change()
