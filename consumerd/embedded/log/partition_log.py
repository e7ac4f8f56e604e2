# SPDX-License-Identifier: Apache-2.0
"""The log of one partition: appends, reads, retention, compaction.

One replica: the high watermark is the log's end, and appended records can be read at once, flushed or not. Appends,
flushes, retention, compaction and closing can be called from any thread, and take turns. Readers take no lock: they use
an immutable list of segments, which is replaced as a whole, and the part of a segment that existed when they began. A
slice keeps its file open.

After a failed write, the newest segment is cut to its previous size, and the log continues. A failed ``fsync`` or cut
takes the log offline, for reads too: the state of the disk is then unknown, and the next ``fsync`` would succeed
without writing what the failed one has lost. Opening the log again checks the files.

Batches of producers with an id are checked against those in the log (``producers``). The first offset of an open
transaction is set before the log's end, and removed after it, so that no reader takes its records for committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from consumerd.embedded.log.compaction import (
    LastOffsets,
    dirty_ratio,
    plan_groups,
    read_last_offsets,
    write_cleaned,
)
from consumerd.embedded.log.durable_log import DurableLog
from consumerd.embedded.log.errors import (
    LogDamaged,
    LogFailed,
    LogOffsetOutOfRange,
    RecordSetTooLarge,
)
from consumerd.embedded.log.expansion import Expansion
from consumerd.embedded.log.files import OsLogFiles, write_file
from consumerd.embedded.log.headers import UnitWalker, walk_headers
from consumerd.embedded.log.preparation import Prepared, prepare
from consumerd.embedded.log.producers import AbortedSpan, LogProducers, OwnedBatch, find_owner, find_owners
from consumerd.embedded.log.recovery import CLEANED_ENDING, open_segments, place_swapped
from consumerd.embedded.log.segment import LOG_SUFFIX, Segment, remove_segment, segment_path
from consumerd.embedded.log.segment_list import SegmentGone, SegmentList
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.log.slices import LogSlice
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.extent import BATCH_MAGIC

T = TypeVar("T")

PRODUCERS_NAME: Final = "producers"
"""Name of an empty file in the folder of a log that has batches of producers with an id.

Only such a log is read when it is opened, to find its producers and transactions again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of an append: ``count`` records from ``base_offset`` to ``last_offset``.

    Offsets are -1 if there were no records. ``log_append_time_ms`` is the broker's time, in ms since the epoch, if the
    records got it as their timestamp, else None. ``size_bytes`` is the number of bytes added to the log.
    """

    base_offset: int
    last_offset: int
    count: int
    log_append_time_ms: int | None = None
    size_bytes: int = 0


class PartitionLog(DurableLog):
    """An open log of one partition, in segment files.

    ``start_offset`` is the first offset held, ``end_offset`` the next to be written.
    """

    def __init__(
        self,
        folder: Path,
        partition: TopicPartition,
        segments: tuple[Segment, ...],
        *,
        settings: LogSettings,
        files: OsLogFiles,
        now_ms: Callable[[], int],
        cleaned_to: int = 0,
    ) -> None:
        super().__init__(folder, partition, settings=settings, files=files, now_ms=now_ms)
        self.end_offset = segments[-1].next_offset
        self.recovery_point = self.end_offset
        self._list = SegmentList(partition, segments)
        self._cleaning = threading.Lock()
        self.cleaned_to = min(cleaned_to, segments[-1].base_offset)
        self._producers = LogProducers(partition)
        self._has_producers = False

    @classmethod
    def open(
        cls,
        directory: Path,
        partition: TopicPartition,
        *,
        settings: LogSettings,
        files: OsLogFiles,
        now_ms: Callable[[], int],
        clean: bool = False,
        recovery_point: int | None = None,
        cleaned_to: int = 0,
    ) -> PartitionLog:
        """Open ``directory/<topic>-<partition>``, creating it if necessary, and recover it.

        Raises LogFailed if the disk fails.

        Args:
            directory: The directory of the logs of all partitions.
            clean: True if the last process closed the log. By default this is unknown, and the newest segment is
                checked.
            recovery_point: Offset below which all records are durable; None if unknown.
            cleaned_to: Offset up to which the log is compacted.
        """
        folder = directory / f"{partition.topic}-{partition.partition}"
        try:
            if not files.is_folder(folder):
                files.make_folder(folder)
            files.sync_folder(directory)  # its creator may have been killed before this step
            segments = open_segments(
                folder,
                files,
                index_interval_bytes=settings.index_interval_bytes,
                clean=clean,
                recovery_point=recovery_point,
            )
        except OSError as error:
            raise LogFailed(f"{partition}: the log in {folder} cannot be opened: {error}") from error
        log = cls(
            folder,
            partition,
            segments,
            settings=settings,
            files=files,
            now_ms=now_ms,
            cleaned_to=cleaned_to,
        )
        try:
            log._find_producers()
        except (OSError, CorruptMessageError) as error:
            log.discard()
            raise LogFailed(f"{partition}: the log in {folder} cannot be read: {error}") from error
        return log

    def _find_producers(self) -> None:
        """Find the producers of the log again. Raises OSError, CorruptMessageError."""
        self._has_producers = PRODUCERS_NAME in self._files.names(self.folder)
        if not self._has_producers:
            return
        for segment in self._list.segments:
            walker = UnitWalker(segment.file.read, 0, segment.size)
            for header in walker:
                if header.magic == BATCH_MAGIC and (owner := find_owner(walker.unit(header))) is not None:
                    self._producers.note(owner)

    def __repr__(self) -> str:
        state = f", offline: {self._offline}" if self._offline else ""
        return f"<PartitionLog {self.partition} [{self.start_offset}, {self.end_offset}){state}>"

    @property
    def start_offset(self) -> int:
        """The first offset that the log holds."""
        return self._list.bases[0]

    @property
    def newest_segment_offset(self) -> int:
        """First offset of the newest segment, to which records are appended."""
        return self._list.bases[-1]

    @property
    def size_bytes(self) -> int:
        """Size of the log's segments in bytes, without their indexes."""
        return sum(segment.size for segment in self._list.segments)

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._list.segments)

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction; without one the log's end."""
        end = self.end_offset
        unstable = self._producers.first_unstable
        return end if unstable is None else min(unstable, end)

    def list_aborted(self, start: int, end: int) -> list[AbortedSpan]:
        """Return the aborted transactions of which records may be in ``[start, end)``."""
        return self._producers.list_aborted(start, end)

    # --- appending -----------------------------------------------------------------------------------------------

    def append(self, record_set: bytes | bytearray | memoryview, expansion: Expansion | None = None) -> Appended:
        """Assign offsets to produced records, and write them in the log's message format.

        All of them are written or none. Readers see them when this returns; they are durable after the next flush at
        the latest.

        Raises for refused records CorruptMessageError (UnsupportedForFormat), LogRecordTooLarge, RecordSetTooLarge,
        InvalidTimestamp, SequenceGap, ForgottenProducer, StaleEpoch; LogWriteFailed (LogFull), after which the log is
        unchanged; LogFailed, after which it is offline.

        Args:
            record_set: Messages or record batches, as a Produce request has them.
            expansion: Limit of the decompressed size, shared by all appends of one request; None for no such limit.
        """
        with self._lock:
            self._check_online()
            now_ms = self._now_ms()
            prepared = prepare(record_set, self.partition, self.end_offset, self.settings, now_ms, expansion)
            if not prepared.units:
                return Appended(base_offset=-1, last_offset=-1, count=0)
            owners = find_owners(prepared.data, prepared.units)
            for owner in owners:
                if (known := self._producers.check(owner)) is not None:
                    # as Kafka does, with the newest timestamp of the batch as that of the append
                    return Appended(
                        base_offset=known.base_offset,
                        last_offset=known.last_offset,
                        count=known.last_offset - known.base_offset + 1,
                        log_append_time_ms=known.max_timestamp,
                    )
            return self._append_prepared(prepared, owners, now_ms)

    def append_own(self, build: Callable[[int], bytes]) -> Appended:
        """Write a batch of the broker itself, such as a transaction's marker.

        It has no sequence number. Raises StaleEpoch, and the errors of a failed write as :meth:`append`.

        Args:
            build: Returns the batch, given its base offset.
        """
        with self._lock:
            self._check_online()
            data = build(self.end_offset)
            units = list(walk_headers(data))
            count = units[-1].last_offset - units[0].offset + 1
            prepared = Prepared(
                data=data, units=units, base_offset=self.end_offset, count=count, log_append_time_ms=None
            )
            owners = find_owners(prepared.data, prepared.units)
            for owner in owners:
                self._producers.check_epoch(owner.producer_id, owner.epoch)
            return self._append_prepared(prepared, owners, self._now_ms())

    def _append_prepared(self, prepared: Prepared, owners: Sequence[OwnedBatch], now_ms: int) -> Appended:
        if len(prepared.data) > self.settings.segment_bytes:
            raise RecordSetTooLarge(self.partition, len(prepared.data), self.settings.segment_bytes)
        if owners:
            self._mark_producers()
        active = self._list.segments[-1]
        if self._must_roll(active, prepared, now_ms):
            active = self._roll(active, now_ms)
        self._write(active, prepared)
        for owner in owners:
            if not owner.is_control:
                self._producers.note(owner)
        self.end_offset = active.next_offset
        for owner in owners:
            if owner.is_control:
                self._producers.note(owner)
        self._flush_if_due(now_ms)
        return Appended(
            base_offset=prepared.base_offset,
            last_offset=self.end_offset - 1,
            count=prepared.count,
            log_append_time_ms=prepared.log_append_time_ms,
            size_bytes=len(prepared.data),
        )

    def _mark_producers(self) -> None:
        """Note durably that the log has producers with an id. Raises LogWriteFailed."""
        if not self._has_producers:
            try:
                write_file(self.folder / PRODUCERS_NAME, b"", self._files)
                self._files.sync_folder(self.folder)
            except OSError as error:
                self._refuse(error, "the file that tells of producers could not be written")
            self._has_producers = True

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

    # --- durability ----------------------------------------------------------------------------------------------

    @property
    def unflushed(self) -> int:
        """Number of offsets written since the last flush."""
        return self.end_offset - self.recovery_point

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

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, whole_first: bool, before: int | None = None) -> LogSlice:
        """Return up to ``max_bytes`` of one segment, from the message or batch with ``offset`` on.

        The last message or batch may be cut off; readers detect that by its size. If the first one is larger than
        ``max_bytes``, it is cut off, too, and the reader must ask for more; with ``whole_first`` (Fetch v3 and later)
        the first one is always complete. At the log's end the slice is empty. With ``before``, the last stable offset,
        the slice ends there at the latest. The caller closes the slice.

        Raises LogOffsetOutOfRange, LogFailed, LogDamaged.
        """

        def look(segments: SegmentList, end: int) -> LogSlice:
            if not segments.bases[0] <= offset <= end:
                raise LogOffsetOutOfRange(self.partition, offset, segments.bases[0], end)
            if offset == end or (before is not None and offset >= before):
                return LogSlice()
            limit = before if before is not None and before < end else None
            return segments.find_slice(offset, max_bytes, whole_first=whole_first, before=limit)

        return self._search(look)

    def find_offset(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return timestamp and offset of the first record at or after ``timestamp_ms``.

        ``timestamp_ms`` is in ms since the Unix epoch. None if there is no such record. Raises LogFailed, LogDamaged.
        """
        return self._search(lambda segments, _: segments.find_offset(timestamp_ms))

    def offsets_before(self, timestamp_ms: int, count: int) -> list[int]:
        """Return first offsets of segments by modification time, newest first; at most ``count``.

        Only segments last written at ``timestamp_ms`` or before are included. The log end offset is included, too, as
        if written now. A ``timestamp_ms`` of -1 includes all segments, -2 the oldest one alone (ListOffsets v0; Kafka's
        Log.legacyFetchOffsetsBefore). Raises LogFailed.
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
        """Delete the oldest segments that exceed the log's limits of age or size.

        Returns the number of deleted segments. If the newest segment has records and exceeds the limit of age, a new,
        empty one is begun, and the old one deleted. Waits for a compaction. Raises LogWriteFailed, LogFailed.
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
                    remove_segment(self.folder, oldest.base_offset, self._files)
                    self._files.sync_folder(self.folder)
                except OSError as error:
                    self._fail(f"a segment could not be deleted: {error}", error)
                finally:
                    oldest.close()
                gone += 1
            self._producers.forget_before(self.start_offset)
        return gone

    def _oldest_expired(self, now_ms: int) -> bool:
        oldest, sizes = self._list.segments[0], [segment.size for segment in self._list.segments]
        try:
            return self._is_expired(sizes, oldest.newest_ms, now_ms)
        except OSError as error:
            raise LogFailed(f"{self.partition}: {oldest.path.name} cannot be read: {error}") from error

    def compact(self, *, min_ratio: float | None = None) -> bool:
        """Compact all segments but the newest, if a sufficient share is not compacted yet.

        Sufficient is ``min_ratio`` of their bytes (0 to 1; by default the setting ``min_cleanable_ratio``). Returns
        True if the log was compacted. Reads and appends continue meanwhile, except for the moment in which a segment is
        replaced.

        Raises LogWriteFailed, after which the log is unchanged; LogFailed; LogDamaged.
        """
        if not self.settings.cleanup_policy.compacts:
            return False
        with self._cleaning:
            self._check_online()
            *segments, active = self._list.segments
            end = active.base_offset
            # what an open transaction has written may still be aborted
            if unstable := [one for one in segments if one.next_offset > self.last_stable_offset]:
                end = unstable[0].base_offset
                segments = [one for one in segments if one.base_offset < end]
            ratio = dirty_ratio(segments, self.cleaned_to)
            if not ratio or ratio < (self.settings.min_cleanable_ratio if min_ratio is None else min_ratio):
                return False
            try:
                last = read_last_offsets(
                    segments, self.cleaned_to, end, self.partition, self.settings.cleaner_keys, self._producers.aborted
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
            return write_cleaned(
                group, last, horizon_ms, self.partition, self.settings, self._files, self._producers.aborted
            )
        except (OSError, CorruptMessageError) as error:
            try:
                self._files.unlink(segment_path(self.folder, group[0].base_offset, LOG_SUFFIX + CLEANED_ENDING))
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
        """Make all records durable and close the files. Idempotent.

        Readers of a file keep it open. Waits for a compaction. Raises LogFailed if the log is not closed cleanly,
        because it is offline or its flush fails.
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
        """Close the files without making records durable, because the log will be deleted.

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
