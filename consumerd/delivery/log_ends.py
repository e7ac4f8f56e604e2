# SPDX-License-Identifier: Apache-2.0
"""Log ends of partitions, from their feeds or by queries to brokers.

A feed learns the log end with every fetch response. Stopped or failing partitions, and those with full buffers, have no
such responses. For them the brokers are asked periodically, so that the lag of a partition that does not move is known
and grows. Example: the start at 0 cannot be committed for lack of a permission, and the log ends at 600: the lag is
600, not 0 or unknown.
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
"""Time limit, in seconds, of a query; after it the end counts as unknown."""


class ObservedLogEnd:
    """The newest known end of one partition's log, from its feed or a broker.

    An end that was not confirmed for twice ``recheck_ms`` counts as unknown. Example with ``recheck_ms`` 10,000: the
    feed reported 600 and then failed. For 20 s the end is 600, then None, until a broker that is asked reports 640.
    """

    def __init__(self, settings: DeliverySettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._end: int | None = None  # as it was asked for, or as the last feed said
        self._asked_at: float | None = None
        self._began_at = 0.0  # when the present feed, or the time without one, began

    def begin(self, feed: RecordFeed | None = None) -> None:
        """Note that a feed begins, or, without one, that the position is known."""
        self._began_at = self._now()
        if feed is not None:
            self._asked_at = None

    def end(self, feed: RecordFeed) -> None:
        """Keep the log end of a feed that is about to be closed."""
        self._end, self._began_at = self.find(feed), self._now()

    def note(self, log_end: int | None) -> None:
        """Take over a broker's answer; None if none answered."""
        self._end, self._asked_at = log_end, self._now()

    def is_due(self, feed: RecordFeed | None) -> bool:
        """Return True if a broker is to be asked.

        That is if no feed has reported the end for half of ``recheck_ms``: thousands of partitions that start together
        take seconds, and their brokers need not be asked twice in that time.
        """
        heard_at = self._began_at
        if feed is not None:
            if feed.fault is not None:
                return True
            heard_at = feed.heard_at or heard_at
        return self._now() - heard_at > self._settings.recheck_ms / 2000

    def hears(self, feed: RecordFeed) -> bool:
        """Return True if the feed's log end is new enough to be shown."""
        heard_at, patience_s = feed.heard_at, 2 * self._settings.recheck_ms / 1000
        return feed.fault is None and heard_at is not None and self._now() - heard_at <= patience_s

    def find(self, feed: RecordFeed | None) -> int | None:
        """Return the log end, or None if it is unknown or too old.

        Under ``read_committed`` that is the last stable offset.
        """
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
        """The topic and partition number."""

    @property
    def needs_log_end(self) -> bool:
        """True if its position is known and no feed reports the log end."""

    def note_log_end(self, log_end: int | None) -> None:
        """Take over the log end; None if no broker reports it."""


class LogEnds:
    """Asks brokers for log ends every ``interval_s`` seconds."""

    def __init__(self, ranges: LogRanges, parts: Callable[[], Iterable[AwaitsLogEnd]], *, interval_s: float) -> None:
        self._ranges = ranges
        self._parts = parts
        self._interval_s = interval_s

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            waiting = {one.partition: one for one in self._parts() if one.needs_log_end}
            # one call per partition, so that an error concerns that one only; concurrent calls share their requests
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
