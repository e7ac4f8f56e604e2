"""Records as columns: what the decoders produce and every sink consumes.

A :class:`RecordBatch` holds the records of one fetched record set of one partition. Columns are flat arrays of int64
(anything that indexes like ``Sequence[int]`` and exports the buffer protocol: ``array('q')`` from the pure decoder,
typed memoryviews from a kernel); keys and values are spans ``[start, end)`` over one buffer. No Python object exists
for a record until :meth:`RecordBatch.records` makes one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from consumerd.model import Gap, TimestampType, TopicPartition

NULL_SPAN: Final = -1
"""The start and the end of a span whose key or value is null."""

NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, materialized. ``timestamp`` in ms since the epoch, -1 where the format or producer gave none."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """The records of one partition between two positions, as columns.

    ``start`` is the position that was asked for and ``next_offset`` the one to ask for next: every offset in
    ``[start, next_offset)`` is either a record here or inside one of ``gaps``. ``timestamp_types`` has one byte a
    record (``TimestampType`` + 1), or is empty where no record has a timestamp. ``header_starts``/``header_ends`` span
    the encoded headers and are empty where no record of the batch has any. ``indexes`` is empty but for legacy sets.
    ``size_bytes`` is what the batch holds in memory.
    """

    partition: TopicPartition
    start: int
    next_offset: int
    buffer: bytes | bytearray | memoryview = b""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    timestamps: array[int] = field(default_factory=lambda: array("q"))
    timestamp_types: bytes = b""
    key_starts: array[int] = field(default_factory=lambda: array("q"))
    key_ends: array[int] = field(default_factory=lambda: array("q"))
    value_starts: array[int] = field(default_factory=lambda: array("q"))
    value_ends: array[int] = field(default_factory=lambda: array("q"))
    header_starts: array[int] = field(default_factory=lambda: array("q"))
    header_ends: array[int] = field(default_factory=lambda: array("q"))
    indexes: array[int] = field(default_factory=lambda: array("q"))
    gaps: tuple[Gap, ...] = ()
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def records(self) -> Iterator[Record]:
        """Make the records, one by one. Raises CorruptMessageError where headers cannot be read."""
        raise NotImplementedError
