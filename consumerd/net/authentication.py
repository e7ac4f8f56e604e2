# SPDX-License-Identifier: Apache-2.0
"""Authentication of a new connection to a broker by SASL, before its first request.

Owns how tokens are framed, which depends on the broker's release, and what a refusal means. Tokens come from
``consumerd.sasl``. Sources: KIP-43, KIP-152 and KIP-368, and recordings of real brokers (``tests/vectors/sasl``).

| release | order on a connection | a refusal is |
|---|---|---|
| 0.9 | tokens as bare frames from the first byte on; GSSAPI only | the end of the connection |
| 0.10, 0.11 | SaslHandshake v0, then tokens as bare frames | the end of the connection |
| 1.0 and later | SaslHandshake v1, then each token in SaslAuthenticate | error 58 with a text, then the end |

- A bare frame that ends the connection cannot be told from a broker that went down, so the error names both.
- With bare frames the last token of GSSAPI has no answer; in SaslAuthenticate it has an empty one.
- A broker of 1.1 that has no ``auth_to_local`` rule for a Kerberos principal accepts it, and closes the connection at
  its first request. So the first request, ListOffsets without topics, is sent here for GSSAPI, and belongs to the
  authentication. (0.10 gives such a principal its full name instead, and lets the ACLs refuse it.)
- From 2.2 on a broker may limit the lifetime of a connection: it closes the connection at the first request after that
  time. The pool replaces such a connection in time (``net.pool``).
"""

from __future__ import annotations

import enum
from typing import Final

from consumerd.errors import (
    AuthenticationFailed,
    ConnectionLost,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimedOut,
)
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.sasl_steps import MakeSaslClient, SaslSteps, StepThreads, Tickets
from consumerd.net.versions import RELEASE_0_9, BrokerVersions, Origin
from consumerd.sasl.client import SaslClient, Token
from consumerd.sasl.gssapi_client import GSSAPI
from consumerd.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.modern.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from consumerd.wire.sasl_tokens import BareToken

_MOST_TOKENS: Final = 16
"""Largest number of tokens of one authentication; no mechanism needs more than four."""
_SCRAM: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
_SHOWN: Final = 300
"""Largest number of characters of a broker's error that a message repeats."""


class TokenFraming(enum.Enum):
    """Framing of the tokens of an authentication; see the module's docstring."""

    BARE = "bare"
    HANDSHAKE = "handshake"
    REQUEST = "request"


def choose_framing(versions: BrokerVersions) -> TokenFraming:
    """Return how a broker that has these request versions expects tokens.

    Raises AuthenticationFailed if it has no SASL.
    """
    handshake = versions.ranges.get(ApiKey.SASL_HANDSHAKE)
    if handshake is None:
        if versions.origin is not Origin.NEGOTIATED and versions.release is not None:
            if versions.release[:2] == RELEASE_0_9:
                return TokenFraming.BARE
            raise AuthenticationFailed("brokers of Kafka 0.8 have no SASL: remove cluster.sasl, or upgrade them")
        raise AuthenticationFailed("the broker lists no SaslHandshake, so it has no SASL")
    if handshake.last >= 1 and ApiKey.SASL_AUTHENTICATE in versions.ranges:
        return TokenFraming.REQUEST
    return TokenFraming.HANDSHAKE


class Authenticator:
    """Authenticates new connections to brokers by SASL.

    Args:
        make_client: Makes the client's side of one authentication.
        mechanism: Name of the mechanism, for the handshake.
        timeout_s: Time limit, in seconds, of each answer of the broker.
        thread_timeout_s: Time limit, in seconds, of each computation of the mechanism. A Kerberos server that is silent
            keeps GSSAPI's for most of a minute.
        threads: Run the computations; None for a thread of its own.
        tickets: Kerberos tickets that are renewed ahead; None for none.
    """

    def __init__(
        self,
        make_client: MakeSaslClient,
        mechanism: str,
        *,
        timeout_s: float = 10.0,
        thread_timeout_s: float = 20.0,
        threads: StepThreads | None = None,
        tickets: Tickets | None = None,
    ) -> None:
        self.mechanism = mechanism
        self._timeout_s = timeout_s
        self._steps = SaslSteps(
            make_client,
            name="sasl",
            thread_timeout_s=thread_timeout_s,
            threads=threads,
            tickets=tickets,
        )

    async def aclose(self) -> None:
        """End the thread; one that waits for a Kerberos server is left behind."""
        await self._steps.aclose()

    async def prepare(self, address: Address) -> tuple[SaslClient, Token]:
        """Return the client's side of an authentication, and its first token.

        Call it before connecting: brokers close connections that stay silent for some seconds, and a Kerberos server
        may need longer. Raises AuthenticationFailed.
        """
        return await self._steps.first(address, f"{address}: {self.mechanism}")

    async def authenticate(
        self, connection: BrokerConnection, client: SaslClient, first: Token, framing: TokenFraming
    ) -> float:
        """Prove our identity on a new connection; return its lifetime in seconds.

        The lifetime is 0 if the broker sets no limit.
        Raises AuthenticationFailed with the reason as far as the broker tells it. The caller closes the connection
        then. Safe to cancel.
        """
        exchange = _Exchange(connection, framing, self._timeout_s)
        where = f"{connection.address}: {client.mechanism}"
        try:
            await exchange.begin(client.mechanism)
            await self._exchange_tokens(exchange, client, first, where)
            if client.mechanism == GSSAPI:
                await exchange.confirm()
        except (RemoteProtocolError, LocalProtocolError) as error:
            self._steps.note_refusal()
            raise AuthenticationFailed(f"{where}: {error}") from error
        except AuthenticationFailed:
            self._steps.note_refusal()
            raise
        return exchange.lifetime_s

    async def _exchange_tokens(self, exchange: _Exchange, client: SaslClient, first: Token, where: str) -> None:
        token = first
        for _ in range(_MOST_TOKENS):
            answer = await exchange.send(token)
            if not token.answered:
                return
            following = await self._steps.next(client, answer, where)
            if following is None:
                return
            token = following
        raise RemoteProtocolError(f"no end after {_MOST_TOKENS} tokens")


class _Exchange:
    """One exchange of tokens on one connection, in one framing."""

    def __init__(self, connection: BrokerConnection, framing: TokenFraming, timeout_s: float) -> None:
        self._connection = connection
        self._framing = framing
        self._timeout_s = timeout_s
        self._mechanism = ""
        self._sent = 0
        self.lifetime_s = 0.0

    async def begin(self, mechanism: str) -> None:
        """Agree on the mechanism, if the framing has a handshake."""
        self._mechanism = mechanism
        if self._framing is TokenFraming.BARE:
            return
        version = 1 if self._framing is TokenFraming.REQUEST else 0
        try:
            response = await self._connection.request(
                SaslHandshakeRequest(mechanism=mechanism), timeout_s=self._timeout_s, version=version
            )
        except ConnectionLost as error:
            raise self._fail(f"the connection ended during SaslHandshake: {_describe_end(error)}") from error
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(map(_shown, response.mechanisms[:10])) or "none"
            raise self._fail(
                f"the listener does not have the mechanism {mechanism}; it has {offered}: change cluster.sasl.mechanism"
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._fail("the listener has no SASL (error 34): remove cluster.sasl, or give a SASL listener's port")
        if response.error_code:
            raise self._fail(f"SaslHandshake: error {response.error_code}")

    async def send(self, token: Token) -> bytes:
        """Send a token; return the broker's, empty for a token without an answer."""
        self._sent += 1
        if self._framing is TokenFraming.REQUEST:
            return await self._authenticate(token)
        bare = BareToken(token.data, answered=token.answered)
        try:
            if token.answered:
                return await self._connection.request(bare, timeout_s=self._timeout_s, version=0)
            await self._connection.send(bare, timeout_s=self._timeout_s, version=0)
        except ConnectionLost as error:
            raise self._fail(self._explain_end(error)) from error
        return b""

    async def _authenticate(self, token: Token) -> bytes:
        request = SaslAuthenticateRequest(auth_bytes=token.data)
        version = self._connection.version_of(SaslAuthenticateRequest)
        try:
            response = await self._connection.request(request, timeout_s=self._timeout_s, version=version)
        except ConnectionLost as error:
            raise self._fail(self._explain_end(error)) from error
        if response.error_code:
            raise self._fail(self._explain_refusal(response))
        self.lifetime_s = max(0, response.session_lifetime_ms) / 1000
        return response.auth_bytes

    async def confirm(self) -> None:
        """Send a first request, to learn if the broker keeps the connection."""
        try:
            await self._connection.request(ListOffsetsRequest(topics=()), timeout_s=self._timeout_s)
        except RequestTimedOut as error:
            raise self._fail(str(error)) from error
        except ConnectionLost as error:
            raise self._fail(
                "the connection ended at the first request after the authentication: the broker has no rule for this "
                "principal in sasl.kerberos.principal.to.local.rules, or has refused the last token, or went down"
            ) from error
        except ProtocolError as error:
            raise self._fail(str(error)) from error

    def _explain_refusal(self, response: SaslAuthenticateResponse) -> str:
        said = _shown(response.error_message or f"error {response.error_code}")
        if response.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
            return f"the broker refuses (error {response.error_code}): {said}"
        return f"the broker refuses (error 58): {said}; {self._advise()}"

    def _explain_end(self, error: ConnectionLost) -> str:
        if isinstance(error, RequestTimedOut):
            return str(error)
        release = "0.9" if self._framing is TokenFraming.BARE else "0.10"
        return (
            f"the connection ended during the authentication ({_describe_end(error)}): brokers of {release} refuse so, "
            f"or the broker went down; if it refuses, {self._advise()}"
        )

    def _advise(self) -> str:
        if self._mechanism == GSSAPI:
            return (
                "check cluster.sasl.service_name, that the address is a name in the broker's Kerberos principal, and "
                "the clocks of both hosts"
            )
        if self._framing is TokenFraming.HANDSHAKE and self._mechanism in _SCRAM:
            # without SaslAuthenticate a broker tells by the token at which it closes
            return "it does not know the user" if self._sent == 1 else "the password is wrong"
        return "check the user name and the password"

    def _fail(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"{self._connection.address}: {self._mechanism}: {reason}")


def _shown(text: str) -> str:
    """Return a text of a broker, as much of it as a message may repeat."""
    return "".join(one if one.isprintable() else "?" for one in text[:_SHOWN])


def _describe_end(error: ConnectionLost) -> str:
    return str(error).partition(": ")[2] or str(error)
