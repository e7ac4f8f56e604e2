# SPDX-License-Identifier: Apache-2.0
"""The order of GSSAPI's tokens over a context that plays what was recorded; real Kerberos is in tests/interop."""

from __future__ import annotations

import pytest

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.gssapi_client import GssapiClient
from tests.support.sasl_recordings import BROKERS, list_tokens, read_broker


class Context:
    """A context that needs ``steps`` tokens of the server, and wraps by a prefix."""

    def __init__(self, steps: int = 1) -> None:
        self._left = steps
        self.seen: list[bytes | None] = []

    @property
    def complete(self) -> bool:
        return self._left < 0

    def step(self, token: bytes | None) -> bytes | None:
        self.seen.append(token)
        self._left -= 1
        return None if self.complete else b"token %d" % len(self.seen)

    def unwrap(self, message: bytes) -> bytes:
        return message.removeprefix(b"wrapped ")

    def wrap(self, message: bytes) -> bytes:
        return b"wrapped " + message


def test_empty_token_asks_for_the_offer_and_the_choice_ends_it() -> None:
    """RFC 4752, section 3.1; the choice is no layer, no buffer and no other identity."""
    context = Context()
    ours = GssapiClient(lambda: context)

    first = ours.first()
    second = ours.next(b"of the server")
    third = ours.next(b"wrapped \x07\0\1\0")

    assert context.seen == [None, b"of the server"]
    assert (first.data, first.answered) == (b"token 1", True)
    assert second is not None
    assert (second.data, second.answered) == (b"", True)
    assert third is not None
    assert (third.data, third.answered) == (b"wrapped \1\0\0\0", False)


@pytest.mark.parametrize("release", BROKERS)
def test_real_brokers_saw_this_order(release: str) -> None:
    """The last token has no answer in a frame of its own."""
    name = "no handshake (0.9): GSSAPI" if release == "0.9.0.1" else "handshake v0, raw tokens: GSSAPI"
    tokens = list_tokens(read_broker(release)[name])

    assert [(bool(token), answer is None) for token, answer in tokens] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_layer_that_is_insisted_on_is_refused() -> None:
    """Requests would have to be wrapped, which Kafka never asks for."""
    ours = GssapiClient(Context)
    ours.first()
    ours.next(b"x")

    with pytest.raises(AuthenticationFailed, match="security layer"):
        ours.next(b"\x06\0\0\0")


@pytest.mark.parametrize("offer", [b"", b"\1\0\0", b"\1\0\0\0\0"])
def test_offer_of_another_size_is_refused(offer: bytes) -> None:
    """It is something else."""
    ours = GssapiClient(Context)
    ours.first()
    ours.next(b"x")

    with pytest.raises(RemoteProtocolError, match="offer"):
        ours.next(offer)


def test_endless_tokens_are_refused() -> None:
    """A server could keep the connection for ever."""
    ours = GssapiClient(lambda: Context(steps=1000))
    ours.first()

    with pytest.raises(RemoteProtocolError, match="after 8 tokens"):
        for _ in range(1000):
            ours.next(b"more")
