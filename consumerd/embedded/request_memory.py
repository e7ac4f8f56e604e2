# SPDX-License-Identifier: Apache-2.0
"""Memory for the requests of all connections: those being received, waiting or handled.

Kafka's limit is ``queued.max.request.bytes`` (SimpleMemoryPool). Here memory is reserved in steps, as bytes arrive: a
peer that announces a request of 100 MiB and sends eight bytes reserves 64 KiB. A connection whose request finds no
memory is not read. When memory is released, these connections continue in the order in which they began to wait.

Requests that are received in part could wait for each other for ever. So while no request is complete, the first
waiting one may exceed the limit, one at a time. All requests together take at most ``limit_bytes`` and one request.

Example: the limit is 128 MiB. Two peers have sent 64 MiB of 100 MiB each, and stall. A request of 1 MiB is the first to
wait, and none is complete, so it is received beyond the limit, handled and released; then the next one is.

A peer that stalls while holding memory is disconnected by its connection when others wait
(:attr:`RequestMemory.contended`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

_STEP_BYTES: Final = 64 << 10
"""Bytes reserved for the beginning of a request; each later step doubles the reservation."""


class MemoryClaim:
    """Memory for one request, reserved in steps as the bytes of the request arrive.

    ``granted`` is called when a step for which the claim had to wait is reserved. :meth:`release` must be called.
    """

    __slots__ = ("_memory", "complete", "granted", "reserved_bytes", "size", "step_bytes")

    def __init__(self, memory: RequestMemory, size: int, granted: Callable[[], None]) -> None:
        self.size = size
        self.reserved_bytes = 0
        self.step_bytes = 0
        """Size of the step that it waits for; 0 if it waits for none."""
        self.complete = False
        self._memory: RequestMemory | None = memory
        self.granted = granted

    @property
    def held(self) -> bool:
        """True unless the claim waits for memory, so that the connection may read on."""
        return not self.step_bytes

    def reserve_more(self) -> None:
        """Reserve the next step of the request's memory.

        A step has as many bytes as are reserved already, at least 64 KiB, up to the request's size. If there is no room
        now, ``granted`` is called when the step is reserved.
        """
        assert self._memory is not None, "not released"
        self.step_bytes = min(max(self.reserved_bytes, _STEP_BYTES), self.size - self.reserved_bytes)
        self._memory.ask(self)

    def finish(self) -> None:
        """Note that all bytes of the request have arrived.

        The request will be handled, and its memory released, without more memory.
        """
        assert self._memory is not None, "not released"
        self._memory.finish(self)

    def release(self) -> None:
        """Release the request's memory, or end its wait for memory. Idempotent."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.give_back(self)


class RequestMemory:
    """Memory of ``limit_bytes`` bytes for the requests of all connections together.

    For use on one event loop.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[MemoryClaim] = deque()
        self._complete = 0
        self._beyond: MemoryClaim | None = None
        """The claim that may exceed the limit, if any."""
        self.taken_bytes = 0

    @property
    def contended(self) -> bool:
        """True if a request waits for memory that other requests hold."""
        return bool(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> MemoryClaim:
        """Begin to reserve memory for a request of ``size`` bytes; return its claim.

        If there is no room for the first step now, ``granted`` is called when that step is reserved.
        """
        claim = MemoryClaim(self, size, granted)
        claim.reserve_more()
        return claim

    def ask(self, claim: MemoryClaim) -> None:
        """Reserve the next step of a request's memory, or queue it. Called by the claim."""
        if self._beyond is claim or (not self._waiting and self._may_have(claim)):
            self._reserve(claim)
        else:
            self._waiting.append(claim)

    def finish(self, claim: MemoryClaim) -> None:
        """Note that a request has arrived completely. Called by the claim."""
        claim.complete = True
        self._complete += 1

    def give_back(self, claim: MemoryClaim) -> None:
        """Take back a request's memory, and serve those that wait. Called by the claim."""
        self.taken_bytes -= claim.reserved_bytes
        self._complete -= claim.complete
        if not claim.held:
            self._waiting.remove(claim)
        if self._beyond is claim:
            self._beyond = None
        while self._waiting and self._may_have(self._waiting[0]):
            following = self._waiting.popleft()
            self._reserve(following)
            following.granted()

    def _may_have(self, claim: MemoryClaim) -> bool:
        if self.taken_bytes + claim.step_bytes <= self._limit_bytes:
            return True
        return self._beyond is None and not self._complete

    def _reserve(self, claim: MemoryClaim) -> None:
        if self.taken_bytes + claim.step_bytes > self._limit_bytes:
            self._beyond = claim
        self.taken_bytes += claim.step_bytes
        claim.reserved_bytes += claim.step_bytes
        claim.step_bytes = 0
