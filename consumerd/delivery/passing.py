# SPDX-License-Identifier: Apache-2.0
"""Units that a policy may pass over: what is known of one, and where reading can go on behind it.

A unit is the smallest piece that can be told apart: a message, a compressed wrapper or a batch where it cannot be read
or is too large, one record where the sink refuses it.

Where the next unit begins is known when its head can be believed. When it cannot (no checksum covers offset and size of
magic 0 and 1), nothing behind the unit can be told apart in what was fetched, since a set is read from its beginning.
Then the broker is asked (``search``): it seeks by an index of its own, so that from some later offset on it finds whole
units again. Only a position from which records *were* read is gone on from; while none is found the partition stays
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
    """Why a unit is not delivered."""

    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    REJECTED = "rejected"

    @property
    def gap(self) -> GapReason:
        """The reason of the gap that it leaves."""
        return GapReason.CORRUPT if self is UnitCause.CORRUPT else GapReason.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedUnit:
    """A unit, and what is wrong with it; ``next_offset`` is None where it is not known. The rest is as in
    :class:`~consumerd.sinks.base.QuarantinedUnit`.
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
    """Return what an error says of the unit at ``position``, as it was fetched."""
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
    """Return what is known of the record in ``row``, which a sink has refused; where its headers cannot be read, they are
    the raw bytes.
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
    """Return what is missing at a batch's beginning without anybody having said why."""
    if not batch.gaps or batch.gaps[0].start != batch.start or batch.gaps[0].reason is not GapReason.COMPACTION:
        return None
    return batch.gaps[0]


def blame_hole(batch: RecordBatch) -> RecordBatch:
    """Return what was read right behind a damaged unit, with a hole at its beginning blamed on the damage.

    A broker that cannot find its way through a segment goes on with the next one, which looks like compaction.
    """
    if find_hole(batch) is None:
        return batch
    return replace(batch, gaps=(replace(batch.gaps[0], reason=GapReason.CORRUPT), *batch.gaps[1:]))


def quarantined(unit: PassedUnit, partition: TopicPartition, incarnation: Incarnation) -> QuarantinedUnit:
    """Return the unit, whose extent is known, as the quarantine takes it."""
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
