# SPDX-License-Identifier: Apache-2.0
"""Every request that was recorded with Kafka 0.7.2 is answered as recorded, byte for byte, or refused as recorded."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from consumerd.embedded.legacy.broker import LegacyBroker
from consumerd.wire.legacy.messages import LegacyRequestType
from consumerd.wire.legacy.session import encode_legacy_request, read_legacy_request
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.legacy_client import NOTHING, LegacyClient, legacy_client, legacy_settings
from tests.support.legacy_frames import LegacyExchange, get_exchange, load_exchanges

RECORDED: Final = [one for one in load_exchanges() if one.name.startswith("k072")]
CLOSED: Final = "connection closed by broker, no response"
KEPT_OPEN: Final = "no response, connection kept open"
INCOMPLETE: Final = "k072_truncated_request"
RETENTION: Final = "k072ret_offsets_earliest_after_retention"
SEGMENTS: Final = "vKAFasegs"
SEGMENT_BYTES: Final = 2000
"""``log.file.size`` of the recording."""
DAY_MS: Final = 86_400_000


def read_time(name: str) -> int:
    """Return the time that a recorded OFFSETS request asks for, in ms."""
    request = read_legacy_request(get_exchange(name).request[4:])
    time: int = request.time  # type: ignore[attr-defined] - it is one of OFFSETS
    return time


NOW_MS: Final = read_time("k072_offsets_time_just_past") + 2000
"""The broker's clock when that request was recorded."""


def is_produce(exchange: LegacyExchange) -> bool:
    """Return True for PRODUCE and MULTIPRODUCE."""
    return exchange.request[4:6] in (b"\0\0", b"\0\3") and len(exchange.request) > 6


def read_random_partition() -> int:
    """Return the partition that the recorded broker chose for partition -1."""
    found = [number for number in range(3) if len(get_exchange(f"k072_fetch_after_rand_p{number}").response or b"") > 6]
    (chosen,) = found
    return chosen


@asynccontextmanager
async def recorded_broker(directory: Path) -> AsyncIterator[LegacyBroker]:
    """Start a broker with the settings of the recording."""
    settings = legacy_settings(directory, segment_bytes=SEGMENT_BYTES)
    async with LegacyBroker(settings, choose=lambda _: read_random_partition(), now_ms=lambda: NOW_MS) as broker:
        yield broker


async def fill(broker: LegacyBroker, directory: Path) -> None:
    """Bring the logs into the state of the recording, by requests."""
    for exchange in RECORDED:
        if is_produce(exchange):
            async with legacy_client(broker.port) as client:
                await expect_outcome(client, exchange)
    async with legacy_client(broker.port) as client:
        for name in (
            "k072_fetch_javaproducer_codec0",
            "k072_fetch_javaproducer_codec1",
            "k072_fetch_javaproducer_codec2",
        ):
            exchange = get_exchange(name)
            assert exchange.response is not None
            await client.produce(exchange.response[6:], f"jprod{name[-1]}")
        # three requests of 40 messages: the recorded segments have 2400 bytes, since they exceed their size by a set
        for first in (0, 40, 80):
            await client.produce(b"".join(map(make_message, range(first, first + 40))), SEGMENTS)
        # a log that begins at 8460 after retention: three segments of 47 messages
        for first in (0, 47, 94, 141):
            await client.produce(b"".join(map(make_message, range(first, first + 47))), "ret")
    modified_ms = read_time("k072_offsets_time_mid")
    for number, path in enumerate(sorted((directory / f"{SEGMENTS}-0").iterdir())):
        set_modified(path, modified_ms + number)
    for path in sorted((directory / "ret-0").iterdir())[:3]:
        set_modified(path, NOW_MS - 8 * DAY_MS)
    await broker.clean()


def make_message(number: int) -> bytes:
    """Return a message of 60 bytes, as the recorder wrote them."""
    return encode_message(b"%04d" % number + b"x" * 46)


def set_modified(path: Path, modified_ms: int) -> None:
    """Set when a segment was last written."""
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


async def expect_outcome(client: LegacyClient, exchange: LegacyExchange) -> None:
    """Send the request; compare what happens with what was recorded."""
    client.raw.send(exchange.request)
    if exchange.outcome == CLOSED:
        assert b"" == await client.receive_end()
        return
    if exchange.response is not None:
        assert exchange.response == await client.receive_frame()
    # open: the next request is answered, and by nothing else
    client.raw.send(encode_legacy_request(NOTHING))
    assert get_exchange("k072_multifetch_zero").response == await client.receive_frame()


async def test_recorded_outcomes_are_these() -> None:
    """Nothing that was recorded is left out below: 94 exchanges, of which one is an incomplete request."""
    outcomes = {one.outcome for one in RECORDED} - {CLOSED, KEPT_OPEN, "response"}
    assert (94, {get_exchange(INCOMPLETE).outcome}) == (len(RECORDED), outcomes)
    assert set(LegacyRequestType) == {one.request[5] for one in RECORDED} - {9}


async def test_requests_to_store_have_the_recorded_outcome(tmp_path: Path) -> None:
    """All of them, each on its connection, and in one broker, as they were recorded."""
    async with recorded_broker(tmp_path) as broker:
        for exchange in filter(is_produce, RECORDED):
            async with legacy_client(broker.port) as client:
                await expect_outcome(client, exchange)


async def test_requests_to_read_are_answered_as_recorded(tmp_path: Path) -> None:
    """Byte for byte: FETCH, MULTIFETCH and OFFSETS, and requests that no client would send."""
    async with recorded_broker(tmp_path) as broker:
        await fill(broker, tmp_path)
        different = []
        for exchange in RECORDED:
            if is_produce(exchange) or exchange.name == INCOMPLETE:
                continue
            async with legacy_client(broker.port) as client:
                try:
                    await expect_outcome(client, exchange)
                except (AssertionError, EOFError) as error:
                    different.append(f"{exchange.name}: {error}")
    assert [] == different


async def test_an_incomplete_request_is_waited_for(tmp_path: Path) -> None:
    """Its size says ten bytes, and eight come; there is no answer, and the connection stays open."""
    exchange = get_exchange(INCOMPLETE)
    async with recorded_broker(tmp_path) as broker, legacy_client(broker.port) as client:
        client.raw.send(exchange.request)
        client.raw.end()
        assert b"" == await client.receive_end()
    assert exchange.response is None


# a negative number of offsets is refused only if there is a log
REFUSED: Final = [one for one in RECORDED if one.outcome == CLOSED and one.name != "k072_offsets_max_negative"]


@pytest.mark.parametrize("exchange", REFUSED, ids=str)
async def test_requests_behind_a_refused_one_are_not_answered(exchange: LegacyExchange, tmp_path: Path) -> None:
    """They are lost with the connection, so that a producer must not take them for stored."""
    async with recorded_broker(tmp_path) as broker, legacy_client(broker.port) as client:
        client.raw.send(exchange.request + encode_legacy_request(NOTHING))
        assert b"" == await client.receive_end()
