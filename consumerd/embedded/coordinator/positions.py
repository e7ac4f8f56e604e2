# SPDX-License-Identifier: Apache-2.0
"""The committed positions of one group in the coordinator's memory. Pure.

Source: Kafka's ``OffsetAndMetadata`` and the offsets in ``GroupMetadata.scala``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from consumerd.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedPosition:
    """A committed position: the next offset to read, with the client's metadata.

    Times are in ms since the epoch.
    """

    offset: int
    metadata: str = ""
    commit_ms: int
    expire_ms: int


class Positions:
    """Positions by partition.

    Of two commits, the one later in the log counts, independent of the order in which they are reported.
    """

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, tuple[int, CoordinatedPosition]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def all(self) -> Mapping[TopicPartition, CoordinatedPosition]:
        """All positions."""
        return {partition: position for partition, (_, position) in self._kept.items()}

    def find(self, partition: TopicPartition) -> CoordinatedPosition | None:
        """Return a partition's position, or None."""
        kept = self._kept.get(partition)
        return kept[1] if kept else None

    def keep(self, partition: TopicPartition, position: CoordinatedPosition, log_offset: int) -> None:
        """Remember a position that was written at ``log_offset`` in the log."""
        kept = self._kept.get(partition)
        if kept is None or kept[0] <= log_offset:
            self._kept[partition] = (log_offset, position)

    def forget(self, partition: TopicPartition) -> None:
        """Remove a partition's position, if there is one."""
        self._kept.pop(partition, None)

    def expired(self, now_ms: int) -> Iterable[TopicPartition]:
        """Return the partitions whose positions have expired."""
        return self._where(lambda _, position: position.expire_ms < now_ms)

    def of_topics(self, topics: frozenset[str]) -> Iterable[TopicPartition]:
        """Return the partitions of these topics that have a position."""
        return self._where(lambda partition, _: partition.topic in topics)

    def _where(self, wanted: Callable[[TopicPartition, CoordinatedPosition], bool]) -> Iterable[TopicPartition]:
        return [partition for partition, (_, position) in self._kept.items() if wanted(partition, position)]
