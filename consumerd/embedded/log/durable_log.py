# SPDX-License-Identifier: Apache-2.0
"""Base of the logs of both generations: flushes, retention, and failures of the disk.

A log goes *offline* when it is unknown what its files hold: after a failed fsync, or a failed write that could not be
undone. It is then not used any more, until it is opened again. A write that was undone is refused, and nothing more.
"""

from __future__ import annotations

import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from consumerd.embedded.log.errors import LogFailed, LogFull, LogWriteFailed
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DurableLog(ABC):
    """An open log of one partition, in segment files of a folder."""

    def __init__(
        self,
        folder: Path,
        partition: TopicPartition,
        *,
        settings: LogSettings,
        files: OsLogFiles,
        now_ms: Callable[[], int],
    ) -> None:
        self.partition = partition
        self.folder = folder
        self.settings = settings
        self._files = files
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._offline: str | None = None
        self._flushed_ms = now_ms()

    @property
    @abstractmethod
    def unflushed(self) -> int:
        """Number of messages or offsets since the last flush."""

    @abstractmethod
    def _flush(self) -> None:
        """Make everything durable, and note the time. Raises LogFailed."""

    def flush(self) -> None:
        """Make all that was appended durable. Raises LogFailed, after which the log is offline."""
        with self._lock:
            self._check_online()
            self._flush()

    def flush_if_due(self) -> None:
        """Flush if ``flush_interval_ms`` has passed since the last flush. Raises LogFailed.

        Called by a timer.
        """
        with self._lock:
            if self._offline is None:
                self._flush_if_due(self._now_ms())

    def _flush_if_due(self, now_ms: int) -> None:
        messages, interval_ms = self.settings.flush_messages, self.settings.flush_interval_ms
        if (messages is not None and self.unflushed >= messages) or (
            interval_ms is not None and self.unflushed and now_ms - self._flushed_ms >= interval_ms
        ):
            self._flush()

    def _is_expired(self, sizes: Sequence[int], read_newest_ms: Callable[[], int], now_ms: int) -> bool:
        """Return True if the oldest segment exceeds the log's limits of size or age.

        A single segment is never too much by size, and an empty one not by age either.

        Args:
            sizes: Size of each segment, in bytes, oldest first.
            read_newest_ms: Returns the time of the oldest segment's newest record, in ms since the epoch.
            now_ms: The present time.
        """
        is_last = len(sizes) == 1
        if is_last and not sizes[0]:
            return False
        by_size, by_age = self.settings.retention_bytes, self.settings.retention_ms
        if by_size is not None and sum(sizes[1:]) >= by_size and not is_last:
            return True
        return by_age is not None and now_ms - read_newest_ms() > by_age

    def _check_online(self) -> None:
        if self._offline is not None:
            raise LogFailed(f"{self.partition}: the log is offline: {self._offline}")

    def _fail(self, why: str, error: OSError) -> NoReturn:
        """Take the log offline. Raises LogFailed."""
        self._offline = why
        raise LogFailed(f"{self.partition}: the log is offline: {why}") from error

    def _refuse(self, error: OSError, what: str) -> NoReturn:
        """Refuse a write that has left nothing behind. Raises LogFull, LogWriteFailed."""
        kind = LogFull if error.errno in _FULL else LogWriteFailed
        raise kind(f"{self.partition}: {what}: {error}") from error
