# SPDX-License-Identifier: Apache-2.0
"""Sink that notes the arrival time of each record.

:func:`install` registers it for a daemon.
"""

from __future__ import annotations

from pathlib import Path

from bench.latencies.stamps import Arrivals
from consumerd.model import Claim
from consumerd.sinks.base import DirectWriter, SinkContext
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch


class TimingOptions(SinkOptions):
    """Options of the sink; ``path`` is the file to write to."""

    path: Path


class TimingSink:
    """Notes the arrival time of each record and delivers nothing."""

    Options = TimingOptions

    def __init__(self, context: SinkContext, options: TimingOptions) -> None:  # noqa: ARG002 - as every sink
        self._arrivals = Arrivals(options.path)

    async def open(self, claim: Claim) -> DirectWriter:  # noqa: ARG002 - as every sink
        """See Sink."""
        return DirectWriter(self._note)

    async def _note(self, batch: RecordBatch) -> None:
        self._arrivals.add([record.value for record in batch.records() if record.value is not None])

    async def close(self) -> None:
        """See Sink."""


def install(folder: Path) -> Path:
    """Create a distribution in ``folder`` that registers the sink ``timing``.

    Returns the folder to add to the Python path.
    """
    metadata = folder / "timing_sink-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: timing-sink\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[consumerd.sinks]\ntiming = bench.latencies.timing_sink:TimingSink\n")
    return folder
