# SPDX-License-Identifier: Apache-2.0
"""Invariant: whatever a server says, a mechanism of SASL ends in tokens, in its end, or in an error of ours."""

from __future__ import annotations

from consumerd.errors import AuthenticationFailed, RemoteProtocolError
from tests.property.test_sasl_mechanisms import CLIENTS
from tests.support.sasl_recordings import BROKERS, list_tokens, read_broker, read_zookeeper
from tests.unit.sasl.test_digest_md5 import CHALLENGE
from tests.unit.sasl.test_scram import FIRST, LAST

_MOST_TOKENS = 12
_BORDER = b"\0\0|"
"""Divides an input into the answers of the server."""

_RECORDED = [answer for release in BROKERS for said in read_broker(release).values() for _, answer in list_tokens(said)]
_ZOOKEEPER = [frame.response[20:] for frames in read_zookeeper().values() for frame in frames if frame.response]
SEEDS = [
    *{answer for answer in _RECORDED if answer},
    *_ZOOKEEPER,
    _BORDER.join((FIRST, LAST)),
    _BORDER.join((CHALLENGE, b"rspauth=0")),
    _BORDER.join((b"token", b"\1\0\0\0")),
]


def fuzz_one(data: bytes) -> None:
    """Give one input to each mechanism, as the answers to its tokens."""
    for make in CLIENTS.values():
        client = make()
        client.first()
        try:
            for challenge in data.split(_BORDER)[:_MOST_TOKENS]:
                token = client.next(challenge)
                if token is None or not token.answered:
                    break
                assert len(token.data) <= len(data) + 1000
        except (AuthenticationFailed, RemoteProtocolError) as error:
            assert "pencil" not in str(error)  # noqa: PT017 - no test, but what must hold
