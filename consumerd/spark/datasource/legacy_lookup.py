# SPDX-License-Identifier: Apache-2.0
"""Lookups of brokers and message boundaries of Kafka 0.6 and 0.7, for Spark's driver.

The brokers' addresses are for tasks (:mod:`consumerd.spark.datasource.partition_brokers`). Message boundaries are the
offsets at which ranges may begin and end, since offsets count bytes there (:mod:`consumerd.client.legacy_boundaries`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

from consumerd.access.opening import ClusterConnections
from consumerd.aio.parallel import map_bounded
from consumerd.client.legacy_boundaries import find_boundary
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import ConnectionLost
from consumerd.model import TopicPartition
from consumerd.offsets.away import explain_away
from consumerd.spark.datasource.partition_brokers import PartitionBrokers
from consumerd.spark.datasource.planning import OffsetRange

T = TypeVar("T")

_TRIES: Final = 4
"""Number of times that a broker which is away, or breaks a connection, is looked for."""
_BETWEEN_S: Final = 0.25
"""Pause between two of these, in seconds."""
_SEARCHES: Final = 8
"""Number of partitions in which boundaries are searched at the same time, each with a fetch of up to 4 MiB."""


class LegacyLookup:
    """Lookups at a cluster of Kafka 0.6 or 0.7, through its ZooKeeper session."""

    def __init__(self, cluster: ClusterConnections) -> None:
        self._cluster = cluster
        self._source = cluster.make_registry_source()
        self._timeout_s = cluster.address.request_timeout_s
        self._offsets = LegacyOffsetLookup(cluster.pool, request_timeout_s=self._timeout_s)

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Return registered brokers and the partitions on them; waits for the ZooKeeper session, without limit.

        Raises CoordinationError.
        """
        await self._cluster.zk.wait_connected()
        return await self._source.read(topics)

    async def find_leaders(self, topics: Collection[str]) -> PartitionBrokers:
        """Return a directory of the brokers of these topics.

        It reads ZooKeeper again when it is refreshed. Raises CoordinationError.
        """
        return PartitionBrokers(await self.read(topics), lambda: self.read(topics))

    async def find_brokers(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Broker]:
        """Return the broker of each partition.

        Raises ConnectionLost, which names a broker that is not registered after some tries, and CoordinationError.
        """
        topics = {one.topic for one in partitions}
        for left in reversed(range(_TRIES)):
            view = await self.read(topics)
            found = {one: broker for one in partitions if (broker := view.find_leader(one)) is not None}
            if len(found) == len(partitions):
                break
            if not left:
                first = next(one for one in partitions if one not in found)
                raise ConnectionLost(f"{first}: {explain_away(first, view.brokers)}")
            await asyncio.sleep(_BETWEEN_S)
        return found

    async def explain_away(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return why partitions are away, and until when. Raises CoordinationError."""
        brokers = (await self.read({one.topic for one in partitions})).brokers
        return {one: explain_away(one, brokers) for one in partitions}

    async def find_segments(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, ...]]:
        """Return where each partition's log segments begin, in order, and its log end offset.

        Raises as :meth:`find_brokers`; ConnectionLost, BrokerError, ProtocolError.
        """

        async def find(partition: TopicPartition) -> tuple[int, ...]:
            return await self._ask(partition, lambda broker: self._offsets.list_segments(broker, partition))

        return await map_bounded(partitions, find)

    async def find_ends(self, cuts: Iterable[tuple[OffsetRange, int]]) -> dict[TopicPartition, int]:
        """Return for each range the first message boundary at an offset or after it.

        Reads the lengths of messages from the nearest known boundary on: the start of the range or of a log segment.
        Raises as :meth:`find_segments`; CorruptMessageError.

        Args:
            cuts: Ranges that begin and end at message boundaries, each with the offset at which to cut it.
        """
        wanted = {whole.partition: (whole, at) for whole, at in cuts}

        async def find(partition: TopicPartition) -> int:
            whole, at = wanted[partition]

            async def search(broker: Broker) -> int:
                segments = await self._offsets.list_segments(broker, partition)
                found = await find_boundary(
                    self._cluster.pool,
                    broker,
                    partition,
                    at,
                    known=max([whole.start, *(one for one in segments if whole.start < one <= at)]),
                    end=whole.end,
                    request_timeout_s=self._timeout_s,
                )
                return found.after

            return await self._ask(partition, search)

        return await map_bounded(list(wanted), find, in_flight=_SEARCHES)

    async def _ask(self, partition: TopicPartition, ask: Callable[[Broker], Awaitable[T]]) -> T:
        """Ask a partition's broker; after a broken connection again, at its present address."""
        for _ in range(_TRIES - 1):
            try:
                return await ask((await self.find_brokers([partition]))[partition])
            except ConnectionLost:
                await asyncio.sleep(_BETWEEN_S)
        return await ask((await self.find_brokers([partition]))[partition])
