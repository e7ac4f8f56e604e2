# SPDX-License-Identifier: Apache-2.0
"""A writer that passes everything on to another one: what a test's sink changes a part of."""

from __future__ import annotations

from consumerd.sinks.base import PartitionWriter, Start
from consumerd.wire.records import RecordBatch


class PassingWriter:
    """Does what the other one does."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._writer = writer

    @property
    def resume_position(self) -> int | None:
        """See PartitionWriter."""
        return self._writer.resume_position

    @property
    def request_id(self) -> str | None:
        """See PartitionWriter."""
        return self._writer.request_id

    async def start(self, start: Start) -> None:
        """See PartitionWriter."""
        await self._writer.start(start)

    async def write(self, batch: RecordBatch) -> int:
        """See PartitionWriter."""
        return await self._writer.write(batch)

    async def flush(self) -> int:
        """See PartitionWriter."""
        return await self._writer.flush()

    def deadline(self) -> float | None:
        """See PartitionWriter."""
        return self._writer.deadline()

    async def abandon(self) -> None:
        """See PartitionWriter."""
        await self._writer.abandon()
