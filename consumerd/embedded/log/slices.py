# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of log segments for readers, and the files kept open for them."""

from __future__ import annotations

import threading
from typing import Self

from consumerd.embedded.log.files import OsLogFiles


class SharedFile:
    """A segment's open file that several users share; the last one closes it.

    The segment is the first user, each reader a further one.
    """

    __slots__ = ("_files", "_lock", "_users", "descriptor")

    def __init__(self, files: OsLogFiles, descriptor: int) -> None:
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
    """A byte range of a log's segment: ``size`` bytes at ``position``.

    The bytes are whole messages or batches; only the last one may be cut. ``descriptor`` stays open until
    :meth:`close`, even if retention or compaction has removed the file's name meanwhile. It is shared, so only reads
    with an explicit position (``pread``, ``sendfile`` with an offset) may use it. An empty slice has no file; its
    ``descriptor`` is -1.
    """

    __slots__ = ("_file", "position", "size")

    def __init__(self, file: SharedFile | None = None, *, position: int = 0, size: int = 0) -> None:
        self._file = file
        self.position = position
        self.size = size

    @property
    def descriptor(self) -> int:
        """File descriptor of the segment, for ``sendfile``; -1 for an empty slice."""
        return self._file.descriptor if self._file is not None else -1

    def read(self, size: int | None = None) -> bytes:
        """Return all bytes of the slice, or its first ``size`` bytes. Raises OSError."""
        wanted = self.size if size is None else min(size, self.size)
        return self._file.read(self.position, wanted) if self._file is not None else b""

    def close(self) -> None:
        """Release the segment's file, which may then be closed. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
