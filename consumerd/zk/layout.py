"""Where things lie in ZooKeeper: the paths that both generations share.

Pure; without the chroot, which the client adds. Sources: "Kafka 0.10 implementation", ZooKeeper
Directories, and the registries dumped from real clusters.
"""

from __future__ import annotations

from typing import Final

from consumerd.model import BrokerId, ConsumerId, TopicPartition

CONSUMERS: Final = "/consumers"
BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"


def group_path(group: str) -> str:
    """Everything of one group."""
    return f"{CONSUMERS}/{group}"


def ids_path(group: str) -> str:
    """Parent of the members' ephemeral nodes."""
    return f"{CONSUMERS}/{group}/ids"


def id_path(group: str, consumer: ConsumerId) -> str:
    """A member's ephemeral node."""
    return f"{CONSUMERS}/{group}/ids/{consumer}"


def owners_root(group: str) -> str:
    """Parent of the topics' owner folders."""
    return f"{CONSUMERS}/{group}/owners"


def owners_path(group: str, topic: str) -> str:
    """Parent of a topic's owner nodes."""
    return f"{CONSUMERS}/{group}/owners/{topic}"


def owner_path(group: str, partition: TopicPartition) -> str:
    """A partition's ephemeral owner node; holds the owner's thread id."""
    return f"{CONSUMERS}/{group}/owners/{partition.topic}/{partition.partition}"


def offsets_root(group: str) -> str:
    """Parent of the topics' offset folders."""
    return f"{CONSUMERS}/{group}/offsets"


def offsets_path(group: str, topic: str) -> str:
    """Parent of a topic's offset nodes."""
    return f"{CONSUMERS}/{group}/offsets/{topic}"


def offset_path(group: str, partition: TopicPartition) -> str:
    """A partition's persistent offset node; holds the next offset to read, in decimal."""
    return f"{CONSUMERS}/{group}/offsets/{partition.topic}/{partition.partition}"


def broker_path(broker: BrokerId) -> str:
    """A broker's ephemeral registration."""
    return f"{BROKER_IDS}/{broker}"


def topic_path(topic: str) -> str:
    """A topic's node; its ``czxid`` is the topic's incarnation."""
    return f"{BROKER_TOPICS}/{topic}"
