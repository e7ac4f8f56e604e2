# SPDX-License-Identifier: Apache-2.0
"""Paths in ZooKeeper that clusters of all Kafka releases have in common.

Pure functions. Paths are without the chroot, which the client adds. Sources: "Kafka 0.10 implementation", ZooKeeper
Directories, and the registries dumped from real clusters.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from consumerd.model import BrokerId, ConsumerId, TopicPartition

CONSUMERS: Final = "/consumers"
BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"
LOST_END_SUFFIX: Final = ".lost"
"""Suffix in the name of the node that records a log end below the group's position.

The partition has stopped for it.
"""


def group_path(group: str) -> str:
    """Return the path of a group's node, below which all its nodes are."""
    return f"{CONSUMERS}/{group}"


def ids_path(group: str) -> str:
    """Return the path of the parent of a group's ephemeral member nodes."""
    return f"{CONSUMERS}/{group}/ids"


def id_path(group: str, consumer: ConsumerId) -> str:
    """Return the path of a member's ephemeral node."""
    return f"{CONSUMERS}/{group}/ids/{consumer}"


def owners_root(group: str) -> str:
    """Return the path of the parent of a group's owner nodes, by topic."""
    return f"{CONSUMERS}/{group}/owners"


def owners_path(group: str, topic: str) -> str:
    """Return the path of the parent of a topic's owner nodes."""
    return f"{CONSUMERS}/{group}/owners/{topic}"


def owner_path(group: str, partition: TopicPartition) -> str:
    """Return the path of a partition's ephemeral owner node; it holds the owner's thread id."""
    return f"{CONSUMERS}/{group}/owners/{partition.topic}/{partition.partition}"


def offsets_root(group: str) -> str:
    """Return the path of the parent of a group's offset nodes, by topic."""
    return f"{CONSUMERS}/{group}/offsets"


def offsets_path(group: str, topic: str) -> str:
    """Return the path of the parent of a topic's offset nodes."""
    return f"{CONSUMERS}/{group}/offsets/{topic}"


def offset_path(group: str, partition: TopicPartition) -> str:
    """Return the path of a partition's persistent offset node.

    It holds the next offset to read, in decimal.
    """
    return f"{CONSUMERS}/{group}/offsets/{partition.topic}/{partition.partition}"


def broker_path(broker: BrokerId) -> str:
    """Return the path of a broker's ephemeral registration."""
    return f"{BROKER_IDS}/{broker}"


def topic_path(topic: str) -> str:
    """Return the path of a topic's node.

    The node's ``czxid``, the transaction that created it, changes when a topic is deleted and created again.
    """
    return f"{BROKER_TOPICS}/{topic}"


def topic_settings_path(topic: str) -> str:
    """Return the path of the node with a topic's own settings, such as ``retention.ms``."""
    return f"/config/topics/{topic}"


def own_path(group: str) -> str:
    """Return the path of the parent of a group's nodes that only consumerd uses."""
    return f"{CONSUMERS}/{group}/consumerd"


def requests_root(group: str) -> str:
    """Return the path below which a group's requests are, by topic and partition.

    A request is an operator's order to move a position, made for example by ``consumerd offsets set``.
    """
    return f"{own_path(group)}/requests"


def requests_path(group: str, topic: str) -> str:
    """Return the path of the parent of a group's requests for one topic.

    A request is an operator's order to move a position, made for example by ``consumerd offsets set``.
    """
    return f"{requests_root(group)}/{topic}"


def request_path(group: str, partition: TopicPartition) -> str:
    """Return the path of the persistent node with an operator's request for one partition.

    The request has the position to move to. The partition's owner carries the request out and deletes the node.
    """
    return f"{requests_path(group, partition.topic)}/{partition.partition}"


def truncations_root(group: str) -> str:
    """Return the path below which a group records log truncations, by topic and partition."""
    return f"{own_path(group)}/truncations"


def truncations_path(group: str, topic: str) -> str:
    """Return the path of the parent of recorded log truncations of one topic."""
    return f"{truncations_root(group)}/{topic}"


def truncation_path(group: str, partition: TopicPartition) -> str:
    """Return the path of the persistent node that counts truncations of a partition's log.

    Only truncations that a member of the group has noticed are counted.
    """
    return f"{truncations_path(group, partition.topic)}/{partition.partition}"


def lost_end_path(group: str, partition: TopicPartition) -> str:
    """Return the path of the node with the log end that stopped a partition.

    With the policy ``on_above: stop`` a partition stops when its log ends below the group's position. The node is
    persistent. It is in the same folder as the node of :func:`truncation_path`, so that listing the topic's folder
    finds both.
    """
    return f"{truncation_path(group, partition)}{LOST_END_SUFFIX}"


def roots_root(group: str) -> str:
    """Return the path below which a group records the roots of its file sinks.

    The root is the random id in the file ``_consumerd.json`` at a sink's path. The node has children if the group has
    ever landed files.
    """
    return f"{own_path(group)}/roots"


def root_path(group: str, sink: str, consumer_id: str | None = None) -> str:
    """Return the path of the node with the root of one file sink.

    The root is the random id in the file ``_consumerd.json`` at the sink's path.

    Args:
        consumer_id: Id of this replica, if each replica has a path of its own; None if all replicas share the path.
    """
    shared = f"{roots_root(group)}/{_encode_name(sink)}"
    return shared if consumer_id is None else f"{shared}/{consumer_id}"


def landed_root(group: str) -> str:
    """Return the path of the parent of the recorded ends of landed files.

    A recorded end is the offset up to which a partition has landed. The nodes below are by root (the random id of a
    sink's path), topic and partition.
    """
    return f"{own_path(group)}/landed"


def landed_path(group: str, root: str, partition: TopicPartition) -> str:
    """Return the path of the persistent node with a partition's landed end.

    That is the offset up to which the partition has landed at a sink's path.

    Args:
        root: Random id of the sink's path, from its file ``_consumerd.json``.
    """
    return f"{landed_root(group)}/{_encode_name(root)}/{partition.topic}/{partition.partition}"


def quarantine_root_path(group: str) -> str:
    """Return the path of the node with the random id of the quarantine's folder.

    The id is also in the file ``_consumerd.json`` in that folder. The node is not below :func:`roots_root`, where a
    sink could have the same name.
    """
    return f"{own_path(group)}/quarantine_root"


def members_root(group: str) -> str:
    """Return the path below which consumerd's members have a node each; Java members have none."""
    return f"{own_path(group)}/members"


def member_path(group: str, session_id: int) -> str:
    """Return the path of the ephemeral node that marks a member as consumerd's.

    The node's name is the id of the member's ZooKeeper session. Members with this node carry out operators' requests.
    """
    return f"{members_root(group)}/{session_id:x}"


def _encode_name(name: str) -> str:
    """Encode any name as one path component."""
    encoded = quote(name, safe="")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded
