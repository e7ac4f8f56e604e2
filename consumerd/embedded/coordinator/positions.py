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

    It was committed at ``commit_ms`` and expires at ``expire_ms``, both in ms since the Unix epoch.
    """

    offset: int
    metadata: str = ""
    commit_ms: int
    expire_ms: int


class Positions:
    """The committed positions of one group, by partition.

    Of two commits for a partition, the one with the higher offset in ``__consumer_offsets`` is kept, in whichever order
    they are added.
    """

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, tuple[int, CoordinatedPosition]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def all(self) -> Mapping[TopicPartition, CoordinatedPosition]:
        """The committed positions of all partitions of the group."""
        return {partition: position for partition, (_, position) in self._kept.items()}

    def keep(self, partition: TopicPartition, position: CoordinatedPosition, log_offset: int) -> None:
        """Remember a position whose record has the offset ``log_offset`` in ``__consumer_offsets``."""
        kept = self._kept.get(partition)
        if kept is None or kept[0] <= log_offset:
            self._kept[partition] = (log_offset, position)

    def forget(self, partition: TopicPartition) -> None:
        """Remove a partition's committed position, if there is one."""
        self._kept.pop(partition, None)

    def expired(self, now_ms: int) -> Iterable[TopicPartition]:
        """Return the partitions whose committed positions have expired at ``now_ms``.

        ``now_ms`` is in ms since the Unix epoch.
        """
        return self._where(lambda _, position: position.expire_ms < now_ms)

    def of_topics(self, topics: frozenset[str]) -> Iterable[TopicPartition]:
        """Return the partitions of these topics for which a position is committed."""
        return self._where(lambda partition, _: partition.topic in topics)

    def _where(self, wanted: Callable[[TopicPartition, CoordinatedPosition], bool]) -> Iterable[TopicPartition]:
        return [partition for partition, (_, position) in self._kept.items() if wanted(partition, position)]
