# SPDX-License-Identifier: Apache-2.0
"""Nodes that brokers write to ZooKeeper, encoded as each release does. Pure.

Nodes are parsed in ``zk.znodes``. The keys of a JSON object have the order in which the release's Scala maps print
them, if that does not depend on hashing.

Sources: Kafka's ``ZkUtils.scala`` and ``Broker.scala`` (0.8.2 to 1.0), ``ZkData.scala`` (1.1),
``DynamicConfigManager.scala``, and registries recorded from 0.8.2.2, 0.10.2.2 and 1.1.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.model import BrokerId
from consumerd.net.versions import Release
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, CONSUMERS
from consumerd.zk.znodes import PartitionStateNode

CONTROLLER_EPOCH: Final = "/controller_epoch"
DELETE_TOPICS: Final = "/admin/delete_topics"
CONFIG_CHANGES: Final = "/config/changes"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"

FIRST_CONTROLLER_EPOCH: Final = 1

_LAST_EPOCH: Final = 2**31 - 1
_EPOCH: Final = re.compile(rb"[0-9]{1,10}")
_NO_JMX_PORT: Final = -1
_PLAINTEXT: Final = "PLAINTEXT"
_PRODUCER_IDS: Final = 1000
_LAST_BLOCK_END: Final = 2**63 - 1 - _PRODUCER_IDS


def config_path(topic: str) -> str:
    """Return the node of a topic's own settings."""
    return f"/config/topics/{topic}"


def delete_topic_path(topic: str) -> str:
    """Return the node whose creation requests a topic's deletion."""
    return f"{DELETE_TOPICS}/{topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker's id, and the address it listens on."""

    broker_id: BrokerId
    host: str
    port: int


def persistent_paths(release: Release) -> tuple[str, ...]:
    """Return the empty nodes that a broker of this release creates at its start."""
    paths = [CONSUMERS, BROKER_IDS, BROKER_TOPICS, CONFIG_CHANGES, "/config/topics", DELETE_TOPICS]
    if release >= (0, 9):
        paths += ["/config/clients", "/brokers/seqid", "/isr_change_notification"]
    if release >= (0, 10, 1):
        paths += ["/config/users", "/config/brokers"]
    if release >= (1, 0):
        paths += ["/log_dir_event_notification"]
    return tuple(paths)


def has_cluster_id(release: Release) -> bool:
    """Return True if brokers of a release create ``/cluster/id`` (KIP-78)."""
    return release >= (0, 10, 1)


def has_producer_ids(release: Release) -> bool:
    """Return True if a release assigns producer ids (KIP-98).

    It claims blocks of them at its start.
    """
    return release >= (0, 11)


def encode_broker(address: BrokerAddress, release: Release, *, timestamp_ms: int) -> bytes:
    """Encode ``/brokers/ids/N``: version 1 (0.8), 2 (0.9), 3 (0.10.0), 4 (0.10.2 to 1.1)."""
    endpoint = f"{_PLAINTEXT}://{address.host}:{address.port}"
    timestamp = str(timestamp_ms)
    if release >= (0, 10, 2):
        return _encode(
            {
                "listener_security_protocol_map": {_PLAINTEXT: _PLAINTEXT},
                "endpoints": [endpoint],
                "jmx_port": _NO_JMX_PORT,
                "host": address.host,
                "timestamp": timestamp,
                "port": address.port,
                "version": 4,
            }
        )
    payload: dict[str, object] = {"jmx_port": _NO_JMX_PORT, "timestamp": timestamp}
    if release >= (0, 9):
        payload["endpoints"] = [endpoint]
    version = 1 if release < (0, 9) else 2 if release < (0, 10) else 3
    return _encode(payload | {"host": address.host, "version": version, "port": address.port})


def encode_controller(broker: BrokerId, *, timestamp_ms: int) -> bytes:
    """Encode ``/controller``."""
    return _encode({"version": 1, "brokerid": broker, "timestamp": str(timestamp_ms)})


def encode_cluster_id(cluster_id: str) -> bytes:
    """Encode ``/cluster/id``; its version is a string."""
    return _encode({"version": "1", "id": cluster_id})


def encode_producer_ids(broker: BrokerId, start: int) -> bytes:
    """Encode ``/latest_producer_id_block``: this broker owns a thousand ids from ``start``."""
    block = {"block_start": str(start), "block_end": str(start + _PRODUCER_IDS - 1)}
    return _encode({"version": 1, "broker": broker, **block})


def next_producer_ids(data: bytes) -> int:
    """Return the start of the block after a node's block; 0 without one."""
    try:
        end = int(json.loads(data)["block_end"])
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return 0
    return end + 1 if 0 <= end <= _LAST_BLOCK_END else 0


def parse_controller_epoch(data: bytes) -> int:
    """Parse ``/controller_epoch``; if it is no 32-bit number, return the first epoch."""
    return int(data) if _EPOCH.fullmatch(data) and int(data) <= _LAST_EPOCH else FIRST_CONTROLLER_EPOCH


def next_epoch(epoch: int) -> int:
    """Return the controller or leader epoch after ``epoch``, limited to 32 bits."""
    return min(max(epoch, 0), _LAST_EPOCH - 1) + 1


def encode_topic(replicas: Mapping[int, tuple[BrokerId, ...]]) -> bytes:
    """Encode ``/brokers/topics/T``."""
    return _encode({"version": 1, "partitions": {str(one): list(brokers) for one, brokers in replicas.items()}})


def encode_partition_state(state: PartitionStateNode) -> bytes:
    """Encode a partition's ``state``."""
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
    """Encode ``/config/topics/T``."""
    return _encode({"version": 1, "config": dict(config)})


def parse_config(data: bytes) -> Mapping[str, str]:
    """Parse ``/config/topics/T``; like brokers, ignore unreadable content."""
    try:
        config = json.loads(data)["config"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {key: str(value) for key, value in config.items()} if isinstance(config, dict) else {}


def _encode(payload: Mapping[str, object]) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
