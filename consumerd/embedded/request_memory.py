# SPDX-License-Identifier: Apache-2.0
"""Memory for the requests of all connections: those being received, waiting or handled.

Like Kafka's ``queued.max.request.bytes`` (SimpleMemoryPool), but reserved as bytes arrive: a peer that announces 100
MiB and sends eight bytes reserves one step. Connections whose requests find no memory are not read until there is some,
in order.

Partly received requests could wait for each other for ever. So while no request is complete, the first waiting one may
exceed the limit, one at a time. The bound is ``limit_bytes`` and one request.

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
    """Memory reserved for one request, as it arrives; :meth:`release` must be called."""

    __slots__ = ("_granted", "_memory", "complete", "reserved_bytes", "size", "step_bytes")

    def __init__(self, memory: RequestMemory, size: int, granted: Callable[[], None]) -> None:
        self.size = size
        self.reserved_bytes = 0
        self.step_bytes = 0
        """What it waits for; 0 while it waits for nothing."""
        self.complete = False
        self._memory: RequestMemory | None = memory
        self._granted = granted

    @property
    def held(self) -> bool:
        """True if all requested bytes are reserved."""
        return not self.step_bytes

    def reserve_more(self) -> None:
        """Request the next step; if it is not reserved at once, ``granted`` is called later."""
        assert self._memory is not None, "not released"
        self.step_bytes = min(max(self.reserved_bytes, _STEP_BYTES), self.size - self.reserved_bytes)
        self._memory.ask(self)

    def finish(self) -> None:
        """Note that the request is complete: it will be handled and released."""
        assert self._memory is not None, "not released"
        self._memory.finish(self)

    def add_step(self) -> None:
        """Reserve the requested step. Called by the memory."""
        self.reserved_bytes += self.step_bytes
        self.step_bytes = 0

    def grant(self) -> None:
        """Report that a delayed step is reserved. Called by the memory."""
        self._granted()

    def release(self) -> None:
        """Release everything, and end a wait. Idempotent."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.give_back(self)


class RequestMemory:
    """``limit_bytes`` shared by all requests. For use on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[MemoryClaim] = deque()
        self._complete = 0
        self._beyond: MemoryClaim | None = None
        """The one that was let beyond the limit."""
        self.taken_bytes = 0

    @property
    def contended(self) -> bool:
        """True if a request waits for memory."""
        return bool(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> MemoryClaim:
        """Return a claim whose first step is reserved now, or when ``granted`` is called."""
        claim = MemoryClaim(self, size, granted)
        claim.reserve_more()
        return claim

    def ask(self, claim: MemoryClaim) -> None:
        """Reserve a claim's next step, or queue it. Called by the claim."""
        if self._beyond is claim or (not self._waiting and self._may_have(claim)):
            self._reserve(claim)
        else:
            self._waiting.append(claim)

    def finish(self, claim: MemoryClaim) -> None:
        """Count a complete request. Called by the claim."""
        claim.complete = True
        self._complete += 1

    def give_back(self, claim: MemoryClaim) -> None:
        """Take back a claim's memory, and serve waiting claims. Called by the claim."""
        self.taken_bytes -= claim.reserved_bytes
        self._complete -= claim.complete
        if not claim.held:
            self._waiting.remove(claim)
        if self._beyond is claim:
            self._beyond = None
        while self._waiting and self._may_have(self._waiting[0]):
            following = self._waiting.popleft()
            self._reserve(following)
            following.grant()

    def _may_have(self, claim: MemoryClaim) -> bool:
        if self.taken_bytes + claim.step_bytes <= self._limit_bytes:
            return True
        return self._beyond is None and not self._complete

    def _reserve(self, claim: MemoryClaim) -> None:
        if self.taken_bytes + claim.step_bytes > self._limit_bytes:
            self._beyond = claim
        self.taken_bytes += claim.step_bytes
        claim.add_step()
