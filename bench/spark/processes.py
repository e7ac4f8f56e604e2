# SPDX-License-Identifier: Apache-2.0
"""What a process and all its children have had of the processor."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def tree_processor_s(pid: int) -> float:
    """Return the processor time of a process, its children and theirs so far, those that have ended and been waited for too.

    Ended children count with whoever waited for them, so that nothing is lost between two calls.
    """
    spent: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            children[int(fields[1])].append(int(entry.name))
            spent[int(entry.name)] = sum(int(one) for one in fields[11:15])
    total, left = 0, [pid]
    while left:
        one = left.pop()
        total += spent.get(one, 0)
        left += children[one]
    return total / _TICKS
