# SPDX-License-Identifier: Apache-2.0
"""The log of one partition in Kafka 0.6 and 0.7, whose offsets count bytes.

The offset of a message is the number of bytes that the partition has ever received before it. A segment is a file of
messages without anything around them; its name is the offset of its first byte.

Visibility
    Readers see messages once they are flushed, not before. A flush makes messages durable. It is due after
    ``flush_messages`` messages, after ``flush_interval_ms``, and before a new segment. A compressed message counts as
    one; Kafka counts those inside of it.

Recovery
    After a crash, the newest segment may end within a message, or with damaged ones. Opening the log cuts it before the
    first message that is not whole and valid, and makes the rest durable, since readers see it from then on. Older
    segments were flushed before the next one began.

Threads
    Changes can be called from any thread, and take turns. Readers take no lock: the tuple of segments is replaced as a
    whole, and the visible part of a segment only grows. A slice keeps its file open.

Example: segments ``00000000000000000000.kafka`` with 2400 bytes, and ``00000000000000002400.kafka`` with 1000, of which
600 are flushed. Offsets 0 to 3000 can be asked for, and 3000 gives no bytes. A read of 500 bytes from 2300 on gives the
100 bytes that are left of the first segment. After retention has deleted that one, 2300 is out of range.

Source: ``Log.scala``, ``FileMessageSet.scala`` and ``LogManager.scala`` of Kafka 0.7.2; frames recorded from it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from consumerd.embedded.legacy.produced_set import check_produced_set, count_valid_bytes
from consumerd.embedded.log.durable_log import DurableLog
from consumerd.embedded.log.errors import LogDamaged, LogFailed, LogOffsetOutOfRange
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.headers import CHUNK_BYTES
from consumerd.embedded.log.segment import segment_path
from consumerd.embedded.log.segment_list import choose_offsets
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.log.slices import LogSlice, SharedFile
from consumerd.model import TopicPartition
from consumerd.wire.legacy.extent import first_message_bytes

SUFFIX: Final = ".kafka"
DEFAULT_SETTINGS: Final = LogSettings(
    segment_bytes=512 << 20, flush_messages=1, max_message_bytes=1_000_000, message_format=1
)
"""Settings of a log of Kafka 0.7, but for the flush: it is due at once, where Kafka's default is 500 messages."""

_NAME: Final = re.compile(r"([0-9]{20})\.kafka")


@dataclass(slots=True, eq=False, kw_only=True)
class ByteSegment:
    """A segment of a log: a file whose first byte has the offset ``start``.

    ``size`` bytes are written, and ``visible`` of them flushed. ``first_append_ms`` is the time of the first append
    since the log was opened, in ms since the epoch; None without one.
    """

    start: int
    path: Path
    file: SharedFile
    size: int = 0
    visible: int = 0
    first_append_ms: int | None = None

    @property
    def end(self) -> int:
        """Offset at which the visible part ends."""
        return self.start + self.visible


class ByteLog(DurableLog):
    """An open log of one partition, with offsets that count bytes.

    Of ``settings``, those of size, age, flushes and the largest message apply. ``message_format`` 0 makes it a log of
    Kafka 0.6, which takes messages of magic 0 only.
    """

    def __init__(
        self,
        folder: Path,
        partition: TopicPartition,
        segments: tuple[ByteSegment, ...],
        *,
        settings: LogSettings,
        files: OsLogFiles,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(folder, partition, settings=settings, files=files, now_ms=now_ms)
        self._segments = segments
        self._unflushed = 0

    @classmethod
    def open(
        cls,
        directory: Path,
        partition: TopicPartition,
        *,
        settings: LogSettings = DEFAULT_SETTINGS,
        files: OsLogFiles,
        now_ms: Callable[[], int],
    ) -> ByteLog:
        """Open ``directory/<topic>-<number>``, creating it if necessary, and recover its newest segment.

        A new log begins at offset 0. Raises LogDamaged if bytes are missing between segments, LogFailed if the disk
        fails.
        """
        folder = directory / f"{partition.topic}-{partition.partition.number}"
        segments: list[ByteSegment] = []
        try:
            files.make_folder(folder)
            files.sync_folder(directory)  # its creator may have been killed before this step
            for start in sorted(int(match[1]) for name in files.names(folder) if (match := _NAME.fullmatch(name))):
                segments.append(_open_segment(folder, start, files))
            _check_order(partition, segments)
            if segments:
                _recover(segments[-1], files)
            else:
                segments.append(_open_segment(folder, 0, files, create=True))
                files.sync_folder(folder)
        except (OSError, LogDamaged) as error:
            for segment in segments:
                segment.file.release()
            if isinstance(error, LogDamaged):
                raise
            raise LogFailed(f"{partition}: the log in {folder} cannot be opened: {error}") from error
        return cls(folder, partition, tuple(segments), settings=settings, files=files, now_ms=now_ms)

    def __repr__(self) -> str:
        state = f", offline: {self._offline}" if self._offline else ""
        return f"<ByteLog {self.partition} [{self.start_offset}, {self.end_offset}){state}>"

    @property
    def start_offset(self) -> int:
        """The first offset that the log holds."""
        return self._segments[0].start

    @property
    def end_offset(self) -> int:
        """The offset after the last visible message: the answer to OFFSETS -1."""
        return self._segments[-1].end

    @property
    def segment_starts(self) -> tuple[int, ...]:
        """The offsets at which the segments begin."""
        return tuple(segment.start for segment in self._segments)

    # -- appending

    def append(self, message_set: bytes | memoryview) -> int:
        """Append the whole messages of a producer's set; return their size in bytes.

        All of them are written or none. They are written as they are, compressed or not. A message that is cut off at
        the end of the set is left out.

        Raises for refused sets CorruptMessageError, LogRecordTooLarge; LogWriteFailed (LogFull), after which the log is
        unchanged; LogFailed, after which it is offline.
        """
        checked = check_produced_set(message_set, self.partition, self.settings)
        with self._lock:
            self._check_online()
            if not checked.messages:
                return 0
            now_ms = self._now_ms()
            active = self._segments[-1]
            if self._must_roll(active, now_ms):
                active = self._roll(active)
            self._write(active, memoryview(message_set)[: checked.size_bytes])
            if active.first_append_ms is None:
                active.first_append_ms = now_ms
            self._unflushed += checked.messages
            self._flush_if_due(now_ms)
        return checked.size_bytes

    def _must_roll(self, active: ByteSegment, now_ms: int) -> bool:
        """Return True if a segment is over its size or age.

        It is looked at before an append, so a segment exceeds its size by the last one.
        """
        is_old = active.first_append_ms is not None and now_ms - active.first_append_ms > self.settings.segment_ms
        return active.size > self.settings.segment_bytes or is_old

    def _roll(self, active: ByteSegment) -> ByteSegment:
        """Begin a new segment once the last one is durable. Raises LogWriteFailed, LogFailed."""
        self._flush()
        try:
            segment = _open_segment(self.folder, active.start + active.size, self._files, create=True)
        except OSError as error:
            self._refuse(error, "a new segment could not be made")
        try:
            self._files.sync_folder(self.folder)
        except OSError as error:
            segment.file.release()
            self._fail(f"the name of a new segment could not be made durable: {error}", error)
        self._segments = (*self._segments, segment)
        return segment

    def _write(self, active: ByteSegment, data: memoryview) -> None:
        descriptor = active.file.descriptor
        try:
            self._files.write(descriptor, active.size, data)
        except OSError as error:
            try:
                self._files.truncate(descriptor, active.size)
            except OSError as second:
                self._fail(f"a write failed, and the segment could not be cut back: {second}", error)
            self._refuse(error, "the messages could not be written")
        active.size += len(data)

    # -- flushes

    @property
    def unflushed(self) -> int:
        """Number of messages appended since the last flush, which readers do not see."""
        return self._unflushed

    def _flush(self) -> None:
        """Make all messages durable and visible."""
        active = self._segments[-1]
        if active.visible < active.size:
            try:
                self._files.sync(active.file.descriptor)
            except OSError as error:
                self._fail(f"fsync failed, and it is unknown what is durable: {error}", error)
            active.visible = active.size
        self._unflushed = 0
        self._flushed_ms = self._now_ms()

    # -- reading

    def read(self, offset: int, max_bytes: int) -> LogSlice:
        """Return up to ``max_bytes`` of one segment, from a byte offset on.

        The bytes are those at the offset, also if it is inside of a message, and may end inside of one. At the end of
        the visible messages, the slice is empty and has no file. The caller closes the slice.

        Raises LogOffsetOutOfRange below the first segment and beyond the visible end, LogFailed.
        """
        self._check_online()
        while True:
            segments = self._segments
            start, end = segments[0].start, segments[-1].end
            if not start <= offset <= end:
                raise LogOffsetOutOfRange(self.partition, offset, start, end)
            if offset == end:
                return LogSlice()
            segment = segments[bisect_right(segments, offset, key=lambda one: one.start) - 1]
            if segment.file.retain():
                position = offset - segment.start
                size = max(0, min(max_bytes, segment.visible - position))
                return LogSlice(segment.file, position=position, size=size)
            self._check_online()  # else the segment was deleted meanwhile, and is not in the next list

    def offsets_before(self, timestamp_ms: int, count: int) -> list[int]:
        """Return first offsets of segments by modification time, newest first; at most ``count``.

        Only segments last written at ``timestamp_ms`` or before are included. The end of the visible messages is
        included, too, as if written now, unless the newest segment has none. A ``timestamp_ms`` of -1 includes all
        segments, -2 the oldest one alone. Raises LogFailed.
        """
        with self._lock:  # no segment is deleted meanwhile
            self._check_online()
            known = [(segment.start, self._modified_ms(segment)) for segment in self._segments]
            active = self._segments[-1]
            if active.visible:
                known.append((active.end, self._now_ms()))
        return choose_offsets(known, timestamp_ms, count)

    def _modified_ms(self, segment: ByteSegment) -> int:
        try:
            return segment.file.modified_ms()
        except OSError as error:
            raise LogFailed(f"{self.partition}: {segment.path.name} cannot be read: {error}") from error

    # -- retention

    def apply_retention(self) -> int:
        """Delete the oldest segments that exceed the log's limits of age or size.

        A segment is deleted as a whole; the offsets below its end are then out of range. Returns the number of deleted
        segments. If all have exceeded the limit of age, a new, empty one is begun at the log's end; an empty log is
        kept. Raises LogWriteFailed, LogFailed.
        """
        gone = 0
        with self._lock:
            self._check_online()
            now_ms = self._now_ms()
            while self._is_oldest_expired(now_ms):
                if len(self._segments) == 1:
                    self._roll(self._segments[0])
                oldest, *kept = self._segments
                self._segments = tuple(kept)
                try:
                    self._files.unlink(oldest.path)
                    self._files.sync_folder(self.folder)
                except OSError as error:
                    self._fail(f"a segment could not be deleted: {error}", error)
                finally:
                    oldest.file.release()
                gone += 1
        return gone

    def _is_oldest_expired(self, now_ms: int) -> bool:
        sizes = [segment.size for segment in self._segments]
        return self._is_expired(sizes, lambda: self._modified_ms(self._segments[0]), now_ms)

    def compact(self) -> bool:
        """Return False: messages of this generation have no keys, so logs are not compacted."""
        return False

    # -- the end

    def close(self) -> None:
        """Make all messages durable and close the files. Idempotent.

        Readers of a file keep it open. Raises LogFailed if the log is offline or its flush fails.
        """
        with self._lock:
            if self._offline == _CLOSED:
                return
            try:
                self.flush()
            finally:
                self._offline = _CLOSED
                for segment in self._segments:
                    segment.file.release()


_CLOSED: Final = "it was closed"


def _open_segment(folder: Path, start: int, files: OsLogFiles, *, create: bool = False) -> ByteSegment:
    """Open a segment's file; all that is in it counts as visible. Raises OSError."""
    path = segment_path(folder, start, SUFFIX)
    file = SharedFile(files, files.open(path, create=create))
    try:
        if create:
            files.truncate(file.descriptor, 0)
        size = files.size(file.descriptor)
    except BaseException:
        file.release()
        raise
    return ByteSegment(start=start, path=path, file=file, size=size, visible=size)


def _check_order(partition: TopicPartition, segments: list[ByteSegment]) -> None:
    for one, following in pairwise(segments):
        if one.end != following.start:
            raise LogDamaged(
                f"{partition}: segment {one.path.name} ends at offset {one.end}, the next one begins at "
                f"{following.start}: restore the missing file, or delete the older segments"
            )


def _recover(segment: ByteSegment, files: OsLogFiles) -> None:
    """Cut a segment before the first unreadable message, and make the rest durable.

    Raises OSError. The rest is written again, with the file's time: an ``fsync`` of the previous process may have
    failed, after which the kernel keeps pages that it believes to be on the disk.
    """
    if not segment.size:
        return
    modified_ms = segment.file.modified_ms()
    position, step = 0, CHUNK_BYTES
    while position < segment.size:
        data = segment.file.read(position, step)
        valid = count_valid_bytes(data)
        if valid:
            files.write(segment.file.descriptor, position, memoryview(data)[:valid])
            position, step = position + valid, CHUNK_BYTES
            continue
        claimed = first_message_bytes(data)
        if not claimed or not len(data) < claimed <= segment.size - position:
            break
        step = claimed  # a message larger than a step, which may be valid
    if position < segment.size:
        files.truncate(segment.file.descriptor, position)
        segment.size = segment.visible = position
    files.set_modified_ms(segment.file.descriptor, modified_ms)
    # a killed process leaves what it had not flushed, and readers see that from now on
    files.sync(segment.file.descriptor)
