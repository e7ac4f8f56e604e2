"""The port to where records go.

A :class:`Sink` is one configured destination; :meth:`Sink.open` gives a :class:`PartitionWriter` for each partition
claimed. Writers of different partitions are independent and may be called concurrently; calls to one writer are not.

An *acknowledged position* is the offset of the next record after everything that is safe at the destination. Only
that is ever committed, so a sink that buffers returns the old position from :meth:`PartitionWriter.write` and the new
one from :meth:`PartitionWriter.flush`.

Failures, and what the pipeline does about them:

* ``RetriableSinkError`` without a ``resume_position``: nothing is lost; after a pause make the same call again. To give
  the same batch twice is safe at any time: a writer passes over what it has taken.
* ``RetriableSinkError`` with a ``resume_position``: a file failed in the middle (a full disk, a failed fsync, after which
  the page cache can no longer be trusted), or somebody else has published under the name, and everything that was not
  acknowledged is dropped. After a pause seek the feed to ``resume_position`` and write from there: the next batch must
  not start above it. It may lie below or above the batch that failed, and never below the acknowledged position.
* ``PermanentSinkError``, ``CorruptMessageError``: nothing of the batch was taken and the policy decides; a batch that
  passes over the refused records, with a gap, may be written in its place.
* ``OwnershipLost``, ``IncarnationChanged``, cancellation: the only call that may follow is
  :meth:`PartitionWriter.abandon`.
* ``SinkClosed``: there is nobody to write for any more; the daemon ends in order.

A lease that pauses is waited for inside the call (``Claim.wait_usable``, which ends by OwnershipLost at the latest), so
that a file which is ready to be published survives a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from consumerd.model import Claim
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink is told once, before anything is opened.

    ``cluster_id`` identifies the cluster for the check of a path's owner: ``<czxid>-<ctime>`` of ``/brokers/topics``.
    ``writer_id`` is unique to this process. ``now`` is monotonic seconds. ``charge`` adds bytes
    (negative: gives them back) to the process's memory account. ``buffer_bytes`` is what all writers of the sink
    together may hold in memory before they write out what they have; it is to be a part of the process's budget, so that
    open writers never starve the fetching.
    """

    sink_name: str
    group: str
    cluster_id: str
    writer_id: str
    now: Callable[[], float]
    charge: Callable[[int], None]
    buffer_bytes: int = 64 << 20
    hooks: Hooks = field(default_factory=Hooks)


class PartitionWriter(Protocol):
    """One partition's way into a sink, for one claim."""

    @property
    def resume_position(self) -> int | None:
        """The next offset by the sink's own durable record (the newest chain's end), or None if it keeps none."""

    async def start(self, position: int, reason: str) -> None:
        """Fix the first position to be written; called once, before the first write, again only if it failed.

        ``reason`` says how it came about (``committed``, ``earliest``, ``latest``, ``incarnation``, ...) and is recorded
        by sinks that keep chains. ``position`` is not below :attr:`resume_position`; above it, the offsets in between
        are recorded as a gap: ``reason`` names it if it is a ``GapReason``, else it is ``consumed elsewhere``.
        Raises SinkError, OwnershipLost, IncarnationChanged.
        """

    async def write(self, batch: RecordBatch) -> int:
        """Take a batch and return the acknowledged position. The batch may have no records but gaps and a later
        ``next_offset``. The batch's buffer may be kept only within bytes charged to the account.

        Raises RetriableSinkError, PermanentSinkError, SinkClosed, OwnershipLost, IncarnationChanged (see above for what
        follows each), and CorruptMessageError for records whose headers cannot be read (nothing of the batch is taken).
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
