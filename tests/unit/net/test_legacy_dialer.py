# SPDX-License-Identifier: Apache-2.0
"""Connections to brokers of Kafka 0.7, and the broker in memory that tests use for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from consumerd.errors import ConnectionLost, RemoteProtocolError, RequestTimedOut, UnsupportedVersion
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.legacy_dialer import LegacyDialer, LegacyVersions
from consumerd.net.pool import ConnectionPool, Purpose
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.legacy.messages import (
    LATEST_TIME,
    LegacyFetchRequest,
    LegacyMultiFetchRequest,
    LegacyOffsetsRequest,
)
from consumerd.wire.modern.fetch import FetchRequest
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.legacy_frames import MALFORMED, LegacyExchange, get_exchange, load_exchanges
from tests.support.legacy_peer import LegacyPeer
from tests.support.scripted_broker import FakeNetwork, Reaction

ADDRESS = Address(host="b", port=9092)
REPLAYED = [
    one
    for one in load_exchanges()
    if one.name.startswith(("k072_fetch", "k072_multifetch", "k072_offsets")) and one.short_name not in MALFORMED
]


class Failures(Hooks):
    def __init__(self) -> None:
        self.seen: list[tuple[BrokerId | None, str, str]] = []

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        self.seen.append((broker, api, error))


def run(peer: LegacyPeer, scenario: Callable[[LegacyDialer, FakeNetwork], Awaitable[None]]) -> None:
    async def play() -> None:
        network = FakeNetwork()
        network.brokers[ADDRESS] = peer
        await scenario(LegacyDialer(network, now=asyncio.get_running_loop().time), network)

    virtual_time.run(play())


@pytest.mark.parametrize("exchange", REPLAYED, ids=str)
def test_peer_answers_as_the_recorded_broker(exchange: LegacyExchange) -> None:
    """The tests of fetching are worth as much as their broker is like a real one."""

    async def play() -> None:
        answer, _, closes = LegacyPeer.from_recordings().react(exchange.request[4:])
        assert not closes
        assert answer == (Reaction.CLOSE if exchange.response is None else exchange.response)

    virtual_time.run(play())


def test_nothing_is_sent_before_the_first_request() -> None:
    """A broker of 0.7 would take a question for its versions for another request."""
    peer = LegacyPeer.from_recordings()
    recorded = get_exchange("k072_multifetch_one_error")

    async def scenario(dialer: LegacyDialer, network: FakeNetwork) -> None:
        connection = await dialer.dial(ADDRESS, BrokerId(0))
        await asyncio.sleep(10)
        assert network.streams[0].written == []
        asks = [
            ("vKAFampa", 0, 0, 1000),
            ("vKAFampb", 99, 0, 1000),
            ("vKAFampb", 0, 99999, 1000),
            ("vKAFampb", 0, 0, 15),
        ]
        requests = [
            LegacyFetchRequest(topic=topic, partition=number, offset=offset, max_size=size)
            for topic, number, offset, size in [*asks, ("vKAFanosuch", 0, 0, 1000)]
        ]
        response = await connection.request(LegacyMultiFetchRequest(requests=tuple(requests)), timeout_s=1)
        assert network.streams[0].written == [recorded.request]
        assert [one.error_code for one in response.responses] == [0, 3, 1, 0, 0]

    run(peer, scenario)
    assert len(peer.requests) == 1


def test_requests_of_later_releases_are_refused_before_they_are_sent() -> None:
    """The type in their header would mean another request to the broker."""
    peer = LegacyPeer()

    async def scenario(dialer: LegacyDialer, _network: FakeNetwork) -> None:
        connection = await dialer.dial(ADDRESS)
        with pytest.raises(UnsupportedVersion, match=r"FetchRequest: brokers of Kafka 0\.6 and 0\.7"):
            await connection.request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=()), timeout_s=1)
        assert not connection.closed
        assert connection.version_of(LegacyFetchRequest) == 0
        assert not LegacyVersions().mutes_after_answer
        assert "of Kafka 0.6 or 0.7, 0 in flight" in repr(connection)

    run(peer, scenario)
    assert peer.requests == []


def test_point_3_offsets_of_an_unknown_partition_closes_the_connection() -> None:
    """All requests behind it fail with it; the pool connects again."""
    peer = LegacyPeer.from_recordings()
    bad = LegacyOffsetsRequest(topic="vKAFasegs", partition=99, time=LATEST_TIME, max_number=1)
    good = LegacyOffsetsRequest(topic="vKAFasegs", partition=0, time=LATEST_TIME, max_number=1)

    async def play() -> None:
        network, now = FakeNetwork(), asyncio.get_running_loop().time
        broker = make_broker(0)
        network.brokers[broker.address] = peer
        async with ConnectionPool(LegacyDialer(network, now=now), now=now, random=lambda: 0.0) as pool:
            connection = await pool.get(broker, Purpose.CONTROL)
            found = await asyncio.gather(
                *(connection.request(one, timeout_s=1) for one in (good, bad, good)), return_exceptions=True
            )
            assert [type(one).__name__ for one in found] == [
                "LegacyOffsetsResponse",
                "ConnectionLost",
                "ConnectionLost",
            ]
            connection = await pool.get(broker, Purpose.CONTROL)
            assert (await connection.request(good, timeout_s=1)).offsets == (0x1C20,)
        assert len(network.streams) == 2

    virtual_time.run(play())


def test_request_past_its_deadline_poisons_the_connection() -> None:
    """Answers have no ids: one that comes late would be taken for the next one."""
    peer = LegacyPeer()
    peer.silent = True

    async def scenario(dialer: LegacyDialer, _network: FakeNetwork) -> None:
        connection = await dialer.dial(ADDRESS)
        request = LegacyFetchRequest(topic="t", partition=0, offset=0, max_size=10)
        with pytest.raises(RequestTimedOut):
            await connection.request(request, timeout_s=1)
        assert connection.closed

    run(peer, scenario)


def test_frame_without_an_error_code_poisons_the_connection() -> None:
    """A FETCH of -1 bytes is answered so, and where the next frame begins is unknown."""
    peer = LegacyPeer()

    async def scenario(dialer: LegacyDialer, _network: FakeNetwork) -> None:
        connection = await dialer.dial(ADDRESS)
        with pytest.raises(ConnectionLost) as caught:
            await connection.request(LegacyFetchRequest(topic="t", partition=0, offset=0, max_size=-1), timeout_s=1)
        assert isinstance(caught.value.__cause__, RemoteProtocolError)

    run(peer, scenario)


def test_failure_to_connect_is_reported() -> None:
    """Failed connections are counted, whatever the generation of the broker."""
    failures = Failures()

    async def play() -> None:
        dialer = LegacyDialer(FakeNetwork(), now=asyncio.get_running_loop().time, hooks=failures)
        with pytest.raises(ConnectionLost, match="refused"):
            await dialer.dial(ADDRESS, BrokerId(4))

    virtual_time.run(play())
    assert failures.seen == [(BrokerId(4), "Connect", "ConnectionLost")]
