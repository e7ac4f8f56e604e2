# SPDX-License-Identifier: Apache-2.0
"""Shows a job's progress on stderr.

On a terminal one line changes; elsewhere a line is written every 10 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

_TERMINAL_INTERVAL_S: Final = 0.1
_FILE_INTERVAL_S: Final = 10.0
"""Shortest time between two lines about one step, in seconds.

It applies if stderr is a file or pipe.
"""


class Reporter:
    """Writes a job's progress to a stream.

    Call ``clear`` before anything else is printed, so that it begins on a line of its own.

    Args:
        now: monotonic clock, in seconds.
    """

    def __init__(self, job: str, stream: TextIO, now: Callable[[], float]) -> None:
        self._job = job
        self._stream = stream
        self._now = now
        self._live = stream.isatty()
        self._step = ""
        self._shown_at = float("-inf")
        self._width = 0

    def step(self, what: str) -> None:
        """Show the step that begins now."""
        self._step = what
        self._show(what)

    def done(self, count: int, of: int, what: str) -> None:
        """Show the finished part of the step, unless a line was shown a moment ago."""
        if self._now() - self._shown_at >= (_TERMINAL_INTERVAL_S if self._live else _FILE_INTERVAL_S):
            counted = f"{count:,} of {of:,} {what}"
            self._show(f"{self._step}: {counted}" if self._step else counted)

    def clear(self) -> None:
        """Erase the changing line on a terminal."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _show(self, text: str) -> None:
        self._shown_at = self._now()
        line = f"{self._job}: {text}"
        if self._live:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
