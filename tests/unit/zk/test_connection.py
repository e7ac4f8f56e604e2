# SPDX-License-Identifier: Apache-2.0
"""Frames of one connection, without a server: what a socket brings is handed over by hand."""

from __future__ import annotations

import asyncio
import struct

from consumerd.zk.connection import Listener, ZkConnection, ZkReply

LARGEST = 2**31 - 1


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        pass


class Ping:
    """A request of its number alone."""

    def serialize(self, xid: int) -> bytes:
        return struct.pack("!ii", xid, 9)


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


async def connect(first_xid: int) -> tuple[ZkConnection, Wire]:
    """Return a connection that was greeted."""
    wire = Wire()
    listener = Listener(answered=lambda *_: None, changed=lambda _: None, lost=lambda: None)
    connection = ZkConnection(lambda: 0.0, listener, first_xid=first_xid)
    connection.connection_made(wire)
    connection.data_received(frame(b"welcome"))
    return connection, wire


async def test_numbers_of_requests_begin_again_at_one_after_the_largest() -> None:
    """Negative ones are ZooKeeper's own (-1 is a watch, -2 a ping, -4 authentication), and no int32 is larger: after some
    days of a thousand requests a second a number that does not fit would end the connection, again and again.
    """
    connection, wire = await connect(LARGEST - 1)
    waiting = [connection.submit(Ping()) for _ in range(4)]
    xids = [struct.unpack_from("!i", written, 4)[0] for written in wire.written]
    assert xids == [LARGEST - 1, LARGEST, 1, 2]

    for number, xid in enumerate(xids):
        connection.data_received(frame(struct.pack("!iqi", xid, number, 0)))
    assert [await one for one in waiting] == [ZkReply(number, 0, b"") for number in range(4)]
    assert not connection.lost


async def test_numbers_of_requests_begin_at_one() -> None:
    """Zero is that of the greeting."""
    connection, wire = await connect(1)
    connection.submit(Ping())

    assert struct.unpack_from("!i", wire.written[0], 4) == (1,)
