# SPDX-License-Identifier: Apache-2.0
"""The status of a member, for operators, probes and metrics: read-only values.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.group.classic.transitions import ClassicState
from consumerd.group.events import Rebalance
from consumerd.group.plan import Disagreement, Holder
from consumerd.group.transitions import MemberState, PartitionState
from consumerd.model import ConsumerId, SessionEpoch, ThreadId, TopicPartition
from consumerd.telemetry.wording import join_shown
from consumerd.zk.port import LeasePhase

_SHOWN: Final = 3
_UNREADY: Final[frozenset[MemberState | ClassicState]] = frozenset(
    {
        MemberState.DETACHED,
        MemberState.JOINING,
        MemberState.LEAVING,
        MemberState.STOPPED,
        *(state for state in ClassicState if state is not ClassicState.STABLE),
    }
)
"""States in which a member does not own all that it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A partition that is assigned to this member and owned by another one.

    Attributes:
        holder: the owner, as its node names it; None if the node cannot be read.
        attempts: number of attempts to claim the partition.
        seconds: time since the last failed attempt.
        starved: True if the configured retries are used up. The member goes on trying.
    """

    partition: TopicPartition
    holder: Holder | None
    attempts: int
    seconds: float
    starved: bool
    """True once its retries are used up; it is still tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRebalance:
    """A rebalance, and the time when it ended, in ms since the epoch."""

    ended_ms: int
    rebalance: Rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """Relation of a member to the broker that coordinates its group.

    Attributes:
        generation: number of the group's generation; -1 while the member belongs to none.
        member_id: the id that the coordinator has given this member; empty before the first join.
        leader: True if the member computes the assignment.
        assignor: the assignor on which the members have agreed; empty without a generation.
        coordinator: the broker; empty while it is not known.
        phase: age of the coordinator's last answer, compared with the session timeout, such as ``fresh``.
    """

    generation: int
    member_id: str
    leader: bool
    assignor: str
    coordinator: str
    phase: LeasePhase


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """The current status of a member.

    Some fields mean something else if a broker coordinates the group; their docstrings say so.
    """

    group: str
    state: MemberState | ClassicState
    consumer: ConsumerId | None
    """The member's id in ZooKeeper, None before it is registered.

    If a broker coordinates the group: the member id that the broker has assigned.
    """
    epoch: SessionEpoch
    """The epoch of the ZooKeeper session; if a broker coordinates the group, the group's generation."""
    assigned: bool
    """True if the member has read the group in this session, so that ``desired`` is known."""
    desired: Mapping[TopicPartition, ThreadId]
    """The partitions that are assigned to this member, each with the thread that is to consume it.

    If a broker coordinates the group, one thread has all of them.
    """
    owned: Mapping[TopicPartition, ThreadId]
    """The partitions whose owner node in ZooKeeper is this member's, each with its thread.

    If a broker coordinates the group: the partitions that were given to delivery.
    """
    moving: Mapping[TopicPartition, PartitionState]
    """Partitions between two states, such as those being claimed or drained, with their states."""
    conflicts: tuple[Conflict, ...]
    """Partitions that are assigned to this member, while another one owns them in ZooKeeper.

    Always empty if a broker coordinates the group, since there is one assignment.
    """
    rebalances: tuple[PastRebalance, ...]
    """The last rebalances of this member, oldest first."""
    disagreements: tuple[Disagreement, ...]
    last_error: str | None
    """The reason why the group cannot be read or written now; None if it can."""
    unreadable_topics: Mapping[str, str] = field(default_factory=dict)
    """Subscribed topics whose node cannot be read, each with the reason; no member can assign their partitions."""
    coordination: Coordination | None = None
    """The relation to the coordinating broker; None if ZooKeeper coordinates the group."""

    @property
    def unready_reason(self) -> str | None:
        """The reason why the member is not ready, or None.

        Ready means that the member is registered and has claimed every assigned partition. An unreadable topic makes it
        unready too, since its partitions cannot be assigned.
        """
        if self.state in _UNREADY:
            return f"the group member is {self.state.value}" + (f": {self.last_error}" if self.last_error else "")
        if self.state is MemberState.SUSPENDED:
            return "ZooKeeper does not answer"
        if self.coordination is not None and self.coordination.phase is not LeasePhase.FRESH:
            return "the group's coordinator does not answer" + (f": {self.last_error}" if self.last_error else "")
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
        """True if the member is registered and owns every partition that is assigned to it."""
        return self.unready_reason is None
