# SPDX-License-Identifier: Apache-2.0
"""Units that a policy may pass over instead of delivering them.

A unit is the smallest part of a log that can be told apart: one record if the sink refuses it; a message, a compressed
wrapper or a batch if it cannot be read or is too large.

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
    """Reason why a record, message or batch is not delivered: corrupt, oversized, or refused."""

    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    REJECTED = "rejected"

    @property
    def gap(self) -> GapReason:
        """Reason that the sink records for the gap that replaces the record or batch."""
        return GapReason.CORRUPT if self is UnitCause.CORRUPT else GapReason.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedUnit:
    """A unit that a policy skips or quarantines instead of delivering it, and the reason.

    A unit is a message, a compressed wrapper or a batch, or one record that the sink refused. ``next_offset`` is the
    offset after it, None if its end is unknown. The other fields are as in
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
    """Return the message or batch at ``position`` that cannot be read, or is too large.

    Its offsets, bytes and size are taken from the error.
    """
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


def explain_way_on(error: CorruptMessageError | RecordTooLarge) -> str:
    """Return a text with the position after an undeliverable message or batch, and its offsets.

    The text follows the advice to set a position. Example: ": position 25 passes over it, offsets 20 to 24". Empty if
    there is nothing to add.
    """
    end, witness = error.next_offset, ""
    if isinstance(error, RecordTooLarge):
        witness = ", as its header says"
    elif end is None and error.claimed_end is not None:
        end, witness = error.claimed_end, ", as its header says, which may be damaged, too"
    if error.offset is None:
        return ""
    if end is None or end <= error.offset:
        return ": it is not known where the damage ends" if isinstance(error, CorruptMessageError) else ""
    last = end - 1
    offsets = f"offset {last}" if last == error.offset else f"offsets {error.offset} to {last}"
    return f": position {end} passes over it, {offsets}{witness}"


def describe_record(batch: RecordBatch, row: int, error: ConsumerdError) -> PassedUnit:
    """Return a record that a sink has refused, for the quarantine.

    If its headers cannot be parsed, the result has their raw bytes instead.

    Args:
        row: Index of the record in the batch, from 0.
        error: The sink's reason.
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
        next_offset=batch.following(row),
        index=record.index,
        raw=raw,
        size=len(raw) if raw else None,
        record=record,
    )


def find_hole(batch: RecordBatch) -> Gap | None:
    """Return the unexplained gap at the start of a batch; None without one.

    The gap has the reason COMPACTION: the broker returned nothing for these offsets, and compaction is only the likely
    cause.
    """
    if not batch.gaps or batch.gaps[0].start != batch.start or batch.gaps[0].reason is not GapReason.COMPACTION:
        return None
    return batch.gaps[0]


def blame_hole(batch: RecordBatch) -> RecordBatch:
    """Return a batch whose leading gap has the reason CORRUPT instead of COMPACTION.

    The batch was read right after a damaged unit. A broker that cannot find the next batch in a damaged segment
    continues with the next segment, which looks like compaction.
    """
    if find_hole(batch) is None:
        return batch
    return replace(batch, gaps=(replace(batch.gaps[0], reason=GapReason.CORRUPT), *batch.gaps[1:]))


def quarantined(unit: PassedUnit, partition: TopicPartition, incarnation: Incarnation) -> QuarantinedUnit:
    """Return a corrupt, oversized or refused unit in the form that the quarantine stores.

    Its end (``next_offset``) must be known.
    """
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
