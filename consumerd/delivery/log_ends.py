# SPDX-License-Identifier: Apache-2.0
"""Ends of logs: the newest that a partition knows, and questions to brokers where no feed tells of it.

No feed tells of it for partitions that are stopped, failing, or whose buffers are full.

A feed learns the end of its log with every answer. Without a feed the brokers are asked from time to time, so that the lag
of a partition that does not move is known and grows. Example: the start at 0 cannot be committed for lack of a permission,
and the log ends at 600: the lag is 600, and not 0 or unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.delivery.ports import DeliverySettings, RecordFeed
from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition

_TIMEOUT_S: Final = 10.0
"""Time in seconds after which an end counts as unknown."""


class ObservedLogEnd:
    """The end of one partition's log: what its feed says, or a broker that was asked, whichever is newer.

    An end that nobody has confirmed for twice ``recheck_ms`` counts as unknown. Example, ``recheck_ms`` 10,000: the feed
    heard 600 and then failed. For 20 s the end is 600, then None, until a broker that is asked says 640.
    """

    def __init__(self, settings: DeliverySettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._end: int | None = None  # as it was asked for, or as the last feed said
        self._asked_at: float | None = None
        self._began_at = 0.0  # when the present feed, or the time without one, began

    def begin(self, feed: RecordFeed | None = None) -> None:
        """Note that the partition is fetched from now on, or, without a feed, that its position is known."""
        self._began_at = self._now()
        if feed is not None:
            self._asked_at = None

    def end(self, feed: RecordFeed) -> None:
        """Keep what a feed says that is about to be closed."""
        self._end, self._began_at = self.find(feed), self._now()

    def note(self, log_end: int | None) -> None:
        """Take a broker's answer; None where no broker tells it."""
        self._end, self._asked_at = log_end, self._now()

    def is_due(self, feed: RecordFeed | None) -> bool:
        """Tell whether a broker is to be asked: no feed has told of the end for half of ``recheck_ms``.

        Thousands of partitions that start together take seconds, in which their brokers are not asked twice.
        """
        heard_at = self._began_at
        if feed is not None:
            if feed.fault is not None:
                return True
            heard_at = feed.heard_at or heard_at
        return self._now() - heard_at > self._settings.recheck_ms / 2000

    def hears(self, feed: RecordFeed) -> bool:
        """Tell whether what the feed knows of the end is new enough to be shown."""
        heard_at, patience_s = feed.heard_at, 2 * self._settings.recheck_ms / 1000
        return feed.fault is None and heard_at is not None and self._now() - heard_at <= patience_s

    def find(self, feed: RecordFeed | None) -> int | None:
        """Return the end (under ``read_committed`` the last stable offset), or None where it is unknown or too old."""
        if feed is None:
            return self._end
        heard_at = feed.heard_at
        if self._asked_at is not None and (heard_at is None or self._asked_at > heard_at):
            return self._end
        if not self.hears(feed):
            return None
        return feed.last_stable_offset if self._settings.read_committed else feed.high_watermark


class AwaitsLogEnd(Protocol):
    """A partition that has a position and may have no feed."""

    @property
    def partition(self) -> TopicPartition:
        """Which one."""

    @property
    def needs_log_end(self) -> bool:
        """Whether its position is known and no feed tells of the log's end."""

    def note_log_end(self, log_end: int | None) -> None:
        """Take the end of the log; None where no broker tells it."""


class LogEnds:
    """Asks for the ends, every ``interval_s`` seconds."""

    def __init__(self, ranges: LogRanges, parts: Callable[[], Iterable[AwaitsLogEnd]], *, interval_s: float) -> None:
        self._ranges = ranges
        self._parts = parts
        self._interval_s = interval_s

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            waiting = {one.partition: one for one in self._parts() if one.needs_log_end}
            # One call each, all at once: an error concerns one partition, and calls made together share their requests.
            ends = await map_bounded(waiting, self._find_end, in_flight=len(waiting))
            for partition, one in waiting.items():
                one.note_log_end(ends[partition])

    async def _find_end(self, partition: TopicPartition) -> int | None:
        try:
            async with timeout(_TIMEOUT_S):
                log = (await self._ranges.read([partition])).get(partition)
        except (ConsumerdError, TimeoutError):
            return None
        return None if log is None else log.latest
