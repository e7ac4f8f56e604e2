# SPDX-License-Identifier: Apache-2.0
"""What all chain writers of one sink share: the path and whose it is, the format, limits, threads and memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from consumerd.aio.threads import WorkThreads
from consumerd.landing.chain import ChainRecord, FileId, FileMetadata, FileSummary, LandedEnd, data_name
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.publish import Chain, HiddenFile, Outcome, find_chain, prepare_chain
from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain_root import ChainRoot
from consumerd.sinks.files import FileFormat, OpenFile
from consumerd.wire.records import RecordBatch

_THREADS: Final = 4
_CLOSE_S: Final = 5.0
_KEPT_PART: Final = 2
"""One part in so many of what writers may hold is for what they cannot write out before their files end."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a writer keeps in memory: ``total`` bytes, of which ``kept`` until its file ends, whatever it writes out."""

    total: int
    kept: int


class BufferingWriter(Protocol):
    """A writer that keeps bytes in memory."""

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of something, which may take as long as its claim is paused."""

    async def spill(self) -> bool:
        """Write what is held to the file; return False if that failed. Raises nothing."""


_NOTHING: Final = Held(0, 0)


class ChainStore:
    """One sink's path. Attributes are read by its writers; they change nothing but through the methods."""

    def __init__(
        self,
        context: SinkContext,
        *,
        path: Path,
        shared: bool,
        file_format: FileFormat,
        roll_bytes: int,
        roll_s: float,
        files: FileSystem,
        threads: WorkThreads | None = None,
    ) -> None:
        self.path = path
        self.format = file_format
        self.files = files
        self.roll_bytes = roll_bytes
        self.roll_s = roll_s
        self.now = context.now
        self.writer_id = context.writer_id
        self.cluster_id = context.cluster_id
        self.threads = threads or WorkThreads(name=f"sink-{context.sink_name}", count=_THREADS)
        self._root = ChainRoot(context, path=path, shared=shared, files=files, threads=self.threads)
        self._context = context
        self._attempts = itertools.count(1)
        self._held: dict[BufferingWriter, Held] = {}
        self._held_total = 0
        self._filling: set[BufferingWriter] = set()
        self._threads_charged = 0
        self._encoding = asyncio.Semaphore(_THREADS)

    async def check_root(self) -> None:
        """See ChainRoot.check."""
        await self._root.check(self.next_file_id)

    def find_chain(self, partition: TopicPartition) -> Chain | None:
        """Find a partition's newest chain, on the volume that belongs here. Blocks; raises as ``publish.find_chain``."""
        self._root.require()
        found = find_chain(
            self.files,
            self.path,
            partition,
            extension=self.format.extension,
            read_metadata=self.format.read_metadata,
        )
        self._root.require()  # what was not found may have been unmounted meanwhile
        return found

    def prepare_chain(self, partition: TopicPartition, *, number: int, record: ChainRecord) -> tuple[Path, HiddenFile]:
        """Make a chain's folders and its record, still hidden. Blocks; raises OSError, RetriableSinkError."""
        self._root.require()
        return prepare_chain(
            self.files,
            self.path,
            partition,
            number=number,
            record=record,
            file_id=self.next_file_id(),
            subfolders=self.format.subfolders,
        )

    def finish(self, file: OpenFile, metadata: FileMetadata) -> None:
        """Complete a file, on the volume that belongs here. Blocks; raises OSError, and RetriableSinkError with nothing
        done.
        """
        self._root.require()
        file.finish(metadata)

    def publish(self, file: OpenFile | HiddenFile) -> Outcome:
        """Publish a file, on the volume that belongs here. Blocks; raises OSError, and RetriableSinkError with nothing
        done.
        """
        self._root.require()
        return file.publish()

    def next_file_id(self) -> FileId:
        """Name an attempt at a file, as no other attempt of any process is named."""
        return FileId(f"{self.writer_id}-{next(self._attempts)}")

    def open_file(self, chain: Chain, partition: TopicPartition) -> OpenFile:
        """Prepare the file at a chain's end; nothing is on the disk yet."""
        if not self._threads_charged:
            self._threads_charged = _THREADS * self.format.thread_bytes
            self._context.charge(self._threads_charged)
        file_id = self.next_file_id()
        hidden, encoder = self.format.open(
            self.files, partition=partition, folder=chain.folder, position=chain.end, file_id=file_id
        )
        return OpenFile(file_id, hidden, encoder)

    def describe(
        self, chain: Chain, partition: TopicPartition, summary: FileSummary, file: OpenFile, *, sealed: bool = False
    ) -> FileMetadata:
        """Return the metadata of a file that is complete, or of the chain's seal."""
        return summary.describe(
            partition,
            writer=file.file_id,
            group=self._context.group,
            cluster=self._context.cluster_id,
            incarnation=chain.record.incarnation,
            chain=chain.number,
            sealed=sealed,
        )

    async def find_landed_end(self, partition: TopicPartition) -> LandedEnd | None:
        """See ChainRoot."""
        return await self._root.find_landed_end(partition)

    async def note_landed_end(self, chain: Chain, partition: TopicPartition) -> None:
        """Have the group remember where a chain ends, now that it is durable."""
        record = chain.record
        end = LandedEnd(incarnation=record.incarnation, chain=chain.number, origin=record.origin, next_offset=chain.end)
        await self._root.note_landed_end(partition, end)

    def report_published(self, chain: Chain, summary: FileSummary, file: OpenFile) -> None:
        """Tell whoever measures; ``chain`` as it was before."""
        path = chain.folder / data_name(summary.position, self.format.extension)
        name = str(path.relative_to(self.path))
        self._context.hooks.file_published(self._context.sink_name, name=name, records=summary.count, size=file.size)

    def note_filling(self, writer: BufferingWriter, *, filling: bool) -> None:
        """Note whether a writer has a file that is being filled, and tell whoever measures."""
        before = len(self._filling)
        if filling:
            self._filling.add(writer)
        else:
            self._filling.discard(writer)
        if len(self._filling) != before:
            self._context.hooks.open_files_changed(self._context.sink_name, len(self._filling))

    # -- memory

    @asynccontextmanager
    async def room_to_encode(self, batch: RecordBatch) -> AsyncIterator[None]:
        """Let as many batches be encoded at a time as there are threads, and charge what that takes.

        To be entered by no writer that is in the middle of something. Unbounded: it is the disk's pace. Cancel freely.
        """
        async with self._encoding:
            size = batch.size_bytes * self.format.working_copies
            self._context.charge(size)
            try:
                yield
                await self._relieve()
            finally:
                self._context.charge(-size)

    def charge(self, writer: BufferingWriter, held: Held) -> None:
        """Note what a writer keeps in memory now, and charge the process's account with the difference."""
        before = self._held.pop(writer, _NOTHING)
        if held.total:
            self._held[writer] = held
        difference = held.total - before.total
        if difference:
            self._held_total += difference
            self._context.charge(difference)

    def is_overgrown(self, kept_bytes: int) -> bool:
        """Tell whether a file keeps more than its share of what all of them may: only its end frees that."""
        return kept_bytes > self._context.buffer_bytes // (_KEPT_PART * max(1, len(self._held)))

    def report_overgrown(self) -> None:
        """Tell whoever measures that a file ended early for what it kept."""
        self._context.hooks.sink_relieved(self._context.sink_name, "file")

    async def _relieve(self) -> None:
        """While the writers together hold more than they may, let the one that can write out most do so.

        One that is busy is left alone: it may be publishing, which frees all that it holds.
        """
        while self._held_total > self._context.buffer_bytes:
            idle = [writer for writer in self._held if not writer.busy]
            largest = max(idle, key=self._spillable, default=None)
            if largest is None or not self._spillable(largest):
                return
            if not await largest.spill():
                return  # it tells its own pipeline
            self._context.hooks.sink_relieved(self._context.sink_name, "row_group")

    def _spillable(self, writer: BufferingWriter) -> int:
        held = self._held.get(writer, _NOTHING)
        return held.total - held.kept

    async def close(self) -> None:
        """End the threads. Idempotent, bounded."""
        await self.threads.close(timeout_s=_CLOSE_S)
        self._context.charge(-self._threads_charged)
        self._threads_charged = 0
