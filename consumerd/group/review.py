# SPDX-License-Identifier: Apache-2.0
"""Comparison of the group with the computed assignment, to find members that do not agree.

The registrations are compared whenever the group was read: subscriptions may differ. The owners of partitions are
compared while the group is stable: after 2 periodic checks without a change, and then after every 12 checks. Example
with a check each 30 s: owners are read 60 s after the last change, and every 6 minutes from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from structlog.typing import FilteringBoundLogger

from consumerd.errors import CoordinationError, SessionLost
from consumerd.group.assignors import Strategy
from consumerd.group.machine import GroupMachine
from consumerd.group.owners import PartitionOwners
from consumerd.group.plan import (
    Disagreement,
    GroupSnapshot,
    Stamp,
    plan_assignment,
    plan_disagreements,
    plan_owner_disagreements,
)
from consumerd.group.registry import get_session_id
from consumerd.group.reports import GroupReports
from consumerd.model import ThreadId, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown
from consumerd.zk.port import NotConnected, ZkClient

_SHOWN: Final = 8
"""Partitions named in one log line; there may be thousands."""
_REST_PASSES: Final = 2
"""Passes without a change after which owners should match the assignment."""
_REVIEW_PASSES: Final = 12
"""Passes between two comparisons of all owners while nothing changes."""


class GroupReview:
    """Keeps the last snapshot of the group, and the disagreements that it shows.

    A disagreement is a reason why members may compute different assignments.
    """

    def __init__(
        self,
        zk: ZkClient,
        owners: PartitionOwners,
        machine: GroupMachine,
        strategy: Strategy,
        *,
        reports: GroupReports,
        hooks: Hooks,
        log: FilteringBoundLogger,
    ) -> None:
        self._zk = zk
        self._owners = owners
        self._machine = machine
        self._strategy = strategy
        self._reports = reports
        self._hooks = hooks
        self._log = log
        self.snapshot: GroupSnapshot | None = None
        """The last snapshot of the group, or None."""
        self._quiet_passes = 0
        self._registry_disagreements: tuple[Disagreement, ...] = ()
        self._owner_disagreements: tuple[Disagreement, ...] = ()

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """Reasons why members may compute different assignments, or own partitions against the assignment."""
        return self._registry_disagreements + self._owner_disagreements

    def take(self, snapshot: GroupSnapshot) -> None:
        """Keep a newly read snapshot of the group, and report the disagreements that it shows."""
        if self.snapshot is None or self.snapshot.stamp != snapshot.stamp:
            self._quiet_passes = 0
            self._owner_disagreements = ()
        self.snapshot = snapshot
        found = plan_disagreements(snapshot, self._strategy)
        self._reports.tell_disagreements(found, self._registry_disagreements)
        self._registry_disagreements = found

    async def compare_owners(
        self, stamp: Stamp, claimed: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ThreadId]:
        """Compare the owners of all partitions with the assignment, in some of the calls.

        To be called after each periodic check that found no change of the group. Returns the owner nodes of this
        session whose partitions are not in ``claimed``, each with the thread that it names: this member created them,
        and ZooKeeper's answers were lost. Errors of ZooKeeper are reported, not raised.

        Args:
            stamp: The versions of the group's nodes that were just found unchanged.
            claimed: The partitions whose owner nodes the member knows to be its own.
        """
        snapshot = self.snapshot
        if snapshot is None or snapshot.stamp != stamp:
            return {}
        if not self._machine.resting:
            self._quiet_passes = 0
            return {}
        self._quiet_passes += 1
        if self._quiet_passes % _REVIEW_PASSES != _REST_PASSES:
            return {}
        try:
            plan = plan_assignment(snapshot, self._strategy)
            owners = await self._owners.survey(snapshot.topics, plan, frozenset(claimed))
            session_id = get_session_id(self._zk, self._machine.epoch)
        except (NotConnected, SessionLost):
            return {}  # the session's hooks tell of it
        except CoordinationError as error:
            self._reports.tell_owners_unread(error)
            return {}
        strays = {
            partition: ThreadId(holder.thread)
            for partition, holder in owners.holders.items()
            if holder.session_id == session_id and partition not in self._machine.records
        }
        if strays:
            self._log.warning("stray_owners_found", partitions=len(strays), first=join_shown(sorted(strays), _SHOWN))
            for partition in sorted(strays):
                self._hooks.trouble(Trouble.STRAY_OWNERS_FOUND, "an owner node of ours that is not known of", partition)
        consumer = self._machine.consumer
        if consumer is not None and self.snapshot is snapshot and self._machine.resting:
            found = plan_owner_disagreements(snapshot, self._strategy, owners.holders, consumer, owners.there)
            self._reports.tell_disagreements(found, self._owner_disagreements)
            self._owner_disagreements = found
        return strays
