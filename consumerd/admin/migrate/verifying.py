# SPDX-License-Identifier: Apache-2.0
"""Carries out ``consumerd migrate verify``: compares mirrored partitions with their copies."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from consumerd.admin.migrate.comparing import CopyComparison, PartitionPair
from consumerd.admin.migrate.moving import find_pairs
from consumerd.admin.migrate.opening import OpenMigration
from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition


async def verify_partitions(
    opened: OpenMigration,
    topics: Collection[str],
    *,
    sample: int | None,
    random: Random,
    show: Callable[[CopyComparison], None],
) -> list[CopyComparison]:
    """Compare records of mirrored partitions with their copies.

    Args:
        topics: topics to compare; empty for all that are mirrored.
        sample: positions of each partition to compare, beside its edges; None to compare all records.
        random: chooses the positions.
        show: called with the result of each partition.

    Raises ConfigError for a topic that is not mirrored, or that cannot be read now; ConsumerdError.
    """
    mirrored = opened.clusters.mirrored
    if unknown := sorted(set(topics) - mirrored.topics):
        raise ConfigError(f"the mirror has no position of {', '.join(unknown)}")
    partitions = [
        TopicPartition(topic, PartitionKey.parse(partition))
        for topic, partition in mirrored.partitions
        if not topics or topic in topics
    ]
    pairs = await find_pairs(opened, partitions)
    if not pairs:
        raise ConfigError("no mirrored partition has a leader in both clusters: nothing can be compared")
    comparer, results = opened.make_comparer(), []
    for pair in pairs.values():
        if sample is None:
            result = await comparer.compare_all(pair)
        else:
            result = CopyComparison(partition=pair.source)
            for position in choose_positions(pair, sample, random):
                await comparer.compare_at(pair, position, result)
        results.append(result)
        show(result)
    return results


def choose_positions(pair: PartitionPair, sample: int, random: Random) -> list[int]:
    """Return positions to compare: the edges of what both clusters have, and some between.

    In Kafka 0.6 and 0.7 a position must be that of a message, so a position between the edges is rounded to one.
    """
    start, end = pair.find_start(), pair.end
    if start >= end:
        return []
    chosen = {start, end - 1, *(random.randrange(start, end) for _ in range(sample))}
    if not pair.offsets.stored.counts_bytes:
        return sorted(chosen)
    # a target offset inside is translated back to the message that has it
    rounded = (pair.offsets.translate_back(pair.offsets.translate(one).offset).offset for one in chosen)
    return sorted({one for one in rounded if one < end})
