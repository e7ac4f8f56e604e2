# SPDX-License-Identifier: Apache-2.0
"""Claims: the proof of ownership that delivery holds, fenced by the session.

A claim looks at the session itself each time it is asked, never at what some task has been told: a process that was
stopped and goes on finds its claims useless before any of its tasks runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumerd.aio.cell import Cell
from consumerd.errors import IncarnationChanged, LeasePaused, OwnershipLost
from consumerd.model import Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase, Stat, ZkClient


class OwnedClaim:
    """The claim of one partition in one session; the rebalancer revokes, holds and resumes it.

    Args:
        changes: A counter that is raised whenever a claim or the session may have changed.
        find_topic: Reads a topic's node from ZooKeeper at each call; claims of one topic may share a read.
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
        self._zk = zk
        self._find_topic = find_topic
        self._changes = changes
        self._partition = partition
        self._thread = thread
        self._epoch = epoch
        self._incarnation = incarnation
        self._revoked: str | None = None
        self._held = False

    def __repr__(self) -> str:
        return f"<OwnedClaim {self._partition} {self._thread} epoch {self._epoch}>"

    @property
    def partition(self) -> TopicPartition:
        """The partition owned."""
        return self._partition

    @property
    def thread(self) -> ThreadId:
        """The thread in the owner node.

        It changes when another of our threads gets the partition.
        """
        return self._thread

    @property
    def epoch(self) -> SessionEpoch:
        """The session epoch in which the owner node was created."""
        return self._epoch

    @property
    def incarnation(self) -> Incarnation:
        """The topic's incarnation when it was claimed."""
        return self._incarnation

    @property
    def usable(self) -> bool:
        """True if :meth:`check` would pass now."""
        try:
            self.check()
        except (LeasePaused, OwnershipLost):
            return False
        return True

    def check(self) -> None:
        """Return if the claim may be used at this moment. Raises LeasePaused or OwnershipLost."""
        if self._revoked is not None:
            raise OwnershipLost(f"{self._partition}: {self._revoked}")
        state = self._zk.state
        if state.epoch != self._epoch or state.phase is LeasePhase.NONE:
            raise OwnershipLost(f"{self._partition}: the ZooKeeper session in which it was claimed is over")
        if state.phase is not LeasePhase.FRESH or self._held:
            raise LeasePaused(f"{self._partition}: ZooKeeper has not confirmed the claim for a while")

    async def wait_usable(self) -> None:
        """Wait until :meth:`check` would pass. Unbounded: ends with the session at the latest. Raises OwnershipLost."""
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
        """Check, and read the topic's incarnation again; bounded by the ZooKeeper client's own deadline.

        Raises LeasePaused, OwnershipLost, IncarnationChanged, CoordinationError.
        """
        self.check()
        stat = await self._find_topic(self._partition.topic)
        self.check()
        if stat is None:
            raise IncarnationChanged(f"{self._partition}: the topic was deleted")
        if stat.czxid != self._incarnation.czxid:
            raise IncarnationChanged(
                f"{self._partition}: the topic was made again (czxid {self._incarnation.czxid}, now {stat.czxid})"
            )

    # -- for the rebalancer

    def revoke(self, reason: str) -> None:
        """Make the claim useless for good. The first reason stays."""
        if self._revoked is None:
            self._revoked = reason

    def hold(self, *, held: bool) -> None:
        """Keep the claim from being used, or let it be used again."""
        self._held = held

    def rethread(self, thread: ThreadId) -> None:
        """Note that the owner node holds another thread now."""
        self._thread = thread
