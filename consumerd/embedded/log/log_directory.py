# SPDX-License-Identifier: Apache-2.0
"""The directory of the logs of all partitions, with its lock and checkpoints.

Its entries are those of Kafka's LogManager:

========================================  ==========================================================================
``.lock``                                 locked while a process uses the directory
``.kafka_cleanshutdown``                  present only between a shutdown that closed every log, and the next start
``recovery-point-offset-checkpoint``      the durable offset of each log
``cleaner-offset-checkpoint``             the compacted offset of each log
``<topic>-<partition>``                   the log of a partition
``<topic>-<partition>.<id>-delete``       a log that is being deleted
``<topic>-<partition>.<id>-stray``        a folder that had the name of a new topic's log; it is kept
========================================  ==========================================================================
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

from consumerd.embedded.log.checkpoints import read_checkpoint, write_checkpoint
from consumerd.embedded.log.errors import LogError, LogFailed, LogLocked
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition

LOCK_NAME: Final = ".lock"
CLEAN_NAME: Final = ".kafka_cleanshutdown"
RECOVERY_NAME: Final = "recovery-point-offset-checkpoint"
CLEANER_NAME: Final = "cleaner-offset-checkpoint"
DELETE_ENDING: Final = "-delete"
STRAY_ENDING: Final = "-stray"

_FOLDER = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_LONGEST_NAME: Final = 255
"""Longest file name in bytes; a partition's folder may already have that length."""


class ClosableLog(Protocol):
    """A log of a partition, of any generation."""

    def close(self) -> None:
        """Close the log's files. Raises LogError."""


def _path_aside(folder: Path, ending: str) -> Path:
    """Return a unique path to rename a partition's folder to, ending in ``ending``."""
    tail = f".{uuid.uuid4().hex}{ending}"
    return folder.with_name(folder.name[: _LONGEST_NAME - len(tail)] + tail)


def find_partition(name: str) -> tuple[str, int] | None:
    """Return topic and partition number from the name of a log's folder.

    None for another folder.
    """
    match = _FOLDER.fullmatch(name)
    return (match[1], int(match[2])) if match else None


@contextlib.contextmanager
def opening_directory(path: Path) -> Iterator[None]:
    """Translate an OSError of the block, which opens a directory of logs.

    Raises LogLocked if another process has locked it, else LogFailed.
    """
    try:
        yield
    except BlockingIOError as error:
        raise LogLocked(f"{path}: another broker works on this directory") from error
    except OSError as error:
        raise LogFailed(f"{path}: the directory of the logs cannot be used: {error}") from error


def close_logs(logs: Iterable[ClosableLog]) -> list[LogError]:
    """Close all logs; return the errors of those that could not be closed cleanly."""
    errors: list[LogError] = []
    for log in logs:
        try:
            log.close()
        except LogError as error:
            errors.append(error)
    return errors


def lock_directory(path: Path, files: OsLogFiles) -> int:
    """Lock a directory of logs, creating it if necessary.

    Returns the descriptor that holds the lock. Raises BlockingIOError if another process has locked it, OSError.
    """
    missing = [folder for folder in (path, *path.parents) if not files.is_folder(folder)]
    files.make_folder(path)
    for folder in missing:
        files.sync_folder(folder.parent)
    descriptor = files.open(path / LOCK_NAME, create=True)
    try:
        files.lock(descriptor)
    except BaseException:
        files.close(descriptor)
        raise
    return descriptor


class LogDirectory:
    """The logs of all partitions in one directory, locked for this process.

    :meth:`open` takes the lock, :meth:`close` releases it. All methods block, and can be called from any thread; one
    runs at a time.
    """

    def __init__(self, path: Path, *, files: OsLogFiles, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._files = files
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._lock_file: int | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._were_clean: set[TopicPartition] = set()
        self._recovery_points: dict[TopicPartition, int] = {}
        self._cleaned_to: dict[TopicPartition, int] = {}
        self._checkpoints_stale = False
        """True if the checkpoint files may name a deleted log, and must not be applied to its successor."""

    @classmethod
    def open(cls, path: Path, *, files: OsLogFiles, now_ms: Callable[[], int]) -> LogDirectory:
        """Lock a directory, creating it if necessary, and read its checkpoints.

        No log is opened yet. Raises LogLocked, LogFailed.
        """
        directory = cls(path, files=files, now_ms=now_ms)
        with opening_directory(path):
            directory._take()
        return directory

    def _take(self) -> None:
        files = self._files
        descriptor = lock_directory(self.path, files)
        try:
            for name in files.names(self.path):
                if name.endswith(DELETE_ENDING):
                    self._remove_folder(self.path / name)
            self._recovery_points = read_checkpoint(self.path / RECOVERY_NAME, files)
            self._cleaned_to = read_checkpoint(self.path / CLEANER_NAME, files)
            for partition in {*self._recovery_points, *self._cleaned_to}.difference(self.find_partitions()):
                self._forget(partition)
            if CLEAN_NAME in files.names(self.path):
                self._were_clean = set(self.find_partitions())
                files.unlink(self.path / CLEAN_NAME)
                files.sync_folder(self.path)
        except BaseException:
            files.close(descriptor)
            raise
        self._lock_file = descriptor

    def find_partitions(self) -> list[TopicPartition]:
        """Return the partitions that have a folder in this directory, sorted. Raises OSError."""
        found = [
            TopicPartition.modern(*partition)
            for name in self._files.names(self.path)
            if (partition := find_partition(name)) and self._files.is_folder(self.path / name)
        ]
        return sorted(found)

    @property
    def logs(self) -> tuple[PartitionLog, ...]:
        """The open logs of this directory."""
        return tuple(self._logs.values())

    def open_log(self, partition: TopicPartition, settings: LogSettings) -> PartitionLog:
        """Open a partition's log, creating it if necessary. An open one is closed first.

        Records that may not be durable are checked: none after a clean shutdown, otherwise those above the log's
        recovery point (the offset below which all records are known to be durable). Raises LogFailed.

        Args:
            partition: The partition.
            settings: The log's settings.
        """
        with self._lock:
            if self._checkpoints_stale:
                self.write_checkpoints()
            if (before := self._logs.pop(partition, None)) is not None:
                self._recovery_points[partition] = before.recovery_point
                with contextlib.suppress(LogFailed):  # opening it below checks the files
                    before.close()
            clean = partition in self._were_clean
            self._were_clean.discard(partition)
            log = PartitionLog.open(
                self.path,
                partition,
                settings=settings,
                files=self._files,
                now_ms=self._now_ms,
                clean=clean,
                recovery_point=self._recovery_points.get(partition, 0),
                cleaned_to=self._cleaned_to.get(partition, 0),
            )
            self._logs[partition] = log
            return log

    def delete_log(self, partition: TopicPartition) -> None:
        """Close and delete a partition's log; a missing one is ignored.

        A reader that has one of the log's files open can finish. Raises LogFailed.
        """
        with self._lock:
            log = self._logs.pop(partition, None)
            try:
                if log is not None:
                    log.discard()
                going = self._rename_aside(partition, DELETE_ENDING)
                if going is not None:
                    self._remove_folder(going)
            except OSError as error:
                raise LogFailed(f"{partition}: the log could not be deleted: {error}") from error

    def set_aside(self, partition: TopicPartition) -> Path | None:
        """Rename the folder that an earlier topic left under a new partition's name.

        The folder is kept under the new name. Returns its new path, or None if there was no folder. Raises OSError.
        """
        with self._lock:
            return self._rename_aside(partition, STRAY_ENDING)

    def _rename_aside(self, partition: TopicPartition, ending: str) -> Path | None:
        self._forget(partition)
        folder = self.path / f"{partition.topic}-{partition.partition}"
        if not self._files.is_folder(folder):
            return None
        aside = _path_aside(folder, ending)
        self._files.rename(folder, aside)
        self._files.sync_folder(self.path)
        return aside

    def _forget(self, partition: TopicPartition) -> None:
        """Forget the checkpoints of a partition.

        They must not be applied to a later log of the same name.
        """
        self._logs.pop(partition, None)
        self._were_clean.discard(partition)
        for offsets in (self._recovery_points, self._cleaned_to):
            if offsets.pop(partition, None) is not None:
                self._checkpoints_stale = True

    def _remove_folder(self, folder: Path) -> None:
        for name in self._files.names(folder):
            self._files.unlink(folder / name)
        self._files.remove_folder(folder)

    def write_checkpoints(self) -> None:
        """Record the durable and the compacted offset of each log. Raises LogFailed."""
        with self._lock:
            for log in self._logs.values():
                self._recovery_points[log.partition] = log.recovery_point
                self._cleaned_to[log.partition] = log.cleaned_to
            try:
                write_checkpoint(self.path / RECOVERY_NAME, self._recovery_points, self._files)
                cleaned = {partition: offset for partition, offset in self._cleaned_to.items() if offset}
                write_checkpoint(self.path / CLEANER_NAME, cleaned, self._files)
            except OSError as error:
                raise LogFailed(f"{self.path}: the checkpoints could not be written: {error}") from error
            self._checkpoints_stale = False

    def close(self) -> None:
        """Close the logs and unlock the directory. Idempotent.

        If all logs are closed cleanly, a clean shutdown is recorded. Raises ExceptionGroup of LogError after closing as
        much as possible.
        """
        with self._lock:
            if self._lock_file is not None:
                self._close(self._lock_file)

    def _close(self, lock_file: int) -> None:
        errors = close_logs(self._logs.values())
        try:
            self.write_checkpoints()
            # logs not opened since a clean shutdown are still clean; after an unclean one, unopened logs are unchecked
            if not errors and all(self._is_clean(partition) for partition in self.find_partitions()):
                self._files.close(self._files.open(self.path / CLEAN_NAME, create=True))
                self._files.sync_folder(self.path)
        except LogError as error:
            errors.append(error)
        except OSError as error:
            errors.append(LogFailed(f"{self.path}: the clean end could not be noted: {error}"))
        finally:
            self._files.close(lock_file)
            self._lock_file = None
        if errors:
            raise ExceptionGroup("the logs were not closed cleanly", errors)

    def _is_clean(self, partition: TopicPartition) -> bool:
        return partition in self._logs or partition in self._were_clean
