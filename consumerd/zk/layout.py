# SPDX-License-Identifier: Apache-2.0
"""Where things lie in ZooKeeper: the paths that both generations share.

Pure; without the chroot, which the client adds. Sources: "Kafka 0.10 implementation", ZooKeeper
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
"""Suffix of a partition's name in the node that says why the partition has stopped above its log."""


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


def own_path(group: str) -> str:
    """Everything of a group that is ours alone; Java members never look here."""
    return f"{CONSUMERS}/{group}/consumerd"


def requests_root(group: str) -> str:
    """Parent of the topics' folders of operators' requests."""
    return f"{own_path(group)}/requests"


def requests_path(group: str, topic: str) -> str:
    """Parent of a topic's requests."""
    return f"{requests_root(group)}/{topic}"


def request_path(group: str, partition: TopicPartition) -> str:
    """Where an operator wants a partition to go on; persistent until it is carried out."""
    return f"{requests_path(group, partition.topic)}/{partition.partition}"


def truncations_root(group: str) -> str:
    """Parent of the topics' folders of truncation notes."""
    return f"{own_path(group)}/truncations"


def truncations_path(group: str, topic: str) -> str:
    """Parent of what is noted of a topic's logs that have lost their ends."""
    return f"{truncations_root(group)}/{topic}"


def truncation_path(group: str, partition: TopicPartition) -> str:
    """How often a partition's log has lost its end, as far as the group has met it; persistent."""
    return f"{truncations_path(group, partition.topic)}/{partition.partition}"


def lost_end_path(group: str, partition: TopicPartition) -> str:
    """Log end that was found below the group's position under ``on_above: stop``; persistent.

    It lies beside the note of the last truncation, so that one listing of the topic's folder tells of both.
    """
    return f"{truncation_path(group, partition)}{LOST_END_SUFFIX}"


def roots_root(group: str) -> str:
    """Parent of what is known of the file sinks' roots: it has children where files of this group have been landed."""
    return f"{own_path(group)}/roots"


def root_path(group: str, sink: str, consumer_id: str | None = None) -> str:
    """A file sink's root, or that of one replica's own path; holds the id that stands in ``_consumerd.json``."""
    shared = f"{roots_root(group)}/{_encode_name(sink)}"
    return shared if consumer_id is None else f"{shared}/{consumer_id}"


def landed_root(group: str) -> str:
    """Parent of the ends of chains, by root id, topic and partition."""
    return f"{own_path(group)}/landed"


def landed_path(group: str, root: str, partition: TopicPartition) -> str:
    """How far a partition has been landed below the path that has a root id; persistent."""
    return f"{landed_root(group)}/{_encode_name(root)}/{partition.topic}/{partition.partition}"


def quarantine_root_path(group: str) -> str:
    """The quarantine's root; beside those of sinks, one of which may have any name."""
    return f"{own_path(group)}/quarantine_root"


def members_root(group: str) -> str:
    """Parent of the nodes that tell members of ours from Java's."""
    return f"{own_path(group)}/members"


def member_path(group: str, session_id: int) -> str:
    """The ephemeral node of one of our members, named after its session: such a member carries requests out."""
    return f"{members_root(group)}/{session_id:x}"


def _encode_name(name: str) -> str:
    """Make one path component of a name that may hold anything."""
    encoded = quote(name, safe="")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded
