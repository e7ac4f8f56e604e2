# SPDX-License-Identifier: Apache-2.0
"""Contents of the znodes of Kafka 0.6 and 0.7, encoded and parsed.

Pure. :func:`find_generation` tells the two generations apart by a broker's node. Parsers raise
:class:`~consumerd.zk.znodes.MalformedZnode`, and no other error. Offset and owner nodes have the same content in all
releases, see ``zk.znodes``.

Sources: "Writing a Driver for Kafka", section ZooKeeper; Kafka 0.7.2's ``TopicCount.scala``, ``Broker.scala`` and
``ZkUtils.scala``; Jafka's ``Broker.java``; registries recorded from Kafka 0.7.2 and Jafka 3.0.6.

======================================  ============================================================
node                                    content
======================================  ============================================================
``/brokers/ids/2``                      ``10.0.0.12-1324306324402:10.0.0.12:9092``
``/brokers/topics/dogs/2``              ``4``: broker 2 has the partitions 2-0 to 2-3 of the topic
``/consumers/G/ids/C``, static topics   ``{ "dogs": 1,"mutts": 2 }``
``/consumers/G/ids/C``, white list      ``*2*dogs|mutts``
``/consumers/G/ids/C``, black list      ``!2!tmp.*``
======================================  ============================================================
"""

from __future__ import annotations

import json
import re
from typing import Final

from consumerd.model import BrokerId, Generation
from consumerd.zk.znodes import (
    LEGACY_LIST,
    MOST_STREAMS,
    BrokerRegistration,
    Endpoint,
    MalformedZnode,
    MemberRegistration,
    Pattern,
    read_object,
    read_text,
)
from consumerd.zk.znodes import parse_broker as parse_modern_broker

_BROKER: Final = re.compile(r"[^:]*:(?P<host>[^:]+):(?P<port>[0-9]{1,5})(?::(?:true|false))?")
"""``creator:host:port``. Jafka adds whether it creates topics automatically."""
_COUNT: Final = re.compile(r"[0-9]{1,6}")
_MOST_PARTITIONS: Final = 100_000
"""Partitions of one topic on one broker. Each is a folder of the broker, which has far fewer."""
_SIGNS: Final = {Pattern.WHITE_LIST: "*", Pattern.BLACK_LIST: "!"}
_PATTERNS: Final = {sign: pattern for pattern, sign in _SIGNS.items()}
_NO_VERSION: Final = 0
_SHOWN: Final = 40
"""Characters of a node's text that a message quotes."""


def encode_registration(registration: MemberRegistration) -> bytes:
    """Return the content of a member's node under ``/consumers/<group>/ids``, as Kafka 0.7 writes it.

    The node has no place for the time of registration.
    """
    if registration.pattern is Pattern.STATIC:
        streams = (f"{json.dumps(topic, ensure_ascii=False)}: {n}" for topic, n in registration.subscription.items())
        return f"{{ {','.join(streams)} }}".encode()
    ((expression, count),) = registration.subscription.items()
    sign = _SIGNS[registration.pattern]
    return f"{sign}{count}{sign}{expression}".encode()


def parse_registration(data: bytes) -> MemberRegistration:
    """Parse a member's node under ``/consumers/<group>/ids``, of Kafka 0.7 or Jafka.

    Raises MalformedZnode, also for a member of Kafka 0.8 or later: no member of 0.7 can read that one.
    """
    listed = LEGACY_LIST.fullmatch(read_text(data))
    if listed is not None:
        pattern, subscription = _PATTERNS[listed["sign"]], {listed["expression"]: int(listed["streams"])}
    else:
        pattern, subscription = Pattern.STATIC, _read_streams(data)
    if any(count < 1 for count in subscription.values()):
        raise MalformedZnode("registration: expected at least one stream for each topic")
    if sum(subscription.values()) > MOST_STREAMS:
        raise MalformedZnode(f"registration: more than {MOST_STREAMS} streams, which no member can have")
    return MemberRegistration(pattern=pattern, subscription=subscription, timestamp_ms=None)


def _read_streams(data: bytes) -> dict[str, int]:
    payload = read_object(data)
    if isinstance(payload.get("subscription"), dict):
        raise MalformedZnode("a registration in the form of Kafka 0.8 and later, which members of 0.7 cannot read")
    streams: dict[str, int] = {}
    for topic, count in payload.items():
        # Java members fail at a number in quotes, and at one with a point
        if type(count) is not int:
            raise MalformedZnode(f"streams of topic {topic!r:.{_SHOWN}}: expected a number, got {type(count).__name__}")
        streams[topic] = count
    return streams


def parse_broker(broker: BrokerId, data: bytes) -> BrokerRegistration:
    """Parse a broker's node of Kafka 0.6 or 0.7, or of Jafka.

    Its only listener has the protocol PLAINTEXT. Raises MalformedZnode.
    """
    text = read_text(data)
    match = _BROKER.fullmatch(text)
    if match is None or not 0 < int(match["port"]) <= 65535:
        raise MalformedZnode(f"broker: expected creator:host:port, got {text!r:.{_SHOWN}}")
    host = match["host"].replace("#", ":")  # in Jafka's node, as its Broker.java writes an IPv6 address
    endpoint = Endpoint(listener="PLAINTEXT", protocol="PLAINTEXT", host=host, port=int(match["port"]))
    return BrokerRegistration(id=broker, endpoints=(endpoint,), version=_NO_VERSION)


def parse_partition_count(data: bytes) -> int:
    """Parse the node ``/brokers/topics/T/B``: the number of the topic's partitions on the broker.

    They are numbered from 0. Raises MalformedZnode.
    """
    text = read_text(data)
    if not _COUNT.fullmatch(text) or int(text) > _MOST_PARTITIONS:
        raise MalformedZnode(f"number of partitions: expected 0 to {_MOST_PARTITIONS}, got {text!r:.{_SHOWN}}")
    return int(text)


def find_generation(data: bytes) -> Generation:
    """Return the generation of a broker, from the content of its node.

    There are two: 0.6 and 0.7 write ``creator:host:port``; 0.8 and later write JSON with an address. Raises
    MalformedZnode for any other content.
    """
    broker = BrokerId(0)  # the id stands in the node's name, not in its data
    try:
        parse_broker(broker, data)
    except MalformedZnode:
        parse_modern_broker(broker, data)
        return Generation.MODERN
    return Generation.LEGACY
