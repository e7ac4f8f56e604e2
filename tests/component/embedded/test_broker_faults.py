# SPDX-License-Identifier: Apache-2.0
"""What a broker can be made to do wrong, as a client sees it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumerd.embedded.faults import FillableFiles
from consumerd.embedded.log.errors import LogFailed
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.metadata import MetadataRequest
from tests.support.broker_script import records
from tests.support.raw_client import RawClient, fetch, produce, raw_client
from tests.support.served_logs import ServedLogs, served_logs

METADATA = MetadataRequest(topics=("t",))
PARTITION = TopicPartition.modern("t", 0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ServedLogs]:
    """Return a broker with three records in ``t``."""
    async with served_logs(tmp_path) as broker:
        broker.topics.add("t")
        async with raw_client(broker.port) as client:
            await client.ask(produce("t", records(2)), 3)
        yield broker


@pytest.fixture
async def client(broker: ServedLogs) -> AsyncIterator[RawClient]:
    """Return a connection to it."""
    async with raw_client(broker.port) as client:
        yield client


async def test_delay_holds_back_the_answers_behind_it(broker: ServedLogs, client: RawClient) -> None:
    """An answer that is late makes the connection late, not the broker."""
    fault = broker.faults.delay(ApiKey.METADATA, 0.3)
    began = asyncio.get_running_loop().time()
    client.send_request(METADATA, 1, correlation_id=1)
    client.send_request(METADATA, 1, correlation_id=2)
    assert [1, 2] == [(await client.receive())[0] for _ in range(2)]
    assert asyncio.get_running_loop().time() - began >= 0.3
    assert 1 == fault.hits


@pytest.mark.parametrize("byte", [0, 3, 4, 21, 80])
async def test_connection_is_closed_at_the_byte_named(byte: int, broker: ServedLogs, client: RawClient) -> None:
    """In the size, between fields and within records: what a client does with half an answer."""
    whole = await _frame(client, broker)
    broker.faults.close_at(ApiKey.FETCH, byte)
    client.send_request(fetch("t"), 5)
    assert whole[:byte] == await client.receive_rest()


async def test_correlation_id_is_another_request_s_once(broker: ServedLogs, client: RawClient) -> None:
    """Who takes it for its own reads the wrong answer."""
    broker.faults.wrong_correlation_id(ApiKey.METADATA)
    client.send_request(METADATA, 1, correlation_id=5)
    assert 5 != (await client.receive())[0]
    await client.ask(METADATA, 1, correlation_id=6)


async def test_error_is_answered_as_often_as_asked_for_and_nothing_is_done(
    broker: ServedLogs, client: RawClient
) -> None:
    """What was refused must not have been written."""
    fault = broker.faults.error(ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, times=2)
    codes = [(await client.ask(produce("t", records(2)), 3)).topics[0].partitions[0].error_code for _ in range(3)]
    assert [19, 19, 0] == codes
    assert (2, 6) == (fault.hits, broker.log("t").end_offset)


@pytest.mark.parametrize("version", range(6))
async def test_fetch_is_refused_in_every_version(version: int, broker: ServedLogs, client: RawClient) -> None:
    """The error takes the form that the version has."""
    broker.faults.error(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    (one,) = (await client.ask(fetch("t"), version)).topics[0].partitions
    assert (6, -1, b"") == (one.error_code, one.high_watermark, bytes(one.record_set))


async def test_error_without_an_answer_closes_the_connection(broker: ServedLogs, client: RawClient) -> None:
    """With acks 0 there is nothing else that could tell."""
    broker.faults.error(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    client.send_request(produce("t", records(2), acks=0), 3)
    assert b"" == await client.receive_rest()
    assert 3 == broker.log("t").end_offset


async def test_one_byte_of_the_answer_is_spoilt(broker: ServedLogs, client: RawClient) -> None:
    """The last one is a record's, which its checksum finds; the log itself is as it was."""
    whole = await _frame(client, broker)
    broker.faults.corrupt(ApiKey.FETCH)
    broker.faults.corrupt(ApiKey.FETCH, 20)
    client.send_request(fetch("t"), 5)
    spoilt = await client.receive_bytes(len(whole))
    assert {20, len(whole) - 1} == {at for at in range(len(whole)) if whole[at] != spoilt[at]}
    assert whole == await _frame(client, broker)


async def test_answer_claims_more_than_it_has(broker: ServedLogs, client: RawClient) -> None:
    """A client that believes it allocates two gigabytes, or waits for ever."""
    whole = await _frame(client, broker)
    broker.faults.oversize(ApiKey.FETCH)
    client.send_request(fetch("t"), 5)
    assert b"\x7f\xff\xff\xff" + whole[4:] == await client.receive_bytes(len(whole))


async def test_faults_at_once_act_in_the_order_in_which_they_were_armed(broker: ServedLogs, client: RawClient) -> None:
    """Those behind one that cuts find less than they change, or nothing."""
    whole = await _frame(client, broker)
    for byte in (0, 2, 6):
        broker.faults.close_at(ApiKey.FETCH, byte)
        later = [
            broker.faults.wrong_correlation_id(ApiKey.FETCH),
            broker.faults.oversize(ApiKey.FETCH),
            broker.faults.corrupt(ApiKey.FETCH),
        ]
        async with raw_client(broker.port) as other:
            other.send_request(fetch("t"), 5)
            expected = bytearray((b"\x7f\xff\xff\xff" + whole[4:])[:byte])
            if byte:
                expected[-1] ^= 0xFF
            assert bytes(expected) == await other.receive_rest()
        assert [1, 1, 1] == [fault.hits for fault in later]


async def test_another_leader_is_named_and_stands(broker: ServedLogs, client: RawClient) -> None:
    """As after an election: who has read metadata before finds nobody home."""
    fault = broker.faults.pretend_leader(PARTITION, BrokerId(3))
    (described,) = (await client.ask(METADATA, 1)).topics[0].partitions
    (produced,) = (await client.ask(produce("t", records(2)), 3)).topics[0].partitions
    (fetched,) = (await client.ask(fetch("t"), 5)).topics[0].partitions
    assert (3, 6, 6) == (described.leader, produced.error_code, fetched.error_code)
    fault.remove()
    assert 0 == (await client.ask(produce("t", records(2)), 3)).topics[0].partitions[0].error_code


async def test_poll_is_answered_when_the_leader_changes(broker: ServedLogs, client: RawClient) -> None:
    """A consumer that waits at the end of a log must learn that it waits at the wrong broker."""
    client.send_request(fetch("t", 3, wait_ms=3_600_000), 5)
    client.send_request(METADATA, 1, correlation_id=2)
    async with raw_client(broker.port) as other:
        await other.ask(METADATA, 1)
    broker.faults.pretend_leader(PARTITION, BrokerId(3))
    assert [1, 2] == [(await client.receive())[0] for _ in range(2)]


async def test_full_disk_refuses_records_until_there_is_room(broker: ServedLogs, client: RawClient) -> None:
    """What is there can be read all the time, and nothing of what was refused is left."""
    fault = broker.faults.fill_disk()
    (refused,) = (await client.ask(produce("t", records(2)), 3)).topics[0].partitions
    (fetched,) = (await client.ask(fetch("t"), 5)).topics[0].partitions
    fault.remove()
    (taken,) = (await client.ask(produce("t", records(2)), 3)).topics[0].partitions
    # KAFKA_STORAGE_ERROR is for clients of later versions: KIP-112
    assert (6, 3, 0, 3) == (refused.error_code, fetched.high_watermark, taken.error_code, taken.base_offset)


async def test_full_disk_costs_a_producer_without_acks_its_connection(broker: ServedLogs, client: RawClient) -> None:
    """It asked for no answer: that the connection ends is all that could tell it."""
    fault = broker.faults.fill_disk()
    client.send_request(produce("t", records(2), acks=0), 3)
    client.send_request(METADATA, 1)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.receive_bytes(1)
    assert 3 == broker.log("t").end_offset
    fault.remove()


async def test_records_that_a_failed_disk_may_have_lost_are_acknowledged_to_nobody(
    broker: ServedLogs, client: RawClient
) -> None:
    """After a failed fsync the log is offline for all of its clients, whatever they want to have acknowledged."""

    class Failing(FillableFiles):
        def sync(self, descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    broker.faults.files = Failing()
    broker.topics.add("u", settings=LogSettings(flush_messages=1))
    codes = [
        (await client.ask(produce("u", records(2), acks=acks), 3)).topics[0].partitions[0].error_code
        for acks in (-1, 1, -1)
    ]
    (fetched,) = (await client.ask(fetch("u"), 5)).topics[0].partitions
    assert ([6, 6, 6], 6) == (codes, fetched.error_code)
    assert 0 == (await client.ask(produce("t", records(2), acks=-1), 3)).topics[0].partitions[0].error_code
    with pytest.raises(LogFailed):
        await broker.topics.delete("u")


async def test_everything_is_taken_back_at_once(broker: ServedLogs, client: RawClient) -> None:
    """A test that fails in the middle must not leave its faults to the next one."""
    faults = broker.faults
    faults.error(ApiKey.METADATA, ErrorCode.UNKNOWN_SERVER_ERROR, times=9)
    faults.close_at(ApiKey.METADATA, 0, times=9)
    faults.pretend_leader(PARTITION, BrokerId(3))
    faults.fill_disk()
    faults.clear()
    assert 0 == (await client.ask(METADATA, 1)).topics[0].partitions[0].leader
    assert 3 == (await client.ask(produce("t", records(2)), 3)).topics[0].partitions[0].base_offset


async def _frame(client: RawClient, broker: ServedLogs) -> bytes:
    """Return the whole frame that answers a fetch of all there is."""
    assert broker.log("t").end_offset == 3
    client.send_request(fetch("t"), 5)
    size = await client.receive_bytes(4)
    return size + await client.receive_bytes(int.from_bytes(size, "big"))
