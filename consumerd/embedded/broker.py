# SPDX-License-Identifier: Apache-2.0
"""An embedded Kafka broker: assembles storage, network, request handlers, coordinator and registration.

For the demo, tests and development. ``releases`` defines the Kafka releases it can imitate, ``faults`` the
faults it can inject. Several brokers of one process share a ``storage.BrokerStorage``.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from consumerd.aio.clock import monotonic
from consumerd.embedded.acls import Allows
from consumerd.embedded.authorizing import authorize
from consumerd.embedded.catalogue import LogCatalogue
from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.handlers import group_handlers
from consumerd.embedded.coordinator.producer_ids import ProducerIds
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.transaction_handlers import transaction_handlers
from consumerd.embedded.coordinator.transactions import TransactionCoordinator, make_transaction_topic
from consumerd.embedded.coordinator.zookeeper_positions import ZooKeeperPositions
from consumerd.embedded.dispatch import Dispatcher
from consumerd.embedded.faults import BrokerFaults, FillableFiles
from consumerd.embedded.handlers.context import Handler
from consumerd.embedded.handlers.table import log_handlers
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.metadata_store import MetadataStore
from consumerd.embedded.node_topics import NodeTopics
from consumerd.embedded.nodes import Nodes
from consumerd.embedded.registration import BrokerNode
from consumerd.embedded.releases import Imitation, MessageFormat, get_imitation
from consumerd.embedded.sasl import FIRST_RELEASE, LATE_HANDLERS, SaslDispatcher, SaslUsers
from consumerd.embedded.server import BrokerServer, RequestDispatcher
from consumerd.embedded.serving import BrokerSession, ServingBroker, ServingSettings, connect
from consumerd.embedded.storage import BrokerStorage
from consumerd.embedded.topics import Topics
from consumerd.errors import ConfigError, CoordinationError
from consumerd.model import BrokerId
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.metadata import MetadataBroker
from consumerd.zk.port import ZkClient

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_DAY_MS: Final = 24 * 60 * 60 * 1000
_FIRST_WITH_TOPIC_IDS: Final = (2, 8)
_FIRST_WITH_A_WEEK: Final = (2, 0)
"""Release from which positions are kept for a week by default (KIP-186)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServingSettings):
    """The settings of an embedded broker.

    Raises ConfigError for an unknown release, a release that needs ZooKeeper without one or the reverse, and an invalid
    port.
    """

    as_release: str = "1.1"
    message_format: MessageFormat | None = None
    """The version of the message format (magic) in which logs store records; None for the default of the release."""
    num_partitions: int = 1
    """Partitions of automatically created topics."""
    auto_create_topics: bool = True
    log: LogSettings = field(default_factory=LogSettings)
    """Defaults of the topics' settings; its ``message_format`` is replaced by that of the broker's settings."""
    offsets_topic_partitions: int = 4
    """Partitions of ``__consumer_offsets``. Kafka's 50 are many for one node on a laptop."""
    min_group_session_timeout_ms: int = 6000
    """Least session timeout, in milliseconds, of a group's members: ``group.min.session.timeout.ms``."""

    users: SaslUsers | None = None
    """Users for SASL; None for a listener without it."""
    acls: Allows | None = None
    """Decides what a principal may do; None to allow everything."""

    @property
    def has_sasl(self) -> bool:
        """True if clients authenticate."""
        return self.users is not None

    def __post_init__(self) -> None:
        imitation = get_imitation(self.as_release)
        if imitation.has_zookeeper != (self.zookeeper is not None):
            has = "has no ZooKeeper" if self.zookeeper is None else "has a ZooKeeper"
            raise ConfigError(f"as-release: {self.as_release} does not fit a cluster that {has}")
        if self.users is not None and imitation.release < FIRST_RELEASE:
            raise ConfigError(f"users: {self.as_release} has neither PLAIN nor SCRAM; 0.10 and later have both")
        ServingSettings.__post_init__(self)

    @property
    def imitation(self) -> Imitation:
        """The imitated release."""
        return get_imitation(self.as_release)

    @property
    def log_settings(self) -> LogSettings:
        """The broker's defaults for the settings of topics."""
        stored = self.imitation.message_format if self.message_format is None else self.message_format
        return replace(self.log, message_format=stored)


class EmbeddedBroker(ServingBroker[BrokerSettings]):
    """A broker that serves while its ``async with`` block runs, which can be entered once.

    A failure in the background (another process takes the broker's id) cancels the block, which then raises an
    ExceptionGroup.

    Args:
        storage: Topics and logs that it shares with other brokers of this process; without it, it opens its own, with
            the topics in ZooKeeper.
    """

    def __init__(self, settings: BrokerSettings, storage: BrokerStorage | None = None) -> None:
        super().__init__(settings, BrokerFaults(None if storage is None else storage.files))
        self._shared = storage
        self._storage: BrokerStorage | None = storage
        self._abandoned = False

    def abandon(self) -> None:
        """Make the stop that follows look like that of a killed broker.

        The broker then does not hand over the partitions that it leads, and its ephemeral nodes stay in ZooKeeper until
        its session expires.
        """
        self._abandoned = True
        super().abandon()

    @property
    def topics(self) -> LogCatalogue:
        """The topics and their open logs."""
        return self._running(self._storage).catalogue

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; return when clients can use it.

        ``configs`` are Kafka's topic settings with ``_`` in place of ``.``. Raises InvalidTopic, InvalidPartitions,
        TopicExists, ConfigError, CoordinationError.
        """
        await self.topics.create(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})

    # -- assembly

    async def _start(self, stack: AsyncExitStack, server: BrokerServer) -> None:
        settings, storage = self._settings, self._storage
        if storage is not None and storage.metadata is not None:
            client = storage.metadata.client(session_timeout_s=settings.session_timeout_ms / 1000)
            zk: BrokerSession = await stack.enter_async_context(client)
        else:
            zk = await stack.enter_async_context(await connect(settings))
        self._zk = zk
        if storage is None:
            # in the same session as the registration, as a broker does
            storage = make_storage(settings, zk, [BrokerId(settings.broker_id)], self.faults.files)
            self._storage = await stack.enter_async_context(storage)
        await self._serve(stack, server, storage, zk)

    async def _serve(
        self, stack: AsyncExitStack, server: BrokerServer, storage: BrokerStorage, zk: BrokerSession
    ) -> None:
        settings, nodes, address = self._settings, storage.nodes, self.address
        topics: Topics = storage.catalogue if nodes.is_single else NodeTopics(storage.catalogue, address.broker_id)
        release = settings.imitation.release
        groups = CoordinatorSettings(
            release=release,
            offsets_topic_partitions=settings.offsets_topic_partitions,
            offsets_retention_ms=_DAY_MS * (7 if release >= _FIRST_WITH_A_WEEK else 1),
            min_session_timeout_ms=settings.min_group_session_timeout_ms,
        )
        coordinator = GroupCoordinator(
            OffsetsTopic(topics, storage.appender, groups),
            settings=groups,
            now=monotonic,
            now_ms=storage.now_ms,
            new_id=lambda: str(uuid.uuid4()),
        )
        await stack.enter_async_context(coordinator)
        transactions = TransactionCoordinator(
            make_transaction_topic(topics, storage.appender),
            storage.appender,
            find_log=storage.catalogue.find_log,
            take_id=ProducerIds(zk, address.broker_id).take,
            now_ms=storage.now_ms,
        )
        await stack.enter_async_context(transactions)
        self._registration = registration = BrokerNode(
            zk,
            address=address,
            release=release,
            now_ms=storage.now_ms,
            random_bytes=secrets.token_bytes,
            nodes=nodes,
        )
        handlers = log_handlers(
            topics,
            storage.appender,
            self.faults,
            broker=MetadataBroker(node_id=settings.broker_id, host=address.host, port=address.port),
            nodes=nodes,
            cluster_id=lambda: registration.cluster_id,
            partitions_of_new=settings.num_partitions if settings.auto_create_topics else 0,
            settings=settings.log_settings,
            at_end=stack.callback,
        )
        group = group_handlers(
            coordinator,
            ZooKeeperPositions(zk),
            topics=topics,
            address=address,
            find_address=None if nodes.is_single else nodes.find_address,
            find_transactional=transactions.find,
            now_ms=storage.now_ms,
        )
        transactional = transaction_handlers(transactions, coordinator, topics=topics, now_ms=storage.now_ms)
        dispatcher = self._secure({**handlers, **group, **transactional})
        await stack.enter_async_context(server.serving(dispatcher))
        if self._shared is None:
            await stack.enter_async_context(storage.housekeeping())
        nodes.start(address)
        await stack.enter_async_context(registration)
        if self._shared is not None:
            stack.push_async_callback(self._retire, storage)
            await storage.catalogue.settle(address.broker_id)

    def _secure(self, handlers: Mapping[ApiKey, Handler]) -> RequestDispatcher:
        """Return the dispatcher of requests, behind authorization and authentication if the settings want them."""
        settings = self._settings
        imitation = settings.imitation
        if settings.acls is not None:
            handlers = authorize(handlers, settings.acls, imitation.release)
        if settings.users is None:
            return Dispatcher(handlers, imitation, self.faults)
        dispatcher = Dispatcher({**handlers, **LATE_HANDLERS}, imitation, self.faults)
        return SaslDispatcher(dispatcher, settings.users, imitation.release)

    async def _retire(self, storage: BrokerStorage) -> None:
        """Have other brokers lead its partitions before it goes: Kafka's controlled shutdown."""
        if self._abandoned:
            return
        broker = BrokerId(self._settings.broker_id)
        storage.nodes.leave(broker)
        try:
            await storage.catalogue.settle(broker)
        except (CoordinationError, LogError, OSError) as error:
            log.warning("controlled_shutdown_failed", broker=broker, error=str(error))


def make_storage(
    settings: BrokerSettings,
    zk: ZkClient,
    brokers: Iterable[BrokerId],
    files: FillableFiles,
    metadata: MetadataStore | None = None,
) -> BrokerStorage:
    """Return the storage of topics and logs that brokers with these settings share.

    The storage is opened by its ``async with`` block.

    Args:
        settings: Settings of one of the brokers.
        zk: The session in which topics are read and written.
        brokers: The ids of all brokers.
        files: The file system of the logs.
        metadata: Takes the place of ZooKeeper in a cluster without it; None with ZooKeeper.
    """
    return BrokerStorage(
        zk,
        Nodes(tuple(brokers)),
        files,
        metadata=metadata,
        directory=settings.directory,
        log_settings=settings.log_settings,
        with_topic_ids=settings.imitation.release >= _FIRST_WITH_TOPIC_IDS,
        retention_check_interval_s=settings.retention_check_interval_s,
    )
