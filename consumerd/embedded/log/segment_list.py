# SPDX-License-Identifier: Apache-2.0
"""The segments of a log for its readers: an immutable list, searched without a lock.

Changes of the log create a new list. A segment that is deleted meanwhile has closed its file: the search raises
SegmentGone, and is repeated on the new list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from consumerd.embedded.log.errors import LogDamaged, LogFailed
from consumerd.embedded.log.segment import Segment
from consumerd.embedded.log.slices import LogSlice, SharedFile
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.record_set import decode_record_set

LATEST: Final = -1
EARLIEST: Final = -2
"""Special timestamps of ListOffsets."""


class SegmentGone(Exception):
    """A segment was deleted or replaced during the search."""


class SegmentList:
    """One or more segments in the order of their first offsets, ``bases``."""

    __slots__ = ("_partition", "bases", "segments")

    def __init__(self, partition: TopicPartition, segments: tuple[Segment, ...]) -> None:
        self._partition = partition
        self.segments = segments
        self.bases = tuple(segment.base_offset for segment in segments)

    def find_slice(self, offset: int, max_bytes: int, *, whole_first: bool) -> LogSlice:
        """Return up to ``max_bytes`` from the unit with ``offset``; see ``PartitionLog.read``.

        Raises SegmentGone, LogFailed, LogDamaged.
        """
        for segment in self.segments[max(bisect_right(self.bases, offset) - 1, 0) :]:
            with self._reading(segment) as file:
                header = segment.locate(offset, file)
                if header is not None:
                    wanted = max(max_bytes, header.size) if whole_first else max(max_bytes, 0)
                    size = min(wanted, segment.size - header.position)
                    file.retain()  # cannot fail: we keep it open
                    return LogSlice(file, first_offset=offset, position=header.position, size=size)
        return LogSlice(None, first_offset=offset)  # compaction has removed all records from here on

    def find_offset(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return timestamp and offset of the first record at or after ``timestamp_ms``, or None.

        Raises SegmentGone, LogFailed, LogDamaged.
        """
        for segment in self.segments:
            if segment.max_timestamp < timestamp_ms:
                continue
            with self._reading(segment) as file:
                for unit in segment.units_as_new_as(timestamp_ms, file):
                    batch = decode_record_set(file.read(unit.position, unit.size), partition=self._partition, start=0)
                    for timestamp, offset in zip(batch.timestamps, batch.offsets, strict=True):
                        if timestamp >= timestamp_ms:
                            return timestamp, offset
        return None

    def offsets_before(self, timestamp_ms: int, count: int, end_offset: int, now_ms: int) -> list[int]:
        """Return start offsets of segments by modification time; see ``PartitionLog.offsets_before``.

        Raises SegmentGone, LogFailed.
        """
        known: list[tuple[int, int]] = []
        for segment in self.segments:
            with self._reading(segment) as file:
                known.append((segment.base_offset, file.modified_ms()))
        if self.segments[-1].size:
            known.append((end_offset, now_ms))
        if timestamp_ms == LATEST:
            taken = len(known)
        elif timestamp_ms == EARLIEST:
            taken = 1
        else:
            taken = next((n for n in range(len(known), 0, -1) if known[n - 1][1] <= timestamp_ms), 0)
        return [offset for offset, _ in reversed(known[:taken])][: max(count, 0)]

    @contextmanager
    def _reading(self, segment: Segment) -> Iterator[SharedFile]:
        """Keep a segment's file open during the block, and translate its errors."""
        file = segment.find_file()
        if file is None:
            raise SegmentGone
        try:
            yield file
        except OSError as error:
            raise LogFailed(f"{self._partition}: {segment.path.name} cannot be read: {error}") from error
        except CorruptMessageError as error:
            raise LogDamaged(f"{self._partition}: {segment.path.name} cannot be read: {error}") from error
        finally:
            file.release()
