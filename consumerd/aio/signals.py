# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and SIGHUP (a terminal that was closed) as an event, for commands that clean up before they end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignal:
    """Whether we were told to end, and by which signal (the first one)."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.number: int | None = None

    def tell(self, number: int) -> None:
        """Take a signal; those after the first change nothing, so that they do not disturb the clean-up."""
        if self.number is None:
            self.number = number
        self.told.set()


@contextmanager
def stopped_by_signals() -> Iterator[StopSignal]:
    """Take these signals while the block runs, which must be in the main thread's loop.

    SIGHUP is left alone where it is ignored: whoever starts a command with ``nohup`` means it to go on.
    """
    stop = StopSignal()
    loop = asyncio.get_running_loop()
    taken = [one for one in _STOPPING if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, stop.tell, number)
    try:
        yield stop
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
