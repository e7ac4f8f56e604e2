# SPDX-License-Identifier: Apache-2.0
"""Dialer of brokers of 0.8 and later: opens connections and finds out their versions.

Each connection gets the session of this generation, with correlation ids. Brokers of 0.6/0.7 would take the requests
below for other requests, so the generation must be known before the first connection. Their dialer is
``net.legacy_dialer.LegacyDialer``.

How releases are told apart (``net.versions`` has the versions of each)::

    1. ApiVersions v0 on a new connection
         answered  -> the versions listed
         closed    -> 0.8 perhaps, or a broker that went down, or no broker
         silent    -> 0.9 perhaps, or a slow broker
    2. ListOffsets v0 without topics, which every release answers, on a second connection
         closed or silent -> down, or no broker: ConnectionLost, and nothing is concluded
         answered         -> it is alive
    3. ApiVersions v0 again, on a third connection, with several times the timeout that step 2 took
         answered  -> the versions listed: it had been restarting or slow
         closed    -> 0.8;  silent -> 0.9: the second connection is kept, this one is not

The conclusion is kept for later connections until the broker contradicts it: it closes a connection while a request is
pending, or an answer cannot be read. The next connection then takes the steps again.

Example: a broker of 0.8.2 closes the connection in step 3 while this process is stopped (SIGSTOP, a suspended machine).
When the process continues, the timeout has passed before it sees the close, and the broker is assumed to be of 0.9. The
answer to the first Fetch v1 has the form of v0 and cannot be read, so the steps are taken again.

Step 2 does not use Metadata because Metadata v0 without topics asks for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumerd.errors import ConnectionLost, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.stream import StreamConnector
from consumerd.net.versions import (
    RELEASE_0_8,
    RELEASE_0_9,
    BrokerVersions,
    Origin,
    VersionMemory,
    assume_release,
    read_api_versions,
)
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.session import ClientSession

_PATIENCE_FACTOR: Final = 4.0


class Dialer:
    """Opens connections to brokers of 0.8 and later, and finds out their request versions.

    Args:
        connector: Opens the streams, and limits the time for that.
        now: Monotonic clock, in seconds.
        pinned: Versions set by ``cluster.broker_version``; None to ask each broker.
        memory: Versions that were assumed for brokers that do not list theirs; None for a new memory.
        probe_timeout_s: Time limit, in seconds, of the first ApiVersions request. If that request fails, it is repeated
            with a limit that is derived from the broker's response time to ListOffsets, and is never shorter.
        alive_timeout_s: Time limit, in seconds, of the ListOffsets request that finds out if the broker responds at
            all.
    """

    def __init__(
        self,
        connector: StreamConnector,
        *,
        client_id: str,
        now: Callable[[], float],
        hooks: Hooks | None = None,
        pinned: BrokerVersions | None = None,
        memory: VersionMemory | None = None,
        probe_timeout_s: float = 1.0,
        alive_timeout_s: float = 10.0,
    ) -> None:
        self._connector = connector
        self._client_id = client_id
        self._now = now
        self._hooks = hooks or Hooks()
        self._pinned = pinned
        self._memory = memory or VersionMemory()
        self._probe_timeout_s = probe_timeout_s
        self._alive_timeout_s = alive_timeout_s

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        """Return a new connection with its versions set; the caller closes it. Safe to cancel.

        Raises ConnectionLost, also if the peer is no broker; ConfigError for TLS without settings.
        """
        versions = self._pinned or self._memory.find(address, self._now())
        if versions is None:
            return await self._negotiate(address, broker)
        connection = await self._open(address, broker)
        connection.adopt(versions, refused=lambda: self._memory.forget(address))
        return connection

    async def _open(self, address: Address, broker: BrokerId | None) -> BrokerConnection:
        session = ClientSession(self._client_id)
        try:
            return await BrokerConnection.open(
                self._connector, session, address, broker=broker, now=self._now, hooks=self._hooks
            )
        except ConnectionLost:
            self._memory.forget(address)
            raise

    async def _negotiate(self, address: Address, broker: BrokerId | None) -> BrokerConnection:
        """Take the steps of the module's docstring."""
        asked = await self._open(address, broker)
        versions = await self._settle(asked, self._probe_timeout_s)
        if versions.origin is Origin.NEGOTIATED:
            return asked
        alive = await self._open(address, broker)
        try:
            started = self._now()
            await alive.request(ListOffsetsRequest(topics=()), timeout_s=self._alive_timeout_s, version=0)
            patience_s = max(self._probe_timeout_s, _PATIENCE_FACTOR * (self._now() - started))
            asked_again = await self._open(address, broker)
            versions = await self._settle(asked_again, patience_s)
            if versions.origin is Origin.NEGOTIATED:
                alive.close()
                return asked_again
        except RemoteProtocolError as error:
            alive.close()
            raise ConnectionLost(str(error)) from error
        except BaseException:
            alive.close()
            raise
        alive.adopt(versions, refused=lambda: self._memory.forget(address))
        self._memory.remember(address, versions, self._now())
        return alive

    async def _settle(self, connection: BrokerConnection, timeout_s: float) -> BrokerVersions:
        """Ask for the versions, and set them. If they are assumed, the connection is closed.

        Raises ConnectionLost if the peer is no broker.
        """
        try:
            response = await connection.request(ApiVersionsRequest(), timeout_s=timeout_s, version=0)
            versions = read_api_versions(response)
        except RequestTimedOut:
            versions = assume_release(RELEASE_0_9)
        except ConnectionLost as error:
            if isinstance(error.__cause__, RemoteProtocolError):
                raise
            versions = assume_release(RELEASE_0_8)
        except RemoteProtocolError as error:
            connection.close()
            raise ConnectionLost(f"{connection.address}: not a broker that can be used: {error}") from error
        except BaseException:
            connection.close()
            raise
        connection.adopt(versions)
        return versions
