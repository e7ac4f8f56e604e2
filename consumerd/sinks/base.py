# SPDX-License-Identifier: Apache-2.0
"""The interface of sinks: destinations of records.

A :class:`Sink` is one configured destination. :meth:`Sink.open` returns a :class:`PartitionWriter` for each claimed
partition. Writers of different partitions may be called concurrently; calls to one writer may not.

Sinks that write files keep *chains*: files of one partition, each of which begins at the offset where the one before
ends. A chain's end is the offset where its last file ends (``landing.chain``).

An *acknowledged position* is the offset after the last record that is safe at the destination. Only that is ever
committed. Example: a writer buffers offsets 100 to 149. ``write`` returns 100, and a later ``flush``, which makes the
records durable, returns 150.

Failures, and the pipeline's reactions:

* ``RetriableSinkError`` without a ``resume_position``: nothing is lost. After a backoff, make the same call again.
  Writing a batch twice is always safe, because a writer skips records that it has already.
* ``RetriableSinkError`` with a ``resume_position``: all records that were not acknowledged are dropped. The file has
  failed (a full disk, or a failed fsync, after which the page cache cannot be trusted), or another writer has published
  under the file's name. After a backoff, seek the feed to ``resume_position`` and write from there; the next batch must
  not start above it. It may be below or above the failed batch, but never below the acknowledged position.
* ``PermanentSinkError``, ``CorruptMessageError``: no record of the batch was taken, and the policy decides. A batch
  without the refused records, with a gap in their place, may be written instead.
* ``OwnershipLost``, ``IncarnationChanged``, cancellation: the only call that may follow is
  :meth:`PartitionWriter.abandon`.
* ``SinkClosed``: the reader of the output has gone, so the daemon stops in order.

If the claim's lease is paused, a call waits until it is usable again (``Claim.wait_usable``, which raises OwnershipLost
in the end). So a file that is ready to be published survives a pause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from consumerd.cluster.topic_description import TopicDescriptions
from consumerd.model import Claim, Gap, Incarnation, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import Record, RecordBatch


class RootRegistry(Protocol):
    """A group's records, in ZooKeeper, about the paths of its file sinks.

    The *root* of a path is a random id in its file ``_consumerd.json``. It tells an unmounted volume from a new path: a
    path without the recorded root is refused. The registry also has, for each partition, the offset up to which it has
    landed. By this offset a removed file is told from one that was never written.
    """

    async def find_landed_end(self, root: str, partition: TopicPartition) -> bytes | None:
        """Return the recorded offset up to which a partition has landed, or None.

        None if nothing is recorded for this sink's path. The result is an encoded
        :class:`~consumerd.landing.chain.LandedEnd`. Raises CoordinationError.

        Args:
            root: Random id of the path, from its file ``_consumerd.json``.
        """

    async def note_landed_end(self, root: str, partition: TopicPartition, noted: bytes) -> None:
        """Record the offset up to which a partition's durable files have landed below a path.

        Raises CoordinationError.

        Args:
            root: Random id of the path, from its file ``_consumerd.json``.
            noted: An encoded :class:`~consumerd.landing.chain.LandedEnd`.
        """

    async def find(self, sink: str, *, consumer_id: str | None) -> str | None:
        """Return the root that is recorded for a sink; None without one.

        The root is the random id in the file ``_consumerd.json`` at the sink's path. Raises CoordinationError.

        Args:
            sink: Name of the sink.
            consumer_id: Id of this replica, if each replica has a path of its own; None if all replicas share the path.
        """

    async def record(self, sink: str, root: str, *, consumer_id: str | None) -> str:
        """Record the root of a sink's path, unless one is recorded; return the recorded one.

        The root is the random id in the file ``_consumerd.json`` at the path. Raises CoordinationError.

        Args:
            sink: Name of the sink.
            root: The root.
            consumer_id: Id of this replica, if each replica has a path of its own; None if all replicas share the path.
        """

    def describe(self, sink: str, *, consumer_id: str | None) -> str:
        """Return the znode with the root of a sink's path, for error messages.

        The root is the random id in the file ``_consumerd.json`` at the sink's path. An operator deletes the znode to
        give the sink a new volume. ``consumer_id`` is the id of this replica if each replica has a path of its own,
        else None.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Position at which a writer begins, and the reason.

    A *chain* is a run of files of one partition, each of which begins at the offset where the one before ends. Example:
    the chain ends at 100 and the start is 150 with the reason ``committed``. Without ``new_chain`` the writer continues
    the chain, and records 100 to 149 as a gap. With ``new_chain`` it seals the chain at 100, so that no file can be
    added, and begins a new one at 150.

    Attributes:
        position: offset of the first record to write. Above the chain's end, the offsets in between become a gap; its
            reason is ``reason`` if that is a ``GapReason``, else ``consumed elsewhere``.
        reason: ``committed``, ``earliest``, ``latest``, ``new incarnation`` and others. Sinks with chains record it.
        new_chain: begin a new chain, at any position.
        truncation: number of truncations of the log so far (unclean leader elections). Chains of a lower number hold
            other records at the same offsets, so this begins a new chain, too.
        request_id: id of the operator's request for this start. If the newest chain was begun by the same request, the
            writer continues that chain.
        missing_until: of the offsets in the gap, those below this were in a file that was removed.
    """

    position: int
    reason: str
    new_chain: bool = False
    truncation: int = 0
    request_id: str | None = None
    missing_until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedUnit:
    """An undeliverable piece of a log to be stored: a record, message, wrapper or batch.

    Attributes:
        offset: first offset of the unit.
        next_offset: offset after its last one.
        index: number of a record among the records with its offset, from 0 (Kafka 0.7 gives all records of a compressed
            message one offset); 0 for other units.
        cause: ``corrupt``, ``oversized`` or ``rejected`` (by the sink).
        reason: description of the fault.
        raw: its bytes as fetched, which may be only a part of the unit; empty for a ``rejected`` record.
        size: number of bytes of the complete unit, None if unknown.
        record: the ``rejected`` record; None for the other causes.
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
    """Store for undeliverable records, messages and batches under the policy ``quarantine``."""

    async def put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        """Store an undeliverable unit of a log durably. Idempotent.

        The position moves past the unit only after this has returned. ``claim`` is the claim of the unit's partition,
        which is checked before the unit is stored. Raises RetriableSinkError, OwnershipLost, IncarnationChanged.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Values that a sink gets from the daemon when it is made.

    Attributes:
        cluster_id: identifies the cluster: ``<czxid>-<ctime>`` of the znode ``/brokers/topics``. A path belongs to one
            cluster.
        writer_id: id of this process, which no other process has.
        now: monotonic clock, in seconds.
        charge: adds bytes to the process's memory account; negative numbers release them.
        buffer_bytes: limit of the memory of all writers of the sink. Above it they write out what they hold. It is a
            share of the process's budget, so open writers never starve fetching.
        consumer_id: the configured one, None if it is generated.
        roots: records of file sinks' paths in ZooKeeper; None if nothing is recorded (a sink without a group).
        source_topics: reads partitions and settings of the topics that the sink gets; None outside of a daemon.
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
    source_topics: TopicDescriptions | None = None


class PartitionWriter(Protocol):
    """Writes the records of one partition to a sink, for one claim.

    Methods return the *acknowledged position*: the offset after the last record that is safe at the destination.
    """

    @property
    def resume_position(self) -> int | None:
        """Offset after the last record in the partition's files of this sink; None without files."""

    @property
    def request_id(self) -> str | None:
        """Id of the operator's request that began the newest files, or None.

        ``consumerd offsets set`` makes such a request, to move the partition's position.
        """

    async def start(self, start: Start) -> None:
        """Set the position of the first record to write.

        Called once, before the first write; again only if it failed. Without ``start.new_chain`` the position must not
        be below :attr:`resume_position`. Raises SinkError, OwnershipLost, IncarnationChanged.
        """

    async def write(self, batch: RecordBatch) -> int:
        """Take a batch, and return the acknowledged position: the offset after all safe records.

        A batch may have gaps instead of records. A writer that keeps the batch's buffer must charge its bytes.

        Raises RetriableSinkError, PermanentSinkError, SinkClosed, OwnershipLost, IncarnationChanged (the module's
        docstring has the reactions); CorruptMessageError for records whose headers cannot be read, with no record of
        the batch taken.
        """

    async def flush(self) -> int:
        """Make all written records durable; return the offset after the last of them.

        That offset is the acknowledged position. Raises the errors of :meth:`write`.
        """

    def deadline(self) -> float | None:
        """Return the time by which :meth:`flush` must be called; None without one.

        The time is in seconds on the clock ``SinkContext.now``. None means that no records wait for a flush.
        """

    async def abandon(self) -> None:
        """Drop the records that are not acknowledged, with their files. Never raises SinkError.

        May be called after any failure. The writer is not used afterwards.
        """


class DirectWriter:
    """Writer without a buffer: it acknowledges each batch as soon as ``take`` has returned.

    For destinations that keep no position of their own, such as stdout. ``take`` is the function that delivers a batch.
    """

    resume_position = None
    request_id = None

    def __init__(self, take: Callable[[RecordBatch], Awaitable[None]]) -> None:
        self._take = take
        self._acknowledged = 0

    async def start(self, start: Start) -> None:
        """Set the position of the first record to write."""
        self._acknowledged = start.position

    async def write(self, batch: RecordBatch) -> int:
        """Deliver a batch by ``take``; return the offset after the batch."""
        if batch.next_offset > self._acknowledged:
            await self._take(batch)
            self._acknowledged = batch.next_offset
        return self._acknowledged

    async def flush(self) -> int:
        """Return the acknowledged position; :meth:`write` leaves nothing to flush."""
        return self._acknowledged

    def deadline(self) -> float | None:
        """Return None: there is never anything to flush."""
        return None

    async def abandon(self) -> None:
        """Do nothing: no record waits to be acknowledged."""


@runtime_checkable
class AdvancingWriter(Protocol):
    """A writer whose acknowledged position also moves between calls, and during a call of ``write``.

    Example: ``write`` hands the records of a batch to a program one by one, and returns when the program has finished
    the last one. A commit in the meantime is of the records that the program has finished by then.
    """

    @property
    def finished_position(self) -> int:
        """The acknowledged position at this moment."""


@runtime_checkable
class RecallingWriter(Protocol):
    """Writer that detects removed files by a record in ZooKeeper.

    ZooKeeper has the offset up to which the partition has landed. If the files end below that offset, files were
    removed.
    """

    @property
    def truncation(self) -> int:
        """Number of the log's truncations (unclean leader elections) when the newest files were begun.

        0 without files. See :class:`~consumerd.model.Incarnation`.
        """

    async def find_missing(self, position: int) -> Gap | None:
        """Return the offsets below ``position`` that had landed and whose files are gone, or None.

        Example: the group has recorded that the partition landed up to 200. The chain now ends at 150, because its last
        file was removed. For a start at 180 this is 150 to 179. Raises CoordinationError.
        """


@runtime_checkable
class RememberingWriter(Protocol):
    """Writer of a sink whose files tell that the topic was re-created."""

    @property
    def has_earlier_topic(self) -> bool:
        """True if the newest files are of another topic of this name."""


@runtime_checkable
class CheckedSink(Protocol):
    """Sink that can check its destination, such as a mounted volume, before it gets records."""

    async def check(self) -> None:
        """Check that the destination can be used; :meth:`Sink.open` repeats this check.

        Raises ConfigError for a fault of the configuration, RetriableSinkError for a fault that may pass.
        """


class Sink(Protocol):
    """One configured destination of records. It makes a writer for each claimed partition."""

    async def open(self, claim: Claim) -> PartitionWriter:
        """Return the writer of a claimed partition.

        A sink that lands files looks for the partition's newest files, and removes unpublished files of processes that
        owned the partition before. Raises SinkError, ConfigError.
        """

    async def close(self) -> None:
        """Release threads and memory. Writers must be flushed or abandoned before. Idempotent."""
