# SPDX-License-Identifier: Apache-2.0
"""Differences of a real Kafka 0.7.2 from "Writing a Driver for Kafka", by point; and Kafka 0.6, faults, restarts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumerd.embedded.legacy.broker import LegacyBroker
from consumerd.errors import ConfigError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.compression import Codec
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set
from consumerd.wire.legacy.messages import (
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyMultiFetchRequest,
    LegacyMultiProduceRequest,
    LegacyOffsetsRequest,
    LegacyProduceRequest,
)
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.legacy_client import NOTHING, LegacyClient, legacy_client, legacy_settings

FIRST, SECOND = encode_message(b"first"), encode_message(b"second")
BAD = FIRST[:-1] + b"x"


def produce(messages: bytes, topic: str = "t", partition: int = 0) -> LegacyProduceRequest:
    """Return a request."""
    return LegacyProduceRequest(topic=topic, partition=partition, messages=messages)


def fetch(offset: int = 0, most: int = 1 << 20, topic: str = "t", partition: int = 0) -> LegacyFetchRequest:
    """Return a request."""
    return LegacyFetchRequest(topic=topic, partition=partition, offset=offset, max_size=most)


async def is_closed(broker: LegacyBroker, request: LegacyProduceRequest | LegacyOffsetsRequest) -> bool:
    """Return True if the broker closes the connection instead of answering this, and what follows."""
    async with legacy_client(broker.port) as client:
        client.send(request)
        client.send(NOTHING)
        client.raw.end()
        return await client.receive_end() == b""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[LegacyBroker]:
    """Return a broker of Kafka 0.7, whose random partition is always the last one."""
    async with LegacyBroker(legacy_settings(tmp_path), choose=lambda count: count - 1) as broker:
        yield broker


@pytest.fixture
async def client(broker: LegacyBroker) -> AsyncIterator[LegacyClient]:
    """Return a connection to it; two messages are in partition 0 of ``t``."""
    async with legacy_client(broker.port) as client:
        await client.produce(FIRST + SECOND)
        yield client


@pytest.mark.parametrize("most", [1, 4, 14])
async def test_point_1_a_max_size_below_the_first_message_gives_a_part_of_it(most: int, client: LegacyClient) -> None:
    """Error 0, never 4: the consumer has to see that no whole message came, and ask for more."""
    assert (0, FIRST[:most]) == await client.fetch(most=most)


@pytest.mark.parametrize("offset", [1, 3, len(FIRST) + 1])
async def test_point_2_an_offset_inside_a_message_gives_the_bytes_there(offset: int, client: LegacyClient) -> None:
    """Error 0; what looks like a length is none."""
    assert (0, (FIRST + SECOND)[offset:]) == await client.fetch(offset)


async def test_point_3_only_fetches_are_told_of_a_wrong_partition(broker: LegacyBroker, client: LegacyClient) -> None:
    """OFFSETS and PRODUCE close the connection."""
    for number in (3, 99, -2, -1):
        assert (LegacyErrorCode.WRONG_PARTITION, b"") == await client.fetch(partition=number)
        found = await client.ask(LegacyMultiFetchRequest(requests=(fetch(partition=number), fetch())))
        assert [3, 0] == [one.error_code for one in found.responses]
        assert await is_closed(broker, LegacyOffsetsRequest(topic="t", partition=number, time=-1, max_number=1))
        if number != -1:
            assert await is_closed(broker, produce(FIRST, partition=number))


@pytest.mark.parametrize(("topic", "partition"), [("unknown", 0), ("t", 1)])
async def test_point_4_what_was_never_written_is_empty_at_any_offset(
    topic: str, partition: int, client: LegacyClient
) -> None:
    """A consumer of a wiped broker is not told that its offset is gone."""
    for offset in (-1, 0, 5, 1 << 40):
        assert (0, b"") == await client.fetch(offset, topic=topic, partition=partition)
    for time, expected in ((-1, [0]), (-2, [0]), (-3, []), (1 << 50, [])):
        assert expected == await client.offsets(time, topic=topic, partition=partition)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "a\x1f", "a\x7f", "\x9f", "\ue000", "\uffff", "x" * 256])
async def test_point_4_an_illegal_topic_is_an_unknown_error(name: str, broker: LegacyBroker) -> None:
    """Of a FETCH; others close the connection, and nothing is created."""
    async with legacy_client(broker.port) as client:
        assert (LegacyErrorCode.UNKNOWN, b"") == await client.fetch(topic=name)
    assert await is_closed(broker, produce(FIRST, name))
    assert await is_closed(broker, LegacyOffsetsRequest(topic=name, partition=0, time=-1, max_number=1))
    assert frozenset() == broker.logs.topics()


async def test_point_5_the_end_is_empty_and_beyond_it_is_out_of_range(client: LegacyClient) -> None:
    """So is a negative offset."""
    end = len(FIRST + SECOND)
    assert (0, b"") == await client.fetch(end)
    assert [(1, b"")] * 3 == [await client.fetch(offset) for offset in (end + 1, -1, 1 << 62)]


async def test_point_5_a_deleted_offset_is_out_of_range(tmp_path: Path) -> None:
    """Retention deletes whole segments, and the log then begins later."""
    settings = legacy_settings(tmp_path, segment_bytes=14, retention_ms=1000)
    async with LegacyBroker(settings) as broker, legacy_client(broker.port) as client:
        await client.produce(FIRST)
        await client.produce(SECOND)
        os.utime(tmp_path / "t-0" / "00000000000000000000.kafka", (1, 1))
        await broker.clean()
        assert [(1, b""), (0, SECOND)] == [await client.fetch(offset) for offset in (0, len(FIRST))]
        assert [len(FIRST)] == await client.offsets(-2)


@pytest.mark.parametrize(
    "refused",
    [
        FIRST + BAD,
        FIRST + compress_message_set(BAD, Codec.GZIP),
        b"\0\0\0\x0b\x02" + FIRST[5:],
        FIRST[:5] + b"\3" + FIRST[6:],
    ],
    ids=["checksum", "inner checksum", "magic 2", "codec 3"],
)
async def test_point_6_a_bad_set_closes_the_connection(
    refused: bytes, broker: LegacyBroker, client: LegacyClient
) -> None:
    """Nothing of it is stored."""
    assert await is_closed(broker, produce(refused))
    assert (0, FIRST + SECOND) == await client.fetch()


async def test_point_6_a_multiproduce_stores_the_sets_before_a_bad_one(
    broker: LegacyBroker, client: LegacyClient
) -> None:
    """The producer cannot tell how many."""
    client.send(LegacyMultiProduceRequest(requests=(produce(SECOND), produce(BAD, "bad"), produce(SECOND, "never"))))
    assert b"" == await client.receive_end()
    async with legacy_client(broker.port) as other:
        assert (0, FIRST + SECOND + SECOND) == await other.fetch()
        assert (0, b"") == await other.fetch(topic="never")
    assert {"t", "bad"} == broker.logs.topics()


async def test_point_6_a_set_above_the_largest_message_is_dropped(broker: LegacyBroker, client: LegacyClient) -> None:
    """With a line in the broker's log, which the producer never sees; the connection stays open."""
    large = encode_message(bytes(1_000_001))
    with capture_logs() as lines:
        await client.produce(FIRST + large)
    assert ["message_set_dropped"] == [line["event"] for line in lines if line["log_level"] == "warning"]
    assert "1000001 bytes" in next(line["reason"] for line in lines if line["event"] == "message_set_dropped")
    assert (0, FIRST + SECOND) == await client.fetch()
    await client.produce(encode_message(bytes(1_000_000)), "large")
    assert [1_000_010] == (await client.offsets(topic="large"))[:1]
    assert broker.logs.has_topic("large")


async def test_point_6_a_multiproduce_goes_on_behind_a_dropped_set(client: LegacyClient) -> None:
    """Unlike behind a refused one."""
    sets = (produce(encode_message(bytes(1_000_001)), "u"), produce(SECOND, "u"))
    client.send(LegacyMultiProduceRequest(requests=sets))
    assert (0, SECOND) == await client.fetch(topic="u")


async def test_point_7_partition_minus_1_is_a_random_one(client: LegacyClient) -> None:
    """This broker was made to choose the last one."""
    await client.produce(SECOND, "random", -1)
    assert [b"", b"", SECOND] == [(await client.fetch(topic="random", partition=number))[1] for number in range(3)]


async def test_point_7_magic_0_is_stored_as_it_is(client: LegacyClient) -> None:
    """Mixed with magic 1; unknown bits of the attributes stay, too; topics may be UTF-8."""
    mixed = encode_message(b"old", magic=0) + FIRST[:5] + b"\xf0" + FIRST[6:]
    await client.produce(mixed, "té")
    assert (0, mixed) == await client.fetch(topic="té")


@pytest.mark.parametrize(
    "stored",
    [
        build_message_set([b"a", b"b"], codec=Codec.SNAPPY),
        build_message_set([b"a", b"b"], codec=Codec.GZIP),
        compress_message_set(FIRST + build_message_set([b"a"], codec=Codec.SNAPPY), Codec.GZIP),
    ],
    ids=["xerial", "gzip", "nested"],
)
async def test_point_8_compressed_sets_are_stored_as_they_are(stored: bytes, client: LegacyClient) -> None:
    """Checked, and given back byte for byte."""
    await client.produce(stored, "compressed")
    assert (0, stored) == await client.fetch(topic="compressed")


async def test_point_9_a_multifetch_has_a_part_for_each_request(client: LegacyClient) -> None:
    """Each with its size and error code, in the order of the requests, which may repeat."""
    requests = (fetch(), fetch(1000), fetch(topic="a/b"), fetch(topic="none"), fetch(most=7), fetch())
    found = await client.ask(LegacyMultiFetchRequest(requests=requests))
    everything = (0, FIRST + SECOND)
    assert [everything, (1, b""), (-1, b""), (0, b""), (0, FIRST[:7]), everything] == [
        (one.error_code, bytes(one.messages)) for one in found.responses
    ]


async def test_point_10_the_log_end_counts_as_written_now(tmp_path: Path) -> None:
    """It is among the offsets only for a time that is not before the broker's clock."""
    now_ms = 1_795_000_000_000
    async with (
        LegacyBroker(legacy_settings(tmp_path), now_ms=lambda: now_ms) as broker,
        legacy_client(broker.port) as client,
    ):
        await client.produce(FIRST)
        os.utime(tmp_path / "t-0" / "00000000000000000000.kafka", ns=((now_ms - 500) * 10**6,) * 2)
        assert [[], [0], [0], [len(FIRST), 0]] == [await client.offsets(now_ms - age) for age in (501, 500, 1, 0)]
        assert [] == await client.offsets(-1, 0)
        assert await is_closed(broker, LegacyOffsetsRequest(topic="t", partition=0, time=-1, max_number=-1))


async def test_point_10_a_negative_max_size_gets_a_malformed_response(client: LegacyClient) -> None:
    """Size 1 and one byte, where the log has messages; else an empty answer."""
    client.send(fetch(most=-1))
    assert bytes.fromhex("0000000100") == await client.receive_frame()
    assert (0, b"") == await client.fetch(topic="none", most=-1)


async def test_point_11_messages_are_invisible_until_the_log_is_flushed(tmp_path: Path) -> None:
    """To FETCH, which calls offsets beyond out of range, and to OFFSETS."""
    settings = legacy_settings(tmp_path, flush_messages=3)
    async with LegacyBroker(settings) as broker, legacy_client(broker.port) as client:
        await client.produce(FIRST + SECOND)
        unseen = await client.fetch(), await client.fetch(len(FIRST)), await client.offsets()
        await client.produce(FIRST)
        seen = await client.fetch(), await client.offsets()
        await client.produce(SECOND)
        await broker.flush()
        assert (0, SECOND) == await client.fetch(len(FIRST + SECOND + FIRST))
    end = len(FIRST + SECOND + FIRST)
    assert ((0, b""), (1, b""), [0]) == unseen
    assert ((0, FIRST + SECOND + FIRST), [end, 0]) == seen


async def test_point_15_a_compressed_set_has_one_offset(client: LegacyClient) -> None:
    """A consumer that stops inside of it reads all of it again; the next offset is behind all of it."""
    stored = build_message_set([b"a", b"b", b"c"], codec=Codec.GZIP)
    await client.produce(stored, "c")
    await client.produce(FIRST, "c")
    assert (0, stored + FIRST) == await client.fetch(topic="c")
    assert (0, FIRST) == await client.fetch(len(stored), topic="c")
    assert [len(stored + FIRST), 0] == await client.offsets(topic="c")


async def test_point_16_it_is_kafka_and_not_jafka(client: LegacyClient) -> None:
    """Jafka refuses magic 0 and snappy, and has no offsets of an unknown topic."""
    stored = encode_message(b"old", magic=0) + build_message_set([b"a"], codec=Codec.SNAPPY)
    await client.produce(stored, "j")
    assert (0, stored) == await client.fetch(topic="j")
    assert [0] == await client.offsets(topic="unknown")


async def test_requests_of_one_connection_are_answered_in_order(client: LegacyClient) -> None:
    """They have no ids, so their order is all that a client has."""
    for _ in range(50):
        client.send(produce(FIRST, "order"))
        client.send(LegacyOffsetsRequest(topic="order", partition=0, time=-1, max_number=1))
    ends = [int.from_bytes((await client.receive_frame())[-8:], "big") for _ in range(50)]
    assert [len(FIRST) * number for number in range(1, 51)] == ends


# -- Kafka 0.6


async def test_kafka_0_6_takes_and_stores_magic_0_only(tmp_path: Path) -> None:
    """A message of magic 1 is refused: its attributes would be a part of the checksum."""
    async with LegacyBroker(legacy_settings(tmp_path, magic=0)) as broker, legacy_client(broker.port) as client:
        stored = build_message_set([b"a", b"b"], magic=0)
        await client.produce(stored)
        assert await is_closed(broker, produce(stored + FIRST))
        assert (0, stored) == await client.fetch()


# -- restarts


async def test_a_broker_goes_on_where_it_ended(tmp_path: Path) -> None:
    """With its topics; and from 0 again if its disk was wiped."""
    settings = legacy_settings(tmp_path / "logs", topic_partitions={"one": 1})
    async with LegacyBroker(settings) as broker, legacy_client(broker.port) as client:
        await client.produce(FIRST)
        await client.produce(FIRST, "one")
        assert await is_closed(broker, produce(FIRST, "one", 1))
    async with LegacyBroker(settings) as broker, legacy_client(broker.port) as client:
        assert {"t", "one"} == broker.logs.topics()
        await client.produce(SECOND)
        assert (0, FIRST + SECOND) == await client.fetch()
    (tmp_path / "logs").rename(tmp_path / "old")
    async with LegacyBroker(settings) as broker, legacy_client(broker.port) as client:
        await client.produce(SECOND)
        assert (0, SECOND) == await client.fetch()


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Before anything is opened."""
    for wrong in ({"port": 65536}, {"num_partitions": 0}, {"topic_partitions": {"t": 0}}):
        with pytest.raises(ConfigError, match="expected"):
            legacy_settings(tmp_path, **wrong)


# -- faults


async def test_a_delayed_answer_holds_back_those_behind_it(broker: LegacyBroker, client: LegacyClient) -> None:
    """A fault counts MULTIFETCH as FETCH."""
    fault = broker.faults.delay(ApiKey.FETCH, 0.2)
    began = asyncio.get_running_loop().time()
    await client.ask(NOTHING)
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert 1 == fault.hits


@pytest.mark.parametrize("byte", [0, 3, 10])
async def test_a_connection_is_closed_within_an_answer(byte: int, broker: LegacyBroker, client: LegacyClient) -> None:
    """At the byte that is named, also among messages, which come from a file."""
    broker.faults.close_at(ApiKey.FETCH, byte)
    client.send(fetch())
    assert (b"\0\0\0\x21\0\0" + FIRST + SECOND)[:byte] == await client.receive_end()


async def test_an_answer_is_dropped(broker: LegacyBroker, client: LegacyClient) -> None:
    """The next one takes its place, which the client cannot know: there are no ids."""
    broker.faults.drop(ApiKey.LIST_OFFSETS)
    client.send(LegacyOffsetsRequest(topic="t", partition=0, time=-1, max_number=1))
    assert (0, FIRST + SECOND) == await client.fetch()


async def test_requests_are_refused_with_an_error_code(broker: LegacyBroker, client: LegacyClient) -> None:
    """FETCH, each part of a MULTIFETCH, and OFFSETS; PRODUCE has no answer, so its connection is closed."""
    broker.faults.error(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE, times=2)
    broker.faults.error(ApiKey.LIST_OFFSETS, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert (1, b"") == await client.fetch()
    found = await client.ask(LegacyMultiFetchRequest(requests=(fetch(), fetch())))
    assert (0, [1, 1]) == (found.error_code, [one.error_code for one in found.responses])
    listed = await client.ask(LegacyOffsetsRequest(topic="t", partition=0, time=-1, max_number=1))
    assert (-1, ()) == (listed.error_code, listed.offsets)
    broker.faults.error(ApiKey.PRODUCE, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert await is_closed(broker, produce(FIRST))
    assert (0, FIRST + SECOND) == await client.fetch()


async def test_a_full_disk_closes_the_connections_of_producers(broker: LegacyBroker, client: LegacyClient) -> None:
    """What is stored can be read; where there is room again, the log goes on."""
    full = broker.faults.fill_disk()
    assert await is_closed(broker, produce(FIRST))
    assert (0, FIRST + SECOND) == await client.fetch()
    full.remove()
    await client.produce(FIRST)
    assert (0, FIRST) == await client.fetch(len(FIRST + SECOND))


async def test_a_log_that_is_offline_is_an_unknown_error(broker: LegacyBroker, client: LegacyClient) -> None:
    """Its disk has failed; the other logs go on."""
    (log,) = broker.logs.logs()
    log.close()
    assert (-1, b"") == await client.fetch()
    assert await is_closed(broker, LegacyOffsetsRequest(topic="t", partition=0, time=-1, max_number=1))
    assert await is_closed(broker, produce(FIRST))
    await client.produce(FIRST, "other")
