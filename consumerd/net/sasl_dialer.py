# SPDX-License-Identifier: Apache-2.0
"""Dialer of listeners with SASL: opens connections, finds out their versions, and authenticates.

Brokers of 0.9 and later have such listeners. The steps of ``net.dialer`` do not fit them: every release closes the
connection on an unauthenticated ListOffsets request, and 0.9 takes ApiVersions for a token. So::

    1. ApiVersions v0 on a new connection, once: since 1.0, brokers close the connection on a second one
         answered  -> the versions listed; authenticate on this connection
         closed    -> 0.9 perhaps, or a broker that went down, or no broker
         silent    -> a slow broker, or no broker: ConnectionLost, and nothing is concluded
    2. only after "closed", and with GSSAPI, the only mechanism of 0.9:
       bare tokens on a second connection
         accepted  -> 0.9, which is kept for later connections
         closed    -> refused, or down: AuthenticationFailed, and nothing is concluded

How tokens are framed is the business of ``net.authentication``. The first token is made before the connection, because
a Kerberos server may be slow, and brokers do not wait for long.

A refusal is told once, and its end too. It is a ConnectionLost for callers, so that they go on with what they have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from consumerd.errors import AuthenticationFailed, ConnectionLost, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.authentication import Authenticator, TokenFraming, choose_framing
from consumerd.net.connection import BrokerConnection
from consumerd.net.stream import StreamConnector
from consumerd.net.versions import RELEASE_0_9, BrokerVersions, VersionMemory, assume_release, read_api_versions
from consumerd.sasl.gssapi_client import GSSAPI
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.sasl_tokens import TokenSession

_USED_LIFETIME: Final = 0.8
"""Part of a connection's lifetime after which it is replaced. The rest is for requests that are pending then."""


class SaslDialer:
    """Opens authenticated connections to brokers.

    Args:
        connector: Opens the streams, and limits the time for that.
        authenticator: Proves our identity; its owner closes it.
        now: Monotonic clock, in seconds.
        pinned: Versions set by ``cluster.broker_version``; None to ask each broker.
        memory: Versions that were assumed for brokers that do not list theirs; None for a new memory.
        probe_timeout_s: Time limit, in seconds, of the ApiVersions request.
    """

    def __init__(
        self,
        connector: StreamConnector,
        authenticator: Authenticator,
        *,
        client_id: str,
        now: Callable[[], float],
        hooks: Hooks | None = None,
        pinned: BrokerVersions | None = None,
        memory: VersionMemory | None = None,
        probe_timeout_s: float = 10.0,
    ) -> None:
        self._connector = connector
        self._authenticator = authenticator
        self._client_id = client_id
        self._now = now
        self._hooks = hooks or Hooks()
        self._pinned = pinned
        self._memory = memory or VersionMemory()
        self._probe_timeout_s = probe_timeout_s
        self._refusals: dict[Address, str] = {}
        self._log = structlog.get_logger(__name__)

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        """Return a new, authenticated connection; the caller closes it. Safe to cancel.

        Raises AuthenticationFailed if the broker refuses our identity, or there are no credentials to show;
        ConnectionLost, also if the peer is no broker; ConfigError for TLS without settings.
        """
        try:
            connection = await self._dial(address, broker)
        except AuthenticationFailed as error:
            self._note_refusal(address, str(error))
            raise
        self._note_success(address)
        return connection

    async def _dial(self, address: Address, broker: BrokerId | None) -> BrokerConnection:
        client, first = await self._authenticator.prepare(address)
        connection = await self._open(address, broker)
        try:
            versions = self._pinned or self._memory.find(address, self._now())
            if versions is None:
                versions = await self._ask(connection)
            if versions is None:
                connection = await self._open(address, broker)
                versions = assume_release(RELEASE_0_9)
            framing = choose_framing(versions)
            connection.adopt(versions)
            lifetime_s = await self._authenticator.authenticate(connection, client, first, framing)
        except AuthenticationFailed:
            connection.close()
            self._memory.forget(address)
            raise
        except BaseException:
            connection.close()
            raise
        if framing is TokenFraming.BARE:
            self._memory.remember(address, versions, self._now())
        connection.adopt(versions, refused=lambda: self._memory.forget(address))
        if lifetime_s > 0:
            connection.retire_after(_USED_LIFETIME * lifetime_s)
        return connection

    async def _open(self, address: Address, broker: BrokerId | None) -> BrokerConnection:
        session = TokenSession(self._client_id)
        try:
            return await BrokerConnection.open(
                self._connector, session, address, broker=broker, now=self._now, hooks=self._hooks
            )
        except ConnectionLost:
            # what listens there next may be another release
            self._memory.forget(address)
            raise

    async def _ask(self, connection: BrokerConnection) -> BrokerVersions | None:
        """Return the versions that a broker lists; None if it may be of 0.9.

        Brokers of 0.9 close the connection. Raises ConnectionLost if the peer is no broker, or silent.
        """
        try:
            response = await connection.request(ApiVersionsRequest(), timeout_s=self._probe_timeout_s, version=0)
            return read_api_versions(response)
        except RequestTimedOut:
            raise
        except ConnectionLost as error:
            if isinstance(error.__cause__, RemoteProtocolError):
                raise
            if self._authenticator.mechanism == GSSAPI:
                return None
            raise ConnectionLost(
                f"{connection.address}: closed after ApiVersions: a broker that went down, a listener that wants TLS "
                "(cluster.tls.enabled), or a broker of 0.9, which has GSSAPI only"
            ) from error
        except RemoteProtocolError as error:
            raise ConnectionLost(f"{connection.address}: not a broker that can be used: {error}") from error

    # -- telling of refusals

    def _note_refusal(self, address: Address, reason: str) -> None:
        is_new = address not in self._refusals
        self._refusals[address] = reason
        if is_new:
            self._log.error("authentication_refused", broker=str(address), reason=reason)
            self._hooks.trouble(Trouble.AUTHENTICATION_REFUSED, reason)

    def _note_success(self, address: Address) -> None:
        if self._refusals.pop(address, None) is not None:
            self._log.info("authentication_accepted", broker=str(address))
