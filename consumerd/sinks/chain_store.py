"""What all chain writers of one sink share: the path and whose it is, the format, limits, threads and memory."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from pathlib import Path
from typing import Final, Protocol

from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain import ROOT_RECORD, FileId, FileMetadata, FileSummary, RootRecord
from consumerd.sinks.files import FileFormat, OpenFile
from consumerd.sinks.filesystem import FileSystem
from consumerd.sinks.publish import Chain, claim_root, find_root
from consumerd.sinks.threads import WorkThreads

_THREADS: Final = 4
_CLOSE_S: Final = 5.0


class BufferingWriter(Protocol):
    """A writer that keeps bytes in memory."""

    async def spill(self) -> None:
        """Write what is held to the file. Raises nothing."""


class ChainStore:
    """One sink's path. Attributes are read by its writers; they change nothing but through the methods."""

    def __init__(
        self,
        context: SinkContext,
        *,
        path: Path,
        file_format: FileFormat,
        roll_bytes: int,
        roll_s: float,
        files: FileSystem,
    ) -> None:
        self.path = path
        self.format = file_format
        self.files = files
        self.roll_bytes = roll_bytes
        self.roll_s = roll_s
        self.now = context.now
        self.writer_id = context.writer_id
        self.threads = WorkThreads(name=f"sink-{context.sink_name}", count=_THREADS)
        self._context = context
        self._attempts = itertools.count(1)
        self._root: RootRecord | None = None
        self._opening = asyncio.Lock()
        self._held: dict[BufferingWriter, int] = {}
        self._held_total = 0

    async def check_root(self) -> None:
        """Make sure that the path is this cluster's and this group's, and the one it was before.

        Raises ConfigError for somebody else's path, RetriableSinkError, OSError.
        """
        context = self._context
        async with self._opening:
            if self._root is None:
                ours = RootRecord(root=uuid.uuid4().hex, cluster=context.cluster_id, group=context.group)
                file_id = self.next_file_id()
                found = await self.threads.run(lambda: claim_root(self.files, self.path, ours, file_id))
            else:
                found = await self.threads.run(self._find_known_root)
            if (found.cluster, found.group) != (context.cluster_id, context.group):
                raise ConfigError(
                    f"{self.path} belongs to group {found.group!r} of cluster {found.cluster}, and this is group "
                    f"{context.group!r} of cluster {context.cluster_id}: give sink {context.sink_name!r} another path"
                )
            self._root = found

    def _find_known_root(self) -> RootRecord:
        found, known = find_root(self.files, self.path), self._root
        if found is None or (known is not None and found.root != known.root):
            raise RetriableSinkError(
                f"{self.path / ROOT_RECORD} is {'missing' if found is None else 'that of another volume'}, though it "
                "was there before: mount the volume that was mounted when the daemon started"
            )
        return found

    def next_file_id(self) -> FileId:
        """Name an attempt at a file, as no other attempt of any process is named."""
        return FileId(f"{self.writer_id}-{next(self._attempts)}")

    def open_file(self, chain: Chain) -> OpenFile:
        """Prepare the file at a chain's end; nothing is on the disk yet."""
        file_id = self.next_file_id()
        hidden, encoder = self.format.open(self.files, folder=chain.folder, position=chain.end, file_id=file_id)
        return OpenFile(file_id, hidden, encoder)

    def describe(self, chain: Chain, claim: Claim, summary: FileSummary, file: OpenFile) -> FileMetadata:
        """Return the metadata of a file that is complete."""
        return summary.describe(
            claim.partition,
            writer=file.file_id,
            group=self._context.group,
            cluster=self._context.cluster_id,
            incarnation=chain.record.incarnation,
            chain=chain.number,
        )

    def report_published(self, summary: FileSummary, file: OpenFile) -> None:
        """Tell whoever measures."""
        self._context.hooks.file_published(self._context.sink_name, records=summary.count, size=file.size)

    # -- memory

    def charge(self, writer: BufferingWriter, held_bytes: int) -> None:
        """Note what a writer keeps in memory now, and charge the process's account with the difference."""
        difference = held_bytes - self._held.pop(writer, 0)
        if held_bytes:
            self._held[writer] = held_bytes
        if difference:
            self._held_total += difference
            self._context.charge(difference)

    async def relieve(self) -> None:
        """While the writers together hold more than they may, let the one that holds most write it out.

        To be called by no writer that is in the middle of something: two of them would wait for each other.
        """
        while self._held_total > self._context.buffer_bytes:
            largest = max(self._held, key=self._held.__getitem__)
            held = self._held[largest]
            await largest.spill()
            if self._held.get(largest, 0) >= held:
                return  # it is being published, which will free it

    async def close(self) -> None:
        """End the threads. Idempotent, bounded."""
        await self.threads.close(timeout_s=_CLOSE_S)
