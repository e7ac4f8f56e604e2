# SPDX-License-Identifier: Apache-2.0
"""Log files on a disk that tests can make full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from consumerd.embedded.log.files import OsLogFiles


class FillableFiles(OsLogFiles):
    """The real file system; while ``full``, writes fail as on a full disk."""

    def __init__(self) -> None:
        self.full = False

    def open(self, path: Path, *, create: bool = False) -> int:
        """See LogFiles."""
        if create and not path.exists():
            self._check_room()
        return super().open(path, create=create)

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """See LogFiles."""
        self._check_room()
        super().write(descriptor, position, data)

    def make_folder(self, path: Path) -> None:
        """See LogFiles."""
        if not path.is_dir():
            self._check_room()
        super().make_folder(path)

    def _check_room(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
