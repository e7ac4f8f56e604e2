# SPDX-License-Identifier: Apache-2.0
"""The process's memory account: who holds how many bytes, and who waits for room.

Pure: no tasks, no clock; whoever waits gives a callback. All kinds of bytes (:class:`Kind`) are held against one limit:

* what requests may bring (reserved before they are sent) and, once it came, the record sets not yet consumed;
* decoded batches: before decoding what it may take at its worst is reserved, after it what the batch has is kept, and the
  record set or the whole answer that its buffer is a part of;
* what sinks keep in open files, and what they take while they convert batches (:meth:`MemoryBudget.charge`).

Requests and batches queue in **lanes** of their own, first come first served, batches first: they are what gives memory
back. A lane whose first in the queue cannot be served may still let that one through when nothing of the lane is over
the limit already (its *overdraft*). So there is always progress (a batch larger than all the memory, or sinks that hold
everything, stop nobody for ever) and never more held than the limit, one request and one batch, plus the amount by which
estimates were wrong; while held bytes are above the limit nothing else is granted.

What sinks charge is never refused; so that it finds room, a part of the limit is theirs (``sink_bytes``), and reservations
fill only the rest.

Fairness between partitions comes from :func:`plan_marks`: what one partition may keep, batches included that its sink
has not taken yet, is bounded by its share of the limit, so that partitions whose sink stands still cannot take the
memory of those that flow.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Granted = Callable[["Hold"], None]


class Lane(enum.Enum):
    """What bytes are reserved for."""

    BATCH = "batch"
    REQUEST = "request"


class Kind(enum.Enum):
    """What held bytes are."""

    REQUESTED = "requested"
    """Room for what a request may bring."""
    FETCHED = "fetched"
    """Record sets as they came, and the answers that they are still a part of, until their last piece is decoded."""
    DECODING = "decoding"
    """What decoding may take: copies, what is decompressed, columns."""
    BATCHES = "batches"
    """Decoded records on their way into a sink, and what their buffers are a part of."""
    SINKS = "sinks"
    """What sinks keep in open files, and take while they convert."""
    LIBRARIES = "libraries"
    """What a sink's libraries take by being there; set aside before anything else."""
    QUARANTINE = "quarantine"
    """Units on their way into quarantine."""


_RESERVED_AS: Final = {Lane.BATCH: Kind.DECODING, Lane.REQUEST: Kind.REQUESTED}


class _Overdraft:
    """Counts the holds that a lane let through beyond the limit; the lane lets the next one through when none is left."""

    __slots__ = ("holds",)

    def __init__(self) -> None:
        self.holds = 1


class Hold:
    """Bytes held; given back by :meth:`release`, once, whatever happens."""

    __slots__ = ("_budget", "_kind", "_lane", "_overdraft", "_size")

    def __init__(self, budget: MemoryBudget, lane: Lane, size: int, overdraft: _Overdraft | None) -> None:
        self._budget = budget
        self._kind = _RESERVED_AS[lane]
        self._lane = lane
        self._size = size
        self._overdraft = overdraft

    @property
    def kind(self) -> Kind:
        """What the bytes are now."""
        return self._kind

    @property
    def size(self) -> int:
        """The bytes held; 0 after release."""
        return self._size

    def resize(self, size: int) -> None:
        """Correct the size to what is really there; never refused."""
        change = size - self._size
        self._size = size
        self._budget._change(change, self._kind)  # noqa: SLF001 - a hold is part of its budget

    def become(self, kind: Kind, size: int) -> None:
        """Be something else from now on, of another size; never refused."""
        budget, before, self._kind = self._budget, self._kind, kind
        budget._kinds[before] -= self._size  # noqa: SLF001 - a hold is part of its budget
        budget._kinds[kind] += self._size  # noqa: SLF001 - a hold is part of its budget
        self.resize(size)

    def split(self, size: int) -> Hold:
        """Move ``size`` bytes into a hold of their own; more than there is left is charged in addition."""
        moved = min(size, self._size)
        self._size -= moved
        if self._overdraft is not None:
            self._overdraft.holds += 1
        part = Hold(self._budget, self._lane, moved, self._overdraft)
        part._kind = self._kind
        if size > moved:
            part.resize(size)
        return part

    def join_batch(self) -> None:
        """Be part of a batch from now on, whose own hold is the one that its lane let through: the lane that this one came
        through may let the next one pass.
        """
        self.become(Kind.BATCHES, self._size)
        self._leave_lane()
        self._budget._change(0, self._kind)  # noqa: SLF001 - a hold is part of its budget

    def release(self) -> None:
        """Give everything back. Idempotent."""
        size, self._size = self._size, 0
        self._leave_lane()
        self._budget._change(-size, self._kind)  # noqa: SLF001 - a hold is part of its budget

    def _leave_lane(self) -> None:
        overdraft, self._overdraft = self._overdraft, None
        if overdraft is not None:
            overdraft.holds -= 1
            if overdraft.holds == 0:
                self._budget._settle(self._lane)  # noqa: SLF001 - a hold is part of its budget


class Ticket:
    """A place in a lane's queue."""

    __slots__ = ("_budget", "_lane", "granted", "least", "most")

    def __init__(self, budget: MemoryBudget, lane: deque[Ticket], least: int, most: int, granted: Granted) -> None:
        self._budget = budget
        self._lane = lane
        self.least = least
        self.most = most
        self.granted = granted

    def cancel(self) -> None:
        """Leave the queue; nothing happens after the grant."""
        if self in self._lane:
            self._lane.remove(self)
            self._budget._pump()  # noqa: SLF001 - whoever is next may want less


class MemoryBudget:
    """``limit_bytes`` of memory, shared by fetching and sinks, of which ``sink_bytes`` are for sinks alone."""

    def __init__(self, limit_bytes: int, *, sink_bytes: int = 0) -> None:
        self._limit = limit_bytes
        self._sink_bytes = sink_bytes
        self._held = 0
        self._kinds = dict.fromkeys(Kind, 0)
        self._waiting: dict[Lane, deque[Ticket]] = {lane: deque() for lane in Lane}
        self._overdrawn: dict[Lane, bool] = dict.fromkeys(Lane, False)
        self._pumping = False

    @property
    def limit_bytes(self) -> int:
        """The configured limit."""
        return self._limit

    @property
    def held_bytes(self) -> int:
        """Everything held now, reservations and charges included."""
        return self._held

    @property
    def held_by_kind(self) -> Mapping[Kind, int]:
        """The same, by what it is."""
        return dict(self._kinds)

    @property
    def under_pressure(self) -> bool:
        """Whether somebody waits for memory: the moment for sinks to flush what they hold."""
        return any(self._waiting.values())

    def charge(self, size: int, kind: Kind = Kind.SINKS) -> None:
        """Add bytes that somebody else holds (negative: gives them back); never refused."""
        self._change(size, kind)

    def take(self, lane: Lane, *, least: int, most: int) -> Hold | None:
        """Reserve between ``least`` and ``most`` bytes at once; None where one has to queue."""
        if self._waiting[lane]:
            return None
        return self._grant(lane, least, most)

    def take_spare(self, lane: Lane, size: int) -> Hold | None:
        """Reserve ``size`` bytes for what can wait: None where that would take the room, or the overdraft, of who cannot."""
        if self.under_pressure or self._room < size:
            return None
        return self._grant(lane, size, size)

    def queue(self, lane: Lane, *, least: int, most: int, granted: Granted) -> Ticket:
        """Wait in line; ``granted`` is called with the hold once there is room (possibly before this returns)."""
        ticket = Ticket(self, self._waiting[lane], least, most, granted)
        self._waiting[lane].append(ticket)
        self._pump()
        return ticket

    @property
    def _room(self) -> int:
        """What reservations may still fill."""
        return self._limit - self._held - max(0, self._sink_bytes - self._kinds[Kind.SINKS])

    def _grant(self, lane: Lane, least: int, most: int) -> Hold | None:
        room = self._room
        if room >= least:
            overdraft, size = None, min(most, room)
        elif not self._overdrawn[lane]:
            overdraft, size = _Overdraft(), least
            self._overdrawn[lane] = True
        else:
            return None
        self._held += size
        self._kinds[_RESERVED_AS[lane]] += size
        return Hold(self, lane, size, overdraft)

    def _settle(self, lane: Lane) -> None:
        self._overdrawn[lane] = False

    def _change(self, size: int, kind: Kind) -> None:
        self._held += size
        self._kinds[kind] += size
        if size <= 0:
            self._pump()

    def _pump(self) -> None:
        if self._pumping:  # a callback gave bytes back: the loop below sees it
            return
        self._pumping = True
        try:
            while self._serve_one():
                pass
        finally:
            self._pumping = False

    def _serve_one(self) -> bool:
        for lane, waiting in self._waiting.items():
            if not waiting:
                continue
            first = waiting[0]
            hold = self._grant(lane, first.least, first.most)
            if hold is not None:
                waiting.popleft()
                first.granted(hold)
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """How much of one partition is asked for at once, and between which amounts of unconsumed bytes it is asked for.

    Asking stops above ``high`` and goes on at ``low``, so ``high + ask`` is the most that a partition keeps. ``low``
    is one whole fetch and a little more, since records that are most of their answer keep all of it: while one is consumed the
    next one waits, and the one after it is on its way. ``batch`` is about what a compressed piece may become.
    """

    ask: int
    high: int
    low: int
    batch: int

    @property
    def out(self) -> int:
        """What may be at the sink without being counted: a batch, or the answer that it is a view of."""
        return max(self.ask, self.batch)


_FEWEST_BATCHES: Final = 64
_MOST_BATCHES: Final = 128
_BATCHES_EACH: Final = 16
_OUT_PART: Final = 3
"""Batches that are at the sinks, one of each partition, take this part of the limit at most."""
_AMPLE_FETCHES: Final = 24


def plan_marks(limit_bytes: int, partitions: int, usual_bytes: int) -> Marks:
    """Share half of the limit among ``partitions``, at most two and a half times ``usual_bytes`` each; a third is for batches.

    Sixteen batches of each partition find room in all the memory, 64 at least; where there are more than eight partitions,
    128 have to be enough, and where there are more than 42, three of each: all of them may be at a sink that stands still,
    one of each partition, and the partitions that flow must go on.

    Where all the memory is less than 24 fetches, as where half of it is set aside for Arrow, batches are as small as that at once,
    and the next fetch leaves when the one before it was consumed: that is not what is waited for there, and memory is.
    """
    share = limit_bytes // (2 * max(1, partitions))
    ask = max(1, min(usual_bytes, share * 2 // 5))
    ample = limit_bytes >= _AMPLE_FETCHES * usual_bytes
    batches = max(_FEWEST_BATCHES, min(_MOST_BATCHES, _BATCHES_EACH * partitions)) if ample else _MOST_BATCHES
    batch = limit_bytes // max(batches, _OUT_PART * partitions)
    return Marks(ask=ask, high=ask * 3 // 2, low=ask * 9 // 8 if ample else ask, batch=batch)


class PartitionAccount:
    """The bytes of one partition, with hysteresis: fetched and not decoded yet, and lent to its sink."""

    __slots__ = ("_full", "held_bytes", "lent_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.lent_bytes = 0
        self._full = False

    @property
    def full(self) -> bool:
        """Whether the last call of :meth:`is_full` found the partition at its limit."""
        return self._full

    def is_full(self, marks: Marks) -> bool:
        """Whether the partition is to be left out of the next request."""
        self._full = self._counted(marks) > (marks.low if self._full else marks.high)
        return self._full

    def has_emptied(self, marks: Marks) -> bool:
        """Whether the partition was left out of a request, and need not be any more."""
        return self._full and self._counted(marks) <= marks.low

    def _counted(self, marks: Marks) -> int:
        return self.held_bytes + max(0, self.lent_bytes - marks.out)
