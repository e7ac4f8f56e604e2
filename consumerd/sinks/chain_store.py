# SPDX-License-Identifier: Apache-2.0
"""Path, file format, limits, threads and memory that all writers of one file sink share.

Memory: writers report how many bytes they hold, and the store adds them to the process's memory account. If all writers
together hold more than ``buffer_bytes``, the store lets the largest ones write records to their files (*spill*).

Example: ``buffer_bytes`` is 64 MiB. Ten writers hold 60 MiB when the eleventh takes a batch of 6 MiB. The writer with
the most bytes to spill, say 8 MiB, writes them as a row group, and 58 MiB are left.
"""

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
from consumerd.model import Incarnation, TopicPartition
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain_root import ChainRoot
from consumerd.sinks.files import FileFormat, OpenFile
from consumerd.wire.records import RecordBatch

_THREADS: Final = 4
"""Number of a sink's threads, and of batches that it encodes at the same time."""
_CLOSE_S: Final = 5.0
"""Longest time, in seconds, that closing waits for the threads."""
_KEPT_PART: Final = 2
"""Divisor of ``buffer_bytes``: the quotient, a half, is for bytes that stay until files end (``Held.kept``)."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that one writer of a sink holds, in bytes.

    Attributes:
        total: all of it.
        kept: the part of ``total`` that stays in memory until the file ends, such as Parquet's footer.
    """

    total: int
    kept: int


class BufferingWriter(Protocol):
    """Writer that can spill: write the records held in memory to its file."""

    @property
    def busy(self) -> bool:
        """True while a call of the writer runs or waits for a paused claim."""

    async def spill(self) -> bool:
        """Write the records held in memory to the file, to free memory.

        Returns False if that failed. Raises nothing.
        """


_NOTHING: Final = Held(0, 0)


class ChainStore:
    """Path, format, threads and memory that all writers of one file sink share.

    Writers only read the attributes.
    """

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
        self.root = ChainRoot(context, path=path, shared=shared, files=files, threads=self.threads)
        self._context = context
        self._attempts = itertools.count(1)
        self._held: dict[BufferingWriter, Held] = {}
        self._held_total = 0
        self._filling: set[BufferingWriter] = set()
        self._threads_charged = 0
        self._encoding = asyncio.Semaphore(_THREADS)

    def find_chain(self, partition: TopicPartition, topic: Incarnation | None = None) -> Chain | None:
        """Return a partition's newest chain of landed files; None without one. Blocks.

        With ``topic``, the newest one of that topic.

        Raises RetriableSinkError if the volume is not mounted, or files are damaged; ConfigError for files of another
        sink format; OSError.
        """
        self.root.require()
        found = find_chain(
            self.files,
            self.path,
            partition,
            extension=self.format.extension,
            read_metadata=self.format.read_metadata,
            topic=topic,
        )
        self.root.require()  # again, because a volume unmounted during the search looks like a missing chain
        return found

    def prepare_chain(self, partition: TopicPartition, *, number: int, record: ChainRecord) -> tuple[Path, HiddenFile]:
        """Create the folders of a new chain, and its unpublished record. Blocks.

        A chain's record is its file ``_chain.json``. Returns the chain's folder and that file under its hidden name.
        Raises OSError, RetriableSinkError.

        Args:
            number: Number among the partition's chains, from 1.
            record: Content of the file.
        """
        self.root.require()
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
        """Complete a file with its metadata, and make it durable. Blocks.

        Raises OSError; RetriableSinkError, without a change, if the checked volume is not mounted.
        """
        self.root.require()
        file.finish(metadata)

    def publish(self, file: OpenFile | HiddenFile) -> Outcome:
        """Give a durable file its final name. Blocks.

        Returns PUBLISHED; or TAKEN if another file has the name, or a later owner has removed this file. Raises
        OSError; RetriableSinkError, without a change, if the checked volume is not mounted.
        """
        self.root.require()
        return file.publish()

    def next_file_id(self) -> FileId:
        """Return an id for an attempt to write a file, unique among all processes."""
        return FileId(f"{self.writer_id}-{next(self._attempts)}")

    def open_file(self, chain: Chain, partition: TopicPartition) -> OpenFile:
        """Return the next file of a chain, named by the chain's end.

        It is created on disk with its first batch.
        """
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
        """Return the metadata of a complete file of a chain.

        Args:
            chain: The chain before this file.
            summary: Counts, offsets and gaps of the file's records.
            sealed: True for a seal: a file without records, which ends the chain.
        """
        return summary.describe(
            partition,
            writer=file.file_id,
            group=self._context.group,
            cluster=self._context.cluster_id,
            incarnation=chain.record.incarnation,
            chain=chain.number,
            sealed=sealed,
        )

    async def note_landed_end(self, chain: Chain, partition: TopicPartition) -> None:
        """Record in ZooKeeper the offset up to which a partition has landed: the chain's end.

        Failures are only logged.
        """
        record = chain.record
        end = LandedEnd(incarnation=record.incarnation, chain=chain.number, origin=record.origin, next_offset=chain.end)
        await self.root.note_landed_end(partition, end)

    def report_published(self, chain: Chain, summary: FileSummary, file: OpenFile) -> None:
        """Report a published file to the hooks, for metrics.

        Args:
            chain: The chain as it was before the file.
            summary: Counts, offsets and gaps of the file's records.
        """
        path = chain.folder / data_name(summary.position, self.format.extension)
        name = str(path.relative_to(self.path))
        self._context.hooks.file_published(self._context.sink_name, name=name, records=summary.count, size=file.size)

    def note_filling(self, writer: BufferingWriter, *, filling: bool) -> None:
        """Note that a writer has an open file now, or none.

        Args:
            filling: True if this writer has an open file now. The number of open files is reported to the hooks.
        """
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
        """Wait until a thread is free to encode ``batch``; count the memory that encoding takes.

        The memory is counted in the process's memory account until the block ends. Enter the block before the writer's
        own lock, so that a writer that waits here can still be spilled. Has no time limit, because the wait depends on
        the disk. May be cancelled.
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
        """Set the memory that a writer holds; add the difference to the process's memory account."""
        before = self._held.pop(writer, _NOTHING)
        if held.total:
            self._held[writer] = held
        difference = held.total - before.total
        if difference:
            self._held_total += difference
            self._context.charge(difference)

    def is_overgrown(self, kept_bytes: int) -> bool:
        """Return True if a file keeps more memory than its share, so it must end.

        ``kept_bytes`` is the file's ``Held.kept``: memory that stays until the file ends. Example: with
        ``buffer_bytes`` 64 MiB and 16 writers the share is 2 MiB.
        """
        return kept_bytes > self._context.buffer_bytes // (_KEPT_PART * max(1, len(self._held)))

    def report_overgrown(self) -> None:
        """Report to the hooks that a file was ended early to free memory, for metrics."""
        self._context.hooks.sink_relieved(self._context.sink_name, "file")

    async def _relieve(self) -> None:
        """While writers hold more than ``buffer_bytes``, spill the one with the most spillable bytes."""
        # busy writers are skipped: one that publishes frees all its memory anyway
        while self._held_total > self._context.buffer_bytes:
            idle = [writer for writer in self._held if not writer.busy]
            largest = max(idle, key=self._spillable, default=None)
            if largest is None or not self._spillable(largest):
                return
            if not await largest.spill():
                return  # the writer will report the failure to its own pipeline
            self._context.hooks.sink_relieved(self._context.sink_name, "row_group")

    def _spillable(self, writer: BufferingWriter) -> int:
        held = self._held.get(writer, _NOTHING)
        return held.total - held.kept

    async def close(self) -> None:
        """End the threads, waiting a limited time for their work. Idempotent."""
        await self.threads.close(timeout_s=_CLOSE_S)
        self._context.charge(-self._threads_charged)
        self._threads_charged = 0
