# SPDX-License-Identifier: Apache-2.0
"""Settings of glibc's memory allocator, so that freed memory goes back to the system.

Without glibc nothing is set.

glibc maps large blocks separately, and unmaps them when they are freed. But its threshold for "large" is dynamic: it
grows to the size of a freed block, up to 32 MiB. From then on a daemon that allocates and frees blocks of a few MiB
leaves holes of that size in the heaps of its threads. Here the threshold is fixed, and the number of heaps is limited.

With a memory budget of 256 MiB or more the threshold is 4 MiB, above most blocks that a sink writes at a time. With a
lower threshold each block of a MiB or two would be mapped again, page by page (landing JSON as Parquet took a seventh
longer). The part of the budget that is reserved for libraries covers the memory that stays resident. With a smaller
budget the threshold is 1 MiB.
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
"""Memory budget, in bytes, from which on blocks are mapped from ``LARGE_OF_PLENTY_BYTES`` on only."""
LARGE_BYTES: Final = 1 << 20
LARGE_OF_PLENTY_BYTES: Final = 4 << 20
"""Sizes in bytes from which on the allocator maps a block separately, for small and large memory budgets."""
HEAPS: Final = 2
"""Limit of the allocator's heaps, which threads share."""


def tune_allocator(budget_bytes: int) -> bool:
    """Set the C library's allocator for a memory budget in bytes.

    Called before threads start. Returns False if the C library is not glibc, and nothing was set.
    """
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
