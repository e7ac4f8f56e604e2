# SPDX-License-Identifier: Apache-2.0
"""Units that a policy may pass over.

A unit is the smallest piece that can be told apart: one record if the sink refuses it; a message, a compressed wrapper
or a batch if it cannot be read or is too large.

The end of a unit is known if its header can be trusted. Otherwise (in magic 0 and 1, no checksum covers offset and
size), nothing after the unit can be told apart in the fetched bytes, since a record set is read from its beginning.
Then the broker is asked (``search``): it seeks by its own index, so from some later offset on it returns whole units
again. Delivery continues only at a position from which records *were* read; until one is found, the partition stays
stopped.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from consumerd.errors import ConsumerdError, CorruptMessageError, RecordTooLarge
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.sinks.base import QuarantinedUnit
from consumerd.wire.records import Record, RecordBatch


class UnitCause(enum.StrEnum):
    """The reason why a unit is not delivered."""

    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    REJECTED = "rejected"

    @property
    def gap(self) -> GapReason:
        """The reason of the gap that it leaves."""
        return GapReason.CORRUPT if self is UnitCause.CORRUPT else GapReason.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedUnit:
    """A unit and its fault; ``next_offset`` is None if its end is unknown.

    The other fields are as in :class:`~consumerd.sinks.base.QuarantinedUnit`.
    """

    cause: UnitCause
    reason: str
    offset: int
    next_offset: int | None
    index: int = 0
    raw: bytes = b""
    size: int | None = None
    record: Record | None = None


def describe_unit(error: CorruptMessageError | RecordTooLarge, position: int) -> PassedUnit:
    """Return the unit at ``position`` as an error describes it."""
    end = error.next_offset if error.next_offset is not None and error.next_offset > position else None
    offset = position if error.offset is None else error.offset
    if end is not None and offset >= end:
        offset = position
    if isinstance(error, RecordTooLarge):
        return PassedUnit(
            cause=UnitCause.OVERSIZED,
            reason=str(error),
            offset=offset,
            next_offset=end,
            raw=error.raw,
            size=error.size,
        )
    return PassedUnit(
        cause=UnitCause.CORRUPT,
        reason=str(error),
        offset=offset,
        next_offset=end,
        raw=error.raw,
        size=len(error.raw) if end is not None else None,
    )


def describe_record(batch: RecordBatch, row: int, error: ConsumerdError) -> PassedUnit:
    """Return the record in ``row``, which a sink has refused, as a unit.

    If its headers cannot be read, they are its raw bytes.
    """
    raw = b""
    try:
        record = batch.record(row)
    except CorruptMessageError:
        record, raw = batch.record(row, with_headers=False), batch.header_bytes(row)
    return PassedUnit(
        cause=UnitCause.CORRUPT if isinstance(error, CorruptMessageError) else UnitCause.REJECTED,
        reason=str(error),
        offset=record.offset,
        next_offset=record.offset + 1,
        index=record.index,
        raw=raw,
        size=len(raw) if raw else None,
        record=record,
    )


def find_hole(batch: RecordBatch) -> Gap | None:
    """Return the unexplained gap at the beginning of a batch, or None."""
    if not batch.gaps or batch.gaps[0].start != batch.start or batch.gaps[0].reason is not GapReason.COMPACTION:
        return None
    return batch.gaps[0]


def blame_hole(batch: RecordBatch) -> RecordBatch:
    """Return a batch with the hole at its start marked CORRUPT instead of compacted.

    The batch was read after a damaged unit. A broker that cannot find the next batch in a segment goes on with the next
    segment, which looks like compaction.
    """
    if find_hole(batch) is None:
        return batch
    return replace(batch, gaps=(replace(batch.gaps[0], reason=GapReason.CORRUPT), *batch.gaps[1:]))


def quarantined(unit: PassedUnit, partition: TopicPartition, incarnation: Incarnation) -> QuarantinedUnit:
    """Return a unit with known end in the form that the quarantine takes."""
    assert unit.next_offset is not None
    return QuarantinedUnit(
        partition=partition,
        incarnation=incarnation,
        offset=unit.offset,
        next_offset=unit.next_offset,
        index=unit.index,
        cause=unit.cause.value,
        reason=unit.reason,
        raw=unit.raw,
        size=unit.size,
        record=unit.record,
    )
