# SPDX-License-Identifier: Apache-2.0
"""Which of a mirror's records count for a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from consumerd.admin.migrate.mirrored import MirroredPartitions, MirrorId
from consumerd.errors import ConfigError
from consumerd.mirror.offset_map import MapPlace, OffsetMap
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.mirror.runs import Run
from consumerd.mirror.segment import encode_segment
from consumerd.model import Incarnation, PartitionKey, TopicPartition

P = TopicPartition.modern("orders", 0)
MADE = Incarnation(7)


@dataclass(frozen=True)
class Kept:
    """What is stored of a log."""

    stored: StoredPosition
    segments: tuple[bytes, ...] = ()

    def offset_map(self) -> OffsetMap:
        return OffsetMap(self.segments, self.stored.position)


class Reader:
    """A reader of what a test has stored."""

    def __init__(self, kept: dict[SourceLog, Kept]) -> None:
        self.kept = kept

    async def refresh(self) -> None:
        """Nothing is read."""

    def list(self) -> Sequence[SourceLog]:
        return sorted(self.kept)

    def find(self, log: SourceLog) -> Kept | None:
        return self.kept.get(log)


def log_of(incarnation: str = "7", partition: str = "0", *, cluster: str = "c", group: str = "m") -> SourceLog:
    return SourceLog(cluster, group, P.topic, partition, incarnation)


def kept_of(start: int, target: int, records: int, *, topic: str = "orders") -> Kept:
    """Return a log of which these records were mirrored; without records, its begin alone, with target offset 0."""
    stored = StoredPosition(
        source=start + records,
        target=target + records if records else 0,
        target_topic=topic,
        target_partition=0,
        last_segment=0 if records else -1,
    )
    if not records:
        return Kept(stored)
    return Kept(stored, (encode_segment([Run(start, start + records, target, records)], counts_bytes=False),))


def partitions_of(kept: dict[SourceLog, Kept]) -> MirroredPartitions:
    return MirroredPartitions(Reader(kept), MirrorId("c", "m"))


def test_only_logs_of_the_present_topic_and_of_this_mirror_count() -> None:
    """The others' offsets are of other records."""
    mirrored = partitions_of(
        {
            log_of("6"): kept_of(0, 100, 50),
            log_of(): kept_of(0, 200, 50),
            log_of(cluster="other"): kept_of(0, 300, 50),
            log_of(group="other"): kept_of(0, 400, 50),
        }
    )
    found = mirrored.find(P, MADE)

    assert found is not None
    assert found.translate(5) == (205, MapPlace.RECORD)
    assert mirrored.find(P, Incarnation(8)) is None
    assert mirrored.find(P, None) is None
    assert (mirrored.topics, mirrored.partitions) == ({"orders"}, [("orders", "0")])


async def test_groups_share_a_map_until_the_mirror_is_read_again() -> None:
    """A map of a million runs is decoded once, and not once for each of a thousand groups."""
    kept = {log_of(): kept_of(0, 100, 50)}
    mirrored = partitions_of(kept)
    before = mirrored.find(P, MADE)
    assert mirrored.find(P, MADE) is before
    kept[log_of()] = kept_of(0, 100, 60)
    await mirrored.refresh()
    found = mirrored.find(P, MADE)

    assert found is not None
    assert found.translate(55) == (155, MapPlace.RECORD)


def test_the_logs_of_a_truncated_partition_are_taken_together() -> None:
    mirrored = partitions_of({log_of("7.10"): kept_of(40, 160, 5), log_of("7.2"): kept_of(0, 100, 50)})
    found = mirrored.find(P, MADE)

    assert found is not None
    assert (found.translate(39).offset, found.translate(40).offset, found.stored.source) == (139, 160, 45)


def test_a_log_that_has_only_begun_ends_where_the_one_before_it_ended() -> None:
    """Its stored target offset is 0: read from there, a group would get everything again."""
    found = partitions_of({log_of("7.1"): kept_of(40, 0, 0), log_of(): kept_of(0, 100, 50)}).find(P, MADE)

    assert found is not None
    assert found.translate(39) == (139, MapPlace.RECORD)
    assert found.translate(40) == (150, MapPlace.END)


def test_a_start_alone_translates_to_where_the_target_ended_then() -> None:
    """The first record that is mirrored comes there or behind it, so a group that waits for it misses none."""
    stored = StoredPosition(source=40, target=7, target_topic="orders", target_partition=0, last_segment=-1)
    mirrored = partitions_of({log_of(): Kept(stored)})

    found = mirrored.find(P, MADE)
    assert found is not None
    assert found.translate(40) == (7, MapPlace.END)
    assert (found.source_start, found.target_start, found.translate_back(9).offset) == (40, 7, 40)
    assert mirrored.find_goal(P, found) == TopicPartition.modern("orders", 0)


def test_a_start_alone_names_the_target_of_a_partition_of_kafka_0_7() -> None:
    """Its number there is nothing that the source's own number would tell."""
    legacy = TopicPartition("orders", PartitionKey.parse("0-3"))
    stored = StoredPosition(source=0, target=0, target_topic="new", target_partition=5, last_segment=-1)
    mirrored = partitions_of({log_of(partition="0-3"): Kept(stored)})

    assert mirrored.find_goal(legacy, mirrored.find(legacy, MADE)) == TopicPartition.modern("new", 5)


def test_a_mirror_that_was_given_another_topic_of_the_target_counts_from_there() -> None:
    found = partitions_of({log_of(): kept_of(0, 100, 50), log_of("7.1"): kept_of(40, 0, 9, topic="new")}).find(P, MADE)

    assert found is not None
    assert found.translate(10) == (0, MapPlace.BEFORE)


def test_the_other_partitions_name_the_topic_of_one_without_records() -> None:
    mirrored = partitions_of({log_of(): kept_of(0, 100, 50, topic="new")})

    other = TopicPartition.modern("orders", 4)
    assert mirrored.find_goal(other, mirrored.find(other, MADE)) == TopicPartition.modern("new", 4)
    assert mirrored.find_goal(TopicPartition.modern("clicks", 0), None) is None


def test_a_mirror_that_has_stored_nothing_is_told_from_those_that_have() -> None:
    with pytest.raises(
        ConfigError, match=r"mirror m of cluster c has stored no position in the target; .*x of cluster c"
    ):
        partitions_of({log_of(group="x"): kept_of(0, 0, 1)}).require()
