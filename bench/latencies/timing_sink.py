"""A sink that writes down when it was given each record; :func:`install` makes it known to a daemon."""

from __future__ import annotations

from pathlib import Path

from bench.latencies.stamps import Arrivals
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch


class TimingOptions(SinkOptions):
    """``path``: the file to write to."""

    path: Path


class TimingWriter:
    """Acknowledges what it has seen."""

    resume_position = None
    request_id = None

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._acknowledged = 0

    async def start(self, start: Start) -> None:
        """See PartitionWriter."""
        self._acknowledged = start.position

    async def write(self, batch: RecordBatch) -> int:
        """See PartitionWriter."""
        self._arrivals.add([record.value for record in batch.records() if record.value is not None])
        self._acknowledged = batch.next_offset
        return self._acknowledged

    async def flush(self) -> int:
        """See PartitionWriter."""
        return self._acknowledged

    def deadline(self) -> float | None:
        """See PartitionWriter."""
        return None

    async def abandon(self) -> None:
        """See PartitionWriter."""


class TimingSink:
    """Tells when records come, and delivers nothing."""

    Options = TimingOptions

    def __init__(self, context: SinkContext, options: TimingOptions) -> None:  # noqa: ARG002 - as every sink
        self._arrivals = Arrivals(options.path)

    async def open(self, claim: Claim) -> TimingWriter:  # noqa: ARG002 - as every sink
        """See Sink."""
        return TimingWriter(self._arrivals)

    async def close(self) -> None:
        """See Sink."""


def install(folder: Path) -> Path:
    """Make a distribution in ``folder`` that brings the sink ``timing``, and return what to put on the path."""
    metadata = folder / "timing_sink-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: timing-sink\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[consumerd.sinks]\ntiming = bench.latencies.timing_sink:TimingSink\n")
    return folder
