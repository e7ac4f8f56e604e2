# SPDX-License-Identifier: Apache-2.0
"""How far a job is, on stderr: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

_TERMINAL_S: Final = 0.1
_ELSEWHERE_S: Final = 10.0
"""How long a line stands before the same step may say more."""


class Reporter:
    """Tells a stream of a job's progress. ``now`` is a monotonic clock, in seconds.

    Whatever else is printed while a job runs calls ``clear`` before, so that it begins on a line of its own.
    """

    def __init__(self, job: str, stream: TextIO, now: Callable[[], float]) -> None:
        self._job = job
        self._stream = stream
        self._now = now
        self._live = stream.isatty()
        self._step = ""
        self._said_at = float("-inf")
        self._width = 0

    def step(self, what: str) -> None:
        """Say what begins now."""
        self._step = what
        self._say(what)

    def done(self, count: int, of: int, what: str) -> None:
        """Say how much of the step is done, unless something was said a moment ago."""
        if self._now() - self._said_at >= (_TERMINAL_S if self._live else _ELSEWHERE_S):
            self._say(f"{self._step}: {count:,} of {of:,} {what}")

    def clear(self) -> None:
        """Take the line away that is still changing."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _say(self, text: str) -> None:
        self._said_at = self._now()
        line = f"{self._job}: {text}"
        if self._live:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
