# SPDX-License-Identifier: Apache-2.0
"""Codec of the bytes that members exchange through the coordinator.

Pure. JoinGroup carries a member's topics, SyncGroup its partitions, in the format of all Kafka consumers
(:mod:`consumerd.wire.modern.consumer_protocol`). Version 0 with empty user data is written, which every client reads;
other members' user data is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from consumerd.errors import RemoteProtocolError
from consumerd.model import TopicPartition
from consumerd.wire.modern.consumer_protocol import (
    AssignedTopic,
    Assignment,
    ConsumerSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

_NO_DATA = b""
"""Clients of 0.9 cannot read null here."""


def encode_topics(topics: Collection[str]) -> bytes:
    """Return the metadata, for JoinGroup, of a member that subscribes to these topics."""
    return encode_subscription(ConsumerSubscription(topics=tuple(sorted(topics)), user_data=_NO_DATA))


def decode_topics(metadata: bytes) -> frozenset[str]:
    """Return the topics to which a member subscribes, from its JoinGroup metadata. Raises RemoteProtocolError."""
    return frozenset(decode_subscription(metadata).topics)


def encode_partitions(partitions: Collection[TopicPartition]) -> bytes:
    """Return one member's assignment, for SyncGroup, with these partitions."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        by_topic[partition.topic].append(partition.partition.number)
    topics = tuple(AssignedTopic(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic.items())
    return encode_assignment(Assignment(topics=topics, user_data=_NO_DATA))


def decode_partitions(assignment: bytes) -> frozenset[TopicPartition]:
    """Return the partitions in a member's assignment, as SyncGroup returns it. Raises RemoteProtocolError.

    Empty bytes are allowed: some leaders send them to a member without partitions.
    """
    if not assignment:
        return frozenset()
    topics = decode_assignment(assignment).topics
    if lowest := [one.topic for one in topics if min(one.partitions, default=0) < 0]:
        raise RemoteProtocolError(f"assignment: a partition of {lowest[0]!r:.60} below 0")
    return frozenset(TopicPartition.modern(one.topic, number) for one in topics for number in one.partitions)
