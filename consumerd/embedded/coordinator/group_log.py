# SPDX-License-Identifier: Apache-2.0
"""Storage of groups and positions in the topic ``__consumer_offsets`` of the embedded brokers."""

from __future__ import annotations

import structlog

from consumerd.embedded.appending import Appender
from consumerd.embedded.coordinator.journal import JournalReplay
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.state_topic import StateTopic
from consumerd.embedded.topics import OFFSETS_TOPIC, Topics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class OffsetsTopic(StateTopic):
    """The topic ``__consumer_offsets``, in which the coordinator keeps groups and positions."""

    def __init__(self, topics: Topics, appender: Appender, settings: CoordinatorSettings) -> None:
        config = {
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
            "cleanup.policy": "compact",
            "compression.type": "producer",
        }
        if settings.release < (0, 9):
            del config["compression.type"]
        super().__init__(
            OFFSETS_TOPIC, topics, appender, partitions_of_new=settings.offsets_topic_partitions, config=config
        )
        self._settings = settings

    def knows(self, topic: str) -> bool:
        """Return True if ``topic`` exists.

        The coordinator calls this when topics have changed, and deletes positions of topics that do not exist any more.
        """
        return self._topics.find(topic) is not None

    async def replay(self, partition: int) -> JournalReplay:
        """Read a whole partition of ``__consumer_offsets``; return the groups and positions in it.

        It takes as long as the disk. Raises NotWritten if the topic does not exist.
        """
        replay = JournalReplay(self._settings.offsets_retention_ms)
        replay.undecided = await self.read(partition, replay.read)
        if replay.unreadable:
            log.warning("group_records_unreadable", partition=partition, count=replay.unreadable)
        return replay
