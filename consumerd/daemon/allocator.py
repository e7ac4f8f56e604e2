# SPDX-License-Identifier: Apache-2.0
"""How memory is given back by the C library: glibc's only, anything else is left as it is.

glibc serves what is large from memory that it maps for it alone, and unmaps it when it is freed: but where "large"
begins grows with the first such block that is freed, to 32 MiB, and from then on a daemon that moves megabytes around
keeps holes of them in the heaps of its threads. Here the border stays where it is, and there are few such heaps.

Where there is plenty of memory, the border is above most of what a sink hands to a file at a time: memory that is mapped
anew for every MiB or two is had page by page each time (landing JSON as Parquet was slower by a seventh). What more is
resident then is set aside for libraries; where there is little to be set aside, the border is 1 MiB.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameters of mallopt(3)."""

PLENTY_BYTES: Final = 256 << 20
LARGE_BYTES: Final = 1 << 20
LARGE_OF_PLENTY_BYTES: Final = 4 << 20
HEAPS: Final = 2


def tune_allocator(budget_bytes: int) -> bool:
    """Set it, before threads are started, for a daemon with this budget; return whether there was anything to set."""
    if platform.libc_ver()[0] != "glibc":
        return False
    large_bytes = LARGE_OF_PLENTY_BYTES if budget_bytes >= PLENTY_BYTES else LARGE_BYTES
    mallopt = ctypes.CDLL(None).mallopt
    return all(
        mallopt(parameter, value) == 1
        for parameter, value in (
            (_MMAP_THRESHOLD, large_bytes),
            (_TRIM_THRESHOLD, large_bytes),
            (_ARENA_MAX, HEAPS),
        )
    )
