# SPDX-License-Identifier: Apache-2.0
"""Contents of the znodes of Kafka 0.8 and later, encoded and parsed.

Pure. Encoders write byte for byte what the Java clients of 0.8 to 1.1 write, with one exception. Clients of 1.0 and 1.1
escape a pattern of topics twice in JSON, and such a pattern matches no topic. It is escaped once here, as clients up to
0.11 do. Parsers accept another key order, unknown fields, and numbers as strings. For anything else they raise
:class:`MalformedZnode`, and no other error.

Sources: Kafka's ``TopicCount.scala``, ``TopicFilter.scala``, ``Broker.scala``, ``EndPoint.scala``, ``ZkData.scala``,
and registries recorded from 0.8.2.2 to 2.8.2.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CoordinationError
from consumerd.model import BrokerId, PartitionKey, ThreadId, is_topic_id

_DECIMAL: Final = re.compile(r"-?[0-9]{1,19}")
_BROKER_NAME: Final = re.compile(r"[0-9]{1,10}")
LEGACY_LIST: Final = re.compile(r"(?P<sign>[*!])(?P<streams>[0-9]{1,10})(?P=sign)(?P<expression>.*)", re.DOTALL)
"""White list ``*<streams>*<regex>`` or black list ``!<streams>!<regex>``, as members of Kafka 0.7 register them."""
_HALF_CHARACTER: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ENDPOINT: Final = re.compile(r"(?P<listener>[^:/]*)://\[?(?P<host>[^/\[\]]*?)\]?:(?P<port>-?[0-9]{1,5})")
_PROTOCOL_ALIASES: Final = {"PLAINTEXTSASL": "SASL_PLAINTEXT"}
"""Names of security protocols that HDP's brokers register, with Apache's names."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
MOST_STREAMS: Final = 100_000
"""Streams of one registration. Each is a thread of a Java member, which dies long before that many."""
_NO_LEADER: Final = -1
_SHOWN: Final = 40
"""Characters of a node's text that a message quotes."""

_JsonObject = Mapping[str, object]


class MalformedZnode(CoordinationError):
    """Raised for a znode whose content has the format of no Kafka release.

    The message does not name the znode's path.
    """


class LegacyRegistration(MalformedZnode):
    """Raised for a member's registration of Kafka 0.6 or 0.7.

    No later member can read it.
    """


class Pattern(enum.Enum):
    """Kind of a member's subscription; the values are the field ``pattern`` of the member's node."""

    STATIC = "static"
    """The keys of the subscription are topics."""
    WHITE_LIST = "white_list"
    """The one key of the subscription is an expression: topics that match it."""
    BLACK_LIST = "black_list"
    """The one key of the subscription is an expression: topics that do not match it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRegistration:
    """Content of a member's node under ``/consumers/<group>/ids``: what it subscribes to.

    ``subscription`` has the number of streams (consumer threads) by topic, or by one regular expression of topics.
    ``pattern`` says which of the two. ``timestamp_ms``, in ms since the epoch, is the time of registration; None if the
    node has none that can be read. Java members ignore it.
    """

    pattern: Pattern
    subscription: Mapping[str, int]
    timestamp_ms: int | None

    @property
    def escaped_twice(self) -> bool:
        r"""True if each backslash is doubled, as by clients of 1.0 and 1.1.

        Such a client registers ``te-\d+`` as ``te-\\d+``. Every Java member reads the doubled form, so consumerd uses
        it unchanged, too.
        """
        return self.pattern is not Pattern.STATIC and any("\\\\" in text for text in self.subscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One listener of a broker: its name, protocol, host and port.

    ``protocol`` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    """

    listener: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """Content of a broker's node under ``/brokers/ids``.

    ``version`` is that of the node's format; 0 for the one of Kafka 0.6 and 0.7. ``endpoints``, the listeners, is never
    empty. ``rack`` and ``timestamp_ms`` (time of registration, ms since the epoch) are None if the node lacks them.
    """

    id: BrokerId
    endpoints: tuple[Endpoint, ...]
    version: int
    rack: str | None = None
    timestamp_ms: int | None = None

    def find_endpoint(self, protocol: str) -> Endpoint | None:
        """Return the first listener with this protocol, such as ``PLAINTEXT``; None without one."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStateNode:
    """Content of a partition's ``state`` node: leader, epochs, in-sync replicas.

    ``leader`` is None if the partition has no leader now (-1 in the node). The epochs are Kafka's leader epoch and
    controller epoch.
    """

    leader: BrokerId | None
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    controller_epoch: int


def encode_registration(registration: MemberRegistration) -> bytes:
    """Return the content of a member's node under ``/consumers/<group>/ids``, as Java writes it.

    JSON with four keys in Java's order, without spaces, the timestamp as a string.
    """
    payload = {
        "version": 1,
        "subscription": dict(registration.subscription),
        "pattern": registration.pattern.value,
        "timestamp": str(registration.timestamp_ms or 0),
    }
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def parse_registration(data: bytes) -> MemberRegistration:
    """Parse a member's node under ``/consumers/<group>/ids`` as a Java member does.

    An unknown kind of pattern is read as ``static``, as in Java, and so is a subscription without topics. Raises
    MalformedZnode; LegacyRegistration for a member of Kafka 0.6 or 0.7.
    """
    try:
        payload = read_object(data)
    except MalformedZnode:
        if LEGACY_LIST.fullmatch(read_text(data)):
            raise _refuse_legacy() from None
        raise
    if payload and all(type(count) is int for count in payload.values()):
        raise _refuse_legacy()
    subscription = {topic: _as_int(count, "streams") for topic, count in _get_object(payload, "subscription").items()}
    if any(count < 1 for count in subscription.values()):
        raise MalformedZnode("subscription: expected at least one stream for each key")
    if sum(subscription.values()) > MOST_STREAMS:
        raise MalformedZnode(f"subscription: more than {MOST_STREAMS} streams, which no member can have")
    text = payload.get("pattern")
    if not isinstance(text, str):
        raise MalformedZnode(f"pattern: expected a string, got {type(text).__name__}")
    known = {pattern.value: pattern for pattern in Pattern}
    pattern = known.get(text, Pattern.STATIC) if subscription else Pattern.STATIC
    if pattern is not Pattern.STATIC:
        expression, streams = next(iter(subscription.items()))
        subscription = {expression: streams}
    return MemberRegistration(pattern=pattern, subscription=subscription, timestamp_ms=_find_int(payload, "timestamp"))


def _refuse_legacy() -> LegacyRegistration:
    return LegacyRegistration("a registration in the form of Kafka 0.7, which members of 0.8 and later cannot read")


def normalise_pattern(text: str) -> str:
    """Return a topic expression as the Java consumer rewrites it before use.

    Quotes around it and all spaces are removed, and each comma becomes ``|``. Example: ``"a, b"`` becomes ``a|b``.
    """
    return text.strip().replace(",", "|").replace(" ", "").strip("\"'")


def find_broker_id(name: str) -> BrokerId | None:
    """Return the broker id in a node's name; None if it is no id.

    Brokers' nodes are under ``/brokers/ids``. Example: ``3`` is broker 3.
    """
    if not _BROKER_NAME.fullmatch(name) or int(name) > _INT32_MAX:
        return None
    return BrokerId(int(name))


def parse_broker(broker: BrokerId, data: bytes) -> BrokerRegistration:
    """Parse a broker's node of Kafka 0.8 or later.

    Raises MalformedZnode if it has no address.
    """
    payload = read_object(data)
    endpoints = _read_endpoints(payload)
    if not endpoints:
        host, port = payload.get("host"), _find_int(payload, "port")
        if not isinstance(host, str) or not host or port is None or not 0 < port <= 65535:
            raise MalformedZnode("broker: expected endpoints, or a host and a port")
        endpoints = (Endpoint(listener="PLAINTEXT", protocol="PLAINTEXT", host=host, port=port),)
    rack = payload.get("rack")
    return BrokerRegistration(
        id=broker,
        endpoints=endpoints,
        version=_find_int(payload, "version") or 1,
        rack=rack if isinstance(rack, str) else None,
        timestamp_ms=_find_int(payload, "timestamp"),
    )


def parse_topic(data: bytes) -> Mapping[PartitionKey, tuple[BrokerId, ...]]:
    """Parse a topic's node: ids of the replicas' brokers by partition, in numerical order.

    Raises MalformedZnode.
    """
    found: dict[PartitionKey, tuple[BrokerId, ...]] = {}
    for text, replicas in _get_object(read_object(data), "partitions").items():
        try:
            key = PartitionKey.parse(text)
        except ValueError as error:
            raise MalformedZnode(str(error)) from error
        if key.broker is not None:
            raise MalformedZnode(f"partition key {text!r}: expected a number")
        found[key] = _as_brokers(replicas, f"replicas of partition {text}")
    return dict(sorted(found.items()))


def parse_topic_id(data: bytes) -> str | None:
    """Return the topic id in a topic's node, a UUID in base64 for URLs.

    None if the node has no topic id, or not a valid one. Brokers before 2.8 write none. Raises MalformedZnode if the
    node is not JSON.
    """
    text = read_object(data).get("topic_id")
    return text if isinstance(text, str) and is_topic_id(text) else None


def parse_topic_settings(data: bytes) -> Mapping[str, str]:
    """Return a topic's own settings from ``/config/topics/T``; none if it is unreadable, as in brokers.

    The content is ``{"version":1,"config":{"retention.ms":"86400000"}}``.
    """
    try:
        config = json.loads(data)["config"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {key: str(value) for key, value in config.items()} if isinstance(config, dict) else {}


def parse_partition_state(data: bytes) -> PartitionStateNode:
    """Parse a partition's ``state`` node. Raises MalformedZnode."""
    payload = read_object(data)
    leader = _as_int32(payload.get("leader"), "leader")
    return PartitionStateNode(
        leader=None if leader == _NO_LEADER else BrokerId(leader),
        leader_epoch=_as_int32(payload.get("leader_epoch"), "leader_epoch"),
        isr=_as_brokers(payload.get("isr"), "isr"),
        controller_epoch=_as_int32(payload.get("controller_epoch", 0), "controller_epoch"),
    )


def encode_offset(offset: int) -> bytes:
    """Return the content of an offset node: the next offset to read, in decimal."""
    return b"%d" % offset


def parse_offset(data: bytes) -> int:
    """Parse an offset node, which holds the next offset to read.

    A negative number is returned as it stands. Raises MalformedZnode.
    """
    text = read_text(data).strip()
    try:
        return _as_int(text, "offset")
    except MalformedZnode:
        raise MalformedZnode(f"offset: expected a number, got {text!r:.{_SHOWN}}") from None


def encode_owner(thread: ThreadId) -> bytes:
    """Return the content of a partition's owner node: the owner's thread id."""
    return thread.encode()


def parse_cluster_id(data: bytes) -> str:
    """Return the cluster id in the node ``/cluster/id``. Raises MalformedZnode."""
    text = read_object(data).get("id")
    if not isinstance(text, str):
        raise MalformedZnode(f"cluster id: expected a string, got {type(text).__name__}")
    return text


def parse_controller(data: bytes) -> BrokerId:
    """Return the controller's broker id in the node ``/controller``. Raises MalformedZnode."""
    return BrokerId(_as_int32(read_object(data).get("brokerid"), "brokerid"))


def _read_endpoints(payload: _JsonObject) -> tuple[Endpoint, ...]:
    """Return the endpoints that can be read, and leave out the others."""
    listed = payload.get("endpoints")
    protocols = payload.get("listener_security_protocol_map")
    if not isinstance(listed, list):
        return ()
    if not isinstance(protocols, dict):
        protocols = {}
    found = []
    for text in listed:
        match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
        if match is None or not match["host"] or not 0 < int(match["port"]) <= 65535:
            continue
        # before listener names (0.10.2) the name was the protocol
        protocol = str(protocols.get(match["listener"], match["listener"]))
        found.append(
            Endpoint(
                listener=match["listener"],
                protocol=_PROTOCOL_ALIASES.get(protocol, protocol),
                host=match["host"],
                port=int(match["port"]),
            )
        )
    return tuple(found)


def read_text(data: bytes) -> str:
    """Return the text of a node. Raises MalformedZnode if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedZnode(f"expected UTF-8, byte {error.start} is not") from error


def read_object(data: bytes) -> Mapping[str, object]:
    """Return the JSON object in a node, whose strings can all be encoded.

    JSON can escape half a surrogate pair, which no encoding can write. Raises MalformedZnode for such text, and if it
    is not a JSON object.
    """
    text = read_text(data)
    try:
        payload: object = json.loads(text)
        if _HALF_CHARACTER.search(text):
            json.dumps(payload, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedZnode(f"expected a JSON object: {error}") from error
    if not isinstance(payload, dict):
        raise MalformedZnode(f"expected a JSON object, got {type(payload).__name__}")
    return payload


def _get_object(payload: _JsonObject, key: str) -> _JsonObject:
    value = payload.get(key)
    if not isinstance(value, dict):
        raise MalformedZnode(f"{key}: expected a JSON object, got {type(value).__name__}")
    return value


def _as_int(value: object, what: str) -> int:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _INT64_MAX:
        raise MalformedZnode(f"{what}: expected a number, got {type(value).__name__}")
    return value


def _as_int32(value: object, what: str) -> int:
    """Read an id or an epoch, which have 32 bits in requests."""
    number = _as_int(value, what)
    if abs(number) > _INT32_MAX:
        raise MalformedZnode(f"{what}: expected a number of 32 bits, got a larger one")
    return number


def _find_int(payload: _JsonObject, key: str) -> int | None:
    try:
        return _as_int(payload.get(key), key)
    except MalformedZnode:
        return None


def _as_brokers(value: object, what: str) -> tuple[BrokerId, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise MalformedZnode(f"{what}: expected a list, got {type(value).__name__}")
    return tuple(BrokerId(_as_int32(broker, what)) for broker in value)
