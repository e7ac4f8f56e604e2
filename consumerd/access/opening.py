# SPDX-License-Identifier: Apache-2.0
"""Opens a cluster: the ZooKeeper session and the connections to brokers.

The daemon, commands, producers and Spark all open clusters here. No other code makes a ZooKeeper client, a dialer or a
pool from an address. ``client.opening``, ``connector`` and ``daemon`` build on the connections, for example
directories of leaders.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from consumerd.access.address import ClusterAddress
from consumerd.access.tickets import TicketKeepers
from consumerd.aio.clock import monotonic
from consumerd.aio.timeouts import timeout
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.cluster.from_zookeeper import ZooKeeperSource
from consumerd.cluster.generation import find_cluster_generation, wait_for_generation
from consumerd.cluster.identities import ClusterIdentities
from consumerd.cluster.topics import BrokerTopics, TopicRegistry, ZooKeeperTopics
from consumerd.cluster.view import Broker, RegistrySource
from consumerd.errors import ConfigError, ConnectionLost, CoordinationError
from consumerd.model import BrokerId, Generation
from consumerd.net.address import Address
from consumerd.net.authentication import Authenticator
from consumerd.net.connection import BrokerConnection
from consumerd.net.dialer import Dialer
from consumerd.net.legacy_dialer import LegacyDialer
from consumerd.net.pool import BrokerDialer, ConnectionPool
from consumerd.net.sasl_dialer import SaslDialer
from consumerd.net.stream import StreamConnector, TcpConnector
from consumerd.net.versions import parse_broker_version
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout_legacy import LEGACY
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.registry_layout import RegistryLayout

if TYPE_CHECKING:
    from consumerd.zk.aiozk_client import AiozkClient

T = TypeVar("T")

Brokers = tuple[Broker, ...]

_LAYOUTS: Final[dict[Generation, RegistryLayout]] = {Generation.LEGACY: LEGACY, Generation.MODERN: MODERN}

_ANSWER_BYTES: Final = 64 << 20
"""Largest variable part of a response, in bytes.

That is the topics of a large cluster in Metadata, or one record set.
"""
_FRAME_OVERHEAD_BYTES: Final = 1 << 20
"""Size of everything else in a response."""


class _GenerationDialer:
    """Dialer for the brokers of a cluster, made before the cluster's generation is known.

    The generation must be set before a broker is dialed: each takes the first request of the other for another one.
    """

    def __init__(self, dialers: dict[Generation, BrokerDialer]) -> None:
        self._dialers = dialers
        self._generation: Generation | None = None

    def adopt(self, generation: Generation) -> None:
        self._generation = generation

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        assert self._generation is not None, "the generation is found before a broker is dialed"
        return await self._dialers[self._generation].dial(address, broker)


def _ignore(_: Generation) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConnections:
    """Open connections to one cluster.

    Attributes:
        pool: Connections to brokers, made on demand.
        session: ZooKeeper session; None if the address has no ZooKeeper.
        hooks: Called when connections and sessions change, for metrics.
        identities: How topics and the cluster are identified if there is no ZooKeeper.
        generation: Generation of the cluster's brokers; None while it is unknown, see :meth:`adopt`.
        seen: Returns the brokers that the cluster has told since. They are asked besides those of ``bootstrap``, of
            which none need be there any more after months.
        adopted: Called when the generation is found, before a broker is dialed.
    """

    address: ClusterAddress
    pool: ConnectionPool
    session: AiozkClient | None
    hooks: Hooks
    identities: ClusterIdentities
    generation: Generation | None = None
    seen: Callable[[], Collection[Broker]] = tuple
    adopted: Callable[[Generation], None] = _ignore

    def adopt(self, generation: Generation) -> ClusterConnections:
        """Return these connections with the cluster's generation, which was found now.

        Raises ConfigError if the address asks for something that brokers of the generation do not have.
        """
        if generation is Generation.LEGACY and self.address.tls is not None:
            raise ConfigError(f"{self.address.tls.setting}: brokers of Kafka 0.6 and 0.7 have no TLS; remove it")
        if generation is Generation.LEGACY and self.address.sasl is not None:
            raise ConfigError(f"{self.address.sasl.setting}: brokers of Kafka 0.6 and 0.7 have no SASL; remove it")
        if generation is Generation.LEGACY and parse_broker_version(self.address.broker_version) is not None:
            raise ConfigError(
                f"broker_version: {self.address.broker_version} is a release of 0.8 or later, and the brokers at "
                f"{self.address.zookeeper} are of Kafka 0.6 or 0.7; remove it"
            )
        self.adopted(generation)
        return replace(self, generation=generation)

    @property
    def layout(self) -> RegistryLayout:
        """Formats of ZooKeeper nodes in this cluster, which differ between Kafka 0.7 and 0.8."""
        assert self.generation is not None, "the generation is found before topics are read"
        return _LAYOUTS[self.generation]

    @property
    def has_metadata(self) -> bool:
        """True if brokers have Metadata requests; False for Kafka 0.6 and 0.7."""
        return self.generation is not Generation.LEGACY

    @property
    def zk(self) -> AiozkClient:
        """The ZooKeeper session; must not be used if the address has no ZooKeeper."""
        assert self.session is not None, "callers that need ZooKeeper are given its address"
        return self.session

    @property
    def topics(self) -> TopicRegistry:
        """Reader of the cluster's topics: from ZooKeeper if the address has it, else from brokers."""
        if self.session is not None:
            return ZooKeeperTopics(self.session, self.layout)
        return BrokerTopics(self.make_source(self.list_known))

    def check_identities(self, cluster: str | None) -> None:
        """Check that :attr:`identities` are of the present cluster, if a file gave them.

        Args:
            cluster: The present cluster, as a source of :meth:`make_source` has read it.

        Raises ConfigError that names the file.
        """
        if (fault := self.identities.find_fault(cluster)) is not None:
            raise ConfigError(f"{self.address.identities}: {fault}")

    def list_known(self) -> Brokers:
        """Return the brokers of ``bootstrap``, and those that the cluster has told since."""
        return (*self.seen(), *self.address.first_brokers())

    def make_source(self, known: Callable[[], Collection[Broker]]) -> BrokerSource:
        """Return a reader of brokers, topics and leaders by Metadata requests.

        Args:
            known: Returns the brokers to which Metadata requests are sent.
        """
        return BrokerSource(
            self.pool,
            known,
            random=random.random,
            timeout_s=self.address.request_timeout_s,
            identities=None if self.session is not None else self.identities,
        )

    def make_registry_source(self) -> RegistrySource:
        """Return a reader of brokers, topics and leaders in ZooKeeper."""
        if not self.has_metadata:
            return LegacyZooKeeperSource(self.zk, hooks=self.hooks)
        return ZooKeeperSource(self.zk, protocol=self.address.protocol, hooks=self.hooks, layout=self.layout)

    async def find_brokers(self) -> Brokers:
        """Return the brokers of :meth:`list_known`, else those registered in ZooKeeper.

        Raises ConnectionLost if no broker is registered, CoordinationError if ZooKeeper cannot be read.
        """
        return self.list_known() or await self.find_registered()

    async def find_registered(self) -> Brokers:
        """Return the brokers that are registered in ZooKeeper.

        Raises ConnectionLost if no broker is registered, CoordinationError if ZooKeeper cannot be read.
        """
        view = await self.make_registry_source().read((), leaders=False)
        if not view.brokers:
            raise ConnectionLost(f"no broker is registered in ZooKeeper at {self.address.zookeeper}")
        return tuple(view.brokers.values())


@asynccontextmanager
async def open_cluster(
    address: ClusterAddress,
    *,
    wait_s: float | None,
    await_broker: bool = False,
    hooks: Hooks | None = None,
    max_answer_bytes: int = _ANSWER_BYTES,
    receive_buffer_bytes: int | None = None,
    generation: Generation | None = None,
) -> AsyncIterator[ClusterConnections]:
    """Connect to a cluster while the block runs.

    Connections to brokers are made on demand.

    Args:
        wait_s: Time limit, in seconds, for the ZooKeeper session and for finding the brokers' generation. None to
            return without waiting for either: the daemon waits for both later, without a limit, and adopts the
            generation then.
        await_broker: Within ``wait_s``, wait for the first registered broker, too, which decides the generation. Else
            the nodes in ZooKeeper decide while no broker is registered, and an empty ZooKeeper counts as one of 0.8.
        hooks: Called when connections and sessions change, for metrics.
        max_answer_bytes: Largest record set, or list of topics, that a response may hold.
        receive_buffer_bytes: Size of the socket's receive buffer; None leaves it to the system.
        generation: Generation of the brokers, for a caller that knows it already, and the brokers of partitions with
            it; None to find it.

    Raises ConfigError for files of TLS, a secret or identities that cannot be read, or an unknown
    ``broker_version``; CoordinationError if ZooKeeper does not answer in time; ConnectionLost if no broker is
    registered in time; UnsupportedGeneration if the brokers' registrations contradict each other, or the address.
    """
    hooks = hooks or Hooks()
    identities = ClusterIdentities() if address.identities is None else address.identities.read()
    connector = TcpConnector(
        max_frame_bytes=max_answer_bytes + _FRAME_OVERHEAD_BYTES,
        timeout_s=address.connect_timeout_s,
        tls=None if address.tls is None else address.tls.make_context(),
        receive_buffer_bytes=receive_buffer_bytes,
    )
    async with AsyncExitStack() as stack:
        keepers = TicketKeepers(hooks, stack)
        dialer = _GenerationDialer(
            {
                Generation.MODERN: await _make_dialer(address, connector, hooks, stack, keepers),
                Generation.LEGACY: LegacyDialer(connector, now=monotonic, hooks=hooks),
            }
        )
        session = None
        if address.zookeeper is not None:
            from consumerd.access.zookeeper_session import open_session  # tasks of Spark do without, and start sooner

            session = await open_session(address, hooks, stack, keepers)
            if wait_s is not None and generation is None:
                generation = await _find_generation(session, address, wait_s, await_broker=await_broker)
        elif generation is None:
            generation = _assume_generation(address)
        pool = await stack.enter_async_context(ConnectionPool(dialer, now=monotonic, random=random.random))
        cluster = ClusterConnections(
            address=address, pool=pool, session=session, hooks=hooks, identities=identities, adopted=dialer.adopt
        )
        yield cluster if generation is None else cluster.adopt(generation)


async def _make_dialer(
    address: ClusterAddress, connector: StreamConnector, hooks: Hooks, stack: AsyncExitStack, keepers: TicketKeepers
) -> BrokerDialer:
    """Return the dialer of brokers of 0.8 and later. Raises ConfigError.

    With ``address.sasl`` it dials listeners with SASL only.
    """
    pinned = parse_broker_version(address.broker_version)
    if address.sasl is None:
        return Dialer(connector, client_id=address.client_id, now=monotonic, hooks=hooks, pinned=pinned)
    address.sasl.check(tls=address.tls is not None)
    kerberos = address.sasl.kerberos
    keeper = None if kerberos is None else await keepers.get(kerberos)
    authenticator = Authenticator(
        address.sasl.make_client if keeper is None else keeper.make_clients(address.sasl.service_name),
        address.sasl.mechanism,
        tickets=keeper,
    )
    stack.push_async_callback(authenticator.aclose)
    return SaslDialer(connector, authenticator, client_id=address.client_id, now=monotonic, hooks=hooks, pinned=pinned)


def _assume_generation(address: ClusterAddress) -> Generation:
    """Return the generation of a cluster that is reached by brokers alone. Raises ConfigError."""
    if address.generation is Generation.LEGACY:
        raise ConfigError(
            "cluster.generation: legacy needs ZooKeeper: brokers of Kafka 0.6 and 0.7 cannot tell topics and other "
            "brokers; give cluster.zookeeper in place of cluster.bootstrap"
        )
    return Generation.MODERN


async def _find_generation(
    zk: AiozkClient, address: ClusterAddress, wait_s: float, *, await_broker: bool
) -> Generation:
    place, is_connected = address.zookeeper or "", False
    try:
        async with timeout(wait_s):
            await zk.wait_connected()
            is_connected = True
            if await_broker:
                return await wait_for_generation(zk, place, address.generation)
            # in an empty ZooKeeper there is nothing that the wrong generation could misread
            return await find_cluster_generation(zk, place, address.generation) or Generation.MODERN
    except TimeoutError:
        if await_broker and is_connected:
            raise ConnectionLost(f"no broker is registered in ZooKeeper at {place} (after {wait_s:g} s)") from None
        why = f" ({zk.why_away})" if zk.why_away else ""
        raise CoordinationError(f"no ZooKeeper answers at {place} within {wait_s:g} s{why}") from None


async def ask_brokers(
    known: Brokers, ask: Callable[[Brokers], Awaitable[T]], look_up: Callable[[], Awaitable[Brokers]] | None
) -> T:
    """Ask known brokers; if none answers, ask those that are registered in ZooKeeper now.

    Returns the result of ``ask``. The second attempt is for streams that run for months: meanwhile all brokers that
    they know may have been replaced.

    Args:
        known: Brokers to ask first.
        ask: Sends a request to one of the given brokers. Raises ConnectionLost if none of them answers.
        look_up: Returns the registered brokers, at least one; None if ZooKeeper is not given.

    Raises ConnectionLost if no broker answers, also if ``look_up`` fails.
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
