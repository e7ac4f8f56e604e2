# SPDX-License-Identifier: Apache-2.0
"""What offsets logs hold."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping

import pytest

from consumerd.client.log_range import LogRangeReader, plan_request
from consumerd.cluster.view import ClusterView
from consumerd.errors import BrokerError, ConnectionLost, RemoteProtocolError, RequestTimedOut
from consumerd.model import LogRange, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.fetch import READ_COMMITTED
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.support import virtual_time
from tests.support.cluster import ScriptedLeaders, make_broker, make_view
from tests.support.scripted_broker import FakeNetwork, Reaction, ScriptedBroker

A0, A1, B0 = TopicPartition.modern("a", 0), TopicPartition.modern("a", 1), TopicPartition.modern("b", 0)
NOT_LEADER, UNKNOWN_TOPIC, NOT_AUTHORIZED, NOT_AVAILABLE = 6, 3, 29, 78

Log = Mapping[int, int | None]
"""What a log answers: time to offset, None for none."""


class LogBroker(ScriptedBroker):
    """Answers ListOffsets from logs; partitions that it does not lead get an error code."""

    def __init__(self, newest: int = 2) -> None:
        super().__init__(
            {ListOffsetsRequest: self.answer}, ranges={ApiKey.LIST_OFFSETS: (0, newest), ApiKey.FETCH: (0, 3)}
        )
        self.logs: dict[TopicPartition, Log] = {}
        self.errors: dict[TopicPartition, int] = {}
        self.left_out: set[TopicPartition] = set()
        self.silent = False

    def answer(self, request: ListOffsetsRequest, version: int) -> object:
        if self.silent:
            return Reaction.SILENT
        return ListOffsetsResponse(
            topics=tuple(
                ListedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        self._look_up(TopicPartition.modern(topic.topic, one.partition), one.timestamp, version)
                        for one in topic.partitions
                        if TopicPartition.modern(topic.topic, one.partition) not in self.left_out
                    ),
                )
                for topic in request.topics
            )
        )

    def _look_up(self, partition: TopicPartition, timestamp: int, version: int) -> ListedPartition:
        number = partition.partition.number
        if partition not in self.logs or partition in self.errors:
            return ListedPartition(partition=number, error_code=self.errors.get(partition, NOT_LEADER))
        offset = self.logs[partition].get(timestamp)
        if version == 0:
            return ListedPartition(partition=number, offsets=() if offset is None else (offset,))
        return ListedPartition(partition=number, offset=-1 if offset is None else offset, timestamp=timestamp)


class Scene:
    def __init__(self, *views: ClusterView, newest: int = 2) -> None:
        self.one, self.two = LogBroker(newest), LogBroker(newest)
        self.network = FakeNetwork()
        self.network.brokers = {make_broker(1).address: self.one, make_broker(2).address: self.two}
        self.leaders = ScriptedLeaders(*views)

    def run(
        self,
        scenario: Callable[[LogRangeReader], Awaitable[None]],
        *,
        read_committed: bool = False,
        timeout_s: float = 30,
    ) -> None:
        async def play() -> None:
            now = asyncio.get_running_loop().time
            dialer = Dialer(self.network, client_id="t", now=now)
            async with ConnectionPool(dialer, now=now, random=lambda: 0.0) as pool:
                await scenario(
                    LogRangeReader(
                        pool, self.leaders, random=lambda: 0.0, read_committed=read_committed, timeout_s=timeout_s
                    )
                )

        virtual_time.run(play())


def log(earliest: int, latest: int) -> Log:
    return {EARLIEST_TIMESTAMP: earliest, LATEST_TIMESTAMP: latest}


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_ranges_are_read_from_each_leader_in_two_requests(newest: int) -> None:
    """All of a leader's partitions in one request for either end, in every version."""
    scene = Scene(make_view({1, 2}, {"a": [1, 2], "b": [1]}), newest=newest)
    scene.one.logs = {A0: log(5, 10), B0: log(0, 0)}
    scene.two.logs = {A1: log(7, 7)}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([A0, A1, B0]) == {A0: LogRange(5, 10), A1: LogRange(7, 7), B0: LogRange(0, 0)}

    scene.run(scenario)
    assert [version for _, version in scene.one.asked(ListOffsetsRequest)] == [newest, newest]
    assert len(scene.two.asked(ListOffsetsRequest)) == 2
    assert scene.leaders.reasons == []


def test_partitions_that_start_by_themselves_share_requests() -> None:
    """Ten thousand of them begin with a call each: their leaders must not be sent twenty thousand requests."""
    count = 300
    partitions = [TopicPartition.modern("a", number) for number in range(count)]
    scene = Scene(make_view({1, 2}, {"a": [1 + number % 2 for number in range(count)]}))
    for number, partition in enumerate(partitions):
        (scene.two if number % 2 else scene.one).logs[partition] = log(number, 2 * number)
    scene.one.errors = {partitions[0]: NOT_AUTHORIZED}

    async def scenario(reader: LogRangeReader) -> None:
        async def start(number: int) -> Mapping[TopicPartition, LogRange]:
            await asyncio.sleep(
                number // 100 * 0.0001
            )  # in three bursts, of which two come while the first is answered
            return await reader.find([partitions[number]])

        found = await asyncio.gather(*map(start, range(count)))
        assert found[0] == {}
        assert found[1:] == [{one: LogRange(n, 2 * n)} for n, one in enumerate(partitions)][1:]

    scene.run(scenario)
    for broker in (scene.one, scene.two):
        requests = [request for request, _ in broker.asked(ListOffsetsRequest)]
        assert 2 <= len(requests) <= 6
        assert sum(len(topic.partitions) for request in requests for topic in request.topics) == count


def test_a_leader_that_does_not_answer_costs_all_who_ask_it_no_more_than_one() -> None:
    """They wait for the same answer, not one after the other; each hears of it in an error that is not all the others' too."""
    scene = Scene(make_view({1}, {"a": [1] * 50}))
    scene.one.silent = True

    async def scenario(reader: LogRangeReader) -> None:
        asking = [reader.read([TopicPartition.modern("a", number)]) for number in range(50)]
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {RequestTimedOut, ConnectionLost}
        assert asyncio.get_running_loop().time() == pytest.approx(30, abs=1)
        assert all(len(traceback.extract_tb(outcome.__traceback__)) < 20 for outcome in outcomes)

    scene.run(scenario)
    assert len(scene.one.asked(ListOffsetsRequest)) < 20


def test_nothing_asked_is_nothing_answered() -> None:
    """A member without partitions asks nobody."""
    scene = Scene(make_view({1}, {}))

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([]) == {}

    scene.run(scenario)


def test_moved_leader_is_asked_after_a_refresh() -> None:
    """Only for the partitions that moved."""
    scene = Scene(make_view({1, 2}, {"a": [1, 1]}), make_view({1, 2}, {"a": [1, 2]}))
    scene.one.logs, scene.two.logs = {A0: log(0, 1)}, {A1: log(0, 2)}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([A0, A1]) == {A0: LogRange(0, 1), A1: LogRange(0, 2)}

    scene.run(scenario)
    assert len(scene.leaders.reasons) == 1
    assert "NOT_LEADER_OR_FOLLOWER" in scene.leaders.reasons[0]
    assert [len(request.topics[0].partitions) for request, _ in scene.two.asked(ListOffsetsRequest)] == [1, 1]


def test_unknown_leader_is_waited_for() -> None:
    """Elections take a moment."""
    scene = Scene(make_view({1}, {"a": [None]}), make_view({1}, {"a": [None]}), make_view({1}, {"a": [1]}))
    scene.one.logs = {A0: log(0, 1)}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([A0]) == {A0: LogRange(0, 1)}

    scene.run(scenario)


def test_refused_partition_fails_at_once() -> None:
    """Asking again does not help who is not allowed; the others can be had all the same."""
    scene = Scene(make_view({1}, {"a": [1, 1]}))
    scene.one.logs = {A0: log(0, 1), A1: log(0, 2)}
    scene.one.errors = {A1: NOT_AUTHORIZED}

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED") as error:
            await reader.read([A0, A1])
        assert "a/1" in error.value.context
        assert await reader.find([A0, A1]) == {A0: LogRange(0, 1)}

    scene.run(scenario)
    assert scene.leaders.reasons == []


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN_TOPIC, NOT_AVAILABLE])
def test_retrying_is_bounded(code: int) -> None:
    """The last answer is what is reported."""
    scene = Scene(make_view({1}, {"a": [1, 1]}))
    scene.one.logs = {A0: log(0, 1), A1: log(0, 2)}
    scene.one.errors = {A1: code}

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(BrokerError) as error:
            await reader.read([A0, A1])
        assert error.value.code == code
        assert asyncio.get_running_loop().time() == pytest.approx(5)

    scene.run(scenario, timeout_s=5)
    assert len(scene.one.asked(ListOffsetsRequest)) < 20


@pytest.mark.parametrize("code", [None, NOT_LEADER])
def test_silent_broker_costs_its_own_partitions_only(code: int | None) -> None:
    """Lag of the others can be told while one broker hangs."""
    scene = Scene(make_view({1, 2}, {"a": [1, 2]}))
    scene.one.logs = {A0: log(0, 1)}
    scene.two.silent = code is None

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.find([A0, A1]) == {A0: LogRange(0, 1)}
        with pytest.raises((ConnectionLost, BrokerError)):
            await reader.read([A0, A1])

    scene.run(scenario, timeout_s=5)


def test_leader_that_nobody_knows_times_out() -> None:
    """And says for which partition."""
    scene = Scene(make_view({1}, {}))

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(RequestTimedOut, match="a/0"):
            await reader.read([A0])

    scene.run(scenario, timeout_s=5)


def test_offset_for_a_time_is_the_first_record_from_then_on() -> None:
    """None where no record is that new."""
    scene = Scene(make_view({1}, {"a": [1, 1]}))
    scene.one.logs = {A0: {1000: 4}, A1: {1000: None}}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.offset_for_time([A0, A1], 1000) == {A0: 4, A1: None}

    scene.run(scenario)


def test_old_broker_that_knows_no_segment_so_old_gives_the_first_offset() -> None:
    """Version 0 lists segments last modified before the time; with none, all records may be from after it."""
    scene = Scene(make_view({1}, {"a": [1, 1]}), newest=0)
    scene.one.logs = {A0: {1000: 4, EARLIEST_TIMESTAMP: 0}, A1: {1000: None, EARLIEST_TIMESTAMP: 3}}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.offset_for_time([A0, A1], 1000) == {A0: 4, A1: 3}

    scene.run(scenario)


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_coarse_times_are_told_by_the_version_of_a_leader(newest: int) -> None:
    """An operator who resets to a time hears that version 0 finds a log segment, not a record."""
    scene = Scene(make_view({1}, {"a": [1]}), newest=newest)

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.is_coarse([A0, A1]) is (newest == 0)

    scene.run(scenario)


@pytest.mark.parametrize(
    ("newest", "first"), [(2, {A0: 4, A1: None}), (1, {A0: 4, A1: None}), (0, {})],
)  # fmt: skip
def test_first_offset_of_a_time_is_that_of_records_or_not_known(
    newest: int, first: dict[TopicPartition, int | None]
) -> None:
    """Version 0 knows when segments were modified: a record's own time may be later than that."""
    scene = Scene(make_view({1}, {"a": [1, 1]}), newest=newest)
    scene.one.logs = {A0: {1000: 4}, A1: {1000: None}}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.first_offset_of_time([A0, A1], 1000) == first

    scene.run(scenario)


@pytest.mark.parametrize(("newest", "isolation"), [(2, READ_COMMITTED), (1, 0), (0, 0)])
def test_last_stable_offset_is_asked_for_where_it_exists(newest: int, isolation: int) -> None:
    """Under read_committed the lag must not count what cannot be read yet."""
    scene = Scene(make_view({1}, {"a": [1]}), newest=newest)
    scene.one.logs = {A0: log(0, 1)}

    async def scenario(reader: LogRangeReader) -> None:
        await reader.read([A0])

    scene.run(scenario, read_committed=True)
    assert {request.isolation_level for request, _ in scene.one.asked(ListOffsetsRequest)} == {isolation}


def test_retention_between_the_two_requests_gives_no_negative_range() -> None:
    """The start may move past an end that was read a moment before."""
    scene = Scene(make_view({1}, {"a": [1]}))
    scene.one.logs = {A0: log(9, 5)}

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([A0]) == {A0: LogRange(9, 9)}

    scene.run(scenario)


def test_answer_that_leaves_a_partition_out_is_asked_for_again() -> None:
    """It is neither an offset nor an error."""
    scene = Scene(make_view({1}, {"a": [1, 1]}))
    scene.one.logs = {A0: log(0, 1), A1: log(0, 2)}
    scene.one.left_out = {A1}

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(ConnectionLost, match="a/1 is missing from the answer"):
            await reader.read([A0, A1])
        scene.one.left_out = set()
        assert await reader.read([A1]) == {A1: LogRange(0, 2)}

    scene.run(scenario, timeout_s=3)


def test_old_broker_without_an_answer_is_told() -> None:
    """Version 0 always has one for either end of the log."""
    scene = Scene(make_view({1}, {"a": [1]}), newest=0)
    scene.one.logs = {A0: {}}

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(RemoteProtocolError, match="expected an offset"):
            await reader.read([A0])

    scene.run(scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_request_is_grouped_by_topic(version: int) -> None:
    """And encodes in every version."""
    request = plan_request([B0, A1, A0], LATEST_TIMESTAMP, version, READ_COMMITTED)

    assert [(topic.topic, [one.partition for one in topic.partitions]) for topic in request.topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]
    request.encode(version)


@pytest.mark.parametrize("newest", [0, 1, 2])
@pytest.mark.parametrize("false", [-1, -2, -3, -(2**63)])
@pytest.mark.parametrize("end", ["earliest", "latest"])
def test_an_end_that_no_log_has_is_an_error_of_its_partition(newest: int, false: int, end: str) -> None:
    """Every log has both ends: a partition that is left out, or begins below 0, would end what waits for it."""
    scene = Scene(make_view({1}, {"a": [1, 1]}), newest=newest)
    scene.one.logs = {A0: log(false, 10) if end == "earliest" else log(5, false), A1: log(7, 9)}

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(RemoteProtocolError, match=r"a/0: expected an offset"):
            await reader.read([A0, A1])
        assert await reader.find([A0, A1]) == {A1: LogRange(7, 9)}
        if end == "latest":
            with pytest.raises(RemoteProtocolError, match=r"a/0: expected an offset"):
                await reader.high_watermarks([A0])

    scene.run(scenario)


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_a_negative_offset_of_a_time_is_an_error_of_its_partition(newest: int) -> None:
    """-1 says that no record is that new; numbers below it mean nothing."""
    scene = Scene(make_view({1}, {"a": [1]}), newest=newest)
    scene.one.logs = {A0: {1000: -3}}

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(RemoteProtocolError, match=r"a/0: expected an offset"):
            await reader.offset_for_time([A0], 1000)

    scene.run(scenario)
