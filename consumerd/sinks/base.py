"""The port to where records go.

A :class:`Sink` is one configured destination; :meth:`Sink.open` gives a :class:`PartitionWriter` for each partition
claimed. Writers of different partitions are independent and may be called concurrently; calls to one writer are not.

An *acknowledged position* is the offset of the next record after everything that is safe at the destination. Only
that is ever committed (DESIGN 1), so a sink that buffers returns the old position from :meth:`PartitionWriter.write`
and the new one from :meth:`PartitionWriter.flush`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from consumerd.model import Claim
from consumerd.wire.records import RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink is told once, before anything is opened.

    ``cluster_id`` identifies the cluster for the check of a path's owner: ``<czxid>-<ctime>`` of ``/brokers/topics``.
    ``writer_id`` is unique to this process. ``now`` is monotonic seconds. ``charge`` adds bytes
    (negative: gives them back) to the process's memory account.
    """

    sink_name: str
    group: str
    cluster_id: str
    writer_id: str
    now: Callable[[], float]
    charge: Callable[[int], None]


class PartitionWriter(Protocol):
    """One partition's way into a sink, for one claim."""

    @property
    def resume_position(self) -> int | None:
        """The next offset by the sink's own durable record (the newest chain's end), or None if it keeps none."""

    async def start(self, position: int, reason: str) -> None:
        """Fix the first position to be written; called once, before the first write.

        ``reason`` says how it came about (``committed``, ``earliest``, ``latest``, ``incarnation``, ...) and is recorded
        by sinks that keep chains. Raises SinkError.
        """

    async def write(self, batch: RecordBatch) -> int:
        """Take a batch and return the acknowledged position. The batch may have no records but gaps and a later
        ``next_offset``. The batch's buffer may be kept only within bytes charged to the account.

        Raises RetriableSinkError (the same batch is written again later), PermanentSinkError, OwnershipLost,
        LeasePaused, IncarnationChanged.
        """

    async def flush(self) -> int:
        """Make everything written durable and return the acknowledged position. Raises as :meth:`write`."""

    def deadline(self) -> float | None:
        """When (monotonic seconds) the pipeline must call :meth:`flush` next; None: not needed now."""

    async def abandon(self) -> None:
        """Drop what is not acknowledged and remove its traces. Never raises SinkError; safe after any failure."""


class Sink(Protocol):
    """One configured destination."""

    async def open(self, claim: Claim) -> PartitionWriter:
        """Prepare a partition (recover a chain, remove hidden leftovers). Raises SinkError, ConfigError."""

    async def close(self) -> None:
        """Close what the sink itself holds; writers are flushed or abandoned before. Idempotent."""
