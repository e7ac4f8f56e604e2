# SPDX-License-Identifier: Apache-2.0
"""Commands that end like a killed process at one of their requests, as proxies before all servers see it.

A :class:`SuddenEnd` is the hook of every proxy between a command and its servers. It writes down each request. At a
chosen one it lets nothing through any more, in either direction, and has the command cancelled: what the command still
does in its own clean-up reaches no server, as with ``kill -9``.

Example: ``Moment("target", "PRODUCE", 2, answered=True)`` is when the second Produce of the target was carried out, and
its answer has not come back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from consumerd.cli.main import main, make_parser
from consumerd.errors import ConsumerdError
from consumerd.wire.apikeys import ApiKey
from tests.support.tcp_proxy import Action, Direction, FrameHook
from tests.support.zookeeper import opcode
from tests.support.zookeeper_operations import KINDS

_NEVER: Final = frozenset({"opcode 0", "opcode 11", "opcode -11"})
"""Of ZooKeeper: connect, ping, end of the session. They go by the clock, or come when the command is over."""
_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """The ``number``-th request of a kind to a server, from 1: before it is carried out, or when its answer comes."""

    server: str
    request: str
    number: int
    answered: bool

    def __str__(self) -> str:
        return f"{self.server} {self.request} {self.number} {'answered' if self.answered else 'asked'}"


class SuddenEnd:
    """Watches requests of a command, and ends it, or loses an answer, at a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._on_end: Callable[[], None] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._awaited: set[tuple[str, bytes]] = set()
        self._is_over = False
        self._is_watching = False
        self.seen: list[tuple[str, str]] = []
        """Server and kind of each request since the watch began."""
        self.was_reached = False

    def hook_kafka(self, server: str) -> FrameHook:
        """Return the hook for a proxy before a broker."""
        return partial(self._decide, server, _name_kafka, slice(8, 12))

    def hook_zookeeper(self, server: str) -> FrameHook:
        """Return the hook for a proxy before a ZooKeeper."""
        return partial(self._decide, server, _name_zookeeper, slice(4, 8))

    @contextmanager
    def watch(self, moment: Moment | None = None, on_end: Callable[[], None] | None = None) -> Iterator[None]:
        """Watch requests while the block runs.

        Args:
            moment: when to end the command, or to lose one answer; None to watch only.
            on_end: called at the moment, in a proxy's thread; from then on nothing gets through. None to lose that one
                answer only: connections are cut, and later ones work.
        """
        with self._lock:
            self._counts.clear()
            self._awaited.clear()
            self.seen, self.was_reached = [], False
            self._moment, self._on_end, self._is_watching = moment, on_end, True
        try:
            yield
        finally:
            with self._lock:
                self._moment, self._on_end, self._is_over, self._is_watching = None, None, False, False

    def _decide(
        self, server: str, name: Callable[[bytes], str], number: slice, direction: Direction, frame: bytes
    ) -> Action:
        with self._lock:
            if self._is_over:
                return Action.CUT
            if not self._is_watching:
                return Action.FORWARD
            if direction is Direction.TO_CLIENT:
                awaited = (server, frame[4:8])
                if awaited not in self._awaited:
                    return Action.FORWARD
                self._awaited.discard(awaited)
                return self._end()
            request = name(frame)
            if request in _NEVER:
                return Action.FORWARD
            self.seen.append((server, request))
            self._counts[server, request] += 1
            moment = self._moment
            if moment is None or (moment.server, moment.request) != (server, request):
                return Action.FORWARD
            if self._counts[server, request] != moment.number:
                return Action.FORWARD
            if not moment.answered:
                return self._end()
            self._awaited.add((server, frame[number]))
            return Action.FORWARD

    def _end(self) -> Action:
        self.was_reached = True
        if self._on_end is not None:
            self._is_over = True
            self._on_end()
        return Action.CUT


def _name_kafka(frame: bytes) -> str:
    return ApiKey(int.from_bytes(frame[4:6])).name


def _name_zookeeper(frame: bytes) -> str:
    code = opcode(frame)
    return KINDS.get(code, f"opcode {code}")


def list_moments(seen: Sequence[tuple[str, str]], *, answered: Sequence[bool] = (False, True)) -> list[Moment]:
    """Return the moments of watched requests, in their order."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for one in seen:
        counts[one] += 1
        found += [Moment(*one, counts[one], after) for after in answered]
    return found


def run_until(end: SuddenEnd, moment: Moment, arguments: Sequence[str]) -> bool:
    """Run a command in this process, killed at a moment; return False if it ended before.

    What it raises before the moment is raised.
    """

    async def run() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        args = make_parser().parse_args(arguments)

        def cancel() -> None:
            task.cancel()
            # once more, as often as it takes: its clean-up waits for servers, and a killed process waits for nothing
            loop.call_later(_AGAIN_S, cancel)

        def reached() -> None:
            loop.call_soon_threadsafe(cancel)

        with end.watch(moment, reached):
            try:
                await args.command(args)
            except (asyncio.CancelledError, ConsumerdError):
                # connections are gone a moment before the cancellation comes
                if not end.was_reached:
                    raise

    asyncio.run(run())
    return end.was_reached


def run_losing(end: SuddenEnd, moment: Moment, arguments: Sequence[str]) -> tuple[int, bool]:
    """Run a command that loses one answer; return its exit code, and whether the answer was lost."""
    with end.watch(moment):
        code = main(arguments)
    return code, end.was_reached
