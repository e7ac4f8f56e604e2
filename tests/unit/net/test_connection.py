# SPDX-License-Identifier: Apache-2.0
"""One connection: who hears what, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import LONGEST_THROTTLE_S, BrokerConnection
from consumerd.net.versions import BrokerVersions, assume_release
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.modern.fetch import FetchRequest, FetchResponse
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.modern.metadata import MetadataBroker, MetadataRequest, MetadataResponse
from consumerd.wire.session import ClientSession
from tests.support import virtual_time
from tests.support.scripted_broker import Answer, Body, FakeNetwork, FakeStream, Late, Raw, Reaction, ScriptedBroker

ADDRESS = Address(host="b", port=9092)
METADATA = MetadataRequest(topics=None)
LIST_OFFSETS = ListOffsetsRequest(topics=())
FETCH = FetchRequest(max_wait_ms=0, min_bytes=0, topics=())
MADE = MetadataResponse(brokers=(MetadataBroker(node_id=1, host="b", port=1),), topics=())
LISTED = ListOffsetsResponse(topics=())


class Told(Hooks):
    """Keeps what a connection tells."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def request_finished(self, broker: BrokerId | None, api: str, seconds: float) -> None:
        self.events.append(("finished", broker, api, round(seconds, 3)))

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        self.events.append(("failed", broker, api, error))

    def broker_throttled(self, broker: BrokerId | None, seconds: float) -> None:
        self.events.append(("throttled", broker, seconds))


class Scene:
    """A connection to a scripted broker in a network of its own."""

    def __init__(self, **answers: Answer) -> None:
        kinds = {"metadata": MetadataRequest, "list_offsets": ListOffsetsRequest, "fetch": FetchRequest}
        self.broker = ScriptedBroker(
            {kinds[name]: lambda _request, _version, answer=answer: answer for name, answer in answers.items()}
        )
        self.network = FakeNetwork()
        self.network.brokers[ADDRESS] = self.broker
        self.told = Told()

    async def open(self, versions: BrokerVersions | None = None) -> BrokerConnection:
        connection = await BrokerConnection.open(
            self.network,
            ClientSession("test"),
            ADDRESS,
            broker=BrokerId(1),
            now=asyncio.get_running_loop().time,
            hooks=self.told,
        )
        connection.adopt(versions or assume_release((1, 1)))
        return connection

    @property
    def stream(self) -> FakeStream:
        return self.network.streams[-1]

    def run(
        self, scenario: Callable[[BrokerConnection], Awaitable[None]], versions: BrokerVersions | None = None
    ) -> None:
        async def play() -> None:
            await scenario(await self.open(versions))

        virtual_time.run(play())


def test_request_speaks_the_newest_common_version() -> None:
    """A broker must never convert down for us."""
    scene = Scene(metadata=MADE)

    async def scenario(connection: BrokerConnection) -> None:
        assert await connection.request(METADATA, timeout_s=1) == MADE
        assert MADE.brokers == (await connection.request(METADATA, timeout_s=1, version=0)).brokers

    scene.run(scenario)
    assert [version for _, version in scene.broker.requests] == [5, 0]
    assert scene.told.events == [("finished", 1, "METADATA", 0.001)] * 2


def test_concurrent_requests_are_pipelined() -> None:
    """Nobody waits for another's round trip."""
    scene = Scene(metadata=MADE, list_offsets=Late(LISTED, 1.0))

    async def scenario(connection: BrokerConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(connection.request(LIST_OFFSETS, timeout_s=5))
            second = tasks.create_task(connection.request(METADATA, timeout_s=5))
            await asyncio.sleep(0.5)
            assert 2 == len(scene.broker.requests) == connection.in_flight
        assert first.result() == LISTED
        assert second.result() == MADE

    scene.run(scenario)
    assert scene.broker.correlation_ids == [0, 1]


def test_close_by_the_broker_reaches_every_waiter_with_one_cause() -> None:
    """Each learns that the outcome is unknown, by an exception of its own."""
    scene = Scene(metadata=MADE, list_offsets=Late(Reaction.CLOSE, 1.0))

    async def scenario(connection: BrokerConnection) -> None:
        results = await asyncio.gather(
            connection.request(LIST_OFFSETS, timeout_s=5),
            connection.request(METADATA, timeout_s=5),
            return_exceptions=True,
        )
        first, second = results
        assert isinstance(first, ConnectionLost)
        assert isinstance(second, ConnectionLost)
        assert first is not second
        assert first.__cause__ is second.__cause__ is not None
        assert connection.closed
        with pytest.raises(ConnectionLost, match="closed by the broker"):
            await connection.request(METADATA, timeout_s=5)

    scene.run(scenario)


def test_wrong_correlation_id_poisons() -> None:
    """Two sides that disagree on where they are cannot go on."""
    scene = Scene(metadata=Raw((4).to_bytes(4) + (77).to_bytes(4)), list_offsets=LISTED)

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(ConnectionLost, match="77") as lost:
            await connection.request(METADATA, timeout_s=5)
        assert isinstance(lost.value.__cause__, RemoteProtocolError)
        assert connection.closed
        assert scene.stream.closed

    scene.run(scenario)


def test_unreadable_body_fails_its_own_request_only() -> None:
    """One broken answer says nothing about the next."""
    scene = Scene(metadata=Body(b"\x00\x00"), list_offsets=LISTED)

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(RemoteProtocolError, match="b:9092"):
            await connection.request(METADATA, timeout_s=5)
        assert await connection.request(LIST_OFFSETS, timeout_s=5) == LISTED

    scene.run(scenario)
    assert scene.told.events[0] == ("failed", 1, "METADATA", "RemoteProtocolError")


def test_late_answer_closes_the_connection() -> None:
    """Answers come in order: what is behind a missing one may never come."""
    scene = Scene(metadata=Reaction.SILENT, list_offsets=Reaction.SILENT)

    async def scenario(connection: BrokerConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            behind = tasks.create_task(_outcome(connection.request(LIST_OFFSETS, timeout_s=60)))
            with pytest.raises(RequestTimedOut, match="METADATA v5 within 2 s"):
                await connection.request(METADATA, timeout_s=2)
        lost = behind.result()
        assert type(lost) is ConnectionLost
        assert isinstance(lost.__cause__, RequestTimedOut)
        assert asyncio.get_running_loop().time() == 2.0
        assert connection.closed

    scene.run(scenario)
    assert {("failed", 1, "METADATA", "RequestTimedOut"), ("failed", 1, "LIST_OFFSETS", "RequestTimedOut")} == set(
        scene.told.events
    )


def test_cancelled_waiter_leaves_the_connection_usable() -> None:
    """A partition that is given up must not cost the others their connection; the stray answer is dropped."""
    scene = Scene(metadata=Late(MADE, 1.0), list_offsets=LISTED)

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(TimeoutError):
            async with timeout(0.5):
                await connection.request(METADATA, timeout_s=5)
        assert connection.in_flight == 1
        assert connection.idle_s == 0.0
        assert await connection.request(LIST_OFFSETS, timeout_s=5) == LISTED
        assert connection.in_flight == 0

    scene.run(scenario)


def test_value_that_the_version_cannot_say_sends_nothing() -> None:
    """Our own mistake costs neither the connection nor a correlation id."""
    scene = Scene(list_offsets=LISTED)

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(LocalProtocolError):
            await connection.request(ListOffsetsRequest(topics=(), isolation_level=1), timeout_s=5, version=0)
        await connection.request(LIST_OFFSETS, timeout_s=5)

    scene.run(scenario)
    assert scene.broker.correlation_ids == [0]


def test_deadline_covers_a_peer_that_takes_nothing() -> None:
    """Back-pressure waits, and is bounded."""
    scene = Scene(list_offsets=Reaction.SILENT)

    async def scenario(connection: BrokerConnection) -> None:
        scene.stream.stalled = True
        with pytest.raises(RequestTimedOut):
            await connection.request(LIST_OFFSETS, timeout_s=3)
        assert asyncio.get_running_loop().time() == 3.0

    scene.run(scenario)


def test_broker_since_2_0_is_left_alone_for_its_throttle_time() -> None:
    """From 2.0 on a broker answers first and goes deaf then: a request sent meanwhile would run into its deadline."""
    scene = Scene(fetch=FetchResponse(throttle_time_ms=4000, topics=()), metadata=MADE)

    async def scenario(connection: BrokerConnection) -> None:
        await connection.request(FETCH, timeout_s=1)
        answered = asyncio.get_running_loop().time()
        await connection.request(METADATA, timeout_s=1)
        assert answered + 4.0 + 0.001 == pytest.approx(asyncio.get_running_loop().time())

    scene.run(scenario, assume_release((2, 0)))
    assert ("throttled", 1, 4.0) in scene.told.events


def test_broker_before_2_0_has_throttled_already() -> None:
    """It delays the answer itself; waiting again would halve the rate that the quota grants."""
    scene = Scene(fetch=FetchResponse(throttle_time_ms=4000, topics=()), metadata=MADE)

    async def scenario(connection: BrokerConnection) -> None:
        await connection.request(FETCH, timeout_s=1)
        await connection.request(METADATA, timeout_s=1)
        assert asyncio.get_running_loop().time() < 1.0

    scene.run(scenario, assume_release((1, 1)))
    assert ("throttled", 1, 4.0) in scene.told.events


def test_absurd_throttle_time_is_capped() -> None:
    """A broker cannot put us to sleep for 24 days."""
    scene = Scene(fetch=FetchResponse(throttle_time_ms=2**31 - 1, topics=()), metadata=MADE)

    async def scenario(connection: BrokerConnection) -> None:
        await connection.request(FETCH, timeout_s=1)
        await connection.request(METADATA, timeout_s=1)
        assert asyncio.get_running_loop().time() < LONGEST_THROTTLE_S + 1

    scene.run(scenario, assume_release((2, 3)))


def test_close_wakes_who_waits_and_is_idempotent() -> None:
    """Shutting down leaves nobody behind."""
    scene = Scene(metadata=Reaction.SILENT)

    async def scenario(connection: BrokerConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_outcome(connection.request(METADATA, timeout_s=60)))
            await asyncio.sleep(0.1)
            connection.close()
            connection.close()
        assert "closed by us" in str(waiting.result())
        await connection.wait_closed()

    scene.run(scenario)


def test_repr_tells_the_state() -> None:
    """It is what a log line or a debugger shows."""
    scene = Scene(metadata=MADE)

    async def scenario(connection: BrokerConnection) -> None:
        assert repr(connection) == "<BrokerConnection b:9092 assumed 1.1, 0 in flight>"
        connection.close()
        assert repr(connection) == "<BrokerConnection b:9092 assumed 1.1, closed: b:9092: closed by us>"

    scene.run(scenario)


async def _outcome(request: Awaitable[object]) -> BaseException | None:
    try:
        await request
    except ConnectionLost as error:
        return error
    return None
