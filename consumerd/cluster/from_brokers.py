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
from consumerd.cluster.identities import ClusterIdentities
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
    """Return a Metadata request for ``topics`` that creates no topic; None for all topics.

    Up to version 3 a broker may create the topics that a request names. So the request is then for all topics, and the
    caller drops those it does not want.

    Args:
        version: Version of the request that is going to be sent.
    """
    if topics is None:
        return MetadataRequest(topics=None, allow_auto_topic_creation=version < _FIRST_WITHOUT_CREATION)
    if version >= _FIRST_WITHOUT_CREATION:
        return MetadataRequest(topics=tuple(sorted(topics)), allow_auto_topic_creation=False)
    if not topics and version >= _FIRST_WITH_EMPTY_LIST:
        return MetadataRequest(topics=())
    return MetadataRequest(topics=None)


def plan_creating_request(topics: Collection[str], version: int) -> MetadataRequest:
    """Return a Metadata request for ``topics`` that lets the broker create missing topics.

    The broker's settings decide if it creates them. For an empty collection, only the brokers are requested.

    Args:
        version: Version of the request that is going to be sent.
    """
    if not topics:
        return plan_request(topics, version)
    return MetadataRequest(topics=tuple(sorted(topics)))


def make_view(
    response: MetadataResponse,
    topics: Collection[str] | None,
    *,
    tls: bool,
    identities: ClusterIdentities | None = None,
) -> ClusterView:
    """Return the view of the requested topics in a Metadata response.

    Args:
        topics: The topics of the view; None for all in the response.
        tls: True if the response came over TLS, so the addresses in it speak TLS.
        identities: How topics and the cluster are identified, in a cluster without ZooKeeper. None if ZooKeeper tells
            incarnations: topics of the view have none then.
    """
    brokers = {
        BrokerId(one.node_id): Broker(id=BrokerId(one.node_id), host=one.host, port=one.port, tls=tls, rack=one.rack)
        for one in response.brokers
        if 0 < len(one.host) <= _LONGEST_HOST and 0 < one.port <= _LAST_PORT
    }
    found = (_make_topic(one, identities) for one in response.topics if topics is None or one.topic in topics)
    cluster_id = response.cluster_id if identities is None else identities.identify_cluster(response.cluster_id)
    return ClusterView(
        brokers=dict(sorted(brokers.items())),
        topics={topic.name: topic for topic in found if topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        cluster_id=cluster_id,
        controller=_as_broker(response.controller_id),
    )


def _make_topic(topic: MetadataTopic, identities: ClusterIdentities | None) -> TopicView:
    partitions = {
        PartitionKey(one.partition): PartitionView(
            leader=_as_broker(one.leader),
            replicas=tuple(map(BrokerId, one.replicas)),
            isr=tuple(map(BrokerId, one.isr)),
            error=one.error_code,
        )
        for one in topic.partitions
    }
    return TopicView(
        name=topic.topic,
        partitions=dict(sorted(partitions.items())),
        incarnation=None if identities is None else identities.identify_topic(topic.topic, topic.topic_id),
        error=topic.error_code,
    )


def _as_broker(number: int) -> BrokerId | None:
    return None if number < 0 else BrokerId(number)


class BrokerSource:
    """Reads brokers, topics and leaders from one known broker; tries the next if it fails.

    A broker that hangs (a paused machine, a lost route) is often the leader of the very partitions that need a new
    leader. So the next broker is asked too if the first one does not respond soon.

    Args:
        known: Returns the brokers to ask.
        random: Returns floats in [0, 1), for the order of brokers.
        timeout_s: Time limit of each request, in seconds.
        patience_s: Time limit of all requests together, in seconds.
        alone_s: Time without a response, in seconds, after which the next broker is asked too.
        creates: True if missing topics shall be created.
        identities: How topics and the cluster are identified, in a cluster without ZooKeeper; None in one with it.
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
        identities: ClusterIdentities | None = None,
    ) -> None:
        self._pool = pool
        self._known = known
        self._random = random
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._alone_s = alone_s
        self._creates = creates
        self._identities = identities
        self._log = structlog.get_logger(__name__)

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Return brokers, topics and leaders, as one of the brokers knows them.

        Args:
            topics: Topics to read; None for all.

        Raises ConnectionLost if no broker responds.
        """
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
            return make_view(response, topics, tls=broker.tls, identities=self._identities)
        return await asyncio.to_thread(make_view, response, topics, tls=broker.tls, identities=self._identities)
