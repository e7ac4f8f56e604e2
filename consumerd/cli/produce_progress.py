# SPDX-License-Identifier: Apache-2.0
"""How far ``consumerd produce`` is, on stderr: a line that moves on a terminal, lines now and then elsewhere."""

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
    """How far it is; ``read_bytes`` of ``total_bytes``, None where nobody knows how much there is."""

    read_lines: int
    read_bytes: int
    acknowledged: int
    total_bytes: int | None


@asynccontextmanager
async def show_progress(look: Callable[[], State], *, quiet: bool) -> AsyncIterator[None]:
    """Show ``look()`` while the block runs."""
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
    """Return rich's display; None where it is not installed."""
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
        with contextlib.suppress(OSError):  # nobody reads it
            sys.stderr.write(f"consumerd: {state.read_lines} lines read, {state.acknowledged} acknowledged\n")
            sys.stderr.flush()
