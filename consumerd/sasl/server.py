# SPDX-License-Identifier: Apache-2.0
"""The server's side of PLAIN and SCRAM, for the embedded broker. Pure.

The messages are those of ``sasl.plain`` and ``sasl.scram``. Of a user of SCRAM only the *credential* is kept: salt,
iterations and two keys, from which the password cannot be read (RFC 5802, section 3).

Sources: RFC 4616, RFC 5802, RFC 7677; ``PlainSaslServer`` and ``ScramSaslServer`` of Kafka 1.1 for what is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.errors import AuthenticationFailed
from consumerd.sasl.client import MakeNonce
from consumerd.sasl.plain import PLAIN
from consumerd.sasl.scram import HASHES, LEAST_ITERATIONS, xor

_CLIENT_FIRST: Final = re.compile(r"n,(?:a=([^,]{1,255}))?,(n=([^,]{1,255}),r=([!-+\--~]{1,1024})(?:,.*)?)")
_CLIENT_LAST: Final = re.compile(r"(c=([A-Za-z0-9+/=]{1,1024}),r=([!-+\--~]{1,2048})),p=([A-Za-z0-9+/=]{1,1024})")


class SaslServer(Protocol):
    """The server's side of one authentication."""

    @property
    def user(self) -> str | None:
        """The authenticated user; None until the exchange has ended well."""

    def next(self, token: bytes) -> bytes:
        """Take the client's next token; return the answer to it.

        Raises AuthenticationFailed if it is refused.
        """


class PlainServer:
    """One authentication by PLAIN.

    Args:
        passwords: Password by user.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None

    def next(self, token: bytes) -> bytes:
        """Check user name and password; return the empty answer."""
        parts = token.split(b"\0")
        try:
            authorization, user, password = (part.decode() for part in parts)
        except ValueError as error:
            raise AuthenticationFailed("Invalid SASL/PLAIN response: expected 3 tokens") from error
        # compared without a user, too, so that the time does not tell which users there are
        known = self._passwords.get(user)
        is_right = hmac.compare_digest((known or "").encode(), password.encode())
        if known is None or not is_right or authorization not in ("", user):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        self.user = user
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Keys that a server keeps of a user's password; no ``repr`` shows them."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def make_credential(mechanism: str, password: str, salt: bytes, iterations: int = LEAST_ITERATIONS) -> ScramCredential:
    """Return the credential of a password.

    Takes as long as the iterations do: 4096 take about 2 ms.
    """
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


class ScramServer:
    """One authentication by SCRAM.

    Args:
        mechanism: Such as ``SCRAM-SHA-256``.
        credentials: Credential by user.
        make_nonce: Returns the random text that makes this authentication unlike every other.
    """

    def __init__(self, mechanism: str, credentials: Mapping[str, ScramCredential], make_nonce: MakeNonce) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._credentials = credentials
        self._make_nonce = make_nonce
        self._asked: tuple[str, ScramCredential, str, str] | None = None
        self.user: str | None = None

    def next(self, token: bytes) -> bytes:
        """Return nonce and salt for the first message, and our signature for the proof."""
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise self._refuse() from error
        if self._asked is None:
            return self._challenge(text)
        return self._check(text, *self._asked)

    def _challenge(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise self._refuse()
        name = match[3].replace("=2C", ",").replace("=3D", "=")
        credential = self._credentials.get(name)
        # the first group is another user to act as, which needs a right of its own in Kafka
        if credential is None or match[1] not in (None, match[3]):
            raise self._refuse()
        nonce = match[4] + self._make_nonce()
        salt = base64.b64encode(credential.salt).decode()
        first = f"r={nonce},s={salt},i={credential.iterations}"
        header = text[: len(text) - len(match[2])]
        self._asked = (name, credential, f"{match[2]},{first}", f"{header}|{nonce}")
        return first.encode()

    def _check(self, text: str, name: str, credential: ScramCredential, signed: str, expected: str) -> bytes:
        match = _CLIENT_LAST.fullmatch(text)
        if match is None:
            raise self._refuse()
        header, _, nonce = expected.partition("|")
        try:
            binding, proof = base64.b64decode(match[2], validate=True), base64.b64decode(match[4], validate=True)
        except binascii.Error as error:
            raise self._refuse() from error
        if match[3] != nonce or binding != header.encode() or len(proof) != len(credential.stored_key):
            raise self._refuse()
        message = f"{signed},{match[1]}".encode()
        client_key = xor(proof, hmac.digest(credential.stored_key, message, self._hash))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key):
            raise self._refuse()
        self.user = name
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, message, self._hash))

    def _refuse(self) -> AuthenticationFailed:
        return AuthenticationFailed(
            f"Authentication failed due to invalid credentials with SASL mechanism {self._mechanism}"
        )


def make_server(
    mechanism: str,
    passwords: Mapping[str, str],
    credentials: Mapping[str, Mapping[str, ScramCredential]],
    make_nonce: MakeNonce,
) -> SaslServer:
    """Return the server's side of one authentication by ``mechanism``.

    Args:
        passwords: Password by user, for PLAIN.
        credentials: Credentials of SCRAM by mechanism and user.
    """
    return PlainServer(passwords) if mechanism == PLAIN else ScramServer(mechanism, credentials[mechanism], make_nonce)
