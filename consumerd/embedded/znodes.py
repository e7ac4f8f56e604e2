# SPDX-License-Identifier: Apache-2.0
"""Nodes that brokers write to ZooKeeper, encoded as each release does. Pure.

Nodes are parsed in ``zk.znodes``. The keys of a JSON object have the order in which the release's Scala maps print
them, if that does not depend on hashing.

Sources: Kafka's ``ZkUtils.scala`` and ``Broker.scala`` (0.8.2 to 1.0), ``ZkData.scala`` (1.1),
``DynamicConfigManager.scala``, and registries recorded from 0.8.2.2, 0.10.2.2 and 1.1.1.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.model import BrokerId, TopicPartition
from consumerd.net.versions import Release
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, CONSUMERS
from consumerd.zk.znodes import PartitionStateNode

CONTROLLER_EPOCH: Final = "/controller_epoch"
DELETE_TOPICS: Final = "/admin/delete_topics"
CONFIG_CHANGES: Final = "/config/changes"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"

FIRST_CONTROLLER_EPOCH: Final = 1

_LAST_EPOCH: Final = 2**31 - 1
_EPOCH: Final = re.compile(rb"[0-9]{1,10}")
_NO_JMX_PORT: Final = -1
_PLAINTEXT: Final = "PLAINTEXT"
_SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
_NO_PORT: Final = -1
_PRODUCER_IDS: Final = 1000
_LAST_BLOCK_END: Final = 2**63 - 1 - _PRODUCER_IDS


def delete_topic_path(topic: str) -> str:
    """Return the path of the ZooKeeper node whose creation requests a topic's deletion."""
    return f"{DELETE_TOPICS}/{topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker's id, and the address it listens on.

    ``sasl`` is True if clients authenticate there.
    """

    broker_id: BrokerId
    host: str
    port: int
    sasl: bool = False


def persistent_paths(release: Release) -> tuple[str, ...]:
    """Return the paths of empty nodes that a broker creates at its start.

    They depend on the imitated ``release``.
    """
    paths = [CONSUMERS, BROKER_IDS, BROKER_TOPICS, CONFIG_CHANGES, "/config/topics", DELETE_TOPICS]
    if release >= (0, 9):
        paths += ["/config/clients", "/brokers/seqid", "/isr_change_notification"]
    if release >= (0, 10, 1):
        paths += ["/config/users", "/config/brokers"]
    if release >= (1, 0):
        paths += ["/log_dir_event_notification"]
    return tuple(paths)


def encode_broker(address: BrokerAddress, release: Release, *, timestamp_ms: int) -> bytes:
    """Return the content of ``/brokers/ids/N``, a broker's registration.

    Its version is 1 (0.8), 2 (0.9), 3 (0.10.0) or 4 (0.10.2 to 1.1), depending on the release.
    """
    protocol = _SASL_PLAINTEXT if address.sasl else _PLAINTEXT
    endpoint = f"{protocol}://{address.host}:{address.port}"
    # the fields of old clients name a listener without authentication, if there is one
    host, port = (None, _NO_PORT) if address.sasl else (address.host, address.port)
    timestamp = str(timestamp_ms)
    if release >= (0, 10, 2):
        return _encode(
            {
                "listener_security_protocol_map": {protocol: protocol},
                "endpoints": [endpoint],
                "jmx_port": _NO_JMX_PORT,
                "host": host,
                "timestamp": timestamp,
                "port": port,
                "version": 4,
            }
        )
    payload: dict[str, object] = {"jmx_port": _NO_JMX_PORT, "timestamp": timestamp}
    if release >= (0, 9):
        payload["endpoints"] = [endpoint]
    version = 1 if release < (0, 9) else 2 if release < (0, 10) else 3
    return _encode(payload | {"host": host, "version": version, "port": port})


def encode_controller(broker: BrokerId, *, timestamp_ms: int) -> bytes:
    """Return the content of ``/controller``, which names the controller."""
    return _encode({"version": 1, "brokerid": broker, "timestamp": str(timestamp_ms)})


def encode_cluster_id(cluster_id: str) -> bytes:
    """Return the content of ``/cluster/id``: JSON with the id.

    As in Kafka, the version of the format is a string there: ``"1"``.
    """
    return _encode({"version": "1", "id": cluster_id})


def encode_producer_ids(broker: BrokerId, start: int) -> bytes:
    """Return the content of ``/latest_producer_id_block``: a broker's newest block of ids.

    The block has 1,000 producer ids, the first of which is ``start``.
    """
    block = {"block_start": str(start), "block_end": str(start + _PRODUCER_IDS - 1)}
    return _encode({"version": 1, "broker": broker, **block})


def next_producer_ids(data: bytes) -> int:
    """Return the first producer id after the block in ``/latest_producer_id_block``.

    0 if ``data`` is no valid block.
    """
    try:
        end = int(json.loads(data)["block_end"])
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return 0
    return end + 1 if 0 <= end <= _LAST_BLOCK_END else 0


def parse_controller_epoch(data: bytes) -> int:
    """Return the number in ``/controller_epoch``; 1, the first epoch, if it is invalid."""
    return int(data) if _EPOCH.fullmatch(data) and int(data) <= _LAST_EPOCH else FIRST_CONTROLLER_EPOCH


def next_epoch(epoch: int) -> int:
    """Return the controller or leader epoch that follows ``epoch``.

    At most 2147483647, the largest 32-bit number.
    """
    return min(max(epoch, 0), _LAST_EPOCH - 1) + 1


def encode_topic(replicas: Mapping[int, tuple[BrokerId, ...]], topic_id: uuid.UUID | None = None) -> bytes:
    """Return the content of ``/brokers/topics/T``: version 1, or 3 with a topic id (KIP-516)."""
    partitions = {str(one): list(brokers) for one, brokers in replicas.items()}
    if topic_id is None:
        return _encode({"version": 1, "partitions": partitions})
    moving: dict[str, object] = {"removing_replicas": {}, "adding_replicas": {}}
    named = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return _encode({"version": 3, "partitions": partitions, "topic_id": named, **moving})


def decode_topic_id(text: str) -> uuid.UUID:
    """Return the UUID of a topic id of 22 characters."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{text}=="))


def encode_partition_state(state: PartitionStateNode) -> bytes:
    """Return the content of a partition's ``state`` node: leader and in-sync replicas."""
    return _encode(
        {
            "controller_epoch": state.controller_epoch,
            "leader": -1 if state.leader is None else state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
        }
    )


def encode_config(config: Mapping[str, str]) -> bytes:
    """Return the content of ``/config/topics/T``, a topic's own settings."""
    return _encode({"version": 1, "config": dict(config)})


def parse_preferred_election(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions in ``/admin/preferred_replica_election``.

    Entries that name no partition are left out.
    """
    try:
        entries = json.loads(data)["partitions"]
        named = [(entry["topic"], entry["partition"]) for entry in entries]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
    return tuple(
        TopicPartition.modern(topic, number)
        for topic, number in named
        if isinstance(topic, str) and isinstance(number, int) and number >= 0
    )


def encode_preferred_election(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the content of ``/admin/preferred_replica_election``, which requests an election."""
    named = [{"topic": one.topic, "partition": one.partition.number} for one in partitions]
    return _encode({"version": 1, "partitions": named})


def _encode(payload: Mapping[str, object]) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
