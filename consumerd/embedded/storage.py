# SPDX-License-Identifier: Apache-2.0
"""The log directory of a running broker, for several threads and re-created topics.

``log.LogDirectory`` accepts one caller at a time; here calls take turns. If a folder exists where a new topic's log is
to be, it is renamed to a name that ends in ``-stray``, and kept.
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
    """An open log directory. All methods block, and can be called from any thread."""

    def __init__(self, directory: LogDirectory, files: LogFileSystem) -> None:
        self._files = files
        self._logs = directory
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, files: LogFileSystem, now_ms: Callable[[], int]) -> Storage:
        """Lock a directory, creating it if necessary. Raises LogLocked, LogFailed."""
        return cls(LogDirectory.open(path, files=files, now_ms=now_ms), files)

    def open_log(self, partition: TopicPartition, settings: LogSettings) -> PartitionLog:
        """Open a partition's log, creating it if necessary. Raises LogFailed, LogDamaged."""
        with self._lock:
            return self._logs.open_log(partition, settings)

    def delete_log(self, partition: TopicPartition) -> None:
        """Close and delete a partition's log; a missing one is ignored. Raises LogFailed."""
        with self._lock:
            self._logs.delete_log(partition)

    def set_aside(self, partition: TopicPartition) -> Path | None:
        """Rename an existing folder that has the name of a new partition.

        Returns the new path, or None if there was none. Raises OSError.
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
        """Record the durable and the compacted offset of each log. Raises LogFailed."""
        with self._lock:
            self._logs.write_checkpoints()

    def close(self) -> None:
        """Close all logs, record a clean shutdown, and unlock the directory.

        Raises ExceptionGroup of LogError.
        """
        with self._lock:
            self._logs.close()
