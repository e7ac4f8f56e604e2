# SPDX-License-Identifier: Apache-2.0
"""Access to one cluster: the ZooKeeper session, the brokers' connections, the directory, ListOffsets.

Shared by the daemon and by one-shot commands. Concrete classes are joined here and in ``assemble``, nowhere else.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from consumerd.aio.clock import boottime, monotonic
from consumerd.aio.tasks import alongside
from consumerd.client.log_range import LogRangeReader
from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.from_zookeeper import PLAINTEXT, SSL, ZooKeeperSource
from consumerd.config import settings as config
from consumerd.errors import ConfigError
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.net.tls import make_context
from consumerd.net.versions import parse_broker_version
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.aiozk_client import AiozkClient

_FRAME_OVERHEAD_BYTES: Final = 1 << 20
"""What a response holds besides its largest record set."""

DEFAULT_FETCH: Final = config.FetchSection()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """What everything else asks; the directory's view is kept up to date by the block that opened it."""

    zk: AiozkClient
    pool: ConnectionPool
    directory: ClusterDirectory
    ranges: LogRangeReader


def make_zookeeper(cluster: config.ClusterSection, session_timeout_ms: int, hooks: Hooks | None = None) -> AiozkClient:
    """Make the client; it connects when it is entered. Raises ConfigError."""
    auth: tuple[str, bytes] | None = None
    if cluster.zookeeper_auth is not None:
        try:
            scheme, credential = cluster.zookeeper_auth.read()
            auth = (scheme, credential.encode())
        except OSError as error:
            raise ConfigError(f"cluster.zookeeper_auth.credential_file: cannot be read: {error}") from error
    return AiozkClient(
        cluster.zookeeper,
        session_timeout_s=session_timeout_ms / 1000,
        now=boottime,
        random=random.random,
        auth=auth,
        hooks=hooks,
    )


def make_tls(tls: config.TlsSection) -> ssl.SSLContext | None:
    """Make the TLS context, None where TLS is off. Raises ConfigError that names the file."""
    if not tls.enabled:
        return None
    return make_context(
        "cluster.tls",
        trusted=tls.ca_file,
        certificate=tls.certificate_file,
        key=tls.key_file,
        check_hostname=tls.check_hostname,
    )


@asynccontextmanager
async def open_access(
    zk: AiozkClient,
    cluster: config.ClusterSection,
    *,
    client_id: str,
    hooks: Hooks,
    fetch: config.FetchSection = DEFAULT_FETCH,
) -> AsyncIterator[ClusterAccess]:
    """Join the parts around a session, and keep the directory's view while the block runs. Raises ConfigError."""
    connector = TcpConnector(
        max_frame_bytes=max(fetch.max_message_bytes, fetch.max_response_bytes) + _FRAME_OVERHEAD_BYTES,
        timeout_s=cluster.connect_timeout_ms / 1000,
        tls=make_tls(cluster.tls),
        receive_buffer_bytes=fetch.receive_buffer_bytes or None,
    )
    dialer = Dialer(
        connector,
        client_id=client_id,
        now=monotonic,
        hooks=hooks,
        pinned=parse_broker_version(cluster.broker_version),
    )
    async with ConnectionPool(dialer, now=monotonic, random=random.random) as pool:
        request_timeout_s = cluster.request_timeout_ms / 1000
        directory = ClusterDirectory(
            zk,
            ZooKeeperSource(zk, protocol=SSL if cluster.tls.enabled else PLAINTEXT, hooks=hooks),
            lambda known: BrokerSource(pool, known, random=random.random, timeout_s=request_timeout_s),
            now=monotonic,
            random=random.random,
            hooks=hooks,
            backoff_initial_s=cluster.metadata_backoff_ms / 1000,
        )
        ranges = LogRangeReader(
            pool,
            directory,
            random=random.random,
            read_committed=fetch.isolation == "read_committed",
            request_timeout_s=request_timeout_s,
        )
        async with alongside(directory.run(), name="keep the view of the cluster"):
            yield ClusterAccess(zk=zk, pool=pool, directory=directory, ranges=ranges)
