# SPDX-License-Identifier: Apache-2.0
"""The port to where a group's positions are kept.

A position is the offset of the *next* record to read. ``zookeeper`` implements it; ``kafka`` and ``dual``
come later behind the same interface.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from consumerd.model import Claim, Incarnation, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRequest:
    """An operator's wish that a partition go on at ``position``, kept at ``/consumers/G/consumerd/requests/T/P``.

    ``new_chain`` asks file sinks for a new chain even where the position would do without. ``version`` is the node's.
    ``author`` is who asked (user and host), ``created_ms`` when.
    """

    id: str
    partition: TopicPartition
    position: int
    new_chain: bool
    author: str
    created_ms: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """A stored position, and its age.

    ``mzxid`` is the ZooKeeper transaction that wrote it, which :func:`judge` compares with a topic's; ``malformed``
    holds the text of a node that is not a decimal number, in which case ``position`` is -1.
    """

    position: int
    mzxid: int
    version: int
    malformed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTruncation:
    """The last time that a partition's log lost its end below what the group had consumed (an unclean leader election).

    ``number`` counts them (:class:`~consumerd.model.Incarnation`, from 1 on), ``position`` is where delivery goes on,
    ``voids`` the transaction that wrote the committed position which is void by it, 0 where there was none.
    """

    number: int
    position: int
    voids: int

    def makes_void(self, stored: StoredOffset | None) -> bool:
        """Tell whether the offset node is still the one that the truncation made void."""
        return self.voids == (0 if stored is None else stored.mzxid)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEnd:
    """A truncation that stops a partition, since ``offsets.on_above`` is ``stop``.

    Example: position 80 is committed, and an unclean leader election leaves the log as ``[0, 60)``. The partition stops.
    The log grows to 160: offsets 60 to 79 are other records now, though position 80 lies within the log again.

    Args:
        number: The truncation's number, once delivery goes on. From then on the stop is over.
        position: The position that the log did not reach.
        earliest: The log start offset when that was confirmed.
        latest: The log end offset when that was confirmed.
        voids: The transaction that wrote the committed position which is void by it, 0 where there is none.
    """

    number: int
    position: int
    earliest: int
    latest: int
    voids: int = 0

    def makes_void(self, stored: StoredOffset | None) -> bool:
        """Tell whether the offset node is still the one that the truncation made void."""
        return stored is not None and stored.mzxid == self.voids


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTruncations:
    """The last truncation that delivery went on after, and the last that stopped it."""

    last: LogTruncation | None = None
    lost_end: LostEnd | None = None


class Validity(enum.Enum):
    """Whether a stored position can be used; the values are shown."""

    VALID = "valid"
    ANOTHER_INCARNATION = "of another incarnation"
    """Written before today's topic was created: it counts records of a deleted topic of the same name."""
    UNKNOWN_AGE = "of unknown age"
    """The topic does not exist, so there is no incarnation to compare it with."""
    MALFORMED = "malformed"
    ABSENT = "absent"


def judge(stored: StoredOffset | None, incarnation: Incarnation | None) -> Validity:
    """Decide whether a stored position belongs to a topic. The only place that compares their ages.

    Args:
        stored: What the store holds; None where it holds nothing.
        incarnation: The topic's incarnation now; None where the topic does not exist.
    """
    if stored is None:
        return Validity.ABSENT
    if incarnation is not None and not incarnation.precedes(stored.mzxid):
        return Validity.ANOTHER_INCARNATION
    if stored.malformed is not None:
        return Validity.MALFORMED
    return Validity.UNKNOWN_AGE if incarnation is None else Validity.VALID


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit ``position`` for the partition of ``claim``, in the claim's session or not at all.

    ``fulfils`` is a request that this commit carries out: its node goes in the same ``multi``, and the position is
    written even where the store holds it already.
    """

    claim: Claim
    position: int
    fulfils: OffsetRequest | None = None


class CommitOutcome(enum.Enum):
    """What became of one commit."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The store held this very position already; nothing was written."""
    FOREIGN_OVERWRITTEN = "foreign overwritten"
    """Somebody else had written in between; we still own the partition, so ours was written over theirs."""
    NOT_OWNER = "not owner"
    """No longer ours, or not the topic any more that was claimed: dropped."""
    REQUEST_CHANGED = "request changed"
    """The request that this was to carry out is not there any more, or is another one: nothing was written, look again."""
    FAILED = "failed"
    """Not written now; try again with the newest position."""


class OffsetRequests(Protocol):
    """The operators' requests of one group."""

    async def find(self, partition: TopicPartition) -> OffsetRequest | None:
        """Return the request for a partition, if there is one; a malformed one is logged and counts as none.

        Raises CoordinationError.
        """

    def watch(self, topic: str, changed: Callable[[TopicPartition], None]) -> RequestSubscription:
        """Call back, on the event loop, for each partition of the topic that may have a request new to us, until closed.

        Coalesced; spurious calls are possible, missed ones are not. ``changed`` returns at once and never raises.
        """


class LogTruncations(Protocol):
    """What the group's members know of logs that have lost their ends."""

    async def find(self, claim: Claim) -> KnownTruncations:
        """Return the notes about the claimed topic's partition. Raises CoordinationError."""

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        """Note a truncation, in the claim's session or not at all, before anything is done about it.

        Raises CoordinationError; then look again.
        """

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Note a truncation that stops the partition. Raises CoordinationError.

        It is written in the claim's session or not at all.
        """


class RequestSubscription(Protocol):
    """A standing wish to be called back."""

    def close(self) -> None:
        """End it. Idempotent."""


class OffsetStore(Protocol):
    """Positions of one group. Raises CoordinationError when the store cannot be reached."""

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        """Read the stored positions; None where there is none."""

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        """Write positions, fenced by each claim; every partition given has an outcome. Positions may move backwards
        only when the caller means it: the store does not compare them.
        """

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        """Say why the store refuses this partition's commits for lack of permission; None where it does not."""
