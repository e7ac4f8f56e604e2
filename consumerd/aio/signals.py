# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and SIGHUP as an event, for commands that clean up before they end.

A terminal sends SIGHUP when it is closed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignal:
    """The first stop signal (SIGINT, SIGTERM or SIGHUP) that the process received, if any."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.number: int | None = None

    def tell(self, number: int) -> None:
        """Note a signal; later ones are ignored, so that they do not disturb the clean-up."""
        if self.number is None:
            self.number = number
        self.told.set()


@contextmanager
def stopped_by_signals() -> Iterator[StopSignal]:
    """Note SIGINT, SIGTERM and SIGHUP in a :class:`StopSignal` while the block runs.

    The signals do not end the process meanwhile: the block checks the StopSignal and ends itself. Must run on the event
    loop of the main thread. If SIGHUP is ignored, it stays ignored: a command under ``nohup`` must keep running.
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
