# SPDX-License-Identifier: Apache-2.0
"""Requests that the low-level consumer sends to brokers of Kafka 0.7; component tests read from embedded ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from consumerd.client.legacy_fetch import LegacyFetchProtocol
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.client.simple_consumer import EARLIEST, LATEST, SimpleConsumer
from consumerd.errors import BrokerError, RequestTimedOut
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest, LegacyOffsetsRequest
from tests.support import virtual_time
from tests.support.legacy_peer import LegacyCluster, LegacyLog, LegacyPeer, encode_messages, legacy_partition

PARTITION, OTHER, WRONG = legacy_partition("t", 0), legacy_partition("t", 1), legacy_partition("t", 99)
MESSAGES = encode_messages([b"%02d" % number for number in range(40)])
SIZE = len(MESSAGES) // 40

Scenario = Callable[[SimpleConsumer], Awaitable[None]]


def run(peer: LegacyPeer, scenario: Scenario) -> LegacyCluster:
    cluster = LegacyCluster(peer)

    async def play() -> None:
        cluster.announce(PARTITION, OTHER, WRONG)
        async with cluster.connect() as pool:
            await scenario(
                SimpleConsumer(
                    pool,
                    cluster,
                    random=lambda: 0.0,
                    max_message_bytes=1 << 20,
                    timeout_s=5,
                    in_thread_bytes=1 << 30,  # there are no threads in virtual time
                    protocol=LegacyFetchProtocol(pool),
                    lookup=LegacyOffsetLookup(pool),
                )
            )

    virtual_time.run(play())
    return cluster


def with_log(data: bytes = MESSAGES) -> LegacyPeer:
    peer = LegacyPeer()
    peer.logs["t", 0] = LegacyLog(data)
    return peer


def offsets_asked(peer: LegacyPeer) -> list[list[int]]:
    """The offsets in each MULTIFETCH so far."""
    return [[one.offset for one in request.requests] for request in peer.asked(LegacyMultiFetchRequest)]


def test_a_program_that_goes_on_sends_one_request_for_each_fetch() -> None:
    """Only the first position, and one after a jump, may lie inside of a message: the bytes before it are read."""
    peer = with_log()

    async def scenario(consumer: SimpleConsumer) -> None:
        position = 10 * SIZE
        for _ in range(3):
            position = (await consumer.fetch(PARTITION, position, max_bytes=4 * SIZE)).batch.next_offset
        assert position == 22 * SIZE
        assert offsets_asked(peer) == [[10 * SIZE], [0], [14 * SIZE], [18 * SIZE]]

        await consumer.fetch(PARTITION, 30 * SIZE, max_bytes=4 * SIZE)
        assert offsets_asked(peer)[4:] == [[30 * SIZE], [0]]

    run(peer, scenario)


def test_at_the_log_end_brokers_are_asked_again_until_the_time_is_over() -> None:
    """They answer at once, so the waiting is ours."""
    peer = with_log()

    async def scenario(consumer: SimpleConsumer) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        found = await consumer.fetch(PARTITION, len(MESSAGES), max_wait_s=1.0)
        assert (len(found.batch), found.batch.next_offset) == (0, len(MESSAGES))
        assert now() - began == pytest.approx(1.0, abs=0.1)
        assert 10 <= len(offsets_asked(peer)) <= 12

        await consumer.fetch(PARTITION, len(MESSAGES))
        assert now() - began == pytest.approx(1.0, abs=0.1)

    run(peer, scenario)


def test_records_and_errors_of_one_partition_end_the_wait_of_all() -> None:
    """As a later broker answers when ``min_bytes`` are there."""
    peer = with_log()

    async def scenario(consumer: SimpleConsumer) -> None:
        now = asyncio.get_running_loop().time
        found = await consumer.multifetch({PARTITION: 0, OTHER: 0}, max_wait_s=60.0)
        assert [len(found.fetched[one].batch) for one in (PARTITION, OTHER)] == [40, 0]

        found = await consumer.multifetch({PARTITION: 5000, OTHER: 0}, max_wait_s=60.0)
        assert isinstance(found.errors[PARTITION], BrokerError)
        assert now() < 1.0

    run(peer, scenario)


def test_times_of_records_are_not_asked_for() -> None:
    """Messages have none."""
    peer = with_log()

    async def scenario(consumer: SimpleConsumer) -> None:
        assert await consumer.read_timestamp(PARTITION, 0) is None

    run(peer, scenario)
    assert peer.requests == []


@pytest.mark.parametrize("is_jafka", [False, True])
def test_a_topic_without_messages_begins_and_ends_at_0(*, is_jafka: bool) -> None:
    """Kafka lists that, and Jafka lists nothing."""
    peer = LegacyPeer()
    peer.is_jafka = is_jafka

    async def scenario(consumer: SimpleConsumer) -> None:
        assert [await consumer.offsets_before(OTHER, time, 5) for time in (EARLIEST, LATEST, 1000)] == [[0], [0], []]

    run(peer, scenario)


def test_a_partition_that_the_broker_does_not_have_is_error_3() -> None:
    """OFFSETS would close the connection; the partition may come into being, so it is asked for until the time is over."""
    peer = with_log()

    async def scenario(consumer: SimpleConsumer) -> None:
        with pytest.raises(RequestTimedOut, match=r"t/0-99.*UNKNOWN_TOPIC_OR_PARTITION"):
            await consumer.offsets_before(WRONG, LATEST)
        with pytest.raises(RequestTimedOut, match=r"t/0-99.*UNKNOWN_TOPIC_OR_PARTITION"):
            await consumer.fetch(WRONG, 0)
        assert await consumer.offsets_before(PARTITION, LATEST) == [len(MESSAGES)]

    run(peer, scenario)
    assert {request.partition for request in peer.asked(LegacyOffsetsRequest)} == {0}
