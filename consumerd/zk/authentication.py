# SPDX-License-Identifier: Apache-2.0
"""Authentication of a new connection to a ZooKeeper server, before its first request.

ZooKeeper ties an identity to a connection, not to a session: a session that is resumed on a new connection has no
rights until that connection is authenticated. So :class:`ConnectionLogin` runs on each connection, between the server's
greeting and everything else::

    session                      server
    connect                  ->
                             <-  greeting (session id)
    sasl(token) ...          ->                          this module
                             <-  token ...
    auth(digest user:pw)     ->                          this module
    exists(chroot)           ->                          zk.session; then watches and requests

A token is a request of type 102 with an ordinary xid. Every token is answered, the last one of GSSAPI too, by null. A
server without SASL answers null to any token, and goes on to serve the connection without an identity. So null is an
error while the mechanism still wants a token.

| cause | ZooKeeper 3.4 | later |
|---|---|---|
| wrong password or user, ticket for another service | the end of the connection | error -115 or -124, then the end |
| server without SASL | null | null |

Sources: ``ZooKeeperSaslClient.java``, ``ZooKeeperServer.java`` (processSasl), and recordings of real servers
(``tests/vectors/sasl``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from consumerd.aio.backoff import Backoff
from consumerd.errors import AuthenticationFailed, ConfigError, ConsumerdError, RemoteProtocolError
from consumerd.sasl.client import SaslClient, Token
from consumerd.sasl.gssapi_client import GSSAPI
from consumerd.zk.connect_string import Server
from consumerd.zk.connection import ZkConnection
from consumerd.zk.session_codec import Credential, SessionCodec

AUTH_FAILED: Final = -115
SASL_REQUIRED: Final = -124
"""Error SessionClosedRequireSaslAuth: the server serves no client without SASL."""

_AUTH_XID: Final = -4
_MOST_TOKENS: Final = 16
"""Largest number of tokens of one authentication; no mechanism needs more than four."""

_SHORTEST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 60.0

Prepared = tuple[SaslClient, Token]
"""The client's side of an authentication, with its first token."""


class SaslTokens(Protocol):
    """Makes the tokens of SASL authentications.

    The methods do so off the event loop, each within a time limit. They raise AuthenticationFailed with the reason.
    """

    @property
    def setting(self) -> str:
        """Name of the setting that gives the identity, for messages."""

    @property
    def identity(self) -> str:
        """The identity as ACLs name it, as far as it is known: ``sasl:lake``."""

    async def first(self, server: Server) -> Prepared:
        """Begin an authentication with a server; return its first token."""

    async def next(self, client: SaslClient, challenge: bytes) -> Token | None:
        """Return the token that answers a server's; None at the end.

        Raises RemoteProtocolError for a token that the mechanism does not allow.
        """

    def note_refusal(self) -> None:
        """Note that a server has refused an authentication."""


class IdentityRefused(ConfigError):
    """Raised if every server refuses our identity, or there is none to show."""


class LoginFailed(ConsumerdError):
    """A connection could not be authenticated.

    ``certain`` is False if the server closed the connection without a word: a refusal of ZooKeeper 3.4, or a server
    that went down.
    """

    def __init__(self, reason: str, *, certain: bool = True) -> None:
        super().__init__(reason)
        self.certain = certain


class ConnectionLogin:
    """Authenticates new connections by SASL, by ZooKeeper's own schemes, or both.

    Args:
        credentials: Sent on every connection, after SASL: a server may serve nothing before it.
        sasl: Makes SASL's tokens; None for none.
    """

    def __init__(self, codec: SessionCodec, *, credentials: Sequence[Credential], sasl: SaslTokens | None) -> None:
        self._codec = codec
        self._credentials = tuple(credentials)
        self._sasl = sasl

    async def prepare(self, server: Server) -> Prepared | None:
        """Make the first token; None without SASL. Raises LoginFailed.

        Call it before connecting: a Kerberos server may be slow, and a connection has little time.
        """
        if self._sasl is None:
            return None
        try:
            return await self._sasl.first(server)
        except AuthenticationFailed as error:
            raise LoginFailed(str(error)) from error

    async def authenticate(self, connection: ZkConnection, prepared: Prepared | None) -> None:
        """Prove our identity on a greeted connection.

        Raises LoginFailed. The caller sets a timeout.
        """
        if prepared is not None:
            assert self._sasl is not None, "prepare() has made its token"
            try:
                await self._exchange_tokens(self._sasl, connection, *prepared)
            except LoginFailed:
                self._sasl.note_refusal()
                raise
        for credential in self._credentials:
            reply = await connection.submit(self._codec.authenticate(credential), xid=_AUTH_XID)
            if reply is None or reply.error:
                raise LoginFailed(
                    f"it refuses the credentials of scheme {credential.scheme!r}"
                    + (f", or went down ({connection.reason})" if reply is None else ""),
                    certain=reply is not None,
                )

    async def _exchange_tokens(
        self, sasl: SaslTokens, connection: ZkConnection, client: SaslClient, first: Token
    ) -> None:
        token = first
        for _ in range(_MOST_TOKENS):
            answer = await self._send(sasl, connection, client, token)
            if not token.answered:
                return
            if answer is None:
                raise LoginFailed(
                    f"it has no SASL, and would serve us as world:anyone: give the server a section Server in its JAAS file, "
                    f"or remove {sasl.setting}"
                )
            try:
                following = await sasl.next(client, answer)
            except (AuthenticationFailed, RemoteProtocolError) as error:
                raise LoginFailed(str(error)) from error
            if following is None:
                return
            token = following
        raise LoginFailed(f"{client.mechanism}: no end after {_MOST_TOKENS} tokens")

    async def _send(self, sasl: SaslTokens, connection: ZkConnection, client: SaslClient, token: Token) -> bytes | None:
        """Send a token; return the server's, None for null."""
        reply = await connection.submit(self._codec.sasl(token.data))
        advice = _advise(sasl, client.mechanism)
        if reply is None:
            raise LoginFailed(
                f"the connection ended during {client.mechanism} ({connection.reason}): ZooKeeper 3.4 refuses so, or the "
                f"server went down; if it refuses {sasl.identity}, {advice}",
                certain=False,
            )
        if reply.error:
            raise LoginFailed(f"it refuses {sasl.identity} by {client.mechanism} (error {reply.error}): {advice}")
        try:
            return self._codec.read_sasl(reply.body)
        except ValueError as error:
            raise LoginFailed(f"{client.mechanism}: {error}") from error


def _advise(sasl: SaslTokens, mechanism: str) -> str:
    if mechanism == GSSAPI:
        return (
            f"compare {sasl.setting}.service_name, and the host in cluster.zookeeper, with the server's principal "
            "service_name/host, and the clocks of both hosts"
        )
    return f"the password is wrong, or the user is unknown to the server: check username and password of {sasl.setting}"


class RefusingServers:
    """Servers that have refused our identity, and for how long each is left alone.

    A refusal rarely passes by itself, so this time grows from 1 to 60 s with each one.

    Args:
        random: Returns numbers in ``[0, 1)``, for the jitter.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._rests: dict[Server, Backoff] = {}
        self._last: dict[Server, tuple[LoginFailed, float]] = {}

    def note(self, server: Server, refusal: LoginFailed, now: float) -> None:
        """Note a refusal."""
        rest = self._rests.setdefault(
            server, Backoff(initial_s=_SHORTEST_REST_S, maximum_s=_LONGEST_REST_S, random=self._random)
        )
        self._last[server] = refusal, now + rest.next()

    def forget(self, server: Server) -> None:
        """Forget the refusals of a server that has accepted us."""
        self._rests.pop(server, None)
        self._last.pop(server, None)

    def find(self, server: Server, now: float) -> LoginFailed | None:
        """Return the refusal for which a server is to be left alone now.

        None for any other server.
        """
        last = self._last.get(server)
        return last[0] if last is not None and now < last[1] else None

    def count(self, server: Server) -> int:
        """Return the number of refusals in a row."""
        return self._rests[server].attempts if server in self._rests else 0
