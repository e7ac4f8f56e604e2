# SPDX-License-Identifier: Apache-2.0
"""The log of one partition: appends, reads, retention, compaction.

One replica: the high watermark is the log's end, and appended records can be read at once, flushed or not. Appends,
flushes, retention, compaction and closing can be called from any thread, and take turns. Readers take no lock: they use
an immutable list of segments, which is replaced as a whole, and the part of a segment that existed when they began. A
slice keeps its file open.

After a failed write, the newest segment is cut to its previous size, and the log continues. A failed ``fsync`` or cut
takes the log offline, for reads too: the state of the disk is then unknown, and the next ``fsync`` would succeed
without writing what the failed one has lost. Opening the log again checks the files.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from consumerd.embedded.log.compaction import (
    LastOffsets,
    dirty_ratio,
    drop_cleaned,
    plan_groups,
    read_last_offsets,
    write_cleaned,
)
from consumerd.embedded.log.errors import (
    LogDamaged,
    LogFailed,
    LogFull,
    LogOffsetOutOfRange,
    LogWriteFailed,
    RecordSetTooLarge,
)
from consumerd.embedded.log.expansion import Expansion
from consumerd.embedded.log.files import LogFileSystem
from consumerd.embedded.log.preparation import Prepared, prepare
from consumerd.embedded.log.recovery import open_segments, place_swapped
from consumerd.embedded.log.segment import Segment
from consumerd.embedded.log.segment_list import EARLIEST, LATEST, SegmentGone, SegmentList
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.log.slices import LogSlice
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition

__all__ = ["EARLIEST", "LATEST", "Appended", "PartitionLog"]

T = TypeVar("T")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of an append: ``count`` records from ``base_offset`` to ``last_offset``.

    Offsets are -1 if there were no records. ``log_append_time_ms`` is None unless the records have the broker's time.
    ``size_bytes`` were added to the log.
    """

    base_offset: int
    last_offset: int
    count: int
    log_append_time_ms: int | None = None
    size_bytes: int = 0


class PartitionLog:
    """An open log.

    ``start_offset`` is the first offset held, ``end_offset`` the next to be written.
    """

    def __init__(
        self,
        folder: Path,
        partition: TopicPartition,
        segments: tuple[Segment, ...],
        *,
        settings: LogSettings,
        files: LogFileSystem,
        now_ms: Callable[[], int],
        cleaned_to: int = 0,
    ) -> None:
        self.partition = partition
        self.folder = folder
        self.settings = settings
        self.end_offset = segments[-1].next_offset
        self.recovery_point = self.end_offset
        self._list = SegmentList(partition, segments)
        self._files = files
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._offline: str | None = None
        self._flushed_ms = now_ms()
        self._cleaning = threading.Lock()
        self.cleaned_to = min(cleaned_to, segments[-1].base_offset)

    @classmethod
    def open(
        cls,
        directory: Path,
        partition: TopicPartition,
        *,
        settings: LogSettings,
        files: LogFileSystem,
        now_ms: Callable[[], int],
        clean: bool = False,
        recovery_point: int | None = None,
        cleaned_to: int = 0,
    ) -> PartitionLog:
        """Open ``directory/<topic>-<partition>``, creating it if necessary, and recover it.

        Raises LogFailed if the disk fails.

        Args:
            directory: The directory of the logs of all partitions.
            clean: With ``recovery_point`` and ``cleaned_to``, the directory's record of the last shutdown (see
                ``log_directory``). By default nothing is known, and the newest segment is checked.
        """
        folder = directory / f"{partition.topic}-{partition.partition}"
        try:
            if not files.is_folder(folder):
                files.make_folder(folder)
            files.sync_folder(directory)  # its creator may have been killed before this step
            recovered = open_segments(
                folder,
                files,
                index_interval_bytes=settings.index_interval_bytes,
                clean=clean,
                recovery_point=recovery_point,
            )
        except OSError as error:
            raise LogFailed(f"{partition}: the log in {folder} cannot be opened: {error}") from error
        return cls(
            folder,
            partition,
            recovered.segments,
            settings=settings,
            files=files,
            now_ms=now_ms,
            cleaned_to=cleaned_to,
        )

    def __repr__(self) -> str:
        state = f", offline: {self._offline}" if self._offline else ""
        return f"<PartitionLog {self.partition} [{self.start_offset}, {self.end_offset}){state}>"

    @property
    def start_offset(self) -> int:
        """The first offset held."""
        return self._list.bases[0]

    @property
    def newest_segment_offset(self) -> int:
        """Base offset of the segment that is appended to."""
        return self._list.bases[-1]

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size for segment in self._list.segments)

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._list.segments)

    # --- appending -----------------------------------------------------------------------------------------------

    def append(self, record_set: bytes | bytearray | memoryview, expansion: Expansion | None = None) -> Appended:
        """Assign offsets to produced records, and write them in the log's message format.

        All of them are written or none. Readers see them when this returns; they are durable after the next flush at
        the latest. ``expansion`` is shared by the sets of one request.

        Raises for refused records CorruptMessageError (UnsupportedForFormat), LogRecordTooLarge, RecordSetTooLarge,
        InvalidTimestamp; LogWriteFailed (LogFull), after which the log is unchanged; LogFailed, after which it is
        offline.
        """
        with self._lock:
            self._check_online()
            now_ms = self._now_ms()
            prepared = prepare(record_set, self.partition, self.end_offset, self.settings, now_ms, expansion)
            if not prepared.units:
                return Appended(base_offset=-1, last_offset=-1, count=0)
            if len(prepared.data) > self.settings.segment_bytes:
                raise RecordSetTooLarge(self.partition, len(prepared.data), self.settings.segment_bytes)
            active = self._list.segments[-1]
            if self._must_roll(active, prepared, now_ms):
                active = self._roll(active, now_ms)
            self._write(active, prepared)
            self.end_offset = active.next_offset
            self._flush_if_due(now_ms)
            return Appended(
                base_offset=prepared.base_offset,
                last_offset=self.end_offset - 1,
                count=prepared.count,
                log_append_time_ms=prepared.log_append_time_ms,
                size_bytes=len(prepared.data),
            )

    def _must_roll(self, active: Segment, prepared: Prepared, now_ms: int) -> bool:
        """Return True if a new segment is due, as in Kafka's LogSegment.shouldRoll.

        It depends on size, on age (by the records' timestamps, if they have any), and on full indexes.
        """
        if not active.size:
            return False
        newest = max(unit.max_timestamp for unit in prepared.units)
        has_time = active.first_timestamp >= 0
        age_ms = newest - active.first_timestamp if has_time else now_ms - active.created_ms
        return (
            active.size + len(prepared.data) > self.settings.segment_bytes
            or age_ms > self.settings.segment_ms
            or active.indexes_full(self.settings.segment_index_bytes)
            or not active.takes(prepared.units[-1].last_offset)
        )

    def _roll(self, active: Segment, now_ms: int) -> Segment:
        """Begin a new segment once the last one is durable. Raises LogWriteFailed, LogFailed."""
        self._sync(active)
        segment = Segment(
            self.folder, self.end_offset, self._files, index_interval_bytes=self.settings.index_interval_bytes
        )
        try:
            active.write_indexes()
            segment.open(create=True)
        except OSError as error:
            self._refuse(error, "a new segment could not be made")
        try:
            segment.cut()
            self._files.sync_folder(self.folder)
        except OSError as error:
            segment.close()
            self._fail(f"the name of a new segment could not be made durable: {error}", error)
        segment.created_ms = now_ms
        self._list = SegmentList(self.partition, (*self._list.segments, segment))
        return segment

    def _write(self, active: Segment, prepared: Prepared) -> None:
        try:
            active.append(prepared.data, prepared.units)
        except OSError as error:
            try:
                active.cut()
            except OSError as second:
                self._fail(f"a write failed, and the segment could not be cut back: {second}", error)
            self._refuse(error, "the records could not be written")

    def _refuse(self, error: OSError, what: str) -> NoReturn:
        kind = LogFull if error.errno in _FULL else LogWriteFailed
        raise kind(f"{self.partition}: {what}: {error}") from error

    # --- durability ----------------------------------------------------------------------------------------------

    @property
    def unflushed(self) -> int:
        """Number of offsets written since the last flush."""
        return self.end_offset - self.recovery_point

    def flush(self) -> None:
        """Make all appended records durable. Raises LogFailed, after which the log is offline."""
        with self._lock:
            self._check_online()
            self._flush()

    def flush_if_due(self) -> None:
        """Flush if ``flush_interval_ms`` has passed since the last flush. Raises LogFailed.

        Called by a timer.
        """
        with self._lock:
            if self._offline is None:
                self._flush_if_due(self._now_ms())

    def _flush_if_due(self, now_ms: int) -> None:
        messages, interval_ms = self.settings.flush_messages, self.settings.flush_interval_ms
        if (messages is not None and self.unflushed >= messages) or (
            interval_ms is not None and self.unflushed and now_ms - self._flushed_ms >= interval_ms
        ):
            self._flush()

    def _flush(self) -> None:
        if self.unflushed:
            self._sync(self._list.segments[-1])
        self._flushed_ms = self._now_ms()

    def _sync(self, active: Segment) -> None:
        try:
            active.sync()
        except OSError as error:
            self._fail(f"fsync failed, and it is unknown what is durable: {error}", error)
        self.recovery_point = self.end_offset

    def _check_online(self) -> None:
        if self._offline is not None:
            raise LogFailed(f"{self.partition}: the log is offline: {self._offline}")

    def _fail(self, why: str, error: OSError) -> NoReturn:
        self._offline = why
        raise LogFailed(f"{self.partition}: the log is offline: {why}") from error

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, whole_first: bool) -> LogSlice:
        """Return up to ``max_bytes`` of one segment, from the unit with ``offset`` on.

        The last unit may be cut; readers detect that by its size. If the first unit is cut, since it exceeds
        ``max_bytes``, the reader tries again with twice as much. With ``whole_first``, the first unit is always
        complete (Fetch v3 and later). At the log's end the slice is empty. The caller closes it.

        Raises LogOffsetOutOfRange, LogFailed, LogDamaged.
        """

        def look(segments: SegmentList, end: int) -> LogSlice:
            if not segments.bases[0] <= offset <= end:
                raise LogOffsetOutOfRange(self.partition, offset, segments.bases[0], end)
            if offset == end:
                return LogSlice(None, first_offset=offset)
            return segments.find_slice(offset, max_bytes, whole_first=whole_first)

        return self._search(look)

    def find_offset(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return timestamp and offset of the first record at or after ``timestamp_ms``, or None.

        Raises LogFailed, LogDamaged.
        """
        return self._search(lambda segments, _: segments.find_offset(timestamp_ms))

    def offsets_before(self, timestamp_ms: int, count: int) -> list[int]:
        """Return up to ``count`` start offsets of segments by modification time, newest first.

        These are segments last written at ``timestamp_ms`` or before. The log's end counts as written now. -1 stands
        for all of these, -2 for the oldest (ListOffsets v0; Kafka's Log.legacyFetchOffsetsBefore). Raises LogFailed.
        """
        return self._search(lambda segments, end: segments.offsets_before(timestamp_ms, count, end, self._now_ms()))

    def _search(self, look: Callable[[SegmentList, int], T]) -> T:
        """Search the current list of segments, again if a segment is deleted meanwhile."""
        while True:
            self._check_online()
            end = self.end_offset  # read before the list, so the list has everything below it
            try:
                return look(self._list, end)
            except SegmentGone:
                continue

    # --- cleaning ------------------------------------------------------------------------------------------------

    def apply_retention(self) -> int:
        """Delete the oldest segments that exceed age or size; return how many.

        The newest segment may be too old as well, if it has records: an empty one replaces it. Waits for a compaction.
        Raises LogWriteFailed, LogFailed.
        """
        if not self.settings.cleanup_policy.deletes:
            return 0
        gone = 0
        with self._cleaning, self._lock:
            self._check_online()
            now_ms = self._now_ms()
            while self._oldest_expired(now_ms):
                if self.segment_count == 1:
                    self._roll(self._list.segments[0], now_ms)
                oldest, *kept = self._list.segments
                self._list = SegmentList(self.partition, tuple(kept))
                try:
                    oldest.remove()
                    self._files.sync_folder(self.folder)
                except OSError as error:
                    self._fail(f"a segment could not be deleted: {error}", error)
                finally:
                    oldest.close()
                gone += 1
        return gone

    def _oldest_expired(self, now_ms: int) -> bool:
        oldest = self._list.segments[0]
        if self.segment_count == 1 and not oldest.size:
            return False
        by_size, by_age = self.settings.retention_bytes, self.settings.retention_ms
        if by_size is not None and self.size_bytes - oldest.size >= by_size and self.segment_count > 1:
            return True
        try:
            return by_age is not None and now_ms - oldest.newest_ms() > by_age
        except OSError as error:
            raise LogFailed(f"{self.partition}: {oldest.path.name} cannot be read: {error}") from error

    def compact(self, *, min_ratio: float | None = None) -> bool:
        """Compact all segments but the newest, if enough of them is not compacted yet.

        That is a share of at least ``min_ratio`` (by default ``min_cleanable_ratio``). Returns True if something was
        done. Reads and appends continue meanwhile, except for the moment in which a segment is replaced.

        Raises LogWriteFailed, after which the log is unchanged; LogFailed; LogDamaged.
        """
        if not self.settings.cleanup_policy.compacts:
            return False
        with self._cleaning:
            self._check_online()
            *segments, active = self._list.segments
            ratio = dirty_ratio(segments, self.cleaned_to)
            if not ratio or ratio < (self.settings.min_cleanable_ratio if min_ratio is None else min_ratio):
                return False
            try:
                last = read_last_offsets(
                    segments, self.cleaned_to, active.base_offset, self.partition, self.settings.cleaner_keys
                )
                clean = [segment for segment in segments if segment.base_offset < self.cleaned_to]
                horizon_ms = clean[-1].modified_ms() - self.settings.delete_retention_ms if clean else 0
                to_clean = [segment for segment in segments if segment.base_offset < last.end]
                groups = plan_groups(to_clean, self.settings.segment_bytes, horizon_ms)
            except OSError as error:
                raise LogFailed(f"{self.partition}: a segment cannot be read: {error}") from error
            except CorruptMessageError as error:
                raise LogDamaged(f"{self.partition}: the log cannot be compacted: {error}") from error
            for group in groups:
                self._replace(group, self._write_cleaned(group, last, horizon_ms))
            self.cleaned_to = last.end
            return True

    def _write_cleaned(self, group: Sequence[Segment], last: LastOffsets, horizon_ms: int) -> Segment:
        try:
            return write_cleaned(group, last, horizon_ms, self.partition, self.settings, self._files)
        except (OSError, CorruptMessageError) as error:
            try:
                drop_cleaned(self.folder, group[0].base_offset, self._files)
            except OSError as second:
                self._fail(f"an unfinished compaction could not be removed: {second}", second)
            if isinstance(error, OSError):
                self._refuse(error, "a compacted segment could not be written")
            raise LogDamaged(f"{self.partition}: the log cannot be compacted: {error}") from error

    def _replace(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """Replace a group of segments by a compacted one, a durable ``.swap`` file."""
        with self._lock:
            if self._offline is not None:
                cleaned.close()
                self._check_online()
            try:
                place_swapped(self.folder, cleaned.base_offset, group[-1].base_offset + 1, self._files)
                cleaned.write_indexes()
            except OSError as error:
                cleaned.close()
                self._fail(f"a compacted segment could not take its place: {error}", error)
            kept = self._list.segments
            at = kept.index(group[0])
            self._list = SegmentList(self.partition, (*kept[:at], cleaned, *kept[at + len(group) :]))
            for segment in group:
                segment.close()

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make all records durable and close the files. Idempotent. Slices keep their files open.

        Waits for a compaction. Raises LogFailed if the shutdown is not clean: the log is offline, or goes offline now.
        """
        with self._cleaning, self._lock:
            if self._offline == _CLOSED:
                return
            try:
                self.flush()
                self._list.segments[-1].write_indexes()
            except OSError as error:
                self._fail(f"the indexes could not be written: {error}", error)
            finally:
                self._close_files(_CLOSED)

    def discard(self) -> None:
        """Close the files without making anything durable: the log will be deleted.

        Waits for a compaction.
        """
        with self._cleaning, self._lock:
            self._close_files(_DISCARDED)

    def _close_files(self, why: str) -> None:
        self._offline = self._offline or why
        for segment in self._list.segments:
            segment.close()


_CLOSED: Final = "it was closed"
_DISCARDED: Final = "it was discarded"
