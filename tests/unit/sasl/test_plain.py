# SPDX-License-Identifier: Apache-2.0
"""PLAIN by the RFC's example and by what real brokers took."""

from __future__ import annotations

import pytest

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.client import MOST_CHALLENGE_BYTES
from consumerd.sasl.plain import PlainClient
from tests.support.sasl_recordings import BROKERS, list_tokens, read_broker


def test_example_of_the_rfc() -> None:
    """RFC 4616, section 4."""
    ours = PlainClient("tim", "tanstaaftanstaaf")

    assert b"\0tim\0tanstaaftanstaaf" == ours.first().data
    ours.next(b"")


@pytest.mark.parametrize("release", [one for one in BROKERS if one != "0.9.0.1"])
def test_real_brokers_were_told_the_same(release: str) -> None:
    """They answer with an empty token, which must be waited for."""
    ((token, answer),) = list_tokens(read_broker(release)["handshake v0, raw tokens: PLAIN, with ApiVersions"])
    ours = PlainClient("alice", "alice-secret").first()

    assert (token, True, b"") == (ours.data, ours.answered, answer)


@pytest.mark.parametrize(("user", "password"), [("a\0b", "p"), ("a", "p\0q")])
def test_zero_bytes_are_refused(user: str, password: str) -> None:
    """They would move the borders between user and password."""
    with pytest.raises(AuthenticationFailed, match="zero byte"):
        PlainClient(user, password).first()


def test_huge_answer_is_refused() -> None:
    """There is nothing that it could hold."""
    with pytest.raises(RemoteProtocolError):
        PlainClient("a", "b").next(bytes(MOST_CHALLENGE_BYTES + 1))


def test_password_is_in_no_repr() -> None:
    """Values are logged by their repr."""
    ours = PlainClient("alice", "alice-secret")

    assert "secret" not in repr(ours) + repr(ours.first())
