# SPDX-License-Identifier: Apache-2.0
"""Storage of the embedded brokers: topics and logs that brokers of one process share.

Without ZooKeeper, the cluster's metadata are shared too. A single broker has a storage of its own. Several brokers
share one, so a record that one of them has accepted is on all replicas at once, and any of them can lead the partition
from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from consumerd.aio.tasks import alongside
from consumerd.embedded.appending import Appender
from consumerd.embedded.catalogue import LogCatalogue
from consumerd.embedded.faults import FillableFiles
from consumerd.embedded.housekeeping import Housekeeper
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.metadata_store import MetadataStore
from consumerd.embedded.nodes import Nodes
from consumerd.zk.port import ZkClient

T = TypeVar("T")


class BrokerStorage:
    """Open topics and logs of one or more brokers, while its ``async with`` block runs.

    It can be entered once.

    Args:
        zk: The session in which topics are read and written.
        nodes: The brokers that share it.
        metadata: The store in which brokers register in a cluster without ZooKeeper; None with ZooKeeper.
        directory: The directory of the logs.
        log_settings: Defaults of the topics' settings.
        with_topic_ids: Gives new topics an id.
        retention_check_interval_s: Interval of retention and compaction, in seconds.
    """

    def __init__(
        self,
        zk: ZkClient,
        nodes: Nodes,
        files: FillableFiles,
        *,
        metadata: MetadataStore | None = None,
        directory: Path,
        log_settings: LogSettings,
        with_topic_ids: bool,
        retention_check_interval_s: float,
    ) -> None:
        self._path = directory
        self._log_settings = log_settings
        self._with_topic_ids = with_topic_ids
        self._retention_check_interval_s = retention_check_interval_s
        self._zk = zk
        self.metadata = metadata
        self.nodes = nodes
        self.files = files
        self.appender = Appender()
        self._directory: LogDirectory | None = None
        self._catalogue: LogCatalogue | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the directory, and the logs of the topics in ZooKeeper.

        Recovering the logs takes as long as the disk. Raises LogError, CoordinationError, OSError.
        """
        async with AsyncExitStack() as stack:
            opening = partial(LogDirectory.open, self._path, files=self.files, now_ms=self.now_ms)
            self._directory = directory = await open_in_thread(opening, LogDirectory.close)
            stack.push_async_callback(asyncio.to_thread, directory.close)
            await stack.enter_async_context(self.appender)
            catalogue = LogCatalogue(
                self._zk,
                nodes=self.nodes,
                settings=self._log_settings,
                with_topic_ids=self._with_topic_ids,
                directory=directory,
                appender=self.appender,
                now_ms=self.now_ms,
            )
            self._catalogue = await stack.enter_async_context(catalogue)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the logs, which takes as long as the disk. Raises ExceptionGroup of LogError."""
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def catalogue(self) -> LogCatalogue:
        """The topics with their open logs. Raises RuntimeError before the storage is entered."""
        if self._catalogue is None:
            raise RuntimeError("the storage is not open")
        return self._catalogue

    def housekeeping(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that keeps the logs in order while its block runs.

        Logs are flushed, shortened by retention, and compacted, periodically.
        """
        if self._directory is None:
            raise RuntimeError("the storage is not open")
        housekeeper = Housekeeper(
            self.catalogue,
            self.appender,
            retention_check_interval_s=self._retention_check_interval_s,
            write_checkpoints=self._directory.write_checkpoints,
        )
        return alongside(housekeeper.run(), name="housekeeping")

    @staticmethod
    def now_ms() -> int:
        """Return the calendar time in ms since the epoch."""
        return time.time_ns() // 1_000_000


async def open_in_thread(opening: Callable[[], T], close: Callable[[T], None]) -> T:
    """Call ``opening`` in a thread, and return the resource that it opens.

    There is no timeout.
    If this call is cancelled, it waits for the thread, and passes the resource to ``close``.
    """
    opened = asyncio.get_running_loop().run_in_executor(None, opening)
    try:
        return await asyncio.shield(opened)
    except asyncio.CancelledError:
        await asyncio.wait([opened])
        if opened.exception() is None:
            close(opened.result())
        raise
