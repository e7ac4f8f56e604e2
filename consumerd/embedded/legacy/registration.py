# SPDX-License-Identifier: Apache-2.0
"""Registration of a broker of Kafka 0.6 or 0.7 and its topics in ZooKeeper.

============================  ==============================  =======================================
node                          content                         written
============================  ==============================  =======================================
``/brokers/ids/2``            ``creator:host:port``           at the start
``/brokers/topics/dogs/2``    ``4``: the broker's partitions  once the broker has a log of the topic
                              of the topic
============================  ==============================  =======================================

Both are ephemeral, their parents are persistent and without data. In a new session, all of them are written again
(``registered_node``). A topic is registered in the background: producers do not wait for it, and it is made up for when
ZooKeeper is back.

Sources: ``KafkaZooKeeper.scala`` of Kafka 0.7.2; "Writing a Driver for Kafka", section ZooKeeper. ``zk.layout_legacy``
has the readers' side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from consumerd.embedded.registered_node import RegisteredNode
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import CoordinationError
from consumerd.model import SessionEpoch
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, broker_path, topic_path
from consumerd.zk.layout_legacy import topic_broker_path
from consumerd.zk.port import ZkClient
from consumerd.zk.znodes_legacy import parse_broker

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def encode_legacy_broker(address: BrokerAddress, *, started_ms: int) -> bytes:
    """Return the content of ``/brokers/ids/B``: creator, host and port.

    The creator is the host and the time of the start, in ms since the epoch.
    """
    return f"{address.host}-{started_ms}:{address.host}:{address.port}".encode()


class LegacyBrokerNode(RegisteredNode):
    """Registration of a broker and its topics, while an ``async with`` block runs.

    Args:
        count: Returns the number of a topic's partitions on this broker.
        topics: Topics that the broker has at its start.
        started_ms: Time of the start, in ms since the epoch.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        address: BrokerAddress,
        count: Callable[[str], int],
        topics: Iterable[str],
        started_ms: int,
    ) -> None:
        super().__init__(zk, address)
        self._count = count
        self._content = encode_legacy_broker(address, started_ms=started_ms)
        self._topics = set(topics)
        self._registered: set[str] = set()
        """Topics whose nodes exist in the present session."""

    def add_topic(self, topic: str) -> None:
        """Register a topic soon, if it is not registered. Returns at once."""
        if topic not in self._topics:
            self._topics.add(topic)
            self._changed.set()

    async def _create(self, epoch: SessionEpoch) -> None:
        """Create the nodes of the broker and its topics."""
        for path in (BROKER_IDS, BROKER_TOPICS):
            await self._zk.ensure_path(path)
        await self._ephemeral.create_broker_node(self._address, self._content, epoch, parse_broker)
        await self._update(epoch)
        log.info("broker_registered", broker=self._address.broker_id, topics=len(self._registered))

    async def _update(self, epoch: SessionEpoch) -> None:
        """Create the nodes of topics that have none in this session."""
        for topic in sorted(self._topics - self._registered):
            await self._zk.ensure_path(topic_path(topic))
            path = topic_broker_path(topic, self._address.broker_id)
            try:
                await self._ephemeral.create_when_free(path, b"%d" % self._count(topic), epoch)
            except TimeoutError as error:
                raise CoordinationError(f"{path}: belongs to another session, which does not end") from error
            self._registered.add(topic)

    def _forget_session(self) -> None:
        self._registered.clear()

    def _list_own(self) -> list[str]:
        broker = self._address.broker_id
        return [*(topic_broker_path(topic, broker) for topic in sorted(self._registered)), broker_path(broker)]
