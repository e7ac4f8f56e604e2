# SPDX-License-Identifier: Apache-2.0
"""Fetches that wait for records: found by partition, woken by appends, ended by one timer each.

Nothing is looked at again and again: an idle consumer costs an entry a partition and a timer in the loop's heap. What a
poll waits for is counted down by what is appended, so that it is not woken by every small append when it wants many bytes
(Kafka's ``DelayedFetch``, which accumulates likewise).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from consumerd.embedded.handlers.context import Hangup
from consumerd.model import TopicPartition


class _Poll:
    """One fetch that waits; ``rooms`` are the bytes that each partition may still add to its answer."""

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
    """Who waits for which partitions. Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, set[_Poll]] = {}

    @property
    def waiting(self) -> int:
        """How many entries there are: one for each partition that each poll waits for."""
        return sum(map(len, self._waiting.values()))

    async def wait(self, rooms: Mapping[TopicPartition, int], missing: int, *, until: float, hangup: Hangup) -> None:
        """Wait until ``missing`` bytes have been appended to the partitions, at most ``rooms`` to each.

        Returns also at ``until`` (of the loop's clock), when a partition was disturbed, and when the peer has gone.
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
        """Tell that ``size`` bytes were appended to a partition."""
        for poll in self._waiting.get(partition, ()):
            poll.count(partition, size)

    def disturb(self, partition: TopicPartition) -> None:
        """Tell that something else about a partition has changed (it was deleted, its leader is another one)."""
        for poll in self._waiting.get(partition, ()):
            poll.wake()

    def disturb_topics(self, topics: Collection[str]) -> None:
        """Tell that of all partitions of some topics."""
        for partition in [one for one in self._waiting if one.topic in topics]:
            self.disturb(partition)
