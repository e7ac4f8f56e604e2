# SPDX-License-Identifier: Apache-2.0
"""Ends of the logs that no feed tells of: of partitions that are stopped, failing, or whose buffers are full.

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
from consumerd.delivery.ports import LogRanges
from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition

_TIMEOUT_S: Final = 10.0
"""Time in seconds after which an end counts as unknown."""


class Waiting(Protocol):
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

    def __init__(self, ranges: LogRanges, parts: Callable[[], Iterable[Waiting]], *, interval_s: float) -> None:
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
