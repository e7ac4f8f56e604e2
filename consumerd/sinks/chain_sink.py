# SPDX-License-Identifier: Apache-2.0
"""The sink behind ``jsonl`` and ``parquet``: what their settings share, and how a partition is opened."""

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
    """Lands each partition in a chain of files below one path."""

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
        """See CheckedSink: whose path is it?"""
        await self._store.check_root()

    async def open(self, claim: Claim) -> ChainWriter:
        """See Sink: check whose path it is, then find the partition's chain. Raises IncarnationChanged, too."""
        await self._store.check_root()
        writer = ChainWriter(self._store, claim)
        await writer.recover()
        return writer

    async def close(self) -> None:
        """See Sink."""
        await self._store.close()
