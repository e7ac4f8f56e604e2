# SPDX-License-Identifier: Apache-2.0
"""The machine's memory: records of partitions, the running rebalance, and one step's effects.

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
    """The machine's record of a partition that is not ABSENT."""

    state: PartitionState
    grant: Grant
    since: float
    due: float = 0.0
    """Earliest time of its next transition: the end of the grace period, or the next retry."""
    op: int = 0
    """The serial of the effect whose outcome is pending; 0 for none."""
    claim: int = 0
    """A number that tells one ownership from the next; 0 while there is none."""
    attempts: int = 0
    holder: Holder | None = None
    unproven: bool = False
    """True if the owner node has to be read again after a suspension."""
    rethreading: bool = False
    """True if it is unknown which of our threads the node holds, after a write with unknown outcome."""


@dataclass(slots=True)
class RebalancePass:
    """The running rebalance, for the report at its end."""

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
        """Return the report; phases that did not take place are left out."""
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
    """Partitions that get the same effect in one step."""

    claims: dict[TopicPartition, Grant] = field(default_factory=dict)
    first_claims: set[TopicPartition] = field(default_factory=set)
    releases: set[TopicPartition] = field(default_factory=set)
    drains: set[TopicPartition] = field(default_factory=set)
    drops: dict[str, set[TopicPartition]] = field(default_factory=dict)
    starts: dict[TopicPartition, Grant] = field(default_factory=dict)
    threads: dict[TopicPartition, ThreadId] = field(default_factory=dict)
    revokes: set[TopicPartition] = field(default_factory=set)
