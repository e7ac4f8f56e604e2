# SPDX-License-Identifier: Apache-2.0
"""Reading of a range from a feed, with a time limit.

The daemon waits for records without a limit. Readers of a range do not: a task of Spark is repeated elsewhere, and a
command must end.

Lost ends
    The log may end below the range, although it did not when the range was planned: an unclean leader election, or a
    topic re-creation. Example: the range is 0-99, and after an unclean election the log ends at 80. After offset 79 no
    records come. When that has lasted 10 s, the log end offset is looked up. Then OffsetOutOfRange is raised, instead
    of waiting for ``patience_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.errors import ConsumerdError, OffsetOutOfRange, RequestTimedOut
from consumerd.fetch.feed import PartitionFeed
from consumerd.wire.records import RecordBatch

_LOOK_S: Final = 2.0
"""Interval of the checks while no records come, in seconds."""
_DOUBT_S: Final = 10.0
"""Time for which a log may end below the range, in seconds: a new leader learns its high watermark a moment late."""


class PatientFeed:
    """Reads batches from a partition's feed, with a time limit for each batch.

    For use on one event loop.

    Args:
        patience_s: Time limit for each batch, in seconds. None for no limit: for a reader without an end offset.
        explain: Returns the reason why no records come; the text is a part of the error.
        waiting: Called every two seconds while no records come.
        held_up: Returns True while the reader has not taken other batches, so that this partition may lack memory. Such
            time does not count towards the limit.
    """

    def __init__(
        self,
        feed: PartitionFeed,
        ranges: LogRanges,
        *,
        patience_s: float | None,
        explain: Callable[[], str],
        waiting: Callable[[], None] = lambda: None,
        held_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._feed = feed
        self._ranges = ranges
        self._patience_s = patience_s
        self._explain = explain
        self._waiting = waiting
        self._held_up = held_up

    async def next(self, position: int) -> RecordBatch:
        """Return the next batch, which begins at offset ``position``.

        The caller gives the batch back by ``done`` of the feed. Safe to cancel.

        Raises RequestTimedOut after ``patience_s`` seconds without a batch. Raises OffsetOutOfRange if no batch has
        come for some seconds and the leader confirms that the log ends at ``position`` or below: records that the
        caller expects there are gone. Also raises the errors of :meth:`PartitionFeed.next`.
        """
        now = asyncio.get_running_loop().time
        began = now()
        while True:
            waited_s = now() - began
            left_s = _LOOK_S if self._patience_s is None else self._patience_s - waited_s
            if left_s <= 0:
                raise RequestTimedOut(
                    f"{self._feed.partition}: nothing came from offset {position} on within "
                    f"{self._patience_s:g} s: {self._explain()}"
                )
            try:
                async with timeout(min(left_s, _LOOK_S)):
                    return await self._feed.next()
            except TimeoutError:
                self._waiting()
                if self._held_up():
                    began = now()
                elif self._patience_s is not None and waited_s >= min(_DOUBT_S, self._patience_s / 2):
                    await self._check_end(position)

    async def _check_end(self, position: int) -> None:
        """Raise OffsetOutOfRange if the log ends at the position.

        The high watermark of the last fetch response must say so, and the leader's answer to ListOffsets, too. For logs
        without replicas there is no high watermark, and the answer alone is proof.
        """
        latest = self._feed.high_watermark
        if self._ranges.logs_are_replicated and (latest is None or latest > position):
            return
        partition = self._feed.partition
        found = None
        with contextlib.suppress(ConsumerdError, TimeoutError):
            async with timeout(_LOOK_S):
                found = (await self._ranges.read([partition])).get(partition)
        if found is not None and found.latest <= position:
            raise OffsetOutOfRange(partition, position, found.earliest, found.latest)
