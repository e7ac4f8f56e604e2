# SPDX-License-Identifier: Apache-2.0
"""The high-level consumer of the Kafka documentation, as asynchronous streams.

A connector is a member of a group, as a daemon is (``connector.member``). Its records go to the program, not to a sink.
``connector.streams`` describes when a record counts as consumed, and how partitions are released.

One connector creates streams once, as in Java: the registration of a member names its topics and numbers of streams.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.tasks import find_cause
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.config.connector import ConnectorSettings
from consumerd.connector.cluster_search import FoundCluster, search_cluster
from consumerd.connector.member import MemberParts, MemberSinks, make_member, plan_patience
from consumerd.connector.membership import wait_alone
from consumerd.connector.position_guard import check_other_place
from consumerd.connector.streams import (
    EvenStreams,
    MessageStream,
    OfferQueue,
    StreamChooser,
    StreamListener,
    StreamSink,
    StreamsOfThreads,
)
from consumerd.delivery.ports import SinkRoute
from consumerd.errors import CoordinationError, LocalProtocolError
from consumerd.fetch.buffer import MemoryBudget
from consumerd.group.subscription import Subscription
from consumerd.telemetry.hooks import Hooks
from consumerd.telemetry.wording import join_shown

_SINK: Final = "streams"
"""Name of the connector's one sink in logs."""
_SHOWN: Final = 5
"""Number of partitions that an error names."""


@dataclass(frozen=True, slots=True)
class Whitelist:
    """Filter of topics: those whose whole name matches a Java regular expression.

    A comma means ``|``, as in Java's consumer: ``a,b`` matches the topics ``a`` and ``b``.
    """

    expression: str


@dataclass(frozen=True, slots=True)
class Blacklist:
    """Filter of topics: all but those whose whole name matches a Java regular expression.

    A comma means ``|``, as in Java's consumer: ``a,b`` leaves out the topics ``a`` and ``b``.
    """

    expression: str


TopicFilter = Whitelist | Blacklist


class ConsumerConnector:
    """Member of a consumer group, whose records a program takes from streams.

    ``async with`` connects, and at the end leaves the group and closes the connections. If the block ends without an
    error, the records that the block's own task is working on count as finished. With ``offsets.auto_commit``, the
    positions after finished records are committed at the end.
    """

    def __init__(self, settings: ConnectorSettings) -> None:
        self._settings = settings
        self._hooks = Hooks()
        self._stack = AsyncExitStack()
        self._cluster: ClusterConnections | None = None
        self._cluster_id = ""
        self._member: MemberParts | None = None
        self._queues: tuple[OfferQueue, ...] = ()
        self._stop = asyncio.Event()
        self._left = asyncio.Event()  # cleared while the member runs
        self._left.set()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        """Connect, within ``cluster.connect_timeout_ms``.

        Raises CoordinationError if ZooKeeper or the brokers do not answer, or no broker is registered in time,
        ConfigError, UnsupportedGeneration.
        """
        settings = self._settings
        try:
            self._cluster = await self._stack.enter_async_context(
                open_cluster(
                    settings.cluster.locate(
                        client_id=settings.group.id, session_timeout_ms=settings.group.session_timeout_ms
                    ),
                    wait_s=settings.cluster.connect_timeout_ms / 1000,
                    hooks=self._hooks,
                    max_answer_bytes=max(settings.fetch.max_message_bytes, settings.fetch.max_response_bytes),
                    receive_buffer_bytes=settings.fetch.receive_buffer_bytes or None,
                )
            )
            found = await self._find_cluster(self._cluster)
            self._cluster, self._cluster_id = self._cluster.adopt(found.generation), found.id
            await self._stack.enter_async_context(self._tasks)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            for queue in self._queues:
                queue.finish_own()
        try:
            await self.shutdown()
        except BaseException as interrupted:
            await self._stack.__aexit__(type(interrupted), interrupted, interrupted.__traceback__)
            raise
        # without the block's error, which a TaskGroup would wrap: the tasks have ended
        await self._stack.aclose()

    async def create_message_streams(self, topics: Mapping[str, int]) -> Mapping[str, Sequence[MessageStream]]:
        """Join the group; return the streams of each topic, in the number asked for.

        Each partition goes to one stream. Streams without a partition stay empty until a rebalance gives them one.
        Returns before partitions are assigned. With ``group.membership: zookeeper``, this call waits while a broker
        coordinates members of a group of this name, with a warning in the log: members in ZooKeeper and at the broker
        would read the same partitions.

        Args:
            topics: Number of streams of each topic.

        Raises ConfigError for a topic name, or if the store of positions (ZooKeeper or Kafka) that is not read holds
        larger ones; LocalProtocolError if the connector has streams already.
        """
        subscription = Subscription.to_topics(topics, key="topics")
        queues = {topic: _make_queues(count) for topic, count in topics.items()}
        flat = tuple(itertools.chain.from_iterable(queues.values()))
        await self._join(subscription, flat, lambda topic: queues[topic])
        return {topic: tuple(map(MessageStream, some)) for topic, some in queues.items()}

    async def create_message_streams_by_filter(self, topics: TopicFilter, streams: int = 1) -> Sequence[MessageStream]:
        """Join the group; return streams over all topics of the filter.

        Topics that are created later and match the filter are read, too. Returns before partitions are assigned.

        Args:
            topics: A :class:`Whitelist` or a :class:`Blacklist`.
            streams: Number of streams, over which the partitions of all topics are distributed.

        Raises ConfigError for a malformed expression, or if the store of positions (ZooKeeper or Kafka) that is not
        read holds larger ones; LocalProtocolError if the connector has streams already.
        """
        by = Subscription.to_white_list if isinstance(topics, Whitelist) else Subscription.to_black_list
        subscription = by([topics.expression], streams, key=type(topics).__name__)
        queues = _make_queues(streams)
        await self._join(subscription, queues, lambda _: queues)
        return tuple(map(MessageStream, queues))

    async def commit_offsets(self) -> None:
        """Commit the positions after all finished records, of all streams.

        The records that the calling task is working on count as finished. Positions of partitions that were released or
        lost meanwhile are not written.

        Raises CoordinationError that names the partitions whose position could not be written.
        """
        for queue in self._queues:
            queue.finish_own()
        if self._member is not None and (failed := await self._member.deliveries.commit()):
            told = join_shown([f"{partition}: {reason}" for partition, reason in sorted(failed.items())], _SHOWN)
            raise CoordinationError(told)

    async def shutdown(self) -> None:
        """End all streams and leave the group, within ``shutdown.timeout_ms``. Idempotent.

        Waits for the records that other tasks are working on, up to ``rebalance.drain_timeout_ms``. A record that the
        calling task is working on stays unfinished, and is read again later, unless :meth:`commit_offsets` is called
        first. With ``offsets.auto_commit``, positions after finished records are committed.
        """
        for queue in self._queues:
            queue.leave_own()
            queue.close()
        self._stop.set()
        await self._left.wait()

    # --

    async def _find_cluster(self, cluster: ClusterConnections) -> FoundCluster:
        reason = "no broker was reached yet"

        def note(text: str) -> None:
            nonlocal reason
            reason = text

        limit_s = self._settings.cluster.connect_timeout_ms / 1000
        try:
            async with timeout(limit_s):
                return await search_cluster(cluster, self._settings, hooks=self._hooks, waiting=note)
        except TimeoutError:
            raise CoordinationError(f"{self._settings.cluster.place}: {reason} (after {limit_s:g} s)") from None

    async def _join(
        self, subscription: Subscription, queues: tuple[OfferQueue, ...], find: Callable[[str], Sequence[OfferQueue]]
    ) -> None:
        if self._cluster is None or self._queues or self._stop.is_set():
            raise LocalProtocolError("streams are created once, between the connector's start and its shutdown")
        self._queues = queues
        await wait_alone(self._cluster, self._settings, hooks=self._hooks, waiting=lambda _: None)
        await check_other_place(self._cluster, self._settings, subscription, hooks=self._hooks)
        self._left.clear()
        chooser = EvenStreams(find) if self._settings.group.membership == "kafka" else StreamsOfThreads(find)
        self._tasks.create_task(self._run(self._cluster, subscription, chooser), name="connector")

    async def _run(self, cluster: ClusterConnections, subscription: Subscription, chooser: StreamChooser) -> None:
        """Run the member; its failure ends the streams, not the program's task."""
        settings = self._settings
        try:
            async with open_access(
                cluster, read_committed=settings.fetch.isolation == "read_committed", consumes=True
            ) as access:
                self._member = self._make_member(access, subscription, chooser)
                await self._member.run(self._stop, patience_s=plan_patience(settings))
        except ExceptionGroup as failures:
            error = find_cause(failures)
            for queue in self._queues:
                queue.fail(error)
        finally:
            for queue in self._queues:
                queue.close()
            self._left.set()

    def _make_member(self, access: ClusterAccess, subscription: Subscription, chooser: StreamChooser) -> MemberParts:
        settings, sink = self._settings, StreamSink(chooser)
        route = SinkRoute(name=_SINK, sink=sink)
        return make_member(
            access,
            settings,
            subscription,
            MemberSinks(
                budgets={_SINK: MemoryBudget(settings.fetch.memory_budget_bytes)},
                largest_unit_bytes=settings.fetch.largest_unit_bytes,
                route=lambda _: route,
                closed=lambda _: self._stop.set(),  # streams never report it
                stopped=lambda claim, error: chooser.choose(claim).fail(error),
            ),
            cluster_id=self._cluster_id,
            hooks=self._hooks,
            listen=lambda deliveries: StreamListener(deliveries, sink),
        )


def _make_queues(count: int) -> tuple[OfferQueue, ...]:
    return tuple(OfferQueue() for _ in range(count))
