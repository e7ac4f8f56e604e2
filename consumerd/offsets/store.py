# SPDX-License-Identifier: Apache-2.0
"""Ports to the store of a group's positions, to operators' requests and to recorded truncations.

A position is the offset of the *next* record to read. ``zookeeper``, ``kafka_store`` and ``dual`` implement the store,
``requests`` the requests, and ``truncations`` the truncations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumerd.errors import LeasePaused, OwnershipLost
from consumerd.model import Claim, Incarnation, TopicPartition


class Place(enum.Enum):
    """Kind of store that holds positions: ZooKeeper or Kafka. Operators see the values."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"

    @property
    def label(self) -> str:
        """The store's name in a sentence."""
        return "ZooKeeper" if self is Place.ZOOKEEPER else "Kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRequest:
    """An operator's request to move a partition to ``position``.

    It is kept in ZooKeeper at ``/consumers/G/consumerd/requests/T/P``.

    Args:
        id: Unique id of the request.
        new_chain: True if file sinks begin a new chain of files even if the position does not need one.
        author: The user and host that asked.
        created_ms: Time of the request, in ms since the epoch.
        version: The version of the ZooKeeper node that holds the request.
        topic: The topic that the request is about, to be compared with the claim's; None if that was compared already.
    """

    id: str
    partition: TopicPartition
    position: int
    new_chain: bool
    author: str
    created_ms: int
    version: int
    topic: Incarnation | None = None


class PositionToken(Protocol):
    """Identity of one write of a position, as its store knows it.

    A store without transaction numbers, such as Kafka's, cannot always tell if a position is newer than its topic;
    :meth:`is_newer_than` then returns None.
    """

    @property
    def mark(self) -> int:
        """Number above 0 that identifies this write of the position.

        If an unclean leader election cuts the log below the position, the record of that truncation names the position
        by this number.
        """

    def is_newer_than(self, incarnation: Incarnation) -> bool | None:
        """Return True if the position was written after this incarnation of the topic was created.

        False if it was written before. None if the store cannot tell.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """A stored position.

    Args:
        position: The next offset to read; -1 if the stored text is no number.
        token: The store's identity of this write, which tells if the position is newer than its topic.
        malformed: The stored text if it is no decimal number; else None.
    """

    position: int
    token: PositionToken
    malformed: str | None = None


NO_MARK: Final = 0
"""Number in the record of a truncated log if no position was stored."""


def find_mark(stored: StoredOffset | None) -> int:
    """Return the number that identifies the write of a stored position; :data:`NO_MARK` for None.

    Records of truncated logs name positions by this number.
    """
    return NO_MARK if stored is None else stored.token.mark


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTruncation:
    """An unclean leader election that cut a partition's log below the group's position.

    Args:
        number: Number of this truncation among those of the topic's incarnation, from 1 on.
        position: The position at which delivery resumes.
        voids: Identity (:attr:`PositionToken.mark`) of the committed position that the truncation invalidated, or
            :data:`NO_MARK`.
    """

    number: int
    position: int
    voids: int

    def makes_void(self, stored: StoredOffset | None) -> bool:
        """Return True if the stored position is the one that this truncation invalidated."""
        return self.voids == find_mark(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEnd:
    """A truncation of a log below the position, which stops a partition (``offsets.on_above: stop``).

    Example: position 80 is committed, and an unclean leader election leaves the log as ``[0, 60)``. The partition
    stops. The log grows to 160: offsets 60 to 79 are other records now, though position 80 lies within the log again.

    Args:
        number: The number under which the truncation is recorded when an operator lets delivery resume.
        position: The position that lies above the end of the log: 80 in the example.
        earliest: The log start offset when the truncation was found: 0 in the example.
        latest: The log end offset when the truncation was found: 60 in the example.
        voids: Identity (:attr:`PositionToken.mark`) of the committed position that the truncation invalidated, or
            :data:`NO_MARK`.
    """

    number: int
    position: int
    earliest: int
    latest: int
    voids: int = NO_MARK

    def makes_void(self, stored: StoredOffset | None) -> bool:
        """Return True if the stored position is the one that this truncation invalidated."""
        return self.is_about(None if stored is None else stored.token)

    def is_about(self, token: PositionToken | None) -> bool:
        """Return True if ``token`` identifies the position that the truncation invalidated."""
        return token is not None and token.mark == self.voids


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTruncations:
    """Recorded truncations of one partition's log.

    Attributes:
        last: the last truncation after which delivery resumed; None without one.
        lost_end: the last truncation that stopped the partition; None without one.
    """

    last: LogTruncation | None = None
    lost_end: LostEnd | None = None


ZOOKEEPER_ONLY: Final[frozenset[Place]] = frozenset({Place.ZOOKEEPER})
"""The stores that ``offsets.storage: zookeeper``, the default, stands for."""
KAFKA_ONLY: Final[frozenset[Place]] = frozenset({Place.KAFKA})
"""The stores of positions in a cluster without ZooKeeper."""


class Validity(enum.Enum):
    """Verdict whether a stored position belongs to the present topic. Operators see the values."""

    VALID = "valid"
    ANOTHER_INCARNATION = "of another incarnation"
    """Written before the current topic was created: it is a position in a deleted topic."""
    UNKNOWN_AGE = "of unknown age"
    """It is unknown whether the position belongs to the present topic.

    The topic does not exist, or the store cannot tell whether it wrote the position before or after the topic's
    creation.
    """
    MALFORMED = "malformed"
    ABSENT = "absent"


def judge(stored: StoredOffset | None, incarnation: Incarnation | None) -> Validity:
    """Return the verdict whether a stored position belongs to a topic.

    It does not if it was written before the topic was created. No other code compares the two ages.

    Args:
        stored: The stored position, or None.
        incarnation: The topic's present identity; None if the topic does not exist.
    """
    if stored is None:
        return Validity.ABSENT
    is_newer = None if incarnation is None else stored.token.is_newer_than(incarnation)
    if is_newer is False:
        return Validity.ANOTHER_INCARNATION
    if stored.malformed is not None:
        return Validity.MALFORMED
    return Validity.UNKNOWN_AGE if is_newer is None else Validity.VALID


def is_believed(validity: Validity, incarnation: Incarnation | None) -> bool:
    """Return True if a consumer goes on from a position with this verdict.

    The verdict is ``VALID``, or it is ``UNKNOWN_AGE`` and the topic exists. Kafka does not tell the age of a position
    that another client committed. It is used nevertheless, because brokers delete the positions of a deleted topic
    (from 0.9 on).
    """
    return validity is Validity.VALID or (validity is Validity.UNKNOWN_AGE and incarnation is not None)


def is_larger(position: int | None, other: int | None) -> bool:
    """Return True if ``position`` is larger than ``other``, or ``other`` is None.

    Each is None if its store has no position that can be used. False if ``position`` is None.
    """
    return position is not None and (other is None or position > other)


@dataclass(frozen=True, slots=True)
class Commit:
    """One position to be written, with the claim that gives the right to do so.

    Args:
        claim: The claim of the partition. The position is written only while the claim is valid.
        position: The next offset to read.
        fulfils: The operator's request that the commit carries out; None for an ordinary commit. With a request, the
            position is written even if the store holds it already, and the request's node is deleted.
        is_of_topic: True if the claim's topic was just found to be neither deleted nor re-created.
        truncation: Number of truncations of the log in which the position is valid.
    """

    claim: Claim
    position: int
    fulfils: OffsetRequest | None = None
    is_of_topic: bool = False
    truncation: int = 0


class CommitOutcome(enum.Enum):
    """Result of the commit of one position."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The store held this position already; nothing was written."""
    FOREIGN_OVERWRITTEN = "foreign overwritten"
    """Another client had written a position since this member's last one.

    The member still owned the partition, so its position has replaced the other client's.
    """
    NOT_OWNER = "not owner"
    """Nothing was written: the member no longer owns the partition, or its topic was re-created."""
    REQUEST_CHANGED = "request changed"
    """Nothing was written: the operator's request to be carried out was cancelled or replaced.

    The caller reads it again.
    """
    FAILED = "failed"
    """The position was not written, or it is unknown; the caller tries again with the newest position."""


def find_refusal(claim: Claim) -> CommitOutcome | None:
    """Return the outcome of a commit whose claim is not valid now.

    ``FAILED`` if the claim may be valid again later, ``NOT_OWNER`` if it is lost. None if the claim is valid: the
    commit can be sent.
    """
    try:
        claim.check()
    except LeasePaused:
        return CommitOutcome.FAILED
    except OwnershipLost:
        return CommitOutcome.NOT_OWNER
    return None


class OffsetRequests(Protocol):
    """Operators' requests for new positions of one group."""

    async def find(self, partition: TopicPartition) -> OffsetRequest | None:
        """Return the operator's request for a partition; None without a usable one.

        A malformed request is logged. Raises CoordinationError.
        """

    def watch(self, topic: str, changed: Callable[[TopicPartition], None]) -> RequestSubscription:
        """Call ``changed`` for each partition of the topic that may have a new operator's request.

        Calls come on the event loop until the subscription is closed. Several changes may cause one call; spurious
        calls are possible, missed ones are not. ``changed`` returns at once and never raises.
        """


class MemberRequests(OffsetRequests, Protocol):
    """Operators' requests, as the member uses them that carries them out."""

    @property
    def waiting(self) -> Sequence[OffsetRequest]:
        """Requests for watched topics, as last seen, in order of partitions."""

    async def remove(self, request: OffsetRequest) -> None:
        """Delete a request that was carried out; one that has replaced it stays. Raises CoordinationError."""

    async def run(self) -> None:
        """Look up requests whenever some may have changed, until cancelled."""


class LogTruncations(Protocol):
    """Truncations of partitions' logs below the group's positions, as its members have recorded them."""

    async def find(self, claim: Claim) -> KnownTruncations:
        """Return the recorded truncations of the claimed partition's log. Raises CoordinationError.

        Records about a deleted topic of the same name are left out.
        """

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        """Record a truncation before delivery resumes at its position.

        The record is written in the ZooKeeper session of the claim, or not at all. Raises CoordinationError; the record
        may have been written then, so read it again.
        """

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Record a truncation that stops the partition until an operator decides.

        The record is written in the ZooKeeper session of the claim, or not at all. Raises CoordinationError.
        """


class RequestSubscription(Protocol):
    """A subscription to operators' requests for new positions."""

    def close(self) -> None:
        """End the subscription: nothing is called back any more. Idempotent."""


class OffsetStore(Protocol):
    """Store of one group's positions. Raises CoordinationError when it cannot be reached."""

    @property
    def rewrite_s(self) -> float | None:
        """Interval, in seconds, after which an idle partition's position is written again.

        None for a store that does not forget positions.
        """

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        """Return the stored position of each partition; None for one without a position."""

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        """Write positions, each only while its claim is valid; return an outcome for each.

        The store writes a position also if it is lower than the stored one.
        """

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        """Return a text about the permission that commits of this partition lack.

        None if no permission is missing.
        """
