# SPDX-License-Identifier: Apache-2.0
"""Watch on the group's partitions of Kafka 0.6 and 0.7 that are away.

A broker that is away takes its partitions out of the registry, so nothing else of the daemon knows of them: not the
assignment, not the pipelines, not the lag. What remains are the group's stored positions. The watch compares them with
the partitions that are registered now. It needs no memory of its own, so a daemon that has just started sees the same.

It reads when the cluster directory has a changed view (a broker or partition came or went, or the group has other
topics), and every 30 s for positions that are written later. A read costs one request for each topic of the group. If
it fails, the last result stays, as the directory's last view does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Protocol

import structlog

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import ClusterAccess
from consumerd.cluster.view import ClusterView
from consumerd.daemon.status import AwayStatus
from consumerd.errors import CoordinationError
from consumerd.model import Generation, TopicPartition
from consumerd.offsets.away import AwayBroker, find_away
from consumerd.offsets.group_positions import GroupPositions
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown

_INTERVAL_S: Final = 30.0
"""Longest time between two reads, in seconds."""
_SHOWN: Final = 5
"""Partitions that a log line names; there may be thousands."""

_log = structlog.get_logger(__name__)


class StoredPartitions(Protocol):
    """Lists the partitions of which the group has a position; ``GroupPositions`` implements it."""

    async def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of these topics that have a position. Raises CoordinationError."""


class AwayWatch:
    """Watch on the group's partitions whose broker does not register them now.

    Args:
        views: The cluster as registered now.
        topics: Returns the names of the group's topics.
        stored: Lists the partitions of which the group has a position.
        generation: Generation of the cluster's brokers.
        interval_s: Longest time between two reads, in seconds.
    """

    def __init__(
        self,
        views: Cell[ClusterView],
        topics: Callable[[], Collection[str]],
        stored: StoredPartitions,
        *,
        generation: Generation | None,
        hooks: Hooks,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._views = views
        self._topics = topics
        self._stored = stored
        self._generation = generation
        self._hooks = hooks
        self._interval_s = interval_s
        self._found: tuple[AwayBroker, ...] = ()
        self._failing = False

    @property
    def status(self) -> tuple[AwayStatus, ...]:
        """Partitions that are away, by broker, as last read."""
        return tuple(
            AwayStatus(
                broker=one.broker,
                reason=f"{one.reason}; {one.outlook}",
                partitions=tuple(map(str, one.partitions)),
            )
            for one in self._found
        )

    async def run(self) -> None:
        """Read whenever the cluster's view has changed, and every 30 s, until cancelled.

        Returns at once in clusters of 0.8 and later, where no partition is away.
        """
        while self._generation is Generation.LEGACY:
            view = self._views.value
            await self._read(view)
            try:
                async with timeout(self._interval_s):
                    await self._views.wait(partial(operator.is_not, view))
            except TimeoutError:
                continue

    async def _read(self, view: ClusterView) -> None:
        # a topic that the view lacks was not read yet, or is deleted: nothing of it is away
        topics = sorted(view.topics.keys() & set(self._topics()))
        try:
            stored = await self._stored.list_partitions(topics)
        except CoordinationError as error:
            if not self._failing:
                _log.warning("away_partitions_unread", error=str(error))
                self._hooks.trouble(Trouble.AWAY_PARTITIONS_UNREAD, str(error))
            self._failing = True
            return
        self._failing = False
        before, self._found = self._found, find_away(stored, view, self._generation)
        _tell_change(before, self._found)


def _tell_change(before: Collection[AwayBroker], now: Collection[AwayBroker]) -> None:
    """Log partitions once when they go away, and once when they are back."""
    known = {partition for one in before for partition in one.partitions}
    for one in now:
        if gone := [partition for partition in one.partitions if partition not in known]:
            _log.warning("partitions_away", broker=one.broker, reason=one.reason, partitions=join_shown(gone, _SHOWN))
    if back := sorted(known.difference(*(one.partitions for one in now))):
        _log.info("partitions_back", partitions=join_shown(back, _SHOWN))


def make_away_watch(
    access: ClusterAccess, group: str, topics: Callable[[], Collection[str]], hooks: Hooks
) -> AwayWatch:
    """Return the watch for a group.

    Args:
        topics: Returns the names of the group's topics.
    """
    stored = GroupPositions(access.cluster.session, group, topics=access.topics)
    return AwayWatch(access.directory.views, topics, stored, generation=access.generation, hooks=hooks)
