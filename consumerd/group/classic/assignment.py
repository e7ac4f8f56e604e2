# SPDX-License-Identifier: Apache-2.0
"""Assignors for the leader of a broker-coordinated group, equal to those of Kafka's Java consumer.

Pure. The leader's assignment is binding, so other clients in the group need not compute the same one. ``range`` and
``roundrobin`` nevertheless give the results that operators know from Java, and partitions stay where they are if a
client of another kind becomes the leader. Sources: ``RangeAssignor.java`` and ``RoundRobinAssignor.java`` of 0.9 to 4.0
(without racks, which this member does not send).

Example: a and b subscribe to T, which has 3 partitions, and to U, which has 1. ``range`` gives T/0, T/1 and U/0 to a,
and T/2 to b. ``roundrobin`` gives T/0 and T/2 to a, and T/1 and U/0 to b.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Final

from consumerd.group.assignors import java_order
from consumerd.model import TopicPartition

Subscriptions = Mapping[str, Collection[str]]
"""The topics to which each member subscribes, by member id."""
PartitionCounts = Mapping[str, int]
"""Number of partitions by topic; topics that do not exist are left out."""


class GroupAssignor(enum.StrEnum):
    """An assignor of a broker-coordinated group, by its name in JoinGroup requests."""

    RANGE = "range"
    ROUNDROBIN = "roundrobin"


def assign(
    assignor: GroupAssignor, subscriptions: Subscriptions, counts: PartitionCounts
) -> dict[str, frozenset[TopicPartition]]:
    """Return the partitions of each member; a member without any gets an empty set.

    Args:
        subscriptions: The topics to which each member subscribes, by member id.
        counts: The number of partitions of each topic.
    """
    return _ASSIGNORS[assignor](subscriptions, counts)


def _assign_range(subscriptions: Subscriptions, counts: PartitionCounts) -> dict[str, frozenset[TopicPartition]]:
    """Assign contiguous chunks of each topic's partitions, extras to the first members."""
    found: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic, count in counts.items():
        members = sorted((one for one, topics in subscriptions.items() if topic in topics), key=java_order)
        for position, member in enumerate(members):
            share, extra = divmod(count, len(members))
            start = share * position + min(position, extra)
            numbers = range(start, start + share + (position < extra))
            found[member] += (TopicPartition.modern(topic, number) for number in numbers)
    return {member: frozenset(partitions) for member, partitions in found.items()}


def _assign_roundrobin(subscriptions: Subscriptions, counts: PartitionCounts) -> dict[str, frozenset[TopicPartition]]:
    """Deal all partitions to the members in turn, without those that do not subscribe."""
    found: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    turn = itertools.cycle(sorted(subscriptions, key=java_order))
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    for topic in sorted(wanted & counts.keys(), key=java_order):
        for number in range(counts[topic]):
            member = next(one for one in turn if topic in subscriptions[one])
            found[member].append(TopicPartition.modern(topic, number))
    return {member: frozenset(partitions) for member, partitions in found.items()}


_ASSIGNORS: Final[
    Mapping[GroupAssignor, Callable[[Subscriptions, PartitionCounts], dict[str, frozenset[TopicPartition]]]]
] = {GroupAssignor.RANGE: _assign_range, GroupAssignor.ROUNDROBIN: _assign_roundrobin}
