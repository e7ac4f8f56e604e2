# SPDX-License-Identifier: Apache-2.0
"""Progress of ``consumerd produce`` on stderr.

On a terminal it is one line that is updated, elsewhere a new line from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.aio.tasks import alongside

if TYPE_CHECKING:
    from rich.progress import Progress

_REDRAW_S: Final = 0.2
_LINE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Progress of ``consumerd produce`` at one moment.

    Attributes:
        read_lines: Number of lines of the input that were read.
        read_bytes: Number of bytes of the input that were read.
        acknowledged: Number of records that brokers have acknowledged.
        total_bytes: Size of the input; None if unknown, as of a pipe.
    """

    read_lines: int
    read_bytes: int
    acknowledged: int
    total_bytes: int | None


@asynccontextmanager
async def show_progress(look: Callable[[], State], *, quiet: bool) -> AsyncIterator[None]:
    """Show the progress of ``consumerd produce`` on stderr while the block runs.

    Args:
        look: Returns the progress of this moment.
        quiet: True to show nothing.
    """
    if quiet:
        yield
        return
    progress = _make_progress() if sys.stderr.isatty() else None
    if progress is None:
        async with alongside(_print_lines(look), name="show progress"):
            yield
        return
    with progress:
        async with alongside(_redraw(progress, look), name="show progress"):
            yield


def _make_progress() -> Progress | None:
    """Return rich's display; None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[read]:,} lines read, {task.fields[acknowledged]:,} acknowledged"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


async def _redraw(progress: Progress, look: Callable[[], State]) -> None:
    """Redraw until cancelled."""
    state = look()
    task = progress.add_task("", total=state.total_bytes, read=0, acknowledged=0)
    while True:
        state = look()
        progress.update(task, completed=state.read_bytes, read=state.read_lines, acknowledged=state.acknowledged)
        await asyncio.sleep(_REDRAW_S)


async def _print_lines(look: Callable[[], State]) -> None:
    """Print until cancelled."""
    while True:
        await asyncio.sleep(_LINE_S)
        state = look()
        with contextlib.suppress(OSError):  # stderr is closed
            sys.stderr.write(f"consumerd: {state.read_lines} lines read, {state.acknowledged} acknowledged\n")
            sys.stderr.flush()
