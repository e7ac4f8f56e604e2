# SPDX-License-Identifier: Apache-2.0
"""The logs of one broker of Kafka 0.6 or 0.7, in one directory.

Each partition has a folder ``<topic>-<number>``.
The first PRODUCE request for a partition creates its log, and so its topic. There is no other way to create a topic,
and none to delete one. All logs in the directory are opened at the start.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS, ByteLog
from consumerd.embedded.log.errors import LogFailed
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import close_logs, find_partition, lock_directory, opening_directory
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import BrokerId, PartitionKey, TopicPartition


class ByteLogs:
    """The open logs of the broker ``broker_id``, in a directory locked for this process.

    :meth:`open` takes the lock, :meth:`close` releases it. Methods can be called from any thread.
    """

    def __init__(
        self,
        path: Path,
        broker_id: BrokerId,
        *,
        settings: LogSettings,
        files: OsLogFiles,
        now_ms: Callable[[], int],
        lock_file: int,
    ) -> None:
        self.path = path
        self._broker_id = broker_id
        self._settings = settings
        self._files = files
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._lock_file: int | None = lock_file
        self._logs: dict[TopicPartition, ByteLog] = {}
        self._topics: set[str] = set()

    @classmethod
    def open(
        cls,
        path: Path,
        broker_id: BrokerId,
        *,
        settings: LogSettings = DEFAULT_SETTINGS,
        files: OsLogFiles,
        now_ms: Callable[[], int],
    ) -> Self:
        """Lock a directory, creating it if necessary, and open the logs in it.

        Raises LogLocked, LogDamaged, LogFailed.
        """
        with opening_directory(path):
            descriptor = lock_directory(path, files)
            logs = cls(path, broker_id, settings=settings, files=files, now_ms=now_ms, lock_file=descriptor)
            try:
                for name in files.names(path):
                    if (found := find_partition(name)) and files.is_folder(path / name):
                        logs.get_or_create(logs.key(*found))
            except BaseException:
                with contextlib.suppress(ExceptionGroup):  # the first error counts
                    logs.close()
                raise
        return logs

    def key(self, topic: str, number: int) -> TopicPartition:
        """Return the key of one of this broker's partitions: ``B-P``, broker and number."""
        return TopicPartition(topic, PartitionKey(number, self._broker_id))

    def topics(self) -> frozenset[str]:
        """Return the topics of which this broker has a partition."""
        with self._lock:
            return frozenset(self._topics)

    def has_topic(self, topic: str) -> bool:
        """Return True if this broker has a partition of a topic."""
        return topic in self._topics

    def logs(self) -> Collection[ByteLog]:
        """Return the open logs."""
        with self._lock:
            return tuple(self._logs.values())

    def find(self, partition: TopicPartition) -> ByteLog | None:
        """Return a partition's log; None if nothing was ever sent to the partition."""
        return self._logs.get(partition)

    def get_or_create(self, partition: TopicPartition) -> ByteLog:
        """Return a partition's log, creating it if there is none. Raises LogFailed, LogDamaged."""
        with self._lock:
            if self._lock_file is None:
                raise LogFailed(f"{self.path}: the logs are closed")
            log = self._logs.get(partition)
            if log is None:
                log = self._logs[partition] = ByteLog.open(
                    self.path, partition, settings=self._settings, files=self._files, now_ms=self._now_ms
                )
                self._topics.add(partition.topic)
            return log

    def close(self) -> None:
        """Close the logs and unlock the directory. Idempotent.

        Raises ExceptionGroup of LogError after closing as much as possible.
        """
        with self._lock:
            descriptor, self._lock_file = self._lock_file, None
            if descriptor is None:
                return
            errors = close_logs(self._logs.values())
            self._files.close(descriptor)
        if errors:
            raise ExceptionGroup("the logs were not closed cleanly", errors)
