# SPDX-License-Identifier: Apache-2.0
"""Interface of SASL mechanisms, seen from the client: challenges in, tokens out. Pure.

SASL (RFC 4422) is an exchange of opaque tokens between client and server, whose number and content the *mechanism*
decides. How tokens are framed on a connection is not known here: brokers have three ways (``net.authentication``),
ZooKeeper another one.

Example, SCRAM (RFC 5802)::

    client.first()            -> Token(b"n,,n=alice,r=abc")
    client.next(b"r=abc...")  -> Token(b"c=biws,r=abc...,p=...")
    client.next(b"v=...")     -> None: the server has proven that it knows the password, too

Tokens carry passwords and proofs, so no ``repr`` shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.errors import RemoteProtocolError

MOST_CHALLENGE_BYTES: Final = 64 * 1024
"""Largest token of a server, in bytes. Those of Kerberos, the largest, have a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token to be sent to the server.

    Attributes:
        data: The token.
        answered: True if the mechanism needs the server's answer to this token. False for the last token of GSSAPI:
            then the exchange is over, and whether a server answers at all depends on how tokens are framed.
    """

    data: bytes = field(repr=False)
    answered: bool = True


class SaslClient(Protocol):
    """The client's side of one authentication. Each connection needs a new one.

    The methods do no IO on the connection. They may take long all the same, so they are to be called in a thread: SCRAM
    hashes a password some thousand times, and GSSAPI may ask a Kerberos server.
    """

    @property
    def mechanism(self) -> str:
        """Name of the mechanism, such as ``PLAIN``."""

    def first(self) -> Token:
        """Return the first token; called once. Raises AuthenticationFailed without credentials that can be used."""

    def next(self, challenge: bytes) -> Token | None:
        """Take the server's answer to the last token; return the next, None at the end.

        Raises AuthenticationFailed if the server refuses, or fails to prove its own identity; RemoteProtocolError for
        an answer that the mechanism does not allow.
        """


MakeNonce = Callable[[], str]
"""Function that returns a random text for one authentication: printable ASCII without commas, 18 characters or more."""


def refuse_large(challenge: bytes, mechanism: str) -> None:
    """Raise RemoteProtocolError for a token of the server that is too large to be one."""
    if len(challenge) > MOST_CHALLENGE_BYTES:
        raise RemoteProtocolError(
            f"{mechanism}: a token of {len(challenge)} bytes; at most {MOST_CHALLENGE_BYTES} are accepted"
        )
