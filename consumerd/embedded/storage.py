# SPDX-License-Identifier: Apache-2.0
"""The directory of logs as a running broker uses it: from several threads, with topics that go and come again.

``log.LogDirectory`` takes one caller at a time; here calls take turns. A folder that stands where a new topic of the same name
begins is set aside under a name that ends in ``-stray``, and stays there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from consumerd.embedded.log.files import LogFileSystem
from consumerd.embedded.log.log_directory import LogDirectory, path_aside
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition

STRAY_ENDING: Final = "-stray"


class Storage:
    """An open directory: its logs, and its folders. All methods block, and may be called from any thread."""

    def __init__(self, directory: LogDirectory, files: LogFileSystem) -> None:
        self._files = files
        self._logs = directory
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, files: LogFileSystem, now_ms: Callable[[], int]) -> Storage:
        """Lock a directory, or make it. Raises LogLocked, LogFailed."""
        return cls(LogDirectory.open(path, files=files, now_ms=now_ms), files)

    def open_log(self, partition: TopicPartition, settings: LogSettings) -> PartitionLog:
        """Open a partition's log, or make it. Raises LogFailed, LogDamaged."""
        with self._lock:
            return self._logs.open_log(partition, settings)

    def delete_log(self, partition: TopicPartition) -> None:
        """Close a partition's log and delete it; one that is not there is fine. Raises LogFailed."""
        with self._lock:
            self._logs.delete_log(partition)

    def set_aside(self, partition: TopicPartition) -> Path | None:
        """Make room for a partition's first log: rename what has its name, and return the new path; None if nothing has.

        Raises OSError.
        """
        path = self._logs.path / f"{partition.topic}-{partition.partition}"
        with self._lock:
            if not self._files.is_folder(path):
                return None
            target = path_aside(path, STRAY_ENDING)
            self._logs.forget(partition)
            self._files.rename(path, target)
            self._files.sync_folder(path.parent)
            return target

    def write_checkpoints(self) -> None:
        """Write down up to where each log is durable, and compacted. Raises LogFailed."""
        with self._lock:
            self._logs.write_checkpoints()

    def close(self) -> None:
        """Close what is open, note a clean end, let the directory go. Raises ExceptionGroup of LogError."""
        with self._lock:
            self._logs.close()
