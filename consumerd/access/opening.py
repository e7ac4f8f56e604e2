# SPDX-License-Identifier: Apache-2.0
"""Opens a cluster: the ZooKeeper session and the brokers' connections, for daemon, commands, producers and Spark.

Nothing else makes a ZooKeeper client, a dialer or a pool for a cluster that is given by an address. What is built on top
of the connections, directories of leaders for instance, is joined in ``client.opening`` and ``daemon.assemble``.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from consumerd.access.address import ClusterAddress
from consumerd.aio.clock import boottime, monotonic
from consumerd.aio.timeouts import timeout
from consumerd.cluster.from_zookeeper import PLAINTEXT, SSL, ZooKeeperSource
from consumerd.cluster.generation import require_modern
from consumerd.cluster.view import Broker
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.net.versions import parse_broker_version
from consumerd.telemetry.hooks import Hooks

if TYPE_CHECKING:
    from consumerd.zk.aiozk_client import AiozkClient

T = TypeVar("T")

Brokers = tuple[Broker, ...]

_ANSWER_BYTES: Final = 64 << 20
"""Largest part of an answer that varies: the topics of a large cluster in Metadata, or one record set."""
_FRAME_OVERHEAD_BYTES: Final = 1 << 20
"""Size of everything else in a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConnections:
    """Open connections to one cluster. ``session`` is None where the address has no ZooKeeper."""

    address: ClusterAddress
    pool: ConnectionPool
    session: AiozkClient | None
    hooks: Hooks

    @property
    def zk(self) -> AiozkClient:
        """ZooKeeper session of an address that has one."""
        assert self.session is not None, "callers that need ZooKeeper are given its address"
        return self.session

    async def find_registered(self) -> Brokers:
        """Return the brokers that are registered in ZooKeeper. Raises CoordinationError, ConnectionLost if there is none."""
        source = ZooKeeperSource(self.zk, protocol=PLAINTEXT if self.address.tls is None else SSL, hooks=self.hooks)
        view = await source.read((), leaders=False)
        if not view.brokers:
            raise ConnectionLost(f"no broker is registered in ZooKeeper at {self.address.zookeeper}")
        return tuple(view.brokers.values())


@asynccontextmanager
async def open_cluster(
    address: ClusterAddress,
    *,
    wait_s: float | None,
    hooks: Hooks | None = None,
    max_answer_bytes: int = _ANSWER_BYTES,
    receive_buffer_bytes: int | None = None,
) -> AsyncIterator[ClusterConnections]:
    """Connect to a cluster for the block. Connections to brokers are made when they are asked for.

    Args:
        wait_s: Time for the ZooKeeper session and for the check of the cluster's generation. With None the caller does
            both, as the daemon, which waits for as long as it takes.
        max_answer_bytes: Largest record set, or list of topics, that an answer may hold.
        receive_buffer_bytes: Size of the socket's receive buffer; None leaves it to the system.

    Raises ConfigError (files, release), CoordinationError (no ZooKeeper in time), UnsupportedGeneration.
    """
    hooks = hooks or Hooks()
    dialer = Dialer(
        TcpConnector(
            max_frame_bytes=max_answer_bytes + _FRAME_OVERHEAD_BYTES,
            timeout_s=address.connect_timeout_s,
            tls=None if address.tls is None else address.tls.make_context(),
            receive_buffer_bytes=receive_buffer_bytes,
        ),
        client_id=address.client_id,
        now=monotonic,
        hooks=hooks,
        pinned=parse_broker_version(address.broker_version),
    )
    async with AsyncExitStack() as stack:
        session = None
        if address.zookeeper is not None:
            from consumerd.zk.aiozk_client import AiozkClient  # tasks of Spark do without, and start sooner

            session = AiozkClient(
                address.zookeeper,
                session_timeout_s=address.session_timeout_s,
                now=boottime,
                random=random.random,
                auth=None if address.zookeeper_auth is None else address.zookeeper_auth.read(),
                hooks=hooks,
            )
            await stack.enter_async_context(session)
            if wait_s is not None:
                await _wait_modern(session, address.zookeeper, wait_s, trusted=address.trusts_modern)
        pool = await stack.enter_async_context(ConnectionPool(dialer, now=monotonic, random=random.random))
        yield ClusterConnections(address=address, pool=pool, session=session, hooks=hooks)


async def _wait_modern(zk: AiozkClient, connect_string: str, wait_s: float, *, trusted: bool) -> None:
    try:
        async with timeout(wait_s):
            await zk.wait_connected()
            await require_modern(zk, connect_string, trusted=trusted)
    except TimeoutError:
        raise CoordinationError(f"no ZooKeeper answers at {connect_string} within {wait_s:g} s") from None


async def ask_brokers(
    known: Brokers, ask: Callable[[Brokers], Awaitable[T]], look_up: Callable[[], Awaitable[Brokers]] | None
) -> T:
    """Ask known brokers; if none answers, those that are registered in ZooKeeper now.

    A stream may run for months, and meanwhile all brokers that it has ever heard of may be replaced.

    Args:
        ask: raises ConnectionLost if none of the brokers that it is given answers.
        look_up: returns the registered brokers, at least one; None where ZooKeeper is not given.

    Raises ConnectionLost.
    """
    try:
        return await ask(known)
    except ConnectionLost as lost:
        if look_up is None:
            raise
        try:
            registered = await look_up()
        except (CoordinationError, ConnectionLost) as error:
            raise ConnectionLost(f"{lost}; and brokers cannot be looked up in ZooKeeper: {error}") from error
    return await ask(registered)
