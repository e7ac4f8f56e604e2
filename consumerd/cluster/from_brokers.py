# SPDX-License-Identifier: Apache-2.0
"""Reads the cluster from a broker, by Metadata requests.

A request must not create topics. Up to version 3, a broker with ``auto.create.topics.enable`` (the default) creates
every topic named in a request, so a topic that was just deleted would be re-created. So up to version 3 all topics are
requested, and the unwanted ones dropped; from version 4 on topics are named, with creation forbidden. Only producers
name topics in order to create them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.errors import ConnectionLost, ProtocolError
from consumerd.model import BrokerId, PartitionKey
from consumerd.net.pool import ConnectionPool, Purpose
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.metadata import MetadataRequest, MetadataResponse, MetadataTopic

_FIRST_WITHOUT_CREATION: Final = 4
_FIRST_WITH_EMPTY_LIST: Final = 1
_LAST_PORT: Final = 65535
_LONGEST_HOST: Final = 255
"""Longest host name, in characters (RFC 1035)."""
_LARGE_RESPONSE: Final = 20_000
"""Brokers and partitions of a response above which its view is built in a thread."""


def plan_request(topics: Collection[str] | None, version: int) -> MetadataRequest:
    """Return a request for ``topics``, or with None for all, that creates none."""
    if topics is None:
        return MetadataRequest(topics=None, allow_auto_topic_creation=version < _FIRST_WITHOUT_CREATION)
    if version >= _FIRST_WITHOUT_CREATION:
        return MetadataRequest(topics=tuple(sorted(topics)), allow_auto_topic_creation=False)
    if not topics and version >= _FIRST_WITH_EMPTY_LIST:
        return MetadataRequest(topics=())
    return MetadataRequest(topics=None)


def plan_creating_request(topics: Collection[str], version: int) -> MetadataRequest:
    """Return a request for ``topics`` that lets the broker create missing ones.

    Whether it does depends on its settings. Without topics, only the brokers are requested.
    """
    if not topics:
        return plan_request(topics, version)
    return MetadataRequest(topics=tuple(sorted(topics)))


def make_view(response: MetadataResponse, topics: Collection[str] | None, *, tls: bool) -> ClusterView:
    """Build the view of the requested topics from a response.

    ``tls`` is true if the response came over TLS.
    """
    brokers = {
        BrokerId(one.node_id): Broker(id=BrokerId(one.node_id), host=one.host, port=one.port, tls=tls, rack=one.rack)
        for one in response.brokers
        if 0 < len(one.host) <= _LONGEST_HOST and 0 < one.port <= _LAST_PORT
    }
    found = (_make_topic(one) for one in response.topics if topics is None or one.topic in topics)
    return ClusterView(
        brokers=dict(sorted(brokers.items())),
        topics={topic.name: topic for topic in found if topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        cluster_id=response.cluster_id,
        controller=_as_broker(response.controller_id),
    )


def _make_topic(topic: MetadataTopic) -> TopicView:
    partitions = {
        PartitionKey(one.partition): PartitionView(
            leader=_as_broker(one.leader),
            replicas=tuple(map(BrokerId, one.replicas)),
            isr=tuple(map(BrokerId, one.isr)),
            error=one.error_code,
        )
        for one in topic.partitions
    }
    return TopicView(name=topic.topic, partitions=dict(sorted(partitions.items())), error=topic.error_code)


def _as_broker(number: int) -> BrokerId | None:
    return None if number < 0 else BrokerId(number)


class BrokerSource:
    """Reads from one known broker; tries the next one if it fails or is slow.

    A broker that hangs (a paused machine, a lost route) is often the very one whose partitions need a new leader, so
    its response is never waited for alone.

    Args:
        known: Returns the brokers to ask.
        timeout_s: Time limit of each request, in seconds.
        patience_s: Time limit of all requests together, in seconds.
        alone_s: Time without a response, in seconds, after which the next broker is asked too.
        creates: True if missing topics are to be created.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        known: Callable[[], Collection[Broker]],
        *,
        random: Callable[[], float],
        timeout_s: float = 10.0,
        patience_s: float = 60.0,
        alone_s: float = 1.0,
        creates: bool = False,
    ) -> None:
        self._pool = pool
        self._known = known
        self._random = random
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._alone_s = alone_s
        self._creates = creates
        self._log = structlog.get_logger(__name__)

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Read the cluster from any broker. Raises ConnectionLost if none responds."""
        # failing brokers come last, others in random order, which spreads the members of a group over the brokers
        candidates = sorted(self._known(), key=lambda broker: (self._pool.waits_s(broker), self._random()))
        try:
            async with timeout(self._patience_s):
                found = await self._ask_in_turn(candidates, topics)
        except TimeoutError:
            found = ConnectionLost(f"no answer within {self._patience_s:g} s")
        if isinstance(found, ClusterView):
            return found
        raise ConnectionLost(f"Metadata: none of {len(candidates)} brokers answered; last: {found}") from found

    async def _ask_in_turn(
        self, candidates: Collection[Broker], topics: Collection[str] | None
    ) -> ClusterView | Exception:
        """Return the first view, or the last failure. Can be cancelled at any time."""
        failure: ClusterView | Exception = ConnectionLost("no broker is known")
        rest, asked = deque(candidates), set[asyncio.Task[ClusterView | Exception]]()
        async with asyncio.TaskGroup() as tasks:
            while rest or asked:
                if rest:
                    asked.add(tasks.create_task(self._try(rest.popleft(), topics)))
                done, asked = await asyncio.wait(
                    asked, timeout=self._alone_s if rest else None, return_when=asyncio.FIRST_COMPLETED
                )
                results = [task.result() for task in done]
                views = [result for result in results if isinstance(result, ClusterView)]
                if views:
                    for task in asked:
                        task.cancel()
                    return views[0]
                failure = results[-1] if results else failure
        return failure

    async def _try(self, broker: Broker, topics: Collection[str] | None) -> ClusterView | Exception:
        try:
            return await self._ask(broker, topics)
        except (ConnectionLost, ProtocolError) as error:
            self._log.debug("metadata_not_answered", broker=broker.id, reason=str(error))
            return error

    async def _ask(self, broker: Broker, topics: Collection[str] | None) -> ClusterView:
        connection = await self._pool.get(broker, Purpose.CONTROL)
        version = connection.version_of(MetadataRequest)
        creating = self._creates and topics is not None
        request = plan_creating_request(topics or (), version) if creating else plan_request(topics, version)
        response = await connection.request(request, timeout_s=self._timeout_s, version=version)
        if sum(len(topic.partitions) for topic in response.topics) + len(response.brokers) <= _LARGE_RESPONSE:
            return make_view(response, topics, tls=broker.tls)
        return await asyncio.to_thread(make_view, response, topics, tls=broker.tls)
