# SPDX-License-Identifier: Apache-2.0
"""What a person, a probe or a metric may know of a member: values, read-only.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.group.events import Rebalance
from consumerd.group.plan import Disagreement, Holder
from consumerd.group.transitions import MemberState, PartitionState
from consumerd.model import ConsumerId, SessionEpoch, ThreadId, TopicPartition
from consumerd.telemetry.wording import join_shown

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A partition that should be ours and is another's. ``holder`` is None where it was not to be read."""

    partition: TopicPartition
    holder: Holder | None
    attempts: int
    seconds: float
    starved: bool
    """Whether its retries are used up; it is tried again all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRebalance:
    """A rebalance and when it ended, in ms since the epoch."""

    ended_ms: int
    rebalance: Rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A member as it is now."""

    group: str
    state: MemberState
    consumer: ConsumerId | None
    epoch: SessionEpoch
    assigned: bool
    """Whether the group was read in this session, so that ``desired`` says what is assigned to us."""
    desired: Mapping[TopicPartition, ThreadId]
    owned: Mapping[TopicPartition, ThreadId]
    moving: Mapping[TopicPartition, PartitionState]
    conflicts: tuple[Conflict, ...]
    rebalances: tuple[PastRebalance, ...]
    """The newest last."""
    disagreements: tuple[Disagreement, ...]
    last_error: str | None
    """Why the registry could not be read or written, while that lasts."""
    unreadable_topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that we subscribe to whose node cannot be read, and why: nobody can plan their partitions."""

    @property
    def unready_reason(self) -> str | None:
        """Why the member is not ready, or None: ready means registered, and every assigned partition claimed.

        A topic that cannot be read makes it unready as well, since nobody knows which of its partitions are ours.
        """
        if self.state in {MemberState.DETACHED, MemberState.JOINING, MemberState.LEAVING, MemberState.STOPPED}:
            return f"the group member is {self.state.value}" + (f": {self.last_error}" if self.last_error else "")
        if self.state is MemberState.SUSPENDED:
            return "ZooKeeper does not answer"
        if self.consumer is None:
            return "not registered in the group"
        if not self.assigned:
            return "the group was not read yet" + (f": {self.last_error}" if self.last_error else "")
        starved = [conflict for conflict in self.conflicts if conflict.starved]
        if starved:
            first = starved[0]
            holder = "nobody known" if first.holder is None else first.holder.thread
            return f"partitions held by others: {len(starved)}, {first.partition} by {holder}"
        missing = [partition for partition in self.desired if partition not in self.owned]
        if missing:
            return f"{len(missing)} of {len(self.desired)} assigned partitions are not claimed yet"
        if self.unreadable_topics:
            shown = join_shown([f"{topic}: {why}" for topic, why in sorted(self.unreadable_topics.items())], _SHOWN)
            return (
                f"topics whose node in ZooKeeper cannot be read, so that no member can claim their partitions: {shown}"
            )
        return None

    @property
    def ready(self) -> bool:
        """Whether the member is registered and every assigned partition claimed."""
        return self.unready_reason is None
