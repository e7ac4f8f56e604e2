# SPDX-License-Identifier: Apache-2.0
"""The file system of logs, as a port.

Tests can make any call fail, or be the last.

All methods block and raise OSError. Every read and write has an explicit position; a descriptor's own position is not
used, since readers and ``sendfile`` share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final, Protocol

_WHOLE_FILE: Final = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""A ``struct flock``. A lock of an open file description excludes Java's FileLock, and, unlike that, survives the
closing of another descriptor of the same file in this process.
"""


class LogFileSystem(Protocol):
    """The file system calls that logs need."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing. Raises FileNotFoundError.

        With ``create``, a missing file is created.
        """

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def size(self, descriptor: int) -> int:
        """Return an open file's size in bytes."""

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        """Read ``size`` bytes from ``position`` on; fewer only at the end of the file."""

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write ``data`` at ``position``. After an error, any part of it may be written."""

    def truncate(self, descriptor: int, size: int) -> None:
        """Set a file's size, cutting it or filling it with zeros."""

    def sync(self, descriptor: int) -> None:
        """Make a file's content and size durable.

        After an error, the state of the disk is unknown.
        """

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents.

        They are durable once their parents are synced.
        """

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder; a missing one is ignored."""

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, unsorted; none if it does not exist."""

    def is_folder(self, path: Path) -> bool:
        """Return True if ``path`` is a folder."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, atomically replacing a file with the new name."""

    def unlink(self, path: Path) -> None:
        """Remove a file's name; a missing one is ignored. Open descriptors keep the content."""

    def modified_ms(self, descriptor: int) -> int:
        """Return an open file's modification time in ms since the epoch."""

    def set_modified_ms(self, descriptor: int, modified_ms: int) -> None:
        """Set an open file's modification time."""

    def lock(self, descriptor: int) -> None:
        """Lock an open file until it is closed.

        Raises BlockingIOError if another process, including Java's, has locked it.
        """


class OsLogFiles:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """See LogFiles."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def close(self, descriptor: int) -> None:
        """See LogFiles."""
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """See LogFiles."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        """See LogFiles."""
        data = os.pread(descriptor, size, position)
        if len(data) in (0, size):
            return data
        parts = [data]
        done = len(data)
        while done < size and (data := os.pread(descriptor, size - done, position + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """See LogFiles."""
        rest = memoryview(data)
        while rest:
            done = os.pwrite(descriptor, rest, position)
            rest = rest[done:]
            position += done

    def truncate(self, descriptor: int, size: int) -> None:
        """See LogFiles."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """See LogFiles."""
        os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """See LogFiles."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """See LogFiles."""
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """See LogFiles."""
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        """See LogFiles."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in path.iterdir()]
        return []

    def is_folder(self, path: Path) -> bool:
        """See LogFiles."""
        return path.is_dir()

    def rename(self, source: Path, target: Path) -> None:
        """See LogFiles."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """See LogFiles."""
        path.unlink(missing_ok=True)

    def modified_ms(self, descriptor: int) -> int:
        """See LogFiles."""
        return os.fstat(descriptor).st_mtime_ns // 1_000_000

    def set_modified_ms(self, descriptor: int, modified_ms: int) -> None:
        """See LogFiles."""
        os.utime(descriptor, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def lock(self, descriptor: int) -> None:
        """See LogFiles."""
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
