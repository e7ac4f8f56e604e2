# SPDX-License-Identifier: Apache-2.0
"""Single records, for their times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from consumerd.client.simple_consumer import LATEST, SimpleConsumer
from consumerd.errors import BrokerError, CorruptMessageError, RecordTooLarge, RequestTimedOut, UnsupportedVersion
from consumerd.model import TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.fetch import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.list_offsets import (
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.support import virtual_time
from tests.support.cluster import ScriptedLeaders, make_broker, make_view
from tests.support.record_sets import RecordSpec, batch, message
from tests.support.scripted_broker import FakeNetwork, ScriptedBroker

T0 = TopicPartition.modern("t", 0)
CONTROL = 0x20
OUT_OF_RANGE, NOT_LEADER, FETCH_SESSION_ID_NOT_FOUND = 1, 6, 70
LIMIT = 1 << 20


class LogBroker(ScriptedBroker):
    """Serves units by offset, cut off at the size asked for."""

    def __init__(self, *units: tuple[int, bytes], newest: int = 7) -> None:
        super().__init__({FetchRequest: self.answer}, ranges={ApiKey.FETCH: (0, newest)})
        self.units = units
        self.errors: list[int] = []

    def answer(self, request: FetchRequest, version: int) -> FetchResponse:
        (wanted,) = request.topics[0].partitions
        error = self.errors.pop(0) if self.errors else 0
        data = b"".join(unit for last, unit in self.units if last >= wanted.fetch_offset)
        fetched = FetchedPartition(
            partition=0,
            error_code=error,
            high_watermark=-1 if error else 100,
            record_set=b"" if error else data[: wanted.partition_max_bytes],
        )
        return FetchResponse(topics=(FetchedTopic(topic="t", partitions=(fetched,)),))


def run(
    broker: LogBroker, scenario: Callable[[SimpleConsumer], Awaitable[None]], leaders: ScriptedLeaders | None = None
) -> None:
    async def play() -> None:
        network = FakeNetwork()
        network.brokers[make_broker(1).address] = broker
        now = asyncio.get_running_loop().time
        dialer = Dialer(network, client_id="t", now=now)
        known = leaders or ScriptedLeaders(make_view({1}, {"t": [1]}))
        async with ConnectionPool(dialer, now=now, random=lambda: 0.0) as pool:
            await scenario(
                SimpleConsumer(
                    pool,
                    known,
                    random=lambda: 0.0,
                    max_message_bytes=LIMIT,
                    timeout_s=5,
                    in_thread_bytes=4 * LIMIT,  # there are no threads in virtual time
                )
            )

    virtual_time.run(play())


def test_time_of_the_record_at_an_offset() -> None:
    """In the middle of a batch, too."""
    records = [RecordSpec(delta=delta, value=b"v", timestamp_delta=delta * 10) for delta in range(3)]
    broker = LogBroker((12, batch(10, records, base_timestamp=1000, max_timestamp=1020)))

    async def scenario(consumer: SimpleConsumer) -> None:
        assert [await consumer.read_timestamp(T0, offset) for offset in (10, 11, 12)] == [1000, 1010, 1020]
        assert await consumer.read_timestamp(T0, 13) is None

    run(broker, scenario)


def test_control_batches_and_gaps_are_passed_over() -> None:
    """The next record that a consumer would see is what counts."""
    marker = batch(10, [RecordSpec(delta=0, key=b"\0\0\0\0", value=b"")], attributes=CONTROL)
    broker = LogBroker((10, marker), (20, batch(20, [RecordSpec(delta=0, value=b"v")], base_timestamp=7)))

    async def scenario(consumer: SimpleConsumer) -> None:
        assert await consumer.read_timestamp(T0, 10) == 7
        assert await consumer.read_timestamp(T0, 15) == 7

    run(broker, scenario)


def test_old_format_has_no_times() -> None:
    """Magic 0; lag in seconds is unknown then, not zero."""
    broker = LogBroker((3, message(3, b"v", magic=0)), newest=0)

    async def scenario(consumer: SimpleConsumer) -> None:
        assert await consumer.read_timestamp(T0, 3) is None

    run(broker, scenario)


def test_large_message_is_fetched_whole() -> None:
    """The first fetch is small; what does not fit is asked for in its own size."""
    broker = LogBroker((3, message(3, bytes(500_000), timestamp=9)), newest=2)

    async def scenario(consumer: SimpleConsumer) -> None:
        assert await consumer.read_timestamp(T0, 3) == 9

    run(broker, scenario)
    assert len(broker.asked(FetchRequest)) == 2


def test_message_over_the_limit_is_an_error() -> None:
    """Memory is bounded."""
    broker = LogBroker((3, message(3, bytes(2 * LIMIT), timestamp=9)), newest=2)

    async def scenario(consumer: SimpleConsumer) -> None:
        with pytest.raises(RecordTooLarge):
            await consumer.read_timestamp(T0, 3)

    run(broker, scenario)


def test_moved_leader_is_asked_again_and_other_errors_are_raised() -> None:
    """What may pass is retried; what does not is told."""
    broker = LogBroker((3, message(3, b"v", timestamp=9)), newest=2)

    async def scenario(consumer: SimpleConsumer) -> None:
        broker.errors = [NOT_LEADER, NOT_LEADER]
        assert await consumer.read_timestamp(T0, 3) == 9
        broker.errors = [OUT_OF_RANGE]
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            await consumer.read_timestamp(T0, 3)

    run(broker, scenario)


def test_missing_leader_times_out() -> None:
    """Bounded as a whole."""

    async def scenario(consumer: SimpleConsumer) -> None:
        with pytest.raises(RequestTimedOut, match="t/0"):
            await consumer.read_timestamp(T0, 3)
        assert asyncio.get_running_loop().time() == pytest.approx(5)

    run(LogBroker(), scenario, ScriptedLeaders(make_view({1}, {})))


def test_corrupt_record_is_told() -> None:
    """It has no time that could be trusted."""
    damaged = bytearray(message(3, b"value", timestamp=9))
    damaged[-1] ^= 1

    async def scenario(consumer: SimpleConsumer) -> None:
        with pytest.raises(CorruptMessageError):
            await consumer.read_timestamp(T0, 3)

    run(LogBroker((3, bytes(damaged)), newest=2), scenario)


class OffsetsBroker(LogBroker):
    """Serves units, and the start offsets of segments."""

    def __init__(self, *units: tuple[int, bytes], listed: range = range(3)) -> None:
        super().__init__(*units)
        self.handlers[ListOffsetsRequest] = self.list
        self.ranges[ApiKey.LIST_OFFSETS] = (listed.start, listed.stop - 1)
        self.versions: list[int] = []

    def list(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        self.versions.append(version)
        (asked,) = request.topics[0].partitions
        error = self.errors.pop(0) if self.errors else 0
        offsets = () if error else (90, 50, 10)[: asked.max_num_offsets]
        listed = ListedPartition(partition=0, error_code=error, offsets=offsets)
        return ListOffsetsResponse(topics=(ListedTopic(topic="t", partitions=(listed,)),))


def test_offsets_before_a_time_are_a_list() -> None:
    """As the documents say: in descending order, as many as asked for, of the one version that has several."""
    broker = OffsetsBroker()

    async def scenario(consumer: SimpleConsumer) -> None:
        broker.errors = [NOT_LEADER]
        assert [90, 50] == await consumer.offsets_before(T0, LATEST, 2)
        broker.errors = [OUT_OF_RANGE]
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            await consumer.offsets_before(T0, LATEST)

    run(broker, scenario)
    assert {0} == set(broker.versions)


def test_a_broker_without_lists_of_offsets_is_told() -> None:
    """Kafka 4 has dropped version 0: a single offset would be another answer."""

    async def scenario(consumer: SimpleConsumer) -> None:
        with pytest.raises(UnsupportedVersion, match="LIST_OFFSETS"):
            await consumer.offsets_before(T0, LATEST)

    run(OffsetsBroker(listed=range(1, 3)), scenario)


def test_a_fetch_returns_records_and_where_to_go_on() -> None:
    """At the end of the log it returns none."""
    records = [RecordSpec(delta=delta, value=b"v") for delta in range(3)]
    broker = LogBroker((12, batch(10, records)))

    async def scenario(consumer: SimpleConsumer) -> None:
        found = await consumer.fetch(T0, 11, min_bytes=5, max_wait_s=0.25)
        assert [11, 12] == list(found.batch.offsets)
        assert (13, 100) == (found.batch.next_offset, found.high_watermark)
        end = await consumer.fetch(T0, 13)
        assert (0, 13) == (len(end.batch), end.batch.next_offset)

    run(broker, scenario)
    first, _ = broker.asked(FetchRequest)[0]
    assert (5, 250) == (first.min_bytes, first.max_wait_ms)


def test_requests_do_not_depend_on_each_other() -> None:
    """No fetch session: each request names all of its partitions, and brokers keep nothing for us."""
    broker = LogBroker((3, message(3, b"v", timestamp=9)))

    async def scenario(consumer: SimpleConsumer) -> None:
        for _ in range(2):
            assert len((await consumer.fetch(T0, 3)).batch) == 1

    run(broker, scenario)
    assert [(one.session_id, one.session_epoch, len(one.topics)) for one, _ in broker.asked(FetchRequest)] == [
        (0, -1, 1)
    ] * 2


def test_an_error_of_a_session_that_there_is_not_is_told() -> None:
    """No broker answers so; one that does is not asked for ever."""
    broker = LogBroker()
    broker.handlers[FetchRequest] = lambda *_: FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND, topics=())

    async def scenario(consumer: SimpleConsumer) -> None:
        with pytest.raises((BrokerError, RequestTimedOut), match="FETCH_SESSION_ID_NOT_FOUND"):
            await consumer.fetch(T0, 3)

    run(broker, scenario)


def test_the_error_of_one_partition_does_not_concern_the_others() -> None:
    """Each partition is in one of the two tables."""
    missing = TopicPartition.modern("t", 1)
    broker = LogBroker((3, message(3, b"v", timestamp=9)), newest=2)

    async def scenario(consumer: SimpleConsumer) -> None:
        found = await consumer.multifetch({T0: 3, missing: 0})
        assert {T0} == set(found.fetched)
        assert {missing} == set(found.errors)
        assert isinstance(found.errors[missing], RequestTimedOut)

    run(broker, scenario)
