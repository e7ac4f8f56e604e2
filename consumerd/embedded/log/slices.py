# SPDX-License-Identifier: Apache-2.0
"""Slices of segments that are being read, and the files that they keep open."""

from __future__ import annotations

import threading
from typing import Self

from consumerd.embedded.log.files import LogFileSystem


class SharedFile:
    """An open file with several users, closed by the last; its segment is the first."""

    __slots__ = ("_files", "_lock", "_users", "descriptor")

    def __init__(self, files: LogFileSystem, descriptor: int) -> None:
        self.descriptor = descriptor
        self._files = files
        self._lock = threading.Lock()
        self._users = 1

    def retain(self) -> bool:
        """Add a user; return False if the file is closed."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Remove a user; the last one closes the file."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._files.close(self.descriptor)

    def read(self, position: int, size: int) -> bytes:
        """Read from the file; fewer bytes only at its end. Raises OSError."""
        return self._files.read(self.descriptor, position, size)

    def modified_ms(self) -> int:
        """Return the file's modification time in ms since the epoch. Raises OSError."""
        return self._files.modified_ms(self.descriptor)


class LogSlice:
    """``size`` bytes of a segment at ``position``, beginning with the unit of ``first_offset``.

    The bytes are whole units; only the last one may be cut. ``descriptor`` stays open until :meth:`close`, even if
    retention or compaction has removed the file's name meanwhile. It is shared, so only reads with an explicit position
    (``pread``, ``sendfile`` with an offset) may use it. An empty slice has no file: -1.
    """

    __slots__ = ("_file", "first_offset", "position", "size")

    def __init__(self, file: SharedFile | None, *, first_offset: int, position: int = 0, size: int = 0) -> None:
        self._file = file
        self.first_offset = first_offset
        self.position = position
        self.size = size

    @property
    def descriptor(self) -> int:
        """The segment's file, for ``sendfile``."""
        return self._file.descriptor if self._file is not None else -1

    def fileno(self) -> int:
        """Return the descriptor, as file objects do."""
        return self.descriptor

    def read(self, size: int | None = None) -> bytes:
        """Read all of it, or its first ``size`` bytes. Raises OSError."""
        wanted = self.size if size is None else min(size, self.size)
        return self._file.read(self.position, wanted) if self._file is not None else b""

    def close(self) -> None:
        """Release the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LogSlice from offset {self.first_offset}: {self.size} bytes at {self.position}>"
