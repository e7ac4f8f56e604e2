# SPDX-License-Identifier: Apache-2.0
"""When processes wanted the processor and did not get it, as the kernel counts it: what a busy machine does to a measurement.

Linux adds up, for each thread, how long it has waited in a run queue (``/proc/PID/task/TID/schedstat``, the second number).
A wait is added when it ends, so that a sample that finds more than the one before says when it was.
Run as ``python -m tests.support.starvation PID:THREADS...``, it prints such waits until its input ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from select import select
from typing import Final, Self

_SAMPLE_S: Final = 0.01
_SHOWN_S: Final = 0.005
"""Shorter waits are everyday life of a scheduler."""

Interval = tuple[float, float]


class StarvationMeter:
    """Watches processes from a process of its own. A context manager; :attr:`waits` is there after it.

    ``threads`` says of each process, by its pid, with what the names of the threads begin that matter ("" for all).
    """

    def __init__(self, threads: Mapping[int, str]) -> None:
        self._threads = threads
        self.waits: Mapping[int, list[Interval]] = {}
        """For each process, when some thread of it waited, in monotonic seconds."""

    def __enter__(self) -> Self:
        watched = [f"{pid}:{name}" for pid, name in self._threads.items()]
        command = [sys.executable, "-m", "tests.support.starvation", *watched]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, pipesize=1 << 20
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        printed, _ = self._process.communicate("", timeout=30)
        waits: dict[int, list[Interval]] = {pid: [] for pid in self._threads}
        for line in printed.splitlines():
            pid, begin, end = line.split()
            waits[int(pid)].append((float(begin), float(end)))
        self.waits = waits


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return what is covered by at least one of these intervals: disjoint ones, in order."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def measure_overlap(merged: Sequence[Interval], begin: float, end: float) -> float:
    """Return how much of ``begin`` to ``end`` intervals cover that are disjoint and in order, as of :func:`merge`."""
    first = max(0, bisect_right(merged, begin, key=itemgetter(0)) - 1)
    last = bisect_left(merged, end, key=itemgetter(0))
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in merged[first:last])


class _Watched:
    """One process: its threads, and how long each had waited when it was looked at last."""

    def __init__(self, pid: int, name: str) -> None:
        self._pid = pid
        self._name = name
        self._waited: dict[str, int | None] = {}
        """None for threads that do not matter."""

    def print_waits(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            for task in Path(f"/proc/{self._pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    self._look_at(task)

    def _look_at(self, task: Path) -> None:
        if task.name not in self._waited:
            matters = (task / "comm").read_text().startswith(self._name)
            self._waited[task.name] = _read_waited(task) if matters else None
        elif (before := self._waited[task.name]) is not None:
            waited, now = _read_waited(task), time.monotonic()
            seconds = (waited - before) / 1e9
            self._waited[task.name] = waited
            if seconds > _SHOWN_S:
                sys.stdout.write(f"{self._pid} {now - seconds:.6f} {now:.6f}\n")


def _read_waited(task: Path) -> int:
    return int((task / "schedstat").read_text().split()[1])


def _print_waits(watched: list[_Watched]) -> None:
    while not select([sys.stdin], [], [], _SAMPLE_S)[0]:
        for one in watched:
            one.print_waits()


if __name__ == "__main__":
    _print_waits([_Watched(int(pid), name) for pid, name in (argument.split(":") for argument in sys.argv[1:])])
