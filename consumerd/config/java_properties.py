# SPDX-License-Identifier: Apache-2.0
"""The Java consumer's own ``consumer.properties``, mapped onto our settings.

Each key of the high-level consumer (kafka.consumer.ConsumerConfig and kafka.utils.ZKConfig, 0.7 to 1.1) is mapped, or
accepted at the one value that matches our behaviour, or refused with a reason.

Of Kafka's newer consumer, the keys of the membership are mapped (``session.timeout.ms``, ``heartbeat.interval.ms``,
``max.poll.interval.ms``, and class names as values of ``partition.assignment.strategy``). They imply
``group.membership: kafka``. All other keys of the newer consumer are refused, since a file with them relies on their
effect.

Names of Kafka 0.7 (``zk.connect``, ``groupid``) are read as their names from 0.8 on. A file with such names
begins at a log's start by default, as the consumer of 0.7 does, and sets ``cluster.generation: legacy``. It may have no
names that came with 0.8.

Keys that neither consumer has (a team's own, serializers, metrics reporters) are ignored and listed, as Java does
(kafka.utils.VerifiableProperties), unless they look misspelled.

Numbers are Kafka's: milliseconds and bytes without units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties

from consumerd.config.java_logins import read_jaas, read_protocol
from consumerd.config.origins import Doubt, KeyPath, Layer, Problem
from consumerd.config.schema import guess
from consumerd.errors import ConfigError

Convert = Callable[[str], object]


def _reset(value: str) -> str:
    try:
        return {"smallest": "earliest", "largest": "latest"}[value]
    except KeyError:
        raise ValueError("expected smallest or largest") from None


def _boolean(value: str) -> bool:
    try:
        return {"true": True, "false": False}[value]
    except KeyError:
        raise ValueError("expected true or false") from None


_NEWER_ASSIGNORS: Final = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
}
"""Assignors of Kafka's newer consumer that we have. A list names them in order of preference."""


def _assignor(value: str) -> str:
    if value == "range":
        return value
    if "." in value:
        for one in value.split(","):
            if (known := _NEWER_ASSIGNORS.get(one.strip())) is not None:
                return known
        raise ValueError(f"expected one of {' and '.join(_NEWER_ASSIGNORS)} in it")
    if value == "roundrobin":
        raise ValueError(
            "members of 0.8 to 0.11 and members of 1.0 and later compute different plans for it: "
            "set group.assignor to roundrobin-0.8 or roundrobin-1.0, as the group's Java members are, "
            "and remove this key"
        )
    raise ValueError("expected range or roundrobin")


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A key that sets one or more of our keys."""

    keys: tuple[str, ...]
    convert: Convert = int
    newer: bool = False
    """True for a key of Kafka's newer consumer, whose groups are coordinated by brokers."""


@dataclass(frozen=True, slots=True)
class _Only:
    """A key accepted at values that change nothing, and refused at others, for ``reason``."""

    accepted: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class _Spread:
    """A key whose value decides several of our keys, which ``spread`` returns with their values.

    Attributes:
        keys: All keys that it may set.
        secret: True if the value may hold a password, so that no message repeats it.
    """

    keys: tuple[str, ...]
    spread: Callable[[str], Mapping[str, object]]
    secret: bool = False


_STRATEGY: Final = "partition.assignment.strategy"
_PROTOCOL: Final = "security.protocol"
_CHANNEL: Final = (
    "the group's coordinator is asked like other brokers, and again after at most a second; "
    "set cluster.request_timeout_ms"
)
_MIRROR: Final = "it did nothing in the Java consumer either; remove it"

KEYS: Final[Mapping[str, _Mapped | _Spread | _Only]] = {
    "group.id": _Mapped(("group.id",), str),
    "zookeeper.connect": _Mapped(("cluster.zookeeper",), str),
    "consumer.id": _Mapped(("group.consumer_id",), str),
    "zookeeper.session.timeout.ms": _Mapped(("group.session_timeout_ms",)),
    "session.timeout.ms": _Mapped(("group.session_timeout_ms",), newer=True),
    "heartbeat.interval.ms": _Mapped(("group.heartbeat_interval_ms",), newer=True),
    "max.poll.interval.ms": _Mapped(("group.rebalance_timeout_ms",), newer=True),
    "zookeeper.connection.timeout.ms": _Mapped(("cluster.connect_timeout_ms",)),
    # its only use in the Java consumer is as the default of rebalance.backoff.ms, which follows and wins
    "zookeeper.sync.time.ms": _Mapped(("rebalance.backoff_ms",)),
    "rebalance.backoff.ms": _Mapped(("rebalance.backoff_ms",)),
    "rebalance.max.retries": _Mapped(("rebalance.max_retries",)),
    "socket.timeout.ms": _Mapped(("cluster.request_timeout_ms",)),
    "socket.receive.buffer.bytes": _Mapped(("fetch.receive_buffer_bytes",)),
    "fetch.message.max.bytes": _Mapped(("fetch.max_partition_bytes",)),
    "fetch.max.bytes": _Mapped(("fetch.max_response_bytes",)),
    "fetch.min.bytes": _Mapped(("fetch.min_bytes",)),
    "fetch.wait.max.ms": _Mapped(("fetch.max_wait_ms",)),
    "refresh.leader.backoff.ms": _Mapped(("cluster.metadata_backoff_ms",)),
    "auto.commit.interval.ms": _Mapped(("offsets.commit_interval_ms",)),
    "auto.offset.reset": _Mapped(("offsets.on_missing", "offsets.on_below", "offsets.on_above"), _reset),
    "client.id": _Mapped(("cluster.client_id",), str),
    _STRATEGY: _Mapped(("group.assignor",), _assignor),
    _PROTOCOL: _Spread(("cluster.tls.enabled", "cluster.sasl.mechanism"), read_protocol),
    "sasl.mechanism": _Mapped(("cluster.sasl.mechanism",), str),
    "sasl.jaas.config": _Spread(
        tuple(f"cluster.sasl.{name}" for name in ("service_name", "username", "keytab", "principal")),
        read_jaas,
        secret=True,
    ),
    "sasl.kerberos.service.name": _Mapped(("cluster.sasl.service_name",), str),
    "auto.commit.enable": _Only(
        ("true",), "what the sink has acknowledged is always committed; there is no mode that does not"
    ),
    "num.consumer.fetchers": _Only(("1",), "one connection a broker carries the fetches of all its partitions"),
    "queued.max.message.chunks": _Only(("2", "10"), "memory is bounded in bytes: set fetch.memory_budget_bytes"),
    "consumer.timeout.ms": _Only(("-1",), "a daemon waits for records for ever"),
    "exclude.internal.topics": _Only(("true",), "a pattern never matches Kafka's internal topics"),
    "offsets.storage": _Mapped(("offsets.storage",), str),
    "dual.commit.enabled": _Mapped(("offsets.dual_commit",), _boolean),
    "offsets.channel.backoff.ms": _Only(("1000",), _CHANNEL),
    "offsets.channel.socket.timeout.ms": _Only(("10000",), _CHANNEL),
    "offsets.commit.max.retries": _Only(("5",), "a commit is tried again for as long as the partition is owned"),
    "shallowiterator.enable": _Only(("false",), "compressed sets are always read record by record"),
    "mirror.topics.whitelist": _Only(("",), _MIRROR),
    "mirror.topics.blacklist": _Only(("",), _MIRROR),
    "mirror.consumer.numthreads": _Only(("1",), _MIRROR),
}

LEGACY_NAMES: Final[Mapping[str, str]] = {
    "groupid": "group.id",
    "zk.connect": "zookeeper.connect",
    "consumerid": "consumer.id",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
    "zk.connectiontimeout.ms": "zookeeper.connection.timeout.ms",
    "zk.synctime.ms": "zookeeper.sync.time.ms",
    "socket.buffersize": "socket.receive.buffer.bytes",
    "fetch.size": "fetch.message.max.bytes",
    "autocommit.enable": "auto.commit.enable",
    "autocommit.interval.ms": "auto.commit.interval.ms",
    "queuedchunks.max": "queued.max.message.chunks",
    "rebalance.retries.max": "rebalance.max.retries",
    "fetcher.backoff.ms": "fetch.wait.max.ms",
    "autooffset.reset": "auto.offset.reset",
}
"""Names of 0.7, with their names from 0.8 on."""
_SAME_NAMES: Final = frozenset({
    "consumer.timeout.ms", "mirror.consumer.numthreads", "mirror.topics.blacklist", "mirror.topics.whitelist",
    "rebalance.backoff.ms", "shallowiterator.enable", "socket.timeout.ms",
})  # fmt: skip
"""Names that are the same in 0.7 and from 0.8 on."""

NEWER_NAMES: Final = frozenset({
    "bootstrap.servers", "check.crcs", "connections.max.idle.ms", "default.api.timeout.ms", "enable.auto.commit",
    "fetch.max.wait.ms", "isolation.level", "max.partition.fetch.bytes", "max.poll.records", "metadata.max.age.ms",
    "receive.buffer.bytes", "request.timeout.ms",
})  # fmt: skip
"""Keys that only Kafka's newer consumer has (org.apache.kafka.clients.consumer.ConsumerConfig), and that change it."""
_NEWER_ADVICE: Final[Mapping[str, str]] = {
    "bootstrap.servers": "write zookeeper.connect",
    "check.crcs": "remove it: checksums are always checked",
    "enable.auto.commit": "write auto.commit.enable=true, or remove it",
    "fetch.max.wait.ms": "write fetch.wait.max.ms",
    "isolation.level": "remove it, and set fetch.isolation in the YAML file",
    "max.partition.fetch.bytes": "write fetch.message.max.bytes",
    "receive.buffer.bytes": "write socket.receive.buffer.bytes",
    "request.timeout.ms": "write socket.timeout.ms",
}
"""The replacement for a key of the newer consumer, if it has one."""
_PREFIX_ADVICE: Final[Mapping[str, str]] = {
    "sasl.": "SASL has security.protocol, sasl.mechanism, sasl.jaas.config and sasl.kerberos.service.name here; "
    "remove it",
    "ssl.": "TLS is set in the YAML file: cluster.tls.enabled, ca_file, certificate_file and key_file (PEM; "
    "docs/security.md has the commands that convert a JKS store)",
}
_ZOOKEEPER_ADVICE: Final[Mapping[str, str]] = {
    "zookeeper.ssl.": "TLS to ZooKeeper is set in the YAML file: cluster.zookeeper_tls.enabled, ca_file, "
    "certificate_file and key_file (PEM)",
    "zookeeper.sasl.": "SASL at ZooKeeper is set in the YAML file: cluster.zookeeper_sasl, as the JAAS file's section "
    "Client has it (docs/security.md)",
    "zookeeper.set.acl": "it is of brokers; a consumer protects what it creates as cluster.zookeeper_acl says: remove it",
}
"""Advice for keys of a secured ZooKeeper, by prefix: Java's consumer takes them from the JVM, if at all."""
_CLOSE_KEY: Final = 0.85
"""Similarity from which an unknown key counts as misspelled. A team's own keys may resemble Kafka's a little."""


def read_properties(path: Path) -> Layer:
    """Return the settings that a Java ``consumer.properties`` gives.

    All mistakes of the file are in the result's ``problems``. If the file has no ``auto.offset.reset``, a partition
    without a committed offset begins at the log's end (``largest``), as with the Java consumer of 0.8 and later, or at
    its start (``smallest``), as with that of 0.7; a committed offset that is out of range stops the partition. Raises
    ConfigError for a file that cannot be read.
    """
    try:
        with path.open(encoding="latin-1") as file:
            entries = list(javaproperties.parse(file))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{path}: {error}") from error
    reader = _Reader(path)
    line = 1
    for entry in entries:
        if isinstance(entry, javaproperties.KeyValue):
            reader.add(entry.key, entry.value.strip(), line)
        line += entry.source.count("\n")
    return reader.finish()


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file: value, line number, and key as it is written."""

    text: str
    number: int
    name: str


class _Reader:
    """Translates the lines of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, _Line] = {}
        self._problems: list[tuple[int, Problem]] = []
        self._unknown: dict[str, int] = {}

    def add(self, name: str, text: str, number: int) -> None:
        """Add one line, under its name from 0.8 on."""
        key = LEGACY_NAMES.get(name, name)
        if (earlier := self._lines.get(key)) is None:
            self._lines[key] = _Line(text, number, name)
        elif earlier.name == name:
            message = f"{name} is given twice, here and in line {earlier.number}: Java takes the last; remove one"
            self._refuse(number, message, key)
        else:
            message = f"{name} is the same key as {earlier.name} in line {earlier.number}; remove one"
            self._refuse(number, message, key)

    def _find_legacy(self) -> _Line | None:
        """Return the first line with a name of 0.7; None if there is none."""
        return next((line for key, line in self._lines.items() if line.name != key), None)

    def _refuse_mixture(self, legacy: _Line) -> None:
        """Add a problem if there are keys that the consumer of 0.7 does not have."""
        others = [
            (key, line.number)
            for key, line in self._lines.items()
            if line.name == key and key in KEYS and key not in _SAME_NAMES
        ]
        if others:
            named = ", ".join(f"{key} (line {number})" for key, number in others)
            self._refuse(
                legacy.number,
                f"{legacy.name} is a name of Kafka 0.7, and these are of 0.8 and later: {named}; "
                "write all names as the brokers' generation has them",
            )

    def finish(self) -> Layer:
        """Return the settings; of keys that set the same setting, the later in ``KEYS`` wins."""
        # Java's default, which no line of the file sets
        flat: dict[str, object] = {"offsets.on_missing": "latest"}
        places: dict[tuple[str, ...], str] = {
            ("offsets", "on_missing"): f"{self._path}, as Java's default of auto.offset.reset"
        }
        if (legacy := self._find_legacy()) is not None:
            self._refuse_mixture(legacy)
            flat["offsets.on_missing"] = "earliest"
            flat["cluster.generation"] = "legacy"
            places["offsets", "on_missing"] = f"{self._path}, as Java's default in 0.7 of autooffset.reset"
            places["cluster", "generation"] = f"{self._path}, line {legacy.number}, whose name is of Kafka 0.7"
        self._refuse_useless_sasl()
        unknown = [key for key in self._lines if key not in KEYS]
        for key in [*unknown, *(key for key in KEYS if key in self._lines)]:
            line = self._lines[key]
            for ours, value in self._translate(key, line):
                flat[ours] = value
                places[tuple(ours.split("."))] = f"{self._path}, line {line.number}"
        partition_bytes = flat.get("fetch.max_partition_bytes")
        if isinstance(partition_bytes, int):
            flat["fetch.max_message_bytes"] = max(67108864, partition_bytes)
            places["fetch", "max_message_bytes"] = places["fetch", "max_partition_bytes"]
        doubts = []
        if self._unknown:
            named = ", ".join(f"{key} (line {number})" for key, number in self._unknown.items())
            doubts.append(
                Doubt(
                    name="properties-unknown",
                    text=f"{self._path}: neither consumerd nor Kafka's high-level consumer has these keys; they are "
                    f"ignored, as Java does: {named}",
                )
            )
        problems = [problem for _, problem in sorted(self._problems, key=lambda item: item[0])]
        return Layer(name=str(self._path), values=_nest(flat), places=places, problems=problems, doubts=doubts)

    def _translate(self, key: str, line: _Line) -> Iterator[tuple[str, object]]:
        rule, text = KEYS.get(key), line.text
        if rule is None:
            self._refuse_unknown(key, line)
        elif isinstance(rule, _Only):
            if text not in rule.accepted:
                self._refuse(line.number, f"{line.name}={text} is refused: {rule.reason}", key)
        else:
            if isinstance(rule, _Spread):
                yield from self._spread(rule, key, line)
                return
            try:
                value = rule.convert(text)
            except ValueError as error:
                unit = "bytes" if key.endswith("bytes") else "milliseconds" if key.endswith("ms") else ""
                reason = f"expected a whole number{f' of {unit}, without a unit, as Kafka has it' if unit else ''}"
                self._refuse(line.number, f"{line.name}={text}: {reason if rule.convert is int else error}", key)
                return
            yield from dict.fromkeys(rule.keys, value).items()
            if rule.newer or (key == _STRATEGY and "." in text):
                yield "group.membership", "kafka"

    def _spread(self, rule: _Spread, key: str, line: _Line) -> Iterator[tuple[str, object]]:
        try:
            yield from rule.spread(line.text).items()
        except ValueError as error:
            shown = line.name if rule.secret else f"{line.name}={line.text}"
            self._refuse(line.number, f"{shown}: {error}", key)

    def _refuse_useless_sasl(self) -> None:
        """Refuse the keys of SASL if ``security.protocol`` does not ask for it.

        They have no effect in Java then.
        """
        protocol = self._lines.get(_PROTOCOL)
        if protocol is not None and "SASL" in protocol.text:
            return
        for key in [key for key in self._lines if key.startswith("sasl.") and key in KEYS]:
            line = self._lines.pop(key)
            message = (
                f"{line.name} has no effect without {_PROTOCOL}=SASL_PLAINTEXT or SASL_SSL: add it, or remove this"
            )
            self._refuse(line.number, message, key)

    def _refuse_unknown(self, key: str, line: _Line) -> None:
        secured = next((text for prefix, text in _ZOOKEEPER_ADVICE.items() if key.startswith(prefix)), None)
        if secured is not None:
            self._refuse(line.number, f"{key} has no effect in the high-level consumer: {secured}")
            return
        advice = next((text for prefix, text in _PREFIX_ADVICE.items() if key.startswith(prefix)), None)
        if key in NEWER_NAMES or advice is not None:
            advice = advice or _NEWER_ADVICE.get(key, "remove it")
            message = (
                f"{key} is of Kafka's newer consumer; the high-level consumer and consumerd do not know it: {advice}"
            )
            self._refuse(line.number, message, *(one for one in KEYS if one in advice.split()))
        elif (meant := guess(key, KEYS, cutoff=_CLOSE_KEY)) is not None:
            self._refuse(line.number, f"{key} is no key of the high-level consumer; did you mean {meant}?", meant)
        else:
            self._unknown[key] = line.number

    def _refuse(self, number: int, message: str, *keys: str) -> None:
        explains = tuple(path for key in keys for path in _find_ours(key))
        self._problems.append((number, Problem(text=f"{self._path}, line {number}: {message}", explains=explains)))


def _find_ours(key: str) -> Sequence[KeyPath]:
    """Return the settings that a Kafka key sets."""
    rule = KEYS.get(key)
    return [tuple(ours.split(".")) for ours in rule.keys] if isinstance(rule, (_Mapped, _Spread)) else []


def _nest(flat: Mapping[str, object]) -> dict[str, object]:
    nested: dict[str, object] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        inner = nested
        for section in sections:
            below = inner.setdefault(section, {})
            assert isinstance(below, dict)
            inner = below
        inner[name] = value
    return nested
