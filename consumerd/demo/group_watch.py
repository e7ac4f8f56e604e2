# SPDX-License-Identifier: Apache-2.0
"""The demo's view of its group while it runs: owners and landed positions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.demo.children import Child, ChildFailed
from consumerd.demo.members import DemoMember, MemberStatus, Partition

_INTERVAL_S: Final = 0.2


class GroupWatch:
    """Polls all running members several times per second, and lets callers wait for a state.

    Positions are the highest reported by any member, so they do not go back when one is killed.
    """

    def __init__(self, cluster: Child, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._members: list[DemoMember] = []
        self._statuses: dict[str, MemberStatus] = {}
        self._landed: dict[Partition, int] = {}
        self._looked = asyncio.Condition()

    def add(self, member: DemoMember) -> None:
        """Poll this member too."""
        self._members.append(member)

    @property
    def landed(self) -> Mapping[Partition, int]:
        """The offset after all records that are safe in files, by partition."""
        return self._landed

    def landed_of(self, topic: str) -> int:
        """Return the number of a topic's records that are safe in files."""
        return sum(position for partition, position in self._landed.items() if partition[0] == topic)

    def owned_by(self, member: DemoMember) -> frozenset[Partition]:
        """Return the partitions that a member owns, by its last report."""
        status = self._statuses.get(member.name)
        return frozenset() if status is None or not member.running else status.owned

    def share(self, members: Collection[DemoMember], partitions: Collection[Partition]) -> bool:
        """Return True if these members own all partitions, by their last reports.

        See :func:`is_shared`.
        """
        return is_shared([self._statuses.get(member.name) for member in members], partitions)

    async def wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until a condition on the watched state holds. Raises ChildFailed on timeout."""
        try:
            async with timeout(timeout_s), self._looked:
                await self._looked.wait_for(condition)
        except TimeoutError:
            raise ChildFailed(
                f"not within {timeout_s:.0f} s: {what}; the logs are in {self._cluster.log.parent}"
            ) from None

    async def run(self) -> None:
        """Watch until cancelled. Raises ChildFailed if a process ends unexpectedly."""
        while True:
            self._cluster.check()
            for member in self._members:
                member.check()
            running = [member for member in self._members if member.running]
            statuses = await map_bounded(running, lambda member: member.find_status())
            for member, status in statuses.items():
                if status is not None:
                    self._take(member, status)
            self._changed()
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(_INTERVAL_S)

    def _take(self, member: DemoMember, status: MemberStatus) -> None:
        self._statuses[member.name] = status
        for partition, position in status.acknowledged.items():
            self._landed[partition] = max(position, self._landed.get(partition, 0))


def is_shared(statuses: Sequence[MemberStatus | None], partitions: Collection[Partition]) -> bool:
    """Return True if all members are ready and share the partitions.

    Each member owns at least one, and each partition has exactly one owner.
    """
    known = [status for status in statuses if status is not None and status.ready and status.owned]
    owned = [partition for status in known for partition in status.owned]
    return len(known) == len(statuses) and sorted(owned) == sorted(partitions)
