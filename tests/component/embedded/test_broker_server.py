# SPDX-License-Identifier: Apache-2.0
"""The embedded broker's network layer over real sockets: order, limits, slow and vanishing peers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from consumerd.aio.timeouts import timeout
from consumerd.embedded.connection import ServedConnection, allocate_frame
from consumerd.embedded.reply import FileRange, FramedReply
from consumerd.embedded.request_memory import RequestMemory
from consumerd.embedded.sending import ReplySender
from consumerd.errors import ConnectionLost
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.fetch import FetchRequest
from consumerd.wire.modern.metadata import MetadataRequest
from tests.support.broker_script import records
from tests.support.raw_client import RawClient, fetch, produce, raw_client
from tests.support.served_logs import ServedLogs, served_logs
from tests.support.waiting import until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ServedLogs]:
    """Return a broker with the topic ``t``."""
    async with served_logs(tmp_path) as broker:
        broker.topics.add("t")
        yield broker


@pytest.fixture
async def client(broker: ServedLogs) -> AsyncIterator[RawClient]:
    """Return a connection to it."""
    async with raw_client(broker.port) as client:
        yield client


def make_connection(
    ours: socket.socket, memory: RequestMemory | None = None, *, idle_s: float = 60, progress_s: float = 60
) -> ServedConnection:
    """Serve one end of a pair of sockets."""
    ours.settimeout(0)
    return ServedConnection(
        ours,
        name="c",
        peer_host="h",
        max_frame_bytes=1 << 20,
        memory=memory or RequestMemory(1 << 30),
        stall_s=20,
        idle_s=idle_s,
        progress_s=progress_s,
    )


def fill(broker: ServedLogs, units: int) -> None:
    """Put units of 900 KB into ``t``: some of them are more than the buffers between two sockets take."""
    unit = records(2, count=9, size=100_000)
    for _ in range(units):
        broker.log("t").append(unit)


async def test_pipelined_requests_are_answered_one_after_the_other(broker: ServedLogs, client: RawClient) -> None:
    """Clients match answers to requests by order: what takes no time must wait for the poll before it."""
    client.send_request(fetch("t", wait_ms=20_000), 5, correlation_id=1)
    client.send_request(MetadataRequest(topics=("t",)), 1, correlation_id=2)
    client.send_request(ApiVersionsRequest(), 0, correlation_id=3)
    await until(lambda: broker.server.connections == 1)
    async with raw_client(broker.port) as other:
        await other.ask(produce("t", records(2)), 3)
    assert [(await client.receive())[0] for _ in range(3)] == [1, 2, 3]


async def test_many_pipelined_requests_leave_others_their_turn(broker: ServedLogs, client: RawClient) -> None:
    """A client that sends without waiting is read no further than a little ahead, and answered all the same."""
    for number in range(1000):
        client.send_request(MetadataRequest(topics=("t",)), 1, correlation_id=number)
    async with raw_client(broker.port) as other:
        await other.ask(MetadataRequest(topics=("t",)), 1)
    assert [(await client.receive())[0] for _ in range(1000)] == list(range(1000))


async def test_little_is_read_ahead_of_the_request_that_is_worked_on() -> None:
    """Who sends faster than it is answered must wait itself; what it has sent lies in its own buffers."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(0)
        connection = make_connection(ours)
        frame = (100_000).to_bytes(4, "big") + bytes(100_000)
        taken = stalled = 0
        while taken < 20_000_000 and stalled < 50:
            try:
                taken += theirs.send(frame[taken % len(frame) :])
                stalled = 0
            except BlockingIOError:
                stalled += 1
                await asyncio.sleep(0)
        assert taken < 2_000_000
        for _ in range(3):
            assert 100_000 == len(await connection.next_frame() or b"")
        connection.close()


async def test_what_all_connections_have_sent_is_bounded_together() -> None:
    """Each of them may send a large request; all at once they must wait for each other, and none for ever."""
    size, count = 200_000, 20
    memory = RequestMemory(3 * size)
    most = served = 0

    async def serve(ours: socket.socket) -> None:
        nonlocal most, served
        connection = make_connection(ours, memory)
        while await connection.next_frame() is not None:
            most = max(most, memory.taken_bytes)
            served += 1
            await asyncio.sleep(0.001)
        connection.close()

    async def send(theirs: socket.socket) -> None:
        theirs.settimeout(0)
        for _ in range(2):
            await asyncio.get_running_loop().sock_sendall(theirs, size.to_bytes(4, "big") + bytes(size))
        theirs.close()

    async with timeout(20), asyncio.TaskGroup() as group:
        for _ in range(count):
            ours, theirs = socket.socketpair()
            group.create_task(serve(ours))
            group.create_task(send(theirs))
    assert (2 * count, 0) == (served, memory.taken_bytes)
    assert most <= 4 * size, "the limit and one request"


async def test_requests_that_are_announced_and_not_sent_keep_nobody_waiting(broker: ServedLogs) -> None:
    """Two connections that announced 100 MiB and sent eight bytes stopped every request above 16 KiB."""
    async with raw_client(broker.port) as first, raw_client(broker.port) as second, raw_client(broker.port) as good:
        for hostile in (first, second):
            hostile.send((100 << 20).to_bytes(4, "big") + b"\0\0\0\3")
        await until(lambda: broker.server.connections == 3)
        for _ in range(3):
            answer = await good.ask(produce("t", records(2, count=1, size=100_000)), 3)
            assert 0 == answer.topics[0].partitions[0].error_code


async def test_a_peer_that_stalls_with_what_others_wait_for_is_cut_off() -> None:
    """It went beyond the limit as the first in line; what it has sent is given back to those behind it."""
    memory = RequestMemory(100_000)
    pairs = [socket.socketpair() for _ in range(3)]
    connections = [make_connection(ours, memory, progress_s=0.05) for ours, _ in pairs]
    try:
        for _, theirs in pairs[:2]:
            theirs.sendall((1 << 20).to_bytes(4, "big") + bytes(40_000))
        await until(lambda: memory.taken_bytes == 2 * (64 << 10))
        pairs[2][1].sendall((50_000).to_bytes(4, "big") + bytes(50_000))
        await until(lambda: memory.contended)
        for connection in connections[:2]:
            with pytest.raises(ConnectionLost, match="too slowly"):
                async with timeout(20):
                    await connection.next_frame()
            connection.close()
        async with timeout(20):
            assert 50_000 == len(await connections[2].next_frame() or b"")
    finally:
        for connection in connections:
            connection.close()
        for _, theirs in pairs:
            theirs.close()
    assert 0 == memory.taken_bytes


async def test_request_that_waits_for_room_goes_with_its_connection() -> None:
    """Its place in the queue must not be kept for nobody, nor its beginning."""
    memory = RequestMemory(100_000)
    (a, a_peer), (b, b_peer) = socket.socketpair(), socket.socketpair()
    first, second = make_connection(a, memory), make_connection(b, memory)
    with a_peer, b_peer:
        for peer in (a_peer, b_peer):
            peer.sendall((90_000).to_bytes(4, "big") + b"a beginning")
            await asyncio.sleep(0.01)
        assert memory.taken_bytes == 2 * (64 << 10), "one step for each, the second one beyond the limit"
        second.close()
        first.close()
        assert memory.taken_bytes == 0
        later = memory.take(100_000, lambda: None)
        assert later.held


async def test_connection_that_says_nothing_is_given_up_unless_it_waits_for_us() -> None:
    """As ``connections.max.idle.ms`` has it: clients that have gone without a word hold a descriptor each."""
    ours, theirs = socket.socketpair()
    with theirs:
        connection = make_connection(ours, idle_s=0.2)
        theirs.sendall((3).to_bytes(4, "big") + b"abc")
        assert b"abc" == await connection.next_frame()
        await asyncio.sleep(0.5)  # worked on for longer than that
        assert not connection.hangup.happened
        theirs.sendall((3).to_bytes(4, "big") + b"def")
        assert b"def" == await connection.next_frame()
        with pytest.raises(ConnectionLost, match=r"0\.2 s"):
            async with timeout(20):
                await connection.next_frame()
        connection.close()


async def test_peer_that_goes_is_noticed_behind_what_it_has_pipelined(broker: ServedLogs, client: RawClient) -> None:
    """A consumer with some requests in flight, killed: its polls must not be waited out one after the other."""
    for number in range(20):
        client.send_request(fetch("t", wait_ms=3_600_000), 5, correlation_id=number)
    await until(lambda: broker.server.connections == 1)
    client.close()
    await until(lambda: broker.server.connections == 0)


async def test_end_of_service_refuses_who_comes_and_leaves_no_connection(tmp_path: Path) -> None:
    """Those that were accepted in the last moment have nobody yet who serves them; ResourceWarnings are errors here."""
    async with served_logs(tmp_path) as broker:
        waiting = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(3)]
        await asyncio.sleep(0)  # accepted, at the earliest
    for one in waiting:
        one.settimeout(20)
        with contextlib.suppress(ConnectionError):
            assert b"" == await asyncio.to_thread(one.recv, 1)
        one.close()
    assert 0 == broker.server.connections
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port)).close()


async def test_end_of_service_waits_for_no_poll_and_no_reader(tmp_path: Path) -> None:
    """Ctrl-C ends a broker whoever is connected, and lets go of the files that were being sent."""
    async with timeout(20), served_logs(tmp_path) as broker:
        broker.topics.add("t")
        fill(broker, 20)
        async with raw_client(broker.port) as waiting, raw_client(broker.port, buffer_bytes=1) as slow:
            waiting.send_request(fetch("t", broker.log("t").end_offset, wait_ms=3_600_000), 5)
            slow.send_request(fetch("t", limit=1 << 30), 5)
            delayed = broker.faults.delay(ApiKey.METADATA, 3600)
            slow.send_request(MetadataRequest(topics=None), 1)
            await slow.receive_bytes(4)
    assert 0 == delayed.hits
    links = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert [] == [link for link in links if link.is_relative_to(tmp_path)]


async def test_fault_of_our_own_costs_one_connection(broker: ServedLogs, client: RawClient) -> None:
    """Whatever is wrong with one answer, the others are served on."""
    broker.faults.oversize(ApiKey.METADATA, 1 << 40)  # which no size prefix can say
    client.send_request(MetadataRequest(topics=None), 1)
    with structlog.testing.capture_logs() as said:
        assert b"" == await client.receive_rest()
    assert ["connection_failed"] == [one["event"] for one in said]
    async with raw_client(broker.port) as other:
        await other.ask(MetadataRequest(topics=None), 1)


@pytest.mark.parametrize("size", [-1, 1_000_001, 0x7FFF_FFFF])
async def test_frame_of_an_impossible_size_closes_its_connection_alone(size: int, tmp_path: Path) -> None:
    """The size is all that is believed of a frame before it is there."""
    async with served_logs(tmp_path, max_request_bytes=1_000_000) as broker, raw_client(broker.port) as client:
        client.send(size.to_bytes(4, "big", signed=True) + b"\0\3\0\0")
        assert b"" == await client.receive_rest()
        async with raw_client(broker.port) as other:
            await other.ask(MetadataRequest(topics=None), 1)


def test_large_frame_takes_no_memory_before_its_bytes_are_there() -> None:
    """A thousand connections that each announce 100 MiB and send nothing must not cost anything."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    frames = [allocate_frame(100 << 20) for _ in range(10)]
    assert resident() - before < 20 << 20
    frames[0][:3] = b"abc"
    assert b"abc\0" == frames[0][:4]


async def test_reader_that_takes_nothing_is_given_up(tmp_path: Path) -> None:
    """What is being sent to it holds a file open, and a place."""
    async with served_logs(tmp_path, write_timeout_s=0.3) as broker:
        broker.topics.add("t")
        fill(broker, 20)
        async with raw_client(broker.port, buffer_bytes=1) as client:
            client.send_request(fetch("t", limit=1 << 30), 4)
            await until(lambda: broker.server.connections == 1)
            await until(lambda: broker.server.connections == 0)


async def test_slow_reader_is_waited_for_as_long_as_it_takes_something(tmp_path: Path) -> None:
    """A slow network is no reason to lose a client, however long a large answer takes."""
    async with served_logs(tmp_path, write_timeout_s=0.2) as broker:
        broker.topics.add("t")
        async with raw_client(broker.port) as client:
            fill(broker, 10)
            size = broker.log("t").size_bytes
            client.send_request(fetch("t", limit=1 << 30), 4)
            frame_bytes = int.from_bytes(await client.receive_bytes(4), "big")
            assert frame_bytes > size
            began = asyncio.get_running_loop().time()
            for _ in range(10):
                await client.receive_bytes(frame_bytes // 11)
                await asyncio.sleep(0.03)
            await client.receive_bytes(frame_bytes - 10 * (frame_bytes // 11))
            assert asyncio.get_running_loop().time() - began > 0.2


async def test_peer_that_ends_its_half_is_answered(client: RawClient) -> None:
    """It may have nothing more to say; what it has asked is answered before the connection is closed."""
    client.send_request(MetadataRequest(topics=("t",)), 1, correlation_id=8)
    client.send_request(fetch("t", wait_ms=60_000), 5, correlation_id=9)
    client.end()
    assert 8 == (await client.receive())[0]
    assert 9 == (await client.receive())[0]
    assert b"" == await client.receive_rest()


async def test_poll_ends_when_its_peer_has_gone(broker: ServedLogs, client: RawClient) -> None:
    """Nobody waits for an answer that nobody reads, however long it was to be waited for."""
    client.send_request(fetch("t", wait_ms=3_600_000), 5)
    await until(lambda: broker.server.connections == 1)
    client.close()
    await until(lambda: broker.server.connections == 0)


async def test_produce_without_acks_is_not_answered(broker: ServedLogs, client: RawClient) -> None:
    """The next answer is the next request's."""
    client.send_request(produce("t", records(2), acks=0), 3, correlation_id=1)
    client.send_request(MetadataRequest(topics=("t",)), 1, correlation_id=2)
    assert 2 == (await client.receive())[0]
    assert 3 == broker.log("t").end_offset


async def test_stored_bytes_are_what_arrives(broker: ServedLogs, client: RawClient) -> None:
    """They go from the file to the socket as they are, several segments' worth of socket buffers at a time."""
    for number in range(5):
        await client.ask(produce("t", records(2, count=9, size=50_000, at=number)), 3)
    answer = await client.ask(fetch("t", limit=1 << 30), 5)
    (stored,) = broker.log("t").folder.glob("*.log")
    assert stored.read_bytes() == bytes(answer.topics[0].partitions[0].record_set)


@pytest.mark.parametrize("use_sendfile", [True, False])
async def test_pieces_arrive_in_order_with_and_without_sendfile(use_sendfile: bool, tmp_path: Path) -> None:
    """Where the system has no sendfile the same bytes are read and written."""
    path = tmp_path / "log"
    path.write_bytes(os.urandom(3_000_000))
    descriptor = os.open(path, os.O_RDONLY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        reader, writer = await asyncio.open_connection(sock=theirs)
        pieces = [
            b"head",
            FileRange(descriptor, 7, 2_900_000),
            b"",
            memoryview(b"between"),
            FileRange(descriptor, 0, 7),
        ]
        sender = ReplySender(ours, stall_s=20, use_sendfile=use_sendfile)
        async with asyncio.TaskGroup() as group:
            group.create_task(sender.send(FramedReply(pieces=list(pieces))))
            data = path.read_bytes()
            expected = b"head" + data[7:2_900_007] + b"between" + data[:7]
            assert expected == await reader.readexactly(len(expected))
        writer.close()
    os.close(descriptor)


async def test_file_that_ends_early_ends_the_connection(tmp_path: Path) -> None:
    """What was promised in the frame's size cannot be kept; anything else in its place would be taken for records."""
    path = tmp_path / "log"
    path.write_bytes(b"short")
    descriptor = os.open(path, os.O_RDONLY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        with pytest.raises(ConnectionLost, match="2 bytes before"):
            await ReplySender(ours, stall_s=20).send(FramedReply(pieces=[FileRange(descriptor, 0, 7)]))
    os.close(descriptor)


async def test_release_0_8_closes_on_a_request_it_does_not_know(tmp_path: Path) -> None:
    """This is how clients find out that they speak to one."""
    async with served_logs(tmp_path, as_release="0.8.2") as broker, raw_client(broker.port) as client:
        client.send_request(ApiVersionsRequest(), 0)
        assert b"" == await client.receive_rest()


async def test_release_0_9_says_nothing_more_and_stays_open(tmp_path: Path) -> None:
    """A client must bring its own patience; here all that shows is that nothing comes."""
    async with served_logs(tmp_path, as_release="0.9") as broker, raw_client(broker.port) as client:
        client.send_request(ApiVersionsRequest(), 0)
        client.send_request(MetadataRequest(topics=None), 0)
        with pytest.raises(TimeoutError):
            async with timeout(0.3):
                await client.receive_bytes(1)
        assert 1 == broker.server.connections
        client.close()
        await until(lambda: broker.server.connections == 0)


async def test_handler_that_fails_costs_one_answer(broker: ServedLogs, client: RawClient) -> None:
    """A fault in one request is told its client as an error of the server, and the broker lives."""
    await client.ask(produce("t", records(2)), 3)
    broker.log("t").settings = None  # type: ignore[assignment]  # which nothing survives that looks at it
    answer = await client.ask(fetch("t"), 2)
    assert -1 == answer.topics[0].partitions[0].error_code
    assert 1 == len((await client.ask(MetadataRequest(topics=("t",)), 1)).topics)


async def test_same_partition_twice_is_answered_once(client: RawClient) -> None:
    """A small request must not multiply what a broker has to send."""
    one = fetch("t").topics[0]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(one,) * 1000)
    answer = await client.ask(request, 5)
    assert 1 == len(answer.topics)
