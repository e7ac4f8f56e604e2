# SPDX-License-Identifier: Apache-2.0
"""The demo's view of its group while it runs: owners and landed positions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.demo.children import ChildFailed
from consumerd.demo.members import DemoDaemon, MemberStatus
from consumerd.model import TopicPartition

_INTERVAL_S: Final = 0.2


class GroupWatch:
    """Polls all running members several times per second, and lets callers wait for a state.

    The acknowledged position of a partition is the highest that any member has reported. So it does not go back when a
    member is killed.

    Args:
        check: Raises ChildFailed if a broker has ended unexpectedly.
        logs: Folder of the processes' logs, which errors name.
        changed: Called after each poll.

    Attributes:
        landed: position of each partition up to which all records are safe in files.
    """

    def __init__(self, check: Callable[[], None], logs: Path, changed: Callable[[], None]) -> None:
        self._check = check
        self._logs = logs
        self._changed = changed
        self._members: list[DemoDaemon] = []
        self._statuses: dict[str, MemberStatus] = {}
        self.landed: dict[TopicPartition, int] = {}
        self._looked = asyncio.Condition()

    def add(self, member: DemoDaemon) -> None:
        """Poll the status of this member from now on, too."""
        self._members.append(member)

    def owned_by(self, member: DemoDaemon) -> frozenset[TopicPartition]:
        """Return the partitions that a member owns by its last report; empty before the first."""
        status = self._statuses.get(member.name)
        return frozenset() if status is None or not member.running else status.owned

    def find_behind(self, member: DemoDaemon) -> int | None:
        """Return how many offsets are not safe at a member's sink; None if unknown."""
        status = self._statuses.get(member.name)
        return None if status is None else status.behind

    def share(self, members: Collection[DemoDaemon], partitions: Collection[TopicPartition]) -> bool:
        """Return True if these members, all ready, own all partitions, by their last reports.

        Each member must own at least one, and each partition must have exactly one owner.
        """
        return is_shared([self._statuses.get(member.name) for member in members], partitions)

    async def wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until ``condition`` returns True; it is called after each poll of the members.

        Raises ChildFailed after ``timeout_s`` seconds; ``what`` describes the awaited state in the error.
        """
        try:
            async with timeout(timeout_s), self._looked:
                await self._looked.wait_for(condition)
        except TimeoutError:
            raise ChildFailed(f"not within {timeout_s:.0f} s: {what}; the logs are in {self._logs}") from None

    async def run(self) -> None:
        """Poll the members until cancelled. Raises ChildFailed if a process ends unexpectedly."""
        while True:
            self._check()
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

    def _take(self, member: DemoDaemon, status: MemberStatus) -> None:
        self._statuses[member.name] = status
        for partition, position in status.acknowledged.items():
            self.landed[partition] = max(position, self.landed.get(partition, 0))


def is_shared(statuses: Sequence[MemberStatus | None], partitions: Collection[TopicPartition]) -> bool:
    """Return True if all members are ready and share the partitions.

    Each member owns at least one, and each partition has exactly one owner.
    """
    known = [status for status in statuses if status is not None and status.ready and status.owned]
    owned = [partition for status in known for partition in status.owned]
    return len(known) == len(statuses) and sorted(owned) == sorted(partitions)
