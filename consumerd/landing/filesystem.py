# SPDX-License-Identifier: Apache-2.0
"""File operations behind landed files and tables, as a port, with the local implementation.

``ReadableFiles`` is all that readers of a landing zone use, so that it may lie in another kind of store. ``FileSystem``
adds what writers use. A test can make any call fail or be the last.

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
"""Folders whose last fsync by this process failed: nobody knows which of their names are durable."""


class ReadableFiles(Protocol):
    """Files by name, to read."""

    def names(self, path: Path) -> list[str]:
        """List a folder, in no order; empty if there is none."""

    def read(self, path: Path) -> bytes:
        """Read a whole small file. Raises FileNotFoundError."""

    def open(self, path: Path) -> BufferedIOBase:
        """Open a file to read parts of it. Raises FileNotFoundError."""

    def size_and_mtime(self, path: Path) -> tuple[int, int]:
        """Return a file's size in bytes and its time of modification in ns."""


class FileSystem(ReadableFiles, Protocol):
    """File system with exclusive names by ``link(2)``, and durability on demand."""

    def make_folders(self, path: Path) -> None:
        """Make a folder and the missing ones of its parents.

        None of them is durable before its parent is synced.
        """

    def create(self, path: Path) -> int:
        """Make a new file for writing and return its descriptor. Raises FileExistsError."""

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write all of ``data``."""

    def truncate(self, descriptor: int) -> None:
        """Empty an open file. The next write begins at its start."""

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable. After a failure nobody knows what of it is: the file must not be used."""

    def sync_path(self, path: Path) -> None:
        """Make the content of a file durable that a library has written and closed. After a failure as in ``sync``."""

    def modified_ns(self, descriptor: int) -> int:
        """Return an open file's time of modification."""

    def set_modified_ns(self, descriptor: int, modified_ns: int) -> None:
        """Set an open file's time of modification; a file system may keep less of it than nanoseconds."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError if that is taken; never replaces anything."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over ``target``, in one step. Raises FileNotFoundError if ``source`` has gone."""

    def is_same(self, descriptor: int, path: Path) -> bool:
        """Tell whether an open file is the one at ``path``; False if there is none."""

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable. After a failure nothing is believed that merely repeats the call."""

    def unlink(self, path: Path) -> None:
        """Take a name away; one that is not there is fine."""

    def walk(self, path: Path) -> list[Path]:
        """Return all files below a folder, relative to it, in no order; empty if there is no folder."""

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and everything below it; one that does not exist is fine."""


class OsFileSystem:
    """Files of this machine."""

    def make_folders(self, path: Path) -> None:
        """See FileSystem."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """See FileSystem."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """See FileSystem."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def truncate(self, descriptor: int) -> None:
        """See FileSystem."""
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)

    def sync(self, descriptor: int) -> None:
        """See FileSystem."""
        os.fsync(descriptor)

    def sync_path(self, path: Path) -> None:
        """See FileSystem."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def modified_ns(self, descriptor: int) -> int:
        """See FileSystem."""
        return os.fstat(descriptor).st_mtime_ns

    def set_modified_ns(self, descriptor: int, modified_ns: int) -> None:
        """See FileSystem."""
        os.utime(descriptor, ns=(modified_ns, modified_ns))

    def close(self, descriptor: int) -> None:
        """See FileSystem."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        source.replace(target)

    def is_same(self, descriptor: int, path: Path) -> bool:
        """See FileSystem."""
        try:
            return os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            return False

    def sync_folder(self, path: Path) -> None:
        """See FileSystem.

        The kernel tells of a failed write once, and takes what it could not write for written: the next fsync of the same
        folder has nothing to do and succeeds. So after a failure the folder is changed first, by a hidden name that comes and
        goes. A file system that has lost a folder's write (ext4, XFS) refuses that change; another one writes the folder anew.
        """
        if path in _doubtful:
            self._rewrite(path)
        try:
            self._fsync_folder(path)
        except OSError:
            _doubtful.add(path)
            raise
        _doubtful.discard(path)

    def _rewrite(self, folder: Path) -> None:
        mark = folder / f".sync-{os.getpid()}.tmp"  # such names are removed by the next claim
        self.unlink(mark)
        self.close(self.create(mark))
        self.unlink(mark)

    def _fsync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        path.unlink(missing_ok=True)

    def names(self, path: Path) -> list[str]:
        """See FileSystem."""
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(path)  # noqa: PTH208 - a third of the time, and a log has thousands
        return []

    def walk(self, path: Path) -> list[Path]:
        """See FileSystem."""
        return [Path(home, name).relative_to(path) for home, _, names in os.walk(path) for name in names]

    def remove_tree(self, path: Path) -> None:
        """See FileSystem."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: Path) -> bytes:
        """See FileSystem."""
        return path.read_bytes()

    def open(self, path: Path) -> BufferedIOBase:
        """See FileSystem."""
        return path.open("rb")

    def size_and_mtime(self, path: Path) -> tuple[int, int]:
        """See FileSystem."""
        found = path.stat()
        return found.st_size, found.st_mtime_ns


LOCAL_FILES: Final = OsFileSystem()
"""Files of this machine; there is no state in it."""
