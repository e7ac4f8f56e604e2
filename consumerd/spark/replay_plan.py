# SPDX-License-Identifier: Apache-2.0
"""Plan of a replay with an offset map: the logs of a topic. Pure.

A log is a partition of one incarnation of its topic. Logs of one creation of the topic that differ in their truncations
follow one another, as in a mirror: first the log as it was before it was cut, then what was written behind the cut.

Example: bronze has offsets 0-49 of ``orders/0`` before an unclean leader election (incarnation 7), and 30-59 after it
(7.1). The plan has the logs 7 [0, 50) and 7.1 [30, 60). In the target, 50 records of the first are followed by 30 of
the second, each log with a map of its own. A mirror that has seen the election has written the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from consumerd.cluster.topic_description import TopicDescription
from consumerd.errors import ConfigError
from consumerd.landing.coverage import Coverage
from consumerd.landing.ranges import EMPTY
from consumerd.landing.values import LogId
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.model import Incarnation, TopicPartition
from consumerd.spark.replay_rows import LogName


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLog:
    """A log to replay.

    Attributes:
        start: first offset that bronze has taken of it.
        end: offset behind the last one.
        position: offset from which it is to be replayed: ``start``, or what the target has stored.
        passed: True if the target has gone on in a later log of the partition, so this one is not replayed any more.
    """

    partition: TopicPartition
    incarnation: Incarnation
    start: int
    end: int
    position: int
    passed: bool = False

    @property
    def name(self) -> LogName:
        """The log as rows of bronze name it."""
        key = self.partition.partition
        return LogName(key.broker, key.number, str(self.incarnation))

    @property
    def is_done(self) -> bool:
        """True if there is nothing to replay."""
        return self.passed or self.position >= self.end


def plan_logs(
    covered: Coverage, topic: str, *, incarnation: str | None = None, partition: int | None = None
) -> tuple[PlannedLog, ...]:
    """Return the logs of one creation of a topic, by partition and truncation.

    Args:
        covered: offsets that bronze has taken.
        incarnation: the creation, as bronze has it; None for the newest.
        partition: only partitions with this number; None for all.

    Raises ConfigError if bronze has no such log, or if it cannot be known which creation is the newest.
    """
    found = {log: covered.covered.get(log, EMPTY) | covered.doubtful.get(log, EMPTY) for log in _list(covered, topic)}
    if not found:
        raise ConfigError(f"pipeline.replay.topic: bronze has taken no offsets of {topic}")
    creation = _choose_creation(topic, {log.incarnation for log in found}, incarnation)
    logs = [
        PlannedLog(
            partition=log.topic_partition,
            incarnation=log.incarnation,
            start=ranges.spans[0].start,
            end=ranges.spans[-1].end,
            position=ranges.spans[0].start,
        )
        for log, ranges in found.items()
        if log.incarnation.is_same_topic(creation) and partition in (None, log.partition.number)
    ]
    if not logs:
        raise ConfigError(f"pipeline.replay.partition: bronze has taken no offsets of {topic}/{partition}")
    return tuple(sorted(logs, key=lambda log: (log.name.broker or 0, log.name.partition, log.incarnation.truncation)))


def _list(covered: Coverage, topic: str) -> list[LogId]:
    return [log for log in {**covered.covered, **covered.doubtful} if log.topic == topic]


def _choose_creation(topic: str, found: Collection[Incarnation], wanted: str | None) -> Incarnation:
    """Return an incarnation of the chosen creation of the topic; its truncations have no meaning."""
    creations = sorted({one.truncated(0) for one in found})
    names = ", ".join(map(str, creations))
    if wanted is not None:
        creation = None if wanted == "all" else Incarnation.parse(wanted)
        if creation is None or creation.truncation:
            raise ConfigError(
                f"pipeline.replay.incarnation: with a map, expected one creation of {topic} without its truncations, "
                f"which are replayed in turn: {names}; got {wanted}"
            )
        if creation not in creations:
            raise ConfigError(f"pipeline.replay.incarnation: bronze has no {wanted} of {topic}, but {names}")
        return creation
    if len(creations) > 1 and any(one.topic_id for one in creations):
        raise ConfigError(
            f"bronze has several incarnations of {topic}, and topic ids do not tell which is the newest: name one with "
            f"--incarnation: {names}"
        )
    return creations[-1]


def apply_positions(logs: Sequence[PlannedLog], stored: Mapping[SourceLog, StoredPosition]) -> tuple[PlannedLog, ...]:
    """Return the logs with the positions that a target has stored.

    Args:
        stored: positions of one mirror, by source log.
    """
    newest: dict[str, tuple[int, int]] = {}
    for log, position in stored.items():
        incarnation = Incarnation.parse(log.incarnation)
        if incarnation.is_same_topic(logs[0].incarnation):
            place = (incarnation.truncation, position.source)
            newest[log.partition] = max(newest.get(log.partition, place), place)
    return tuple(_apply(log, newest.get(str(log.partition.partition))) for log in logs)


def _apply(log: PlannedLog, newest: tuple[int, int] | None) -> PlannedLog:
    if newest is None or newest[0] < log.incarnation.truncation:
        return log
    truncation, position = newest
    return replace(log, position=position) if truncation == log.incarnation.truncation else replace(log, passed=True)


class ReplayedTopics:
    """Describes a topic by what bronze has of it. Implements ``cluster.topic_description.TopicDescriptions``.

    Args:
        cluster: id of the cluster that the records are of.
    """

    def __init__(self, cluster: str, logs: Sequence[PlannedLog]) -> None:
        self._cluster = cluster
        self._logs = logs

    async def find_cluster_id(self) -> str | None:
        """Return the id of the cluster that the records are of."""
        return self._cluster

    async def describe(self, topic: str) -> TopicDescription | None:
        """Return the topic with the partitions that bronze has, and without retention.

        Replayed records keep their timestamps. With the brokers' own ``retention.ms``, those older than a week would be
        deleted at once.
        """
        partitions = sorted({log.partition.partition for log in self._logs if log.partition.topic == topic}, key=str)
        settings = {"retention.ms": "-1"}
        return TopicDescription(name=topic, partitions=tuple(partitions), settings=settings) if partitions else None
