# SPDX-License-Identifier: Apache-2.0
"""Connections to brokers by the options of a reader or a writer, on the driver and on executors."""

from __future__ import annotations

import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from consumerd.aio.clock import monotonic
from consumerd.client.opening import parse_bootstrap
from consumerd.cluster.view import Broker
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.net.tls import make_context
from consumerd.net.versions import parse_broker_version
from consumerd.spark.datasource.options import ClusterOptions, TlsOptions

T = TypeVar("T")

Brokers = tuple[Broker, ...]


def make_tls(tls: TlsOptions) -> ssl.SSLContext:
    """Make a TLS context of files in PEM. Raises ConfigError that names the file."""
    return make_context(
        "kafka.ssl", trusted=tls.trusted, certificate=tls.identity, key=None, check_hostname=tls.checks_host
    )


def make_pool(
    cluster: ClusterOptions, *, max_frame_bytes: int, receive_buffer_bytes: int | None = None
) -> ConnectionPool:
    """Make the connections to a cluster's brokers; they are opened when they are asked for. Raises ConfigError."""
    connector = TcpConnector(
        max_frame_bytes=max_frame_bytes,
        timeout_s=cluster.connect_timeout_s,
        tls=None if cluster.tls is None else make_tls(cluster.tls),
        receive_buffer_bytes=receive_buffer_bytes,
    )
    dialer = Dialer(
        connector,
        client_id=cluster.client_id,
        now=monotonic,
        pinned=parse_broker_version(cluster.broker_version),
    )
    return ConnectionPool(dialer, now=monotonic, random=random.random)


def first_brokers(cluster: ClusterOptions) -> tuple[Broker, ...]:
    """Return the brokers whose addresses are given, to begin with; they have numbers below 0. Raises ConfigError."""
    assert cluster.bootstrap is not None, "it is given, or the driver has looked it up"
    return tuple(replace(one, tls=cluster.tls is not None) for one in parse_bootstrap(cluster.bootstrap))


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
