# SPDX-License-Identifier: Apache-2.0
"""Opens connections to brokers, and finds out what a broker speaks before anybody asks it something.

How releases are told apart (``net.versions`` says what each speaks)::

    1. ApiVersions v0 on a new connection
         answered  -> what it lists
         closed    -> 0.8 perhaps, or a broker that went down, or something that is no broker
         silent    -> 0.9 perhaps, or a broker that is slow
    2. ListOffsets v0 about nothing, which every release answers, on a second connection
         closed or silent -> down, or no broker: ConnectionLost, and nothing is concluded
         answered         -> it is alive
    3. ApiVersions v0 again, on a third, with several times the patience that the sign of life took
         answered  -> what it lists: it had been restarting or slow
         closed    -> 0.8;  silent -> 0.9: the second connection is kept, this one is not

What was concluded is remembered for later connections, until the broker shows that it is wrong: it closes a connection
while it owes an answer, or an answer cannot be read. Then the next connection walks through the steps again.

Example: a broker of 0.8.2 closes the connection in step 3, while this process is stopped (SIGSTOP, a suspended machine).
When the process goes on, its patience has ended before it sees the close, and the broker is taken for one of 0.9. The
first Fetch v1 is answered as if it were v0, which cannot be read, and the broker is asked again.

ListOffsets rather than Metadata, since Metadata v0 can only be asked about nothing by asking about everything.
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
    """Opens connections that are ready for use.

    ``pinned`` is ``cluster.broker_version``, None to ask. Each step is bounded: connecting by the connector, the
    question by ``probe_timeout_s``, the sign of life by ``alive_timeout_s``.
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
        """Return a new connection with its versions settled; the caller closes it. Cancel freely.

        Raises ConnectionLost, also for what answers but is no broker; ConfigError for TLS without settings.
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
        except ConnectionLost as error:
            self._memory.forget(address)
            self._hooks.request_failed(broker, "Connect", type(error).__name__)
            raise

    async def _negotiate(self, address: Address, broker: BrokerId | None) -> BrokerConnection:
        """Walk through the steps of the module's docstring."""
        asked = await self._open(address, broker)
        if await self._settle(asked, self._probe_timeout_s):
            return asked
        alive = await self._open(address, broker)
        try:
            started = self._now()
            await alive.request(ListOffsetsRequest(topics=()), timeout_s=self._alive_timeout_s, version=0)
            patience_s = max(self._probe_timeout_s, _PATIENCE_FACTOR * (self._now() - started))
            asked_again = await self._open(address, broker)
            if await self._settle(asked_again, patience_s):
                alive.close()
                return asked_again
        except RemoteProtocolError as error:
            alive.close()
            raise ConnectionLost(str(error)) from error
        except BaseException:
            alive.close()
            raise
        alive.adopt(asked_again.versions, refused=lambda: self._memory.forget(address))
        self._memory.remember(address, alive.versions, self._now())
        return alive

    async def _settle(self, connection: BrokerConnection, timeout_s: float) -> bool:
        """Ask for the versions and adopt them; False, with those assumed and the connection closed, if it cannot say.

        Raises ConnectionLost when what answers is no broker.
        """
        try:
            response = await connection.request(ApiVersionsRequest(), timeout_s=timeout_s, version=0)
            connection.adopt(read_api_versions(response))
        except RequestTimedOut:
            connection.adopt(assume_release(RELEASE_0_9))
        except ConnectionLost as error:
            if isinstance(error.__cause__, RemoteProtocolError):
                raise
            connection.adopt(assume_release(RELEASE_0_8))
        except RemoteProtocolError as error:
            connection.close()
            raise ConnectionLost(f"{connection.address}: not a broker that can be used: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection.versions.origin is Origin.NEGOTIATED
