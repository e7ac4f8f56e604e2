# SPDX-License-Identifier: Apache-2.0
"""The positions that one group has committed, as the coordinator remembers them. Pure.

Source: Kafka's ``OffsetAndMetadata`` and the offsets in ``GroupMetadata.scala``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from consumerd.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedPosition:
    """A committed position: the next offset to read, and what the client said with it; times in ms since the epoch."""

    offset: int
    metadata: str = ""
    commit_ms: int
    expire_ms: int


class Positions:
    """Positions by partition; of two commits the one counts that stands later in the log, whichever is heard of first."""

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, tuple[int, CoordinatedPosition]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def all(self) -> Mapping[TopicPartition, CoordinatedPosition]:
        """Every position."""
        return {partition: position for partition, (_, position) in self._kept.items()}

    def find(self, partition: TopicPartition) -> CoordinatedPosition | None:
        """Return a partition's position."""
        kept = self._kept.get(partition)
        return kept[1] if kept else None

    def keep(self, partition: TopicPartition, position: CoordinatedPosition, log_offset: int) -> None:
        """Remember what the log has at ``log_offset``."""
        kept = self._kept.get(partition)
        if kept is None or kept[0] <= log_offset:
            self._kept[partition] = (log_offset, position)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition's position, if there is one."""
        self._kept.pop(partition, None)

    def expired(self, now_ms: int) -> Iterable[TopicPartition]:
        """Return the partitions whose positions were to be kept until before now."""
        return self._where(lambda _, position: position.expire_ms < now_ms)

    def of_topics(self, topics: frozenset[str]) -> Iterable[TopicPartition]:
        """Return the partitions of these topics that have a position."""
        return self._where(lambda partition, _: partition.topic in topics)

    def _where(self, wanted: Callable[[TopicPartition, CoordinatedPosition], bool]) -> Iterable[TopicPartition]:
        return [partition for partition, (_, position) in self._kept.items() if wanted(partition, position)]
