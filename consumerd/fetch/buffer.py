# SPDX-License-Identifier: Apache-2.0
"""Memory account of the process: bytes in use, and reservations that wait for room.

Pure: no tasks, no clock; a waiting reservation has a callback. All kinds of bytes (:class:`Kind`) count against one
limit:

* responses: reserved before the request is sent; after the response, the record sets that are not consumed yet;
* decoded batches: the worst case is reserved before decoding; after it, the batch's own bytes, and those of the record
  set or response that its buffer is a part of;
* sinks: open files, and the conversion of batches (:meth:`MemoryBudget.charge`).

Reservations wait in two queues, called **lanes**: one for requests and one for batches, each first come first served.
Batches are served first, because delivering them releases memory. If there is no room, each lane may still have one
reservation beyond the limit, its *overdraft*. So fetching never deadlocks, neither because of a batch larger than the
limit, nor because sinks use all the memory. The memory in use is at most the limit plus one request and one batch, plus
the errors of estimates. While it is above the limit, nothing else is granted.

A sink's charge is never refused. The part ``sink_bytes`` of the limit is kept free for sinks, and reservations use only
the rest.

Fairness between partitions comes from :func:`plan_marks`: each may use its share of the limit, including batches that
its sink has not taken yet. So partitions with a blocked sink cannot take the memory of the others.

Example: the limit is 100 MB, of which 20 MB are for sinks. Two requests reserve 50 and 40 MB. The first is granted. The
second is granted as the lane's overdraft: 90 MB are reserved, though only 80 MB were free. A third waits, because there
is no room and the overdraft is used.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Granted = Callable[["Hold"], None]


class Lane(enum.Enum):
    """Queue of memory reservations for one purpose: requests or decoded batches."""

    BATCH = "batch"
    REQUEST = "request"


class Kind(enum.Enum):
    """Purpose for which bytes of the memory budget are in use."""

    REQUESTED = "requested"
    """Reserved for the response to a request."""
    FETCHED = "fetched"
    """Record sets, and the responses that they are a part of, until their last piece is decoded."""
    DECODING = "decoding"
    """Reserved for decoding: copies, decompressed bytes, columns."""
    BATCHES = "batches"
    """Decoded records on their way into a sink, with the memory that their buffers are a part of."""
    SINKS = "sinks"
    """Open files of sinks, and the memory of their conversions."""
    LIBRARIES = "libraries"
    """Memory of the libraries of a sink, such as Arrow; reserved at the start."""
    QUARANTINE = "quarantine"
    """Undeliverable records and batches on their way into quarantine."""


_RESERVED_AS: Final = {Lane.BATCH: Kind.DECODING, Lane.REQUEST: Kind.REQUESTED}


class _Overdraft:
    """Number of a lane's reservations beyond the limit; at zero another may exceed it."""

    __slots__ = ("holds",)

    def __init__(self) -> None:
        self.holds = 1


class Hold:
    """A reservation of ``size`` bytes of the memory budget, until :meth:`release`."""

    __slots__ = ("_budget", "_lane", "_overdraft", "kind", "size")

    def __init__(self, budget: MemoryBudget, lane: Lane, size: int, overdraft: _Overdraft | None) -> None:
        self._budget = budget
        self.kind = _RESERVED_AS[lane]
        """Present use of the bytes."""
        self._lane = lane
        self.size = size
        """Number of bytes held; 0 after release."""
        self._overdraft = overdraft

    def resize(self, size: int) -> None:
        """Set the reservation to ``size`` bytes, the number actually used; never refused.

        It may grow beyond the budget's limit: the bytes are in use already.
        """
        change = size - self.size
        self.size = size
        self._budget._change(change, self.kind)  # noqa: SLF001 - a hold is part of its budget

    def become(self, kind: Kind, size: int) -> None:
        """Count the reservation for another purpose, and set it to ``size`` bytes; never refused."""
        budget, before, self.kind = self._budget, self.kind, kind
        budget._kinds[before] -= self.size  # noqa: SLF001 - a hold is part of its budget
        budget._kinds[kind] += self.size  # noqa: SLF001 - a hold is part of its budget
        self.resize(size)

    def split(self, size: int) -> Hold:
        """Move ``size`` bytes of this reservation into a new one, and return the new one.

        If this reservation has fewer bytes, the new one still gets ``size``: the missing bytes are taken from the
        budget.
        """
        moved = min(size, self.size)
        self.size -= moved
        if self._overdraft is not None:
            self._overdraft.holds += 1
        part = Hold(self._budget, self._lane, moved, self._overdraft)
        part.kind = self.kind
        if size > moved:
            part.resize(size)
        return part

    def join_batch(self) -> None:
        """Count a record set's bytes as part of the batches that view it.

        The reservation of these batches is in the lane for batches. So this one stops counting as its own lane's
        reservation beyond the limit, if it is that, and the lane may exceed the limit for another one.
        """
        self.become(Kind.BATCHES, self.size)
        self._leave_lane()
        self._budget._change(0, self.kind)  # noqa: SLF001 - a hold is part of its budget

    def release(self) -> None:
        """Give all bytes back to the budget. Idempotent."""
        size, self.size = self.size, 0
        self._leave_lane()
        self._budget._change(-size, self.kind)  # noqa: SLF001 - a hold is part of its budget

    def _leave_lane(self) -> None:
        overdraft, self._overdraft = self._overdraft, None
        if overdraft is not None:
            overdraft.holds -= 1
            if overdraft.holds == 0:
                self._budget._settle(self._lane)  # noqa: SLF001 - a hold is part of its budget


class Ticket:
    """A reservation that waits in a queue until the budget has room; see :meth:`MemoryBudget.queue`."""

    __slots__ = ("_budget", "_lane", "granted", "least", "most")

    def __init__(self, budget: MemoryBudget, lane: deque[Ticket], least: int, most: int, granted: Granted) -> None:
        self._budget = budget
        self._lane = lane
        self.least = least
        self.most = most
        self.granted = granted

    def cancel(self) -> None:
        """Leave the queue; no effect once the reservation was granted."""
        if self in self._lane:
            self._lane.remove(self)
            self._budget._pump()  # noqa: SLF001 - the next one may want less


class MemoryBudget:
    """Memory budget of ``limit_bytes``, shared by fetching and sinks.

    ``sink_bytes`` of the limit are kept free for sinks: reservations for requests and batches cannot use these bytes.
    """

    def __init__(self, limit_bytes: int, *, sink_bytes: int = 0) -> None:
        self.limit_bytes: Final = limit_bytes
        """Configured limit in bytes."""
        self._sink_bytes = sink_bytes
        self.held_bytes = 0
        """Bytes in use now, reservations and charges included."""
        self._kinds = dict.fromkeys(Kind, 0)
        self._waiting: dict[Lane, deque[Ticket]] = {lane: deque() for lane in Lane}
        self._overdrawn: dict[Lane, bool] = dict.fromkeys(Lane, False)
        self._pumping = False

    @property
    def held_by_kind(self) -> Mapping[Kind, int]:
        """Bytes in use now, by purpose."""
        return dict(self._kinds)

    @property
    def under_pressure(self) -> bool:
        """True if a reservation waits for memory; sinks should then flush."""
        return any(self._waiting.values())

    def charge(self, size: int, kind: Kind = Kind.SINKS) -> None:
        """Add ``size`` bytes that are in use without a reservation; never refused.

        A negative ``size`` gives bytes back. ``kind`` is their purpose.
        """
        self._change(size, kind)

    def take(self, lane: Lane, *, least: int, most: int) -> Hold | None:
        """Reserve memory at once, ``least`` to ``most`` bytes; None if that is impossible.

        The result has ``most`` bytes, or the free ones if there are fewer. If less than ``least`` is free, ``least``
        bytes are granted beyond the limit, provided that the lane has no other such reservation. Otherwise, and while
        other reservations wait in the lane, returns None: the caller must call :meth:`queue`.
        """
        if self._waiting[lane]:
            return None
        return self._grant(lane, least, most)

    def take_spare(self, lane: Lane, size: int) -> Hold | None:
        """Reserve ``size`` bytes for work that is not urgent, such as decoding ahead.

        Returns None if fewer bytes are free, or if any reservation waits in a queue. So it delays no other reservation.
        """
        if self.under_pressure or self._room < size:
            return None
        return self._grant(lane, size, size)

    def queue(self, lane: Lane, *, least: int, most: int, granted: Granted) -> Ticket:
        """Queue for a reservation of ``least`` to ``most`` bytes; return the place in the queue.

        ``granted`` is called with the reservation once there is room, possibly before this method returns. The sizes
        are as in :meth:`take`.
        """
        ticket = Ticket(self, self._waiting[lane], least, most, granted)
        self._waiting[lane].append(ticket)
        self._pump()
        return ticket

    @property
    def _room(self) -> int:
        """Bytes that reservations may still take."""
        return self.limit_bytes - self.held_bytes - max(0, self._sink_bytes - self._kinds[Kind.SINKS])

    def _grant(self, lane: Lane, least: int, most: int) -> Hold | None:
        room = self._room
        if room >= least:
            overdraft, size = None, min(most, room)
        elif not self._overdrawn[lane]:
            overdraft, size = _Overdraft(), least
            self._overdrawn[lane] = True
        else:
            return None
        self.held_bytes += size
        self._kinds[_RESERVED_AS[lane]] += size
        return Hold(self, lane, size, overdraft)

    def _settle(self, lane: Lane) -> None:
        self._overdrawn[lane] = False

    def _change(self, size: int, kind: Kind) -> None:
        self.held_bytes += size
        self._kinds[kind] += size
        if size <= 0:
            self._pump()

    def _pump(self) -> None:
        if self._pumping:  # a callback released bytes: the loop below uses them
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
    """Memory limits of one partition, in bytes.

    Fetching stops when the partition holds more than ``high``, and resumes when it holds ``low`` or less. A fetch
    requests ``ask``, so a partition keeps at most ``high + ask`` bytes. ``low`` is at least one fetch: while one
    response is consumed, the next one is queued and a third is requested. ``batch`` is the usual limit, in bytes after
    decompression, of a compressed piece that is decoded into one batch.
    """

    ask: int
    high: int
    low: int
    batch: int

    @property
    def out(self) -> int:
        """Bytes at the sink that do not count towards ``high`` and ``low``.

        The larger of ``ask`` and ``batch``: the size of one batch, or of the response that a batch is a view of. So one
        batch at the sink does not stop the partition's fetches.
        """
        return max(self.ask, self.batch)


_FEWEST_BATCHES: Final = 64
_MOST_BATCHES: Final = 128
_BATCHES_EACH: Final = 16
_OUT_PART: Final = 3
"""Divisor of the memory limit: batches at the sinks, one per partition, may use a third of the limit together."""
_AMPLE_FETCHES: Final = 24


def plan_marks(limit_bytes: int, partitions: int, usual_bytes: int) -> Marks:
    """Return the memory limits of each partition, computed from the process's limit.

    With ``share = limit_bytes / (2 * partitions)``::

        ask   = the smaller of usual_bytes and 2/5 * share
        high  = 3/2 * ask
        low   = 9/8 * ask        (ask, if limit_bytes < 24 * usual_bytes)
        batch = limit_bytes / batches

    ``batches`` is the number of decoded batches that the whole memory has room for:

    | partitions | batches |
    |---|---|
    | up to 8 | 16 per partition, at least 64 in all |
    | 9 to 42 | 128 in all |
    | more | 3 per partition |

    So a partition holds at most ``high + ask``, which is no more than ``share``, and never more than two and a half
    times ``usual_bytes``. The batches at the sinks, one per partition, take at most a third of the limit, so partitions
    whose sink works can continue while other sinks are blocked.

    If ``limit_bytes < 24 * usual_bytes`` (for example when half of the limit is reserved for Arrow), ``batches`` is
    128, or 3 per partition if that is more. With ``low = ask``, a partition's next fetch is sent only after the
    previous one was consumed. This is slower, but needs less memory.

    Args:
        limit_bytes: Memory limit of the whole process.
        partitions: Number of partitions that are fetched.
        usual_bytes: Wanted size of one partition's part of a response.
    """
    share = limit_bytes // (2 * max(1, partitions))
    ask = max(1, min(usual_bytes, share * 2 // 5))
    ample = limit_bytes >= _AMPLE_FETCHES * usual_bytes
    batches = max(_FEWEST_BATCHES, min(_MOST_BATCHES, _BATCHES_EACH * partitions)) if ample else _MOST_BATCHES
    batch = limit_bytes // max(batches, _OUT_PART * partitions)
    return Marks(ask=ask, high=ask * 3 // 2, low=ask * 9 // 8 if ample else ask, batch=batch)


class PartitionAccount:
    """Bytes that one partition holds, compared with its limits (:class:`Marks`).

    ``held_bytes`` are fetched and not decoded yet, ``lent_bytes`` are at the sink. A partition that has exceeded
    ``Marks.high`` counts as full until it holds no more than ``Marks.low``.
    """

    __slots__ = ("full", "held_bytes", "lent_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.lent_bytes = 0
        self.full = False
        """True if the last call of :meth:`is_full` found the partition at its limit."""

    def is_full(self, marks: Marks) -> bool:
        """Return True if the partition holds too many bytes to be in the next request."""
        self.full = self._counted(marks) > (marks.low if self.full else marks.high)
        return self.full

    def has_emptied(self, marks: Marks) -> bool:
        """Return True if :meth:`is_full` was True at its last call and would be False now."""
        return self.full and self._counted(marks) <= marks.low

    def _counted(self, marks: Marks) -> int:
        return self.held_bytes + max(0, self.lent_bytes - marks.out)
