# SPDX-License-Identifier: Apache-2.0
"""Events and tasks of one member of a group, and its end.

The same code serves members that ZooKeeper coordinates and members that a broker coordinates. Each has a pure state
machine: the member takes the next event, gives it to the machine, and carries out the effects that the machine returns.
An effect that waits becomes a task, which posts an event when it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final, Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from consumerd.aio.tasks import TaskSet
from consumerd.aio.timeouts import timeout
from consumerd.telemetry.hooks import Hooks, Trouble

E = TypeVar("E")


class MemberLoop(Generic[E]):
    """Queue of events, and the tasks, of one member.

    Attributes:
        tasks: The tasks of effects; the member enters it while it runs.

    Args:
        tick: Event that stands for the machine's deadline.
        now: Returns the seconds of the clock on which the machine's deadlines are.
    """

    def __init__(self, tick: E, *, now: Callable[[], float], hooks: Hooks, log: FilteringBoundLogger) -> None:
        self._tick = tick
        self._now = now
        self._hooks = hooks
        self._log = log
        self._events: deque[E] = deque()
        self._wakeup = asyncio.Event()
        self._stopped = asyncio.Event()
        self._running = False
        self._abandoned = False
        self.tasks: Final[TaskSet[int]] = TaskSet()
        self._task_key = 0

    @property
    def abandoned(self) -> bool:
        """True if the time to leave is over: the member drops what it has."""
        return self._abandoned

    def begin(self) -> None:
        """Note that the member runs, so that :meth:`leave` waits for its end."""
        self._running = True

    def end(self) -> None:
        """Note that the member has stopped and holds no claims any more."""
        self._running = False
        self._stopped.set()

    def post(self, event: E) -> None:
        """Append an event to the queue."""
        self._events.append(event)
        self._wakeup.set()

    async def next_event(self, find_deadline: Callable[[], float | None]) -> E:
        """Wait for the next event, or for the machine's deadline.

        Returns the tick at the deadline, and at once if the member was abandoned and the queue is empty.

        Args:
            find_deadline: Returns the machine's deadline in seconds of the clock; None if it has none.
        """
        while not self._events and not self._abandoned:
            deadline = find_deadline()
            delay = None if deadline is None else deadline - self._now()
            if delay is not None and delay <= 0:
                return self._tick
            self._wakeup.clear()
            try:
                async with timeout(delay):
                    await self._wakeup.wait()
            except TimeoutError:
                return self._tick
        return self._events.popleft() if self._events else self._tick

    def start(self, work: Coroutine[object, object, None]) -> int:
        """Start the task of an effect; return its key in ``tasks``."""
        self._task_key += 1
        self.tasks.start(self._task_key, work, name=f"group-{self._task_key}")
        return self._task_key

    async def leave(self, request: E, timeout_s: float) -> bool:
        """Post ``request``, with which the member leaves, and wait until it has stopped.

        Returns True if it stopped within ``timeout_s`` seconds, or does not run. Otherwise it is abandoned, which it
        must notice, and this waits without a time limit until it has dropped what it has.
        """
        if not self._running:
            return True
        self.post(request)
        try:
            async with timeout(timeout_s):
                await self._stopped.wait()
        except TimeoutError:
            self._log.warning("leave_timed_out", seconds=timeout_s)
            self._hooks.trouble(Trouble.LEAVE_TIMED_OUT, f"not done within {timeout_s:.1f} s")
            self._abandoned = True
            self._wakeup.set()
            await self._stopped.wait()  # only drops what is left
            return False
        return True
