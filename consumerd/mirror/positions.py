# SPDX-License-Identifier: Apache-2.0
"""Reader of a mirror's positions topic.

:class:`MirrorPositions` reads the topic once from its beginning, and then only what was added. Each read has two parts
for each partition of the topic:

1. Up to the last stable offset, as ``read_committed``: the broker tells which transactions were aborted. This part is
   read once. It may have been compacted, which also removes markers of transactions.
2. From there to the end, as ``read_uncommitted``: the markers tell which transactions have committed. No part of it was
   compacted, so each transaction has all its records and its marker. This part is read again by the next read.

So a transaction that another mirror leaves open delays no reader. A caller's own last transaction has ended when
InitProducerId has succeeded.

Example: the last stable offset is 100, since producer 7 has written at 100 and is still open. Producer 8 has written at
101, and its commit marker is at 102. A read returns the position of 101, not that of 100. Producer 7 aborts at 103. The
next read reads from 100 on: the broker says that 7 was aborted, and 101 counts as before.

End of a read
    A high watermark may lag behind records that are acknowledged, after a change of the leader. A caller for which a
    missed record is harmful writes a mark before it reads (:meth:`MirrorPositions.refresh` with ``marks``): when the
    mark is read, everything acknowledged before it was read, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.tasks import find_cause
from consumerd.client.leaders import Connections
from consumerd.client.log_range import LogRangeReader
from consumerd.client.retrying import retry_passing
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.errors import ConnectionLost, NotFound
from consumerd.mirror.positions_index import MirrorState, PositionsIndex
from consumerd.mirror.positions_partition import PositionsPartitionReader
from consumerd.mirror.records import AssignmentKey, SourceLog, SourcePartition, StoredAssignment
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode, broker_error

DEFAULT_TOPIC: Final = "_consumerd_mirror"
"""Default name of the positions topic."""
DEFAULT_GROUP: Final = "consumerd-mirror"
"""Default group of a mirror, whose name is in the keys of the topic's records."""


class MirrorPositions:
    """Positions, offset maps and assignments of mirrors, as stored in a target cluster.

    Args:
        connections: Pool of connections to the target's brokers.
        directory: Directory of the target's leaders.
        topic: The positions topic.
        random: Returns floats in [0, 1), for backoffs.
        index: Takes what is read; None for one that keeps everything.
        request_timeout_s: Time limit of each request, in seconds.
        patience_s: Time limit for one request and its retries, in seconds.
    """

    def __init__(
        self,
        connections: Connections,
        directory: MetadataDirectory,
        topic: str = DEFAULT_TOPIC,
        *,
        random: Callable[[], float],
        index: PositionsIndex | None = None,
        request_timeout_s: float = 30.0,
        patience_s: float = 60.0,
    ) -> None:
        self.topic: Final = topic
        self._connections = connections
        self._directory = directory
        self._random = random
        self._index = PositionsIndex() if index is None else index
        self._request_timeout_s = request_timeout_s
        self._patience_s = patience_s
        self._ranges = LogRangeReader(
            connections, directory, random=random, timeout_s=patience_s, request_timeout_s=request_timeout_s
        )
        self._readers: dict[int, PositionsPartitionReader] = {}

    # -- what was read

    def find(self, log: SourceLog) -> MirrorState | None:
        """Return what is stored for a source log; None if nothing is. Raises CorruptMessageError."""
        return self._index.find(log)

    def find_all(self, source: SourcePartition) -> Sequence[MirrorState]:
        """Return what is stored for all logs of a source partition. Raises CorruptMessageError."""
        return self._index.find_all(source)

    def list(self) -> list[SourceLog]:
        """Return the source logs that have a position, sorted."""
        return self._index.list()

    def assignments(self) -> Mapping[AssignmentKey, StoredAssignment]:
        """Return the target partitions of partitions of Kafka 0.6 and 0.7. Raises CorruptMessageError."""
        return self._index.assignments()

    @property
    def partition_count(self) -> int:
        """Number of partitions of the topic, 0 before it was read."""
        return len(self._readers)

    # -- reading

    async def refresh(self, partitions: Collection[int] | None = None, *, marks: bool = False) -> None:
        """Read what was added to the topic before this call.

        Concurrent calls share a read. A cancelled call does no harm.

        Args:
            partitions: Partitions of the topic to read; None for all. Before the first read of all, nothing of the
                others is known.
            marks: True to write a mark first, which takes the right to write; the call then sees everything that was
                acknowledged before it, also after a change of leaders. All callers of one object pass the same value.

        Raises NotFound if there is no such topic, BrokerError, ConnectionLost, ProtocolError, CorruptMessageError.
        """
        if partitions is None or not self._readers:
            await self._find_partitions()
        wanted = self._readers if partitions is None else partitions
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in wanted:
                    reading = self._readers[number].refresh(marks=marks)
                    tasks.create_task(reading, name=f"read {self.topic}/{number}")
        except BaseExceptionGroup as failures:
            raise find_cause(failures) from failures

    async def _find_partitions(self) -> None:
        """Make a reader for each partition of the topic."""

        async def look() -> int:
            self._directory.follow_also({self.topic})
            view = await self._directory.refresh("a mirror's positions are read")
            found = view.topics.get(self.topic)
            if found is not None and found.partitions:
                return len(found.partitions)
            if self._directory.failure is not None:
                raise ConnectionLost(f"topic {self.topic}: {self._directory.failure}")
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NotFound(f"the target has no topic {self.topic}, in which mirrors store their positions")
            raise broker_error(code, f"Metadata for {self.topic}")

        who = f"broker with topic {self.topic}"
        count = await retry_passing(look, who=who, patience_s=self._patience_s, random=self._random)
        for number in range(len(self._readers), count):
            self._readers[number] = PositionsPartitionReader(
                TopicPartition.modern(self.topic, number),
                self._connections,
                self._directory,
                self._ranges,
                self._index,
                random=self._random,
                request_timeout_s=self._request_timeout_s,
                patience_s=self._patience_s,
            )


@asynccontextmanager
async def open_mirror_positions(
    address: ClusterAddress, topic: str = DEFAULT_TOPIC, *, keeps: Callable[[SourceLog], bool] | None = None
) -> AsyncIterator[MirrorPositions]:
    """Open the positions topic of a target cluster for reading, while the block runs.

    Nothing is read before :meth:`MirrorPositions.refresh`. Needs the right to read the topic, and nothing else.

    Args:
        address: Address of the target cluster.
        keeps: Returns True for source logs to keep in memory; None for all.

    Raises ConfigError.
    """
    async with open_cluster(address, wait_s=None) as cluster:
        yield MirrorPositions(
            cluster.pool,
            make_target_directory(cluster),
            topic,
            random=random.random,
            index=PositionsIndex(keeps=keeps),
            request_timeout_s=address.request_timeout_s,
        )


def make_target_directory(cluster: ClusterConnections) -> MetadataDirectory:
    """Return a directory of a target's leaders.

    It is refreshed on request only: its ``run`` need not run.
    """
    brokers = cluster.address.first_brokers()
    timeout_s = cluster.address.request_timeout_s
    return MetadataDirectory(
        lambda known: BrokerSource(cluster.pool, known, random=random.random, timeout_s=timeout_s),
        lambda: brokers,
        random=random.random,
        source_name="target",
    )
