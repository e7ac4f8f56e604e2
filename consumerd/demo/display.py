# SPDX-License-Identifier: Apache-2.0
"""The demo's output while it runs: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_PLAIN_INTERVAL_S: Final = 2.0


class Display(AbstractContextManager["Display"], Protocol):
    """Interface of the demo's output: events as lines, and progress."""

    def say(self, text: str) -> None:
        """Show a line with the time since the start."""

    def show(self, progress: Mapping[str, int], total: Mapping[str, int]) -> None:
        """Show the progress of each named activity, as numbers done and in total.

        Both mappings have the same keys.
        """


class BarDisplay:
    """Output for a terminal: lines that scroll above fixed progress bars."""

    def __init__(self, now: Callable[[], float], console: Console | None = None) -> None:
        self._now = now
        self._began = now()
        self._progress = Progress(
            TextColumn("  {task.description:<24}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        with _terminal_may_go():
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _terminal_may_go():
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        with _terminal_may_go():
            self._progress.console.print(
                f"{self._now() - self._began:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
            )

    def show(self, progress: Mapping[str, int], total: Mapping[str, int]) -> None:
        """Update the bars."""
        with _terminal_may_go():
            for name, done in progress.items():
                if name not in self._tasks:
                    self._tasks[name] = self._progress.add_task(name)
                self._progress.update(self._tasks[name], completed=done, total=total[name])


class PlainDisplay(Display):
    """Output for a file, a pipe or a dumb terminal.

    One line per event, and one for the progress every two seconds.
    """

    def __init__(self, now: Callable[[], float], stream: TextIO | None = None) -> None:
        self._now = now
        self._began = now()
        self._stream = stream if stream is not None else sys.stdout
        self._shown_at = -_PLAIN_INTERVAL_S
        self._shown: Mapping[str, int] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.flush()

    def say(self, text: str) -> None:
        """Print a line."""
        with _terminal_may_go():
            self._stream.write(f"{self._now() - self._began:6.1f} s  {text}\n")
            self._stream.flush()

    def show(self, progress: Mapping[str, int], total: Mapping[str, int]) -> None:
        """Print one line with the numbers done and in total of each named activity.

        Does nothing if the numbers done are those of the last line, or if that line is less than two seconds old.
        """
        now = self._now()
        if now - self._shown_at < _PLAIN_INTERVAL_S or progress == self._shown:
            return
        self._shown_at, self._shown = now, dict(progress)
        self.say(", ".join(f"{name}: {done:,} of {total[name]:,}" for name, done in progress.items()))


@contextmanager
def _terminal_may_go() -> Iterator[None]:
    """Ignore errors of a closed terminal: SIGHUP follows, and ends the demo in order."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def make_display(now: Callable[[], float]) -> Display:
    """Return the display that suits stdout: progress bars on a terminal, else plain lines."""
    console = Console()
    return BarDisplay(now, console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(now)
