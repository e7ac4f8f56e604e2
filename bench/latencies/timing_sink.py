# SPDX-License-Identifier: Apache-2.0
"""A sink that writes down when it was given each record; :func:`install` makes it known to a daemon."""

from __future__ import annotations

from pathlib import Path

from bench.latencies.stamps import Arrivals
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext
from consumerd.sinks.null import NullWriter
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch


class TimingOptions(SinkOptions):
    """``path``: the file to write to."""

    path: Path


class TimingSink:
    """Tells when records come, and delivers nothing."""

    Options = TimingOptions

    def __init__(self, context: SinkContext, options: TimingOptions) -> None:  # noqa: ARG002 - as every sink
        self._arrivals = Arrivals(options.path)

    async def open(self, claim: Claim) -> NullWriter:  # noqa: ARG002 - as every sink
        """See Sink."""
        return NullWriter(self._note)

    async def _note(self, batch: RecordBatch) -> None:
        self._arrivals.add([record.value for record in batch.records() if record.value is not None])

    async def close(self) -> None:
        """See Sink."""


def install(folder: Path) -> Path:
    """Make a distribution in ``folder`` that brings the sink ``timing``, and return what to put on the path."""
    metadata = folder / "timing_sink-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: timing-sink\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[consumerd.sinks]\ntiming = bench.latencies.timing_sink:TimingSink\n")
    return folder
