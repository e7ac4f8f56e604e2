# SPDX-License-Identifier: Apache-2.0
"""Topics that were deleted or re-created since a claim. Their positions must not be committed.

Without this check, a re-created topic would skip records:

1. A topic is deleted and created again. Until the member learns of it, its claims remain.
2. The member commits a position of the old topic. It is written after the new topic was created, so it would be taken
   for a position of the new topic.
3. All records of the new topic below that position would be skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from consumerd.cluster.topics import TopicRegistry
from consumerd.model import Claim, TopicPartition


@dataclass(frozen=True, slots=True)
class RemadeTopics:
    """Claimed partitions of changed topics.

    Attributes:
        remade: Partitions whose topics were deleted or re-created since the claim.
        unnamed: Partitions of whose topics a broker names no id, for lack of a permission for instance.
    """

    remade: frozenset[TopicPartition]
    unnamed: frozenset[TopicPartition]


async def find_remade(topics: TopicRegistry, claims: Collection[Claim]) -> RemadeTopics:
    """Return the claimed partitions whose topics were deleted or re-created since the claim.

    Raises CoordinationError, ConnectionLost.
    """
    found = await topics.find_incarnations(sorted({claim.partition.topic for claim in claims}))
    remade, unnamed = set[TopicPartition](), set[TopicPartition]()
    for claim in claims:
        incarnation = found[claim.partition.topic]
        if incarnation is not None and not incarnation.is_known:
            unnamed.add(claim.partition)
            continue
        if incarnation is None or not incarnation.is_same_topic(claim.incarnation):
            remade.add(claim.partition)
    return RemadeTopics(frozenset(remade), frozenset(unnamed))
