# SPDX-License-Identifier: Apache-2.0
"""Partitions of a group that are away, read for the commands.

In clusters of 0.8 and later there are none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from consumerd.admin.inspection import follow_topics
from consumerd.client.opening import ClusterAccess
from consumerd.model import Generation, TopicPartition
from consumerd.offsets.away import AwayBroker, find_away
from consumerd.offsets.opening import open_positions
from consumerd.telemetry.wording import counted, join_shown

_SHOWN: Final = 5
"""Partitions that a text names; there may be thousands."""


async def read_away(access: ClusterAccess, stored: Collection[TopicPartition]) -> Sequence[AwayBroker]:
    """Return those of a group's partitions that are away, by broker.

    Args:
        stored: Partitions of which the group has a position.

    Raises CoordinationError.
    """
    generation = access.generation
    if generation is not Generation.LEGACY or not stored:
        return ()
    await follow_topics(access, {one.topic for one in stored}, missing_ok=True)
    return find_away(stored, access.directory.view, generation)


async def read_group_away(
    access: ClusterAccess, group: str, topics: Collection[str] | None = None
) -> Sequence[AwayBroker]:
    """Return the partitions of a group that are away, by broker.

    Args:
        topics: Topics to look at; None for all of which the group has positions.

    Raises CoordinationError.
    """
    if access.generation is not Generation.LEGACY:
        return ()
    return await read_away(access, (await open_positions(access.cluster, group).read(topics)).keys())


def describe_away(away: Iterable[AwayBroker]) -> list[str]:
    """Return a sentence for each broker whose partitions are away."""
    return [
        f"away: {one.reason}; {one.outlook} ({counted(len(one.partitions), 'partition')}: "
        f"{join_shown(one.partitions, _SHOWN)})"
        for one in away
    ]
