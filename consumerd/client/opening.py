# SPDX-License-Identifier: Apache-2.0
"""A producer from addresses: joins dialer, connections, directory and producer, for whoever has no cluster access yet."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, TypedDict, Unpack

from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside
from consumerd.client.partitioner import Partitioner
from consumerd.client.producer import DEFAULT_SETTINGS, Producer
from consumerd.client.producer_hooks import Encoder, EventHandler, ProducerHooks
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.view import Broker
from consumerd.errors import ConfigError
from consumerd.model import BrokerId
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector

_MAX_FRAME_BYTES: Final = 16 << 20
"""What an answer to Metadata or Produce takes at most."""

_LAST_PORT: Final = 65535


def parse_bootstrap(text: str) -> tuple[Broker, ...]:
    """Read ``host:port,host:port``. Raises ConfigError.

    The brokers have numbers below 0, since their own are not known yet.
    """
    brokers = []
    for number, one in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        host, colon, port = one.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= _LAST_PORT):
            raise ConfigError(f"bootstrap: expected host:port, got {one!r}")
        brokers.append(Broker(id=BrokerId(-number), host=host, port=int(port)))
    if not brokers:
        raise ConfigError("bootstrap: expected at least one host:port")
    return tuple(brokers)


class ProducerOptions(TypedDict, total=False):
    """What a producer may be given besides its cluster; see :class:`~consumerd.client.producer.Producer`."""

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
    """Run a producer that finds its cluster by some brokers' addresses, ``host:port,host:port``. Raises ConfigError.

    Connects to nothing before the first record.
    """
    brokers = parse_bootstrap(bootstrap)
    dialer = Dialer(TcpConnector(max_frame_bytes=_MAX_FRAME_BYTES), client_id=client_id, now=monotonic)
    async with (
        ConnectionPool(dialer, now=monotonic, random=random.random) as pool,
        run_producer(pool, lambda: brokers, **options) as producer,
    ):
        yield producer


@asynccontextmanager
async def run_producer(
    pool: ConnectionPool, brokers: Callable[[], Collection[Broker]], **options: Unpack[ProducerOptions]
) -> AsyncIterator[Producer]:
    """Run a producer over connections that there are; ``brokers`` gives some to ask first (``cluster.directory``'s, say)."""
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
