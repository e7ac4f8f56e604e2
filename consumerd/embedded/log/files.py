# SPDX-License-Identifier: Apache-2.0
"""The system calls behind a log, as a port, so that a test can let any of them fail or be the last.

Every method blocks and raises OSError. Positions are given with each read and write, so that a descriptor's own
position means nothing: readers and ``sendfile`` share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final, Protocol

_WHOLE_FILE: Final = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""A ``struct flock``. An open file's own lock excludes Java's FileLock, and unlike that it outlives the closing of another
descriptor of the same file in this process.
"""


class LogFileSystem(Protocol):
    """What a log needs of a file system."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing. ``create``: it is made if it is not there. Raises FileNotFoundError."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def size(self, descriptor: int) -> int:
        """Return an open file's size in bytes."""

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        """Read ``size`` bytes from ``position`` on; fewer only where the file ends."""

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at ``position``. After a failure any part of it may be in the file."""

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file, or fill it up with zeros, to ``size`` bytes."""

    def sync(self, descriptor: int) -> None:
        """Make a file's content and size durable. After a failure nobody knows what of it is."""

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents, whichever are missing; durable are none of them before their parents are
        synced.
        """

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder; one that is not there is fine."""

    def names(self, path: Path) -> list[str]:
        """List a folder, in no order; empty if there is none."""

    def is_folder(self, path: Path) -> bool:
        """Tell whether there is a folder at ``path``."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name; replaces the file that has it, in one step."""

    def unlink(self, path: Path) -> None:
        """Take a file's name away; one that is not there is fine. Open descriptors keep the content."""

    def modified_ms(self, descriptor: int) -> int:
        """Return an open file's time of modification in ms since the epoch."""

    def set_modified_ms(self, descriptor: int, modified_ms: int) -> None:
        """Set an open file's time of modification."""

    def lock(self, descriptor: int) -> None:
        """Lock an open file until it is closed. Raises BlockingIOError if it is locked, by whichever process, Java's
        included.
        """


class OsLogFiles:
    """The real ones."""

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
