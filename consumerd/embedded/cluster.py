# SPDX-License-Identifier: Apache-2.0
"""An embedded ZooKeeper and its brokers: for the demo, tests and development, not production."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from consumerd.embedded.broker import BrokerSettings, EmbeddedBroker, make_storage
from consumerd.embedded.brokers import BrokerCluster
from consumerd.embedded.faults import FillableFiles
from consumerd.embedded.metadata_store import MetadataStore
from consumerd.embedded.serving import connect
from consumerd.embedded.storage import BrokerStorage
from consumerd.model import BrokerId, TopicPartition
from consumerd.zk.port import ZkClient


class EmbeddedCluster(BrokerCluster[BrokerSettings, EmbeddedBroker]):
    """A cluster of one or more brokers; ``async with`` starts and stops it.

    ZooKeeper is started first and stopped last. Nothing is left behind if starting fails or is cancelled. A failure of
    a broker in the background cancels the block, which then raises an ExceptionGroup.

    With several brokers, a started one is in sync with the others when :meth:`start_broker` returns. Others become
    leaders of a broker's partitions before it is stopped, or when the session of a killed one has expired.

    Args:
        directory: Keeps logs and ZooKeeper's data between runs. Without it, a temporary folder is created, and removed
            on leaving.
        zookeeper: Connect string of a running ZooKeeper. Without it, one is started.
        without_zookeeper: Start a cluster that has no ZooKeeper; its settings name a release of that time.
        topics: Topics to exist when the block begins, with their numbers of partitions; missing ones are created.
        nodes: The number of brokers. Their ids go up by one from that of the settings, and so do their ports, unless
            those are free ones. New topics have a replica on each of them.
        make_broker: Creates the broker's settings from ``directory`` and ``zookeeper``, such as
            ``partial(BrokerSettings, as_release="0.9")``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        zookeeper: str | None = None,
        without_zookeeper: bool = False,
        topics: Mapping[str, int] | None = None,
        nodes: int = 1,
        make_broker: Callable[..., BrokerSettings] = BrokerSettings,
    ) -> None:
        super().__init__(
            directory,
            zookeeper=zookeeper,
            has_zookeeper=not without_zookeeper,
            nodes=nodes,
            make_settings=make_broker,
        )
        self._topics = topics or {}
        self._storage: BrokerStorage | None = None

    @property
    def broker(self) -> EmbeddedBroker:
        """The running broker with the lowest number (see :attr:`brokers`).

        Raises RuntimeError while none runs.
        """
        if not self._brokers:
            raise RuntimeError("the broker does not run")
        return self._brokers[min(self._brokers)]

    async def elect_preferred_leaders(self) -> None:
        """Make the first replica of each partition its leader again, where in sync.

        A first replica that is not in sync does not become leader.
        """
        await self.broker.topics.elect_preferred()

    async def move_leader(self, partition: TopicPartition, number: int) -> None:
        """Make the broker with this number the leader of a partition.

        The effect is that of a reassignment to the same replicas in another order. Raises InvalidPartitions if the
        broker has no replica.
        """
        await self.broker.topics.move_leader(partition, BrokerId(self._settings[number].broker_id))

    def _make_broker(self, settings: BrokerSettings) -> EmbeddedBroker:
        return EmbeddedBroker(settings, self._storage)

    async def _prepare(self, stack: AsyncExitStack, directory: Path) -> None:
        """Open what several brokers share, in a session that outlives each of them."""
        if self._count == 1 and self.has_zookeeper:
            return
        settings = self._settings[0]
        store: MetadataStore | None = None
        zk: ZkClient
        if self.has_zookeeper:
            zk = await stack.enter_async_context(await connect(settings))
        else:
            store = await stack.enter_async_context(MetadataStore(directory / "metadata", now_ms=BrokerStorage.now_ms))
            zk = await stack.enter_async_context(store.client(session_timeout_s=settings.session_timeout_ms / 1000))
        ids = [BrokerId(one.broker_id) for one in self._settings]
        storage = make_storage(settings, zk, ids, FillableFiles(), store)
        self._storage = await stack.enter_async_context(storage)
        await stack.enter_async_context(storage.housekeeping())

    async def _complete(self) -> None:
        """Create the topics that are missing."""
        for name, partitions in self._topics.items():
            if self.broker.topics.find(name) is None:
                await self.broker.create_topic(name, partitions)
