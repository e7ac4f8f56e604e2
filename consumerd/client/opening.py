# SPDX-License-Identifier: Apache-2.0
"""Joins what works on a cluster's connections: directory of leaders, log ends, the producer."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside
from consumerd.client.log_range import LogRangeReader
from consumerd.client.partitioner import Partitioner
from consumerd.client.producer import DEFAULT_SETTINGS, Producer
from consumerd.client.producer_hooks import Encoder, EventHandler, ProducerHooks
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.from_zookeeper import PLAINTEXT, SSL, ZooKeeperSource
from consumerd.cluster.view import Broker
from consumerd.net.pool import ConnectionPool

if TYPE_CHECKING:
    from consumerd.zk.aiozk_client import AiozkClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """A cluster with ZooKeeper; the block that opened it keeps the directory's view up to date."""

    zk: AiozkClient
    pool: ConnectionPool
    directory: ClusterDirectory
    ranges: LogRangeReader


@asynccontextmanager
async def open_access(cluster: ClusterConnections, *, read_committed: bool = False) -> AsyncIterator[ClusterAccess]:
    """Keep a directory over ZooKeeper and the brokers while the block runs, and read log ends by it."""
    zk, pool, address = cluster.zk, cluster.pool, cluster.address
    directory = ClusterDirectory(
        zk,
        ZooKeeperSource(zk, protocol=PLAINTEXT if address.tls is None else SSL, hooks=cluster.hooks),
        lambda known: BrokerSource(pool, known, random=random.random, timeout_s=address.request_timeout_s),
        now=monotonic,
        random=random.random,
        hooks=cluster.hooks,
        backoff_initial_s=address.metadata_backoff_s,
    )
    ranges = LogRangeReader(
        pool,
        directory,
        random=random.random,
        read_committed=read_committed,
        request_timeout_s=address.request_timeout_s,
    )
    async with alongside(directory.run(), name="keep the view of the cluster"):
        yield ClusterAccess(zk=zk, pool=pool, directory=directory, ranges=ranges)


class ProducerOptions(TypedDict, total=False):
    """Arguments of a producer besides its cluster; see :class:`~consumerd.client.producer.Producer`."""

    settings: ProducerSettings
    partitioner: Partitioner
    key_encoder: Encoder
    value_encoder: Encoder
    hooks: ProducerHooks
    handler: EventHandler


@asynccontextmanager
async def open_producer(
    bootstrap: str, *, client_id: str = "consumerd-producer", **options: Unpack[ProducerOptions]
) -> AsyncIterator[Producer]:
    """Run a producer that finds its cluster by brokers' addresses, ``host:port,host:port``.

    Connects to nothing before the first record. Raises ConfigError.
    """
    address = ClusterAddress(bootstrap=bootstrap, client_id=client_id)
    brokers = address.first_brokers()
    async with (
        open_cluster(address, wait_s=None) as cluster,
        run_producer(cluster.pool, lambda: brokers, **options) as producer,
    ):
        yield producer


@asynccontextmanager
async def run_producer(
    pool: ConnectionPool, brokers: Callable[[], Collection[Broker]], **options: Unpack[ProducerOptions]
) -> AsyncIterator[Producer]:
    """Run a producer over open connections; ``brokers`` returns those to ask first."""
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
        **options,
    )
    async with alongside(directory.run(), name="keep what is known of topics"), producer:
        yield producer
