"""The directory of logs as a running broker uses it: from several threads, with topics that go and come again.

``log.LogDirectory`` takes one caller at a time and knows up to where each log was durable; ``PartitionFolders`` takes away
the folders of topics that are no more. Here they are one: calls take turns, and what is taken away is forgotten.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from consumerd.embedded.log.files import LogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.partition_folders import PartitionFolders
from consumerd.model import TopicPartition


class Storage(PartitionFolders):
    """An open directory: its logs, and its folders. All methods block, and may be called from any thread."""

    def __init__(self, directory: LogDirectory, files: LogFiles) -> None:
        super().__init__(directory.path, files, lambda: uuid.uuid4().hex)
        self._logs = directory
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, files: LogFiles, now_ms: Callable[[], int]) -> Storage:
        """Lock a directory, or make it. Raises LogLocked, LogFailed."""
        return cls(LogDirectory.open(path, files=files, now_ms=now_ms), files)

    def open_log(self, partition: TopicPartition, settings: LogSettings) -> PartitionLog:
        """Open a partition's log, or make it. Raises LogFailed, LogDamaged."""
        with self._lock:
            return self._logs.open_log(partition, settings)

    def set_aside(self, partition: TopicPartition) -> Path | None:
        """See PartitionFolders."""
        with self._lock:
            self._logs.forget(partition)
            return super().set_aside(partition)

    def mark_deleted(self, partition: TopicPartition) -> Path | None:
        """See PartitionFolders."""
        with self._lock:
            self._logs.forget(partition)
            return super().mark_deleted(partition)

    def write_checkpoints(self) -> None:
        """Write down up to where each log is durable, and compacted. Raises LogFailed."""
        with self._lock:
            self._logs.write_checkpoints()

    def close(self) -> None:
        """Close what is open, note a clean end, let the directory go. Raises ExceptionGroup of LogError."""
        with self._lock:
            self._logs.close()
