# SPDX-License-Identifier: Apache-2.0
"""The producer over brokers by script, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog.testing

from consumerd.access.address import parse_bootstrap
from consumerd.aio.timeouts import timeout
from consumerd.client.accumulator import RECORD_OVERHEAD_BYTES, Written, wire_size
from consumerd.client.delivery import Delivery, RecordMetadata
from consumerd.client.partitioner import Candidates
from consumerd.client.producer import Producer
from consumerd.client.producer_counts import ProducerCounts
from consumerd.client.producer_hooks import Outcomes, OutgoingBatch, ProducerHooks, ProducerRecord, encode_text
from consumerd.client.producer_settings import ProducerSettings
from consumerd.cluster.view import Broker
from consumerd.errors import (
    BrokerError,
    BufferFull,
    ConfigError,
    ConnectionLost,
    ConsumerdError,
    DeliveryTimedOut,
    OversizedRecord,
    ProducerClosed,
    RecordLeftOut,
    TopicMissing,
    UnsupportedVersion,
    WriteRefused,
)
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.produce import ProducedPartition, ProduceRequest
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import NewRecord
from tests.support import virtual_time
from tests.support.producing import (
    LEADER_NOT_AVAILABLE,
    NOT_AUTHORIZED,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    ProduceCluster,
    produce_to,
)
from tests.support.scripted_broker import Body, Reaction

INVALID_TIMESTAMP = 32
FAR_MS = (1 << 62) - 1
T0, T1 = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


def one_topic(partitions: int = 1, **options: int) -> ProduceCluster:
    cluster = ProduceCluster(**options)
    cluster.topic("t", *[1] * partitions)
    return cluster


# -- the two modes


def test_send_returns_where_the_record_is() -> None:
    """Acknowledged means: offset and time are known."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> list[RecordMetadata]:
        return [
            await producer.send("t", b"a", key=b"k", headers=(("h", b"1"),)),
            await producer.send("t", None, key=b"k", timestamp_ms=7),
        ]

    first, second = produce_to(cluster, scenario)
    assert ("t", 0, 0) == (first.topic, first.partition, first.offset)
    assert RecordMetadata(topic="t", partition=0, offset=1, timestamp_ms=7) == second
    stored = cluster.logs[T0]
    assert [b"a", None] == [one.value for one in stored]
    assert [(("h", b"1"),), ()] == [one.headers for one in stored]
    assert [first.timestamp_ms, 7] == [one.timestamp for one in stored]


def test_the_brokers_time_is_told_where_it_counts() -> None:
    """A topic with LogAppendTime gives all records of a batch its own."""
    cluster = one_topic()
    cluster.append_time = 99

    async def scenario(producer: Producer) -> RecordMetadata:
        return await producer.send("t", b"a", timestamp_ms=7)

    assert 99 == produce_to(cluster, scenario).timestamp_ms


def test_enqueued_records_go_in_batches() -> None:
    """While one batch is on its way the next one fills: far fewer requests than records."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> list[int | None]:
        deliveries = [await producer.enqueue("t", b"%d" % number) for number in range(500)]
        return [(await delivery).offset for delivery in deliveries]

    assert list(range(500)) == produce_to(cluster, scenario)
    assert [b"%d" % number for number in range(500)] == cluster.values("t")
    assert len(cluster.requests()) <= 3


def test_a_batch_lingers_for_more_and_no_longer() -> None:
    """Records that come within the time go together; a full batch does not wait for the time to be over."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> tuple[float, float]:
        now = asyncio.get_running_loop().time
        await producer.send("t", b"warm-up")
        started = now()
        first = await producer.enqueue("t", b"a")
        await asyncio.sleep(0.3)
        await producer.enqueue("t", b"b")
        await first
        lingered = now() - started
        started = now()
        for delivery in [await producer.enqueue("t", b"x" * 300) for _ in range(4)]:
            await delivery
        return lingered, now() - started

    settings = ProducerSettings(linger_s=0.5, batch_bytes=1336)  # four such records
    lingered, full = produce_to(cluster, scenario, settings=settings)
    assert 0.5 <= lingered < 0.51
    assert full < 0.1
    assert [[b"warm-up"], [b"a", b"b"], [b"x" * 300] * 4] == [values for _, values in cluster.batches]


def test_a_caller_in_a_tight_loop_lets_the_sender_work() -> None:
    """Else nothing would be sent, and nothing else would run, until the buffer is full."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> int:
        await producer.send("t", b"warm-up")
        for _ in range(2_000):
            await producer.enqueue("t", b"x" * 100)
        return len(cluster.requests())

    assert 2 == produce_to(cluster, scenario, settings=ProducerSettings(batch_bytes=10_000)), "one is in flight"


def test_records_without_a_key_fill_batches() -> None:
    """Another partition gets its turn with a whole batch; none is left with a single record behind a full one."""
    cluster = one_topic(4)

    async def scenario(producer: Producer) -> None:
        for _ in range(400):
            await producer.enqueue("t", b"x" * 100)
        await producer.flush()

    settings = ProducerSettings(batch_bytes=1_340 + 50, linger_s=1)  # ten records, and not an eleventh
    produce_to(cluster, scenario, settings=settings, random=random.Random(1).random)
    assert {10} == {len(values) for _, values in cluster.batches}
    assert 4 == len({partition for partition, _ in cluster.batches})


def test_flush_does_not_wait_for_the_time() -> None:
    """Nothing else is lost by a long linger."""
    cluster = one_topic(2)

    async def scenario(producer: Producer) -> tuple[float, list[bool]]:
        deliveries = [await producer.enqueue("t", b"a", partition=number % 2) for number in range(10)]
        started = asyncio.get_running_loop().time()
        await producer.flush()
        return asyncio.get_running_loop().time() - started, [delivery.done for delivery in deliveries]

    took, done = produce_to(cluster, scenario, settings=ProducerSettings(linger_s=60))
    assert took < 1
    assert [True] * 10 == done


def test_leaving_the_block_flushes() -> None:
    """Whatever ended it: what was taken is written."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        await producer.enqueue("t", b"a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        produce_to(cluster, scenario, settings=ProducerSettings(linger_s=60))
    assert [b"a"] == cluster.values("t")


# -- formats


@pytest.mark.parametrize(("newest", "magic"), [(0, 0), (1, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_records_are_written_as_the_broker_stores_them(newest: int, magic: int, codec: Codec) -> None:
    """The version that both speak decides, so that the broker converts nothing."""
    cluster = one_topic(newest=newest)

    async def scenario(producer: Producer) -> list[int | None]:
        deliveries = [await producer.enqueue("t", b"%d" % number, key=b"k") for number in range(50)]
        return [(await delivery).offset for delivery in deliveries]

    assert list(range(50)) == produce_to(cluster, scenario, settings=ProducerSettings(codec=codec))
    stored = cluster.logs[T0]
    assert {(magic, codec)} == {(one.magic, one.codec) for one in stored}
    assert [b"%d" % number for number in range(50)] == [one.value for one in stored]


def test_headers_are_refused_where_the_format_has_none() -> None:
    """Left out silently they would be missed by whoever reads; records beside them are written."""
    cluster = one_topic(2, newest=2)

    async def scenario(producer: Producer) -> None:
        other = await producer.enqueue("t", b"b", partition=1)
        with pytest.raises(WriteRefused, match="t/0: 1 record not written: headers cannot be written in magic 1"):
            await producer.send("t", b"a", partition=0, headers=(("h", b"1"),))
        await other

    produce_to(cluster, scenario)
    assert ([], [b"b"]) == (cluster.values("t"), cluster.values("t", 1))


def test_zstd_is_refused_by_a_broker_that_does_not_know_it() -> None:
    """The message names what would work."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        with pytest.raises(WriteRefused, match="codec zstd needs Produce v7") as caught:
            await producer.send("t", b"a")
        assert isinstance(caught.value.__cause__, UnsupportedVersion)

    produce_to(cluster, scenario, settings=ProducerSettings(codec=Codec.ZSTD))


def test_without_acknowledgement_nothing_is_waited_for() -> None:
    """Acks 0: the broker answers nothing, and no offset is known."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> list[RecordMetadata]:
        return [await producer.send("t", b"%d" % number) for number in range(3)]

    told = produce_to(cluster, scenario, settings=ProducerSettings(acks=0))
    assert [None] * 3 == [one.offset for one in told]
    assert [b"0", b"1", b"2"] == cluster.values("t")
    assert {0} == {request.acks for request, _ in cluster.requests()}


def test_without_acknowledgement_the_end_waits_until_brokers_have_worked() -> None:
    """What is left on a connection that closes is worked on in any order: an answer comes behind all of it."""
    cluster = ProduceCluster(2)
    cluster.topic("t", 1, 2)

    async def scenario(producer: Producer) -> list[bytes | None]:
        await producer.send("t", b"a", partition=0)
        await producer.send("t", b"b", partition=1)
        await producer.close()
        return cluster.values("t") + cluster.values("t", 1)

    assert [b"a", b"b"] == produce_to(cluster, scenario, settings=ProducerSettings(acks=0))
    assert 2 == len(cluster.requests(ListOffsetsRequest))
    for broker in cluster.network.brokers.values():
        kinds = [type(one) for one, _ in broker.requests]
        assert kinds.index(ProduceRequest) < kinds.index(ListOffsetsRequest)


@pytest.mark.parametrize(
    ("reaction", "took_s"), [(Reaction.CLOSE, 0.1), (Reaction.SILENT, 2.0), (Body(b"what is this"), 0.1)]
)
def test_without_acknowledgement_the_end_is_bounded(reaction: Reaction | Body, took_s: float) -> None:
    """By the time that it is given, as with acknowledgements. Who hangs up has nothing more to do, and an answer that cannot
    be read comes behind the rest like any other.
    """
    cluster = one_topic()
    for broker in cluster.network.brokers.values():
        broker.handlers[ListOffsetsRequest] = lambda _request, _version: reaction

    async def scenario(producer: Producer) -> float:
        await producer.send("t", b"a")
        began = asyncio.get_running_loop().time()
        await producer.close(2.0)
        return asyncio.get_running_loop().time() - began

    assert produce_to(cluster, scenario, settings=ProducerSettings(acks=0)) == pytest.approx(took_s, abs=0.1)
    assert [b"a"] == cluster.values("t")


def test_without_acknowledgement_a_moved_leader_is_found_all_the_same() -> None:
    """The broker can only hang up; what it did not take is lost, as asked for, but not everything that follows."""
    cluster = ProduceCluster(2)
    cluster.topic("t", 1)

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"first")
        cluster.topic("t", 2)
        for number in range(20):
            await producer.send("t", b"%d" % number)
            await asyncio.sleep(0.1)

    produce_to(cluster, scenario, settings=ProducerSettings(acks=0))
    assert b"first" == cluster.values("t")[0]
    assert b"19" == cluster.values("t")[-1]


# -- order and retries


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH_REPLICAS, LEADER_NOT_AVAILABLE, 3, 7, 2])
def test_a_failed_batch_goes_again_before_any_later_one(code: int) -> None:
    """Each code that may pass; the order of the partition stays, and another partition does not wait."""
    cluster = one_topic(2)
    cluster.answers[T0].extend([code, code])

    async def scenario(producer: Producer) -> list[int | None]:
        deliveries = []
        for number in range(40):
            deliveries.append(await producer.enqueue("t", b"%d" % number, partition=0))
            await producer.enqueue("t", b"%d" % number, partition=1)
            await asyncio.sleep(0.01)
        return [(await delivery).offset for delivery in deliveries]

    assert list(range(40)) == produce_to(cluster, scenario)
    expected = [b"%d" % number for number in range(40)]
    assert (expected, expected) == (cluster.values("t"), cluster.values("t", 1))


@pytest.mark.parametrize("reaction", [Reaction.CLOSE, Reaction.SILENT])
def test_a_lost_answer_repeats_records_and_reorders_none(reaction: Reaction) -> None:
    """Nobody knows whether they were written: at least once, in order."""
    cluster = one_topic()
    cluster.answers[T0].extend([0, reaction])

    async def scenario(producer: Producer) -> None:
        for number in range(60):
            await producer.enqueue("t", b"%d" % number)
            await asyncio.sleep(0.01)
        await producer.flush()

    produce_to(cluster, scenario, settings=ProducerSettings(request_timeout_s=1))
    values = [int(value or b"") for value in cluster.values("t")]
    assert list(range(60)) == sorted(set(values))
    assert len(values) > 60, "the scenario must repeat something"
    backwards = [at for at in range(1, len(values)) if values[at] <= values[at - 1]]
    assert len(backwards) == 1, "one batch again, whole, and then on"


def test_a_new_leader_takes_over_where_the_old_one_was_killed() -> None:
    """None lost, order kept: the producer finds the new leader by itself."""
    cluster = ProduceCluster(2)
    cluster.topic("t", 1)

    async def scenario(producer: Producer) -> list[int | None]:
        deliveries = []
        for number in range(100):
            if number == 50:
                cluster.kill(1)
                cluster.topic("t", None)
            if number == 80:
                cluster.topic("t", 2)
            deliveries.append(await producer.enqueue("t", b"%d" % number))
            await asyncio.sleep(0.02)
        return [(await delivery).offset for delivery in deliveries]

    assert list(range(100)) == produce_to(cluster, scenario)
    assert [b"%d" % number for number in range(100)] == cluster.values("t")


def test_what_is_not_acknowledged_in_time_fails_by_name() -> None:
    """The budget is the delivery timeout; the error says what was last wrong, and that the record may be there."""
    cluster = one_topic()
    cluster.answers[T0].extend([NOT_ENOUGH_REPLICAS] * 1000)

    async def scenario(producer: Producer) -> float:
        started = asyncio.get_running_loop().time()
        with pytest.raises(
            DeliveryTimedOut, match=r"t/0: 1 record .* within 5 s: tried \d+ times.*NOT_ENOUGH_REPL"
        ) as caught:
            await producer.send("t", b"a")
        assert T0 == caught.value.partition
        assert isinstance(caught.value.__cause__, BrokerError)
        return asyncio.get_running_loop().time() - started

    took = produce_to(cluster, scenario, settings=ProducerSettings(delivery_timeout_s=5))
    assert 5 <= took < 5.1
    assert [] == cluster.values("t")


@pytest.mark.parametrize("delivery_s", [2, 8, 30, 34, 35, 60])
def test_a_hung_connection_is_given_up_whatever_the_time_outs(delivery_s: float) -> None:
    """Given up with the attempt that waited on it; otherwise every later record would wait on it as well."""
    cluster = one_topic()
    cluster.answers[T0].append(Reaction.SILENT)

    async def scenario(producer: Producer) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with contextlib.suppress(DeliveryTimedOut):
            await producer.send("t", b"a")
        await producer.send("t", b"b")
        return loop.time() - started

    settings = ProducerSettings(delivery_timeout_s=delivery_s, request_timeout_s=30)
    assert produce_to(cluster, scenario, settings=settings) < min(delivery_s, 30) + 1
    assert cluster.requests()[0][0].timeout_ms < min(delivery_s, 30) * 1000, "the broker says first that it is late"


def test_a_retry_over_a_new_connection_may_stand_behind_later_records() -> None:
    """The limit that only idempotent produce removes: a broker works on what the old connection brought, later."""
    cluster = one_topic()
    held: list[Callable[[], None]] = []
    append = cluster.append_one

    def append_later(broker: BrokerId, partition: TopicPartition, data: bytes) -> ProducedPartition | Reaction | Body:
        if held:
            return append(broker, partition, data)
        held.append(lambda: append(broker, partition, data))
        return Reaction.SILENT

    cluster.append_one = append_later  # type: ignore[method-assign]  # a broker whose thread hangs over one request

    async def scenario(producer: Producer) -> list[int | None]:
        offsets = [(await producer.send("t", value)).offset for value in (b"1", b"2")]
        held[0]()
        return offsets

    assert [0, 1] == produce_to(cluster, scenario)
    assert [b"1", b"2", b"1"] == cluster.values("t")


def test_a_time_that_the_broker_refuses_fails_its_record_alone() -> None:
    """A topic takes times near the clock, and refuses the whole batch; a batch holds the records of several callers."""
    cluster = one_topic()
    append = cluster.append_one

    def refuse_far_times(
        broker: BrokerId, partition: TopicPartition, data: bytes
    ) -> ProducedPartition | Reaction | Body:
        times = [one.timestamp for one in decode_record_set(data, partition=partition, start=0).records()]
        if FAR_MS in times:
            return ProducedPartition(partition=0, error_code=INVALID_TIMESTAMP, base_offset=-1)
        return append(broker, partition, data)

    cluster.append_one = refuse_far_times  # type: ignore[method-assign]  # a topic's limit of times

    async def scenario(producer: Producer) -> None:
        times = (1, 2, 3, FAR_MS, 4)
        for delivery in [await producer.enqueue("t", b"%d" % time, timestamp_ms=time) for time in times]:
            await delivery

    with pytest.raises(WriteRefused, match=r"1 record not written: .*INVALID_TIMESTAMP"):
        produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.1))
    assert [b"1", b"2", b"3", b"4"] == cluster.values("t")


@pytest.mark.parametrize("time_ms", [1 << 62, (1 << 63) - 1])
def test_a_time_whose_difference_to_others_has_no_place_is_refused(time_ms: int) -> None:
    """Batches hold differences of 64 bits; -1 and the greatest time are further apart."""

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"a", timestamp_ms=time_ms)

    with pytest.raises(ValueError, match="milliseconds since the epoch"):
        produce_to(one_topic(), scenario)


def test_a_partition_without_a_leader_says_that_nothing_was_sent() -> None:
    """The difference matters: these records are in no log."""
    cluster = ProduceCluster()
    cluster.topic("t", None, 1)

    async def scenario(producer: Producer) -> None:
        with pytest.raises(DeliveryTimedOut, match=r"t/0: 1 record .* not sent: the partition had no leader"):
            await producer.send("t", b"a", partition=0)

    produce_to(cluster, scenario, settings=ProducerSettings(delivery_timeout_s=5))


def test_an_error_that_stays_fails_one_batch_and_not_the_next() -> None:
    """Trying again would not help, and blocking the partition would not either."""
    cluster = one_topic()
    cluster.answers[T0].append(NOT_AUTHORIZED)

    async def scenario(producer: Producer) -> int | None:
        with pytest.raises(WriteRefused, match=r"t/0: 1 record not written.*TOPIC_AUTHORIZATION_FAILED"):
            await producer.send("t", b"a")
        return (await producer.send("t", b"b")).offset

    assert 0 == produce_to(cluster, scenario)


def test_a_batch_that_is_too_large_is_cut_down_to_the_record_that_is() -> None:
    """The broker's limit is smaller than ours: what fits is written, in order, and one record fails."""
    cluster = one_topic()
    cluster.largest_set = 400
    values = [b"%d" % number for number in range(20)] + [b"x" * 500] + [b"%d" % number for number in range(20, 40)]

    async def scenario(producer: Producer) -> list[object]:
        deliveries = [await producer.enqueue("t", value) for value in values]
        outcomes = [await _outcome(delivery) for delivery in deliveries]
        assert 0 == producer.counts().open_bytes
        return outcomes

    outcomes = produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.1))
    assert [value for value in values if len(value) < 500] == cluster.values("t")
    refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, WriteRefused)]
    assert [20] == refused
    assert "the record has about 534 bytes: raise the broker's message.max.bytes, or the topic's max.message" in str(
        outcomes[20]
    )
    assert list(range(40)) == [outcome for outcome in outcomes if isinstance(outcome, int)]


async def _outcome(delivery: object) -> object:
    try:
        return (await delivery).offset  # type: ignore[misc]  # a Delivery
    except ConsumerdError as error:
        return error


def test_one_broker_that_is_down_does_not_stop_the_others() -> None:
    """Partitions led elsewhere go on."""
    cluster = ProduceCluster(2)
    cluster.topic("t", 1, 2)

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"warm-up", partition=1)
        cluster.kill(2)
        stuck = await producer.enqueue("t", b"stuck", partition=1)
        for number in range(20):
            async with timeout(1):
                await producer.send("t", b"%d" % number, partition=0)
        assert not stuck.done
        cluster.topic("t", 1, 1)
        await stuck

    produce_to(cluster, scenario)
    assert 20 == len(cluster.values("t"))
    assert b"stuck" == cluster.values("t", 1)[-1]


def test_a_leader_that_is_not_reached_holds_nothing_once_another_one_leads() -> None:
    """Attempts to connect are seconds apart by then; a batch that waited for one would be that late."""
    cluster = ProduceCluster(2)
    cluster.topic("t", 2)
    cluster.lists_dead = True

    async def scenario(producer: Producer) -> float:
        await producer.send("t", b"a")
        cluster.kill(2)
        stuck = await producer.enqueue("t", b"b")
        await asyncio.sleep(59)
        cluster.topic("t", 1)
        moved = asyncio.get_running_loop().time()
        await stuck
        return asyncio.get_running_loop().time() - moved

    assert produce_to(cluster, scenario) < 2.5, "the longest time between two readings of Metadata, and a bit"


# -- topics


def test_a_topic_that_comes_into_being_is_waited_for() -> None:
    """Naming it makes the broker create it; at first it has no leader."""
    cluster = ProduceCluster()
    cluster.creates["new"] = 2

    async def scenario(producer: Producer) -> RecordMetadata:
        return await producer.send("new", b"a", key=b"k")

    assert "new" == produce_to(cluster, scenario).topic
    assert 2 == len(cluster.leaders["new"])


def test_a_topic_that_never_comes_is_a_named_error() -> None:
    """After as long as the caller was ready to wait."""
    cluster = ProduceCluster()

    async def scenario(producer: Producer) -> float:
        started = asyncio.get_running_loop().time()
        with pytest.raises(TopicMissing, match="nowhere: no such topic with a leader within 3 s; create it"):
            await producer.enqueue("nowhere", b"a")
        return asyncio.get_running_loop().time() - started

    assert 3 <= produce_to(cluster, scenario, settings=ProducerSettings(max_block_s=3)) < 3.1
    assert len(cluster.requests(MetadataRequest)) < 15, "with a backoff"


def test_a_topic_that_may_not_be_written_fails_at_once() -> None:
    """Waiting would not help."""
    cluster = ProduceCluster()
    cluster.topic_errors["secret"] = NOT_AUTHORIZED

    async def scenario(producer: Producer) -> None:
        async with timeout(1):
            with pytest.raises(TopicMissing, match="secret: the broker answered error 29"):
                await producer.enqueue("secret", b"a")

    produce_to(cluster, scenario)


def test_a_partition_that_is_not_there_is_a_named_error() -> None:
    """With how many there are."""
    cluster = one_topic(2)

    async def scenario(producer: Producer) -> None:
        for number in (-1, 2):
            with pytest.raises(TopicMissing, match=f"t/{number}: no such partition; t has 2"):
                await producer.enqueue("t", b"a", partition=number)

    produce_to(cluster, scenario)


def test_a_topic_that_grows_is_written_to_whole() -> None:
    """The partitioner counts the new partitions once the view does."""
    cluster = one_topic(1)

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"a")
        cluster.topic("t", *[1] * 8)
        await asyncio.sleep(400)  # metadata is read again after five minutes
        for number in range(200):
            await producer.enqueue("t", b"a", key=b"%d" % number)
        await producer.flush()

    produce_to(cluster, scenario)
    assert all(cluster.values("t", number) for number in range(8))


def test_a_topic_made_again_with_fewer_partitions_is_written_to_as_it_is_now() -> None:
    """Keys that belonged to partitions which are gone have others now."""
    cluster = one_topic(8)

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"a", partition=7)
        cluster.topic("t", 1, 1)
        await asyncio.sleep(400)
        for number in range(100):
            assert (await producer.send("t", b"a", key=b"%d" % number)).partition < 2
        with pytest.raises(TopicMissing, match="t/7: no such partition; t has 2"):
            await producer.enqueue("t", b"a", partition=7)

    produce_to(cluster, scenario)


def test_a_moved_leader_is_asked_for_at_once_after_a_calm_time() -> None:
    """What was tried in vain long ago must not slow the next change down."""
    cluster = ProduceCluster(2)
    cluster.topic("t", None)

    async def scenario(producer: Producer) -> float:
        waiting = await producer.enqueue("t", b"a")
        await asyncio.sleep(30)  # the backoff has grown
        cluster.topic("t", 1)
        await waiting
        await asyncio.sleep(60)
        cluster.topic("t", 2)
        started = asyncio.get_running_loop().time()
        await producer.send("t", b"b")
        return asyncio.get_running_loop().time() - started

    assert produce_to(cluster, scenario) < 0.2


def test_no_broker_to_ask_ends_in_a_named_error() -> None:
    """The producer is opened before anybody knows whether the address is right."""
    cluster = one_topic()
    cluster.kill(1)

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TopicMissing, match="check the addresses and that they are up") as caught:
            await producer.enqueue("t", b"a")
        assert isinstance(caught.value.__cause__, ConnectionLost)

    produce_to(cluster, scenario, settings=ProducerSettings(max_block_s=3))


# -- the buffer


def test_an_oversized_record_is_refused_before_it_is_buffered() -> None:
    """Nothing is sent, nothing is held."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        with pytest.raises(
            OversizedRecord, match="t: a record of 1034 bytes, the limit is 1000; raise max_request_bytes"
        ):
            await producer.enqueue("t", b"x" * 1000)
        assert 0 == producer.counts().open_bytes
        await producer.send("t", b"x" * (1000 - 34))

    produce_to(cluster, scenario, settings=ProducerSettings(max_request_bytes=1000))
    assert 1 == len(cluster.requests())


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_requests_are_in_flight_to_a_broker_than_the_setting_says(most: int) -> None:
    """A broker that is slow is not given ever more work, and requests wait here, where batches still fill."""
    cluster = one_topic(partitions=4)
    cluster.answer_delay_s = 1.0
    settings = ProducerSettings(max_in_flight=most, max_request_bytes=2000, batch_bytes=1500)

    async def scenario(producer: Producer) -> tuple[int, int]:
        for number in range(4):  # one batch a partition, one batch a request
            await producer.enqueue("t", b"x" * 1000, partition=number)
        await asyncio.sleep(0.5)
        before = len(cluster.requests())
        await producer.flush()
        return before, len(cluster.requests())

    assert (most, 4) == produce_to(cluster, scenario, settings=settings)


def test_a_full_buffer_holds_callers_back() -> None:
    """Back-pressure: they wait in line, the buffer stays within its bound, and nothing is lost."""
    cluster = one_topic()
    cluster.answer_delay_s = 0.1
    room = 20_000

    async def scenario(producer: Producer) -> tuple[int, float]:
        most = 0
        for number in range(300):
            await producer.enqueue("t", b"%4d" % number + b"x" * 500)
            most = max(most, producer.counts().open_bytes)
        return most, asyncio.get_running_loop().time()

    settings = ProducerSettings(buffer_bytes=room, max_request_bytes=10_000, batch_bytes=5_000)
    most, took = produce_to(cluster, scenario, settings=settings)
    assert room * 0.9 < most <= room
    assert took > 1, "the broker's pace"
    assert list(range(300)) == [int((value or b"")[:4]) for value in cluster.values("t")]


@pytest.mark.parametrize(("key", "value"), [(False, 0), (False, 100), (True, 100), (True, 5_000)])
def test_the_bound_of_the_buffer_is_that_of_memory(key: bool, value: int) -> None:
    """What records take with the objects around them, their deliveries kept too: the bound holds for the process, but for a few percent."""
    cluster = ProduceCluster()
    cluster.topic("t", None)
    bound = 2 << 20
    settings = ProducerSettings(buffer_bytes=bound, max_block_s=1, delivery_timeout_s=30, close_timeout_s=0)

    async def scenario(producer: Producer) -> int:
        deliveries = []
        await producer.enqueue("t", b"first")
        gc.collect()
        tracemalloc.start()
        with contextlib.suppress(BufferFull):
            for number in itertools.count():
                record = await producer.enqueue("t", os.urandom(value), key=b"key-%d" % number if key else None)
                deliveries += [record]
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    try:
        taken = produce_to(cluster, scenario, settings=settings)
    finally:
        tracemalloc.stop()
    assert bound / 3 < taken <= bound * 1.05


def test_a_buffer_that_stays_full_is_a_named_error() -> None:
    """After ``max_block_s``; the record is not written later on."""
    cluster = ProduceCluster()
    cluster.topic("t", 1, None)
    settings = ProducerSettings(buffer_bytes=10_000, max_request_bytes=9_000, max_block_s=2, delivery_timeout_s=30)

    async def scenario(producer: Producer) -> None:
        stuck = await producer.enqueue("t", b"x" * 8_000, partition=1)
        started = asyncio.get_running_loop().time()
        with pytest.raises(BufferFull, match="t/0: no room for a record of 8034 bytes within 2 s") as caught:
            await producer.enqueue("t", b"y" * 8_000, partition=0)
        assert T0 == caught.value.partition
        assert 2 == pytest.approx(asyncio.get_running_loop().time() - started, abs=0.1)
        cluster.topic("t", 1, 1)
        await stuck

    produce_to(cluster, scenario, settings=settings)
    assert [] == cluster.values("t")


def test_waiters_are_served_in_their_order() -> None:
    """A small record that comes later does not pass a large one that waits."""
    cluster = one_topic()
    cluster.answer_delay_s = 0.1
    settings = ProducerSettings(buffer_bytes=10_000, max_request_bytes=9_000)

    async def scenario(producer: Producer) -> None:
        await producer.enqueue("t", b"x" * 8_000)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_enqueue(producer, b"y" * 7_000))
            await asyncio.sleep(0.01)
            tasks.create_task(_enqueue(producer, b"z"))

    produce_to(cluster, scenario, settings=settings)
    assert [b"x", b"y", b"z"] == [(value or b"")[:1] for value in cluster.values("t")]


async def _enqueue(producer: Producer, value: bytes) -> None:
    await producer.enqueue("t", value)


def test_a_call_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    """Neither its record nor its place in the line."""
    cluster = one_topic()
    cluster.answer_delay_s = 1.0
    settings = ProducerSettings(buffer_bytes=10_000, max_request_bytes=9_000)

    async def scenario(producer: Producer) -> None:
        await producer.enqueue("t", b"x" * 8_000)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_enqueue(producer, b"y" * 8_000))
            await asyncio.sleep(0.1)
            behind = tasks.create_task(_enqueue(producer, b"z" * 1_000))
            await asyncio.sleep(0.1)
            assert not behind.done(), "in line"
            waiting.cancel()
            await asyncio.sleep(0.1)
            assert behind.done(), "let in: there is room for this one"
        await producer.flush()
        assert 0 == producer.counts().open_bytes

    produce_to(cluster, scenario, settings=settings)
    assert [b"x", b"z"] == [(value or b"")[:1] for value in cluster.values("t")]


def test_a_call_cancelled_in_the_moment_it_is_let_in_gives_its_room_back() -> None:
    """Both happen in one turn of the loop: room given, caller gone."""
    cluster = one_topic()
    settings = ProducerSettings(buffer_bytes=10_000, max_request_bytes=9_000)

    async def scenario(producer: Producer) -> None:
        held = await producer.enqueue("t", b"x" * 8_000)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_enqueue(producer, b"y" * 8_000))
            await asyncio.sleep(0)
            # called in the turn in which the room is given back, before the caller runs
            held._batch.watchers.append(lambda: asyncio.get_running_loop().call_soon(waiting.cancel) and None)
            await held
        await producer.flush()
        assert 0 == producer.counts().open_bytes
        await producer.send("t", b"z" * 8_000)

    produce_to(cluster, scenario, settings=settings)


def test_a_cancelled_send_goes_its_way() -> None:
    """Once buffered, a record does not depend on who waits for it; and the connection stays usable."""
    cluster = one_topic()
    cluster.answer_delay_s = 0.5

    async def scenario(producer: Producer) -> int | None:
        with pytest.raises(TimeoutError):
            async with timeout(0.2):
                await producer.send("t", b"a")
        return (await producer.send("t", b"b")).offset

    assert 1 == produce_to(cluster, scenario)
    assert [b"a", b"b"] == cluster.values("t")
    assert 2 == len(cluster.requests())


# -- the end


def test_close_gives_up_in_time() -> None:
    """Bounded: what is not acknowledged by then fails by name, and every delivery has an outcome."""
    cluster = one_topic(2)
    cluster.answers[T0].extend([Reaction.SILENT])
    cluster.topic("u", None)

    async def scenario(producer: Producer) -> list[object]:
        deliveries = [
            await producer.enqueue("t", b"unanswered", partition=0),
            await producer.enqueue("t", b"fine", partition=1),
            await producer.enqueue("u", b"never sent"),
        ]
        started = asyncio.get_running_loop().time()
        await producer.close(timeout_s=3)
        assert 3 <= asyncio.get_running_loop().time() - started < 3.1
        return [await _outcome(delivery) for delivery in deliveries]

    unanswered, fine, never_sent = produce_to(cluster, scenario)
    assert isinstance(unanswered, ProducerClosed)
    assert "t/0: 1 record not acknowledged when the producer was closed; tried 1 times, they may" in str(unanswered)
    assert isinstance(never_sent, ProducerClosed)
    assert "they were not sent" in str(never_sent)
    assert fine == 0 or isinstance(fine, ProducerClosed), "it may share the request that is not answered"


def test_a_closed_producer_takes_no_more() -> None:
    """Neither at once nor for those who waited; closing twice is the same as once."""
    cluster = ProduceCluster()
    cluster.topic("t", None)
    settings = ProducerSettings(buffer_bytes=10_000, max_request_bytes=9_000)

    async def scenario(producer: Producer) -> None:
        await producer.enqueue("t", b"x" * 8_000)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_refused(producer, "t"))
            without_topic = tasks.create_task(_refused(producer, "nowhere"))
            await asyncio.sleep(0.1)
            started = asyncio.get_running_loop().time()
            tasks.create_task(producer.close(timeout_s=1))
            await asyncio.sleep(0)
            await producer.close(timeout_s=100)
            assert 1 == pytest.approx(asyncio.get_running_loop().time() - started, abs=0.1)
            await waiting
            await without_topic
        await _refused(producer, "t")

    produce_to(cluster, scenario, settings=settings)


async def _refused(producer: Producer, topic: str) -> None:
    with pytest.raises(ProducerClosed, match=f"{topic}.*is closed and takes no more"):
        await producer.enqueue(topic, b"y" * 8_000)


# -- what is plugged in


class Recorder(ProducerHooks):
    """Notes each stage, and changes records on their way."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def before_enqueue(self, record: ProducerRecord) -> ProducerRecord:
        self.stages.append("before_enqueue")
        assert isinstance(record.value, bytes)
        return ProducerRecord(topic=record.topic, value=record.value.upper(), key=record.key)

    def after_enqueue(self, record: ProducerRecord, *, added: bool) -> None:
        self.stages.append(f"after_enqueue {record.value!r} {added}")

    def after_dequeuing(self, partition: TopicPartition, record: NewRecord) -> Sequence[NewRecord]:
        self.stages.append(f"after_dequeuing {partition}")
        if record.value == b"DROP":
            return ()
        if record.value == b"TWICE":
            return (NewRecord(value=b"FIRST"), NewRecord(value=b"SECOND"))
        return (record,)

    def before_sending(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        self.stages.append(f"before_sending {len(records)}")
        return (NewRecord(value=b"FRONT"), *(one for one in records if one.value != b"LATE DROP"))

    def after_sending(
        self, partition: TopicPartition, records: Sequence[NewRecord], outcome: Written | ConsumerdError
    ) -> None:
        self.stages.append(f"after_sending {len(records)} {type(outcome).__name__}")

    def last_batch_before_close(self) -> Sequence[ProducerRecord]:
        self.stages.append("last_batch_before_close")
        return (ProducerRecord(topic="t", value=b"last"),)

    def closed(self) -> None:
        self.stages.append("closed")


def test_hooks_are_called_at_each_stage_and_may_change_records() -> None:
    """The stages of Kafka's CallbackHandler; each delivery tells of what became of its own record."""
    cluster = one_topic()
    hooks = Recorder()

    async def scenario(producer: Producer) -> list[object]:
        deliveries = [await producer.enqueue("t", value) for value in (b"a", b"drop", b"twice", b"late drop", b"b")]
        return [await _outcome(delivery) for delivery in deliveries]

    outcomes = produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.1), hooks=hooks)
    expected = [b"FRONT", b"A", b"FIRST", b"SECOND", b"B", b"FRONT", b"last"]
    assert expected == cluster.values("t")
    assert [1, None, 3, None, 4] == [None if isinstance(one, RecordLeftOut) else one for one in outcomes]
    first = ["before_enqueue", "after_enqueue b'A' True"]
    middle = ["after_dequeuing t/0"] * 5 + ["before_sending 5", "after_sending 5 Written"]
    last = ["last_batch_before_close", "after_dequeuing t/0", "before_sending 1", "after_sending 2 Written", "closed"]
    assert first == hooks.stages[:2]
    assert [*middle, *last] == hooks.stages[10:]


def test_a_record_that_is_not_buffered_is_told_to_the_hook() -> None:
    """``added`` false, as in Kafka's."""
    hooks = Recorder()

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TopicMissing):
            await producer.enqueue("nowhere", b"a")

    produce_to(one_topic(), scenario, settings=ProducerSettings(max_block_s=1), hooks=hooks)
    assert ["before_enqueue", "after_enqueue b'A' False"] == hooks.stages[:2]


def test_a_batch_that_hooks_empty_is_not_sent() -> None:
    """Its records were left out, and say so."""

    class Nothing(ProducerHooks):
        def before_sending(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Sequence[NewRecord]:
            return ()

    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        with pytest.raises(RecordLeftOut, match="t/0: a hook"):
            await producer.send("t", b"a")
        assert 0 == producer.counts().open_bytes

    produce_to(cluster, scenario, hooks=Nothing())
    assert [] == cluster.requests()


def test_hooks_and_cut_batches_go_together() -> None:
    """A batch that hooks have changed, and the broker finds too large: deliveries find their records all the same."""

    class Doubling(ProducerHooks):
        def after_dequeuing(self, partition: TopicPartition, record: NewRecord) -> Sequence[NewRecord]:
            return (NewRecord(value=b"before"), record)

    cluster = one_topic()
    cluster.largest_set = 200

    async def scenario(producer: Producer) -> list[int | None]:
        deliveries = [await producer.enqueue("t", b"%d" % number) for number in range(30)]
        return [(await delivery).offset for delivery in deliveries]

    offsets = produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.1), hooks=Doubling())
    assert [2 * number + 1 for number in range(30)] == offsets
    assert [b"%d" % number for number in range(30)] == cluster.values("t")[1::2]


def test_encoders_make_bytes_and_leave_null_alone() -> None:
    """Keys and values each by their own; the partitioner sees the key as it was given."""
    cluster = one_topic(16)

    async def scenario(producer: Producer) -> int:
        await producer.send("t", None, key=5, partition=3)
        return (await producer.send("t", "ä", key=5)).partition

    def encode_number(data: object) -> bytes:
        assert isinstance(data, int)
        return data.to_bytes(4)

    partition = produce_to(cluster, scenario, key_encoder=encode_number, value_encoder=encode_text)
    assert [(b"\0\0\0\5", "ä".encode())] == [
        (one.key, one.value) for one in cluster.logs[TopicPartition.modern("t", partition)] if one.value
    ]
    assert [None] == cluster.values("t", 3)


def test_what_an_encoder_raises_goes_to_the_caller() -> None:
    """And nothing is buffered: text without an encoder for it, say."""

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TypeError, match="expected bytes, got str; give the producer an encoder"):
            await producer.enqueue("t", "text")
        assert 0 == producer.counts().open_bytes

    produce_to(one_topic(), scenario)


class Diary:
    """An event handler that keeps batches to itself, and fails first."""

    def __init__(self, failures: Sequence[ConsumerdError]) -> None:
        self.failures = list(failures)
        self.handled: list[tuple[str, list[bytes | None]]] = []

    async def handle(self, leader: Broker, batches: Sequence[OutgoingBatch], outcomes: Outcomes) -> None:
        await asyncio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        self.handled += [(str(one.partition), [record.value for record in one.records]) for one in batches]
        outcomes.update({one.partition: Written(base_offset=7) for one in batches})

    async def drain(self) -> None:
        """Nothing is under way."""


def test_an_event_handler_of_ones_own_sends_in_its_place() -> None:
    """With the producer's order and its retries."""
    cluster = one_topic()
    diary = Diary([ConnectionLost("first"), ConnectionLost("second")])

    async def scenario(producer: Producer) -> int | None:
        return (await producer.send("t", b"a")).offset

    assert 7 == produce_to(cluster, scenario, handler=diary)
    assert [("t/0", [b"a"])] == diary.handled
    assert [] == cluster.requests()


def test_a_handler_that_says_nothing_of_a_partition_is_asked_again() -> None:
    """What is not in the result is unknown, and so not acknowledged."""
    cluster = one_topic()

    class Forgetful(Diary):
        async def handle(self, leader: Broker, batches: Sequence[OutgoingBatch], outcomes: Outcomes) -> None:
            await super().handle(leader, batches, outcomes)
            if len(self.handled) == 1:
                outcomes.clear()

    diary = Forgetful([])

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"a")

    produce_to(cluster, scenario, handler=diary)
    assert 2 == len(diary.handled)


def test_a_failing_hook_ends_the_producer_visibly() -> None:
    """A programming error must not end as records that wait for ever."""

    class Broken(ProducerHooks):
        def before_sending(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Sequence[NewRecord]:
            raise ZeroDivisionError

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"a")

    with pytest.raises(BaseExceptionGroup) as caught:
        produce_to(one_topic(), scenario, hooks=Broken())
    assert caught.group_contains(ZeroDivisionError)


def test_a_hook_that_fails_late_leaves_nobody_waiting() -> None:
    """Whoever waits for a record in another task hears of the end, and so does whoever closes the producer again."""

    class Broken(ProducerHooks):
        def after_sending(
            self, partition: TopicPartition, records: Sequence[NewRecord], outcome: Written | ConsumerdError
        ) -> None:
            raise ZeroDivisionError

    cluster = ProduceCluster()
    cluster.topic("t", 1, None, None)
    kept: list[Producer] = []
    deliveries: list[Delivery] = []

    async def scenario(producer: Producer) -> None:
        kept.append(producer)
        deliveries.extend([await producer.enqueue("t", b"x", partition=number) for number in (1, 2, 0)])
        await asyncio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as caught:
        produce_to(cluster, scenario, hooks=Broken())
    assert caught.group_contains(ZeroDivisionError)
    assert [True] * 3 == [delivery.done for delivery in deliveries]
    virtual_time.run(kept[0].close())


# -- what callers get wrong


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"timestamp_ms": 1.5}, "timestamp_ms: expected an int, got float"),
        ({"timestamp_ms": -2}, "timestamp_ms: expected milliseconds since the epoch, got -2"),
        ({"timestamp_ms": 1 << 63}, "timestamp_ms: expected milliseconds since the epoch"),
        ({"headers": (("name", "text"),)}, "header 'name': expected bytes or None, got str"),
        ({"headers": ((b"name", b""),)}, "headers: expected names that are str, got bytes"),
        ({"headers": (("\udc80", b""),)}, "surrogates not allowed"),
        ({"value": 7}, "expected the encoder to return bytes, got int"),
    ],
)
def test_a_record_that_cannot_be_written_harms_no_other_one(record: dict[str, Any], message: str) -> None:
    """It goes back to its caller: the batch it would be in holds others' records, and the producer is everybody's."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        before = await producer.enqueue("t", b"before")
        with pytest.raises((TypeError, ValueError), match=message):
            await producer.enqueue("t", **{"value": b"bad"} | record)
        await before
        await producer.send("t", b"after")
        assert 0 == producer.counts().open_bytes

    def encode(data: object) -> Any:
        return data

    produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.1), value_encoder=encode)
    assert [b"before", b"after"] == cluster.values("t")


def test_headers_are_what_they_were_when_they_were_given() -> None:
    """A list that its owner goes on to use must not change what is on its way."""
    cluster = one_topic()
    headers: Any = [("a", b"1")]

    async def scenario(producer: Producer) -> None:
        delivery = await producer.enqueue("t", b"x", headers=headers)
        headers.append(("b", b"2"))
        await delivery

    produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.1))
    assert [(("a", b"1"),)] == [one.headers for one in cluster.logs[T0]]


@pytest.mark.parametrize("topic", ["", "..", "not a name", "x" * 40_000])
def test_a_name_that_no_topic_can_have_is_not_asked_about(topic: str) -> None:
    """Brokers up to 0.9 fail the whole request for it, and with it what it asks about other topics."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        async with timeout(0.001):
            with pytest.raises(TopicMissing, match="no topic can have this name"):
                await producer.enqueue(topic, b"a")
        await producer.send("t", b"b")

    produce_to(cluster, scenario)
    assert all(topic not in (request.topics or ()) for request, _ in cluster.requests(MetadataRequest))


def test_a_topic_that_never_comes_is_not_asked_about_for_ever() -> None:
    """Nobody waits for it any more; the others are read at their interval again."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> int:
        await producer.send("t", b"a")
        for name in ("nowhere", "elsewhere"):
            with pytest.raises(TopicMissing):
                await producer.enqueue(name, b"a")
        await asyncio.sleep(10)
        before = len(cluster.requests(MetadataRequest))
        await asyncio.sleep(250)
        return len(cluster.requests(MetadataRequest)) - before

    assert 1 >= produce_to(cluster, scenario, settings=ProducerSettings(max_block_s=3))
    assert ("t",) == cluster.requests(MetadataRequest)[-1][0].topics


def test_a_topic_that_one_caller_gives_up_is_still_waited_for_by_others() -> None:
    """The second one came later, and has time left when it comes into being."""
    cluster = ProduceCluster()

    async def scenario(producer: Producer) -> None:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(_outcome_of_enqueue(producer))
            await asyncio.sleep(5)
            second = tasks.create_task(_outcome_of_enqueue(producer))
            await asyncio.sleep(5)
            cluster.topic("new", 1)
        assert isinstance(first.result(), TopicMissing)
        assert second.result() is None

    produce_to(cluster, scenario, settings=ProducerSettings(max_block_s=8))


async def _outcome_of_enqueue(producer: Producer) -> object:
    try:
        await producer.enqueue("new", b"a")
    except ConsumerdError as error:
        return error
    return None


def test_a_topic_out_of_use_is_not_asked_about_and_so_not_made_again() -> None:
    """Brokers that create what is named would bring a deleted topic back; those in use stay known."""
    cluster = ProduceCluster()
    cluster.topic("done", 1)
    cluster.topic("kept", 1)

    async def scenario(producer: Producer) -> None:
        await producer.send("done", b"a")
        for _ in range(60):
            await producer.send("kept", b"b")
            await asyncio.sleep(30)
        assert ("kept",) == cluster.requests(MetadataRequest)[-1][0].topics
        await producer.send("done", b"c")

    produce_to(cluster, scenario)
    assert [b"a", b"c"] == cluster.values("done")


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partitioner_that_chooses_nonsense_is_told(number: int) -> None:
    """-1 would be the last partition, by Python's rules."""

    class Lost:
        def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:
            return number

        def batch_closed(self, topic: str, partition: int) -> None:
            pass

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TopicMissing, match=f"t/{number}: no such partition; t has 2"):
            await producer.enqueue("t", b"a")

    produce_to(one_topic(2), scenario, partitioner=Lost())


def test_an_answer_that_cannot_be_read_leaves_the_outcome_open() -> None:
    """The broker may have written the batch, or not: it is sent again, as after a connection that broke."""
    cluster = one_topic()
    cluster.answers[T0].append(Body(b"\0"))

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"a")

    produce_to(cluster, scenario)
    assert [b"a", b"a"] == cluster.values("t")


# -- afterwards


def test_a_delivery_that_is_kept_keeps_no_payload() -> None:
    """Programs that keep deliveries to look at them at the end must not keep all that they have ever written in memory."""

    class Forgetful:
        """Takes batches, those of more than 30 records in parts."""

        end = 0

        async def handle(self, leader: Broker, batches: Sequence[OutgoingBatch], outcomes: Outcomes) -> None:
            (batch,) = batches
            if len(batch.records) > 30:
                outcomes[batch.partition] = broker_error(10, "too large")
                return
            outcomes[batch.partition] = Written(base_offset=self.end)
            self.end += len(batch.records)

        async def drain(self) -> None:
            """Nothing is under way."""

    async def scenario(producer: Producer) -> int:
        await producer.send("t", b"first")
        gc.collect()
        tracemalloc.start()
        deliveries = [await producer.enqueue("t", os.urandom(1000)) for _ in range(2000)]
        await producer.flush()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
        assert [number + 1 for number in range(2000)] == [delivery.result().offset for delivery in deliveries]
        return taken

    try:
        taken = produce_to(one_topic(), scenario, handler=Forgetful())
    finally:
        tracemalloc.stop()
    assert taken < 600_000, "of 2,000,000"


def test_records_that_are_given_up_are_logged_even_if_trying_was() -> None:
    """Who looks into the log must see loss as loss, and how much; and again what comes after a recovery."""
    cluster = one_topic()
    cluster.answers[T0].extend([NOT_ENOUGH_REPLICAS] * 20)

    async def scenario(producer: Producer) -> None:
        for _ in range(2):
            await producer.enqueue("t", b"a")
            with pytest.raises(DeliveryTimedOut):
                await producer.send("t", b"b")
        cluster.answers[T0].clear()
        await producer.send("t", b"c")

    with structlog.testing.capture_logs() as events:
        produce_to(cluster, scenario, settings=ProducerSettings(delivery_timeout_s=3))
    told = [
        (one["event"], one.get("records", one.get("records_not_delivered")))
        for one in events
        if one.get("topic") == "t"
    ]
    assert [("produce_failed", None), ("records_not_delivered", 2), ("produce_recovered", 4)] == told


def test_counts_tell_how_it_does() -> None:
    """What an operator would want to see of a program that produces."""
    cluster = one_topic(2)
    cluster.answers[T0].extend([NOT_LEADER, NOT_AUTHORIZED])

    async def scenario(producer: Producer) -> ProducerCounts:
        with pytest.raises(WriteRefused):
            await producer.send("t", b"abc", partition=0)
        await producer.send("t", b"de", key=b"f", partition=1)
        await producer.enqueue("t", b"open", partition=1)
        return producer.counts()

    counts = produce_to(cluster, scenario, settings=ProducerSettings(linger_s=0.5))
    assert ProducerCounts(
        written_records=1, written_bytes=wire_size(b"f", b"de"), failed_records=1, retries=1, requests=3, open_records=1,
        open_bytes=wire_size(None, b"open") + RECORD_OVERHEAD_BYTES, waiting_callers=0,
    ) == counts  # fmt: skip


# -- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": 2}, "acks: expected 0, 1 or -1"),
        ({"batch_bytes": 0}, "batch_bytes: expected more than 0"),
        ({"linger_s": -1}, "linger_s: expected 0 or more"),
        ({"buffer_bytes": 1 << 20}, "buffer_bytes: 1048576 cannot hold one record of max_request_bytes"),
        ({"linger_s": 200}, "linger_s: 200 leaves no time to send"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int], message: str) -> None:
    """By name, before anything is sent."""
    with pytest.raises(ConfigError, match=message):
        ProducerSettings(**settings)  # type: ignore[arg-type]  # one of each kind


@pytest.mark.parametrize("text", ["", ",", "broker", "broker:", ":9092", "broker:0", "broker:70000", "broker:9092x"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="bootstrap: expected"):
        parse_bootstrap(text)


def test_addresses_are_read() -> None:
    """Several, with spaces, and of IPv6."""
    assert [("a", 9092), ("::1", 9093)] == [(one.host, one.port) for one in parse_bootstrap("a:9092, [::1]:9093")]


@pytest.mark.parametrize("headers", [(), (("name", b"value"), ("ä" * 50, None))])
@pytest.mark.parametrize(("key", "value"), [(None, None), (b"k" * 300, b"v" * 70_000)])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_record_is_never_larger_than_it_was_taken_for(
    key: bytes | None, value: bytes | None, headers: Headers, magic: int
) -> None:
    """Else a request would grow beyond its limit."""
    from consumerd.wire.modern.building import build_record_set

    if headers and magic < 2:
        return
    record = NewRecord(key=key, value=value, timestamp=1 << 40, headers=headers)
    alone = len(build_record_set([record], magic=magic))
    grown = len(build_record_set([record, record], magic=magic)) - alone
    assert grown <= wire_size(key, value, headers)
    assert RECORD_OVERHEAD_BYTES > 0
