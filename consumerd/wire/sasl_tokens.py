# SPDX-License-Identifier: Apache-2.0
"""SASL tokens as bare frames: an int32 size and the token. Pure.

There is no header and no correlation id. Brokers of 0.9 expect tokens from the first byte of a connection on, those of
0.10 and later after SaslHandshake v0. The broker's tokens have the same form. Requests follow once the mechanism is
done: nothing marks the end.

Example, PLAIN on 0.10::

    -> SaslHandshake v0, PLAIN       <- error 0, [PLAIN, GSSAPI]
    -> 00000013 00 alice 00 secret   <- 00000000: an empty frame; a refusal closes the connection
    -> Metadata, and other requests
"""

from __future__ import annotations

from typing import Any, Final

from consumerd.errors import LocalProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import encode_frame
from consumerd.wire.schema import Request
from consumerd.wire.session import ClientSession, ResponseFrame

_TOKEN_KEY: Final = -1
"""Key of a token that waits for its answer. Correlation ids are never negative."""


class BareToken(Request[bytes]):
    """Token of the client in a bare frame; its response is the broker's token.

    Args:
        answered: False for a token that brokers do not answer: the last one of GSSAPI.
    """

    __slots__ = ("_answered", "_token")

    api = ApiKey.SASL_AUTHENTICATE
    versions = range(1)
    response = bytes

    def __init__(self, token: bytes, *, answered: bool = True) -> None:
        self._token = token
        self._answered = answered

    def __repr__(self) -> str:
        # the token of PLAIN holds the password
        return f"BareToken({len(self._token)} bytes)"

    @property
    def expects_response(self) -> bool:
        """True if the broker answers this token."""
        return self._answered

    def encode(self, version: int) -> bytes:  # noqa: ARG002 - tokens have no versions
        """Return the token."""
        return self._token

    def decode_response(self, version: int, body: memoryview) -> bytes:  # noqa: ARG002 - tokens have no versions
        """Return the broker's token."""
        return bytes(body)


class TokenSession(ClientSession):
    """A client's session that can send SASL tokens as bare frames, besides requests.

    A token is sent while no request waits for its response, and no request while a token waits.
    """

    def __init__(self, client_id: str | None) -> None:
        super().__init__(client_id)
        self._token_waits = False

    @property
    def in_flight(self) -> int:
        """Number of requests and tokens that wait for their response."""
        return super().in_flight + self._token_waits

    def send(self, request: Request[Any], version: int) -> tuple[int, bytes]:
        """Return the key and the frame of a request or token.

        Raises LocalProtocolError, without any change, as :meth:`ClientSession.send` does, and if the order of tokens
        and requests is wrong.
        """
        if self._token_waits or (isinstance(request, BareToken) and self.in_flight):
            raise LocalProtocolError(f"{request!r}: a token and requests cannot wait for their responses together")
        if not isinstance(request, BareToken):
            return super().send(request, version)
        self._token_waits = request.expects_response
        return _TOKEN_KEY, encode_frame(request.encode(version))

    def receive_frame(self, body: memoryview) -> ResponseFrame:
        """Match a frame to the token that waits, else to the oldest request.

        Raises RemoteProtocolError as :meth:`ClientSession.receive_frame` does.
        """
        if not self._token_waits:
            return super().receive_frame(body)
        self._token_waits = False
        return ResponseFrame(key=_TOKEN_KEY, body=body)
