# SPDX-License-Identifier: Apache-2.0
"""CPU time of a process and all its descendants."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def tree_processor_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants so far, in seconds.

    Ended processes are included: the kernel adds their time to the process that waited for them, so that no time is
    lost between two calls.
    """
    spent: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has just ended
                continue
            children[int(fields[1])].append(int(entry.name))
            spent[int(entry.name)] = sum(int(one) for one in fields[11:15])
    total, left = 0, [pid]
    while left:
        one = left.pop()
        total += spent.get(one, 0)
        left += children[one]
    return total / _TICKS
