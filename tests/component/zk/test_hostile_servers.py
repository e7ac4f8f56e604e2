# SPDX-License-Identifier: Apache-2.0
"""Servers that say what no sound server says, or what only an ensemble in trouble says."""

from __future__ import annotations

import struct

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import CoordinationError, SessionLost
from consumerd.zk.port import NotConnected, OutcomeUnknown, SetData, WatchKind
from tests.support.scripted_zookeeper import GET, SET, STAT, Answer, ScriptedZooKeeper, frame, reply, sound
from tests.support.waiting import until
from tests.support.zookeeper import make_client


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(b"abc"),
        frame(struct.pack("!iiqi", 0, 6000, 1, 1000)),
        frame(b""),
        struct.pack("!i", -1),
        frame(struct.pack("!iiqi", 0, 0, 0, 16) + bytes(17)),
        b"",
    ],
    ids=["http", "short", "liar", "empty", "negative", "no session", "nothing"],
)
async def test_what_greets_like_no_zookeeper_is_tried_again_later(greeting: bytes) -> None:
    """A wrong port in the list, or a server that starts, must neither hurt nor be hammered."""
    server = ScriptedZooKeeper()
    server.greetings = [greeting] * 3
    async with server.running() as address, make_client(address, session_timeout_s=0.6) as zk:
        async with timeout(10):
            await zk.wait_connected()

        assert zk.state.epoch == 1
        assert len(server.asked) == 4


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(b"abc"), b""], ids=["http", "short", "nothing"]
)
async def test_a_session_outlives_what_greets_like_no_zookeeper(greeting: bytes) -> None:
    """Only the ensemble's word ends a session: else all that is owned would be given up for one bad answer."""
    server = ScriptedZooKeeper()
    async with server.running() as address, make_client(address, session_timeout_s=6) as zk:
        await zk.wait_connected()
        server.answers = [lambda xid, _: reply(xid, -118)]
        server.greetings = [greeting]
        async with timeout(10):
            await zk.get("/a")

        assert zk.state.epoch == 1
        assert [session for session, opcode in server.asked if opcode == 0] == [1, 1, 1]


async def test_wrong_servers_in_the_list_do_not_keep_us_from_the_right_one(server: EmbeddedZooKeeper) -> None:
    """One mistake in a list of three costs nothing."""
    wrong = ScriptedZooKeeper()
    wrong.greetings = [b"HTTP/1.1 400 Bad Request\r\n\r\n"] * 50
    async with wrong.running() as address:
        for _ in range(4):
            connect_string = f"{address},no-such-host.invalid:1,{server.connect_string}"
            async with timeout(10), make_client(connect_string) as zk:
                await zk.wait_connected()
                assert zk.state.timeout_s == 6


@pytest.mark.parametrize(
    "answer",
    [
        lambda xid, _: reply(xid + 7),
        lambda xid, _: frame(b"short"),
        lambda xid, _: struct.pack("!i", 1 << 30),
        lambda xid, _: struct.pack("!i", -5),
    ],
    ids=["other xid", "short", "huge", "negative"],
)
async def test_nonsense_ends_the_connection_and_reads_are_asked_again(answer: Answer) -> None:
    """What cannot be matched to a request makes every later answer doubtful."""
    server = ScriptedZooKeeper()
    async with server.running() as address, make_client(address, session_timeout_s=6) as zk:
        await zk.wait_connected()
        server.answers = [answer]
        async with timeout(5):
            assert (await zk.get("/a"))[0] == b"x"

        assert [opcode for _, opcode in server.asked] == [0, GET, 0, GET]


async def test_body_that_cannot_be_read_is_an_error_of_that_call_alone() -> None:
    """The frame was whole, so the stream is still in step."""
    server = ScriptedZooKeeper()
    async with server.running() as address, make_client(address) as zk:
        await zk.wait_connected()
        server.answers = [lambda xid, _: reply(xid, body=b"\0\0\0\x09x"), lambda xid, _: reply(xid, body=b"")]
        with pytest.raises(CoordinationError, match=r"get /a: 5 bytes are no GetDataResponse"):
            await zk.get("/a")
        with pytest.raises(CoordinationError, match="multi of 1"):
            await zk.multi([SetData("/a", b"")])
        names = struct.pack("!ii", 2, 1) + b"a" + struct.pack("!i", -1)
        server.answers = [lambda xid, _: reply(xid, body=names + STAT)]
        with pytest.raises(CoordinationError, match="children of /: a name is null"):
            await zk.children("/")

        assert (await zk.get("/a"))[0] == b"x"
        assert [session for session, opcode in server.asked if opcode == 0] == [1]


async def test_unknown_error_code_is_reported_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Newer servers have newer codes; and nothing may be printed where a sink writes."""
    server = ScriptedZooKeeper()
    multi_error = struct.pack("!i?ii", -1, False, -127, -127) + struct.pack("!i?i", -1, True, -1)
    async with server.running() as address, make_client(address) as zk:
        await zk.wait_connected()
        capsys.readouterr()
        server.answers = [
            lambda xid, _: reply(xid, -127),
            lambda xid, _: reply(xid, body=multi_error),
        ]
        with pytest.raises(CoordinationError, match="get /a: unknown error -127"):
            await zk.get("/a")
        with pytest.raises(CoordinationError, match=r"operation 0 .*unknown error -127"):
            await zk.multi([SetData("/a", b"")])

        assert capsys.readouterr().out == ""


async def test_moved_session_is_followed() -> None:
    """An answer from a server that the session has left: the write had no effect, the read is asked again."""
    server = ScriptedZooKeeper()
    async with server.running() as address, make_client(address) as zk:
        await zk.wait_connected()
        server.answers = [lambda xid, _: reply(xid, -118), lambda xid, _: reply(xid, -118)]
        with pytest.raises(NotConnected, match="moved"):
            await zk.set("/a", b"")
        assert (await zk.get("/a"))[0] == b"x"

        assert zk.state.epoch == 1
        assert server.asked == [(1, 0), (1, SET), (1, 0), (1, GET), (1, 0), (1, GET)]


async def test_expiry_told_by_an_answer_begins_a_new_epoch() -> None:
    """The write was refused, and everything bound to the session is lost from that moment."""
    server = ScriptedZooKeeper()
    async with server.running() as address, make_client(address) as zk:
        await zk.wait_connected()
        before = zk.state
        server.answers = [lambda xid, _: reply(xid, -112)]
        with pytest.raises(SessionLost, match="the session is over"):
            await zk.set("/a", b"")
        with pytest.raises(SessionLost):
            await zk.set("/a", b"", epoch=before.epoch)
        await zk.set("/a", b"")

        assert zk.state.epoch == before.epoch + 1
        assert zk.state.session_id == 2
        assert server.asked == [(1, 0), (1, SET), (2, 0), (2, SET)]


@pytest.mark.parametrize("code", [-4, -7], ids=["ConnectionLoss", "OperationTimeout"])
async def test_write_that_a_server_lost_on_its_way_is_unknown(code: int) -> None:
    """A follower that loses its leader says ConnectionLoss for what it had passed on."""
    server = ScriptedZooKeeper()
    async with server.running() as address, make_client(address) as zk:
        await zk.wait_connected()
        server.answers = [lambda xid, _: reply(xid, code)]
        with pytest.raises(OutcomeUnknown, match=f"error {code}"):
            await zk.set("/a", b"")


async def test_events_that_cannot_be_read_are_passed_over() -> None:
    """One bad event must not end the session."""
    server = ScriptedZooKeeper()
    events = [b"\0", struct.pack("!iii", 9, 3, 1) + b"/", struct.pack("!iii", -1, 4, -1)]
    good = struct.pack("!iii", 3, 3, 2) + b"/a"
    async with server.running() as address, make_client(address) as zk:
        await zk.wait_connected()
        told: list[bool] = []
        zk.watch("/a", WatchKind.DATA, lambda: told.append(True))
        await zk.get("/a")
        server.answers = [lambda xid, op: b"".join(reply(-1, body=body) for body in [*events, good]) + sound(xid, op)]
        await zk.get("/a")
        await until(lambda: told == [True])

        assert zk.state.epoch == 1
