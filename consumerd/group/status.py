# SPDX-License-Identifier: Apache-2.0
"""The status of a member, for operators, probes and metrics: read-only values.

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
    """A partition granted to us and owned by another member; ``holder`` is None if unreadable."""

    partition: TopicPartition
    holder: Holder | None
    attempts: int
    seconds: float
    starved: bool
    """True once its retries are used up; it is still tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRebalance:
    """A rebalance and the time when it ended, in ms since the epoch."""

    ended_ms: int
    rebalance: Rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """The current status of a member."""

    group: str
    state: MemberState
    consumer: ConsumerId | None
    epoch: SessionEpoch
    assigned: bool
    """True if the group was read in this session, so that ``desired`` is known."""
    desired: Mapping[TopicPartition, ThreadId]
    owned: Mapping[TopicPartition, ThreadId]
    moving: Mapping[TopicPartition, PartitionState]
    conflicts: tuple[Conflict, ...]
    rebalances: tuple[PastRebalance, ...]
    """Oldest first."""
    disagreements: tuple[Disagreement, ...]
    last_error: str | None
    """The reason why the registry cannot be read or written, as long as that lasts."""
    unreadable_topics: Mapping[str, str] = field(default_factory=dict)
    """Subscribed topics whose node cannot be read, each with the reason; no member can assign their partitions."""

    @property
    def unready_reason(self) -> str | None:
        """The reason why the member is not ready, or None.

        Ready means that the member is registered and has claimed every assigned partition. An unreadable topic makes it
        unready too, since its partitions cannot be assigned.
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
            holder = "an unknown member" if first.holder is None else first.holder.thread
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
        """True if the member is registered and every assigned partition is claimed."""
        return self.unready_reason is None
