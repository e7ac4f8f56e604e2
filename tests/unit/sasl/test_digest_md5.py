# SPDX-License-Identifier: Apache-2.0
"""DIGEST-MD5 by the RFC's example, and by what a real ZooKeeper said."""

from __future__ import annotations

import re

import pytest

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from consumerd.sasl.digest_md5 import DigestClient
from tests.support.sasl_recordings import read_zookeeper

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def client() -> DigestClient:
    return DigestClient("chris", "secret", uri="imap/elwood.innosoft.com", make_nonce=lambda: "OA6MHXh6VqTrRk")


def fields(token: bytes) -> dict[str, str]:
    return {
        name: quoted or plain for name, quoted, plain in re.findall(r'([a-z-]+)=(?:"([^"]*)"|([^,]*))', token.decode())
    }


def test_example_of_the_rfc() -> None:
    """RFC 2831, section 4."""
    ours = client()

    assert ours.first().data == b""
    response = ours.next(CHALLENGE)
    assert response is not None
    assert fields(response.data) == {
        "charset": "utf-8",
        "username": "chris",
        "realm": "elwood.innosoft.com",
        "nonce": "OA6MG9tEQGm2hh",
        "nc": "00000001",
        "cnonce": "OA6MHXh6VqTrRk",
        "digest-uri": "imap/elwood.innosoft.com",
        "maxbuf": "65536",
        "response": "d388dad90d4bbd760a152321f2143af7",
        "qop": "auth",
    }
    assert ours.next(b"rspauth=ea40f60335c427b5527b84dbabcdfffd") is None


def test_a_real_zookeeper_was_told_the_same() -> None:
    """Its challenge has no qop, and its proof is checked."""
    tokens = [frame for frame in read_zookeeper()["DIGEST-MD5 bob"] if frame.request[4:8] == (102).to_bytes(4)]
    challenge, proof = (frame.response[20:] for frame in tokens[:2] if frame.response is not None)
    sent = fields(tokens[1].request[12:])
    ours = DigestClient("bob", "bob-secret", uri="zookeeper/zk-sasl-md5", make_nonce=lambda: sent["cnonce"])

    ours.first()
    response = ours.next(challenge)
    assert response is not None
    assert sent == fields(response.data)
    assert ours.next(proof) is None


@pytest.mark.parametrize("last", [b"", b"rspauth=00000000000000000000000000000000", b"charset=utf-8"])
def test_server_that_does_not_know_the_password_is_refused(last: bytes) -> None:
    """Else anybody could pose as ZooKeeper."""
    ours = client()
    ours.first()
    ours.next(CHALLENGE)

    with pytest.raises(AuthenticationFailed, match="rspauth"):
        ours.next(last)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"realm=x",
        b'nonce="a"',
        b'nonce="a",algorithm=md5',
        b'nonce="a",algorithm=md5-sess,qop="auth-conf,auth-int"',
        b'nonce="a',
        b"==,",
        b"\xff",
        b",".join(b"a%s=1" % bytes([97 + number % 26, 97 + number // 26]) for number in range(60)),
    ],
)
def test_challenge_that_is_none_is_refused(challenge: bytes) -> None:
    """Nothing is sent to a server that asks for what we do not have."""
    ours = client()
    ours.first()

    with pytest.raises(RemoteProtocolError):
        ours.next(challenge)


def test_quotes_are_escaped_and_read() -> None:
    """A quote in a name must not end the field."""
    ours = DigestClient('a"b\\c', "p", uri="u", make_nonce=lambda: "n")
    ours.first()

    response = ours.next(rb'realm="x\"y",nonce="n",algorithm=md5-sess')

    assert response is not None
    assert rb'username="a\"b\\c",realm="x\"y",' in response.data
