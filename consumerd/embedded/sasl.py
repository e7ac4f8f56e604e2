# SPDX-License-Identifier: Apache-2.0
"""Authentication of connections at the embedded broker: SaslHandshake, tokens in both framings, refusals.

Before a connection is authenticated, it takes the requests that a broker of the imitated release takes, and closes on
every other one (measured on 0.10.2.2 and 1.1.1)::

    ApiVersions           answered; a second one closes the connection from 1.0 on
    SaslHandshake v0      bare tokens follow; a refusal closes the connection without a word
    SaslHandshake v1      SaslAuthenticate follows (1.0 and later); a refusal is error 58 with a text, then the end
    unknown mechanism     error 33 with the mechanisms that there are, then the end

Afterwards requests are passed on with the user as their principal. SaslHandshake is error 34 then.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from consumerd.access.secret_file import check_secret_file
from consumerd.embedded.handlers.context import ConnectionRefused, Handler, Hangup, RequestContext
from consumerd.embedded.reply import FramedReply
from consumerd.errors import AuthenticationFailed, ConfigError, RemoteProtocolError
from consumerd.net.versions import Release
from consumerd.sasl.client import MOST_CHALLENGE_BYTES
from consumerd.sasl.plain import PLAIN
from consumerd.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512
from consumerd.sasl.server import SaslServer, ScramCredential, make_credential, make_server
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.framing import encode_frame
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from consumerd.wire.schema import Request
from consumerd.wire.server_session import VersionNotSpoken, encode_response_pieces, read_request

MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
"""Mechanisms that the embedded broker has."""
FIRST_RELEASE: Final = (0, 10)
"""First release with these mechanisms: 0.9 has GSSAPI alone."""
_FIRST_WITH_ONE_API_VERSIONS: Final = (1, 0)
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslUsers:
    """Users of a broker; no ``repr`` shows their passwords.

    Attributes:
        passwords: Password by user, for PLAIN.
        credentials: Credentials of SCRAM by mechanism and user.
    """

    passwords: Mapping[str, str] = field(repr=False)
    credentials: Mapping[str, Mapping[str, ScramCredential]] = field(repr=False)


def make_users(passwords: Mapping[str, str]) -> SaslUsers:
    """Return users with these passwords. Takes about 5 ms for each."""
    return SaslUsers(
        passwords=passwords,
        credentials={
            mechanism: {
                user: make_credential(mechanism, password, secrets.token_bytes(_SALT_BYTES))
                for user, password in passwords.items()
            }
            for mechanism in MECHANISMS
            if mechanism != PLAIN
        },
    )


def read_users(path: Path) -> SaslUsers:
    """Read users from a file of lines ``USER:PASSWORD``.

    ``#`` begins a line that is a comment.

    Raises ConfigError for a file that everybody can read, or for a line that is none of these; never with a password.
    """
    check_secret_file("users", path)
    passwords: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not user or not colon or not password or user in passwords:
            raise ConfigError(f"users: {path}, line {number}: expected USER:PASSWORD, each user once")
        passwords[user] = password
    return make_users(passwords)


class RequestsOfUsers(Protocol):
    """Handles the requests of authenticated connections; implemented by ``dispatch.Dispatcher``."""

    async def respond(self, frame: memoryview, *, peer_host: str, hangup: Hangup, principal: str) -> FramedReply | None:
        """Return the response to a request; None if it has none."""

    def accepts(self, api: ApiKey) -> range:
        """Return the versions of a request that the imitated release takes; empty for none."""


class SaslDispatcher:
    """Gives each connection an authentication of its own."""

    def __init__(self, requests: RequestsOfUsers, users: SaslUsers, release: Release) -> None:
        self._requests = requests
        self._users = users
        self._release = release

    def connect(self) -> SaslConnection:
        """Return what handles the requests of a new connection."""
        return SaslConnection(self._requests, self._users, self._release)


class SaslConnection:
    """Handles the requests of one connection: first its authentication, then what it asks."""

    def __init__(self, requests: RequestsOfUsers, users: SaslUsers, release: Release) -> None:
        self._requests = requests
        self._users = users
        self._lists_once = release >= _FIRST_WITH_ONE_API_VERSIONS
        self._has_listed = False
        self._server: SaslServer | None = None
        self._mechanism = ""
        self._takes_bare_tokens = False
        self._principal: str | None = None
        self._accepted: dict[type[Request[object]], range] = {}
        for kind in (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest):
            if versions := requests.accepts(kind.api):
                self._accepted[kind] = versions

    async def respond(self, frame: memoryview, *, peer_host: str, hangup: Hangup) -> FramedReply | None:
        """Return the response to a request or a token; None if it has none.

        Raises ConnectionRefused or RemoteProtocolError if the connection must be closed.
        """
        if self._principal is not None:
            return await self._requests.respond(frame, peer_host=peer_host, hangup=hangup, principal=self._principal)
        if len(frame) > MOST_CHALLENGE_BYTES:
            raise RemoteProtocolError(f"{len(frame)} bytes before authentication")
        if self._takes_bare_tokens:
            return self._take_bare(bytes(frame))
        try:
            received = read_request(frame, self._accepted)
        except VersionNotSpoken as error:
            if error.request_class is not ApiVersionsRequest or self._has_listed:
                raise
            # answered with error 35; it does not count, so that the client asks again in version 0
            return await self._requests.respond(frame, peer_host=peer_host, hangup=hangup, principal="")
        request, version = received.request, received.header.api_version
        if isinstance(request, ApiVersionsRequest):
            if self._server is not None or (self._has_listed and self._lists_once):
                raise ConnectionRefused("ApiVersions is not expected now")
            self._has_listed = True
            return await self._requests.respond(frame, peer_host=peer_host, hangup=hangup, principal="")
        if isinstance(request, SaslHandshakeRequest) and self._server is None:
            response, ends = self._shake_hands(request.mechanism, version)
        elif isinstance(request, SaslAuthenticateRequest) and self._server is not None:
            response, ends = self._take(bytes(request.auth_bytes))
        else:
            raise ConnectionRefused(f"{request.api.name} is not expected now")
        pieces = encode_response_pieces(received.header.correlation_id, response, version)
        return FramedReply(pieces=pieces, then_close=ends)

    def _shake_hands(self, mechanism: str, version: int) -> tuple[object, bool]:
        if mechanism not in MECHANISMS:
            refusal = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return SaslHandshakeResponse(error_code=refusal, mechanisms=MECHANISMS), True
        self._server = make_server(
            mechanism, self._users.passwords, self._users.credentials, lambda: secrets.token_urlsafe(18)
        )
        self._takes_bare_tokens = version == 0
        return SaslHandshakeResponse(mechanisms=MECHANISMS), False

    def _take(self, token: bytes) -> tuple[object, bool]:
        try:
            answer = self._next(token)
        except AuthenticationFailed as error:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message=str(error)), True
        return SaslAuthenticateResponse(auth_bytes=answer), False

    def _take_bare(self, token: bytes) -> FramedReply:
        try:
            return FramedReply(pieces=[encode_frame(self._next(token))])
        except AuthenticationFailed as error:
            raise ConnectionRefused(str(error)) from error

    def _next(self, token: bytes) -> bytes:
        assert self._server is not None  # a handshake comes first
        answer = self._server.next(token)
        if self._server.user is not None:
            self._principal = f"User:{self._server.user}"
            self._takes_bare_tokens = False
        return answer


async def _refuse_handshake(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())


async def _refuse_token(_request: SaslAuthenticateRequest, _context: RequestContext) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


LATE_HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.SASL_HANDSHAKE: _refuse_handshake,
    ApiKey.SASL_AUTHENTICATE: _refuse_token,
}
"""Handlers of authenticated connections for requests that come too late."""
