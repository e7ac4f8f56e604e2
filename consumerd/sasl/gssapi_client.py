# SPDX-License-Identifier: Apache-2.0
"""The mechanism GSSAPI (RFC 4752), which is Kerberos here, over a given security context. Pure.

First client and server exchange tokens until their security context is established. Then the server offers its
security layers, wrapped: one byte of flags and three bytes of a buffer size. The client chooses "none" (flag 1): what
follows on the connection is protected by TLS or not at all. Kafka and ZooKeeper offer it always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.client import Token, refuse_large

GSSAPI: Final = "GSSAPI"

_NO_LAYER: Final = 1
"""Flag of the server's offer: the connection may go on without a security layer."""
_OFFER_BYTES: Final = 4
_MOST_TOKENS: Final = 8
"""Largest number of tokens until the context is established. Kerberos needs two."""


class SecurityContext(Protocol):
    """A GSS-API security context of the client (RFC 2743), not established yet.

    The methods raise AuthenticationFailed with the reason. They may block: the first step asks the Kerberos server.
    """

    @property
    def complete(self) -> bool:
        """True if the context is established."""

    def step(self, token: bytes | None) -> bytes | None:
        """Take the server's token, None at first; return the next one for it."""

    def unwrap(self, message: bytes) -> bytes:
        """Return the content of a message of the server, whose integrity is checked."""

    def wrap(self, message: bytes) -> bytes:
        """Return a message for the server with this content, signed and not encrypted."""


class GssapiClient:
    """One authentication by GSSAPI.

    Args:
        open_context: Makes the security context for the server, with fresh credentials. May block.
    """

    mechanism: Final = GSSAPI

    def __init__(self, open_context: Callable[[], SecurityContext]) -> None:
        self._open_context = open_context
        self._context: SecurityContext | None = None
        self._tokens = 0

    def first(self) -> Token:
        """Return the first token of the context. Raises AuthenticationFailed without a ticket."""
        self._context = self._open_context()
        return Token(data=self._context.step(None) or b"")

    def next(self, challenge: bytes) -> Token | None:
        """Take a token of the context, or the server's offer of security layers."""
        refuse_large(challenge, GSSAPI)
        context = self._context
        assert context is not None, "first() makes the context"
        if context.complete:
            return self._choose_layer(context, challenge)
        self._tokens += 1
        if self._tokens > _MOST_TOKENS:
            raise RemoteProtocolError(f"GSSAPI: no security context after {_MOST_TOKENS} tokens of the server")
        # an established context may have nothing left to say: the empty token asks for the server's offer
        return Token(data=context.step(challenge) or b"")

    def _choose_layer(self, context: SecurityContext, challenge: bytes) -> Token:
        offer = context.unwrap(challenge)
        if len(offer) != _OFFER_BYTES:
            raise RemoteProtocolError(f"GSSAPI: an offer of {len(offer)} bytes; expected {_OFFER_BYTES}")
        if not offer[0] & _NO_LAYER:
            raise AuthenticationFailed("GSSAPI: the server insists on a security layer, which is not supported")
        # no layer, no buffer, and no other user to act as
        return Token(data=context.wrap(bytes([_NO_LAYER, 0, 0, 0])), answered=False)
