# SPDX-License-Identifier: Apache-2.0
"""Finds the last mirrored record of a source partition in the target.

Records carry their origin (``mirror.provenance``).

The target is read from its end backwards, in windows that grow, since others may have written behind the mirror.
Example: the log is 0 to 9999. The windows are 9900-9999, 9500-9899, 7900-9499, ... until one has a record of the
partition. The last such record counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from consumerd.client.simple_consumer import FetchedBatch
from consumerd.errors import CorruptMessageError
from consumerd.mirror.provenance import RecordOrigin, find_origin, open_envelope
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.records import RecordBatch

MOST_RECORDS: Final = 100_000
"""Number of offsets, from the end of the target's log, that are searched at most."""
_FIRST_WINDOW: Final = 100
_GROWTH: Final = 4
_FETCH_BYTES: Final = 4 << 20


class TailReader(Protocol):
    """Reader of the target, such as ``client.simple_consumer.SimpleConsumer``."""

    async def fetch(self, partition: TopicPartition, offset: int, *, max_bytes: int) -> FetchedBatch:
        """Return a partition's records from ``offset`` on; none if the log ends there."""


async def find_last_origin(
    reader: TailReader,
    partition: TopicPartition,
    log: LogRange,
    is_ours: Callable[[RecordOrigin], bool],
    *,
    most_records: int = MOST_RECORDS,
) -> RecordOrigin | None:
    """Return the origin of the last record that ``is_ours``; None without one.

    Args:
        partition: Partition of the target.
        log: Its start and end offset.
        most_records: Number of offsets, from the end, that are searched at most.

    Raises the errors of ``reader``.
    """
    least = max(log.earliest, log.latest - most_records)
    end, size = log.latest, _FIRST_WINDOW
    while end > least:
        begin = max(least, end - size)
        found = await _find_in(reader, partition, begin, end, is_ours)
        if found is not None:
            return found
        end, size = begin, size * _GROWTH
    return None


async def _find_in(
    reader: TailReader, partition: TopicPartition, begin: int, end: int, is_ours: Callable[[RecordOrigin], bool]
) -> RecordOrigin | None:
    """Return the last origin in ``[begin, end)``."""
    found, position = None, begin
    while position < end:
        batch = (await reader.fetch(partition, position, max_bytes=_FETCH_BYTES)).batch
        found = _find_last(batch.slice_to(end), is_ours) or found
        if batch.next_offset <= position:
            break  # the log has become shorter, or ends here
        position = batch.next_offset
    return found


def _find_last(batch: RecordBatch, is_ours: Callable[[RecordOrigin], bool]) -> RecordOrigin | None:
    for row in range(len(batch) - 1, -1, -1):
        origin = _read_origin(batch, row)
        if origin is not None and is_ours(origin):
            return origin
    return None


def _read_origin(batch: RecordBatch, row: int) -> RecordOrigin | None:
    """Return the origin in a record's headers, or in its envelope; None without one."""
    try:
        record = batch.record(row)
        if record.headers:
            return find_origin(record.headers)
        return None if record.value is None else open_envelope(record.value)[0]
    except CorruptMessageError:
        return None  # not a record of a mirror
