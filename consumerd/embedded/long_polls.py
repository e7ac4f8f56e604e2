# SPDX-License-Identifier: Apache-2.0
"""Long polls: fetches that wait for records, woken by appends or by a timer.

Nothing is polled: an idle consumer costs one entry per partition, and one timer in the event loop. Appends decrement
the number of bytes that a poll waits for, so that a poll for many bytes is not woken by every small append (as in
Kafka's ``DelayedFetch``).

Example: a fetch wants at least 1,000 bytes and finds none. Appends of 400 and 300 bytes leave 300 missing; the next
append of 500 bytes wakes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from consumerd.embedded.handlers.context import Hangup
from consumerd.model import TopicPartition


class _Poll:
    """One waiting fetch; ``rooms`` are the bytes that each partition can still add."""

    __slots__ = ("missing", "rooms", "woken")

    def __init__(self, rooms: Mapping[TopicPartition, int], missing: int, woken: asyncio.Future[None]) -> None:
        self.rooms = dict(rooms)
        self.missing = missing
        self.woken = woken

    def count(self, partition: TopicPartition, size: int) -> None:
        counted = min(size, self.rooms[partition])
        self.rooms[partition] -= counted
        self.missing -= counted
        if self.missing <= 0:
            self.wake()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class LongPolls:
    """The waiting fetches by partition. For use on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, set[_Poll]] = {}

    @property
    def waiting(self) -> int:
        """Number of entries: one per poll and partition."""
        return sum(map(len, self._waiting.values()))

    async def wait(self, rooms: Mapping[TopicPartition, int], missing: int, *, until: float, hangup: Hangup) -> None:
        """Wait until ``missing`` bytes are appended, at most ``rooms`` bytes per partition.

        Also returns at ``until`` (loop time), when a partition is disturbed, and when the peer hangs up.
        """
        loop = asyncio.get_running_loop()
        poll = _Poll(rooms, missing, loop.create_future())
        timer = loop.call_at(until, poll.wake)
        forget = hangup.add(poll.wake)
        for partition in rooms:
            self._waiting.setdefault(partition, set()).add(poll)
        try:
            await poll.woken
        finally:
            timer.cancel()
            forget()
            for partition in rooms:
                polls = self._waiting[partition]
                polls.discard(poll)
                if not polls:
                    del self._waiting[partition]

    def grown(self, partition: TopicPartition, size: int) -> None:
        """Report that ``size`` bytes were appended to a partition."""
        for poll in self._waiting.get(partition, ()):
            poll.count(partition, size)

    def disturb(self, partition: TopicPartition) -> None:
        """Report another change of a partition, such as its deletion or a new leader."""
        for poll in self._waiting.get(partition, ()):
            poll.wake()

    def disturb_topics(self, topics: Collection[str]) -> None:
        """Report another change of all partitions of some topics."""
        for partition in [one for one in self._waiting if one.topic in topics]:
            self.disturb(partition)
