# SPDX-License-Identifier: Apache-2.0
"""The ``null`` sink that notes when batches come, for a daemon of its own process: one line a batch in the file ``notes``.

A line is the time (monotonic seconds), the topic and the partition. :func:`install` brings the sink along under the name
``noting``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import IO, Final

from pydantic import Field

from consumerd.model import Claim
from consumerd.sinks.base import PartitionWriter, SinkContext
from consumerd.sinks.null import NullSink
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch
from tests.support.passing_writer import PassingWriter

_BUFFER_BYTES: Final = 1 << 16


class NotingOptions(SinkOptions):
    """Settings of the sink."""

    notes: Path = Field(description="Where the lines go.")


class NotingSink:
    """Reads everything, delivers nothing, and notes when."""

    Options = NotingOptions

    def __init__(self, context: SinkContext, options: NotingOptions) -> None:
        self._null = NullSink(context, SinkOptions())
        self._notes = options.notes.open("w", buffering=_BUFFER_BYTES)

    async def open(self, claim: Claim) -> PartitionWriter:
        """See Sink."""
        return _NotingWriter(await self._null.open(claim), claim, self._notes)

    async def close(self) -> None:
        """See Sink."""
        self._notes.close()
        await self._null.close()


class _NotingWriter(PassingWriter):
    def __init__(self, writer: PartitionWriter, claim: Claim, notes: IO[str]) -> None:
        super().__init__(writer)
        self._place = f"{claim.partition.topic} {claim.partition.partition}"
        self._notes = notes

    async def write(self, batch: RecordBatch) -> int:
        self._notes.write(f"{time.monotonic():.4f} {self._place}\n")
        return await super().write(batch)


def read_notes(path: Path) -> dict[tuple[str, int], list[float]]:
    """Return when batches of each partition came, in order; of a member that has ended."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        at, topic, partition = line.split()
        found[topic, int(partition)].append(float(at))
    return found


def install(folder: Path) -> Path:
    """Make the distribution in ``folder`` and return it."""
    metadata = folder / "noting_sink-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: noting-sink\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[consumerd.sinks]\nnoting = {__name__}:NotingSink\n")
    return folder
