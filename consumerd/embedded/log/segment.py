# SPDX-License-Identifier: Apache-2.0
"""One segment: a file of units, named after its first offset, and its two indexes.

A segment is written by one thread at a time, and read by any number without a lock: ``size`` grows when the bytes below
it are in the file, and these never change. Files: ``<20 digits>.log``, ``.index``, ``.timeindex``, as in Kafka's
LogSegment. An entry of the offset index has the offset in the header of its unit: the first one of a record batch, the
last one of a compressed wrapper.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from consumerd.embedded.log.errors import LogDamaged
from consumerd.embedded.log.files import LogFileSystem
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
    """Return the path of a segment's file of one kind."""
    return folder / f"{base_offset:020d}{suffix}"


def find_base_offset(name: str, ending: str = "") -> int | None:
    """Return the base offset in a segment's file name, or None.

    ``ending`` is the ending after ``.log``.
    """
    found = _NAME.fullmatch(name.removesuffix(ending)) if name.endswith(ending) else None
    return int(found[1]) if found else None


class Segment:
    """An open segment.

    ``next_offset`` follows its last unit; ``max_timestamp`` is -1 without timestamps.
    """

    def __init__(self, folder: Path, base_offset: int, files: LogFileSystem, *, index_interval_bytes: int) -> None:
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

    def __repr__(self) -> str:
        return f"<Segment [{self.base_offset}, {self.next_offset}): {self.size} bytes>"

    @property
    def path(self) -> Path:
        """The file of units."""
        return segment_path(self.folder, self.base_offset)

    @property
    def file(self) -> SharedFile:
        """The open file of units."""
        assert self._file is not None, "the segment is open"
        return self._file

    def open(self, *, create: bool = False, path: Path | None = None) -> int:
        """Open the file; return its size in bytes, which is not verified yet. Raises OSError."""
        descriptor = self._files.open(path or self.path, create=create)
        self._file = SharedFile(self._files, descriptor)
        return self._files.size(descriptor)

    def modified_ms(self) -> int:
        """Return the file's modification time. Raises OSError."""
        return self.file.modified_ms()

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the file's modification time. Raises OSError."""
        self._files.set_modified_ms(self.file.descriptor, modified_ms)

    def newest_ms(self) -> int:
        """Return the newest timestamp, or the modification time without any. Raises OSError."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms()

    # --- writing -------------------------------------------------------------------------------------------------

    def takes(self, last_offset: int) -> bool:
        """Return True if the indexes can address offsets up to ``last_offset``."""
        return last_offset - self.base_offset <= MOST_RELATIVE

    def indexes_full(self, most_bytes: int) -> bool:
        """Return True if an index cannot take two more entries within ``most_bytes``."""
        return (len(self.offset_index) + 2) * OFFSET_ENTRY_BYTES > most_bytes or (
            len(self.time_index) + 2
        ) * TIME_ENTRY.size > most_bytes

    def append(self, data: bytes | bytearray | memoryview, units: Sequence[UnitHeader]) -> None:
        """Write whole units after the last one; their positions are relative to the first.

        Raises OSError. Then the file may hold a part of them beyond ``size``: see :meth:`cut`.
        """
        start = self.size
        self._files.write(self.file.descriptor, start, data)
        self.note(units, start)

    def note(self, units: Iterable[UnitHeader], shift: int = 0) -> None:
        """Add units that are in the file after the known ones.

        ``shift`` is added to their positions.
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
        """Make the units durable. Raises OSError, after which the state of the disk is unknown."""
        self._files.sync(self.file.descriptor)

    def seal(self) -> None:
        """Make units and indexes durable, so that the indexes can be trusted. Raises OSError."""
        self.sync()
        self.write_indexes()

    def write_indexes(self) -> None:
        """Write the indexes and make them durable. Raises OSError, leaving no partial file."""
        self.time_index.append(self.max_timestamp, self._newest_at - self.base_offset)
        for suffix, data in zip(INDEX_SUFFIXES, (self.offset_index.encode(), self.time_index.encode()), strict=True):
            path = segment_path(self.folder, self.base_offset, suffix)
            try:
                self._replace_content(path, data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.unlink(path)
                raise

    def _replace_content(self, path: Path, data: bytes) -> None:
        descriptor = self._files.open(path, create=True)
        try:
            self._files.truncate(descriptor, len(data))
            self._files.write(descriptor, 0, data)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    # --- loading -------------------------------------------------------------------------------------------------

    def load(self, file_bytes: int, *, next_base: int | None) -> bool:
        """Load a segment after a clean shutdown, by its indexes.

        Returns False if an index is missing or invalid, or the file does not end with a whole unit: see
        :meth:`recover`. Raises OSError.

        Args:
            file_bytes: Size of the file.
            next_base: Base offset of the next segment, if there is one.
        """
        most = self._most_offset(next_base) - self.base_offset
        offsets = self._read_index(INDEX_SUFFIX)
        times = self._read_index(TIME_INDEX_SUFFIX)
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

        Units from offset ``checked_from`` on must have the right checksum; those below were durable. Offsets must rise,
        and stay below ``next_base``. Bytes beyond ``size`` do not belong to the segment afterwards. Raises OSError.
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

    def _read_index(self, suffix: str) -> bytes | None:
        try:
            descriptor = self._files.open(segment_path(self.folder, self.base_offset, suffix))
        except FileNotFoundError:
            return None
        try:
            return self._files.read(descriptor, 0, self._files.size(descriptor))
        finally:
            self._files.close(descriptor)

    # --- reading -------------------------------------------------------------------------------------------------

    def find_file(self) -> SharedFile | None:
        """Return the file for a reader to release; None if the segment is closed."""
        file = self._file
        return file if file is not None and file.retain() else None

    def locate(self, offset: int, file: SharedFile) -> UnitHeader | None:
        """Return the first unit that ends at or after ``offset``, or None.

        Raises LogDamaged if the segment is unreadable there, OSError.
        """
        start = self.offset_index.find(min(offset - self.base_offset, MOST_RELATIVE))
        try:
            for header in UnitWalker(file.read, start, self.size, chunk_bytes=NEAR_BYTES):
                if header.last_offset >= offset:
                    return header
        except CorruptMessageError as error:
            raise LogDamaged(f"{self.path.name}: no unit where offset {offset} is looked for: {error}") from error
        return None

    def units_as_new_as(self, timestamp: int, file: SharedFile) -> Iterable[UnitHeader]:
        """Yield the units whose newest timestamp is at least ``timestamp``.

        Raises LogDamaged if the segment is unreadable there, OSError.
        """
        start = self.offset_index.find(self.time_index.find(timestamp))
        try:
            for header in UnitWalker(file.read, start, self.size, chunk_bytes=NEAR_BYTES):
                if header.max_timestamp >= timestamp:
                    yield header
        except CorruptMessageError as error:
            raise LogDamaged(f"{self.path.name}: no unit where time {timestamp} is looked for: {error}") from error

    # --- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the file; slices keep it open."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def remove(self) -> None:
        """Remove the names of the files, first the units'. Raises OSError."""
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self._files.unlink(segment_path(self.folder, self.base_offset, suffix))
