"""The Java consumer's own ``consumer.properties``, mapped onto our settings.

Every key of the high-level consumer (kafka.consumer.ConsumerConfig and kafka.utils.ZKConfig, 0.7 to 1.1) is either
mapped, or accepted at the one value that means what we do anyway, or refused with the reason. Of other keys those of
Kafka's newer consumer are refused, since whoever sets them relies on them; what is nobody's (a team's own, serializers,
metrics reporters) is ignored and named, as Java does (kafka.utils.VerifiableProperties).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties

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
            "set group.assignor to roundrobin-0.8 or roundrobin-1.0, as the group's Java members are, and remove this key"
        )
    raise ValueError("expected range or roundrobin")


@dataclass(frozen=True, slots=True)
class _Mapped:
    """The key sets one or more of our keys."""

    keys: tuple[str, ...]
    convert: Convert = int


@dataclass(frozen=True, slots=True)
class _Only:
    """The key is accepted at the values that change nothing, refused at others, for ``reason``."""

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
"""Names of 0.7, and what they became in 0.8."""


NEWER_NAMES: Final = frozenset({
    "bootstrap.servers", "check.crcs", "connections.max.idle.ms", "default.api.timeout.ms", "enable.auto.commit",
    "fetch.max.wait.ms", "heartbeat.interval.ms", "isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms",
    "max.poll.records", "metadata.max.age.ms", "receive.buffer.bytes", "request.timeout.ms", "security.protocol",
    "session.timeout.ms",
})  # fmt: skip
"""Keys that only Kafka's newer consumer has (org.apache.kafka.clients.consumer.ConsumerConfig), and that change what it does."""
_NEWER_PREFIXES: Final = ("sasl.", "ssl.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """A file as it was read: our settings, nested, and the keys that mean nothing to us or to Kafka's consumers."""

    settings: Mapping[str, object]
    unknown: tuple[str, ...]


def read_properties(path: Path) -> Properties:
    """Return our settings as the file gives them.

    A file without ``auto.offset.reset`` means ``largest`` to the Java consumer, so it does here, for a missing offset;
    an offset out of range still stops the partition, unless the file says what to do. Raises ConfigError, with the
    line.
    """
    try:
        with path.open(encoding="latin-1") as file:
            entries = list(javaproperties.parse(file))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{path}: {error}") from error
    values: dict[str, tuple[str, str]] = {}
    line = 1
    for entry in entries:
        if isinstance(entry, javaproperties.KeyValue):
            values[entry.key] = (entry.value.strip(), f"{path}, line {line}")
        line += entry.source.count("\n")
    flat: dict[str, object] = {"offsets.on_missing": "latest"}
    for key in sorted(values, key=_precedence):
        text, where = values[key]
        flat.update(_translate(key, text, where))
    unknown = tuple(key for key in values if _is_unknown(key))
    flat.setdefault("fetch.max_message_bytes", max(67108864, _as_int(flat.get("fetch.max_partition_bytes"))))
    return Properties(settings=_nest(flat), unknown=unknown)


def _is_unknown(key: str) -> bool:
    return not (key in KEYS or key in LEGACY_NAMES or _is_newer(key))


def _is_newer(key: str) -> bool:
    return key in NEWER_NAMES or key.startswith(_NEWER_PREFIXES)


def _precedence(key: str) -> int:
    names = list(KEYS)
    return names.index(key) if key in KEYS else -1


def _as_int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _translate(key: str, text: str, where: str) -> dict[str, object]:
    if _is_unknown(key):
        return {}
    rule = KEYS.get(key)
    if rule is None:
        modern = LEGACY_NAMES.get(key)
        if modern is not None:
            raise ConfigError(f"{where}: {key} is a name of Kafka 0.7; brokers of 0.8 and later: write {modern}")
        raise ConfigError(
            f"{where}: {key} is of Kafka's newer consumer, whose groups live in the brokers; the high-level consumer and "
            "consumerd do not know it: remove it"
        )
    if isinstance(rule, _Only):
        if text in rule.accepted:
            return {}
        raise ConfigError(f"{where}: {key}={text} is refused: {rule.reason}")
    try:
        value = rule.convert(text)
    except ValueError as error:
        reason = "expected a whole number" if rule.convert is int else str(error)
        raise ConfigError(f"{where}: {key}={text}: {reason}") from None
    return dict.fromkeys(rule.keys, value)


def _nest(flat: Mapping[str, object]) -> dict[str, object]:
    nested: dict[str, object] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        inner = nested.setdefault(section, {})
        assert isinstance(inner, dict)
        inner[name] = value
    return nested
