# SPDX-License-Identifier: Apache-2.0
"""Authentications with ZooKeeper servers that answer anything, or stop anywhere: accepted or refused, within bounds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.aio.timeouts import timeout
from consumerd.sasl.client import SaslClient, Token
from consumerd.zk.aiozk_client import AiozkCodec
from consumerd.zk.authentication import ConnectionLogin, LoginFailed
from consumerd.zk.connect_string import Server
from consumerd.zk.connection import Listener, ZkConnection
from tests.property.test_sasl_mechanisms import CHALLENGES, CLIENTS, cut_or_damaged
from tests.support import virtual_time
from tests.support.scripted_zookeeper import frame, reply
from tests.unit.sasl.test_digest_md5 import CHALLENGE

SERVER = Server(host="zk", port=2181)
ATTACH_S = 2.0
"""Time limit of the whole authentication, which the session sets."""
MOST_TOKENS = 16

Answer = Callable[[int], bytes | None]
"""From a token's xid to bytes; None to end the connection."""


def as_token(challenge: bytes) -> bytes:
    return struct.pack("!i", len(challenge)) + challenge


GOOD_ANSWERS = [reply(1, body=as_token(one)) for one in (CHALLENGE, b"rspauth=0", b"\1\0\0\0")]
ANSWERS: st.SearchStrategy[Answer] = st.one_of(
    CHALLENGES.map(lambda challenge: lambda xid: reply(xid, body=as_token(challenge))),
    st.just(CHALLENGE).map(lambda challenge: lambda xid: reply(xid, body=as_token(challenge))),
    st.integers(-200, 200).map(lambda code: lambda xid: reply(xid, code)),
    st.binary(max_size=40).map(lambda body: lambda xid: reply(xid, body=body)),
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda size: lambda xid: reply(xid, body=struct.pack("!i", size))),
    st.integers(-10, 10).map(lambda other: lambda xid: reply(xid + other, body=as_token(b"x"))),
    st.sampled_from(GOOD_ANSWERS).flatmap(cut_or_damaged).map(lambda data: lambda xid: data),
    st.binary(max_size=40).map(lambda data: lambda xid: frame(data)),
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda size: lambda xid: struct.pack("!i", size)),
    st.sampled_from([b"", None]).map(lambda data: lambda xid: data),
)


class Tokens:
    """One mechanism, whose steps are done at once."""

    setting = "cluster.zookeeper_sasl"
    identity = "sasl:user"

    def __init__(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self.refusals = 0

    async def first(self, _server: Server) -> tuple[SaslClient, Token]:
        client = CLIENTS[self._mechanism]()
        return client, client.first()

    async def next(self, client: SaslClient, challenge: bytes) -> Token | None:
        return client.next(challenge)

    def note_refusal(self) -> None:
        self.refusals += 1


class Wire:
    """Carries frames to a server that answers one after the other, the last answer for ever."""

    def __init__(self, connection: ZkConnection, answers: list[Answer]) -> None:
        self._connection = connection
        self._answers = answers
        self._closed = False
        self.tokens = 0

    def write(self, data: bytes) -> None:
        (xid,) = struct.unpack_from("!i", data, 4)
        self.tokens += 1
        answer = self._answers[min(self.tokens, len(self._answers)) - 1](xid)
        if answer is None:
            self.abort()
        else:
            asyncio.get_running_loop().call_soon(self._connection.data_received, answer)

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


@pytest.mark.parametrize("mechanism", ["DIGEST-MD5", "GSSAPI"])
@given(answers=st.lists(ANSWERS, min_size=1, max_size=5))
@settings(deadline=None)
def test_any_server_ends_in_an_identity_or_in_a_refusal(mechanism: str, answers: list[Answer]) -> None:
    """No other exception, a bounded number of tokens, no password in the text; DIGEST-MD5 believes nobody here."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(answered=lambda *_: None, changed=lambda *_: None, lost=lambda *_: None)
        connection = ZkConnection(loop.time, listener)
        wire = Wire(connection, answers)
        connection.connection_made(cast("asyncio.Transport", wire))
        connection.data_received(frame(b"greeting"))
        tokens = Tokens(mechanism)
        login = ConnectionLogin(AiozkCodec("/"), credentials=(), sasl=tokens)
        said, accepted, refused = "", False, False
        try:
            prepared = await login.prepare(SERVER)
            async with timeout(ATTACH_S):
                await login.authenticate(connection, prepared)
            accepted = True
        except LoginFailed as error:
            said, refused = str(error), True
        except TimeoutError:
            pass
        assert refused == tokens.refusals
        assert wire.tokens <= MOST_TOKENS
        assert loop.time() <= ATTACH_S
        assert "pencil" not in said
        assert len(said) < 5000
        assert not (accepted and mechanism == "DIGEST-MD5")

    virtual_time.run(play())
