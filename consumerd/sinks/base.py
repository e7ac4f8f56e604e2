# SPDX-License-Identifier: Apache-2.0
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
from typing import Protocol, runtime_checkable

from consumerd.model import Claim, Gap, Incarnation, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import Record, RecordBatch


class RootRegistry(Protocol):
    """What the group remembers of its file sinks' paths.

    Their roots (a random id, ``_consumerd.json``) tell a volume that is not mounted from a path that is new: a path without
    the recorded root is refused. Their chains' ends tell a file that was removed from one that never was.
    """

    async def find_landed_end(self, root: str, partition: TopicPartition) -> bytes | None:
        """Return what was noted last of a partition below the path that has this root. Raises CoordinationError."""

    async def note_landed_end(self, root: str, partition: TopicPartition, noted: bytes) -> None:
        """Note a durable end of a chain (``landing.chain.LandedEnd``). Raises CoordinationError."""

    async def find(self, sink: str, *, consumer_id: str | None) -> str | None:
        """Return the recorded root id, or None. ``consumer_id`` is given for a path that replicas do not share.

        Raises CoordinationError.
        """

    async def record(self, sink: str, root: str, *, consumer_id: str | None) -> str:
        """Record a root unless one is recorded already, and return the one that is. Raises CoordinationError."""

    def describe(self, sink: str, *, consumer_id: str | None) -> str:
        """Return where the root is recorded, for whoever is to delete it by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a writer is to begin, and how that came about.

    ``reason`` (``committed``, ``earliest``, ``latest``, ``new incarnation``, ...) is recorded by sinks that keep chains.
    ``position`` above the chain's end, without ``new_chain``: the offsets in between are recorded as a gap, whose reason
    is ``reason`` if that is a ``GapReason``, else ``consumed elsewhere``. ``new_chain``: begin a new chain at
    ``position``, which may lie anywhere. ``truncation`` is how often the log has lost its end so far: what a chain of a lower
    number holds are other records at the same offsets, so that a new chain is begun behind it, too. ``request_id`` is that
    of the operator's request that asked for it; a writer whose newest chain was begun by that very request begins no other.
    ``missing_until``: of the offsets above the chain's end, those below it were in a file that was removed.
    """

    position: int
    reason: str
    new_chain: bool = False
    truncation: int = 0
    request_id: str | None = None
    missing_until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedUnit:
    """The smallest unit that could be told apart and was not delivered: a record, message, wrapper or batch.

    Offsets ``[offset, next_offset)``; ``index`` is a record's place among those of one offset, else 0. ``cause`` is
    ``corrupt``, ``oversized`` or ``rejected``, ``reason`` what was wrong. ``raw`` are its bytes as fetched, for a
    ``rejected`` record those of key, value and headers in ``record``; ``size`` is how many there would be were it
    complete, None where unknown.
    """

    partition: TopicPartition
    incarnation: Incarnation
    offset: int
    next_offset: int
    index: int
    cause: str
    reason: str
    raw: bytes
    size: int | None
    record: Record | None = None


class Quarantine(Protocol):
    """Where units that a policy passes over are kept."""

    async def put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        """Keep the unit, durably, before the position moves past it; one that is kept already is fine.

        Raises RetriableSinkError, OwnershipLost, IncarnationChanged.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink is told once, before anything is opened.

    ``cluster_id`` identifies the cluster for the check of a path's owner: ``<czxid>-<ctime>`` of ``/brokers/topics``.
    ``writer_id`` is unique to this process. ``now`` is monotonic seconds. ``charge`` adds bytes
    (negative: gives them back) to the process's memory account. ``buffer_bytes`` is what all writers of the sink
    together may hold in memory before they write out what they have; it is to be a part of the process's budget, so that
    open writers never starve the fetching. ``consumer_id`` is the configured one, None where it is generated; ``roots``
    is None where nothing is recorded (a sink that is used without a group).
    """

    sink_name: str
    group: str
    cluster_id: str
    writer_id: str
    now: Callable[[], float]
    charge: Callable[[int], None]
    buffer_bytes: int = 64 << 20
    hooks: Hooks = field(default_factory=Hooks)
    consumer_id: str | None = None
    roots: RootRegistry | None = None


class PartitionWriter(Protocol):
    """One partition's way into a sink, for one claim."""

    @property
    def resume_position(self) -> int | None:
        """The next offset by the sink's own durable record (the newest chain's end), or None if it keeps none."""

    @property
    def request_id(self) -> str | None:
        """The operator's request that began the newest chain, None if none did or the sink keeps no chains."""

    async def start(self, start: Start) -> None:
        """Fix the first position to be written; called once, before the first write, again only if it failed.

        Without ``new_chain`` the position is not below :attr:`resume_position`. Raises SinkError, OwnershipLost,
        IncarnationChanged.
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


@runtime_checkable
class RecallingWriter(Protocol):
    """A writer whose group remembers how far it has landed, beside the files themselves."""

    @property
    def truncation(self) -> int:
        """The truncation (:class:`~consumerd.model.Incarnation`) of the newest chain of the topic as it is; 0 where there is none."""

    async def find_missing(self, position: int) -> Gap | None:
        """Return what was landed below ``position``, a start above the chain's end, and is not there any more.

        Raises CoordinationError.
        """


@runtime_checkable
class CheckedSink(Protocol):
    """A sink that can tell, before it is given anything, that it must not be used as it is configured."""

    async def check(self) -> None:
        """Look at the destination. Raises ConfigError for what only another configuration heals, and RetriableSinkError
        for what may pass; :meth:`Sink.open` looks again.
        """


class Sink(Protocol):
    """One configured destination."""

    async def open(self, claim: Claim) -> PartitionWriter:
        """Prepare a partition (recover a chain, remove hidden leftovers). Raises SinkError, ConfigError."""

    async def close(self) -> None:
        """Close what the sink itself holds; writers are flushed or abandoned before. Idempotent."""
