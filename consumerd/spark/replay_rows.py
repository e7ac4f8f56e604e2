# SPDX-License-Identifier: Apache-2.0
"""Rows of bronze as record batches, for a replay with an offset map.

Columns are those of bronze (``bronze_table.SCHEMA``), with ``timestamp`` in ms since the epoch. Spark gives a task rows
sorted by partition, incarnation, offset and index, as Arrow batches. One Arrow batch may have
rows of several logs (partitions of one incarnation), and a log may go over many batches.

The last row of each log is its *end row*: ``offset`` is the offset at which the log ends, and ``next_offset`` is null.
Thereby a log without records is told to the task, too.

Example: a batch has offsets 98 and 99 and the end row 100 of partition 0, then offset 0 of partition 1. That is a
part of log 0 with 2 records and the end 100, and a part of log 1 with 1 record and no end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumerd.errors import ConfigError
from consumerd.model import BrokerId, Gap, GapReason, PartitionKey, TopicPartition
from consumerd.spark.identities import Mask, Offsets
from consumerd.wire.modern.building import encode_headers
from consumerd.wire.record_fields import NO_TIMESTAMP, NULL_SPAN
from consumerd.wire.records import RecordBatch


class LogName(NamedTuple):
    """Partition and incarnation, as bronze has them; ``broker`` is None except for Kafka 0.7."""

    broker: int | None
    partition: int
    incarnation: str

    @property
    def partition_key(self) -> PartitionKey:
        """Number of the partition, with the broker for Kafka 0.7."""
        return PartitionKey(self.partition, None if self.broker is None else BrokerId(self.broker))


@dataclass(frozen=True, slots=True)
class LogPart:
    """Consecutive rows of one log.

    Attributes:
        rows: records, without the end row.
        end: offset at which the log ends, if its last rows are here; else None.
    """

    name: LogName
    rows: pa.RecordBatch
    end: int | None


def split_rows(batch: pa.RecordBatch) -> Iterator[LogPart]:
    """Yield the parts of a sorted Arrow batch, by log."""
    names = [LogName(*row) for row in zip(*(batch[name].to_pylist() for name in LogName._fields), strict=True)]
    begin = 0
    for row in range(1, len(names) + 1):
        if row < len(names) and names[row] == names[begin]:
            continue
        part = batch.slice(begin, row - begin)
        is_end = not part["next_offset"][len(part) - 1].is_valid
        end = part["offset"][len(part) - 1].as_py() if is_end else None
        yield LogPart(names[begin], part.slice(0, len(part) - is_end), end)
        begin = row


def to_record_batch(partition: TopicPartition, rows: pa.RecordBatch, start: int) -> RecordBatch:
    """Return rows of one log as a batch of records.

    Args:
        rows: at least one row, ascending by offset and index.
        start: offset at which the batch begins; what lies between it and the first record is a gap.

    Raises ConfigError for a record whose next offset is not known.
    """
    offsets, following = _get_int64(rows["offset"]), _get_int64(rows["next_offset"])
    if (unknown := int((following <= offsets).argmax())) or following[0] <= offsets[0]:
        raise ConfigError(
            f"{partition}: bronze has no next offset of the record at {offsets[unknown]}, so where the next one begins "
            "is not known, and no map can be made: replay the topic without --map"
        )
    timestamps = _get_int64(pc.fill_null(rows["timestamp"], NO_TIMESTAMP))
    buffer = _Buffer()
    key_starts, key_ends = buffer.add(rows["key"])
    value_starts, value_ends = buffer.add(rows["value"])
    header_starts, header_ends = buffer.add_headers(rows["headers"])
    indexes = _get_int64(pc.fill_null(rows["index"], 0))
    data = buffer.join()
    return RecordBatch(
        partition=partition,
        start=start,
        next_offset=int(following[-1]),
        buffer=data,
        offsets=_to_array(offsets),
        timestamps=_to_array(timestamps),
        timestamp_types=_get_types(rows, timestamps),
        key_starts=key_starts,
        key_ends=key_ends,
        value_starts=value_starts,
        value_ends=value_ends,
        header_starts=header_starts,
        header_ends=header_ends,
        indexes=_to_array(indexes) if indexes.any() else array("q"),
        next_offsets=_to_array(following) if partition.is_legacy else array("q"),
        gaps=_find_gaps(offsets, following, start),
        size_bytes=len(data),
    )


def _get_types(rows: pa.RecordBatch, timestamps: Offsets) -> bytes:
    """Return ``TimestampType`` + 1 of each record; records without a type have the producer's time."""
    types = _get_int64(pc.fill_null(rows["timestamp_type"], 0)) + 1
    timed: Mask = timestamps != NO_TIMESTAMP
    return np.where(timed, np.maximum(types, 1), 0).astype(np.uint8).tobytes() if timed.any() else b""


def _find_gaps(offsets: Offsets, following: Offsets, start: int) -> tuple[Gap, ...]:
    before = np.concatenate((np.array([start], np.int64), following[:-1]))
    # Bronze does not keep why records are absent. This reason says that they were absent in what was read.
    return tuple(
        Gap(int(before[row]), int(offsets[row]), GapReason.COMPACTION) for row in np.flatnonzero(offsets > before)
    )


class _Buffer:
    """Concatenates the columns of a batch, and tells where each cell is."""

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self._size = 0

    def add(self, column: pa.Array) -> tuple[array[int], array[int]]:
        """Add a column of bytes; return start and end of each cell, -1 for null."""
        cells = column.cast(pa.large_binary())
        _, ends_buffer, data = cells.buffers()
        bounds = np.frombuffer(ends_buffer, np.int64, len(cells) + 1, 8 * cells.offset)
        first, last = int(bounds[0]), int(bounds[-1])
        bounds = bounds + (self._size - first)
        if last > first:
            self._pieces.append(memoryview(data)[first:last])
            self._size += last - first
        present = np.asarray(cells.is_valid())
        starts, ends = (np.where(present, some, NULL_SPAN) for some in (bounds[:-1], bounds[1:]))
        return _to_array(starts), _to_array(ends)

    def add_headers(self, column: pa.ListArray) -> tuple[array[int], array[int]]:
        """Add the encoded headers of records; return their start and end.

        They are -1 for a record without headers. Both columns are empty if no record has any.
        """
        if not pc.sum(pc.list_value_length(column)).as_py():
            return array("q"), array("q")
        encoded = [
            encode_headers(tuple((one["key"], one["value"]) for one in headers)) if headers else b""
            for headers in column.to_pylist()
        ]
        ends = list(accumulate(map(len, encoded), initial=self._size))
        self._pieces += encoded
        self._size = ends[-1]
        spans = [(start, end) if end > start else (NULL_SPAN, NULL_SPAN) for start, end in pairwise(ends)]
        return array("q", [start for start, _ in spans]), array("q", [end for _, end in spans])

    def join(self) -> bytes:
        """Return the bytes of all columns."""
        return b"".join(self._pieces)


def _get_int64(column: pa.Array) -> Offsets:
    """Return a column of whole numbers; null as -1."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), -1))


def _to_array(column: Offsets) -> array[int]:
    return array("q", column.astype(np.int64).tobytes())
