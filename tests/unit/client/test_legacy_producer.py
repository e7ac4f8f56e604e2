# SPDX-License-Identifier: Apache-2.0
"""The producer over brokers of Kafka 0.7 in memory, on virtual time."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import structlog.testing

from consumerd.client.delivery import Delivery, RecordMetadata
from consumerd.client.legacy_producer_rules import LegacyProducerSettings, UnknownOutcome
from consumerd.client.partitioner import Candidates, hash_java, make_legacy_partitioner
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import ProducerHooks, encode_text
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import (
    ConfigError,
    CoordinationError,
    DeliveryTimedOut,
    DeliveryUnknown,
    OversizedRecord,
    ProduceError,
    ProducerClosed,
    TopicMissing,
    WriteRefused,
)
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest, LegacyMultiProduceRequest, LegacyProduceRequest
from consumerd.wire.legacy.session import read_legacy_request
from consumerd.wire.legacy.stored_message import encode_message
from consumerd.wire.records import NewRecord
from tests.support.legacy_frames import get_exchange
from tests.support.legacy_producing import LegacyProduceCluster, produce_to_legacy

SLOW = ProducerSettings(linger_s=0.5)
"""Records of one moment go together."""
FAIL = LegacyProducerSettings(on_unknown=UnknownOutcome.FAIL)


def key_of(text: str) -> PartitionKey:
    return PartitionKey.parse(text)


def place_of(metadata: RecordMetadata) -> str:
    return f"{metadata.broker}-{metadata.partition}"


async def settle(deliveries: Sequence[Delivery]) -> list[ProduceError | None]:
    """Wait for outcomes; return None for what was sent."""
    found: list[ProduceError | None] = []
    for one in deliveries:
        try:
            await one
        except ProduceError as error:
            found.append(error)
        else:
            found.append(None)
    return found


class Chosen:
    """A partitioner that notes what it may choose from, and takes an index of the test."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.counts: list[int] = []

    def choose(self, _key: object, _key_bytes: bytes | None, candidates: Candidates) -> int:
        self.counts.append(candidates.count)
        return self.index

    def batch_closed(self, _topic: str, _partition: int) -> None:
        """Do nothing."""


# -- which partition


def test_a_new_topic_goes_to_partition_0_and_a_watch_tells_the_rest() -> None:
    """No broker lists it yet, and each of them has its partition 0; the first record makes the others known."""
    cluster = LegacyProduceCluster(2, partitions=3)
    partitioner = Chosen(index=1)

    async def scenario(producer: Producer) -> list[str]:
        places = [place_of(await producer.send("dogs", b"first"))]
        await asyncio.sleep(1)
        places += [place_of(await producer.send("dogs", b"then"))]
        partitioner.index = 3
        places += [place_of(await producer.send("dogs", b"last"))]
        return places

    assert ["1-0", "1-0", "1-2"] == produce_to_legacy(cluster, scenario, partitioner=partitioner)
    assert [2, 4, 4] == partitioner.counts  # 0-0 and 1-0; then 0-0 and 1-0 to 1-2
    assert [b"first", b"then"] == cluster.peers[1].values("dogs", 0)
    assert [] == cluster.peers[0].values("dogs")


def test_a_broker_that_joins_gets_its_first_record_in_partition_0() -> None:
    """Else a topic would never come to a new broker: it registers the topic when it has a message."""
    cluster = LegacyProduceCluster(2, partitions=2)
    cluster.kill(1)
    cluster.expire(1)
    partitioner = Chosen()

    async def scenario(producer: Producer) -> str:
        await producer.send("dogs", b"a")
        await asyncio.sleep(1)
        cluster.start(1)
        await asyncio.sleep(1)
        partitioner.index = 2
        place = place_of(await producer.send("dogs", b"b"))
        await asyncio.sleep(1)
        await producer.send("dogs", b"c")
        return place

    assert "1-0" == produce_to_legacy(cluster, scenario, partitioner=partitioner)
    assert [1, 3, 4] == partitioner.counts


@pytest.mark.parametrize("encode", [str, str.encode])
def test_a_key_goes_where_the_java_producer_sends_it(encode: Callable[[str], object]) -> None:
    """The list is in the order of numbers, 0-2 before 0-10; a key is text, also if it is given as bytes."""
    cluster = LegacyProduceCluster(2, partitions=12)
    cluster.register_topic("t", 0)
    cluster.register_topic("t", 1)
    keys = [f"key-{number}" for number in range(60)]

    async def scenario(producer: Producer) -> list[str]:
        return [place_of(await producer.send("t", b"x", key=encode(key))) for key in keys]

    expected = [hash_java(key, b"") % 24 for key in keys]
    found = produce_to_legacy(cluster, scenario, key_encoder=encode_text)
    assert [f"{index // 12}-{index % 12}" for index in expected] == found


@pytest.mark.parametrize(
    ("name", "key", "index"),
    [("java-hash", "ключ", 2), ("java-hash", b"\xff\x00", 0), ("murmur2", b"key", 1), ("round-robin", b"key", 2)],
)
def test_a_partitioner_by_name_takes_any_key(name: str, key: object, index: int) -> None:
    """Binary keys are hashed by their bytes, which a Java program could not do."""
    partitioner = make_legacy_partitioner(name, lambda: 0.5, lambda: 0.0)
    candidates = Candidates(topic="t", count=5, available=range(5))
    assert index == partitioner.choose(key, encode_text(key), candidates)
    partitioner.batch_closed("t", 0)
    if name != "round-robin":
        assert 2 == partitioner.choose(None, None, candidates)


def test_records_without_a_key_are_spread_at_random() -> None:
    """Each has a choice of its own, as in Kafka 0.7; the seed decides."""
    cluster = LegacyProduceCluster(2, partitions=2)
    cluster.register_topic("t", 0)
    cluster.register_topic("t", 1)

    async def scenario(producer: Producer) -> Counter[str]:
        deliveries = [await producer.enqueue("t", b"x") for _ in range(400)]
        return Counter([place_of(await one) for one in deliveries])

    found = produce_to_legacy(cluster, scenario, random=random.Random(3).random)
    assert {"0-0", "0-1", "1-0", "1-1"} == set(found)
    assert min(found.values()) > 70


def test_a_partition_can_be_named_with_its_broker() -> None:
    """A number alone says nothing: each broker has a partition 1."""
    cluster = LegacyProduceCluster(2, partitions=2)
    cluster.register_topic("t", 0)
    cluster.register_topic("t", 1)

    async def scenario(producer: Producer) -> list[str]:
        await producer.send("t", b"x", partition=key_of("1-1"))
        faults = []
        for wrong in (1, key_of("0-2"), key_of("7-0")):
            with pytest.raises(TopicMissing) as caught:
                await producer.send("t", b"x", partition=wrong)
            faults.append(str(caught.value))
        return faults

    faults = produce_to_legacy(cluster, scenario)
    assert [b"x"] == cluster.peers[1].values("t", 1)
    reason = "no such partition; t has 0-0, 0-1, 1-0, 1-1 on the brokers that are registered now; name one as BROKER-N"
    assert [f"t/{one}: {reason}" for one in ("1", "0-2", "7-0")] == faults


def test_new_records_avoid_a_broker_whose_registration_has_ended() -> None:
    """Its partitions leave the list with it, and come back with it, where they were."""
    cluster = LegacyProduceCluster(2)
    cluster.register_topic("t", 0)
    cluster.register_topic("t", 1)

    async def scenario(producer: Producer) -> list[set[str]]:
        places = []
        for change in (lambda: None, lambda: cluster.expire(1), lambda: cluster.start(1)):
            change()
            await asyncio.sleep(3)
            places.append({place_of(await producer.send("t", b"x")) for _ in range(20)})
        return places

    both = {"0-0", "1-0"}
    assert [both, {"0-0"}, both] == produce_to_legacy(cluster, scenario, random=random.Random(1).random)


# -- requests


@pytest.mark.parametrize(
    ("name", "values", "codec", "magic"),
    [
        ("gzip", [b"in-1", b"in-2", b"in-3"], Codec.GZIP, 1),
        ("magic0", [b"old one", b"old two"], Codec.NONE, 0),
        ("snappy_xerial", [b"in-1", b"in-2", b"in-3"], Codec.SNAPPY, 1),
    ],
)
def test_a_request_equals_the_recorded_one(name: str, values: list[bytes], codec: Codec, magic: int) -> None:
    """Topic, partition and message set, byte for byte."""
    recorded = get_exchange(f"k072_produce_{name}").request
    request = read_legacy_request(recorded[4:])
    assert isinstance(request, LegacyProduceRequest)
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> None:
        for value in values:
            await producer.enqueue(request.topic, value)

    settings = ProducerSettings(linger_s=0.1, codec=codec)
    produce_to_legacy(cluster, scenario, settings=settings, legacy=LegacyProducerSettings(magic=magic))
    assert [recorded] == cluster.peers[0].frames


def test_the_plain_request_equals_the_recorded_one() -> None:
    """Its messages are read from the recording."""
    recorded = get_exchange("k072_produce_plain").request
    request = read_legacy_request(recorded[4:])
    assert isinstance(request, LegacyProduceRequest)
    source, cluster = LegacyProduceCluster(), LegacyProduceCluster()
    source.peers[0].log(request.topic, 0).append(bytes(request.messages))

    async def scenario(producer: Producer) -> None:
        for value in source.peers[0].values(request.topic):
            await producer.enqueue(request.topic, value)

    produce_to_legacy(cluster, scenario, settings=SLOW)
    assert [recorded] == cluster.peers[0].frames


def test_partitions_of_one_broker_share_a_multiproduce() -> None:
    """One request for each broker, and each partition has one message set in it."""
    cluster = LegacyProduceCluster(2, partitions=2)
    cluster.register_topic("t", 0)
    cluster.register_topic("t", 1)

    async def scenario(producer: Producer) -> None:
        for number in range(6):
            for name in ("0-0", "0-1", "1-0"):
                await producer.enqueue("t", b"%d" % number, partition=key_of(name))
        await producer.flush()

    produce_to_legacy(cluster, scenario, settings=SLOW)
    first, second = (read_legacy_request(peer.frames[0][4:]) for peer in cluster.peers)
    assert [1, 1] == [len(peer.frames) for peer in cluster.peers]
    assert isinstance(first, LegacyMultiProduceRequest)
    assert isinstance(second, LegacyProduceRequest)
    assert [("t", 0), ("t", 1)] == [(one.topic, one.partition) for one in first.requests]
    values = [b"%d" % number for number in range(6)]
    assert (
        values == cluster.peers[0].values("t", 0) == cluster.peers[0].values("t", 1) == cluster.peers[1].values("t", 0)
    )


def test_a_batch_is_sent_when_it_is_full() -> None:
    """By size, without the wait for more records."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> float:
        await producer.send("t", b"warm-up")
        started = asyncio.get_running_loop().time()
        for one in [await producer.enqueue("t", b"x" * 300) for _ in range(4)]:
            await one
        return asyncio.get_running_loop().time() - started

    settings = ProducerSettings(linger_s=5, batch_bytes=1336)  # four such records
    assert produce_to_legacy(cluster, scenario, settings=settings) < 0.1


# -- what is known of a record


def test_sent_has_no_offset_and_waits_for_the_broker() -> None:
    """With acks the broker has worked on the request; nothing ever tells that the record is stored."""
    cluster = LegacyProduceCluster()
    peer = cluster.peers[0]

    async def scenario(producer: Producer) -> RecordMetadata:
        await producer.send("t", b"warm-up")
        peer.silent = True
        delivery = await producer.enqueue("t", b"a")
        await asyncio.sleep(1)
        assert not delivery.done
        peer.silent = False
        for stream in cluster.network.streams:
            stream.close()
        return await delivery

    found = produce_to_legacy(cluster, scenario)
    assert (
        RecordMetadata(topic="t", partition=0, offset=None, timestamp_ms=1_300_000_000_000, broker=BrokerId(0)) == found
    )


def test_with_acks_0_nothing_is_waited_for_until_the_end() -> None:
    """As the Java producer of 0.7; closing waits once for all."""
    cluster = LegacyProduceCluster()
    peer = cluster.peers[0]

    async def scenario(producer: Producer) -> int:
        for number in range(5):
            await producer.send("t", b"%d" % number)
        return len(peer.asked(LegacyMultiFetchRequest))

    assert 0 == produce_to_legacy(cluster, scenario, settings=ProducerSettings(acks=0))
    assert 1 == len(peer.asked(LegacyMultiFetchRequest))
    assert 5 == len(peer.values("t"))


@pytest.mark.parametrize("when", ["before more is sent", "at the end"])
def test_with_acks_0_a_lost_connection_is_logged(when: str) -> None:
    """No delivery can tell it: they have ended as sent."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> None:
        for number in range(3):
            await producer.send("t", b"%d" % number)
        for stream in cluster.network.streams:
            stream.close()
        if when == "before more is sent":
            await producer.send("t", b"later")

    with structlog.testing.capture_logs() as logs:
        produce_to_legacy(cluster, scenario, settings=ProducerSettings(acks=0))
    (warning,) = [one for one in logs if one["event"] == "sent_records_unconfirmed"]
    assert (0, 3) == (warning["broker"], warning["records"])


def test_what_was_not_sent_is_sent_once_when_the_broker_is_back() -> None:
    """No connection, so nothing can be in the log: it is sent again under each policy, and never twice."""
    cluster = LegacyProduceCluster()
    cluster.register_topic("t", 0)

    async def scenario(producer: Producer) -> list[ProduceError | None]:
        await producer.send("t", b"warm-up")
        cluster.kill(0)
        deliveries = [await producer.enqueue("t", b"%d" % number) for number in range(20)]
        await asyncio.sleep(20)
        cluster.start(0)
        return await settle(deliveries)

    assert [None] * 20 == produce_to_legacy(cluster, scenario, legacy=FAIL)
    assert [b"warm-up", *(b"%d" % number for number in range(20))] == cluster.peers[0].values("t")


@pytest.mark.parametrize("registered", [True, False])
def test_what_could_not_be_sent_in_time_is_known_as_not_written(registered: bool) -> None:
    """The error says so, and whose partition it was; a program may send the record to another one."""
    cluster = LegacyProduceCluster()
    cluster.register_topic("t", 0)

    async def scenario(producer: Producer) -> ProduceError | None:
        await producer.send("t", b"warm-up")
        cluster.kill(0)
        delivery = await producer.enqueue("t", b"a")
        if not registered:
            cluster.expire(0)
            delivery = await producer.enqueue("t", b"a")
        return (await settle([delivery]))[0]

    error = produce_to_legacy(cluster, scenario, settings=ProducerSettings(delivery_timeout_s=40))
    assert isinstance(error, DeliveryTimedOut)
    assert not error.in_doubt
    assert error.partition == TopicPartition("t", key_of("0-0"))
    assert "not sent" in str(error)
    assert "may have been written" not in str(error)


def test_what_may_be_written_is_sent_again() -> None:
    """By default: the broker stored it, and the connection ended before it could say so."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> None:
        await producer.send("t", b"first")
        cluster.peers[0].loses = 1
        await producer.send("t", b"twice")
        await producer.send("t", b"last")

    produce_to_legacy(cluster, scenario)
    assert [b"first", b"twice", b"twice", b"last"] == cluster.peers[0].values("t")


def test_what_may_be_written_fails_where_duplicates_are_not_wanted() -> None:
    """At once, and with what is known; records behind it are sent."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> list[ProduceError | None]:
        await producer.send("t", b"first")
        cluster.peers[0].loses = 1
        return [
            *await settle([await producer.enqueue("t", b"once")]),
            *await settle([await producer.enqueue("t", b"z")]),
        ]

    error, none = produce_to_legacy(cluster, scenario, legacy=FAIL)
    assert none is None
    assert isinstance(error, DeliveryUnknown)
    assert error.in_doubt
    assert error.partition == TopicPartition("t", key_of("0-0"))
    assert "it is unknown if the records were written" in str(error).lower()
    assert [b"first", b"once", b"z"] == cluster.peers[0].values("t")


def test_a_broker_that_never_confirms_leaves_a_record_in_doubt() -> None:
    """It has taken the request each time; the error says that the record may be there."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> ProduceError | None:
        cluster.peers[0].loses = 10_000
        return (await settle([await producer.enqueue("t", b"a")]))[0]

    error = produce_to_legacy(cluster, scenario, settings=ProducerSettings(delivery_timeout_s=40))
    assert isinstance(error, DeliveryTimedOut)
    assert error.in_doubt
    assert "may have been written" in str(error)


def test_a_refused_batch_does_not_repeat_the_others_more_than_once() -> None:
    """A broker stores the sets before the bad one of a MULTIPRODUCE; sent alone, each has an outcome of its own."""
    cluster = LegacyProduceCluster(partitions=3)
    cluster.register_topic("t", 0)

    async def scenario(producer: Producer) -> list[ProduceError | None]:
        cluster.peers[0].refused = {1}
        deliveries = [await producer.enqueue("t", b"x", partition=key_of(f"0-{number}")) for number in range(3)]
        return await settle(deliveries)

    settings = ProducerSettings(linger_s=0.1, delivery_timeout_s=40)
    first, refused, last = produce_to_legacy(cluster, scenario, settings=settings)
    assert first is last is None
    assert isinstance(refused, DeliveryTimedOut)
    assert "it refuses the request: a partition that it does not have" in str(refused)
    assert [2, 0, 1] == [len(cluster.peers[0].values("t", number)) for number in range(3)]


def test_after_it_was_confirmed_alone_a_partition_shares_requests_again() -> None:
    """One lost connection must not cost single requests for ever."""
    cluster = LegacyProduceCluster(partitions=2)
    cluster.register_topic("t", 0)

    async def scenario(producer: Producer) -> None:
        for _ in range(2):
            for number in range(2):
                await producer.enqueue("t", b"x", partition=key_of(f"0-{number}"))
            await producer.flush()

    cluster.peers[0].loses = 1
    produce_to_legacy(cluster, scenario, settings=SLOW)
    kinds = [type(read_legacy_request(frame[4:])) for frame in cluster.peers[0].frames]
    multiple, single = LegacyMultiProduceRequest, LegacyProduceRequest
    assert [multiple, single, single, multiple] == kinds


@pytest.mark.parametrize("sent", [False, True])
def test_closing_tells_what_was_sent(sent: bool) -> None:
    """What waited for its broker was not; what waited for its confirmation may be written."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> ProduceError | None:
        await producer.send("t", b"warm-up")
        if sent:
            cluster.peers[0].silent = True
        else:
            cluster.kill(0)
        delivery = await producer.enqueue("t", b"a")
        await producer.close(timeout_s=1)
        return (await settle([delivery]))[0]

    error = produce_to_legacy(cluster, scenario)
    assert isinstance(error, ProducerClosed)
    assert error.in_doubt is sent
    assert ("they were not sent" in str(error)) is not sent


async def send_one_by_one(producer: Producer, cluster: LegacyProduceCluster) -> list[Delivery]:
    """Send to 0-0, 0-1 and 0-2 in requests of their own; the broker hangs once it has stored the record of 0-1.

    Partitions are sent by themselves since requests before had an unknown outcome.
    """
    (peer,) = cluster.peers
    names = [key_of(f"0-{number}") for number in range(3)]
    peer.loses = 10_000
    failed = await settle([await producer.enqueue("t", b"doubted", partition=name) for name in names])
    assert [True] * 3 == [error is not None and error.in_doubt for error in failed]
    peer.loses, peer.hangs = 0, {1}
    return [await producer.enqueue("t", b"x", partition=name) for name in names]


def check_one_by_one(
    cluster: LegacyProduceCluster, errors: Sequence[ProduceError | None], kind: type[ProduceError]
) -> None:
    confirmed, unconfirmed, unsent = errors
    assert confirmed is None
    assert isinstance(unconfirmed, kind)
    assert unconfirmed.in_doubt
    assert isinstance(unsent, kind)
    assert not unsent.in_doubt
    assert [True, True, False] == [b"x" in cluster.peers[0].values("t", number) for number in range(3)]


def test_a_time_limit_does_not_change_what_is_known_of_the_requests_before_it() -> None:
    """A confirmed record must not count as lost, nor one that was never sent as possibly written."""
    cluster = LegacyProduceCluster(partitions=3)
    cluster.register_topic("t", 0)

    async def scenario(producer: Producer) -> list[ProduceError | None]:
        return await settle(await send_one_by_one(producer, cluster))

    settings = ProducerSettings(linger_s=0.1, delivery_timeout_s=15, request_timeout_s=20)
    check_one_by_one(cluster, produce_to_legacy(cluster, scenario, settings=settings), DeliveryTimedOut)


def test_closing_does_not_change_what_is_known_of_the_requests_before_it() -> None:
    """As with the time limit of a delivery; hooks are told the same."""
    cluster = LegacyProduceCluster(partitions=3)
    cluster.register_topic("t", 0)
    told: list[tuple[str, str]] = []

    class Listener(ProducerHooks):
        def after_sending(self, partition: TopicPartition, records: Sequence[NewRecord], outcome: object) -> None:
            told.extend((str(partition), type(outcome).__name__) for one in records if one.value == b"x")

    async def scenario(producer: Producer) -> list[ProduceError | None]:
        deliveries = await send_one_by_one(producer, cluster)
        await producer.close(timeout_s=5)
        return await settle(deliveries)

    settings = ProducerSettings(linger_s=0.1, delivery_timeout_s=15, request_timeout_s=20)
    errors = produce_to_legacy(cluster, scenario, settings=settings, hooks=Listener())
    check_one_by_one(cluster, errors, ProducerClosed)
    assert [("t/0-0", "Written"), ("t/0-1", "ProducerClosed"), ("t/0-2", "ProducerClosed")] == told


@pytest.mark.parametrize("closes", [False, True])
def test_an_unconfirmed_request_at_the_time_limit_is_unknown_where_it_is_not_sent_again(closes: bool) -> None:
    """The policy's own error says so, also if the producer's time limit comes before that of the request."""
    cluster = LegacyProduceCluster(partitions=3)
    cluster.register_topic("t", 0)
    cluster.peers[0].hangs = {0}

    async def scenario(producer: Producer) -> ProduceError | None:
        delivery = await producer.enqueue("t", b"x", partition=key_of("0-0"))
        if closes:
            await producer.close(timeout_s=5)
        return (await settle([delivery]))[0]

    settings = ProducerSettings(delivery_timeout_s=15, request_timeout_s=20)
    error = produce_to_legacy(cluster, scenario, settings=settings, legacy=FAIL)
    assert isinstance(error, DeliveryUnknown)
    assert error.in_doubt


# -- records and settings that brokers would not take


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_message_that_brokers_would_drop_is_refused(codec: Codec) -> None:
    """Silently dropped, it would count as sent; the error names the topic and both limits."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> str:
        await producer.send("t", b"x" * 1000)
        with pytest.raises(OversizedRecord) as caught:
            await producer.send("t", b"x" * 1001)
        return str(caught.value)

    text = produce_to_legacy(
        cluster,
        scenario,
        settings=ProducerSettings(codec=codec),
        legacy=LegacyProducerSettings(max_message_bytes=1000),
    )
    assert text.startswith("t: a message of 1001 bytes, the limit is 1000")
    assert "max.message.size" in text
    assert 1 == len(cluster.peers[0].values("t"))


def test_a_batch_that_compression_makes_too_large_is_sent_plain() -> None:
    """A compressed message counts as a whole, and would be dropped as a whole."""
    cluster = LegacyProduceCluster()
    values = [os.urandom(400) for _ in range(5)]

    async def scenario(producer: Producer) -> None:
        for value in values:
            await producer.enqueue("t", value)

    settings = ProducerSettings(codec=Codec.GZIP, linger_s=0.1)
    produce_to_legacy(cluster, scenario, settings=settings, legacy=LegacyProducerSettings(max_message_bytes=1000))
    assert b"".join(map(encode_message, values)) == cluster.peers[0].logs["t", 0].data


def test_headers_and_tombstones_are_refused_at_the_call() -> None:
    """Kafka 0.7 has no place for them; left out in silence, they would be lost."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> None:
        with pytest.raises(ValueError, match="t: messages of Kafka"):
            await producer.send("t", b"x", headers=(("h", b"1"),))
        with pytest.raises(ValueError, match="no tombstones"):
            await producer.send("t", None)

    produce_to_legacy(cluster, scenario)
    assert [] == cluster.peers[0].frames


class Replaces(ProducerHooks):
    """Replaces the value of each record, after the call's own checks."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def after_dequeuing(self, _partition: TopicPartition, record: NewRecord) -> Sequence[NewRecord]:
        return (NewRecord(key=None, value=self._value, timestamp=record.timestamp, headers=()),)


@pytest.mark.parametrize(("value", "expected"), [(None, WriteRefused), (b"x" * 2000, OversizedRecord)])
def test_records_of_hooks_are_checked_too(value: bytes | None, expected: type[ProduceError]) -> None:
    """Nothing is sent that a broker would drop or could not store, and the delivery says so."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> ProduceError | None:
        return (await settle([await producer.enqueue("t", b"x")]))[0]

    legacy = LegacyProducerSettings(max_message_bytes=1000)
    error = produce_to_legacy(cluster, scenario, hooks=Replaces(value), legacy=legacy)
    assert isinstance(error, expected)
    assert not error.in_doubt
    assert [] == cluster.peers[0].frames


@pytest.mark.parametrize(
    ("codec", "magic", "text"),
    [
        (Codec.LZ4, 1, "codec lz4: Kafka 0.7 has none, gzip and snappy"),
        (Codec.GZIP, 0, "codec gzip: Kafka 0.6"),
    ],
)
def test_a_codec_that_brokers_do_not_know_is_refused_at_the_start(codec: Codec, magic: int, text: str) -> None:
    """A broker would close the connection, without a reason."""

    async def scenario(_producer: Producer) -> None:
        raise AssertionError("not reached")

    with pytest.raises(ConfigError, match=text):
        produce_to_legacy(
            LegacyProduceCluster(),
            scenario,
            settings=ProducerSettings(codec=codec),
            legacy=LegacyProducerSettings(magic=magic),
        )


@pytest.mark.parametrize(
    ("options", "text"), [({"magic": 2}, "magic: expected 0"), ({"max_message_bytes": 0}, "max_m")]
)
def test_settings_are_checked(options: dict[str, int], text: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=text):
        LegacyProducerSettings(**options)


def test_a_record_above_the_limit_of_requests_is_refused() -> None:
    """The limit is the producer's own."""

    async def scenario(producer: Producer) -> None:
        with pytest.raises(
            OversizedRecord, match="t: a record of 634 bytes, the limit is 600; raise max_request_bytes"
        ):
            await producer.send("t", b"x" * 600)

    produce_to_legacy(LegacyProduceCluster(), scenario, settings=ProducerSettings(max_request_bytes=600))


# -- clusters that cannot be written to


def test_without_a_broker_the_topic_and_the_place_to_look_are_named() -> None:
    """A wrong chroot looks just like it."""
    cluster = LegacyProduceCluster()
    cluster.expire(0)

    async def scenario(producer: Producer) -> str:
        with pytest.raises(TopicMissing) as caught:
            await producer.send("t", b"x")
        return str(caught.value)

    text = produce_to_legacy(cluster, scenario, settings=ProducerSettings(max_block_s=3))
    assert text.startswith("t: no broker is registered in ZooKeeper (/brokers/ids) within 3 s; start one")
    assert "chroot" in text


def test_a_broker_that_registers_within_the_wait_is_enough() -> None:
    """The watch tells of it."""
    cluster = LegacyProduceCluster()
    cluster.expire(0)

    async def scenario(producer: Producer) -> None:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(producer.send("t", b"x"))
            await asyncio.sleep(5)
            cluster.start(0)
            await sending

    produce_to_legacy(cluster, scenario, settings=ProducerSettings(max_block_s=10))
    assert [b"x"] == cluster.peers[0].values("t")


def test_without_zookeeper_the_error_says_that() -> None:
    """And no record is lost in between: it was not accepted."""
    cluster = LegacyProduceCluster()

    async def scenario(producer: Producer) -> TopicMissing:
        assert cluster.session is not None
        cluster.session.cut()
        with pytest.raises(TopicMissing) as caught:
            await producer.send("t", b"x")
        return caught.value

    error = produce_to_legacy(cluster, scenario, settings=ProducerSettings(max_block_s=3))
    assert "t: its brokers could not be read from ZooKeeper within 3 s" in str(error)
    assert isinstance(error.__cause__, CoordinationError)
