# SPDX-License-Identifier: Apache-2.0
"""Base of the embedded brokers of both generations: network, start, stop and ZooKeeper session."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from consumerd.aio.clock import boottime
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.registered_node import RegisteredNode
from consumerd.embedded.server import DEFAULT_IDLE_S, DEFAULT_RECEIVED_BYTES, BrokerServer, listen
from consumerd.embedded.storage import open_in_thread
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import ConfigError
from consumerd.model import BrokerId
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.connect_string import parse_connect_string
from consumerd.zk.port import ZkClient

T = TypeVar("T")

_MIB: Final = 1024 * 1024
_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Settings of an embedded broker of any generation. Raises ConfigError for an invalid port."""

    broker_id: int = 0
    host: str = "127.0.0.1"
    """The address it listens on and registers."""
    port: int = 0
    """The port it listens on; 0 for a free one."""
    advertised_port: int = 0
    """The port that it tells to clients, such as that of a proxy before it; 0 for its own."""
    directory: Path
    """The directory in which each partition's log has a folder."""
    zookeeper: str | None
    """A connect string, with a chroot if there is one; None for a broker without ZooKeeper."""
    max_request_bytes: int = 100 * _MIB
    max_received_bytes: int = DEFAULT_RECEIVED_BYTES
    """Limit, in bytes, of the large requests of all connections together; further ones wait.

    Kafka's ``queued.max.request.bytes``.
    """
    session_timeout_ms: int = 6000
    """Timeout of the broker's ZooKeeper session, in milliseconds."""
    write_timeout_s: float = 30.0
    """Time, in seconds, after which a client that accepts no bytes of a response is disconnected."""
    idle_timeout_s: float = DEFAULT_IDLE_S
    """Time, in seconds, after which a silent client that has no pending request is disconnected."""
    retention_check_interval_s: float = 30.0

    @property
    def has_sasl(self) -> bool:
        """True if clients authenticate; those of Kafka 0.6 and 0.7 cannot."""
        return False

    def __post_init__(self) -> None:
        # the system would take such a number modulo 65536
        if not 0 <= self.port <= _LAST_PORT:
            raise ConfigError(f"port: expected 0 to {_LAST_PORT}, got {self.port}")


S = TypeVar("S", bound=ServingSettings)


class BrokerSession(ZkClient, Protocol):
    """The ZooKeeper session in which a broker is registered.

    In a cluster without ZooKeeper: a session of :class:`~consumerd.embedded.metadata_store.MetadataStore`.
    """

    def abandon(self) -> None:
        """Let the session expire instead of ending it, as a killed broker does."""


class ServingBroker(ABC, Generic[S]):
    """A broker that serves while its ``async with`` block runs, which can be entered once.

    A failure in the background (another process takes the broker's id) cancels the block, which then raises an
    ExceptionGroup.
    """

    def __init__(self, settings: S, faults: BrokerFaults) -> None:
        self._settings = settings
        self.faults = faults
        """The faults to inject."""
        self._server: BrokerServer | None = None
        self._zk: BrokerSession | None = None
        self._registration: RegisteredNode | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the broker, and return when clients can connect.

        Raises ConfigError (it cannot listen), LogError (its directory cannot be used), BrokerIdTaken,
        CoordinationError. It waits for an earlier registration of this broker id for twice the session timeout at most.
        Recovering the logs takes as long as the disk.
        """
        async with AsyncExitStack() as stack:
            self._server = server = await self._listen()
            # connections wait from here on; the port is not published before they are served
            stack.callback(server.close)
            await self._start(stack, server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the broker: delete its registration, close connections and logs.

        Closing the logs takes as long as the disk. Raises ExceptionGroup of LogError if logs cannot be closed cleanly.
        """
        await self._stack.__aexit__(kind, error, traceback)

    def abandon(self) -> None:
        """Make the stop that follows look like that of a killed broker to ZooKeeper.

        The broker's ephemeral nodes stay in ZooKeeper until its session expires.
        """
        if self._registration is not None and self._zk is not None:
            self._registration.abandon()
            self._zk.abandon()

    @property
    def port(self) -> int:
        """The TCP port on which the broker listens."""
        return self._running(self._server).port

    @property
    def bootstrap(self) -> str:
        """The broker's address for clients: ``host:port``."""
        return f"{self._settings.host}:{self.port}"

    @property
    def address(self) -> BrokerAddress:
        """The broker's id, and the address that it tells to clients."""
        settings = self._settings
        port = settings.advertised_port or self.port
        return BrokerAddress(
            broker_id=BrokerId(settings.broker_id), host=settings.host, port=port, sasl=settings.has_sasl
        )

    @abstractmethod
    async def _start(self, stack: AsyncExitStack, server: BrokerServer) -> None:
        """Open logs and session, serve, and register; ``stack`` ends all of it."""

    async def _listen(self) -> BrokerServer:
        settings = self._settings
        listening = partial(
            listen,
            settings.host,
            settings.port,
            max_request_bytes=settings.max_request_bytes,
            max_received_bytes=settings.max_received_bytes,
            write_timeout_s=settings.write_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
        )
        return await open_in_thread(listening, BrokerServer.close)

    def _running(self, part: T | None) -> T:
        if part is None:
            raise RuntimeError("the broker does not run")
        return part


async def connect(settings: ServingSettings) -> AiozkClient:
    """Return a ZooKeeper client for a broker; its ``async with`` block connects.

    Like a broker, it creates the chroot if that is missing (KafkaServer.initZk). Raises ConfigError if the settings
    name no ZooKeeper.
    """
    if settings.zookeeper is None:
        raise ConfigError("zookeeper: a broker of its own needs a connect string")

    def make(connect_string: str) -> AiozkClient:
        return AiozkClient(
            connect_string, session_timeout_s=settings.session_timeout_ms / 1000, now=boottime, random=random.random
        )

    address = parse_connect_string(settings.zookeeper)
    if address.chroot:
        async with make(str(replace(address, chroot=""))) as root:
            await root.ensure_path(address.chroot)
    return make(settings.zookeeper)
