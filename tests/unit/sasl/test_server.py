# SPDX-License-Identifier: Apache-2.0
"""The server's side of PLAIN and SCRAM: the RFC's example, our own client, and everything that must be refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import AuthenticationFailed
from consumerd.sasl.plain import PlainClient
from consumerd.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramClient
from consumerd.sasl.server import PlainServer, ScramCredential, ScramServer, make_credential

MECHANISMS = pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def make_server(mechanism: str = SCRAM_SHA_256, **passwords: str) -> ScramServer:
    credentials = {user: make_credential(mechanism, one, b"salt" * 4) for user, one in passwords.items()}
    return ScramServer(mechanism, credentials, lambda: "servers")


def test_the_example_of_rfc_7677_is_answered() -> None:
    """Section 3, byte by byte."""
    credential = make_credential(SCRAM_SHA_256, "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    server = ScramServer(SCRAM_SHA_256, {"user": credential}, lambda: SERVER_NONCE)

    first = server.next(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert server.user is None
    last = server.next(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.user == "user"


@MECHANISMS
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "ä"])
def test_our_client_and_server_agree(mechanism: str, user: str) -> None:
    """Names with the characters that separate fields, too."""
    client = ScramClient(mechanism, user, "pass,word", lambda: "clients")
    server = make_server(mechanism, **{user: "pass,word"})

    proof = client.next(server.next(client.first().data))
    assert proof is not None
    assert client.next(server.next(proof.data)) is None
    assert server.user == user


@MECHANISMS
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(mechanism: str) -> None:
    """The text does not say which it was; when it comes does, as with Kafka."""
    wrong = ScramClient(mechanism, "alice", "wrong", lambda: "clients")
    server = make_server(mechanism, alice="right")
    proof = wrong.next(server.next(wrong.first().data))
    assert proof is not None
    with pytest.raises(AuthenticationFailed, match=f"invalid credentials.*{mechanism}") as refused:
        server.next(proof.data)
    assert server.user is None
    nobody = ScramClient(mechanism, "bob", "right", lambda: "clients")
    with pytest.raises(AuthenticationFailed) as unknown:
        make_server(mechanism, alice="right").next(nobody.first().data)
    assert str(refused.value) == str(unknown.value)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"y,,n=alice,r=clients",
        b"n,a=bob,n=alice,r=clients",
        b"n,,n=alice",
        b"n,,r=clients,n=alice",
        b"n,,m=ext,n=alice,r=clients",
        b"n,,n=alice,r=",
    ],
)
def test_first_messages_that_are_none_are_refused(first: bytes) -> None:
    """Channel binding and another user to act as are not offered."""
    server = make_server(alice="right")
    with pytest.raises(AuthenticationFailed):
        server.next(first)
    assert server.user is None


def test_a_proof_for_another_exchange_is_refused() -> None:
    """Another nonce, another header, a proof of another length."""

    def answer(change: tuple[str, str]) -> None:
        client = ScramClient(SCRAM_SHA_256, "alice", "right", lambda: "clients")
        server = make_server(alice="right")
        proof = client.next(server.next(client.first().data))
        assert proof is not None
        changed = proof.data.decode().replace(*change)
        assert changed != proof.data.decode()
        with pytest.raises(AuthenticationFailed):
            server.next(changed.encode())
        assert server.user is None

    for change in (("r=clientsservers", "r=clientsother"), ("c=biws", "c=eSws"), (",p=", ",p=AAAA"), (",p=", ",q=")):
        answer(change)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_no_bytes_authenticate_or_break_a_server(tokens: list[bytes]) -> None:
    """A refusal is the only error."""
    for server in (make_server(alice="right"), PlainServer({"alice": "right"})):
        try:
            for token in tokens:
                server.next(token)
        except AuthenticationFailed:
            pass
        assert server.user is None


def test_plain_takes_the_right_password_alone() -> None:
    """And no other user to act as."""
    server = PlainServer({"alice": "right"})
    assert server.next(PlainClient("alice", "right").first().data) == b""
    assert server.user == "alice"
    assert PlainServer({"alice": "right"}).next(b"alice\0alice\0right") == b""
    for token in (
        b"\0alice\0wrong",
        b"\0bob\0right",
        b"bob\0alice\0right",
        b"\0alice\0right\0",
        b"\0bob\0",
        b"\0\xff\0x",
    ):
        refusing = PlainServer({"alice": "right"})
        with pytest.raises(AuthenticationFailed):
            refusing.next(token)
        assert refusing.user is None


def test_keys_are_not_shown() -> None:
    """In an error's locals, say."""
    credential = make_credential(SCRAM_SHA_256, "secret", b"salt" * 4)

    assert repr(credential.stored_key) not in repr(credential)
    assert repr(credential.server_key) not in repr(credential)
    assert isinstance(credential, ScramCredential)
