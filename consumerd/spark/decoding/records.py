# SPDX-License-Identifier: Apache-2.0
"""Decodes whole records: key, value and event time; divides them into good and bad.

Every row of a batch comes out once, as good or as bad.

Example: a topic's values are JSON with the event time ``placed``, and ``late_ms`` is 3,600,000. The value ``{"placed":
"2026-11-22T10:00:00Z"}`` with the record timestamp 10:30 is good. With the timestamp 11:30 it is bad, with the cause
``late``. The value ``{`` is bad, with the cause ``bad value``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.decoding.columns import FIRST_US, LAST_US, ColumnDecoder, Decoded

MOMENT: Final = pa.timestamp("us", "UTC")

BAD_KEY: Final = "bad key"
BAD_VALUE: Final = "bad value"
BAD_TIME: Final = "bad event time"
LATE: Final = "late"
EARLY: Final = "early"

CAUSES: Final = (BAD_KEY, BAD_VALUE, BAD_TIME, LATE, EARLY)
"""Causes for which a record is bad, and goes to the quarantine. If several apply, the first one is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """Records of a batch, divided into decoded and undecodable ones.

    Attributes:
        good: have ``key`` and ``value`` decoded, and ``event_time``.
        bad: have ``key`` and ``value`` as they came, ``event_time`` if it is known, ``cause`` and ``reason``.
    """

    good: pa.RecordBatch
    bad: pa.RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDecoder:
    """Decodes a topic's records: columns ``key``, ``value``, ``timestamp``, ``landed`` and any others.

    Attributes:
        event_time: path of a field, such as ``("value", "placed")``; empty for the record's timestamp.
        late_ms: limit of the time from the event to the record's arrival; None for no limit.
        early_ms: limit of the time from the record's arrival to the event; None for no limit.

    The arrival is the record's timestamp, or the time of landing if that is null. So a record is late or not
    independently of the time of decoding, and of other records.
    """

    key: ColumnDecoder
    value: ColumnDecoder
    event_time: tuple[str, ...] = ()
    late_ms: int | None = None
    early_ms: int | None = None

    def divide(self, batch: pa.RecordBatch) -> Divided:
        """Decode a batch of records; return it divided into decoded and undecodable ones.

        Raises MemoryError, also Arrow's; KeyError for a missing column.
        """
        decoded = {"key": self.key.decode(batch["key"]), "value": self.value.decode(batch["value"])}
        found = self._event_times(batch, decoded)
        shown = _is_shown(found)
        event_times = pc.if_else(shown, found, None)
        faults = self._find_faults(batch, decoded, event_times)
        for row in pc.indices_nonzero(pc.invert(shown)).to_pylist():
            faults.setdefault(row, (BAD_TIME, "its event time is not within the years 1 to 9999"))
        complete = batch.append_column("event_time", event_times)
        good = _replace(complete, {side: column.values for side, column in decoded.items()})
        if not faults:
            return Divided(good=good, bad=_with_faults(complete.slice(0, 0), []))
        rows = sorted(faults)
        is_good = pa.array([row not in faults for row in range(len(batch))], pa.bool_())
        bad = _with_faults(complete.take(pa.array(rows, pa.int64())), [faults[row] for row in rows])
        return Divided(good=good.filter(is_good), bad=bad)

    def _event_times(self, batch: pa.RecordBatch, decoded: dict[str, Decoded]) -> pa.Array:
        if not self.event_time:
            return batch["timestamp"].cast(MOMENT)
        side, *path = self.event_time
        return pc.struct_field(decoded[side].values, path).cast(MOMENT)

    def _find_faults(
        self, batch: pa.RecordBatch, decoded: dict[str, Decoded], event_times: pa.Array
    ) -> dict[int, tuple[str, str]]:
        """Return the cause and the reason of each bad row, by index."""
        faults: dict[int, tuple[str, str]] = {}
        arrived = pc.coalesce(batch["timestamp"].cast(MOMENT), batch["landed"].cast(MOMENT))
        behind = pc.divide(pc.subtract(arrived.cast(pa.int64()), event_times.cast(pa.int64())), 1000)
        if self.early_ms is not None:
            for row, ms in _above(pc.negate(behind), self.early_ms):
                faults[row] = (EARLY, f"its event time is {ms} ms behind its arrival; {self.early_ms} are allowed")
        if self.late_ms is not None:
            for row, ms in _above(behind, self.late_ms):
                faults[row] = (LATE, f"its event time is {ms} ms before its arrival; {self.late_ms} are allowed")
        for side, cause in (("value", BAD_VALUE), ("key", BAD_KEY)):
            for row, reason in decoded[side].reasons.items():
                faults[row] = (cause, reason)
        return faults


def _is_shown(moments: pa.Array) -> pa.Array:
    """Mark moments that are null, or in the years that Python and Spark can show."""
    since = moments.cast(pa.int64())
    return pc.fill_null(
        pc.and_(pc.greater_equal(since, FIRST_US), pc.less_equal(since, LAST_US)),
        True,  # noqa: FBT003 - Arrow's signature
    )


def _above(milliseconds: pa.Array, limit: int) -> list[tuple[int, int]]:
    """Return the indexes and values of rows above a limit."""
    rows = pc.indices_nonzero(pc.fill_null(pc.greater(milliseconds, limit), False))  # noqa: FBT003 - Arrow's signature
    return list(zip(rows.to_pylist(), milliseconds.take(rows).to_pylist(), strict=True))


def _replace(batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns.get(name, batch[name]) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _with_faults(batch: pa.RecordBatch, faults: list[tuple[str, str]]) -> pa.RecordBatch:
    causes = pa.array([cause for cause, _ in faults], pa.string())
    reasons = pa.array([reason for _, reason in faults], pa.string())
    return batch.append_column("cause", causes).append_column("reason", reasons)
