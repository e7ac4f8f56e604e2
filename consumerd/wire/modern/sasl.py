# SPDX-License-Identifier: Apache-2.0
"""SaslHandshake and SaslAuthenticate: authentication of a connection (KIP-43, KIP-152, KIP-368).

| request | version | since | |
|---|---|---|---|
| SaslHandshake | 0 | 0.10 | tokens follow as bare frames, see ``wire.sasl_tokens`` |
| SaslHandshake | 1 | 1.0 | tokens follow in SaslAuthenticate |
| SaslAuthenticate | 0 | 1.0 | |
| SaslAuthenticate | 1 | 2.2 | adds the session's lifetime |

Version 2 of SaslAuthenticate (flexible) adds nothing.
"""

from __future__ import annotations

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import BYTES, INT16, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request


@message
class SaslHandshakeResponse:
    """SaslHandshake response: the mechanisms that the listener has.

    After error 33 (UNSUPPORTED_SASL_MECHANISM) and 34 (ILLEGAL_SASL_STATE) brokers close the connection.
    """

    error_code: int = field(INT16, default=0)
    mechanisms: tuple[str, ...] = field(ArrayOf(STRING))


@request(ApiKey.SASL_HANDSHAKE, versions=range(2), response=SaslHandshakeResponse)
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """Request to authenticate by ``mechanism``; the version decides how tokens are framed."""

    mechanism: str = field(STRING)


@message
class SaslAuthenticateResponse:
    """SaslAuthenticate response: the server's token, or error 58 (SASL_AUTHENTICATION_FAILED) with a text.

    ``session_lifetime_ms`` is the time after which the broker closes the connection at its next request; 0 for none.
    It is set in the last response only.
    """

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, default=None, nullable="0+")
    auth_bytes: bytes = field(BYTES, default=b"")
    session_lifetime_ms: int = field(INT64, "1+", default=0)


@request(ApiKey.SASL_AUTHENTICATE, versions=range(2), response=SaslAuthenticateResponse)
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """Request that carries one token of the client."""

    auth_bytes: bytes = field(BYTES)

    def __repr__(self) -> str:
        # the token of PLAIN holds the password
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"
