# SPDX-License-Identifier: Apache-2.0
"""One broker in this process: assembles logs, network, handlers, coordinator and registration.

For the demo, tests and development: one node, no replication, no security. ``releases`` defines the releases it can
imitate, ``faults`` the faults it can inject.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from consumerd.aio.clock import boottime, monotonic
from consumerd.aio.tasks import alongside
from consumerd.embedded.appending import Appender
from consumerd.embedded.catalogue import LogCatalogue
from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.handlers import group_handlers
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.zookeeper_positions import ZooKeeperPositions
from consumerd.embedded.dispatch import Dispatcher
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.table import log_handlers
from consumerd.embedded.housekeeping import Housekeeper
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.registration import BrokerNode
from consumerd.embedded.releases import Imitation, MessageFormat, get_imitation
from consumerd.embedded.server import DEFAULT_IDLE_S, DEFAULT_RECEIVED_BYTES, BrokerServer, listen
from consumerd.embedded.storage import Storage
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import ConfigError
from consumerd.model import BrokerId
from consumerd.wire.modern.metadata import MetadataBroker
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.connect_string import parse_connect_string

T = TypeVar("T")

_MIB: Final = 1024 * 1024
_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of a broker.

    Raises ConfigError for an unknown release and an invalid port.
    """

    broker_id: int = 0
    host: str = "127.0.0.1"
    """The address it listens on and registers."""
    port: int = 0
    """0: a free one."""
    directory: Path
    """The directory of the partitions' folders."""
    zookeeper: str
    """A connect string, with a chroot if there is one."""
    as_release: str = "1.1"
    message_format: MessageFormat | None = None
    """The magic that logs store; None: the release's."""
    num_partitions: int = 1
    """Partitions of automatically created topics."""
    auto_create_topics: bool = True
    log: LogSettings = field(default_factory=LogSettings)
    """Defaults of the topics' settings; its ``message_format`` is replaced by the one above."""
    max_request_bytes: int = 100 * _MIB
    max_received_bytes: int = DEFAULT_RECEIVED_BYTES
    """Bytes of the large requests of all connections together; others wait. Kafka's ``queued.max.request.bytes``."""
    offsets_topic_partitions: int = 4
    """Partitions of ``__consumer_offsets``. Kafka's 50 are many for one node on a laptop."""
    session_timeout_ms: int = 6000
    """Timeout of the broker's ZooKeeper session."""
    write_timeout_s: float = 30.0
    """Time after which a peer that accepts no bytes of a response is disconnected."""
    idle_timeout_s: float = DEFAULT_IDLE_S
    """Time after which a silent peer that has no pending request is disconnected."""
    retention_check_interval_s: float = 30.0

    def __post_init__(self) -> None:
        get_imitation(self.as_release)
        # the system would take such a number modulo 65536
        if not 0 <= self.port <= _LAST_PORT:
            raise ConfigError(f"port: expected 0 to {_LAST_PORT}, got {self.port}")

    @property
    def imitation(self) -> Imitation:
        """The imitated release."""
        return get_imitation(self.as_release)

    @property
    def log_settings(self) -> LogSettings:
        """The settings of logs without settings of their own."""
        stored = self.imitation.message_format if self.message_format is None else self.message_format
        return replace(self.log, message_format=stored)


class EmbeddedBroker:
    """A broker that serves while its ``async with`` block runs; to be entered once.

    A failure in the background (another process takes the broker's id) cancels the block, which then raises an
    ExceptionGroup.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._faults = BrokerFaults()
        self._server: BrokerServer | None = None
        self._catalogue: LogCatalogue | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start, and return when clients can connect.

        Raises ConfigError (it cannot listen), LogError (its directory cannot be used), BrokerIdTaken,
        CoordinationError. Bounded by the ZooKeeper session's calls, twice its timeout, and the recovery of the logs.
        """
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unregister, close connections and logs. Bounded by the disk and the session's calls.

        Raises ExceptionGroup of LogError if logs cannot be closed cleanly.
        """
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._running(self._server).port

    @property
    def bootstrap(self) -> str:
        """The address for clients: ``host:port``."""
        return f"{self._settings.host}:{self.port}"

    @property
    def faults(self) -> BrokerFaults:
        """The faults to inject."""
        return self._faults

    @property
    def topics(self) -> LogCatalogue:
        """The topics and their logs."""
        return self._running(self._catalogue)

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; return when it is served.

        ``configs`` are Kafka's settings with ``_`` in place of ``.``. Raises InvalidTopic, InvalidPartitions,
        TopicExists, ConfigError, CoordinationError.
        """
        await self.topics.create(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})

    def _running(self, part: T | None) -> T:
        if part is None:
            raise RuntimeError("the broker does not run")
        return part

    # -- assembly

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        # connections wait from here on; the port is not published before they are served
        listening = partial(
            listen,
            settings.host,
            settings.port,
            max_request_bytes=settings.max_request_bytes,
            max_received_bytes=settings.max_received_bytes,
            write_timeout_s=settings.write_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
        )
        self._server = await _open(listening, BrokerServer.close)
        stack.callback(self._server.close)
        opening = partial(Storage.open, settings.directory, files=self._faults.files, now_ms=_now_ms)
        storage = await _open(opening, Storage.close)
        stack.push_async_callback(asyncio.to_thread, storage.close)
        zk = await stack.enter_async_context(await _connect(settings))
        appender = await stack.enter_async_context(Appender())
        catalogue = LogCatalogue(
            zk,
            broker_id=BrokerId(settings.broker_id),
            settings=settings.log_settings,
            storage=storage,
            appender=appender,
            now_ms=_now_ms,
        )
        self._catalogue = await stack.enter_async_context(catalogue)
        address = BrokerAddress(broker_id=BrokerId(settings.broker_id), host=settings.host, port=self.port)
        groups = CoordinatorSettings(
            release=settings.imitation.release, offsets_topic_partitions=settings.offsets_topic_partitions
        )
        coordinator = GroupCoordinator(
            OffsetsTopic(catalogue, appender, groups),
            settings=groups,
            now=monotonic,
            now_ms=_now_ms,
            new_id=lambda: str(uuid.uuid4()),
        )
        await stack.enter_async_context(coordinator)
        registration = BrokerNode(
            zk,
            address=address,
            release=settings.imitation.release,
            now_ms=_now_ms,
            random_bytes=secrets.token_bytes,
        )
        handlers = log_handlers(
            catalogue,
            appender,
            self._faults,
            broker=lambda: MetadataBroker(node_id=settings.broker_id, host=settings.host, port=self.port),
            cluster_id=lambda: registration.cluster_id,
            partitions_of_new=settings.num_partitions if settings.auto_create_topics else 0,
        )
        positions = ZooKeeperPositions(zk)
        group = group_handlers(coordinator, positions, topics=catalogue, address=lambda: address, now_ms=_now_ms)
        dispatcher = Dispatcher({**handlers, **group}, settings.imitation, self._faults)
        await stack.enter_async_context(self._server.serving(dispatcher))
        housekeeper = Housekeeper(
            catalogue,
            appender,
            retention_check_interval_s=settings.retention_check_interval_s,
            write_checkpoints=storage.write_checkpoints,
        )
        await stack.enter_async_context(alongside(housekeeper.run(), name="housekeeping"))
        await stack.enter_async_context(registration)


async def _open(opening: Callable[[], T], close: Callable[[T], None]) -> T:
    """Open something in a thread. Cancelled, it waits for the thread and closes it again.

    The thread is bounded by the system.
    """
    opened = asyncio.get_running_loop().run_in_executor(None, opening)
    try:
        return await asyncio.shield(opened)
    except asyncio.CancelledError:
        await asyncio.wait([opened])
        if opened.exception() is None:
            close(opened.result())
        raise


async def _connect(settings: BrokerSettings) -> AiozkClient:
    """Return a ZooKeeper client that is not entered yet.

    Like a broker, creates the chroot if it is missing (KafkaServer.initZk).
    """

    def make(connect_string: str) -> AiozkClient:
        return AiozkClient(
            connect_string, session_timeout_s=settings.session_timeout_ms / 1000, now=boottime, random=random.random
        )

    address = parse_connect_string(settings.zookeeper)
    if address.chroot:
        async with make(str(replace(address, chroot=""))) as root:
            await root.ensure_path(address.chroot)
    return make(settings.zookeeper)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
