# SPDX-License-Identifier: Apache-2.0
"""The mechanism DIGEST-MD5 (RFC 2831), as ZooKeeper has it. Pure.

The password does not leave the process. MD5 is weak, and the RFC was withdrawn (RFC 6331): who listens can try
passwords. The server's first challenge answers an empty token, and its last one proves that it knows the password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.client import MakeNonce, Token, refuse_large

DIGEST_MD5: Final = "DIGEST-MD5"

_FIELD: Final = re.compile(r'\s*([A-Za-z-]{1,32})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?:,|$)')
_MOST_FIELDS: Final = 32
_COUNT: Final = "00000001"
"""Number of times that the server's nonce was used, in hexadecimal."""


class DigestClient:
    """One authentication by DIGEST-MD5.

    Args:
        uri: Name of the service, ``digest-uri`` of the RFC: ``zookeeper/zk-sasl-md5`` for every ZooKeeper server.
        make_nonce: Returns the random text that makes this authentication unlike every other.
        realm: Realm to choose if the server names several; None for its first one.
    """

    mechanism: Final = DIGEST_MD5

    def __init__(
        self, username: str, password: str, *, uri: str, make_nonce: MakeNonce, realm: str | None = None
    ) -> None:
        self._username = username
        self._password = password
        self._uri = uri
        self._make_nonce = make_nonce
        self._realm = realm
        self._expected: bytes | None = None

    def first(self) -> Token:
        """Return an empty token, which asks for the server's challenge."""
        return Token(data=b"")

    def next(self, challenge: bytes) -> Token | None:
        """Return the response to a challenge; None for the server's right ``rspauth``."""
        refuse_large(challenge, DIGEST_MD5)
        try:
            text = challenge.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("DIGEST-MD5: a challenge that is not UTF-8") from error
        fields = _read_fields(text)
        if self._expected is None:
            return self._respond(fields)
        if not hmac.compare_digest(fields.get("rspauth", "").encode(), self._expected):
            raise AuthenticationFailed(
                "DIGEST-MD5: the server's rspauth is wrong or missing: it does not know the user's password"
            )
        return None

    def _respond(self, fields: Mapping[str, str]) -> Token:
        nonce = fields.get("nonce", "")
        if not nonce or fields.get("algorithm") != "md5-sess":
            raise RemoteProtocolError("DIGEST-MD5: expected a challenge with nonce and algorithm=md5-sess")
        if "auth" not in re.split(r"[\s,]+", fields.get("qop", "auth")):
            raise RemoteProtocolError("DIGEST-MD5: the server insists on a security layer, which is not supported")
        realm = fields.get("realm", "") if self._realm is None else self._realm
        ours = self._make_nonce()
        secret = _hash(f"{self._username}:{realm}:{self._password}".encode()).digest()
        key = _hash(secret + f":{nonce}:{ours}".encode()).hexdigest()

        def sign(method: str) -> str:
            signed = _hash(f"{method}:{self._uri}".encode()).hexdigest()
            return _hash(f"{key}:{nonce}:{_COUNT}:{ours}:auth:{signed}".encode()).hexdigest()

        self._expected = sign("").encode()
        response = (
            f'charset=utf-8,username="{_quote(self._username)}",realm="{_quote(realm)}",nonce="{_quote(nonce)}",'
            f'nc={_COUNT},cnonce="{ours}",digest-uri="{self._uri}",maxbuf=65536,response={sign("AUTHENTICATE")},'
            "qop=auth"
        )
        return Token(data=response.encode())


def _read_fields(text: str) -> Mapping[str, str]:
    """Return the fields of a challenge, ``name=value,name="value"``.

    Of a field that is there twice, the first one counts.
    """
    fields: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _FIELD.match(text, at)
        if match is None or len(fields) == _MOST_FIELDS:
            raise RemoteProtocolError(f"DIGEST-MD5: expected name=value at character {at} of the challenge")
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL)
        fields.setdefault(match[1].lower(), value)
        at = match.end()
    return fields


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _hash(data: bytes) -> hashlib._Hash:
    # usedforsecurity: hosts in FIPS mode refuse MD5 otherwise; the mechanism has no other
    return hashlib.md5(data, usedforsecurity=False)
