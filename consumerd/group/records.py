# SPDX-License-Identifier: Apache-2.0
"""What the machine remembers: of each partition, of the rebalance under way, of the effects of one step.

Pure; changed by :mod:`consumerd.group.machine` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consumerd.group import events as ev
from consumerd.group.plan import Grant, Holder
from consumerd.group.transitions import PartitionState
from consumerd.model import ThreadId, TopicPartition


@dataclass(slots=True)
class PartitionRecord:
    """What is remembered of a partition that is not absent."""

    state: PartitionState
    grant: Grant
    since: float
    due: float = 0.0
    """When it may go on: the end of the grace, or the next try."""
    op: int = 0
    """The serial of the effect whose outcome is awaited; 0 for none."""
    claim: int = 0
    """Tells one ownership from the next; 0 while there is none."""
    attempts: int = 0
    holder: Holder | None = None
    unproven: bool = False
    """Whether the owner node has to be seen again after a suspension."""
    rethreading: bool = False
    """Whether it is not known which of our threads the owner node holds: a change of it had an unknown outcome."""


@dataclass(slots=True)
class RebalancePass:
    """The rebalance under way, for the record."""

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
        """Return what is to be told of it; a phase that did not take place is left out."""
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
    """Partitions that move by the same effect in this step."""

    claims: dict[TopicPartition, Grant] = field(default_factory=dict)
    first_claims: set[TopicPartition] = field(default_factory=set)
    releases: set[TopicPartition] = field(default_factory=set)
    drains: set[TopicPartition] = field(default_factory=set)
    drops: dict[str, set[TopicPartition]] = field(default_factory=dict)
    starts: dict[TopicPartition, Grant] = field(default_factory=dict)
    threads: dict[TopicPartition, ThreadId] = field(default_factory=dict)
    revokes: set[TopicPartition] = field(default_factory=set)
