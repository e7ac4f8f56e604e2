# SPDX-License-Identifier: Apache-2.0
"""SCRAM by the RFC's example, by what real brokers said, and against servers that lie."""

from __future__ import annotations

import base64

import pytest

from consumerd.errors import AuthenticationFailed, ConsumerdError, RemoteProtocolError
from consumerd.sasl.client import MOST_CHALLENGE_BYTES
from consumerd.sasl.scram import LEAST_ITERATIONS, MOST_ITERATIONS, SCRAM_SHA_256, SCRAM_SHA_512, ScramClient
from tests.support.sasl_recordings import BROKERS, PASSWORDS, list_tokens, read_broker

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
FIRST = f"r={SERVER_NONCE},s={SALT},i=4096".encode()
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""The example of RFC 7677, section 3."""


def client(mechanism: str = SCRAM_SHA_256, user: str = "user", password: str = "pencil") -> ScramClient:
    return ScramClient(mechanism, user, password, lambda: NONCE)


def test_example_of_the_rfc() -> None:
    """RFC 7677, section 3."""
    ours = client()

    assert b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO" == ours.first().data
    proof = ours.next(FIRST)
    assert proof is not None
    assert proof.answered
    assert f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode() == proof.data
    assert ours.next(LAST) is None


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("release", [one for one in BROKERS if one != "0.9.0.1"])
def test_real_brokers_were_told_the_same(release: str, mechanism: str) -> None:
    """With the nonce of the recording, token by token; and their signatures are right."""
    (first, challenge), (second, signature) = list_tokens(
        read_broker(release)[f"handshake v0, raw tokens: {mechanism}"]
    )
    assert challenge is not None
    assert signature is not None
    user, nonce = (part.partition("=")[2] for part in first.decode().split(",")[2:])
    ours = ScramClient(mechanism, user, PASSWORDS[user], lambda: nonce)

    assert first == ours.first().data
    proof = ours.next(challenge)
    assert proof is not None
    assert second == proof.data
    assert ours.next(signature) is None


def test_marks_in_user_names_are_escaped() -> None:
    """A comma ends a field."""
    assert b"n,,n=a=2Cb=3Dc,r=rOprNGfwEbeRWgbNEkqO" == client(user="a,b=c").first().data


def test_server_that_does_not_know_the_password_is_refused() -> None:
    """Else anybody could pose as a broker."""
    ours = client()
    ours.first()
    ours.next(FIRST)

    with pytest.raises(AuthenticationFailed, match="not the broker that it says it is"):
        ours.next(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize("iterations", [1, LEAST_ITERATIONS - 1, MOST_ITERATIONS + 1, 9_999_999_999])
def test_iterations_have_bounds(iterations: int) -> None:
    """Few make a password guessable; many would keep a processor busy for hours."""
    ours = client()
    ours.first()

    with pytest.raises(RemoteProtocolError, match=f"asks for {iterations} iterations"):
        ours.next(f"r={SERVER_NONCE},s={SALT},i={iterations}".encode())


@pytest.mark.parametrize("iterations", [LEAST_ITERATIONS, LEAST_ITERATIONS + 1])
def test_iterations_within_the_bounds_are_hashed(iterations: int) -> None:
    """The least is what Kafka's own tools ask for by default."""
    ours = client()
    ours.first()

    assert ours.next(f"r={SERVER_NONCE},s={SALT},i={iterations}".encode()) is not None


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=QQ==,i=4096",
        f"r={NONCE},s={SALT},i=4096".encode(),
        f"m=ext,{FIRST.decode()}".encode(),
        f"r={SERVER_NONCE},i=4096,s={SALT}".encode(),
        f"r={SERVER_NONCE},s=,i=4096".encode(),
        f"r={SERVER_NONCE},s=Q,i=4096".encode(),
        f"r={SERVER_NONCE},s={SALT},i=04096".encode(),
        f"r={SERVER_NONCE},s={SALT},i=4096\n".encode(),
        b"\xff\xfe",
        b"r" * (MOST_CHALLENGE_BYTES + 1),
    ],
)
def test_first_message_that_is_none_is_refused(challenge: bytes) -> None:
    """A nonce that does not continue ours may be a replay; an extension that we do not know must not be ignored."""
    ours = client()
    ours.first()

    with pytest.raises(RemoteProtocolError):
        ours.next(challenge)


@pytest.mark.parametrize("at_first", [True, False])
def test_error_of_the_server_is_told(at_first: bool) -> None:
    """RFC 5802, section 7; what could break a line of the log is left out."""
    ours = client()
    ours.first()
    if not at_first:
        ours.next(FIRST)

    with pytest.raises(AuthenticationFailed, match=r"the server refuses: other-error\?$"):
        ours.next(b"e=other-error\x1b")


@pytest.mark.parametrize("last", [b"", b"v=", b"v=!!!!", b"x=1", b"v=QQ"])
def test_last_message_that_is_none_is_refused(last: bytes) -> None:
    """An exchange that ends without the signature has proven nothing."""
    ours = client()
    ours.first()
    ours.next(FIRST)

    with pytest.raises(RemoteProtocolError):
        ours.next(last)


def test_secrets_are_in_no_error_and_no_repr() -> None:
    """Errors are logged."""
    ours = client(password="pencil-of-mine")
    said = [repr(ours), repr(ours.first())]
    for challenge in (b"nonsense", FIRST, b"v=QUFB"):
        try:
            said.append(repr(ours.next(challenge)))
        except ConsumerdError as error:
            said.append(str(error))

    assert [one for one in said if "pencil" in one or "p=" in one] == []
