# SPDX-License-Identifier: Apache-2.0
"""The cluster's topics as brokers tell them, for a group in a cluster without ZooKeeper.

Nothing tells a client of changes there. So :meth:`FollowedMetadataTopics.follow` reports a change once per interval,
and the member then reads its topics again. A re-created topic is also noticed before each file is published and each
position is committed, because a claim reads its topic's id again.

The topics that were seen first are remembered. A topic with another id, or a partition beyond the number of partitions
then, was created while this process was a member, and none of its records may be missed (:meth:`is_new`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from consumerd.cluster.view import ClusterSource, TopicView
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.group.classic.topics import KnownTopic
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode, broker_error

NO_TOPIC_ID = (
    "the brokers name no topic id, so a re-created topic could not be noticed: brokers of 2.8 and later have them; "
    "with older ones, give cluster.zookeeper in place of cluster.bootstrap"
)
"""Problem of a topic whose incarnation is unknown."""


class FollowedMetadataTopics:
    """Topics from Metadata, read again once per interval.

    Args:
        source: Identifies topics by their ids.
        interval_s: Time between two reports of a possible change, in seconds.
    """

    def __init__(self, source: ClusterSource, *, interval_s: float) -> None:
        self._source = source
        self._interval_s = interval_s
        self._changed: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: dict[str, KnownTopic] = {}
        self._last: dict[str, KnownTopic] = {}

    async def list_names(self) -> frozenset[str]:
        """Return the names of all topics. Raises CoordinationError."""
        try:
            return frozenset((await self._source.read(None)).topics)
        except ConnectionLost as error:
            raise CoordinationError(str(error)) from error

    async def find(self, topics: Collection[str]) -> Mapping[str, KnownTopic | None]:
        """Read topics with one request. Raises CoordinationError."""
        if not topics:
            return {}
        try:
            seen = (await self._source.read(topics)).topics
        except ConnectionLost as error:
            raise CoordinationError(str(error)) from error
        found = {name: _read_topic(seen[name]) if name in seen else None for name in sorted(topics)}
        for name, topic in found.items():
            if topic is not None and topic.problem is None:
                found[name] = self._note(name, topic)
        return found

    def _note(self, name: str, topic: KnownTopic) -> KnownTopic:
        """Remember a topic, with its largest number of partitions.

        A broker that names fewer than before is out of date: none is ever removed.
        """
        last = self._last.get(name)
        if last is not None and last.incarnation.is_same_topic(topic.incarnation):
            topic = replace(topic, partitions=max(topic.partitions, last.partitions))
        self._first.setdefault(name, topic)
        self._last[name] = topic
        return topic

    def is_new(self, partition: TopicPartition) -> bool:
        """Return True if the partition was created after this process had first seen its topic."""
        first, last = self._first.get(partition.topic), self._last.get(partition.topic)
        if first is None or last is None:
            return False
        return not first.incarnation.is_same_topic(last.incarnation) or partition.partition.number >= first.partitions

    def follow(self, topics: Collection[str], *, names: bool, changed: Callable[[], None]) -> None:  # noqa: ARG002
        """Call ``changed`` once per interval; it reads what it needs. See ``GroupTopics.follow``."""
        self._changed = changed
        if self._timer is None:
            self._set_timer()

    def close(self) -> None:
        """Call nothing any more. Idempotent."""
        self._changed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._changed is not None:
            self._set_timer()
            self._changed()


def _read_topic(topic: TopicView) -> KnownTopic:
    incarnation = topic.incarnation
    assert incarnation is not None, "the source identifies topics"
    problem = None
    if topic.error != ErrorCode.NONE and not topic.partitions:
        problem = str(broker_error(topic.error, f"Metadata of topic {topic.name}"))
    elif not incarnation.is_known:
        problem = NO_TOPIC_ID
    return KnownTopic(
        incarnation=incarnation, partitions=0 if problem is not None else len(topic.partitions), problem=problem
    )
