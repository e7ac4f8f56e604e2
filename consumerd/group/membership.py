# SPDX-License-Identifier: Apache-2.0
"""Interface to this process's membership of a group.

:class:`~consumerd.group.rebalancer.Rebalancer` implements it for groups that ZooKeeper coordinates,
:class:`~consumerd.group.classic.member.ClassicMember` for groups that a broker coordinates. Both tell a
:class:`~consumerd.group.listener.PartitionListener` which partitions to deliver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from consumerd.aio.cell import Cell
from consumerd.group.status import GroupStatus
from consumerd.model import Claim


class Membership(Protocol):
    """Membership of one process in a group.

    Delivery, as the membership's listener, is told which partitions to deliver.
    """

    async def run(self) -> None:
        """Take part in the group until :meth:`leave` is done. No timeout.

        Failures of ZooKeeper or of the coordinator are retried. Raises only errors that end the membership for good. A
        cancellation revokes every claim.
        """

    async def leave(self, timeout_s: float | None = None) -> bool:
        """Drain, commit and release all partitions, leave the group, and let :meth:`run` return.

        Returns True if all of it was done within ``timeout_s`` seconds. Otherwise the remaining partitions are dropped
        without a commit, and the result is False. A timeout of None stands for the membership's own default.
        """

    def report_denied(self, topic: str) -> None:
        """Report that a commit of this topic was refused for lack of permission."""

    def report_lost(self, claim: Claim, reason: str) -> None:
        """Report that delivery has found a claim to be invalid.

        The partition of the claim is dropped, and claimed again if it is still assigned to this member.
        """

    @property
    def topics(self) -> Cell[frozenset[str]]:
        """Names of the group's topics, as last read; callers can wait for changes."""

    @property
    def assigned(self) -> bool:
        """True once this member knows which partitions are assigned to it."""

    @property
    def members(self) -> int:
        """Number of members of the group, as last read."""

    @property
    def group_partitions(self) -> int:
        """Number of partitions of all topics of the group as last read, other members' included."""

    @property
    def denied(self) -> Mapping[str, str]:
        """Topics that this member may not consume, each with the missing permission in words."""

    @property
    def status(self) -> GroupStatus:
        """Current status of the member, for operators, probes and metrics."""
