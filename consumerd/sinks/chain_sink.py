# SPDX-License-Identifier: Apache-2.0
"""Base class of the sinks ``jsonl`` and ``parquet``, which land files."""

from __future__ import annotations

from consumerd.aio.threads import WorkThreads
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain_store import ChainStore
from consumerd.sinks.chain_writer import ChainWriter
from consumerd.sinks.files import FileFormat
from consumerd.sinks.options import ChainOptions


class ChainSink:
    """Sink that lands each partition in a chain of files below one path.

    Each file of a chain begins at the offset where the one before ends. Subclasses give the file format.
    """

    def __init__(
        self,
        context: SinkContext,
        options: ChainOptions,
        file_format: FileFormat,
        *,
        files: FileSystem | None = None,
        threads: WorkThreads | None = None,
    ) -> None:
        self._store = ChainStore(
            context,
            path=options.path.absolute(),
            shared=options.shared,
            file_format=file_format,
            roll_bytes=options.roll_bytes,
            roll_s=options.roll_ms / 1000,
            files=files or OsFileSystem(),
            threads=threads,
        )

    async def check(self) -> None:
        """Check the sink's path: its cluster, its group, and its volume.

        Initializes a new path. Raises ConfigError for a path of another cluster or group, or within another sink's
        path; RetriableSinkError if the volume is missing, or the path or ZooKeeper cannot be read.
        """
        await self._store.root.check(self._store.next_file_id)

    async def open(self, claim: Claim) -> ChainWriter:
        """Check the path, find the partition's newest files, and return the partition's writer.

        Raises SinkError, ConfigError, and IncarnationChanged if the topic was re-created.
        """
        await self._store.root.check(self._store.next_file_id)
        writer = ChainWriter(self._store, claim)
        await writer.recover()
        return writer

    async def close(self) -> None:
        """Release threads and memory. Idempotent.

        Writers must be flushed or abandoned before.
        """
        await self._store.close()
