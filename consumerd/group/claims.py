# SPDX-License-Identifier: Apache-2.0
"""Claims: rights to consume partitions, each valid as long as a lease.

A lease is a ZooKeeper session, or a generation of a group that a broker coordinates.

A claim reads the lease's state at each check, and never relies on a task to report changes. So a process that was
suspended (SIGSTOP) finds its claims invalid as soon as it continues, before any of its tasks runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from consumerd.aio.cell import Cell
from consumerd.errors import IncarnationChanged, LeasePaused, OwnershipLost
from consumerd.model import Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase, Stat, ZkClient


class LeasedClaim(ABC):
    """The right to consume one partition, as long as a lease.

    Delivery calls :meth:`check` before each use of the claim. The membership ends the claim with :meth:`revoke`.

    Args:
        changes: A counter that grows whenever a claim or the lease may have changed; :meth:`wait_usable` waits for it.
        epoch: Number of the lease: of the ZooKeeper session, or of the group's generation.
        incarnation: The topic's identity when the partition was claimed.
    """

    def __init__(
        self,
        changes: Cell[int],
        *,
        partition: TopicPartition,
        thread: ThreadId,
        epoch: SessionEpoch,
        incarnation: Incarnation,
    ) -> None:
        self._changes = changes
        self.partition: Final = partition
        """The partition owned."""
        self.thread = thread
        """The thread in the owner node, which another of our threads may get; or the id of the member."""
        self.epoch: Final = epoch
        """The number of the lease under which the partition was claimed."""
        self.incarnation: Final = incarnation
        """The topic's incarnation when it was claimed."""
        self._revoked: str | None = None

    @abstractmethod
    def _check_lease(self) -> None:
        """Check that the lease lasts.

        Raises OwnershipLost if it is over, LeasePaused if its last confirmation is too old.
        """

    @abstractmethod
    async def _find_made(self) -> Incarnation | None:
        """Read the topic's present incarnation; None if the topic does not exist. Raises CoordinationError."""

    @property
    def usable(self) -> bool:
        """True if :meth:`check` would raise no error now."""
        try:
            self.check()
        except (LeasePaused, OwnershipLost):
            return False
        return True

    def check(self) -> None:
        """Verify that the claim may be used at this moment. Raises LeasePaused or OwnershipLost.

        LeasePaused: not now, but perhaps later. OwnershipLost: never again.
        """
        if self._revoked is not None:
            raise OwnershipLost(f"{self.partition}: {self._revoked}")
        self._check_lease()

    async def wait_usable(self) -> None:
        """Wait until the claim may be used, at most until it is lost. Raises OwnershipLost."""
        while True:
            seen = self._changes.value
            try:
                self.check()
            except LeasePaused:
                await self._wait_change(seen)
            else:
                return

    async def _wait_change(self, seen: int) -> None:
        await self._changes.wait(lambda value: value != seen)

    async def confirm(self) -> None:
        """Check that the claim may be used and that its topic was not re-created.

        Reads the topic's identity from the cluster. Raises LeasePaused, OwnershipLost, IncarnationChanged if the topic
        is another one now, CoordinationError if the cluster does not answer.
        """
        self.check()
        found = await self._find_made()
        self.check()
        if found is None:
            raise IncarnationChanged(f"{self.partition}: the topic was deleted")
        if not found.is_same_topic(self.incarnation):
            raise IncarnationChanged(
                f"{self.partition}: the topic was re-created"
                f" (was {self.incarnation.topic_text}, now {found.topic_text})"
            )

    def revoke(self, reason: str) -> None:
        """Invalidate the claim for good. Later calls do not change the reason."""
        if self._revoked is None:
            self._revoked = reason


class OwnedClaim(LeasedClaim):
    """The right to consume one partition, which a member has during one ZooKeeper session.

    The rebalancer suspends the claim with :meth:`hold`.

    Args:
        changes: As for :class:`LeasedClaim`: a counter of changes of claims and of the session.
        thread: The member's thread that the owner node names.
        epoch: Number of the ZooKeeper session in which the owner node was created.
        incarnation: The topic's identity when the partition was claimed.
        find_topic: Reads a topic's node from ZooKeeper at each call; None if there is no node. Concurrent calls for one
            topic may share a read.
    """

    def __init__(
        self,
        zk: ZkClient,
        changes: Cell[int],
        *,
        partition: TopicPartition,
        thread: ThreadId,
        epoch: SessionEpoch,
        incarnation: Incarnation,
        find_topic: Callable[[str], Awaitable[Stat | None]],
    ) -> None:
        super().__init__(changes, partition=partition, thread=thread, epoch=epoch, incarnation=incarnation)
        self._zk = zk
        self._find_topic = find_topic
        self._held = False

    def __repr__(self) -> str:
        return f"<OwnedClaim {self.partition} {self.thread} epoch {self.epoch}>"

    def _check_lease(self) -> None:
        state = self._zk.state
        if state.epoch != self.epoch or state.phase is LeasePhase.NONE:
            raise OwnershipLost(f"{self.partition}: the ZooKeeper session in which it was claimed is over")
        if state.phase is not LeasePhase.FRESH or self._held:
            raise LeasePaused(f"{self.partition}: ZooKeeper has not confirmed the claim for a while")

    async def _find_made(self) -> Incarnation | None:
        stat = await self._find_topic(self.partition.topic)
        return None if stat is None else Incarnation(stat.czxid)

    def hold(self, *, held: bool) -> None:
        """Suspend the claim if ``held`` is True, else allow its use again."""
        self._held = held

    def rethread(self, thread: ThreadId) -> None:
        """Note the thread of this member that the changed owner node names now."""
        self.thread = thread
