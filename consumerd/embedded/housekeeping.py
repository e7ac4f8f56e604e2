# SPDX-License-Identifier: Apache-2.0
"""Periodic work on a broker's logs: flushes, retention, compaction, checkpoints.

Partitions are processed one after the other. Work on a partition's log waits for its appends (``appending``), so that
work on many logs never blocks producers for longer than one log needs. Compaction runs in parallel with appends, since
its time grows with the log. A failing log is reported once, and not processed until it is opened again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

import structlog

from consumerd.embedded.appending import Appender
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition

_FLUSH_CHECK_S: Final = 1.0

_log = structlog.get_logger(__name__)


class KeptLog(Protocol):
    """A log that needs periodic work.

    Each method blocks, and raises LogError.
    """

    @property
    def partition(self) -> TopicPartition:
        """The partition of which it is the log."""

    @property
    def settings(self) -> LogSettings:
        """Its settings, which say what work there is."""

    @property
    def unflushed(self) -> int:
        """Number of messages or offsets since the last flush."""

    def flush_if_due(self) -> None:
        """Flush if ``flush_interval_ms`` has passed since the last flush."""

    def apply_retention(self) -> int:
        """Delete the segments that exceed the limits of age or size; return their number."""

    def compact(self) -> bool:
        """Remove records whose key occurs again; return True if anything was done."""


class KeptLogs(Protocol):
    """The owner of the logs that need periodic work."""

    def logs(self) -> Collection[KeptLog]:
        """Return the open logs."""


class Housekeeper:
    """Periodically flushes, shortens and compacts the open logs of ``topics``.

    Args:
        topics: The topics with their open logs.
        appender: Runs the work on each log, after the appends requested before.
        retention_check_interval_s: Interval of retention and compaction, in seconds. Due flushes are made every second.
        write_checkpoints: Writes the checkpoint files. The function blocks, and raises LogError.
    """

    def __init__(
        self,
        topics: KeptLogs,
        appender: Appender,
        *,
        retention_check_interval_s: float,
        write_checkpoints: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._appender = appender
        self._interval_s = retention_check_interval_s
        self._write_checkpoints = write_checkpoints
        self._failing: set[TopicPartition | None] = set()

    async def run(self) -> None:
        """Flush, shorten and compact logs periodically, until cancelled.

        After a cancellation, work that a thread has begun is finished before this returns.
        """
        async with asyncio.TaskGroup() as tasks:  # two tasks, so that flushes need not wait for a compaction
            tasks.create_task(self._flush_when_due(), name="flushes")
            tasks.create_task(self._clean_now_and_then(), name="cleaning")

    async def _flush_when_due(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_CHECK_S)
            for log in self._topics.logs():
                if log.settings.flush_interval_ms is not None and log.unflushed:
                    await self._try(
                        log.partition, functools.partial(self._appender.run, log.partition, log.flush_if_due)
                    )

    async def _clean_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.clean()

    async def clean(self) -> None:
        """Apply retention and compaction to all logs once, and write the checkpoints."""
        self._failing &= {*self._partitions(), None}
        for log in self._topics.logs():
            if log.settings.cleanup_policy.deletes:
                await self._try(
                    log.partition, functools.partial(self._appender.run, log.partition, log.apply_retention)
                )
            if log.settings.cleanup_policy.compacts:
                await self._try(log.partition, functools.partial(asyncio.to_thread, log.compact))
        await self._try(None, functools.partial(asyncio.to_thread, self._write_checkpoints))

    def _partitions(self) -> set[TopicPartition]:
        return {log.partition for log in self._topics.logs()}

    async def _try(self, partition: TopicPartition | None, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except LogError as error:
            if partition is not None and partition not in self._partitions():
                return  # its topic was deleted before its turn came
            if partition not in self._failing:
                _log.warning("housekeeping_failed", partition=str(partition or "checkpoints"), reason=str(error))
            self._failing.add(partition)
        else:
            self._failing.discard(partition)
