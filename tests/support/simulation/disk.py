# SPDX-License-Identifier: Apache-2.0
"""One file system for all members, the threads that work on it, and a kind of file that costs little.

The chain writer, its store and its publishing are the real ones. The files are lines of ``offset timestamp`` with their
metadata at the end, as Parquet has it; for JSON lines and their metadata beside them the real format is taken.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from consumerd.aio.threads import WorkThreads
from consumerd.landing.chain import FileId, FileMetadata, data_name
from consumerd.landing.filesystem import FileSystem, ReadableFiles
from consumerd.landing.publish import HiddenFile
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch
from tests.support.faulty_files import MemoryFileSystem
from tests.support.simulation.processes import Process

T = TypeVar("T")

ROOT = Path("/landing")


class Killed(BaseException):
    """The process is dead; not even its clean-up happens."""


class SharedDisk(MemoryFileSystem):
    """What all members write to. ``heard`` hears of each file that gets its final name, and by whom."""

    def __init__(self, chance: random.Random, linked: Callable[[Path, Process], None]) -> None:
        super().__init__(chance)
        self.working: Process | None = None
        self.deadly: dict[Process, int] = {}
        """How many changes more a process makes before it dies in the middle of the next."""
        self.heard = linked

    def link(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        super().link(source, target)
        assert self.working is not None
        self.heard(target, self.working)

    def _change(self) -> None:
        super()._change()
        process = self.working
        if process in self.deadly:
            self.deadly[process] -= 1
            if self.deadly[process] < 0:
                del self.deadly[process]
                raise Killed


class Threads(WorkThreads):
    """Threads of one process on virtual time: each piece of work takes a while, then happens at once."""

    def __init__(
        self, process: Process, disk: SharedDisk, chance: random.Random, slowest_s: float, died: Callable[[], None]
    ) -> None:
        super().__init__(name=process.name, count=1)
        self._process = process
        self._disk = disk
        self._chance = chance
        self._slowest_s = slowest_s
        self._died = died

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._process.create_future()
        self._process.call_later(self._chance.uniform(0, self._slowest_s), self._do, work, future)
        return future

    def _do(self, work: Callable[[], T], future: asyncio.Future[T]) -> None:
        self._disk.working = self._process
        try:
            result = work()
        except Killed:
            self._died()
        except Exception as error:  # noqa: BLE001 - goes to whoever waits for it
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            self._disk.working = None

    async def close(self, *, timeout_s: float) -> None:
        """See WorkThreads."""


class ListEncoder:
    """See FileEncoder."""

    held_bytes = kept_bytes = unwritten_bytes = 0

    def __init__(self, hidden: HiddenFile) -> None:
        self._hidden = hidden

    def append(self, batch: RecordBatch) -> None:
        """See FileEncoder."""
        lines = [f"{offset} {mark}\n" for offset, mark in zip(batch.offsets, batch.timestamps, strict=True)]
        self._hidden.write("".join(lines).encode())

    def spill(self) -> None:
        """See FileEncoder."""

    def finish(self, metadata: FileMetadata) -> None:
        """See FileEncoder."""
        self._hidden.write(metadata.encode())
        self._hidden.sync()

    def drop(self) -> None:
        """See FileEncoder."""


class ListFormat:
    """See FileFormat."""

    extension = "list"
    subfolders: tuple[str, ...] = ()
    working_copies = 1
    thread_bytes = 0

    def open(
        self,
        files: FileSystem,
        *,
        partition: TopicPartition,
        folder: Path,
        position: int,
        file_id: FileId,
    ) -> tuple[HiddenFile, ListEncoder]:
        """See FileFormat."""
        hidden = HiddenFile(files, folder=folder, name=data_name(position, self.extension), file_id=file_id)
        return hidden, ListEncoder(hidden)

    def read_metadata(
        self,
        files: ReadableFiles,
        folder: Path,
        position: int,
        beside: Iterable[str],
    ) -> FileMetadata:
        """See FileFormat."""
        data = files.read(folder / data_name(position, self.extension))
        if not data:
            raise MalformedRecord("the file is empty")
        return FileMetadata.parse(data[data.rfind(b"\n") + 1 :])


def parse_place(path: Path) -> tuple[str, str, str, int] | None:
    """Read root, topic, partition and chain off a data file's path; None for a path that is no data file's."""
    parts = PurePosixPath(path).parts
    if len(parts) != 6 or parts[5].startswith((".", "_")):
        return None
    return parts[1], parts[2].partition("=")[2], parts[3].partition("=")[2], int(parts[4].partition("=")[2])
