# SPDX-License-Identifier: Apache-2.0
"""Mechanisms of SASL against servers that send anything: an error of ours, soon, whatever the bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.client import SaslClient
from consumerd.sasl.digest_md5 import DigestClient
from consumerd.sasl.gssapi_client import GssapiClient
from consumerd.sasl.plain import PlainClient
from consumerd.sasl.scram import MOST_ITERATIONS, SCRAM_SHA_256, SCRAM_SHA_512, ScramClient
from tests.unit.sasl.test_digest_md5 import CHALLENGE
from tests.unit.sasl.test_gssapi_client import Context
from tests.unit.sasl.test_scram import FIRST, LAST, NONCE

CLIENTS: dict[str, Callable[[], SaslClient]] = {
    "PLAIN": lambda: PlainClient("user", "pencil"),
    "SCRAM-SHA-256": lambda: ScramClient(SCRAM_SHA_256, "user", "pencil", lambda: NONCE),
    "SCRAM-SHA-512": lambda: ScramClient(SCRAM_SHA_512, "user", "pencil", lambda: NONCE),
    "DIGEST-MD5": lambda: DigestClient("user", "pencil", uri="zookeeper/x", make_nonce=lambda: NONCE),
    "GSSAPI": lambda: GssapiClient(Context),
}
MOST_TOKENS = 12


def cut_or_damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """Cut a message anywhere, or replace a part of it."""
    at = st.integers(0, len(good))
    return st.builds(lambda first, last, between: good[:first] + between + good[last:], at, at, st.binary(max_size=20))


CHALLENGES = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([FIRST, LAST, CHALLENGE, b"", b"\1\0\0\0"]).flatmap(cut_or_damaged),
    st.integers(MOST_ITERATIONS + 1, 10**12).map(lambda many: FIRST.replace(b"i=4096", b"i=%d" % many)),
    st.integers(1, 200_000).map(bytes),
)


@pytest.mark.parametrize("mechanism", CLIENTS)
@given(challenges=st.lists(CHALLENGES, min_size=1, max_size=MOST_TOKENS))
@settings(deadline=None)  # a valid first message of SCRAM is hashed 4096 times, which is not fast everywhere
def test_any_server_ends_in_tokens_or_in_an_error_of_ours(mechanism: str, challenges: list[bytes]) -> None:
    """Neither another exception, nor a token that is larger than what it was made of, nor a password in the error."""
    client = CLIENTS[mechanism]()
    size = len(client.first().data)
    said = ""
    try:
        for challenge in challenges:
            token = client.next(challenge)
            if token is None or not token.answered:
                break
            size += len(challenge)
            assert len(token.data) <= size + 1000
    except (AuthenticationFailed, RemoteProtocolError) as error:
        said = str(error)
    assert "pencil" not in said
    assert len(said) < 1000


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "DIGEST-MD5"])
@given(last=st.one_of(st.binary(max_size=100), st.just(b"").flatmap(lambda _: cut_or_damaged(LAST))))
@settings(deadline=None)
def test_no_server_without_the_password_is_believed(mechanism: str, last: bytes) -> None:
    """Only the signature of the example ends the exchange, and only for the mechanism whose it is."""
    client = CLIENTS[mechanism]()
    client.first()
    client.next(CHALLENGE if mechanism == "DIGEST-MD5" else FIRST)

    if mechanism == "SCRAM-SHA-256" and last.split(b",")[0] == LAST:
        assert client.next(last) is None
    else:
        with pytest.raises((AuthenticationFailed, RemoteProtocolError)):
            client.next(last)
