# SPDX-License-Identifier: Apache-2.0
"""Whether brokers serve a topic, asked over their own protocol: a JVM for each look would take longer than most tests."""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from typing import Final, TypeVar

from consumerd.wire.modern.list_offsets import LATEST_TIMESTAMP, ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.schema import Request
from consumerd.wire.session import encode_request

R = TypeVar("R")

_PATIENCE_S: Final = 5.0


def find_missing(bootstrap: str, topic: str, partitions: int, *, list_offsets: int = 0) -> str | None:
    """Return what a topic lacks until every broker that is up knows a leader of each partition, and each leader serves it;
    None where it lacks nothing. ``bootstrap`` is ``host:port,...``; ``list_offsets`` a version of that request which they
    have: 4.0 dropped the oldest.
    """
    leaders: dict[tuple[str, int], list[int]] = {}
    told: dict[str, dict[int, int]] = {}
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            # of all topics: one that is asked for by its name may be made by that
            metadata = _ask((host, int(port)), MetadataRequest(topics=None), 0)
        except OSError:
            continue
        known = next((one for one in metadata.topics if one.topic == topic), None)
        if known is None or known.error_code or len(known.partitions) != partitions:
            return f"{address} knows {known}"
        brokers = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
        leaders = defaultdict(list)
        for one in known.partitions:
            if one.leader not in brokers:
                return f"{address} knows of no leader of partition {one.partition}"
            leaders[brokers[one.leader]].append(one.partition)
        told[address] = {one.partition: one.leader for one in known.partitions}
    if not leaders:
        return f"none of {bootstrap} answers"
    if any(one != told[address] for one in told.values()):
        # a partition has just moved: a client that asks the broker that is behind would go to the leader before
        return f"the brokers do not agree who leads: {told}"
    for leader, numbers in leaders.items():
        asked = tuple(ListPartition(partition=number, timestamp=LATEST_TIMESTAMP) for number in numbers)
        try:
            answer = _ask(leader, ListOffsetsRequest(topics=(ListTopic(topic=topic, partitions=asked),)), list_offsets)
        except OSError as error:
            return f"{leader}: {error}"
        refused = [
            one
            for answered in answer.topics
            for one in answered.partitions
            if one.error_code or not (one.offsets or list_offsets)
        ]
        if refused:
            return f"{leader} does not serve {refused}"
    return None


def _ask(address: tuple[str, int], request: Request[R], version: int) -> R:
    """Ask once, over a connection of its own. Raises OSError, and ConnectionError where the broker hangs up."""
    with socket.create_connection(address, _PATIENCE_S) as connection, connection.makefile("rb") as stream:
        connection.sendall(encode_request(request, version, correlation_id=1, client_id="tests"))
        size = stream.read(4)
        body = stream.read(*struct.unpack(">i", size)) if len(size) == 4 else b""
        if not body:
            raise ConnectionError("hung up")
        return request.decode_response(version, memoryview(body)[4:])
