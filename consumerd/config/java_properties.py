# SPDX-License-Identifier: Apache-2.0
"""The Java consumer's own ``consumer.properties``, mapped onto our settings.

Each key of the high-level consumer (kafka.consumer.ConsumerConfig and kafka.utils.ZKConfig, 0.7 to 1.1) is mapped, or
accepted at the one value that matches our behaviour, or refused with a reason. Keys of Kafka's newer consumer are
refused, since a file with them relies on their effect. Other keys (a team's own, serializers, metrics reporters) are
ignored and listed, as Java does (kafka.utils.VerifiableProperties), unless they look misspelled.

Numbers are Kafka's: milliseconds and bytes without units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties

from consumerd.config.origins import Doubt, KeyPath, Layer, Problem
from consumerd.config.schema import guess
from consumerd.errors import ConfigError

Convert = Callable[[str], object]


def _reset(value: str) -> str:
    try:
        return {"smallest": "earliest", "largest": "latest"}[value]
    except KeyError:
        raise ValueError("expected smallest or largest") from None


def _assignor(value: str) -> str:
    if value == "range":
        return value
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


@dataclass(frozen=True, slots=True)
class _Only:
    """A key accepted at values that change nothing, and refused at others, for ``reason``."""

    accepted: tuple[str, ...]
    reason: str


_CHANNEL: Final = "it belongs to offsets kept in Kafka, which are not supported yet"
_MIRROR: Final = "it did nothing in the Java consumer either; remove it"

KEYS: Final[Mapping[str, _Mapped | _Only]] = {
    "group.id": _Mapped(("group.id",), str),
    "zookeeper.connect": _Mapped(("cluster.zookeeper",), str),
    "consumer.id": _Mapped(("group.consumer_id",), str),
    "zookeeper.session.timeout.ms": _Mapped(("group.session_timeout_ms",)),
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
    "partition.assignment.strategy": _Mapped(("group.assignor",), _assignor),
    "security.protocol": _Only(
        ("PLAINTEXT",),
        "plain text (PLAINTEXT) and TLS to the brokers are supported, SASL is not yet: for TLS remove this line "
        "and set "
        "cluster.tls.enabled and cluster.tls.ca_file (PEM) in the YAML file",
    ),
    "auto.commit.enable": _Only(
        ("true",), "what the sink has acknowledged is always committed; there is no mode that does not"
    ),
    "num.consumer.fetchers": _Only(("1",), "one connection a broker carries the fetches of all its partitions"),
    "queued.max.message.chunks": _Only(("2",), "memory is bounded in bytes: set fetch.memory_budget_bytes"),
    "consumer.timeout.ms": _Only(("-1",), "a daemon waits for records for ever"),
    "exclude.internal.topics": _Only(("true",), "a pattern never matches Kafka's internal topics"),
    "offsets.storage": _Only(("zookeeper",), "offsets kept in Kafka are not supported yet"),
    "dual.commit.enabled": _Only(("false",), _CHANNEL),
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


NEWER_NAMES: Final = frozenset({
    "bootstrap.servers", "check.crcs", "connections.max.idle.ms", "default.api.timeout.ms", "enable.auto.commit",
    "fetch.max.wait.ms", "heartbeat.interval.ms", "isolation.level", "max.partition.fetch.bytes",
    "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms", "receive.buffer.bytes", "request.timeout.ms",
    "session.timeout.ms",
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
    "session.timeout.ms": "write zookeeper.session.timeout.ms",
}
"""The replacement for a key of the newer consumer, if it has one."""
_PREFIX_ADVICE: Final[Mapping[str, str]] = {
    "sasl.": "SASL is not supported yet: only listeners without it (PLAINTEXT, SSL) can be used",
    "ssl.": "TLS is set in the YAML file: cluster.tls.enabled, ca_file, certificate_file and key_file (PEM, not JKS)",
}
_CLOSE_KEY: Final = 0.85
"""Similarity from which an unknown key counts as misspelled. A team's own keys may resemble Kafka's a little."""


def read_properties(path: Path) -> Layer:
    """Return our settings as the file gives them, with all of its mistakes.

    A file without ``auto.offset.reset`` means ``largest``, as for the Java consumer, if there is no committed offset. A
    committed offset that is out of range stops the partition, unless the file sets a policy. Raises ConfigError for a
    file that cannot be read.
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
    text: str
    number: int


class _Reader:
    """Translates the lines of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, _Line] = {}
        self._problems: list[tuple[int, Problem]] = []
        self._unknown: dict[str, int] = {}

    def add(self, key: str, text: str, number: int) -> None:
        """Add one line."""
        if key in self._lines:
            earlier = self._lines[key].number
            message = f"{key} is given twice, here and in line {earlier}: Java takes the last; remove one"
            self._refuse(number, message, key)
        else:
            self._lines[key] = _Line(text, number)

    def finish(self) -> Layer:
        """Return the settings; of keys that set the same setting, the later in ``KEYS`` wins."""
        # Java's default, which no line of the file sets
        flat: dict[str, object] = {"offsets.on_missing": "latest"}
        places: dict[tuple[str, ...], str] = {
            ("offsets", "on_missing"): f"{self._path}, as Java's default of auto.offset.reset"
        }
        for key, line in sorted(self._lines.items(), key=lambda item: _precedence(item[0])):
            for ours, value in self._translate(key, line):
                flat[ours] = value
                places[tuple(ours.split("."))] = f"{self._path}, line {line.number}"
        if "fetch.max_partition_bytes" in flat:
            flat["fetch.max_message_bytes"] = max(67108864, _as_int(flat["fetch.max_partition_bytes"]))
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
                self._refuse(line.number, f"{key}={text} is refused: {rule.reason}", key)
        else:
            try:
                value = rule.convert(text)
            except ValueError as error:
                unit = "bytes" if key.endswith("bytes") else "milliseconds" if key.endswith("ms") else ""
                reason = f"expected a whole number{f' of {unit}, without a unit, as Kafka has it' if unit else ''}"
                self._refuse(line.number, f"{key}={text}: {reason if rule.convert is int else error}", key)
                return
            yield from dict.fromkeys(rule.keys, value).items()

    def _refuse_unknown(self, key: str, line: _Line) -> None:
        if (modern := LEGACY_NAMES.get(key)) is not None:
            self._refuse(line.number, f"{key} is a name of Kafka 0.7; brokers of 0.8 and later: write {modern}", modern)
            return
        advice = next((text for prefix, text in _PREFIX_ADVICE.items() if key.startswith(prefix)), None)
        if key in NEWER_NAMES or advice is not None:
            advice = advice or _NEWER_ADVICE.get(key, "remove it")
            message = (
                f"{key} is of Kafka's newer consumer, whose groups live in the brokers; the high-level consumer "
                f"and consumerd do not know it: {advice}"
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
    return [tuple(ours.split(".")) for ours in rule.keys] if isinstance(rule, _Mapped) else []


def _precedence(key: str) -> int:
    names = list(KEYS)
    return names.index(key) if key in KEYS else -1


def _as_int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _nest(flat: Mapping[str, object]) -> dict[str, object]:
    nested: dict[str, object] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        inner = nested.setdefault(section, {})
        assert isinstance(inner, dict)
        inner[name] = value
    return nested
