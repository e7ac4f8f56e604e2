# SPDX-License-Identifier: Apache-2.0
"""Makes the client library's objects over the connections to a cluster.

These are the directory of leaders, the lookup of log ranges, the producer and the low-level consumer.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.client.fetch_protocols import choose_fetch_protocol
from consumerd.client.legacy_producer import run_legacy_producer
from consumerd.client.log_range import LogRangeReader
from consumerd.client.offset_lookups import choose_offset_lookup
from consumerd.client.partitioner import Partitioner
from consumerd.client.producer import DEFAULT_SETTINGS, Producer
from consumerd.client.producer_hooks import Encoder, EventHandler, ProducerHooks, encode_nothing
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.remedies import DESCRIBE, READ
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.topics import TopicRegistry
from consumerd.cluster.view import Broker
from consumerd.errors import ConfigError, ConnectionLost
from consumerd.model import Generation
from consumerd.net.pool import ConnectionPool
from consumerd.zk.registry_layout import RegistryLayout

if TYPE_CHECKING:
    from consumerd.zk.aiozk_client import AiozkClient

_LOOKUP_TIMEOUT_S: Final = 20.0
"""Time limit, in seconds, for the ends of logs: what keeps a partition from starting is told within 30 s."""
_MAX_MESSAGE_BYTES: Final = 64 << 20
"""Largest record that a low-level consumer reads by default, as ``fetch.max_message_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Cluster reached through ZooKeeper, or through brokers alone, with its directory of leaders.

    The directory is refreshed while the block of :func:`open_access` runs.

    Attributes:
        cluster: Connections to ZooKeeper and the brokers.
        directory: Brokers, topics and partition leaders.
        ranges: Looks up the start and end of logs, and offsets by time.
    """

    cluster: ClusterConnections
    directory: ClusterDirectory | MetadataDirectory
    ranges: LogRangeReader

    @property
    def has_zookeeper(self) -> bool:
        """True if the cluster's address has a ZooKeeper; False for brokers alone."""
        return self.cluster.session is not None

    @property
    def zk(self) -> AiozkClient:
        """ZooKeeper session; must not be used unless :attr:`has_zookeeper` is True."""
        return self.cluster.zk

    @property
    def topics(self) -> TopicRegistry:
        """Reader of the cluster's topics and their partitions."""
        return self.cluster.topics

    @property
    def pool(self) -> ConnectionPool:
        """Pool of connections to brokers."""
        return self.cluster.pool

    @property
    def generation(self) -> Generation | None:
        """Generation of the cluster's brokers; None if the address has no ZooKeeper."""
        return self.layout.generation if self.has_zookeeper else None

    @property
    def layout(self) -> RegistryLayout:
        """Formats of ZooKeeper nodes in this cluster, which differ between Kafka 0.7 and 0.8."""
        return self.cluster.layout


@asynccontextmanager
async def open_access(
    cluster: ClusterConnections, *, read_committed: bool = False, consumes: bool = False
) -> AsyncIterator[ClusterAccess]:
    """Run a directory of topics and leaders while the block runs.

    It reads ZooKeeper, if the cluster's address has it, and the brokers. The result also looks up the start and end of
    logs.

    Args:
        read_committed: True to take the last stable offset as a log's end, instead of the high watermark.
        consumes: True if records are read: where a right is missing, ``Read`` is advised instead of ``Describe``.
    """
    address = cluster.address
    directory = _make_directory(cluster)
    ranges = LogRangeReader(
        cluster.pool,
        directory,
        random=random.random,
        read_committed=read_committed,
        request_timeout_s=address.request_timeout_s,
        lookup=choose_offset_lookup(
            cluster.layout.generation, cluster.pool, request_timeout_s=address.request_timeout_s
        ),
        timeout_s=_LOOKUP_TIMEOUT_S,
        principal=address.principal,
        right=READ if consumes else DESCRIBE,
    )
    async with alongside(directory.run(), name="keep the view of the cluster"):
        yield ClusterAccess(cluster=cluster, directory=directory, ranges=ranges)


def _make_directory(cluster: ClusterConnections) -> ClusterDirectory | MetadataDirectory:
    zk, address = cluster.session, cluster.address
    if zk is None:
        return MetadataDirectory(
            cluster.make_source,
            address.first_brokers,
            random=random.random,
            backoff_initial_s=address.metadata_backoff_s,
        )
    return ClusterDirectory(
        zk,
        cluster.make_registry_source(),
        cluster.make_source if cluster.has_metadata else None,
        now=monotonic,
        random=random.random,
        hooks=cluster.hooks,
        backoff_initial_s=address.metadata_backoff_s,
        layout=cluster.layout,
    )


class ProducerOptions(TypedDict, total=False):
    """Optional arguments of :class:`~consumerd.client.producer.Producer`."""

    settings: ProducerSettings
    partitioner: Partitioner
    key_encoder: Encoder
    value_encoder: Encoder
    hooks: ProducerHooks
    handler: EventHandler


@asynccontextmanager
async def open_producer(
    cluster: str | ClusterAddress,
    *,
    client_id: str = "consumerd-producer",
    wait_s: float = 15.0,
    **options: Unpack[ProducerOptions],
) -> AsyncIterator[Producer]:
    """Run a producer for a cluster while the block runs.

    Args:
        cluster: Broker addresses, ``host:port,host:port``, or a :class:`ClusterAddress` with ZooKeeper or TLS.
        client_id: Name by which brokers know us. With a ClusterAddress, its own ``client_id`` is used instead.
        wait_s: Time limit, in seconds, for ZooKeeper and for the first registered broker. With broker addresses alone,
            nothing is waited for: the producer connects on the first record.

    Brokers of Kafka 0.6 and 0.7 do not confirm that a record is stored (``client.legacy_producer``).

    Raises ConfigError; CoordinationError or ConnectionLost if ZooKeeper does not answer, or names no broker, in time.
    """
    async with _open_brokers(cluster, client_id, wait_s) as (opened, _, brokers):
        if opened.has_metadata:
            async with run_producer(opened.pool, brokers, principal=opened.address.principal, **options) as producer:
                yield producer
            return
        if "handler" in options:
            raise ConfigError("handler: the brokers are of Kafka 0.6 or 0.7, whose producer has a handler of its own")
        async with run_legacy_producer(
            opened.zk,
            opened.pool,
            settings=options.get("settings", DEFAULT_SETTINGS),
            partitioner=options.get("partitioner"),
            key_encoder=options.get("key_encoder", encode_nothing),
            value_encoder=options.get("value_encoder", encode_nothing),
            hooks=options.get("hooks"),
            zk_hooks=opened.hooks,
        ) as producer:
            yield producer


class SimpleConsumerOptions(TypedDict, total=False):
    """Optional arguments of :class:`~consumerd.client.simple_consumer.SimpleConsumer`."""

    max_message_bytes: int
    timeout_s: float
    request_timeout_s: float
    read_committed: bool


@asynccontextmanager
async def open_simple_consumer(
    cluster: str | ClusterAddress,
    *,
    client_id: str = "consumerd-simple-consumer",
    wait_s: float = 15.0,
    **options: Unpack[SimpleConsumerOptions],
) -> AsyncIterator[SimpleConsumer]:
    """Open a low-level consumer, which reads at given offsets, while the block runs.

    Records of up to 64 MiB are read, unless ``max_message_bytes`` says otherwise.

    Args:
        cluster: Broker addresses, ``host:port,host:port``, or a :class:`ClusterAddress` with ZooKeeper or TLS.
        client_id: Name by which brokers know us. With a ClusterAddress, its own ``client_id`` is used instead.
        wait_s: Time limit, in seconds, for ZooKeeper and for the first registered broker.

    Brokers of Kafka 0.6 and 0.7 are found by ZooKeeper alone.

    Raises ConfigError; CoordinationError or ConnectionLost if ZooKeeper does not answer, or names no broker, in time.
    """
    settings: SimpleConsumerOptions = {"max_message_bytes": _MAX_MESSAGE_BYTES, **options}
    async with _open_brokers(cluster, client_id, wait_s, settings["max_message_bytes"]) as (opened, access, brokers):
        if access is not None:
            yield make_simple_consumer(access, **settings)
            return
        timeout_s = opened.address.request_timeout_s
        directory = MetadataDirectory(
            lambda known: BrokerSource(opened.pool, known, random=random.random, timeout_s=timeout_s),
            brokers,
            random=random.random,
        )
        async with alongside(directory.run(), name="keep what is known of topics"):
            yield SimpleConsumer(opened.pool, directory, random=random.random, follow=directory.follow, **settings)


def make_simple_consumer(access: ClusterAccess, **options: Unpack[SimpleConsumerOptions]) -> SimpleConsumer:
    """Return a low-level consumer for a cluster of either generation."""
    generation, request_timeout_s = access.layout.generation, options.get("request_timeout_s", 10.0)
    return SimpleConsumer(
        access.pool,
        access.directory,
        random=random.random,
        follow=access.directory.follow,
        protocol=choose_fetch_protocol(generation, access.pool),
        lookup=choose_offset_lookup(generation, access.pool, request_timeout_s=request_timeout_s),
        **options,
    )


@asynccontextmanager
async def _open_brokers(
    cluster: str | ClusterAddress, client_id: str, wait_s: float, max_answer_bytes: int = _MAX_MESSAGE_BYTES
) -> AsyncIterator[tuple[ClusterConnections, ClusterAccess | None, Callable[[], Collection[Broker]]]]:
    """Open a cluster, by ZooKeeper if that is given.

    Returns its connections, the view by ZooKeeper, and a function for the brokers to ask.
    """
    address = ClusterAddress(bootstrap=cluster, client_id=client_id) if isinstance(cluster, str) else cluster
    if address.zookeeper is None:
        brokers = address.first_brokers()
        async with open_cluster(address, wait_s=None, max_answer_bytes=max_answer_bytes) as opened:
            yield opened, None, lambda: brokers
        return
    async with (
        open_cluster(address, wait_s=wait_s, await_broker=True, max_answer_bytes=max_answer_bytes) as opened,
        open_access(opened) as access,
    ):
        await wait_for_brokers(access, wait_s)

        def known() -> Collection[Broker]:
            return access.directory.view.brokers.values()

        yield opened, access, known


async def wait_for_brokers(access: ClusterAccess, wait_s: float) -> None:
    """Wait until a broker of the cluster is known.

    Args:
        wait_s: Time limit, in seconds, after which ConnectionLost is raised.
    """
    try:
        async with timeout(wait_s):
            await access.directory.views.wait(lambda view: bool(view.brokers))
    except TimeoutError:
        raise ConnectionLost(
            f"no broker is registered in ZooKeeper at {access.cluster.address.zookeeper} (after {wait_s:g} s)"
        ) from None


@asynccontextmanager
async def run_producer(
    pool: ConnectionPool,
    brokers: Callable[[], Collection[Broker]],
    *,
    principal: Principal = OUR_PRINCIPAL,
    **options: Unpack[ProducerOptions],
) -> AsyncIterator[Producer]:
    """Run a producer over existing connections while the block runs.

    Args:
        brokers: Returns the brokers to ask first for topics and leaders.
        principal: Our identity at the brokers, for advice.
    """
    timeout_s = options.get("settings", DEFAULT_SETTINGS).request_timeout_s
    directory = MetadataDirectory(
        lambda known: BrokerSource(pool, known, random=random.random, timeout_s=timeout_s, creates=True),
        brokers,
        random=random.random,
    )
    producer = Producer(
        pool,
        directory,
        now=monotonic,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        random=random.random,
        principal=principal,
        **options,
    )
    async with alongside(directory.run(), name="keep what is known of topics"), producer:
        yield producer
