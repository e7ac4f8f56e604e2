# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a modern (0.8 and later) registry hold: values to bytes and back.

Pure. What is written is byte for byte what the Java clients of 0.8 to 1.1 write, with one exception: a pattern is
escaped as JSON asks, as clients up to 0.11 do; clients of 1.0 and 1.1 escape twice, and such a pattern matches nothing.
What is read may be anything: other key order, unknown fields, numbers as strings. What makes no sense raises
:class:`MalformedZnode`, and nothing else is ever raised.

Sources: Kafka's ``TopicCount.scala``, ``TopicFilter.scala``, ``Broker.scala``, ``EndPoint.scala``, ``ZkData.scala``, and
registries recorded from 0.8.2.2 to 2.8.2.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CoordinationError
from consumerd.model import BrokerId, Generation, PartitionKey, ThreadId

_DECIMAL: Final = re.compile(r"-?[0-9]{1,19}")
_BROKER_NAME: Final = re.compile(r"[0-9]{1,10}")
_LEGACY_BROKER: Final = re.compile(r"[^:{]*:(?P<host>[^:]+):(?P<port>[0-9]{1,5})(?::(?:true|false))?")
"""``creator:host:port``; Jafka adds whether topics are created automatically."""
_LEGACY_LIST: Final = re.compile(r"(?P<sign>[*!])[0-9]+(?P=sign).*", re.DOTALL)
"""White list ``*<streams>*<regex>``, black list ``!<streams>!<regex>``."""
_HALF_CHARACTER: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ENDPOINT: Final = re.compile(r"(?P<listener>[^:/]*)://\[?(?P<host>[^/\[\]]*?)\]?:(?P<port>-?[0-9]{1,5})")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_MOST_STREAMS: Final = 100_000
"""Streams of one registration. Each is a thread of a Java member, which dies long before that many."""
_NO_LEADER: Final = -1
_SHOWN: Final = 40
"""Characters of a node's text that a message quotes."""

_JsonObject = Mapping[str, object]


class MalformedZnode(CoordinationError):
    """A node holds what no release of Kafka writes there; the message says what, the caller knows the path."""


class LegacyRegistration(MalformedZnode):
    """A member of Kafka 0.6 or 0.7 has registered here: no member of 0.8 and later can read it."""


class Pattern(enum.Enum):
    """How a member's subscription is to be read; the values are those of the znode."""

    STATIC = "static"
    """The keys are topics."""
    WHITE_LIST = "white_list"
    """The one key is an expression: topics that match it."""
    BLACK_LIST = "black_list"
    """The one key is an expression: topics that do not match it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRegistration:
    """A member's node under ``/consumers/G/ids``: streams by topic, or by the one expression of a list.

    ``timestamp_ms`` is None where the node has none that can be read; Java members do not look at it.
    """

    pattern: Pattern
    subscription: Mapping[str, int]
    timestamp_ms: int | None

    @property
    def escaped_twice(self) -> bool:
        r"""Whether the expression looks like ``te-\\d+``, which a 1.0 or 1.1 client made of ``te-\d+``.

        It is to be taken as it stands all the same: that is how every Java member reads it.
        """
        return self.pattern is not Pattern.STATIC and any("\\\\" in text for text in self.subscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One listener of a broker; ``protocol`` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    listener: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker's node under ``/brokers/ids``; ``version`` is that of the payload's format.

    ``endpoints`` is never empty. A broker without a plaintext listener registers host null and port -1 beside them.
    """

    id: BrokerId
    endpoints: tuple[Endpoint, ...]
    version: int
    rack: str | None = None
    timestamp_ms: int | None = None

    def find_endpoint(self, protocol: str) -> Endpoint | None:
        """Return the first listener that speaks ``protocol``."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStateNode:
    """A partition's ``state`` node; ``leader`` is None while there is none (-1 in the node)."""

    leader: BrokerId | None
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    controller_epoch: int


def encode_registration(registration: MemberRegistration) -> bytes:
    """Encode a member's node as the Java client does: four keys in its order, no spaces, the timestamp as a string."""
    payload = {
        "version": 1,
        "subscription": dict(registration.subscription),
        "pattern": registration.pattern.value,
        "timestamp": str(registration.timestamp_ms or 0),
    }
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def parse_registration(data: bytes) -> MemberRegistration:
    """Read a member's node as a Java member would (an unknown pattern, or an empty list, is static there).

    Raises MalformedZnode, LegacyRegistration.
    """
    try:
        payload = _read_object(data)
    except MalformedZnode:
        if _LEGACY_LIST.fullmatch(_read_text(data)):
            raise _refuse_legacy() from None
        raise
    if payload and all(type(count) is int for count in payload.values()):
        raise _refuse_legacy()
    subscription = {topic: _as_int(count, "streams") for topic, count in _get_object(payload, "subscription").items()}
    if any(count < 1 for count in subscription.values()):
        raise MalformedZnode("subscription: expected at least one stream for each key")
    if sum(subscription.values()) > _MOST_STREAMS:
        raise MalformedZnode(f"subscription: more than {_MOST_STREAMS} streams, which no member can have")
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
    """Return an expression as the Java consumer rewrites it before it registers or applies it.

    Outer quotes and all spaces go (settings files bring them), and a comma means "or".
    """
    return text.strip().replace(",", "|").replace(" ", "").strip("\"'")


def find_broker_id(name: str) -> BrokerId | None:
    """Return the id that the name of a node under ``/brokers/ids`` stands for; None for a name that no broker has."""
    if not _BROKER_NAME.fullmatch(name) or int(name) > _INT32_MAX:
        return None
    return BrokerId(int(name))


def find_generation(data: bytes) -> Generation:
    """Tell by a broker's node which generation the broker is of. Raises MalformedZnode where it is of none.

    0.6 and 0.7 write ``creator:host:port``; 0.8 and later write JSON with an address.
    """
    legacy = _LEGACY_BROKER.fullmatch(_read_text(data))
    if legacy is not None and 0 < int(legacy["port"]) <= 65535:
        return Generation.LEGACY
    parse_broker(BrokerId(0), data)  # the id stands in the node's name, not in its data
    return Generation.MODERN


def parse_broker(broker: BrokerId, data: bytes) -> BrokerRegistration:
    """Read a broker's node, of any release. Raises MalformedZnode when it names no address."""
    payload = _read_object(data)
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
    """Read a topic's node: its partitions in numerical order, each with its replicas. Raises MalformedZnode."""
    found: dict[PartitionKey, tuple[BrokerId, ...]] = {}
    for text, replicas in _get_object(_read_object(data), "partitions").items():
        try:
            key = PartitionKey.parse(text)
        except ValueError as error:
            raise MalformedZnode(str(error)) from error
        if key.broker is not None:
            raise MalformedZnode(f"partition key {text!r}: expected a number")
        found[key] = _as_brokers(replicas, f"replicas of partition {text}")
    return dict(sorted(found.items()))


def parse_partition_state(data: bytes) -> PartitionStateNode:
    """Read a partition's ``state`` node. Raises MalformedZnode."""
    payload = _read_object(data)
    leader = _as_int32(payload.get("leader"), "leader")
    return PartitionStateNode(
        leader=None if leader == _NO_LEADER else BrokerId(leader),
        leader_epoch=_as_int32(payload.get("leader_epoch"), "leader_epoch"),
        isr=_as_brokers(payload.get("isr"), "isr"),
        controller_epoch=_as_int32(payload.get("controller_epoch", 0), "controller_epoch"),
    )


def encode_offset(offset: int) -> bytes:
    """Encode an offset node: the next offset to read, in decimal."""
    return b"%d" % offset


def parse_offset(data: bytes) -> int:
    """Read an offset node. A negative number is returned as it stands. Raises MalformedZnode."""
    text = _read_text(data).strip()
    try:
        return _as_int(text, "offset")
    except MalformedZnode:
        raise MalformedZnode(f"offset: expected a number, got {text!r:.{_SHOWN}}") from None


def encode_owner(thread: ThreadId) -> bytes:
    """Encode an owner node."""
    return thread.encode()


def parse_cluster_id(data: bytes) -> str:
    """Read ``/cluster/id``. Raises MalformedZnode."""
    text = _read_object(data).get("id")
    if not isinstance(text, str):
        raise MalformedZnode(f"cluster id: expected a string, got {type(text).__name__}")
    return text


def parse_controller(data: bytes) -> BrokerId:
    """Read ``/controller``. Raises MalformedZnode."""
    return BrokerId(_as_int32(_read_object(data).get("brokerid"), "brokerid"))


def _read_endpoints(payload: _JsonObject) -> tuple[Endpoint, ...]:
    """Return the endpoints that can be read; one that cannot does not hide the others."""
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
        protocol = protocols.get(match["listener"], match["listener"])
        found.append(
            Endpoint(listener=match["listener"], protocol=str(protocol), host=match["host"], port=int(match["port"]))
        )
    return tuple(found)


def _read_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedZnode(f"expected UTF-8, byte {error.start} is not") from error


def _read_object(data: bytes) -> _JsonObject:
    """Read a JSON object whose strings are all text: JSON can escape half a character, which no encoding can write."""
    text = _read_text(data)
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
    """Read an id or an epoch, which requests carry in 32 bits."""
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
