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
from dataclasses import dataclass

from consumerd.embedded.handlers.context import Hangup
from consumerd.model import TopicPartition


@dataclass(slots=True, eq=False)
class _Poll:
    """One waiting fetch; ``rooms`` are the bytes that each partition can still add."""

    rooms: dict[TopicPartition, int]
    missing: int
    woken: asyncio.Future[None]

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
    """Fetch requests that wait for records, by partition. For use on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, set[_Poll]] = {}

    @property
    def waiting(self) -> int:
        """Number of pairs of a waiting fetch and one of its partitions."""
        return sum(map(len, self._waiting.values()))

    async def wait(self, rooms: Mapping[TopicPartition, int], missing: int, *, until: float, hangup: Hangup) -> None:
        """Wait until ``missing`` bytes were appended to the partitions of a fetch.

        Also returns at the time ``until``, in seconds of the event loop's clock; after a call of :meth:`disturb` for
        one of the partitions; and when the client disconnects.

        Args:
            rooms: The partitions of the fetch, each with the most bytes of its appends that count.
            missing: Number of bytes.
            until: Time limit.
            hangup: Tells if the client disconnects.
        """
        loop = asyncio.get_running_loop()
        poll = _Poll(dict(rooms), missing, loop.create_future())
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
        """Note that ``size`` bytes were appended to a partition.

        Wakes the fetches that now have enough.
        """
        for poll in self._waiting.get(partition, ()):
            poll.count(partition, size)

    def disturb(self, partition: TopicPartition) -> None:
        """Wake the fetches that wait for a partition, after a change other than an append.

        Examples of such a change: the partition is deleted, or gets a new leader.
        """
        for poll in self._waiting.get(partition, ()):
            poll.wake()

    def disturb_topics(self, topics: Collection[str]) -> None:
        """Wake the fetches that wait for any partition of these topics.

        Called after a change other than an append, such as the deletion of a topic.
        """
        for partition in [one for one in self._waiting if one.topic in topics]:
            self.disturb(partition)
