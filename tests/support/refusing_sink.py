# SPDX-License-Identifier: Apache-2.0
"""A sink of somebody else's, which lands JSON lines and refuses one record; ``stalling_sinks.install`` brings it along."""

from __future__ import annotations

from typing import Final

from consumerd.errors import PermanentSinkError
from consumerd.model import Claim
from consumerd.sinks.base import PartitionWriter, SinkContext
from consumerd.sinks.jsonl import JsonlOptions, JsonlSink
from consumerd.wire.records import RecordBatch
from tests.support.passing_writer import PassingWriter

REFUSED_PARTITION: Final = 0
REFUSED_OFFSET: Final = 150
REASON: Final = "a record of the wrong kind"


class RefusingSink:
    """Lands everything but one record."""

    Options = JsonlOptions

    def __init__(self, context: SinkContext, options: JsonlOptions) -> None:
        self._files = JsonlSink(context, options)

    async def open(self, claim: Claim) -> PartitionWriter:
        """See Sink."""
        writer = await self._files.open(claim)
        return RefusingWriter(writer) if claim.partition.partition.number == REFUSED_PARTITION else writer

    async def close(self) -> None:
        """See Sink."""
        await self._files.close()


class RefusingWriter(PassingWriter):
    """Names the record where it meets it, and passes on everything else."""

    async def write(self, batch: RecordBatch) -> int:
        """See PartitionWriter; refuses a batch that has the record."""
        if REFUSED_OFFSET in batch.offsets:
            raise PermanentSinkError(REASON, refused=batch.offsets.index(REFUSED_OFFSET))
        return await super().write(batch)
