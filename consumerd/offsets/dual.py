# SPDX-License-Identifier: Apache-2.0
"""Store of a group's positions in ZooKeeper and in Kafka at once.

It is for the time in which a group moves from one store to the other; Java's setting for it is ``dual.commit.enabled``.
Members that read ZooKeeper, Kafka or both go on from the same position, so members can be restarted one by one.

**Reading** takes the larger of the two stored positions, as Java does. A position that is known to be of a deleted
topic of the same name does not count, however large it is.

**Writing** begins where a failure between the two writes does no harm:

==========================  ==================  ====================================================================
position                    first               because
==========================  ==================  ====================================================================
moves forward               ZooKeeper           it refuses the commit of a lost claim, and then Kafka is left alone
moves back, or carries an   Kafka               the larger one would be read. As long as only Kafka has moved,
operator's request out                          ZooKeeper's counts, and the request is still there
==========================  ==================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from consumerd.model import Incarnation, TopicPartition
from consumerd.offsets.store import Commit, CommitOutcome, OffsetStore, StoredOffset, is_believed, is_larger, judge

_TAKEN: Final = frozenset({CommitOutcome.WRITTEN, CommitOutcome.UNCHANGED, CommitOutcome.FOREIGN_OVERWRITTEN})
"""Outcomes of a commit after which the store holds the position."""

Outcomes = Mapping[TopicPartition, CommitOutcome]


class DualOffsetStore:
    """Store of one group's positions in ZooKeeper and in Kafka.

    Calls of :meth:`commit` must not overlap.

    Args:
        find_incarnations: Returns the present incarnation of each topic, None for one that does not exist. May raise
            CoordinationError.
    """

    def __init__(
        self,
        zookeeper: OffsetStore,
        kafka: OffsetStore,
        find_incarnations: Callable[[Collection[str]], Awaitable[Mapping[str, Incarnation | None]]],
    ) -> None:
        self._zookeeper = zookeeper
        self._kafka = kafka
        self._find_incarnations = find_incarnations
        self._newest: dict[TopicPartition, int] = {}
        """The positions that both places hold, as far as they are known."""

    @property
    def rewrite_s(self) -> float | None:
        """Interval, in seconds, after which an idle partition's position is written again.

        Kafka forgets positions that are not written for long. None if neither store forgets positions.
        """
        return self._kafka.rewrite_s

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        """Read ZooKeeper and Kafka, and return the position of each partition that counts.

        The larger position counts. None for a partition without a position in both. Raises CoordinationError if one of
        the two cannot be read.
        """
        kafka = await self._kafka.load(partitions)
        zookeeper = await self._zookeeper.load(partitions)
        made = await self._find_incarnations({partition.topic for partition in partitions})
        found = {one: choose(zookeeper[one], kafka[one], made.get(one.topic)) for one in partitions}
        for partition, stored in found.items():
            self._newest[partition] = -1 if stored is None else stored.position
        return found

    async def commit(self, commits: Sequence[Commit]) -> Outcomes:
        """Write positions to ZooKeeper and to Kafka. Raises nothing.

        Every given partition has an outcome. If only one of the two stores has taken a position, the commit counts as
        failed, and is tried again.
        """
        forward: list[Commit] = []
        back: list[Commit] = []
        for commit in commits:
            (back if self._moves_back(commit) else forward).append(commit)
        outcomes: dict[TopicPartition, CommitOutcome] = {}
        if forward:
            outcomes |= await _write_both(forward, self._zookeeper.commit, self._commit_to_kafka)
        if back:
            # ZooKeeper reads the topics again after Kafka's answer, which may have taken seconds
            outcomes |= await _write_both(back, self._commit_to_kafka, self._zookeeper.commit)
        for commit in commits:
            if outcomes[commit.claim.partition] in _TAKEN:
                self._newest[commit.claim.partition] = commit.position
        return outcomes

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        """Return why ZooKeeper or Kafka refuses this partition's commits; None if neither does."""
        return self._zookeeper.explain_refusal(partition) or self._kafka.explain_refusal(partition)

    async def _commit_to_kafka(self, commits: Sequence[Commit]) -> Outcomes:
        """Commit without the requests: ZooKeeper deletes them in the transaction that writes the position."""
        return await self._kafka.commit([replace(commit, fulfils=None) for commit in commits])

    def _moves_back(self, commit: Commit) -> bool:
        return commit.fulfils is not None or commit.position < self._newest.get(commit.claim.partition, -1)


async def _write_both(
    commits: Sequence[Commit],
    first: Callable[[Sequence[Commit]], Awaitable[Outcomes]],
    second: Callable[[Sequence[Commit]], Awaitable[Outcomes]],
) -> Outcomes:
    outcomes = dict(await first(commits))
    # a store that has written a position has compared the topic right before. One that held it already has not
    taken = [
        replace(commit, is_of_topic=outcomes[commit.claim.partition] is not CommitOutcome.UNCHANGED)
        for commit in commits
        if outcomes[commit.claim.partition] in _TAKEN
    ]
    if taken:
        for partition, outcome in (await second(taken)).items():
            if outcome not in _TAKEN or outcomes[partition] is CommitOutcome.UNCHANGED:
                outcomes[partition] = outcome
    return outcomes


def choose(
    zookeeper: StoredOffset | None, kafka: StoredOffset | None, incarnation: Incarnation | None
) -> StoredOffset | None:
    """Return the stored position that counts: the larger of ZooKeeper's and Kafka's.

    A malformed position does not count, nor one of a deleted topic of the same name. If both positions are equal, the
    result is ZooKeeper's, because the time of its write is known. If neither counts, the result is ZooKeeper's too, so
    that the caller can report why.

    Args:
        zookeeper: The position in ZooKeeper, or None.
        kafka: The position in Kafka, or None.
        incarnation: The topic's present identity; None if the topic does not exist.
    """
    if zookeeper is None or is_larger(_find_believed(kafka, incarnation), _find_believed(zookeeper, incarnation)):
        return kafka
    return zookeeper


def _find_believed(stored: StoredOffset | None, incarnation: Incarnation | None) -> int | None:
    believed = stored is not None and is_believed(judge(stored, incarnation), incarnation)
    return stored.position if stored is not None and believed else None
