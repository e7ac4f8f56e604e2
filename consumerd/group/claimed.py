# SPDX-License-Identifier: Apache-2.0
"""The claims that a member has given to delivery, until they are drained or dropped.

A claim is this member's right to consume one partition. It is revoked before anything else happens to its partition.
The same code serves members that ZooKeeper coordinates and members that a broker coordinates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.group.claims import LeasedClaim
from consumerd.group.listener import PartitionListener
from consumerd.model import Claim, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble

_DRAIN_OVERRUN_S: Final = 0.25
"""Time, in seconds, that a drain may exceed its deadline before it is cancelled: it may be about to return."""
_CLAIMS_PER_CALL: Final = 64
"""Number of claims given to the listener before other tasks get a turn."""


C = TypeVar("C", bound=LeasedClaim)


class ClaimedPartitions(Generic[C]):
    """The claims of one member: its rights to consume partitions, given to delivery.

    ``changes`` is a counter. It grows whenever a claim may have become usable or unusable, so tasks can wait for that.

    Args:
        listener: Delivery, which learns of claimed, drained and lost partitions.
    """

    def __init__(self, listener: PartitionListener, *, hooks: Hooks, log: FilteringBoundLogger) -> None:
        self._listener = listener
        self._hooks = hooks
        self._log = log
        self._claims: dict[TopicPartition, C] = {}
        self.changes: Final[Cell[int]] = Cell(0)

    @property
    def claims(self) -> Mapping[TopicPartition, C]:
        """The claims that are not revoked, by partition."""
        return self._claims

    def holds(self, claim: Claim) -> bool:
        """Return True if delivery has this very claim and it is not revoked."""
        return self._claims.get(claim.partition) is claim

    async def give(self, claims: Sequence[C]) -> None:
        """Give claims to delivery, which starts to deliver their partitions."""
        self._claims.update({claim.partition: claim for claim in claims})
        # no timeout: the listener returns at once, and the tasks that it starts check their claims
        for begin in range(0, len(claims), _CLAIMS_PER_CALL):
            await self._listener.claimed(claims[begin : begin + _CLAIMS_PER_CALL])
            await asyncio.sleep(0)  # heartbeats and answers must not wait for thousands of starts

    def revoke(self, partitions: Collection[TopicPartition], reason: str) -> None:
        """Invalidate the claims of these partitions for good."""
        for partition in partitions:
            claim = self._claims.pop(partition, None)
            if claim is not None:
                claim.revoke(reason)
        self.wake()

    def revoke_all(self, reason: str) -> frozenset[TopicPartition]:
        """Invalidate all claims, and return the partitions that had one."""
        partitions = frozenset(self._claims)
        self.revoke(partitions, reason)
        return partitions

    def wake(self) -> None:
        """Wake the tasks that wait until a claim is usable: they check it again."""
        self.changes.set(self.changes.value + 1)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Let delivery flush and commit these partitions, within ``deadline_s`` seconds.

        Shortly after the deadline, the call of delivery is cancelled. The partitions that are not finished are then
        dropped: their unflushed records are discarded here, and the next owner fetches them again.
        """
        try:
            async with timeout(deadline_s + _DRAIN_OVERRUN_S):
                await self._listener.drain(partitions, deadline_s)
        except TimeoutError:
            self._log.warning("drain_overran", partitions=len(partitions), seconds=deadline_s)
            detail = f"took more than {deadline_s:.1f} s, partitions that are dropped: {len(partitions)}"
            self._hooks.trouble(Trouble.DRAIN_OVERRAN, detail)
            self.revoke(partitions, "its drain took too long")
            # no timeout: the partition cannot be given up while a task still runs for it
            await self._listener.lost(partitions)

    async def drop(self, partitions: Collection[TopicPartition], reason: str) -> None:
        """Report partitions as lost, and let delivery discard their unflushed records.

        The claims of the partitions must be revoked already. ``reason`` is for the log and the metrics.
        """
        for partition in sorted(partitions):
            self._log.warning("ownership_lost", partition=str(partition), reason=reason)
            self._hooks.ownership_lost(partition, reason)
        # no timeout: the partition is not claimed again while a task still runs for it; all others continue
        await self._listener.lost(partitions)

    async def abandon(self) -> None:
        """Revoke all claims, and let delivery discard unflushed records: nothing more is committed."""
        partitions = self.revoke_all("the member left without having drained it in time")
        if partitions:
            await self._listener.lost(partitions)  # no timeout, as in drop
