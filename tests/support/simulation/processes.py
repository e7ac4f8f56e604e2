# SPDX-License-Identifier: Apache-2.0
"""Processes on virtual time: each has an event loop of its own, so that one can be stopped or killed while others go on.

A :class:`World` keeps the clock and one queue for all. A :class:`Process` is what its tasks take for the event loop. It can
be *stopped* (as by SIGSTOP: not one callback more, while time passes and what others send piles up), be *continued* (first
what had arrived, then every timer that has become due), and be *killed* (nothing of it ever runs again, no clean-up either).
No selector, no threads, no context variables; everything happens in an order that follows from the seed alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")

_MOST_STEPS = 400_000


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set, or things go round in circles."""


class _Handle:
    __slots__ = ("args", "callback", "process", "timed", "when")

    def __init__(
        self,
        process: Process,
        callback: Callable[..., object] | None,
        args: tuple[object, ...],
        when: float,
        timed: bool,
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.when = when
        self.timed = timed

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class _Task(asyncio.Task[Any]):
    """Hashed by number: sets of tasks, of which asyncio has some, are then walked in the same order in every run."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: Process, name: str, number: int) -> None:
        self._number = number
        super().__init__(coro, loop=loop, name=name)

    def __hash__(self) -> int:
        return self._number


class World:
    """The clock, and everything that is going to happen. ``main`` is the process of whoever tells the story."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.failures: list[BaseException] = []
        self.main: Process
        self.numbers = itertools.count(1)
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._processes: list[Process] = []
        self._dead_tasks: list[asyncio.Task[Any]] = []
        self.main = self.process("main")

    def process(self, name: str) -> Process:
        """Return a new process."""
        process = Process(self, name)  # type: ignore[abstract]  # what it lacks of a loop is used by nobody here
        self._processes.append(process)
        return process

    def add(self, handle: _Handle) -> None:
        """Let something happen now, or when it is due."""
        if handle.timed:
            heapq.heappush(self._timers, (handle.when, next(self.numbers), handle))
        else:
            self._ready.append(handle)

    def resume(self, backlog: list[_Handle]) -> None:
        """Let what a stopped process has missed happen."""
        self._ready.extend(backlog)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run a story in the main process until it ends, then let nothing of it survive."""
        was_collecting = gc.isenabled()
        gc.disable()  # what is dead must not be cleaned up in the middle of somebody else's step
        try:
            task = self.main.create_task(story)
            self._run_until(lambda: bool(self.failures) or task.done())
            if self.failures:
                raise self.failures[0]
            return cast("T", task.result())
        finally:
            self._bury()
            asyncio._set_running_loop(None)
            if was_collecting:
                gc.enable()

    def _run_until(self, done: Callable[[], bool]) -> None:
        ready, timers = self._ready, self._timers
        running: Process | None = None
        while not done():
            if not ready:
                if not timers:
                    raise Deadlock("nothing is ready and no timer is set")
                when, _, handle = heapq.heappop(timers)
                if handle.callback is None:
                    continue
                self.now = max(self.now, when)
                ready.append(handle)
                continue
            handle = ready.popleft()
            callback, process = handle.callback, handle.process
            if callback is None:
                continue
            if process.countdown is not None and process.count_down():
                process = handle.process
            if not process.running:
                process.miss(handle)
                continue
            if process is not running:
                running = process
                asyncio._set_running_loop(process)
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise Deadlock(f"no end in sight after {_MOST_STEPS} steps, at {self.now:.3f} s")
            callback(*handle.args)

    def _bury(self) -> None:
        """Cancel whatever is left, the dead's tasks as well, and let it end: nobody looks any more."""
        steps, self.steps = self.steps, 0
        for process in self._processes:
            process.exhume()
        for process in self._processes:
            for task in list(process.tasks):
                task.cancel()
                self._dead_tasks.append(task)
        ends = self.now + 60
        with contextlib.suppress(Deadlock):
            self._run_until(lambda: self.now > ends or not any(process.tasks for process in self._processes))
        self.steps = steps
        for task in self._dead_tasks:
            if task.done() and not task.cancelled():
                task.exception()  # it was heard of already, or is of no interest any more


class Process(asyncio.AbstractEventLoop):
    """One process: an event loop for its tasks, a handle for the story."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.running = True
        self.dead = False
        self.countdown: tuple[int, Callable[[], None]] | None = None
        """After so many callbacks more, do something to this process."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._world = world
        self._missed: list[_Handle] = []
        self._exhumed = False

    # -- for the story

    def stop(self) -> None:
        """Stop it as SIGSTOP does."""
        self.running = False

    def proceed(self) -> None:
        """Let it go on as SIGCONT does."""
        if self.dead or self.running:
            return
        self.running = True
        missed, self._missed = self._missed, []
        # an event loop takes what has arrived before it looks at its timers
        self._world.resume([h for h in missed if not h.timed] + sorted((h for h in missed if h.timed), key=_when))

    def kill(self) -> None:
        """End it as SIGKILL does."""
        if not self._exhumed:
            self.running, self.dead = False, True

    def after(self, callbacks: int, act: Callable[[], None]) -> None:
        """Do something to it in the middle of whatever it is going to do."""
        self.countdown = (callbacks, act)

    # -- for the world

    def count_down(self) -> bool:
        """Count a callback; return whether it was the one."""
        assert self.countdown is not None
        left, act = self.countdown
        if left > 0 or not self.running:
            self.countdown = (left - 1, act)
            return False
        self.countdown = None
        act()
        return True

    def miss(self, handle: _Handle) -> None:
        """Keep what it cannot do now."""
        self._missed.append(handle)

    def exhume(self) -> None:
        """Let the dead run once more, for their tasks to be ended."""
        self.running, self.dead, self.countdown, self._exhumed = True, False, None, True
        self._world.resume(self._missed)
        self._missed = []

    # -- the event loop

    def time(self) -> float:
        return self._world.now

    def call_soon(self, callback: Callable[..., object], *args: object, context: object = None) -> _Handle:  # type: ignore[override]  # lighter handles
        handle = _Handle(self, callback, args, self._world.now, timed=False)
        self._world.add(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # no threads here

    def call_at(self, when: float, callback: Callable[..., object], *args: object, context: object = None) -> _Handle:  # type: ignore[override]
        handle = _Handle(self, callback, args, when, timed=True)
        self._world.add(handle)
        return handle

    def call_later(  # type: ignore[override]  # lighter handles, here as well
        self, delay: float, callback: Callable[..., object], *args: object, context: object = None
    ) -> _Handle:
        return self.call_at(self._world.now + delay, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: object = None) -> _Task:  # type: ignore[override]
        task = _Task(coro, loop=self, name=name or "task", number=next(self._world.numbers))
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # no executor is used
        """Do the work at once: threads take no time here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - goes to whoever waits for it
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.failures.append(error if isinstance(error, BaseException) else AssertionError(str(context)))


def _when(handle: _Handle) -> float:
    return handle.when
