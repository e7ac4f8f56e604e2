# SPDX-License-Identifier: Apache-2.0
"""Mutable records of the member's state machine: partitions, the running rebalance, one step's effects.

Only :mod:`consumerd.group.machine` and :mod:`consumerd.group.partitions` change them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consumerd.group import events as ev
from consumerd.group.plan import Grant, Holder
from consumerd.group.transitions import PartitionState
from consumerd.model import ThreadId, TopicPartition


@dataclass(slots=True)
class PartitionRecord:
    """State of one partition in this member's state machine; an ABSENT partition has none.

    Attributes:
        grant: the newest assignment of the partition to a thread of this member.
        since: when the partition entered its state, in seconds of the machine's clock.
        attempts: number of failed attempts in a row to claim the partition, or to delete its owner node.
        holder: the other member that owns the partition; None if none does, or if it is unknown.
    """

    state: PartitionState
    grant: Grant
    since: float
    due: float = 0.0
    """Earliest time of the next state change, in seconds of the machine's clock.

    It is the end of the grace period before a release, or the time of the next retry.
    """
    op: int = 0
    """Serial number of the effect whose outcome this partition waits for; 0 if it waits for none."""
    claim: int = 0
    """Number of the present ownership, different from that of an earlier one; 0 without ownership."""
    attempts: int = 0
    holder: Holder | None = None
    unproven: bool = False
    """True if the owner node has to be read again after a suspension."""
    rethreading: bool = False
    """True if it is unknown which of this member's threads the owner node names.

    The node was to be changed, and the result of the write is unknown.
    """


@dataclass(slots=True)
class RebalancePass:
    """Times and counts of the running rebalance, for the report at its end.

    Times (``..._at``, ``began``) are in seconds of the machine's clock; None for a phase that has not been reached.
    """

    began: float
    causes: list[str]
    read_at: float | None = None
    viewed_at: float | None = None
    drained_at: float | None = None
    released_at: float | None = None
    claimed_at: float | None = None
    gained: int = 0
    lost: int = 0

    def finish(self, now: float, stayed: int) -> ev.Rebalance:
        """Return the report of the rebalance; phases that did not take place are left out.

        Args:
            now: Time of its end, in seconds of the machine's clock.
            stayed: Number of partitions that this member owned throughout.
        """
        phases: dict[str, float] = {}
        if self.read_at is not None:
            phases["settle"] = self.read_at - self.began
            if self.viewed_at is not None:
                phases["snapshot"] = self.viewed_at - self.read_at
        start = self.viewed_at if self.viewed_at is not None else self.began
        if self.drained_at is not None:
            phases["drain"] = max(0.0, self.drained_at - start)
        if self.released_at is not None:
            phases["release"] = max(0.0, self.released_at - (self.drained_at or start))
        if self.claimed_at is not None:
            phases["claim"] = max(0.0, self.claimed_at - start)
        return ev.Rebalance(
            causes=tuple(dict.fromkeys(self.causes)),
            seconds=now - self.began,
            phases=phases,
            gained=self.gained,
            lost=self.lost,
            stayed=stayed,
        )


@dataclass(slots=True)
class EffectBatch:
    """Partitions by the effect that each gets at the end of the current step.

    A step is the handling of one event by the state machine.
    """

    claims: dict[TopicPartition, Grant] = field(default_factory=dict)
    first_claims: set[TopicPartition] = field(default_factory=set)
    releases: set[TopicPartition] = field(default_factory=set)
    drains: set[TopicPartition] = field(default_factory=set)
    drops: dict[str, set[TopicPartition]] = field(default_factory=dict)
    starts: dict[TopicPartition, Grant] = field(default_factory=dict)
    threads: dict[TopicPartition, ThreadId] = field(default_factory=dict)
    revokes: set[TopicPartition] = field(default_factory=set)
