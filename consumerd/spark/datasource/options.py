"""What a reader can be asked for, in the words of Spark's own Kafka source, so that a job moves over by its format's name.

Pure. Names count whatever their case, as everywhere in Spark; one that is not known is refused, by name. Settings of
Java's consumer are given with the prefix ``kafka.``: those that have a meaning here are taken, those that concern what
there is not here (a consumer group, polling) have no effect, all others are refused.

Where a bound is given in more than one way a timestamp for all counts before timestamps by partition, and those before
offsets, as in Spark's source. Source: "Structured Streaming + Kafka Integration Guide" of Apache Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumerd.model import TopicPartition

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""What stands for the ends of a log where offsets are given by partition."""

GROUP_PREFIX: Final = "group:"


# -- which partitions


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of all topics whose whole name a Java expression matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


# -- from where, and up to where


class Edge(enum.Enum):
    """An end of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; :data:`EARLIEST_OFFSET` and :data:`LATEST_OFFSET` stand for the log's ends."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record of this time (ms since the epoch) or later, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same with a time of its own for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtGroup:
    """Where a ZooKeeper group stands: the next record that it would read."""

    group: str


Bound = Edge | AtOffsets | AtTimestamp | AtTimestamps | AtGroup


class NoLaterRecord(enum.Enum):
    """What a starting time means in a partition that has no record of that time or later."""

    ERROR = "error"
    LATEST = "latest"


class MissingPosition(enum.Enum):
    """What a group means where it has no position of a partition (``groupPositionMissing``)."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


# -- how


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Files in PEM; they must be there on the driver and on every executor."""

    trusted: Path | None = None
    identity: Path | None = None
    """Key and certificate in one file."""
    checks_host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Where the cluster is. At least one of ``bootstrap`` and ``zookeeper`` is there."""

    bootstrap: str | None = None
    zookeeper: str | None = None
    zookeeper_auth_scheme: str | None = None
    zookeeper_auth_file: Path | None = None
    tls: TlsOptions | None = None
    """None is plain text."""
    broker_version: str = "auto"
    client_id: str = "consumerd-spark"
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How an executor fetches. Sizes in bytes.

    ``patience_s`` is for how long a partition may bring nothing, its leader being away for instance, before the task fails.
    """

    partition_bytes: int = 4 << 20
    message_bytes: int = 64 << 20
    batch_bytes: int = 4 << 20
    """About how much a batch of rows that is handed to Spark holds."""
    wait_ms: int = 500
    read_committed: bool = False
    receive_buffer_bytes: int | None = None
    patience_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything that a reader was asked for.

    ``ending`` is :attr:`Edge.LATEST` for a stream, which has no end. The three limits of a trigger are None for a batch.
    """

    cluster: ClusterOptions
    selection: Selection
    starting: Bound
    ending: Bound = Edge.LATEST
    no_later_record: NoLaterRecord = NoLaterRecord.ERROR
    missing_position: MissingPosition = MissingPosition.ERROR
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    fetch: FetchOptions = field(default_factory=FetchOptions)
    max_offsets_per_trigger: int | None = None
    """Also given as ``maxRowsPerTrigger``."""
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int | None = None


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Read the options of a batch or of a stream. Raises ConfigError that names the option."""
    raise NotImplementedError


class OptionReader:
    """Options by their names, whatever their case, and which of them nobody has asked for.

    Each method takes a name in its usual spelling and returns None, or ``default``, where it was not given. They raise
    ConfigError that names the option.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, value) for name, value in options.items()}
        self._known: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        """Return an option as it was given, without spaces around it; an empty one counts as not given."""
        raise NotImplementedError

    def flag(self, name: str, *, default: bool) -> bool:
        """Return ``true`` or ``false``."""
        raise NotImplementedError

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number of ``least`` or more."""
        raise NotImplementedError

    def refuse_unknown(self) -> None:
        """Raise ConfigError for the first option that no other call has named; says which there are that are near."""
        raise NotImplementedError


def parse_cluster(reader: OptionReader) -> ClusterOptions:
    """Read where the cluster is, as readers and writers are told it. Raises ConfigError."""
    raise NotImplementedError
