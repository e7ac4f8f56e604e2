# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: partitions, members, sessions, claims.

Values only, shared by every layer; nothing here knows a wire format, a znode path or a clock. Partition keys of both
generations are parsed here and nowhere else.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NewType, Protocol

BrokerId = NewType("BrokerId", int)
"""``broker.id``: unique in a cluster, kept when the broker moves to another machine."""

ConsumerId = NewType("ConsumerId", str)
"""The name of a member's node under ``/consumers/G/ids``: ``<group>_<host>-<ms>-<8 hex>``."""

ThreadId = NewType("ThreadId", str)
"""``<consumer id>-<stream>``: the content of an owner node."""

SessionEpoch = NewType("SessionEpoch", int)
"""Counts the ZooKeeper sessions of this process from 1; a claim belongs to exactly one."""

NO_SESSION: Final = SessionEpoch(0)

_LEGACY_KEY = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")
_MODERN_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
_INT32_MAX: Final = 2**31 - 1
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
LONGEST_TOPIC: Final = 249


def find_topic_fault(name: str) -> str | None:
    """Return the fault of a topic name by Kafka's rule (``Topic.java``), or None."""
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
    """The family of wire formats and znode layouts of a cluster."""

    LEGACY = "legacy"
    """0.6 and 0.7: byte offsets, partitions live on a broker."""
    MODERN = "modern"
    """0.8 and later: logical offsets, leaders, versioned requests."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """The key of a partition in its topic: ``3`` (modern), or ``0-3`` (legacy).

    The legacy form is ``BROKER-PARTITION``.
    """

    number: int
    broker: BrokerId | None = None

    def __str__(self) -> str:
        return str(self.number) if self.broker is None else f"{self.broker}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> PartitionKey:
        """Parse a key from a znode path or file name. Raises ValueError."""
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
        """The order of the Java consumer: modern keys as numbers, legacy keys as strings."""
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
        """Return partition ``number`` of a topic on 0.8 or later."""
        return cls(topic, PartitionKey(number))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    def __lt__(self, other: TopicPartition) -> bool:
        return self._order < other._order


@dataclass(frozen=True, slots=True)
class LogRange:
    """Readable offsets of a log: ``[earliest, latest)``; ``latest`` is the next to be written."""

    earliest: int
    latest: int


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Incarnation:
    """The incarnation of a topic, which changes when it is deleted and re-created.

    ``czxid`` is the transaction that created ``/brokers/topics/T``. ``truncation`` counts unclean leader elections that
    cut the log below the landed offsets. As text: ``<czxid>`` or ``<czxid>.<truncation>``.
    """

    czxid: int
    truncation: int = 0

    def __str__(self) -> str:
        return f"{self.czxid}.{self.truncation}" if self.truncation else str(self.czxid)

    @classmethod
    def parse(cls, text: str) -> Incarnation:
        """Parse ``<czxid>`` or ``<czxid>.<truncation>``. Raises ValueError."""
        czxid, _, truncation = text.partition(".")
        return cls(int(czxid), int(truncation or 0))

    def __lt__(self, other: Incarnation) -> bool:
        return (self.czxid, self.truncation) < (other.czxid, other.truncation)

    def precedes(self, zxid: int) -> bool:
        """Return True if transaction ``zxid`` came after the creation of this topic.

        A node written earlier is about a deleted topic of the same name.
        """
        return zxid > self.czxid


class TimestampType(enum.IntEnum):
    """The origin of a record's timestamp, as numbered on the wire.

    -1 stands for formats without timestamps.
    """

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a partition cannot go on, and since when.

    ``since`` is in seconds on the monotonic clock.
    """

    since: float
    reason: str


class GapReason(enum.StrEnum):
    """The reason why offsets between two landed records hold no landed record."""

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
    """Committed by another member (a Java consumer) that keeps no files here."""
    MISSING_FILE = "missing file"
    """Landed and committed by this group, but the file is missing now."""
    RESET = "reset"
    """A reset policy or an operator moved the position forward."""
    ERASED = "erased"
    """Landed, and removed from the landed file by the job ``erase``."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``[start, end)`` without a delivered record, with the reason."""

    start: int
    end: int
    reason: GapReason


class Claim(Protocol):
    """Proof that this process owns a partition, bound to one ZooKeeper session.

    Code that delivers, publishes or commits checks the claim right before each such step, and after each await before
    it. Created by ``group`` only, except in tests.
    """

    @property
    def partition(self) -> TopicPartition:
        """The partition owned."""

    @property
    def thread(self) -> ThreadId:
        """The thread in the owner node."""

    @property
    def epoch(self) -> SessionEpoch:
        """The session epoch in which the owner node was created."""

    @property
    def incarnation(self) -> Incarnation:
        """The topic's incarnation when it was claimed."""

    @property
    def usable(self) -> bool:
        """True if :meth:`check` would pass now."""

    def check(self) -> None:
        """Return if the claim may be used now to deliver, publish or commit.

        Raises LeasePaused (temporary: wait with :meth:`wait_usable`) or OwnershipLost (final).
        """

    async def wait_usable(self) -> None:
        """Wait until :meth:`check` would pass. Unbounded. Raises OwnershipLost."""

    async def confirm(self) -> None:
        """Check, and read the topic's incarnation again (one ZooKeeper read).

        Raises LeasePaused, OwnershipLost, IncarnationChanged, CoordinationError.
        """


Partitions = Mapping[str, tuple[PartitionKey, ...]]
"""The partitions of each topic, sorted in the order of the generation."""
