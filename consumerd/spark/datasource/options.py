# SPDX-License-Identifier: Apache-2.0
"""What a reader can be asked for, in the words of Spark's own Kafka source, so that a job moves over by its format's name.

Pure. Names count whatever their case, as everywhere in Spark; one that is not known is refused, by name. Settings of
Java's consumer are given with the prefix ``kafka.``: those that have a meaning here are taken, those that concern what
there is not here (a consumer group, polling) have no effect, all others are refused.

Where a bound is given in more than one way a timestamp for all counts before timestamps by partition, and those before
offsets, as in Spark's source. Source: "Structured Streaming + Kafka Integration Guide" of Apache Spark.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumerd.access.address import ClusterAddress, TlsFiles, ZooKeeperCredential, parse_bootstrap
from consumerd.errors import ConfigError
from consumerd.group.java_regex import UnsupportedPattern, compile_java
from consumerd.model import TopicPartition, find_topic_fault
from consumerd.net.versions import parse_broker_version
from consumerd.spark.datasource.offsets import parse_assignment, parse_offsets

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""What stands for the ends of a log where offsets are given by partition."""

GROUP_PREFIX: Final = "group:"
"""What a group's name stands behind where offsets are given as a group's."""

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
"""What jobs give to Spark's own source and means nothing here: there is no consumer group, no poll and no cache."""

_PLAIN_PEM: Final = "files in PEM are read that need none"
_REFUSED: Final = {
    "kafka.auto.offset.reset": "give startingOffsets instead",
    "kafka.enable.auto.commit": "nothing is committed by a reader",
    "kafka.key.deserializer": "keys are bytes; decode the column",
    "kafka.value.deserializer": "values are bytes; decode the column",
    "kafka.ssl.key.password": _PLAIN_PEM,
    "kafka.ssl.keystore.password": _PLAIN_PEM,
    "kafka.ssl.truststore.password": _PLAIN_PEM,
    "path": "topics are named by subscribe, subscribePattern or assign; call load() without a path",
}


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

    cluster: ClusterAddress
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
    return _parse(OptionReader(options), streaming=streaming)


def option_names() -> frozenset[str]:
    """Return the names of all options that a reader takes, those without effect left out."""
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
        include_headers=reader.flag("includeHeaders", default=False),
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
    """Read where the cluster is, as readers and writers are told it. Raises ConfigError."""
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
    defaults = ClusterAddress(client_id="consumerd-spark")
    return ClusterAddress(
        bootstrap=bootstrap,
        zookeeper=zookeeper,
        zookeeper_auth=auth,
        trusts_modern=reader.choice("generation", ["auto", "modern"]) == "modern",
        tls=_parse_tls(reader),
        broker_version=version,
        client_id=reader.text("kafka.client.id") or defaults.client_id,
        connect_timeout_s=_seconds(
            reader.number("kafka.socket.connection.setup.timeout.ms", least=1), defaults.connect_timeout_s
        ),
        request_timeout_s=_seconds(reader.number("kafka.request.timeout.ms", least=1), defaults.request_timeout_s),
    )


def _parse_zookeeper(reader: OptionReader) -> str | None:
    """Read the connect string, by our name for it or by the one that Kafka's settings have."""
    ours, kafkas = reader.text("zookeeper"), reader.text("zookeeper.connect")
    if ours is not None and kafkas is not None and ours != kafkas:
        raise ConfigError("zookeeper and zookeeper.connect: two names of one option, with two values; give one of them")
    return ours or kafkas


class OptionReader:
    """Options by their names, whatever their case, and which of them nobody has asked for.

    Each method takes a name in its usual spelling and returns None, or ``default``, where it was not given. They raise
    ConfigError that names the option.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, value) for name, value in options.items()}
        self._known: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """The options that somebody has asked for, in their usual spelling."""
        return frozenset(self._known.values())

    def text(self, name: str) -> str | None:
        """Return an option as it was given, without spaces around it; an empty one counts as not given."""
        self._known[name.lower()] = name
        _, value = self._given.get(name.lower(), (name, ""))
        return value.strip() or None

    def is_given(self, name: str) -> bool:
        """Tell whether an option was given, even as nothing."""
        self._known[name.lower()] = name
        return name.lower() in self._given

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of ``choices``, whatever its case; the first where none was given."""
        text = self.text(name)
        if text is None:
            return choices[0]
        if text.lower() not in choices:
            raise ConfigError(f"{name}: expected {' or '.join(choices)}, got {text!r}")
        return text.lower()

    def flag(self, name: str, *, default: bool) -> bool:
        """Return ``true`` or ``false``."""
        return self.choice(name, ["true", "false"] if default else ["false", "true"]) == "true"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number of ``least`` or more."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= _MOST_NUMBER:
            raise ConfigError(f"{name}: expected a whole number from {least} on, got {text!r}")
        return int(text)

    def milliseconds(self, name: str) -> int | None:
        """Return a duration: a number with a unit (``ms``, ``s``, ``m``, ``min``, ``h``, ``d``), or a number of ms."""
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.lower())
        if match is None or match[2] not in _UNITS_MS:
            raise ConfigError(f"{name}: expected a duration such as 500ms, 30s or 15m, got {text!r}")
        return int(match[1]) * _UNITS_MS[match[2]]

    def refuse_unknown(self) -> None:
        """Raise ConfigError for the first given option that nothing has asked for.

        Call it last: an option is known once a method of this class has read it. The message suggests a similar name.
        """
        for name, (spelled, _) in self._given.items():
            if name in self._known:
                continue
            if name in _REFUSED:
                raise ConfigError(f"{spelled}: cannot be given: {_REFUSED[name]}")
            if name.startswith("kafka.sasl."):
                raise ConfigError(f"{spelled}: SASL is not supported; brokers need a listener for PLAINTEXT or SSL")
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


def _parse_tls(reader: OptionReader) -> TlsFiles | None:
    protocol = reader.choice("kafka.security.protocol", ["plaintext", "ssl"])
    files = {}
    for store in ("truststore", "keystore"):
        file = reader.text(f"kafka.ssl.{store}.location")
        kind = reader.text(f"kafka.ssl.{store}.type") or "JKS"
        if file is not None and kind.upper() != "PEM":
            raise ConfigError(
                f"kafka.ssl.{store}.location: a file of type {kind} cannot be read here; export it as PEM and set "
                f"kafka.ssl.{store}.type to PEM"
            )
        files[store] = None if file is None else Path(file)
    named = reader.text("kafka.ssl.endpoint.identification.algorithm")
    empty = reader.is_given("kafka.ssl.endpoint.identification.algorithm") and named is None
    if named is not None and named.lower() != "https":
        raise ConfigError(
            f"kafka.ssl.endpoint.identification.algorithm: expected https, or nothing for no check, got {named!r}"
        )
    if protocol == "plaintext":
        return None
    return TlsFiles(
        setting="kafka.ssl", trusted=files["truststore"], certificate=files["keystore"], check_hostname=not empty
    )


def _parse_fetch(reader: OptionReader) -> FetchOptions:
    defaults = FetchOptions()
    partition_bytes = reader.number("kafka.max.partition.fetch.bytes", least=_LEAST_FETCH_BYTES)
    most = reader.number("kafka.fetch.max.bytes", least=_LEAST_FETCH_BYTES)
    partition_bytes = defaults.partition_bytes if partition_bytes is None else partition_bytes
    message_bytes = reader.number("maxMessageBytes", least=_LEAST_FETCH_BYTES) or defaults.message_bytes
    reader.number("kafka.fetch.min.bytes")  # a reader knows that there is more to come, and waits for nothing
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
    """Read the limit of a trigger by either of its names."""
    offsets = reader.number("maxOffsetsPerTrigger", least=1)
    rows = reader.number("maxRowsPerTrigger", least=1)
    if offsets is not None and rows is not None and offsets != rows:
        raise ConfigError("maxOffsetsPerTrigger and maxRowsPerTrigger: they are two names of one limit; give one")
    return rows if offsets is None else offsets


# -- which partitions


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


# -- from where, and up to where


def _parse_bound(reader: OptionReader, side: str, default: Edge) -> Bound:
    """Read one of the bounds by whichever of its options counts."""
    for_all = reader.number(f"{side}Timestamp")
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
        return AtGroup(group)
    if not offsets.startswith("{"):
        raise ConfigError(
            f"{side}Offsets: expected earliest, latest, group:<name>, or JSON such as "
            f'{{"topic": {{"0": 23, "1": -2}}}}, got {offsets!r}'
        )
    return AtOffsets(parse_offsets(offsets, what=f"{side}Offsets", least=EARLIEST_OFFSET))


def _check_bounds(options: ReadOptions, reader: OptionReader, *, streaming: bool) -> None:
    """Refuse what makes no sense together. Raises ConfigError."""
    starting, ending = options.starting, options.ending
    for side, bound in (("starting", starting), ("ending", ending)):
        if isinstance(bound, AtGroup) and options.cluster.zookeeper is None:
            raise ConfigError(f"{side}Offsets: group:{bound.group} is kept in ZooKeeper; give the option zookeeper")
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
