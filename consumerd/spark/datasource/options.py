# SPDX-License-Identifier: Apache-2.0
"""Options of readers, named as those of Spark's own Kafka source. Pure.

So a job can be moved by changing its format. Names are case-insensitive, as everywhere in Spark; unknown ones are
refused. Settings of Java's consumer have the prefix ``kafka.``. Those with a meaning here are used. Those of features
that a reader does not have (a consumer group, polling) are ignored. All others are refused.

If a bound is given in several ways, the first of these counts, as in Spark's source: a timestamp for all partitions,
timestamps by partition, offsets. Example: with ``startingTimestamp`` 1700000000000 and ``startingOffsets`` earliest, a
read begins at that time.

Source: "Structured Streaming + Kafka Integration Guide" of Apache Spark.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumerd.access.address import ClusterAddress, IdentitiesFile, ZooKeeperCredential, parse_bootstrap
from consumerd.errors import ConfigError
from consumerd.group.java_regex import UnsupportedPattern, compile_java
from consumerd.model import Generation, TopicPartition, find_topic_fault
from consumerd.net.versions import parse_broker_version
from consumerd.spark.datasource.offsets import parse_assignment, parse_offsets
from consumerd.spark.datasource.schema import ReaderColumns
from consumerd.spark.datasource.security_options import (
    parse_protocol,
    parse_sasl,
    parse_tls,
    parse_zookeeper_sasl,
    parse_zookeeper_tls,
)

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""Offsets that mean the ends of a log, in ``startingOffsets`` and ``endingOffsets`` by partition."""

GROUP_PREFIX: Final = "group:"
"""Prefix of a group in ``startingOffsets`` and ``endingOffsets``, as in ``group:billing``."""

_WITHOUT_EFFECT: Final = (
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "useDeprecatedOffsetFetching",
    "kafkaConsumer.cache.evictionIntervalMs",
    "kafka.group.id",
    "kafka.client.rack",
    "kafka.check.crcs",
    "kafka.max.poll.records",
    "kafka.max.poll.interval.ms",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.metadata.max.age.ms",
    "kafka.connections.max.idle.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.reconnect.backoff.max.ms",
    "kafka.retry.backoff.ms",
    "kafka.default.api.timeout.ms",
    "kafka.send.buffer.bytes",
)
"""Options of Spark's own source that are ignored: a reader has no consumer group, no poll and no cache."""

_PLAIN_PEM: Final = "files in PEM are read that need none"
_REFUSED: Final = {
    "kafka.auto.offset.reset": "give startingOffsets instead",
    "kafka.enable.auto.commit": "nothing is committed by a reader",
    "kafka.key.deserializer": "keys are bytes; decode the column",
    "kafka.value.deserializer": "values are bytes; decode the column",
    "kafka.ssl.key.password": _PLAIN_PEM,
    "kafka.ssl.keystore.password": _PLAIN_PEM,
    "kafka.ssl.truststore.password": _PLAIN_PEM,
    "kafka.sasl.jaas.config": "it would put the password into Spark's plans: give kafka.sasl.mechanism and "
    "sasl.username with sasl.password.file, or sasl.keytab with sasl.principal",
    "path": "topics are named by subscribe, subscribePattern or assign; call load() without a path",
}


# -- partitions to read


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Selection of all partitions of some topics (``subscribe``)."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Selection of all topics whose whole name matches a Java regular expression (``subscribePattern``)."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Selection of single partitions (``assign``)."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


# -- bounds of a read


class Edge(enum.Enum):
    """Bound of a read at the earliest or the latest offset of each partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Bound of a read at an offset for each partition.

    -2 (:data:`EARLIEST_OFFSET`) and -1 (:data:`LATEST_OFFSET`) mean the ends of the log.
    """

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Bound of a read at a time, the same for all partitions.

    A partition's bound is its first record of that time or later. The time is in ms since the epoch.
    """

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """Bound of a read at a time given for each partition.

    A partition's bound is its first record of that time or later. Times are in ms since the epoch.
    """

    timestamps_ms: Mapping[TopicPartition, int]


class GroupPlace(enum.Enum):
    """Store in which a group's positions are read (``groupPositionsIn``): ZooKeeper or Kafka.

    ``AUTO`` is ZooKeeper, or Kafka for a partition with a position there only. It refuses a partition whose position is
    larger in Kafka: either may be the one that is meant. Without the option ``zookeeper`` it is Kafka.
    """

    AUTO = "auto"
    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    LARGER = "larger"


_WITH_ZOOKEEPER: Final = frozenset({GroupPlace.ZOOKEEPER, GroupPlace.LARGER})
"""Places that need ZooKeeper's address."""


@dataclass(frozen=True, slots=True)
class AtGroup:
    """Bound of a read at the committed positions of a group."""

    group: str
    place: GroupPlace = GroupPlace.AUTO


Bound = Edge | AtOffsets | AtTimestamp | AtTimestamps | AtGroup


class NoLaterRecord(enum.Enum):
    """Reaction to a partition without records of the starting time or later."""

    ERROR = "error"
    LATEST = "latest"


class MissingPosition(enum.Enum):
    """Reaction to a partition of which the group has no position (``groupPositionMissing``)."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


# -- all options


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Options for fetching records on an executor. Sizes in bytes.

    Attributes:
        partition_bytes: limit of a fetch response.
        message_bytes: limit of a single message, for which a larger fetch is made.
        batch_bytes: approximate size of a batch of rows for Spark.
        wait_ms: time in ms that a broker waits for records before it answers a fetch.
        receive_buffer_bytes: size of the socket's receive buffer; None for the system's default.
        patience_s: time in seconds without records, such as without a leader, after which the task fails.
    """

    partition_bytes: int = 4 << 20
    message_bytes: int = 64 << 20
    batch_bytes: int = 4 << 20
    wait_ms: int = 500
    read_committed: bool = False
    receive_buffer_bytes: int | None = None
    patience_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a reader of the format ``consumerd``, parsed.

    Attributes:
        ending: :attr:`Edge.LATEST` for a stream, which has no end.
        max_offsets_per_trigger: also given as ``maxRowsPerTrigger``. The three limits of triggers are None for a batch.
    """

    cluster: ClusterAddress
    selection: Selection
    starting: Bound
    ending: Bound = Edge.LATEST
    no_later_record: NoLaterRecord = NoLaterRecord.ERROR
    missing_position: MissingPosition = MissingPosition.ERROR
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    columns: ReaderColumns = field(default_factory=ReaderColumns)
    fetch: FetchOptions = field(default_factory=FetchOptions)
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int | None = None


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a reader. Raises ConfigError, which names the option.

    Args:
        streaming: True for a stream, False for a batch.
    """
    return _parse(OptionReader(options), streaming=streaming)


def option_names() -> frozenset[str]:
    """Return the names of all options of a reader that have an effect."""
    reader = OptionReader({"kafka.bootstrap.servers": "any:1", "subscribe": "any"})
    _parse(reader, streaming=True)
    return reader.names - set(_WITHOUT_EFFECT)


def _parse(reader: OptionReader, *, streaming: bool) -> ReadOptions:
    cluster = parse_cluster(reader)
    starting = _parse_bound(reader, "starting", Edge.LATEST if streaming else Edge.EARLIEST)
    ending = _parse_bound(reader, "ending", Edge.LATEST)
    found = ReadOptions(
        cluster=cluster,
        selection=_parse_selection(reader),
        starting=starting,
        ending=ending,
        no_later_record=NoLaterRecord(
            reader.choice("startingOffsetsByTimestampStrategy", [one.value for one in NoLaterRecord])
        ),
        missing_position=MissingPosition(reader.choice("groupPositionMissing", [one.value for one in MissingPosition])),
        min_partitions=reader.number("minPartitions", least=1),
        max_records_per_partition=reader.number("maxRecordsPerPartition", least=1),
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        columns=ReaderColumns(
            include_headers=reader.flag("includeHeaders", default=False),
            include_broker=reader.flag("includeBroker", default=False),
        ),
        fetch=_parse_fetch(reader),
        max_offsets_per_trigger=_parse_most(reader),
        min_offsets_per_trigger=reader.number("minOffsetsPerTrigger", least=1),
        max_trigger_delay_ms=reader.milliseconds("maxTriggerDelay"),
    )
    for name in _WITHOUT_EFFECT:
        reader.text(name)
    reader.refuse_unknown()
    _check_bounds(found, reader, streaming=streaming)
    return found


def parse_cluster(reader: OptionReader) -> ClusterAddress:
    """Parse the options that say where the cluster is, for readers and writers.

    Raises ConfigError.
    """
    bootstrap, zookeeper = reader.text("kafka.bootstrap.servers"), _parse_zookeeper(reader)
    if bootstrap is None and zookeeper is None:
        raise ConfigError("kafka.bootstrap.servers or zookeeper: give at least one of the two, host:port,host:port")
    if bootstrap is not None:
        try:
            parse_bootstrap(bootstrap)
        except ConfigError as error:
            raise ConfigError(f"kafka.bootstrap.servers: {str(error).removeprefix('bootstrap: ')}") from error
    scheme, file = reader.text("zookeeper.auth.scheme"), reader.text("zookeeper.auth.file")
    if (scheme is None) != (file is None):
        raise ConfigError("zookeeper.auth.scheme and zookeeper.auth.file: give both or neither")
    version = reader.text("brokerVersion") or "auto"
    try:
        parse_broker_version(version)
    except ConfigError as error:
        raise ConfigError(f"brokerVersion: {str(error).removeprefix('cluster.broker_version: ')}") from error
    auth = None
    if scheme is not None and file is not None:
        auth = ZooKeeperCredential(setting="zookeeper.auth.file", scheme=scheme, file=Path(file))
    identities = reader.text("identities")
    if identities is not None and zookeeper is not None:
        raise ConfigError("identities: it is for a cluster without ZooKeeper; give it or zookeeper")
    protocol = parse_protocol(reader)
    sasl = parse_sasl(reader, protocol)
    defaults = ClusterAddress(client_id="consumerd-spark")
    return ClusterAddress(
        bootstrap=bootstrap,
        zookeeper=zookeeper,
        zookeeper_auth=auth,
        zookeeper_sasl=parse_zookeeper_sasl(reader, sasl),
        zookeeper_tls=parse_zookeeper_tls(reader),
        identities=None if identities is None else IdentitiesFile(setting="identities", file=Path(identities)),
        generation=_parse_generation(reader, zookeeper),
        tls=parse_tls(reader, protocol),
        sasl=sasl,
        broker_version=version,
        client_id=reader.text("kafka.client.id") or defaults.client_id,
        connect_timeout_s=_seconds(
            reader.number("kafka.socket.connection.setup.timeout.ms", least=1), defaults.connect_timeout_s
        ),
        request_timeout_s=_seconds(reader.number("kafka.request.timeout.ms", least=1), defaults.request_timeout_s),
    )


def _parse_generation(reader: OptionReader, zookeeper: str | None) -> Generation | None:
    named = reader.choice("generation", ["auto", *(one.value for one in Generation)])
    if named == Generation.LEGACY.value and zookeeper is None:
        raise ConfigError(
            "generation: brokers of Kafka 0.6 and 0.7 cannot tell topics and other brokers; give the option zookeeper"
        )
    return None if named == "auto" else Generation(named)


def _parse_zookeeper(reader: OptionReader) -> str | None:
    """Read ZooKeeper's connect string, by our name of the option or by Kafka's."""
    ours, kafkas = reader.text("zookeeper"), reader.text("zookeeper.connect")
    if ours is not None and kafkas is not None and ours != kafkas:
        raise ConfigError("zookeeper and zookeeper.connect: two names of one option, with two values; give one of them")
    return ours or kafkas


class OptionReader:
    """Reads options by name, case-insensitively, and finds those that were never read.

    Methods take a name in its usual spelling. They return None, or a default, for an option that was not given, and
    raise ConfigError, which names the option.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, value) for name, value in options.items()}
        self._known: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the options that were read, given or not, in usual spelling."""
        return frozenset(self._known.values())

    def text(self, name: str) -> str | None:
        """Return an option's text without surrounding spaces; None if it is empty or not given."""
        self._known[name.lower()] = name
        _, value = self._given.get(name.lower(), (name, ""))
        return value.strip() or None

    def is_given(self, name: str) -> bool:
        """Return True if an option was given, even if it is empty."""
        self._known[name.lower()] = name
        return name.lower() in self._given

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return an option's value, one of ``choices``, in lower case; the first if not given."""
        text = self.text(name)
        if text is None:
            return choices[0]
        if text.lower() not in choices:
            raise ConfigError(f"{name}: expected {' or '.join(choices)}, got {text!r}")
        return text.lower()

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is ``true`` or ``false``; ``default`` if it was not given."""
        return self.choice(name, ["true", "false"] if default else ["false", "true"]) == "true"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return an option that is a whole number; None if it was not given.

        It must be ``least`` or more.
        """
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= _MOST_NUMBER:
            raise ConfigError(f"{name}: expected a whole number from {least} on, got {text!r}")
        return int(text)

    def milliseconds(self, name: str) -> int | None:
        """Return a duration such as ``30s`` in ms; None if it was not given.

        Units are ``ms``, ``s``, ``sec``, ``m``, ``min``, ``h`` and ``d``; a plain number is in ms.
        """
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.lower())
        if match is None or match[2] not in _UNITS_MS:
            raise ConfigError(f"{name}: expected a duration such as 500ms, 30s or 15m, got {text!r}")
        return int(match[1]) * _UNITS_MS[match[2]]

    def refuse_unknown(self) -> None:
        """Raise ConfigError for the first given option that was never read.

        The error suggests an option with a similar name. Call this method last, because an option counts as known once
        a method of this class has read it.
        """
        for name, (spelled, _) in self._given.items():
            if name in self._known:
                continue
            if name in _REFUSED:
                raise ConfigError(f"{spelled}: cannot be given: {_REFUSED[name]}")
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f"; did you mean {self._known[near[0]]}?" if near else ""
            raise ConfigError(f"{spelled}: there is no such option{hint}")


_MOST_NUMBER: Final = (1 << 63) - 1
_UNITS_MS: Final = {
    "": 1, "ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_LEAST_FETCH_BYTES: Final = 1024


def _seconds(milliseconds: int | None, default: float) -> float:
    return default if milliseconds is None else milliseconds / 1000


def _parse_fetch(reader: OptionReader) -> FetchOptions:
    defaults = FetchOptions()
    partition_bytes = reader.number("kafka.max.partition.fetch.bytes", least=_LEAST_FETCH_BYTES)
    most = reader.number("kafka.fetch.max.bytes", least=_LEAST_FETCH_BYTES)
    partition_bytes = defaults.partition_bytes if partition_bytes is None else partition_bytes
    message_bytes = reader.number("maxMessageBytes", least=_LEAST_FETCH_BYTES) or defaults.message_bytes
    reader.number("kafka.fetch.min.bytes")  # without effect: the records of a range exist, so a fetch need not wait
    wait_ms = reader.number("kafka.fetch.max.wait.ms")
    isolation = reader.choice("kafka.isolation.level", ["read_uncommitted", "read_committed"])
    return FetchOptions(
        partition_bytes=min(partition_bytes, most or partition_bytes),
        message_bytes=max(message_bytes, partition_bytes),
        batch_bytes=reader.number("batchBytes", least=_LEAST_FETCH_BYTES) or defaults.batch_bytes,
        wait_ms=defaults.wait_ms if wait_ms is None else wait_ms,
        read_committed=isolation == "read_committed",
        receive_buffer_bytes=reader.number("kafka.receive.buffer.bytes", least=_LEAST_FETCH_BYTES),
        patience_s=_seconds(reader.number("kafkaConsumer.pollTimeoutMs", least=1), defaults.patience_s),
    )


def _parse_most(reader: OptionReader) -> int | None:
    """Read a trigger's limit of offsets, which has two names."""
    offsets = reader.number("maxOffsetsPerTrigger", least=1)
    rows = reader.number("maxRowsPerTrigger", least=1)
    if offsets is not None and rows is not None and offsets != rows:
        raise ConfigError("maxOffsetsPerTrigger and maxRowsPerTrigger: they are two names of one limit; give one")
    return rows if offsets is None else offsets


# -- parsing of partitions to read


def _parse_selection(reader: OptionReader) -> Selection:
    topics, pattern, assigned = (reader.text(name) for name in ("subscribe", "subscribePattern", "assign"))
    if sum(one is not None for one in (topics, pattern, assigned)) != 1:
        raise ConfigError("subscribe, subscribePattern, assign: give exactly one of them")
    if assigned is not None:
        return Assign(tuple(parse_assignment(assigned, what="assign")))
    if pattern is not None:
        try:
            compile_java(pattern)
        except UnsupportedPattern as error:
            raise ConfigError(f"subscribePattern: {error}") from error
        return SubscribePattern(pattern)
    assert topics is not None
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in topics.split(",")))))
    if not names:
        raise ConfigError("subscribe: expected at least one topic")
    for name in names:
        if (fault := find_topic_fault(name)) is not None:
            raise ConfigError(f"subscribe: {fault}")
    return Subscribe(names)


# -- parsing of bounds


def _parse_bound(reader: OptionReader, side: str, default: Edge) -> Bound:
    """Read a bound from the first of its options that is given.

    ``side`` is the prefix of the options: ``starting`` or ``ending``.
    """
    for_all = reader.number(f"{side}Timestamp")
    place = GroupPlace(reader.choice("groupPositionsIn", [one.value for one in GroupPlace]))
    by_partition = reader.text(f"{side}OffsetsByTimestamp")
    offsets = reader.text(f"{side}Offsets")
    if for_all is not None:
        return AtTimestamp(for_all)
    if by_partition is not None:
        return AtTimestamps(parse_offsets(by_partition, what=f"{side}OffsetsByTimestamp", least=0))
    if offsets is None:
        return default
    if offsets.lower() in {"earliest", "latest"}:
        return Edge(offsets.lower())
    if offsets.lower().startswith(GROUP_PREFIX):
        group = offsets[len(GROUP_PREFIX) :].strip()
        if not group or "/" in group:
            raise ConfigError(f"{side}Offsets: {offsets!r}: expected group:<name>")
        return AtGroup(group, place)
    if not offsets.startswith("{"):
        raise ConfigError(
            f"{side}Offsets: expected earliest, latest, group:<name>, or JSON such as "
            f'{{"topic": {{"0": 23, "1": -2}}}}, got {offsets!r}'
        )
    return AtOffsets(parse_offsets(offsets, what=f"{side}Offsets", least=EARLIEST_OFFSET))


def _check_bounds(options: ReadOptions, reader: OptionReader, *, streaming: bool) -> None:
    """Raise ConfigError for options that contradict each other."""
    starting, ending = options.starting, options.ending
    for side, bound in (("starting", starting), ("ending", ending)):
        if isinstance(bound, AtGroup) and bound.place in _WITH_ZOOKEEPER and options.cluster.zookeeper is None:
            raise ConfigError(
                f"{side}Offsets: group:{bound.group}: its positions in ZooKeeper are asked for; give the option "
                "zookeeper"
            )
    if streaming:
        for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
            if reader.is_given(name):
                raise ConfigError(f"{name}: a stream has no end; read a batch, or use the trigger availableNow")
        return
    if starting is Edge.LATEST or (isinstance(starting, AtOffsets) and LATEST_OFFSET in starting.offsets.values()):
        raise ConfigError("startingOffsets: a batch that starts with the latest offset would be empty")
    if ending is Edge.EARLIEST or (isinstance(ending, AtOffsets) and EARLIEST_OFFSET in ending.offsets.values()):
        raise ConfigError("endingOffsets: a batch that ends with the earliest offset would be empty")
    for name in ("maxOffsetsPerTrigger", "maxRowsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        if reader.is_given(name):
            raise ConfigError(f"{name}: a batch has no triggers")
