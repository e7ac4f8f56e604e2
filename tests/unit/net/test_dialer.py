# SPDX-License-Identifier: Apache-2.0
"""How a broker's release is found out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost, RemoteProtocolError
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.dialer import Dialer
from consumerd.net.versions import Origin, VersionMemory, assume_release
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.modern.fetch import FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.schema import compile_codec
from tests.support import virtual_time
from tests.support.raw_client import fetch
from tests.support.scripted_broker import Answer, Body, FakeNetwork, Late, Raw, Reaction, ScriptedBroker, listing

ADDRESS = Address(host="b", port=9092)
LISTED = ListOffsetsResponse(topics=())
FETCH = fetch("t")
FETCHED = FetchResponse(topics=())
MODERN = listing({ApiKey.FETCH: (0, 7), ApiKey.LIST_OFFSETS: (0, 2)})


def broker(*answers: Answer, alive: Answer = LISTED) -> ScriptedBroker:
    """Answer ApiVersions one by one by ``answers``, the last for ever; and ListOffsets by ``alive``."""
    queue = list(answers)
    return ScriptedBroker(
        {
            ApiVersionsRequest: lambda _request, _version: queue.pop(0) if len(queue) > 1 else queue[0],
            ListOffsetsRequest: lambda _request, _version: alive,
        }
    )


class Scene:
    """A dialer in a network with one broker."""

    def __init__(self, scripted: ScriptedBroker | None, **options: object) -> None:
        self.network = FakeNetwork()
        self.scripted = scripted
        if scripted is not None:
            self.network.brokers[ADDRESS] = scripted
        self.memory = VersionMemory(keep_s=300)
        self._options = options

    def run(self, scenario: Callable[[Dialer], Awaitable[None]]) -> None:
        async def play() -> None:
            now = asyncio.get_running_loop().time
            await scenario(
                Dialer(self.network, client_id="t", now=now, memory=self.memory, **self._options)  # type: ignore[arg-type]  # options of the test
            )

        virtual_time.run(play())

    @property
    def left_open(self) -> int:
        return sum(not stream.closed for stream in self.network.streams)


def time() -> float:
    return asyncio.get_running_loop().time()


def test_broker_that_lists_its_versions_is_taken_at_its_word() -> None:
    """One round trip, and nothing is remembered: an upgrade shows on the next connection."""
    scene = Scene(broker(MODERN, listing({ApiKey.FETCH: (0, 12)})))

    async def scenario(dialer: Dialer) -> None:
        connection = await dialer.dial(ADDRESS)
        assert Origin.NEGOTIATED is connection.versions.origin
        assert connection.version_of(FetchRequest) == 7
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 11

    scene.run(scenario)
    assert scene.left_open == 2


def test_broker_that_closes_is_of_0_8() -> None:
    """It answers the old request, and closes on the new one again."""
    scene = Scene(broker(Reaction.CLOSE))

    async def scenario(dialer: Dialer) -> None:
        connection = await dialer.dial(ADDRESS)
        assert str(connection.versions) == "assumed 0.8.2"
        assert connection.version_of(FetchRequest) == 0
        assert await connection.request(ListOffsetsRequest(topics=()), timeout_s=1) == LISTED

    scene.run(scenario)
    assert scene.left_open == 1


def test_broker_that_says_nothing_is_of_0_9() -> None:
    """The silence is waited for by short deadlines, and once."""
    scene = Scene(broker(Reaction.SILENT))

    async def scenario(dialer: Dialer) -> None:
        connection = await dialer.dial(ADDRESS)
        assert str(connection.versions) == "assumed 0.9"
        assert connection.version_of(FetchRequest) == 1
        first = time()
        assert 2.0 < first < 2.1
        await dialer.dial(ADDRESS)
        assert time() - first < 0.1

    scene.run(scenario)
    assert scene.left_open == 2


@pytest.mark.parametrize("alive", [Reaction.CLOSE, Body(b"\x00")])
def test_dead_broker_concludes_nothing(alive: Answer) -> None:
    """A broker that is going down closes connections, too; what answers nonsense is no broker."""
    scene = Scene(broker(Reaction.CLOSE, alive=alive))

    async def scenario(dialer: Dialer) -> None:
        with pytest.raises(ConnectionLost):
            await dialer.dial(ADDRESS)
        assert scene.memory.find(ADDRESS, time()) is None

    scene.run(scenario)
    assert scene.left_open == 0


def test_hung_broker_concludes_nothing() -> None:
    """One that answers nothing at all may be of any release."""
    scene = Scene(broker(Reaction.SILENT, alive=Reaction.SILENT), alive_timeout_s=5.0)

    async def scenario(dialer: Dialer) -> None:
        with pytest.raises(ConnectionLost):
            await dialer.dial(ADDRESS)
        assert pytest.approx(6.0) == time()

    scene.run(scenario)
    assert scene.left_open == 0


@pytest.mark.parametrize("hiccup", [Reaction.CLOSE, Reaction.SILENT, Late(MODERN, 1.5)])
def test_modern_broker_with_a_hiccup_is_not_taken_for_an_old_one(hiccup: Answer) -> None:
    """A restart or a pause at the wrong moment must not cost minutes of conversion by the broker."""
    scene = Scene(broker(hiccup, MODERN))

    async def scenario(dialer: Dialer) -> None:
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 7

    scene.run(scenario)
    assert scene.left_open == 1


def test_slow_broker_is_given_time_in_proportion() -> None:
    """One that takes seconds for anything, as after its start on a busy machine, is slow and not old."""
    scene = Scene(broker(Late(MODERN, 4.0), alive=Late(LISTED, 2.0)))

    async def scenario(dialer: Dialer) -> None:
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 7

    scene.run(scenario)
    assert scene.left_open == 1


def test_assumption_is_tried_anew_after_a_while() -> None:
    """A broker that was upgraded in place shows it at a reconnect, some minutes later at the latest."""
    scene = Scene(broker(Reaction.CLOSE, Reaction.CLOSE, MODERN))

    async def scenario(dialer: Dialer) -> None:
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 0
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 0
        await asyncio.sleep(301)
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 7

    scene.run(scenario)


def test_assumption_does_not_outlive_the_process_that_was_asked() -> None:
    """Nobody listening means that what listens next may be another release."""
    scene = Scene(broker(Reaction.CLOSE, Reaction.CLOSE, MODERN))

    async def scenario(dialer: Dialer) -> None:
        await dialer.dial(ADDRESS)
        restarting = scene.network.brokers.pop(ADDRESS)
        with pytest.raises(ConnectionLost):
            await dialer.dial(ADDRESS)
        scene.network.brokers[ADDRESS] = restarting
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 7

    scene.run(scenario)


def test_broker_that_closes_on_what_it_was_assumed_to_speak_is_asked_again() -> None:
    """One of 0.8 was too slow to close twice, and was taken for 0.9: all fetches would fail until that is forgotten."""
    scripted = broker(Reaction.SILENT, Reaction.SILENT, Reaction.CLOSE)
    scripted.handlers[FetchRequest] = lambda _request, version: FETCHED if version == 0 else Reaction.CLOSE
    scene = Scene(scripted)

    async def scenario(dialer: Dialer) -> None:
        for attempt in range(2):
            connection = await dialer.dial(ADDRESS)
            assert str(connection.versions) == ("assumed 0.8.2" if attempt else "assumed 0.9")
            if attempt:
                assert await connection.request(FETCH, timeout_s=1) == FETCHED
            else:
                with pytest.raises(ConnectionLost):
                    await connection.request(FETCH, timeout_s=1)

    scene.run(scenario)


def test_broker_that_answers_in_another_version_than_it_was_assumed_to_speak_is_asked_again() -> None:
    """A real 0.8.2 that was taken for 0.9, by a process that was stopped meanwhile: it answers Fetch v1 as if it were v0."""
    scripted = broker(Reaction.SILENT, Reaction.SILENT, Reaction.CLOSE)
    in_version_0 = compile_codec(FetchResponse, 0).encode(
        FetchResponse(topics=(FetchedTopic(topic="t", partitions=()),))
    )
    scripted.handlers[FetchRequest] = lambda _request, _version: Body(in_version_0)
    scene = Scene(scripted)

    async def scenario(dialer: Dialer) -> None:
        first = await dialer.dial(ADDRESS)
        assert str(first.versions) == "assumed 0.9"
        with pytest.raises(RemoteProtocolError):
            await first.request(FETCH, timeout_s=1)
        assert first.closed
        second = await dialer.dial(ADDRESS)
        assert str(second.versions) == "assumed 0.8.2"
        assert [one.topic for one in (await second.request(FETCH, timeout_s=1)).topics] == ["t"]

    scene.run(scenario)


def test_connection_that_ends_while_nothing_is_owed_says_nothing_of_the_release() -> None:
    """Brokers close what is idle; to ask again would take seconds of silence each time."""
    scene = Scene(broker(Reaction.SILENT))

    async def scenario(dialer: Dialer) -> None:
        await dialer.dial(ADDRESS)
        next(one for one in scene.network.streams if not one.closed).end(ConnectionLost("idle for too long"))
        first = time()
        await dialer.dial(ADDRESS)
        assert time() - first < 0.1

    scene.run(scenario)


def test_pinned_release_is_not_asked() -> None:
    """Somebody has said so."""
    scripted = broker(Reaction.CLOSE)
    scene = Scene(scripted, pinned=assume_release((0, 9), Origin.PINNED))

    async def scenario(dialer: Dialer) -> None:
        assert (await dialer.dial(ADDRESS)).version_of(FetchRequest) == 1

    scene.run(scenario)
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ApiVersionsResponse(error_code=35, api_versions=()), "code 35"),
        (listing({ApiKey.FETCH: (5, 4)}), "flipped"),
        (Raw((4).to_bytes(4) + (99).to_bytes(4)), "correlation id 99"),
    ],
)
def test_what_is_no_broker_is_refused_with_the_reason(answer: Answer, reason: str) -> None:
    """Callers retry ConnectionLost with backoff; the operator reads why."""
    scene = Scene(broker(answer))

    async def scenario(dialer: Dialer) -> None:
        with pytest.raises(ConnectionLost, match=reason):
            await dialer.dial(ADDRESS)

    scene.run(scenario)
    assert scene.left_open == 0


@pytest.mark.parametrize("after_s", [0.0005, 0.5, 1.0015, 1.5, 2.0025])
def test_cancelled_dial_leaves_no_connection_open(after_s: float) -> None:
    """In any of its steps."""
    scene = Scene(broker(Reaction.SILENT))
    scene.network.connect_s = 0.001

    async def scenario(dialer: Dialer) -> None:
        connection: BrokerConnection | None = None
        with pytest.raises(TimeoutError):
            async with timeout(after_s):
                connection = await dialer.dial(ADDRESS)
        assert connection is None

    scene.run(scenario)
    assert scene.left_open == 0


def test_connections_that_are_refused_count_as_failed_requests() -> None:
    """An alert counts failed requests; a broker whose port is closed never gets as far as one."""

    class Counting(Hooks):
        def __init__(self) -> None:
            self.failed: list[tuple[BrokerId | None, str, str]] = []

        def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
            self.failed.append((broker, api, error))

    hooks = Counting()

    async def scenario(dialer: Dialer) -> None:
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                await dialer.dial(ADDRESS, broker=BrokerId(4))

    Scene(None, hooks=hooks).run(scenario)

    assert hooks.failed == [(BrokerId(4), "Connect", "ConnectionLost")] * 3
