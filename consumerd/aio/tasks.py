# SPDX-License-Identifier: Apache-2.0
"""Supervised tasks: a TaskGroup for work that comes and goes by key.

``asyncio.TaskGroup`` covers work that lives as long as a block. :class:`TaskSet` covers work that is started and ended
individually (a pipeline per partition, a loop per broker), while every failure still reaches an owner: the ``async
with`` block of the set.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Hashable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from consumerd.errors import ConsumerdError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class TaskSet(Generic[K]):
    """Tasks by key, owned by the block that entered the set.

    A task that raises cancels the block and its siblings, and the block raises an ExceptionGroup, as TaskGroup does.
    Leaving the block by an exception (cancellation included) cancels running tasks; leaving it normally waits for them.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, traceback)

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    @property
    def keys(self) -> frozenset[K]:
        """Keys of the running tasks."""
        return frozenset(self._tasks)

    def start(self, key: K, work: Coroutine[object, object, None], *, name: str) -> None:
        """Run ``work`` as a task under ``key``. Raises KeyError if the key is in use."""
        if key in self._tasks:
            work.close()
            raise KeyError(f"{key} runs already")
        task = self._group.create_task(work, name=name)
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: K, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def cancel(self, key: K) -> None:
        """Cancel the task of ``key`` and wait until it ends, without a timeout.

        Does nothing if no task has this key.
        """
        task = self._tasks.get(key)
        if task is None:
            return
        task.cancel()
        await self.join(key)

    def cancel_soon(self, key: K) -> None:
        """Cancel the task of ``key`` without waiting. A second call does not disturb its clean-up."""
        task = self._tasks.get(key)
        # ``task.cancelling()`` does not tell: it also counts a timeout inside the task that has just expired, and that
        # takes its request back a moment later, so that the task would not be cancelled at all
        if task is not None and task not in self._ending:
            self._ending.add(task)
            task.cancel()

    async def join(self, key: K) -> None:
        """Wait until the task of ``key`` ends.

        If it fails, the ``async with`` block of the set raises the error, not this call.
        """
        task = self._tasks.get(key)
        if task is not None:
            await asyncio.wait([task])


async def unless(stop: asyncio.Event, work: Coroutine[object, object, T]) -> T | None:
    """Run ``work`` until it ends or ``stop`` is set; return its result.

    If ``stop`` is set first, ``work`` is cancelled and None returned. There is no other time limit. Raises what
    ``work`` raises. If ``work`` has ended when ``stop`` is set, its result is returned.
    """
    task: asyncio.Task[T]
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            stopping = group.create_task(stop.wait())
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            task.cancel()
    except BaseExceptionGroup as failures:
        # only one task can fail: the other one waits for an event
        raise failures.exceptions[0] from None
    return None if task.cancelled() else task.result()


@asynccontextmanager
async def alongside(work: Coroutine[object, object, None], *, name: str) -> AsyncIterator[None]:
    """Run ``work`` while the block runs, and cancel it at the block's end.

    A failure of the block is raised unchanged; a failure of ``work`` cancels the block and is raised in an
    ExceptionGroup.
    """
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group that would wrap it
            failure = error
        finally:
            task.cancel()
    if failure is not None:
        raise failure


def find_cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of a group to report: its first ConsumerdError, else its first error."""
    leaves = list(_leaves(failures))
    return next((leaf for leaf in leaves if isinstance(leaf, ConsumerdError)), leaves[0])


def _leaves(failures: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for one in failures.exceptions:
        leaves += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return leaves
