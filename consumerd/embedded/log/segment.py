# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: a file of messages or batches, and two indexes.

A unit is a message or a record batch. A segment is named after its first offset. It is written by one thread at a time,
and read by any number without a lock: ``size`` grows when the bytes below it are in the file, and these never change.
Files: ``<20 digits>.log``, ``.index``, ``.timeindex``, as in Kafka's LogSegment. An entry of the offset index has the
offset in the header of its unit: the first one of a record batch, the last one of a compressed wrapper.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from consumerd.embedded.log.errors import LogDamaged
from consumerd.embedded.log.files import OsLogFiles, find_content, write_file
from consumerd.embedded.log.headers import NEAR_BYTES, UnitHeader, UnitWalker
from consumerd.embedded.log.index import MOST_RELATIVE, OFFSET_ENTRY_BYTES, TIME_ENTRY, OffsetIndex, TimeIndex
from consumerd.embedded.log.slices import SharedFile
from consumerd.errors import CorruptMessageError

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)

_NAME = re.compile(r"([0-9]{20})\.log")


def segment_path(folder: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    """Return the path of one of a segment's files.

    ``suffix`` is its kind, such as ``.index``.
    """
    return folder / f"{base_offset:020d}{suffix}"


def find_base_offset(name: str, ending: str = "") -> int | None:
    """Return a segment's first offset from its file name, or None.

    None if the file is no segment's. ``ending`` is the ending after ``.log``, such as ``.swap``.
    """
    found = _NAME.fullmatch(name.removesuffix(ending)) if name.endswith(ending) else None
    return int(found[1]) if found else None


def remove_segment(folder: Path, base_offset: int, files: OsLogFiles) -> None:
    """Delete a segment's files, the one with records first. Raises OSError."""
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
        files.unlink(segment_path(folder, base_offset, suffix))


class Segment:
    """An open segment of a log: messages or batches from ``base_offset`` on.

    ``next_offset`` follows its last record; ``max_timestamp`` is in ms, -1 without timestamps.
    """

    def __init__(self, folder: Path, base_offset: int, files: OsLogFiles, *, index_interval_bytes: int) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.first_timestamp = -1
        self.created_ms = 0
        self.offset_index = OffsetIndex()
        self.time_index = TimeIndex()
        self._files = files
        self._file: SharedFile | None = None
        self._interval_bytes = index_interval_bytes
        self._since_entry = 0
        self._newest_at = 0

    @property
    def path(self) -> Path:
        """Path of the file with the segment's messages or batches."""
        return segment_path(self.folder, self.base_offset)

    @property
    def file(self) -> SharedFile:
        """The open file with the segment's messages or batches."""
        assert self._file is not None, "the segment is open"
        return self._file

    def open(self, *, create: bool = False, path: Path | None = None) -> int:
        """Open the segment's file; return its size in bytes, which is not verified yet.

        Raises OSError.
        """
        descriptor = self._files.open(path or self.path, create=create)
        self._file = SharedFile(self._files, descriptor)
        return self._files.size(descriptor)

    def modified_ms(self) -> int:
        """Return the file's modification time in ms since the epoch. Raises OSError."""
        return self.file.modified_ms()

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the file's modification time, in ms since the epoch. Raises OSError."""
        self._files.set_modified_ms(self.file.descriptor, modified_ms)

    def newest_ms(self) -> int:
        """Return the segment's newest timestamp in ms; the file's modification time without timestamps.

        Raises OSError.
        """
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms()

    # --- writing -------------------------------------------------------------------------------------------------

    def takes(self, last_offset: int) -> bool:
        """Return True if records up to ``last_offset`` can be added to the segment's indexes.

        Offsets in an index are 32-bit numbers relative to the segment's first offset.
        """
        return last_offset - self.base_offset <= MOST_RELATIVE

    def indexes_full(self, most_bytes: int) -> bool:
        """Return True if an index would exceed ``most_bytes`` with two more entries."""
        return (len(self.offset_index) + 2) * OFFSET_ENTRY_BYTES > most_bytes or (
            len(self.time_index) + 2
        ) * TIME_ENTRY.size > most_bytes

    def append(self, data: bytes | bytearray | memoryview, units: Sequence[UnitHeader]) -> None:
        """Write whole messages or batches to the end of the segment.

        Raises OSError. Then the file may hold a part of them beyond ``size``, which :meth:`cut` removes.

        Args:
            units: Their headers, with positions relative to the start of ``data``.
        """
        start = self.size
        self._files.write(self.file.descriptor, start, data)
        self.note(units, start)

    def note(self, units: Iterable[UnitHeader], shift: int = 0) -> None:
        """Add messages or batches to the segment that are already in its file.

        They follow those that the segment knows.

        Args:
            units: Headers of the messages or batches.
            shift: Bytes to add to the positions in the headers.
        """
        since, base, interval = self._since_entry, self.base_offset, self._interval_bytes
        end, following = self.size, self.next_offset
        for position, size, offset, last_offset, timestamp, _ in units:
            if since > interval:
                self.offset_index.append(offset - base, position + shift)
                self.time_index.append(self.max_timestamp, self._newest_at - base)
                since = 0
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
                self._newest_at = last_offset
            if not end:
                self.first_timestamp = timestamp
            since += size
            end = position + shift + size
            following = last_offset + 1
        self._since_entry = since
        self.next_offset = following
        self.size = end

    def cut(self) -> None:
        """Remove the bytes beyond ``size`` from the file. Raises OSError."""
        self._files.truncate(self.file.descriptor, self.size)

    def sync(self) -> None:
        """Make the segment's records durable.

        Raises OSError, after which the state of the disk is unknown.
        """
        self._files.sync(self.file.descriptor)

    def write_indexes(self) -> None:
        """Write the indexes and make them durable. Raises OSError, leaving no partial file."""
        self.time_index.append(self.max_timestamp, self._newest_at - self.base_offset)
        for suffix, data in zip(INDEX_SUFFIXES, (self.offset_index.encode(), self.time_index.encode()), strict=True):
            path = segment_path(self.folder, self.base_offset, suffix)
            try:
                write_file(path, data, self._files)
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.unlink(path)
                raise

    # --- loading -------------------------------------------------------------------------------------------------

    def load(self, file_bytes: int, *, next_base: int | None) -> bool:
        """Load the segment by its indexes, after a clean shutdown.

        Returns False if an index is missing or invalid, or the file does not end with a whole message or batch;
        :meth:`recover` is called then. Raises OSError.

        Args:
            file_bytes: Size of the file.
            next_base: First offset of the next segment, if there is one.
        """
        most = self._most_offset(next_base) - self.base_offset
        offsets = find_content(segment_path(self.folder, self.base_offset, INDEX_SUFFIX), self._files)
        times = find_content(segment_path(self.folder, self.base_offset, TIME_INDEX_SUFFIX), self._files)
        if offsets is None or times is None:
            return False
        offset_index = OffsetIndex.decode(offsets, segment_bytes=file_bytes, most_relative=most)
        time_index = TimeIndex.decode(times, most_relative=most)
        if offset_index is None or time_index is None:
            return False
        self.offset_index, self.time_index = offset_index, time_index
        if time_index:
            self.max_timestamp, self._newest_at = time_index.timestamps[-1], self.base_offset + time_index.offsets[-1]
        try:
            first = next(iter(UnitWalker(self.file.read, 0, file_bytes, chunk_bytes=NEAR_BYTES)), None)
            self.first_timestamp = first.max_timestamp if first else -1
            self.size = offset_index.positions[-1] if offset_index else 0
            tail = list(UnitWalker(self.file.read, self.size, file_bytes, chunk_bytes=NEAR_BYTES))
        except CorruptMessageError:
            return False
        self._since_entry = 0
        self.note(tail)
        last_known = max((index.offsets[-1] for index in (offset_index, time_index) if index), default=-1)
        return (
            self.size == file_bytes
            and self.base_offset + last_known < self.next_offset
            and self.next_offset - 1 <= self._most_offset(next_base)
        )

    def recover(self, file_bytes: int, *, checked_from: int, next_base: int | None = None) -> None:
        """Load the valid part of the file, and rebuild the indexes.

        Messages and batches from offset ``checked_from`` on must have the right checksum; those below were durable.
        Offsets must rise, and stay below ``next_base``. Bytes beyond ``size`` do not belong to the segment afterwards.
        Raises OSError.
        """
        self.size, self.next_offset, self.max_timestamp, self.first_timestamp = 0, self.base_offset, -1, -1
        self.offset_index, self.time_index, self._since_entry, self._newest_at = OffsetIndex(), TimeIndex(), 0, 0
        most = self._most_offset(next_base)
        walker = UnitWalker(self.file.read, 0, file_bytes)
        try:
            for header in walker:
                if not self.next_offset <= header.offset <= header.last_offset <= most:
                    return
                if header.last_offset >= checked_from and not walker.is_intact(header):
                    return
                self.note((header,))
        except CorruptMessageError:
            return

    def _most_offset(self, next_base: int | None) -> int:
        most = self.base_offset + MOST_RELATIVE
        return most if next_base is None else min(most, next_base - 1)

    # --- reading -------------------------------------------------------------------------------------------------

    def find_file(self) -> SharedFile | None:
        """Return the segment's open file for one more reader; None if the segment is closed.

        The reader must release it. Until then it stays open, even if the segment is closed.
        """
        file = self._file
        return file if file is not None and file.retain() else None

    def locate(self, offset: int, file: SharedFile) -> UnitHeader | None:
        """Return the header of the first message or batch that ends at or after ``offset``.

        None if there is none. Raises LogDamaged if the segment is unreadable there, OSError.
        """
        start = self.offset_index.find(min(offset - self.base_offset, MOST_RELATIVE))
        units = self._walk(start, file, f"offset {offset}")
        return next((header for header in units if header.last_offset >= offset), None)

    def units_as_new_as(self, timestamp: int, file: SharedFile) -> Iterable[UnitHeader]:
        """Return the headers of messages or batches whose newest timestamp is at least ``timestamp``.

        Raises LogDamaged if the segment is unreadable there, OSError.
        """
        start = self.offset_index.find(self.time_index.find(timestamp))
        units = self._walk(start, file, f"time {timestamp}")
        return (header for header in units if header.max_timestamp >= timestamp)

    def _walk(self, start: int, file: SharedFile, wanted: str) -> Iterator[UnitHeader]:
        """Yield the units from position ``start`` on; ``wanted`` is named in the error."""
        try:
            yield from UnitWalker(file.read, start, self.size, chunk_bytes=NEAR_BYTES)
        except CorruptMessageError as error:
            raise LogDamaged(f"{self.path.name}: no unit where {wanted} is looked for: {error}") from error

    # --- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the segment's file; it stays open for readers that have it."""
        file, self._file = self._file, None
        if file is not None:
            file.release()
