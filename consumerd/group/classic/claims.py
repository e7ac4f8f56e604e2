# SPDX-License-Identifier: Apache-2.0
"""Claims of a broker-coordinated member, each valid in one generation of the group.

A generation is the time between two rebalances. A claim compares the clock with the lease at each check: the time for
which the coordinator surely counts this process as a member. So a process that was suspended (SIGSTOP) finds its claims
paused as soon as it continues, before any of its tasks runs; the answer to its first heartbeat then tells whether they
are lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumerd.aio.cell import Cell
from consumerd.errors import LeasePaused, OwnershipLost
from consumerd.group.claims import LeasedClaim
from consumerd.model import Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase


class GenerationClaim(LeasedClaim):
    """The right to consume one partition in one generation of the group.

    Args:
        changes: As for :class:`~consumerd.group.claims.LeasedClaim`: a counter of changes of claims and of the lease.
        incarnation: The topic's identity when the partition was assigned.
        phase: Returns for a generation number how old the coordinator's last answer is; NONE if that generation is
            over.
        find_incarnation: Reads a topic's present identity; None for a topic that does not exist. Concurrent calls for
            one topic may share a read.
    """

    def __init__(
        self,
        changes: Cell[int],
        *,
        partition: TopicPartition,
        member_id: str,
        generation: int,
        incarnation: Incarnation,
        phase: Callable[[int], LeasePhase],
        find_incarnation: Callable[[str], Awaitable[Incarnation | None]],
    ) -> None:
        super().__init__(
            changes,
            partition=partition,
            thread=ThreadId(member_id),
            epoch=SessionEpoch(generation),
            incarnation=incarnation,
        )
        self._phase = phase
        self._find_incarnation = find_incarnation

    def __repr__(self) -> str:
        return f"<GenerationClaim {self.partition} generation {self.epoch}>"

    def _check_lease(self) -> None:
        phase = self._phase(self.epoch)
        if phase is LeasePhase.NONE:
            raise OwnershipLost(f"{self.partition}: generation {self.epoch}, in which it was assigned, is over")
        if phase is not LeasePhase.FRESH:
            raise LeasePaused(f"{self.partition}: the group's coordinator has not answered for a while")

    async def _find_made(self) -> Incarnation | None:
        return await self._find_incarnation(self.partition.topic)
