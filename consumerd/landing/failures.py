# SPDX-License-Identifier: Apache-2.0
"""Error texts of failed system calls: file, cause, and advice."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from consumerd.landing.chain import is_hidden

_ADVICE: Final = {
    errno.ENOSPC: "free space on the volume; it is tried again",
    errno.EDQUOT: "free space or raise the quota; it is tried again",
    errno.EACCES: "let the daemon's user write there; it is tried again",
    errno.EPERM: "let the daemon's user write there, on a file system that has hard links; it is tried again",
    errno.EROFS: "mount the volume writable; it is tried again",
    errno.EIO: "check the disk and the kernel's log; it is tried again with a new file",
    errno.ENOENT: "see whether the volume is mounted; it is tried again",
    errno.ENOTDIR: "something that is no folder has the place of one: move it away; it is tried again",
    errno.EMFILE: "raise the daemon's limit of open files (ulimit -n); it is tried again",
    errno.ENFILE: "raise the system's limit of open files; it is tried again",
    errno.ENAMETOOLONG: "use a file system whose names may have 255 bytes",
    errno.EOPNOTSUPP: "use a file system that has hard links",
    errno.EXDEV: "keep the whole path on one file system",
}


def describe_failure(error: OSError, doing: str, place: Path | str) -> str:
    """Return a text about a failed system call: ``<file>: cannot <doing>: <cause>; <advice>``.

    Args:
        doing: The failed action as a verb with its object, such as ``write``.
        place: File or folder to name if the error names none, such as for a write to a descriptor.
    """
    cause = os.strerror(error.errno) if error.errno else str(error)
    return (
        f"{_find_place(error) or place}: cannot {doing}: {cause}; {_ADVICE.get(error.errno or 0, 'it is tried again')}"
    )


def _find_place(error: OSError) -> Path | None:
    """Return the file or folder that an error names.

    For a hidden file, whose name changes each time, return its folder.
    """
    if not isinstance(error.filename, str | bytes):
        return None
    named = Path(os.fsdecode(error.filename))
    return named.parent if is_hidden(named.name) else named
