# SPDX-License-Identifier: Apache-2.0
"""The mechanism PLAIN (RFC 4616): user name and password as they are. Pure.

The server sees the password, and so does everybody on the way unless the connection is encrypted.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import AuthenticationFailed
from consumerd.sasl.client import Token, refuse_large

PLAIN: Final = "PLAIN"


class PlainClient:
    """One authentication by PLAIN."""

    mechanism: Final = PLAIN

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password

    def first(self) -> Token:
        """Return the only token: user name and password.

        Raises AuthenticationFailed if one of them holds a zero byte.
        """
        # the zero byte separates the fields: with one in the password, the server would see another password
        if "\0" in self._username or "\0" in self._password:
            raise AuthenticationFailed("PLAIN: user name and password cannot hold a zero byte; look at password_file")
        # the first field, empty, would be the user to act as, if that were another one
        return Token(data=f"\0{self._username}\0{self._password}".encode())

    def next(self, challenge: bytes) -> None:
        """Take the server's answer, which is empty and ends the exchange."""
        refuse_large(challenge, PLAIN)
