# SPDX-License-Identifier: Apache-2.0
"""The directory of the logs of all partitions, with its lock and checkpoints.

As Kafka's LogManager keeps it: ``.lock``, held while a process uses it; ``.kafka_cleanshutdown``, present only while
none does and the last one closed every log; ``recovery-point-offset-checkpoint``, the durable offset of each log;
``cleaner-offset-checkpoint``, the compacted offset of each log; one folder per partition, renamed to
``<topic>-<partition>.<id>-delete`` before its deletion.

One owner at a time; its methods block, and must not be called concurrently.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from consumerd.embedded.log.checkpoints import read_checkpoint, write_checkpoint
from consumerd.embedded.log.errors import LogError, LogFailed, LogLocked
from consumerd.embedded.log.files import LogFileSystem
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition

LOCK_NAME: Final = ".lock"
CLEAN_NAME: Final = ".kafka_cleanshutdown"
RECOVERY_NAME: Final = "recovery-point-offset-checkpoint"
CLEANER_NAME: Final = "cleaner-offset-checkpoint"
DELETE_ENDING: Final = "-delete"

_FOLDER = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_LONGEST_NAME: Final = 255
"""Longest file name in bytes; a partition's folder may already have that length."""


def path_aside(folder: Path, ending: str) -> Path:
    """Return a unique path to rename a partition's folder to, ending in ``ending``."""
    tail = f".{uuid.uuid4().hex}{ending}"
    return folder.with_name(folder.name[: _LONGEST_NAME - len(tail)] + tail)


class LogDirectory:
    """The logs in a directory. :meth:`open` locks it, :meth:`close` unlocks it."""

    def __init__(self, path: Path, *, files: LogFileSystem, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._files = files
        self._now_ms = now_ms
        self._lock: int | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._were_clean: set[TopicPartition] = set()
        self._recovery_points: dict[TopicPartition, int] = {}
        self._cleaned_to: dict[TopicPartition, int] = {}
        self._checkpoints_stale = False
        """True if the checkpoint files may name a deleted log, and must not be applied to its successor."""

    @classmethod
    def open(cls, path: Path, *, files: LogFileSystem, now_ms: Callable[[], int]) -> LogDirectory:
        """Lock a directory, creating it if necessary, and read its checkpoints.

        No log is opened yet. Raises LogLocked, LogFailed.
        """
        directory = cls(path, files=files, now_ms=now_ms)
        try:
            directory._take()
        except BlockingIOError as error:
            raise LogLocked(f"{path}: another broker works on this directory") from error
        except OSError as error:
            raise LogFailed(f"{path}: the directory of the logs cannot be used: {error}") from error
        return directory

    def _take(self) -> None:
        files = self._files
        missing = [folder for folder in (self.path, *self.path.parents) if not files.is_folder(folder)]
        files.make_folder(self.path)
        for folder in missing:
            files.sync_folder(folder.parent)
        descriptor = files.open(self.path / LOCK_NAME, create=True)
        try:
            files.lock(descriptor)
            for name in files.names(self.path):
                if name.endswith(DELETE_ENDING):
                    self._remove_folder(self.path / name)
            self._recovery_points = read_checkpoint(self.path / RECOVERY_NAME, files)
            self._cleaned_to = read_checkpoint(self.path / CLEANER_NAME, files)
            for partition in {*self._recovery_points, *self._cleaned_to}.difference(self.find_partitions()):
                self.forget(partition)
            if CLEAN_NAME in files.names(self.path):
                self._were_clean = set(self.find_partitions())
                files.unlink(self.path / CLEAN_NAME)
                files.sync_folder(self.path)
        except BaseException:
            files.close(descriptor)
            raise
        self._lock = descriptor

    def find_partitions(self) -> list[TopicPartition]:
        """Return the partitions that have a folder here, sorted. Raises OSError."""
        found = [
            TopicPartition.modern(match[1], int(match[2]))
            for name in self._files.names(self.path)
            if (match := _FOLDER.fullmatch(name)) and self._files.is_folder(self.path / name)
        ]
        return sorted(found)

    @property
    def logs(self) -> tuple[PartitionLog, ...]:
        """The open logs."""
        return tuple(self._logs.values())

    def open_log(self, partition: TopicPartition, settings: LogSettings) -> PartitionLog:
        """Open a partition's log, creating it if necessary. An open log is closed first.

        Offsets not known to be durable are checked: none after a clean shutdown, otherwise those above the recovery
        point, and all if there is none. Raises LogFailed.
        """
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
        """Close and delete a partition's log. Raises LogFailed.

        A slice that is being read keeps its file.
        """
        log = self._logs.pop(partition, None)
        folder = self.path / f"{partition.topic}-{partition.partition}"
        going = path_aside(folder, DELETE_ENDING)
        try:
            if log is not None:
                log.discard()
            if self._files.is_folder(folder):
                self._files.rename(folder, going)
                self._files.sync_folder(self.path)
                self._remove_folder(going)
            self.forget(partition)
        except OSError as error:
            raise LogFailed(f"{partition}: the log could not be deleted: {error}") from error

    def forget(self, partition: TopicPartition) -> None:
        """Forget the checkpoints of a partition whose folder the caller removes.

        Its log must be closed. The checkpoints must not be applied to a later log with the same name.
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
        if self._lock is None:
            return
        errors: list[LogError] = []
        for log in self._logs.values():
            try:
                log.close()
            except LogError as error:
                errors.append(error)
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
            self._files.close(self._lock)
            self._lock = None
        if errors:
            raise ExceptionGroup("the logs were not closed cleanly", errors)

    def _is_clean(self, partition: TopicPartition) -> bool:
        return partition in self._logs or partition in self._were_clean
