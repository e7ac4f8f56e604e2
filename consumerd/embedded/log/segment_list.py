# SPDX-License-Identifier: Apache-2.0
"""The segments of a log for its readers: an immutable list, searched without a lock.

Changes of the log create a new list. A segment that is deleted meanwhile has closed its file: the search raises
SegmentGone, and is repeated on the new list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from consumerd.embedded.log.errors import LogDamaged, LogFailed
from consumerd.embedded.log.segment import Segment
from consumerd.embedded.log.slices import LogSlice, SharedFile
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from consumerd.wire.modern.record_set import decode_record_set


class SegmentGone(Exception):
    """A segment of the log was deleted or replaced during a search.

    The caller repeats the search.
    """


def choose_offsets(known: Sequence[tuple[int, int]], timestamp_ms: int, count: int) -> list[int]:
    """Return offsets of segments by modification time, newest first; at most ``count``.

    It is the rule of Kafka's ``Log.getOffsetsBefore``, from 0.6 on.

    Args:
        known: First offset and modification time, in ms, of each segment, in order. The log end follows with the
            present time, if the newest segment has records.
        timestamp_ms: Latest modification time; -1 for all offsets, -2 for the first one.
    """
    if timestamp_ms == LATEST_TIMESTAMP:
        taken = len(known)
    elif timestamp_ms == EARLIEST_TIMESTAMP:
        taken = 1
    else:
        taken = next((n for n in range(len(known), 0, -1) if known[n - 1][1] <= timestamp_ms), 0)
    return [offset for offset, _ in reversed(known[:taken])][:count]


class SegmentList:
    """The segments of a log, one or more, for its readers.

    They are in the order of their first offsets, ``bases``.
    """

    def __init__(self, partition: TopicPartition, segments: tuple[Segment, ...]) -> None:
        self._partition = partition
        self.segments = segments
        self.bases = tuple(segment.base_offset for segment in segments)

    def find_slice(self, offset: int, max_bytes: int, *, whole_first: bool, before: int | None = None) -> LogSlice:
        """Return up to ``max_bytes`` of one segment, from the message or batch with ``offset`` on.

        ``before`` is the first offset of a batch at which the slice ends; None for the log's end. Details are those of
        ``PartitionLog.read``. Raises SegmentGone, LogFailed, LogDamaged.
        """
        for segment in self.segments[max(bisect_right(self.bases, offset) - 1, 0) :]:
            with self._reading(segment) as file:
                header = segment.locate(offset, file)
                if header is not None:
                    wanted = max(max_bytes, header.size) if whole_first else max(max_bytes, 0)
                    end = None if before is None else segment.locate(before, file)
                    size = min(wanted, (segment.size if end is None else end.position) - header.position)
                    file.retain()  # cannot fail: we keep it open
                    return LogSlice(file, position=header.position, size=size)
        return LogSlice()  # compaction has removed all records from here on

    def find_offset(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return timestamp and offset of the first record at or after ``timestamp_ms``.

        None if there is no such record. Raises SegmentGone, LogFailed, LogDamaged.
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
        """Return first offsets of segments by modification time, newest first; at most ``count``.

        Details are those of ``PartitionLog.offsets_before``. Raises SegmentGone, LogFailed.
        """
        known: list[tuple[int, int]] = []
        for segment in self.segments:
            with self._reading(segment) as file:
                known.append((segment.base_offset, file.modified_ms()))
        if self.segments[-1].size:
            known.append((end_offset, now_ms))
        return choose_offsets(known, timestamp_ms, max(count, 0))

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
