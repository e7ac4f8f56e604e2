"""The port to where a group's positions are kept.

A position is the offset of the *next* record to read. ``zookeeper`` implements it; ``kafka`` and ``dual``
come later behind the same interface.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from consumerd.model import Claim, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """A stored position, and what tells its age apart.

    ``mzxid`` is the ZooKeeper transaction that wrote it (compared with a topic's incarnation); ``malformed``
    holds the text of a node that is not a decimal number, in which case ``position`` is -1.
    """

    position: int
    mzxid: int
    version: int
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit ``position`` for the partition of ``claim``, in the claim's session or not at all."""

    claim: Claim
    position: int


class CommitOutcome(enum.Enum):
    """What became of one commit."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The store held this very position already; nothing was written."""
    FOREIGN_OVERWRITTEN = "foreign overwritten"
    """Somebody else had written in between; we still own the partition, so ours was written over theirs."""
    NOT_OWNER = "not owner"
    """No longer ours: dropped."""
    FAILED = "failed"
    """Not written now; try again with the newest position."""


class OffsetStore(Protocol):
    """Positions of one group. Raises CoordinationError when the store cannot be reached."""

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        """Read the stored positions; None where there is none."""

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        """Write positions, fenced by each claim; every partition given has an outcome. Positions may move backwards
        only when the caller means it: the store does not compare them.
        """
