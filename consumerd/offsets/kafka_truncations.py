# SPDX-License-Identifier: Apache-2.0
"""Truncations of partitions' logs, kept with the committed positions in a cluster without ZooKeeper.

The text that is committed with a position has the number of truncations (:mod:`consumerd.offsets.commit_metadata`). A
truncation is noted by a commit of the position at which delivery resumes. So the number and the position change
together, and the coordinator refuses both from a member that it has removed.

Example: position 80 is committed, and an unclean leader election leaves the log as ``[0, 60)``. With
``offsets.on_above: nearest``, 60 is committed with ``truncation=1 noted=1``. After a crash the next owner begins a
chain of truncation 1 at 60. With ``stop``, 80 is committed again with ``lost=1:80:0:60:1``, and each owner stops there
until an operator has moved the position.

The position of another client, and one that an operator sets, have no such text. The number is then that of the newest
chain of the sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from consumerd.errors import CoordinationError
from consumerd.model import Claim, TopicPartition
from consumerd.offsets.commit_metadata import CommitMetadata, parse_metadata
from consumerd.offsets.kafka_store import KafkaOffsetStore
from consumerd.offsets.positions import KafkaOffsetToken, Position
from consumerd.offsets.store import NO_MARK, KnownTruncations, LogTruncation, LostEnd, StoredOffset, Validity
from consumerd.offsets.truncations import NotedStop

_VOIDS_NOTHING: Final = -1
"""Mark of no position: delivery has gone on since the truncation."""


def find_stops(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, NotedStop]:
    """Return the stops that are noted with positions in Kafka.

    A position that is not valid, or that an operator has set since, stops no partition.
    """
    found = {}
    for partition, position in positions.items():
        text = parse_metadata(position.metadata)
        if text is None or text.request_id or position.validity is not Validity.VALID:
            continue
        lost = text.lost_end
        if lost is not None and lost.number > text.incarnation.truncation:
            found[partition] = NotedStop(path="", since_ms=None, lost=lost)
    return found


class KafkaLogTruncations:
    """Truncations in the metadata of one group's commits."""

    def __init__(self, store: KafkaOffsetStore) -> None:
        self._store = store

    async def find(self, claim: Claim) -> KnownTruncations:
        """Return what was committed with the partition's position. Raises CoordinationError."""
        stored = await self._load(claim)
        metadata = _read(claim, stored)
        if stored is None or metadata is None:
            return KnownTruncations()
        if metadata.lost_end is not None or metadata.noted:
            self._store.keep_note(claim, stored.position, metadata)
        number, mark, lost, last = metadata.incarnation.truncation, stored.token.mark, metadata.lost_end, None
        if number:
            voids = mark if metadata.noted else _VOIDS_NOTHING
            last = LogTruncation(number=number, position=stored.position, voids=voids)
        if lost is not None:
            lost = replace(lost, voids=mark if metadata.voids else NO_MARK)
        return KnownTruncations(last=last, lost_end=lost)

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        """Commit the position at which delivery resumes, with the truncation's number. Raises CoordinationError."""
        stored = await self._load(claim)
        known = _read(claim, stored)
        if known is not None and known.incarnation.truncation > truncation.number:
            raise CoordinationError(
                f"{claim.partition}: truncation {known.incarnation.truncation} was noted meanwhile; looking again"
            )
        is_set = known is not None and stored is not None and stored.position == truncation.position
        metadata = CommitMetadata(
            incarnation=claim.incarnation.truncated(truncation.number),
            noted=True,
            request_id=known.request_id if known is not None and is_set else "",
        )
        await self._store.write_note(claim, truncation.position, metadata)

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Commit the stored position again, with the truncation that stops the partition. Idempotent.

        Raises CoordinationError.
        """
        stored = await self._load(claim)
        known = _read(claim, stored)
        position, voids = lost.position, True
        if stored is not None:
            # not by its mark: the same position may have been committed again, with another text, since it was read
            position, voids = stored.position, lost.voids != NO_MARK and stored.position == lost.position
        number = 0 if known is None else known.incarnation.truncation
        metadata = CommitMetadata(
            incarnation=claim.incarnation.truncated(number), lost_end=replace(lost, voids=NO_MARK), voids=voids
        )
        if metadata != known:
            await self._store.write_note(claim, position, metadata)

    async def _load(self, claim: Claim) -> StoredOffset | None:
        return (await self._store.load([claim.partition]))[claim.partition]


def _read(claim: Claim, stored: StoredOffset | None) -> CommitMetadata | None:
    """Return what this daemon committed with the position.

    None if there is no position, if another client committed it, or if it is of another topic of that name.
    """
    if stored is None or not isinstance(stored.token, KafkaOffsetToken):
        return None
    found = parse_metadata(stored.token.metadata)
    return found if found is not None and found.incarnation.is_same_topic(claim.incarnation) else None
