# SPDX-License-Identifier: Apache-2.0
"""File operations for landed files and tables: interfaces, and the implementation for local files.

``ReadableFiles`` is all that readers of landed files use, so that they may be in another kind of store. ``FileSystem``
adds what writers use. Tests replace it, to make any call fail or be the last before a crash.

Every method blocks and raises OSError; they are called in threads only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from io import BufferedIOBase
from pathlib import Path
from typing import Final, Protocol

_doubtful: Final[set[Path]] = set()
"""Folders whose last fsync by this process failed; their names may not be durable."""


class ReadableFiles(Protocol):
    """Store of files that can be listed and read by path."""

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, in no order; an empty list without a folder."""

    def read(self, path: Path) -> bytes:
        """Read a whole small file. Raises FileNotFoundError."""

    def open(self, path: Path) -> BufferedIOBase:
        """Open a file to read parts of it. Raises FileNotFoundError."""

    def size_and_mtime(self, path: Path) -> tuple[int, int]:
        """Return a file's size in bytes, and its modification time in ns since the epoch."""


class FileSystem(ReadableFiles, Protocol):
    """File operations of writers: names that are taken only once, and durable writes.

    Names are taken by ``link(2)``. Nothing is durable before it is synced.
    """

    def make_folders(self, path: Path) -> None:
        """Create a folder, and those of its parents that are missing.

        None of them is durable before its parent is synced.
        """

    def create(self, path: Path) -> int:
        """Create a new file for writing; return its descriptor. Raises FileExistsError."""

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write all bytes of ``data`` at the end of an open file."""

    def truncate(self, descriptor: int) -> None:
        """Empty an open file. The next write begins at its start."""

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable (fsync). After a failure the file must not be used.

        After a failure it is unknown which part of the content is durable.
        """

    def sync_path(self, path: Path) -> None:
        """Make the content of a closed file durable, for files written by a library.

        After a failure the file must not be used, because it is unknown which part of the content is durable.
        """

    def modified_ns(self, descriptor: int) -> int:
        """Return an open file's time of modification, in ns since the epoch."""

    def set_modified_ns(self, descriptor: int, modified_ns: int) -> None:
        """Set an open file's time of modification, in ns since the epoch.

        The file system may round it.
        """

    def close(self, descriptor: int) -> None:
        """Close a file descriptor."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name (a hard link). Raises FileExistsError if that is taken.

        It never replaces a file.
        """

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over ``target``, in one step. Raises FileNotFoundError without ``source``."""

    def is_same(self, descriptor: int, path: Path) -> bool:
        """Return True if ``path`` names the open file, False for another file or none."""

    def sync_folder(self, path: Path) -> None:
        """Make the creation and removal of names in a folder durable (fsync of the folder).

        If a call has failed, a later call may succeed although the names are still not durable.
        """

    def unlink(self, path: Path) -> None:
        """Remove a name; do nothing if it does not exist."""

    def walk(self, path: Path) -> list[Path]:
        """Return the paths of all files below a folder, relative to it, in no order.

        The list is empty if there is no folder.
        """

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and everything below it; do nothing if it does not exist."""


class OsFileSystem:
    """File system of this machine."""

    def make_folders(self, path: Path) -> None:
        """Create a folder, and those of its parents that are missing."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """Create a new file for writing; return its descriptor. Raises FileExistsError."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write all bytes of ``data`` to an open file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def truncate(self, descriptor: int) -> None:
        """Empty an open file. The next write begins at its start."""
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)

    def sync(self, descriptor: int) -> None:
        """Make an open file's content durable. After a failure the file must not be used."""
        os.fsync(descriptor)

    def sync_path(self, path: Path) -> None:
        """Make a closed file's content durable. After a failure the file must not be used."""
        self._fsync(path)

    def modified_ns(self, descriptor: int) -> int:
        """Return an open file's time of modification, in ns since the epoch."""
        return os.fstat(descriptor).st_mtime_ns

    def set_modified_ns(self, descriptor: int, modified_ns: int) -> None:
        """Set an open file's time of modification, in ns since the epoch."""
        os.utime(descriptor, ns=(modified_ns, modified_ns))

    def close(self, descriptor: int) -> None:
        """Close a file descriptor."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name (a hard link). Raises FileExistsError if that is taken."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over ``target``, in one step. Raises FileNotFoundError without ``source``."""
        source.replace(target)

    def is_same(self, descriptor: int, path: Path) -> bool:
        """Return True if ``path`` names the open file, False for another file or none."""
        try:
            return os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            return False

    def sync_folder(self, path: Path) -> None:
        """Make the creation and removal of names in a folder durable (fsync of the folder).

        The kernel reports a failed write once, then marks its data as written. The next fsync of the folder would have
        nothing to do and succeed. Therefore, after a failure, the next call first changes the folder: it creates and
        removes a hidden name. A file system that has lost the write (ext4, XFS) refuses that change; other file systems
        write the folder again.
        """
        if path in _doubtful:
            self._rewrite(path)
        try:
            self._fsync(path)
        except OSError:
            _doubtful.add(path)
            raise
        _doubtful.discard(path)

    def _rewrite(self, folder: Path) -> None:
        mark = folder / f".sync-{os.getpid()}.tmp"  # such names are removed by the next claim
        self.unlink(mark)
        self.close(self.create(mark))
        self.unlink(mark)

    def _fsync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """Remove a name; do nothing if it does not exist."""
        path.unlink(missing_ok=True)

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, in no order; an empty list without a folder."""
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(path)  # noqa: PTH208 - a third of the time, and a log has thousands
        return []

    def walk(self, path: Path) -> list[Path]:
        """Return the paths of all files below a folder, relative to it, in no order."""
        return [Path(home, name).relative_to(path) for home, _, names in os.walk(path) for name in names]

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and everything below it; do nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: Path) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError."""
        return path.read_bytes()

    def open(self, path: Path) -> BufferedIOBase:
        """Open a file, to read parts of it. Raises FileNotFoundError."""
        return path.open("rb")

    def size_and_mtime(self, path: Path) -> tuple[int, int]:
        """Return a file's size in bytes, and its modification time in ns since the epoch."""
        found = path.stat()
        return found.st_size, found.st_mtime_ns


LOCAL_FILES: Final = OsFileSystem()
"""File system of this machine, for callers that need no other; it has no state."""
