"""What happens to the directories of partitions whose topic is no more. Blocking; over the port that logs use.

A log's directory is ``<topic>-<partition>``. One whose topic was deleted gets a name that ends in ``-delete`` before
anything else is done, so that no log can be opened on it again, and goes when that is convenient, at the next start at the
latest. One that stands where a new topic of the same name begins is set aside as ``-stray``, and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from consumerd.embedded.log.files import LogFiles
from consumerd.model import TopicPartition

DELETED: Final = "-delete"
STRAY: Final = "-stray"


class PartitionFolders:
    """The directories below one directory. ``new_name`` gives names that are never given twice. All methods raise OSError."""

    def __init__(self, directory: Path, files: LogFiles, new_name: Callable[[], str]) -> None:
        self._directory = directory
        self._files = files
        self._new_name = new_name

    def set_aside(self, partition: TopicPartition) -> Path | None:
        """Make room for a partition: rename what has its name, and return the new path; None if there is nothing."""
        return self._rename(partition, STRAY)

    def mark_deleted(self, partition: TopicPartition) -> Path | None:
        """Take a partition's directory out of the way, for :meth:`remove`; None if there is none."""
        return self._rename(partition, DELETED)

    def remove(self, path: Path) -> None:
        """Remove a directory with its files; one that is not there is fine."""
        if self._files.is_folder(path):
            for name in self._files.names(path):
                self._files.unlink(path / name)
            self._files.remove_folder(path)

    def remove_deleted(self) -> None:
        """Remove what a process that died had no time to."""
        for name in self._files.names(self._directory):
            if name.endswith(DELETED):
                self.remove(self._directory / name)

    def _rename(self, partition: TopicPartition, suffix: str) -> Path | None:
        path = self._directory / f"{partition.topic}-{partition.partition}"
        if not self._files.is_folder(path):
            return None
        target = self._directory / f"{path.name}.{self._new_name()}{suffix}"
        self._files.rename(path, target)
        self._files.sync_folder(self._directory)
        return target
