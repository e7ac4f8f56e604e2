"""What a broker does to its logs by the clock: flushes, retention, compaction, checkpoints.

One partition after the other, each in its turn among the appends (``appending``), so that tending many logs never takes
the disk from producers for longer than one of them needs. A log that fails is reported once, and left alone by whoever
tends it until it is opened anew.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import structlog

from consumerd.embedded.appending import Appender
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import CleanupPolicy
from consumerd.model import TopicPartition

_TICK_S = 1.0

_log = structlog.get_logger(__name__)


class Logs(Protocol):
    """The logs that there are now."""

    def logs(self) -> Collection[PartitionLog]:
        """Return them."""


class Housekeeper:
    """Tends ``logs``: flushes that are due every second, the rest every ``retention_check_interval_s``.

    ``write_checkpoints`` blocks, and raises LogError.
    """

    def __init__(
        self,
        logs: Logs,
        appender: Appender,
        *,
        retention_check_interval_s: float,
        write_checkpoints: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._logs = logs
        self._appender = appender
        self._interval_s = retention_check_interval_s
        self._write_checkpoints = write_checkpoints
        self._now = now
        self._failing: set[TopicPartition | None] = set()

    async def run(self) -> None:
        """Tend them until cancelled; unbounded. What has begun in a thread is brought to its end there."""
        next_check = self._now() + self._interval_s
        while True:
            await asyncio.sleep(min(_TICK_S, self._interval_s))
            for log in self._logs.logs():
                if log.settings.flush_interval_ms is not None and log.unflushed:
                    await self._try(
                        log.partition, functools.partial(self._appender.run, log.partition, log.flush_if_due)
                    )
            if self._now() >= next_check:
                await self.clean()
                next_check = self._now() + self._interval_s

    async def clean(self) -> None:
        """Let retention and compaction have their way once, and write down how far that is safe."""
        for log in self._logs.logs():
            compact = log.settings.cleanup_policy is CleanupPolicy.COMPACT
            work = log.compact if compact else log.apply_retention
            await self._try(log.partition, functools.partial(self._appender.run, log.partition, work))
        await self._try(None, functools.partial(asyncio.to_thread, self._write_checkpoints))

    async def _try(self, partition: TopicPartition | None, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except LogError as error:
            if partition not in self._failing:
                _log.warning("housekeeping_failed", partition=str(partition or "checkpoints"), reason=str(error))
            self._failing.add(partition)
        else:
            self._failing.discard(partition)
