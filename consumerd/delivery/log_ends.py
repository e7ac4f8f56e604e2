# SPDX-License-Identifier: Apache-2.0
"""Log ends of partitions, from their fetch feeds or by queries to brokers.

The log end tells the lag. A feed learns it with every fetch response. Stopped or failing partitions, and those with
full buffers, have no such responses, and the responses of Kafka 0.7 have no log end. For them the brokers are asked
periodically, so that the lag of a partition that does not move is known and grows. Example: the start at 0 cannot be
committed for lack of a permission, and the log ends at 600: the lag is 600, not 0 or unknown.
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
    """Newest known end of one partition's log, from its fetch feed or a broker.

    An end from the feed counts as unknown when the feed has not confirmed it for twice ``recheck_ms``, or has a fault.
    Then brokers are asked. Example with ``recheck_ms`` 10,000: the feed reports 600, and no response comes any more.
    The end is 600 for 20 s, then None, until a broker that is asked reports 640.
    """

    def __init__(self, settings: DeliverySettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._end: int | None = None  # as it was asked for, or as the last feed said
        self._asked_at: float | None = None
        self._began_at = 0.0  # when the present feed, or the time without one, began

    def begin(self, feed: RecordFeed | None = None) -> None:
        """Note that ``feed`` begins to fetch the partition.

        None: the partition's position is known, but nothing fetches the partition, for example because it is stopped.
        """
        self._began_at = self._now()
        if feed is not None:
            self._asked_at = None

    def end(self, feed: RecordFeed) -> None:
        """Keep the log end that ``feed`` has reported, because the feed is closed next."""
        self._end, self._began_at = self.find(feed), self._now()

    def note(self, log_end: int | None) -> None:
        """Note the log end that a broker has returned to a query.

        None if no broker responded: the log end is unknown then.
        """
        self._end, self._asked_at = log_end, self._now()

    def is_due(self, feed: RecordFeed | None) -> bool:
        """Return True if a broker should be asked for the log end now.

        That is the case if the feed has a fault, or if no log end was reported for half of ``recheck_ms``. The delay
        keeps thousands of partitions that start together from asking while their first responses are still under way.

        Args:
            feed: The partition's feed; None if nothing fetches the partition.
        """
        heard_at = self._began_at
        if feed is not None:
            if feed.fault is not None:
                return True
            heard_at = _find_reported_at(feed) or heard_at
        return self._now() - heard_at > self._settings.recheck_ms / 2000

    def hears(self, feed: RecordFeed) -> bool:
        """Return True if the log end reported by ``feed`` is recent enough to be used.

        It is if the feed has no fault and has confirmed the log end within twice ``recheck_ms``.
        """
        heard_at, patience_s = _find_reported_at(feed), 2 * self._settings.recheck_ms / 1000
        return feed.fault is None and heard_at is not None and self._now() - heard_at <= patience_s

    def find(self, feed: RecordFeed | None) -> int | None:
        """Return the log end, or None if it is unknown or too old.

        Under ``read_committed`` the log end is the last stable offset, otherwise the high watermark.

        Args:
            feed: The partition's feed; None if nothing fetches the partition.
        """
        if feed is None:
            return self._end
        heard_at = _find_reported_at(feed)
        if self._asked_at is not None and (heard_at is None or self._asked_at > heard_at):
            return self._end
        if not self.hears(feed):
            return None
        return feed.last_stable_offset if self._settings.read_committed else feed.high_watermark


def _find_reported_at(feed: RecordFeed) -> float | None:
    """Return the time of the feed's last report of the log end, or None."""
    return None if feed.high_watermark is None else feed.heard_at


class AwaitsLogEnd(Protocol):
    """Interface of a partition whose log end may be unknown.

    A broker is asked for it then.
    """

    @property
    def partition(self) -> TopicPartition:
        """The topic and partition number."""

    @property
    def needs_log_end(self) -> bool:
        """True if brokers should be asked for the partition's log end.

        That is the case if its position is known, and no feed has recently reported the log end.
        """

    def note_log_end(self, log_end: int | None) -> None:
        """Note the log end that a broker has returned; None if no broker responded."""


class LogEnds:
    """Asks brokers, every ``interval_s`` seconds, for log ends that no feed reports.

    Args:
        ranges: Sends the queries.
        parts: Returns the partitions; those with ``needs_log_end`` are asked for.
    """

    def __init__(self, ranges: LogRanges, parts: Callable[[], Iterable[AwaitsLogEnd]], *, interval_s: float) -> None:
        self._ranges = ranges
        self._parts = parts
        self._interval_s = interval_s

    async def run(self) -> None:
        """Ask brokers for log ends periodically, until cancelled."""
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
