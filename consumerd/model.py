# SPDX-License-Identifier: Apache-2.0
"""Common values of all packages: partitions, members, sessions, claims.

Nothing here knows a wire format, a znode path or a clock. Partition keys of both generations (Kafka 0.6 and 0.7, and
0.8 or later) are parsed here and nowhere else.
"""

from __future__ import annotations

import base64
import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NewType, Protocol

if TYPE_CHECKING:
    import uuid

BrokerId = NewType("BrokerId", int)
"""``broker.id``: unique in a cluster, kept when the broker moves to another machine."""

ConsumerId = NewType("ConsumerId", str)
"""Name of a group member's node under ``/consumers/G/ids``: ``<group>_<host>-<ms>-<8 hex>``."""

ThreadId = NewType("ThreadId", str)
"""Content of a partition's owner node in ZooKeeper: ``<consumer id>-<stream>``."""

SessionEpoch = NewType("SessionEpoch", int)
"""Number of a ZooKeeper session of this process, from 1; a claim belongs to exactly one session."""

NO_SESSION: Final = SessionEpoch(0)

_LEGACY_KEY = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")
_MODERN_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
_INT32_MAX: Final = 2**31 - 1
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
LONGEST_TOPIC: Final = 249
_COUNT = re.compile(r"[0-9]{1,19}", re.ASCII)
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
"""A UUID in base64 for URLs, as Kafka's tools print it."""


def is_topic_id(text: str) -> bool:
    """Return True if a text has the form of a topic id.

    That is 22 characters of base64 for URLs.
    """
    return _TOPIC_ID.fullmatch(text) is not None


def find_topic_fault(name: str) -> str | None:
    """Return the reason why a topic name is illegal; None if it is legal.

    The rules are those of Kafka's ``Topic.java``.
    """
    if not name:
        return "the name is empty"
    if name in {".", ".."}:
        return f"{name!r} means a directory"
    if len(name) > LONGEST_TOPIC:
        return f"the name has {len(name)} characters, {LONGEST_TOPIC} are allowed"
    if not _LEGAL_TOPIC.fullmatch(name):
        return f"{name!r} has other characters than letters, digits, '.', '_' and '-'"
    return None


class Generation(enum.Enum):
    """Kafka releases that share wire formats and znode layouts.

    There are two generations: 0.6 and 0.7, and 0.8 or later.
    """

    LEGACY = "legacy"
    """Kafka 0.6 and 0.7: byte offsets, partitions live on a broker."""
    MODERN = "modern"
    """Kafka 0.8 and later: logical offsets, leaders, versioned requests."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """Key of a partition in its topic: ``3``, or ``0-3`` in Kafka 0.6 and 0.7.

    In 0.6 and 0.7 a partition belongs to a broker: ``0-3`` is partition 3 of broker 0. ``broker`` is None for 0.8 or
    later.
    """

    number: int
    broker: BrokerId | None = None

    def __str__(self) -> str:
        return str(self.number) if self.broker is None else f"{self.broker}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> PartitionKey:
        """Parse a partition key, such as ``3``.

        The text is ``3`` for Kafka 0.8 or later, or ``0-3`` for 0.6 and 0.7: partition 3 of broker 0. Names of offset
        znodes and of landing folders have this form. Raises ValueError for any other text.
        """
        if _MODERN_KEY.fullmatch(text):
            numbers = [int(text)]
        elif match := _LEGACY_KEY.fullmatch(text):
            numbers = [int(match[2]), int(match[1])]
        else:
            numbers = []
        # requests carry both numbers in 32 bits
        if not numbers or max(numbers) > _INT32_MAX:
            raise ValueError(f"partition key {text!r:.60}: expected N or BROKER-N")
        return cls(numbers[0], *map(BrokerId, numbers[1:]))

    @property
    def sort_key(self) -> tuple[int, str]:
        """Sort key for the Java consumer's order: ``3`` as a number, ``0-3`` as text."""
        return (self.number, "") if self.broker is None else (-1, str(self))

    def __lt__(self, other: PartitionKey) -> bool:
        return self.sort_key < other.sort_key


@dataclass(frozen=True, slots=True, eq=False)
class TopicPartition:
    """One partition of one topic; the unit of ownership, fetching, delivery and commits.

    It is the key of most tables, some of which have ten thousand entries, so its comparison key is computed once.
    """

    topic: str
    partition: PartitionKey
    _order: tuple[str, int, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", (self.topic, *self.partition.sort_key))

    def __hash__(self) -> int:
        return hash(self._order)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPartition) and self._order == other._order

    @property
    def is_legacy(self) -> bool:
        """True if the key has the legacy form ``B-P`` of Kafka 0.6 and 0.7."""
        return self.partition.broker is not None

    @classmethod
    def modern(cls, topic: str, number: int) -> TopicPartition:
        """Return partition ``number`` of a topic on Kafka 0.8 or later."""
        return cls(topic, PartitionKey(number))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    def __lt__(self, other: TopicPartition) -> bool:
        return self._order < other._order


@dataclass(frozen=True, slots=True)
class LogRange:
    """Readable offsets of a log: from ``earliest`` to before ``latest``.

    ``latest`` is the next offset to be written. An empty log has ``earliest == latest``.
    """

    earliest: int
    latest: int


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Incarnation:
    """Identity of a topic that changes when the topic is deleted and re-created.

    ``czxid`` is the ZooKeeper transaction that created ``/brokers/topics/T``. In a cluster without ZooKeeper, ``czxid``
    is 0 and ``topic_id`` is the id that Metadata gives the topic, as Kafka's tools print it. An incarnation with a
    topic id never equals one with a czxid. ``truncation`` counts unclean leader elections that cut the log below the
    landed offsets.

    As text: ``<czxid>`` or ``<czxid>.<truncation>``, with the topic id in place of the czxid if there is one. Example:
    ``4294967337.2``, or ``a5g7j1tvSx-Ob3bjRwaYgQ``. A czxid has at most 19 digits and a topic id 22 characters, so the
    text tells the kinds apart.
    """

    czxid: int
    truncation: int = 0
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic_text}.{self.truncation}" if self.truncation else self.topic_text

    @property
    def topic_text(self) -> str:
        """The czxid or topic id as text, without the number of truncations."""
        return self.topic_id or str(self.czxid)

    @classmethod
    def of_topic_id(cls, topic_id: uuid.UUID) -> Incarnation:
        """Return the incarnation of a topic with this id."""
        return cls(0, topic_id=base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("="))

    @property
    def is_known(self) -> bool:
        """False for :data:`UNKNOWN_INCARNATION`, of a topic that has no known czxid or topic id."""
        return self != UNKNOWN_INCARNATION

    @classmethod
    def parse(cls, text: str) -> Incarnation:
        """Parse the text form, as in ``7.2``. Raises ValueError."""
        topic, dot, truncation = text.partition(".")
        if dot and not _COUNT.fullmatch(truncation):
            raise ValueError(f"incarnation {text!r:.60}: expected a number of truncations after the dot")
        return cls.parse_topic(topic).truncated(int(truncation or 0))

    @classmethod
    def parse_topic(cls, text: str) -> Incarnation:
        """Parse a czxid or a topic id alone. Raises ValueError."""
        if _COUNT.fullmatch(text):
            return cls(int(text))
        if is_topic_id(text) or text == UNKNOWN_INCARNATION.topic_id:
            return cls(0, topic_id=text)
        raise ValueError(f"incarnation {text!r:.60}: expected a czxid, which is a number, or a topic id")

    def truncated(self, number: int) -> Incarnation:
        """Return the same topic's incarnation after this many truncations."""
        return replace(self, truncation=number)

    def is_same_topic(self, other: Incarnation) -> bool:
        """Return True if both are of one topic, before any re-creation; truncations do not count."""
        return (self.czxid, self.topic_id) == (other.czxid, other.topic_id)

    def is_later_topic(self, other: Incarnation) -> bool | None:
        """Return True if this topic was created after the other one.

        None if that cannot be known: topic ids are random, and a czxid and a topic id are never compared.
        """
        if self.is_same_topic(other):
            return False
        return None if self.topic_id or other.topic_id else self.czxid > other.czxid

    def __lt__(self, other: Incarnation) -> bool:
        # an order for lists; between two topic ids it says nothing about time, which is_later_topic tells
        return self._order < other._order

    @property
    def _order(self) -> tuple[str, int, int]:
        return self.topic_id, self.czxid, self.truncation

    def precedes(self, zxid: int) -> bool:
        """Return True if ZooKeeper's transaction ``zxid`` came after the creation of this topic.

        A node written by an earlier transaction is about a deleted topic of the same name.
        """
        return zxid > self.czxid


UNKNOWN_INCARNATION: Final = Incarnation(0, topic_id="unknown")
"""Incarnation of a topic of brokers that name no topic ids (before 2.8), in a cluster that is given without ZooKeeper.

A re-created topic cannot be told from the one before it there.
"""


class TimestampType(enum.IntEnum):
    """The origin of a record's timestamp, as numbered on the wire.

    -1 stands for formats without timestamps.
    """

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """Reason why a partition cannot be fetched or delivered, and since when.

    ``since`` is in seconds on the monotonic clock. ``code`` is the broker's error code, if it answered one.
    """

    since: float
    reason: str
    code: int | None = None


class GapReason(enum.StrEnum):
    """Reason why a range of offsets has no landed record."""

    RETENTION = "retention"
    """Deleted by the broker before it was read."""
    COMPACTION = "compaction"
    """Missing in the log between existing records: compacted away, or never assigned."""
    CONTROL = "control"
    """Transaction markers, which are not user records."""
    ABORTED = "aborted"
    """Records of aborted transactions, left out under ``read_committed``."""
    CORRUPT = "corrupt"
    SKIPPED = "skipped"
    CONSUMED_ELSEWHERE = "consumed elsewhere"
    """Committed by another member (such as a Java consumer) whose records are not in these files."""
    MISSING_FILE = "missing file"
    """Landed and committed by this group, but the file is missing now."""
    RESET = "reset"
    """A policy or an operator moved the position forward."""
    ERASED = "erased"
    """Landed, and later removed from the landed file by the job ``erase``."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets from ``start`` to before ``end`` that have no landed record, with the reason."""

    start: int
    end: int
    reason: GapReason


class Claim(Protocol):
    """Proof that this process owns a partition, bound to one ZooKeeper session.

    Before each delivery, publication or commit, call :meth:`check`, with no ``await`` between the check and the step: a
    claim can be lost during any ``await``. Only the package ``group`` makes claims, except in tests.
    """

    @property
    def partition(self) -> TopicPartition:
        """Partition that this process owns."""

    @property
    def thread(self) -> ThreadId:
        """Thread id in the partition's owner node in ZooKeeper."""

    @property
    def epoch(self) -> SessionEpoch:
        """Number of the ZooKeeper session in which the owner node was created.

        Sessions of this process are numbered from 1.
        """

    @property
    def incarnation(self) -> Incarnation:
        """The topic's incarnation when it was claimed."""

    @property
    def usable(self) -> bool:
        """True if :meth:`check` would raise no error now."""

    def check(self) -> None:
        """Check that the claim may be used now to deliver, publish or commit.

        Raises LeasePaused (temporary: wait with :meth:`wait_usable`) or OwnershipLost (final).
        """

    async def wait_usable(self) -> None:
        """Wait until the claim may be used to deliver, publish or commit. No timeout.

        Raises OwnershipLost if the claim is lost for good.
        """

    async def confirm(self) -> None:
        """Check that the claim may be used, and read ZooKeeper: the topic was not re-created.

        Raises LeasePaused if the claim must not be used now, OwnershipLost if it is gone for good, IncarnationChanged
        if the topic was re-created, CoordinationError if ZooKeeper cannot be read.
        """


Partitions = Mapping[str, tuple[PartitionKey, ...]]
"""Partitions of each topic, in the order of the Java consumer."""
