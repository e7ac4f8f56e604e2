# SPDX-License-Identifier: Apache-2.0
"""Reads rows of bronze from landed files, within one Spark task.

The plan (``landing.plan``) says which file gives which offsets, so there is no shuffle. An offset is *contested* if two
files may have its record, and their metadata do not tell which of them has it. Only for contested offsets are rows
compared one by one, by offset and index.

Example: file B has offsets 400-999. The plan takes 500-899 as they are, while 900-999 are contested, because an earlier
file C has some of them and its metadata do not list its gaps. The task reads C's offsets in that range, and takes those
of B's rows that C does not have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.landing.ranges import RangeSet
from consumerd.spark.identities import Mask, Offsets
from consumerd.spark.landed_rows import IDENTITY_SCHEMA, LandedContent, read_identities, read_rows
from consumerd.spark.table.folder_values import escape_value

FOLDERS: Final = ("topic", "day")
"""Partition columns of the table.

``day`` is the UTC day of ``timestamp``. Without a timestamp, or with one outside of the years 1970 to 9999, it is the
day of ``landed``.
"""


_TIME: Final = pa.timestamp("us", "UTC")
_MAX_TIMESTAMP_MS: Final = (1 << 63) // 1000 - 1
"""Largest timestamp in ms that fits into 64 bits as microseconds."""
_FIRST_DAY_MS: Final = 0
_LAST_DAY_MS: Final = 253_402_300_799_999  # end of the year 9999, the last that dates in Python and Spark reach
_MS_PER_DAY: Final = 86_400_000
_US_PER_DAY: Final = 1000 * _MS_PER_DAY
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Rows that a Spark task takes from one landed file.

    Attributes:
        broker: id of the broker in partitions of Kafka 0.7; None otherwise.
        ranges: offsets of which all rows are taken; None for the whole file.
        contested: offsets of which a row is taken only if no file of ``earlier`` or ``table_files`` has the same
            record.
        earlier: landed files with some of these offsets that are copied before this one.
        table_files: paths of the table's files that may have some of these offsets.
    """

    content: LandedContent
    topic: str
    incarnation: str
    broker: int | None
    partition: int
    ranges: RangeSet | None
    contested: RangeSet
    earlier: tuple[LandedContent, ...] = ()
    table_files: tuple[str, ...] = ()

    @property
    def wanted(self) -> RangeSet | None:
        """Offsets that may have rows to take; None for the whole file."""
        return None if self.ranges is None else self.ranges | self.contested


@dataclass(frozen=True, slots=True, kw_only=True)
class BronzeRows:
    """Rows of the table ``bronze``, all of one topic.

    Attributes:
        rows: all columns except the partition columns, topic and day.
        days: day of each row, in days since 1970-01-01 UTC; a single number if all rows have the same day.
    """

    topic: str
    rows: pa.RecordBatch
    days: int | pa.Array

    @property
    def folders(self) -> tuple[str, ...] | None:
        """Values of the partition columns, topic and day; None for rows of several days."""
        if not isinstance(self.days, int):
            return None
        return escape_value(self.topic), date.fromordinal(_EPOCH_ORDINAL + self.days).isoformat()

    def with_folders(self) -> pa.RecordBatch:
        """Return the rows with all columns of the table ``bronze``, topic and day last."""
        count = len(self.rows)
        days = pa.repeat(pa.scalar(self.days, pa.int32()), count) if isinstance(self.days, int) else self.days
        columns = [*self.rows.columns, pa.repeat(self.topic, count), days.cast(pa.int32()).cast(pa.date32())]
        return pa.RecordBatch.from_arrays(columns, names=[*self.rows.schema.names, *FOLDERS])


def read_piece(piece: FilePiece) -> Iterator[BronzeRows]:
    """Yield the rows to take from one landed file, in the file's order.

    Raises DamagedFile, OSError.
    """
    landed_us = os.stat(piece.content.path).st_mtime_ns // 1000  # noqa: PTH116 - a number is wanted
    for batch in read_rows(piece.content, piece.wanted):
        taken = _select(piece, batch)
        if len(taken):
            yield BronzeRows(
                topic=piece.topic,
                rows=_make_rows(piece, taken, landed_us),
                days=_to_days(taken["timestamp"].cast(pa.int64()), landed_us),
            )


def _select(piece: FilePiece, batch: pa.RecordBatch) -> pa.RecordBatch:
    if piece.ranges is None:
        return batch
    offsets = batch["offset"].to_numpy()
    mask = _within(offsets, piece.ranges)
    if piece.contested:
        disputed = _within(offsets, piece.contested)
        if disputed.any():
            mask |= disputed & ~_find_known(piece, batch)
    return batch if mask.all() else batch.filter(pa.array(mask))


def _within(offsets: Offsets, ranges: RangeSet) -> Mask:
    """Return a mask of the offsets that are in the ranges."""
    if not ranges:
        return np.zeros(len(offsets), np.bool_)
    bounds = np.array(ranges.spans, np.int64)
    place = np.searchsorted(bounds[:, 0], offsets, side="right") - 1
    inside: Mask = (place >= 0) & (offsets < bounds[place, 1])
    return inside


def _find_known(piece: FilePiece, batch: pa.RecordBatch) -> Mask:
    """Return a mask of the rows whose identity an earlier file or the table has."""
    span = RangeSet.of([(batch["offset"][0].as_py(), batch["offset"][-1].as_py() + 1)])
    others = [read_identities(file, span) for file in piece.earlier]
    others += [_read_table_identities(piece, path, span) for path in piece.table_files]
    found = np.zeros(len(batch), np.bool_)
    if not others:  # contested offsets of the plan need not be in any file
        return found
    known = pa.concat_tables(others).append_column("known", pa.repeat(True, sum(map(len, others))))  # noqa: FBT003
    rows = pa.table({"offset": batch["offset"], "index": batch["index"], "row": np.arange(len(batch))})
    both = rows.join(known, keys=["offset", "index"], join_type="left semi", use_threads=False)
    found[both["row"].to_numpy()] = True
    return found


def _read_table_identities(piece: FilePiece, path: str, span: RangeSet) -> pa.Table:
    """Return offset and index of one partition's rows in a file of the table.

    All rows within the span are among them; there may be others.
    """
    (bounds,) = span.spans
    condition = (
        (pc.field("incarnation") == piece.incarnation)
        & (pc.field("partition") == piece.partition)
        & (pc.field("offset") >= bounds.start)
        & (pc.field("offset") < bounds.end)
        & (pc.field("broker").is_null() if piece.broker is None else pc.field("broker") == piece.broker)
    )
    rows = pq.read_table(path, columns=["offset", "index"], filters=condition, partitioning=None, use_threads=False)
    return rows.cast(IDENTITY_SCHEMA)


def _make_rows(piece: FilePiece, batch: pa.RecordBatch, landed_us: int) -> pa.RecordBatch:
    """Return a batch with bronze's columns, except ``FOLDERS``."""
    count = len(batch)
    landed = pa.scalar(landed_us, _TIME)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(piece.incarnation, count),
            pa.nulls(count, pa.int32())
            if piece.broker is None
            else pa.repeat(pa.scalar(piece.broker, pa.int32()), count),
            pa.repeat(pa.scalar(piece.partition, pa.int32()), count),
            batch["offset"],
            batch["next_offset"],
            batch["index"],
            _to_microseconds(batch["timestamp"]),
            batch["timestamp_type"].cast(pa.int32()),
            batch["key"],
            batch["value"],
            batch["headers"],
            pa.repeat(landed, count),
        ],
        names=[
            *("incarnation", "broker", "partition", "offset", "next_offset", "index", "timestamp", "timestamp_type"),
            *("key", "value", "headers", "landed"),
        ],
    )


def _to_microseconds(times: pa.Array) -> pa.Array:
    """Convert timestamps to microseconds; those after the year 294,000 do not fit and become null."""
    try:
        return times.cast(_TIME)
    except pa.ArrowInvalid:
        numbers = times.cast(pa.int64())
        fits = pc.and_(pc.greater_equal(numbers, -_MAX_TIMESTAMP_MS), pc.less_equal(numbers, _MAX_TIMESTAMP_MS))
        return pc.if_else(fits, times, pa.scalar(None, times.type)).cast(_TIME)


def _to_days(times_ms: pa.Array, landed_us: int) -> int | pa.Array:
    """Return each row's day, in days since 1970; a single number if all are equal."""
    if times_ms.null_count == len(times_ms):
        return landed_us // _US_PER_DAY
    # nearly always, all rows are of one day
    extent = pc.min_max(times_ms)
    low, high = extent["min"].as_py(), extent["max"].as_py()
    if times_ms.null_count == 0 and low >= _FIRST_DAY_MS and high <= _LAST_DAY_MS:
        first, last = low // _MS_PER_DAY, high // _MS_PER_DAY
        if first == last:
            return int(first)
    # null becomes a time outside of the range, which gets the day of landing
    numbers = times_ms.fill_null(_FIRST_DAY_MS - 1)
    known = pc.and_(pc.greater_equal(numbers, _FIRST_DAY_MS), pc.less_equal(numbers, _LAST_DAY_MS))
    return pc.if_else(known, pc.divide(numbers, _MS_PER_DAY), landed_us // _US_PER_DAY)
