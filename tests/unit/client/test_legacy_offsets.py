# SPDX-License-Identifier: Apache-2.0
"""Offsets of logs in Kafka 0.7, and a broker that closes the connection where others answer an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from consumerd.client.log_range import LogRangeReader
from consumerd.errors import BrokerError, ConnectionLost, RemoteProtocolError, RequestTimedOut
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest, LegacyOffsetsRequest
from tests.support import virtual_time
from tests.support.legacy_frames import get_exchange
from tests.support.legacy_peer import LegacyCluster, LegacyLog, LegacyPeer, encode_messages, legacy_partition

SEGMENTS = legacy_partition("vKAFasegs", 0)
UNWRITTEN = legacy_partition("vKAFasegs", 1)
UNKNOWN_TOPIC = legacy_partition("vKAFanosuch", 0)
UNKNOWN_PARTITION = legacy_partition("vKAFasegs", 99)
MID_MS, PAST_MS, NOW_MS = 0x1A1FD99397D, 0x1A1FD996122, 0x1A1FD9A3675
"""Times of the recorded requests: after the first segment, after all of them, and after the broker's clock."""


def run(
    cluster: LegacyCluster,
    scenario: Callable[[LogRangeReader], Awaitable[None]],
    *partitions: TopicPartition,
    timeout_s: float = 30.0,
) -> None:
    async def play() -> None:
        cluster.announce(*partitions)
        async with cluster.connect() as pool:
            await scenario(cluster.read_ranges(pool, timeout_s=timeout_s))

    virtual_time.run(play())


def test_ranges_come_from_the_brokers_in_the_keys_of_partitions() -> None:
    """``0-0`` and ``1-0`` are two partitions, though both have number 0."""
    here, there = legacy_partition("t", 0, broker=0), legacy_partition("t", 0, broker=1)
    cluster = LegacyCluster(LegacyPeer(), LegacyPeer())
    cluster.peers[0].logs["t", 0] = LegacyLog(b"x" * 30)
    cluster.peers[1].logs["t", 0] = LegacyLog(b"x" * 12, start=100)

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([here, there]) == {here: LogRange(0, 30), there: LogRange(100, 112)}
        assert await reader.high_watermarks([here]) == {here: 30}

    run(cluster, scenario, here, there)


def test_recorded_offsets_are_understood() -> None:
    """The same frames as were exchanged with Kafka 0.7.2."""
    cluster = LegacyCluster(LegacyPeer.from_recordings())

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([SEGMENTS]) == {SEGMENTS: LogRange(0, 0x1C20)}

    run(cluster, scenario, SEGMENTS)
    sent = {frame for stream in cluster.network.streams for frame in stream.written}
    assert {get_exchange(f"k072_offsets_{end}_1").request for end in ("latest", "earliest")} < sent


def test_point_3_a_partition_that_the_broker_does_not_have_is_error_3_and_costs_no_connection() -> None:
    """The others of the same question must not lose their answers with the connection."""
    cluster = LegacyCluster(LegacyPeer.from_recordings())

    async def scenario(reader: LogRangeReader) -> None:
        found = await reader.find_or_explain([SEGMENTS, UNKNOWN_PARTITION], timeout_s=3)
        assert found.ranges == {SEGMENTS: LogRange(0, 0x1C20)}
        error = found.failures[UNKNOWN_PARTITION]
        assert isinstance(error, BrokerError)
        assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"
        assert "before OFFSETS, for vKAFasegs/0-99" in str(error)

    run(cluster, scenario, SEGMENTS, UNKNOWN_PARTITION)
    (peer,) = cluster.peers
    assert {one.partition for one in peer.asked(LegacyOffsetsRequest)} == {0}
    assert [stream.closed for stream in cluster.network.streams] == [True]  # by the pool at the end
    assert len(peer.asked(LegacyMultiFetchRequest)) < 20


def test_point_3_a_closed_connection_is_told_and_not_tried_for_ever() -> None:
    """A peer may refuse OFFSETS of what its FETCH knows; the error says which partition, and why that may be."""
    cluster = LegacyCluster(LegacyPeer.from_recordings())
    cluster.peers[0].lies = True

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(ConnectionLost, match=r"OFFSETS at .*vKAFasegs/0-0: .*does not have the partition"):
            await reader.read([SEGMENTS])

    run(cluster, scenario, SEGMENTS, timeout_s=10)
    assert len(cluster.network.streams) < 20


def test_point_4_an_unknown_topic_and_an_unwritten_partition_are_empty_logs() -> None:
    """Brokers answer 0 for both ends; a partition comes into being with its first message."""
    cluster = LegacyCluster(LegacyPeer.from_recordings())

    async def scenario(reader: LogRangeReader) -> None:
        found = await reader.read([UNKNOWN_TOPIC, UNWRITTEN])
        assert found == {UNKNOWN_TOPIC: LogRange(0, 0), UNWRITTEN: LogRange(0, 0)}

    run(cluster, scenario, UNKNOWN_TOPIC, UNWRITTEN)


def test_point_4_an_illegal_topic_name_is_error_minus_1() -> None:
    """Nothing can be asked for it; the error is not repeated until the timeout."""
    partition = legacy_partition("a/b", 0)
    cluster = LegacyCluster(LegacyPeer.from_recordings())

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
            await reader.read([partition])

    run(cluster, scenario, partition)
    assert len(cluster.peers[0].requests) == 2  # one for each end


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [
        pytest.param(1000, 0, id="before all segments: the start of the log"),
        pytest.param(MID_MS, 0, id="after the first segment was modified"),
        pytest.param(PAST_MS, 0x12C0, id="after all segments were modified: the last one, not the end"),
        pytest.param(NOW_MS, 0x1C20, id="not before the broker's clock: the end"),
    ],
)
def test_point_10_offsets_by_time_are_starts_of_segments(time_ms: int, expected: int) -> None:
    """No message of this time or later is before the offset; earlier ones may be after it."""
    cluster = LegacyCluster(LegacyPeer.from_recordings())

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.offset_for_time([SEGMENTS], time_ms) == {SEGMENTS: expected}
        assert await reader.first_offset_of_time([SEGMENTS], time_ms) == {}
        assert await reader.is_coarse([SEGMENTS])

    run(cluster, scenario, SEGMENTS)


def test_point_10_the_start_of_a_log_is_what_retention_has_left() -> None:
    """The recorded log began at 0x210c after retention."""
    partition = legacy_partition("ret", 0)
    cluster = LegacyCluster(LegacyPeer())
    cluster.peers[0].logs["ret", 0] = LegacyLog(encode_messages([b"a"]), start=0x210C)

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read([partition]) == {partition: LogRange(0x210C, 0x210C + 11)}
        assert await reader.offset_for_time([partition], -3) == {partition: 0x210C}

    run(cluster, scenario, partition)


def test_point_16_jafka_has_no_offsets_of_a_topic_without_a_log() -> None:
    """Kafka 0.7.2 answers 0 there; both mean an empty log."""
    cluster = LegacyCluster(LegacyPeer())
    cluster.peers[0].is_jafka = True
    recorded = get_exchange("jafka_offsets_unknown_topic_latest")

    async def scenario(reader: LogRangeReader) -> None:
        assert cluster.peers[0].react(recorded.request[4:])[0] == recorded.response
        assert await reader.read([UNKNOWN_TOPIC]) == {UNKNOWN_TOPIC: LogRange(0, 0)}

    run(cluster, scenario, UNKNOWN_TOPIC)


def test_many_partitions_share_one_probe_and_are_pipelined() -> None:
    """Thousands start together; each costs one request for either end."""
    partitions = [legacy_partition("t", number) for number in range(500)]
    cluster = LegacyCluster(LegacyPeer(partitions=500))
    for number, one in enumerate(partitions):
        cluster.peers[0].logs[one.topic, one.partition.number] = LegacyLog(b"x" * number)

    async def scenario(reader: LogRangeReader) -> None:
        assert await reader.read(partitions) == {one: LogRange(0, number) for number, one in enumerate(partitions)}

    run(cluster, scenario, *partitions)
    (peer,) = cluster.peers
    assert len(peer.asked(LegacyMultiFetchRequest)) == 2
    assert len(peer.asked(LegacyOffsetsRequest)) == 1000


def test_a_silent_broker_is_a_timeout() -> None:
    """The text must not tell of a partition that the broker does not have."""
    cluster = LegacyCluster(LegacyPeer())
    cluster.peers[0].silent = True
    partition = legacy_partition("t", 0)

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(RequestTimedOut) as caught:
            await reader.read([partition])
        assert "OFFSETS" not in str(caught.value)

    run(cluster, scenario, partition, timeout_s=8)


def test_an_offset_below_zero_is_no_offset() -> None:
    """A position must never become negative, whatever a peer answers."""
    partition = legacy_partition("t", 0)
    cluster = LegacyCluster(LegacyPeer())
    cluster.peers[0].logs["t", 0] = LegacyLog(start=-7)

    async def scenario(reader: LogRangeReader) -> None:
        with pytest.raises(RemoteProtocolError, match="expected an offset, got -7"):
            await reader.read([partition])

    run(cluster, scenario, partition)
