# SPDX-License-Identifier: Apache-2.0
"""File system calls of the logs; tests use a subclass whose calls fail.

All methods block and raise OSError. Every read and write has an explicit position; a descriptor's own position is not
used, since readers and ``sendfile`` share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_WHOLE_FILE: Final = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""A ``struct flock``. A lock of an open file description excludes Java's FileLock, and, unlike that, survives the
closing of another descriptor of the same file in this process.
"""


class OsLogFiles:
    """The operating system's files, addressed by its file descriptors."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing. Raises FileNotFoundError.

        With ``create``, a missing file is created.
        """
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Return an open file's size in bytes."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        """Read ``size`` bytes from ``position`` on; fewer only at the end of the file."""
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
        """Write ``data`` at ``position``. After an error, any part of it may be written."""
        rest = memoryview(data)
        while rest:
            done = os.pwrite(descriptor, rest, position)
            rest = rest[done:]
            position += done

    def truncate(self, descriptor: int, size: int) -> None:
        """Set a file's size, cutting it or filling it with zeros."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Make a file's content and size durable.

        After an error, the state of the disk is unknown.
        """
        os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents.

        They are durable once their parents are synced.
        """
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder; a missing one is ignored."""
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, unsorted; none if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in path.iterdir()]
        return []

    def is_folder(self, path: Path) -> bool:
        """Return True if ``path`` is a folder."""
        return path.is_dir()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, atomically replacing a file with the new name."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name; a missing one is ignored. Open descriptors keep the content."""
        path.unlink(missing_ok=True)

    def modified_ms(self, descriptor: int) -> int:
        """Return an open file's modification time in ms since the epoch."""
        return os.fstat(descriptor).st_mtime_ns // 1_000_000

    def set_modified_ms(self, descriptor: int, modified_ms: int) -> None:
        """Set an open file's modification time, in ms since the epoch."""
        os.utime(descriptor, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def lock(self, descriptor: int) -> None:
        """Lock an open file until it is closed.

        Raises BlockingIOError if another process, including Java's, has locked it.
        """
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)


def find_content(path: Path, files: OsLogFiles) -> bytes | None:
    """Return the content of a file, or None without such a file. Raises OSError."""
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return files.read(descriptor, 0, files.size(descriptor))
    finally:
        files.close(descriptor)


def write_file(path: Path, data: bytes, files: OsLogFiles) -> None:
    """Replace the content of a file, and make it durable. Raises OSError.

    A missing file is created. After an error, the file may hold a part of ``data``.
    """
    descriptor = files.open(path, create=True)
    try:
        files.truncate(descriptor, len(data))
        files.write(descriptor, 0, data)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
