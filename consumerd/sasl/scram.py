# SPDX-License-Identifier: Apache-2.0
"""The mechanisms SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677, KIP-84). Pure.

The password does not leave the process: client and server prove to each other that they know it. The messages::

    client  n,,n=USER,r=NONCE
    server  r=NONCE + its own,s=SALT,i=ITERATIONS
    client  c=biws,r=both nonces,p=PROOF
    server  v=SIGNATURE, or e=ERROR

The server chooses how often the password is hashed. Fewer than 4096 times are refused, as Java's clients do: a server
that only pretends to be one could otherwise have the password hashed so weakly that it can be guessed. More than a
million times are refused, too: they would keep a processor busy for seconds.

Passwords are hashed as they are, in UTF-8. Kafka does not normalise them (SASLprep) either, so both agree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.client import MakeNonce, Token, refuse_large

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"

LEAST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 1_000_000
HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""Name of the hash function by mechanism."""
_HEADER: Final = "n,,"
"""Header in front of the first message: no channel binding, and no other user to act as."""
_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]{1,1024}),s=([A-Za-z0-9+/=]{1,1024}),i=([1-9][0-9]{0,9})(?:,.*)?")
_SERVER_LAST: Final = re.compile(r"(?:v=([A-Za-z0-9+/=]{1,1024})|e=([^,]{1,1024}))(?:,.*)?")
_SHOWN: Final = 100
"""Largest number of characters of a server's error that a message repeats."""


class ScramClient:
    """One authentication by SCRAM.

    Args:
        mechanism: :data:`SCRAM_SHA_256` or :data:`SCRAM_SHA_512`.
        make_nonce: Returns the random text that makes this authentication unlike every other.
    """

    def __init__(self, mechanism: str, username: str, password: str, make_nonce: MakeNonce) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = make_nonce()
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={escaped},r={self._nonce}"
        self._signature: bytes | None = None

    @property
    def mechanism(self) -> str:
        """Name of the mechanism."""
        return self._mechanism

    def first(self) -> Token:
        """Return the first message: user name and nonce."""
        return Token(data=f"{_HEADER}{self._first}".encode())

    def next(self, challenge: bytes) -> Token | None:
        """Return the proof for the server's first message; None for its right signature.

        The proof takes as long as the server's iterations do: 4096 take about 2 ms.
        """
        refuse_large(challenge, self._mechanism)
        try:
            text = challenge.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{self._mechanism}: a message that is not UTF-8") from error
        if self._signature is None:
            return self._prove(text)
        self._verify(text, self._signature)
        return None

    def _prove(self, text: str) -> Token:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            self._raise_error(text)
            raise RemoteProtocolError(f"{self._mechanism}: expected a first message r=,s=,i= of the server")
        nonce, salt, iterations = match[1], self._decode(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise RemoteProtocolError(f"{self._mechanism}: the server's nonce does not continue ours")
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise RemoteProtocolError(
                f"{self._mechanism}: the server asks for {iterations} iterations; "
                f"{LEAST_ITERATIONS} to {MOST_ITERATIONS} are accepted: set the user's password anew with as many"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, iterations)
        client_key = self._sign(salted, b"Client Key")
        last = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first},{text},{last}".encode()
        proof = xor(client_key, self._sign(hashlib.new(self._hash, client_key).digest(), signed))
        self._signature = self._sign(self._sign(salted, b"Server Key"), signed)
        return Token(data=f"{last},p={base64.b64encode(proof).decode()}".encode())

    def _verify(self, text: str, signature: bytes) -> None:
        match = _SERVER_LAST.fullmatch(text)
        if match is None:
            raise RemoteProtocolError(f"{self._mechanism}: expected a last message v= of the server")
        self._raise_error(text)
        if not hmac.compare_digest(self._decode(match[1]), signature):
            raise AuthenticationFailed(
                f"{self._mechanism}: the server's signature is wrong: it does not know the user's password, so it is "
                "not the broker that it says it is"
            )

    def _raise_error(self, text: str) -> None:
        """Raise AuthenticationFailed if the server's message is an error."""
        match = _SERVER_LAST.fullmatch(text)
        if match is not None and match[2] is not None:
            shown = "".join(one if one.isprintable() else "?" for one in match[2][:_SHOWN])
            raise AuthenticationFailed(f"{self._mechanism}: the server refuses: {shown}")

    def _decode(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise RemoteProtocolError(f"{self._mechanism}: a field that is not base64: {error}") from error

    def _sign(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self._hash)


def xor(left: bytes, right: bytes) -> bytes:
    """Return two texts of the same length combined by exclusive or."""
    return bytes(one ^ other for one, other in zip(left, right, strict=True))
