# SPDX-License-Identifier: Apache-2.0
"""The producer against embedded brokers of Kafka 0.6 and 0.7; the fetcher reads what was written."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumerd.cli.main import make_parser
from consumerd.cli.produce import Tally
from consumerd.cli.produce_legacy import open_legacy_producer
from consumerd.client.delivery import Delivery, RecordMetadata
from consumerd.client.legacy_producer import run_legacy_producer
from consumerd.client.legacy_producer_rules import LegacyProducerSettings, UnknownOutcome
from consumerd.client.partitioner import hash_java
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import encode_text
from consumerd.client.producer_settings import ProducerSettings
from consumerd.embedded.legacy.broker import LegacyBrokerSettings
from consumerd.embedded.legacy.cluster import LegacyCluster
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError, DeliveryTimedOut, DeliveryUnknown, ProduceError
from consumerd.model import PartitionKey
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.compression import Codec
from consumerd.wire.records import Record
from consumerd.zk.aiozk_client import AiozkClient
from tests.support.legacy_reading import legacy_pool, list_legacy_partitions, read_legacy_topic
from tests.support.waiting import until
from tests.support.zookeeper import make_client, run_server

_chroots = itertools.count()
REGISTERED_MS = 3000
"""Session timeout of a broker that is killed: time in which records can still be assigned to it."""
FAIL = LegacyProducerSettings(on_unknown=UnknownOutcome.FAIL)
ZERO, ONE = PartitionKey.parse("0-0"), PartitionKey.parse("1-0")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for all tests; each has a chroot of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@dataclass(frozen=True)
class World:
    """A running cluster, and a session of the test's own."""

    cluster: LegacyCluster
    zk: AiozkClient
    partitions: int

    @asynccontextmanager
    async def producing(self, legacy: LegacyProducerSettings | None = None, **settings: Any) -> AsyncIterator[Producer]:
        """Run a producer with its own session and connections."""
        async with (
            make_client(self.cluster.zookeeper) as zk,
            legacy_pool() as pool,
            run_legacy_producer(
                zk,
                pool,
                settings=ProducerSettings(**settings),
                legacy=legacy or LegacyProducerSettings(),
                key_encoder=encode_text,
            ) as producer,
        ):
            yield producer

    async def read(self, topic: str = "t") -> Mapping[str, list[Record]]:
        """Return all records, by partition, once each running broker has registered what it has."""

        async def is_registered() -> bool:
            having = [broker for broker in self.cluster.brokers.values() if topic in broker.logs.topics()]
            return len(await list_legacy_partitions(self.zk, topic)) == len(having) * self.partitions

        await until(is_registered)
        return await read_legacy_topic(self.zk, topic)

    async def values(self, topic: str = "t") -> list[bytes]:
        """Return all values of a topic, sorted."""
        return sorted(values_of(one for records in (await self.read(topic)).values() for one in records))


def values_of(records: Iterator[Record] | Sequence[Record]) -> list[bytes]:
    """Return the values, which all records of this generation have."""
    return [one.value or b"" for one in records]


@pytest.fixture
def make_world(server: EmbeddedZooKeeper, tmp_path: Path) -> Any:
    """Return a function that runs a cluster for a block."""

    @asynccontextmanager
    async def run(
        nodes: int = 2, *, partitions: int = 3, magic: int = 1, session_timeout_ms: int = 1000, **log: Any
    ) -> AsyncIterator[World]:
        zookeeper = f"{server.connect_string}/legacy-producer-{next(_chroots)}"

        def make_broker(**settings: Any) -> LegacyBrokerSettings:
            base = LegacyBrokerSettings(
                num_partitions=partitions, magic=magic, session_timeout_ms=session_timeout_ms, **settings
            )
            return replace(base, log=replace(base.log, **log))

        async with (
            LegacyCluster(tmp_path, zookeeper=zookeeper, nodes=nodes, make_broker=make_broker) as cluster,
            make_client(zookeeper) as zk,
        ):
            yield World(cluster, zk, partitions)

    return run


async def settle(deliveries: Sequence[Delivery]) -> list[RecordMetadata | ProduceError]:
    """Return the outcomes."""
    found: list[RecordMetadata | ProduceError] = []
    for one in deliveries:
        try:
            found.append(await one)
        except ProduceError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY])
async def test_each_record_arrives_once_where_its_delivery_says(codec: Codec, make_world: Any) -> None:
    """With and without keys, on two brokers; a compressed batch is one message with one offset."""
    async with make_world() as world:
        places = defaultdict(list)
        async with world.producing(codec=codec, linger_s=0.02) as producer:
            for begin in range(0, 300, 100):
                values = [b"%d" % number for number in range(begin, begin + 100)]
                deliveries = [
                    await producer.enqueue("t", value, key=f"k{number % 7}" if number % 2 else None)
                    for number, value in enumerate(values)
                ]
                for value, delivery in zip(values, deliveries, strict=True):
                    metadata = await delivery
                    assert metadata.offset is None
                    places[f"{metadata.broker}-{metadata.partition}"].append(value)
        found = await world.read()
        assert dict(places) == {key: values_of(records) for key, records in found.items() if records}
        assert {"0", "1"} == {place.partition("-")[0] for place in places}
        indexes = {record.index for records in found.values() for record in records}
        assert (indexes == {0}) == (codec is Codec.NONE)


async def test_a_topic_spreads_to_a_broker_that_joins_and_to_all_its_partitions(make_world: Any) -> None:
    """First partition 0 of the new broker; it registers the topic, and the watch brings the rest."""
    async with make_world() as world:
        await world.cluster.stop_broker(1)
        async with world.producing() as producer:
            sent, used = 0, set()

            async def send_until(*wanted: str) -> None:
                nonlocal sent

                async def have_used() -> bool:
                    nonlocal sent
                    metadata = await producer.send("t", b"%d" % sent)
                    sent += 1
                    used.add(f"{metadata.broker}-{metadata.partition}")
                    return used.issuperset(wanted)

                await until(have_used)

            await send_until("0-0", "0-1", "0-2")
            assert {"0-0", "0-1", "0-2"} == used
            await world.cluster.start_broker(1)
            await send_until("1-0", "1-1", "1-2")
        assert sorted(b"%d" % number for number in range(sent)) == await world.values()


async def test_records_for_a_killed_broker_are_sent_when_it_is_back(make_world: Any) -> None:
    """At least once: those whose confirmation was lost may be there twice, and all are there."""
    async with make_world(partitions=1, session_timeout_ms=REGISTERED_MS) as world:
        async with world.producing(delivery_timeout_s=30, request_timeout_s=2) as producer:
            await producer.send("t", b"warm-up", partition=ONE)
            deliveries = [await producer.enqueue("t", b"a%d" % number, partition=ONE) for number in range(50)]
            await world.cluster.kill_broker(1)
            deliveries += [await producer.enqueue("t", b"b%d" % number, partition=ONE) for number in range(50)]
            await world.cluster.start_broker(1)
            outcomes = await settle(deliveries)
        assert [] == [one for one in outcomes if isinstance(one, ProduceError)]
        values = values_of((await world.read())["1-0"])
        assert {b"warm-up", *(b"%s%d" % (a, n) for a in (b"a", b"b") for n in range(50))} == set(values)
        later = [one for one in values if one.startswith(b"b")]
        assert [b"b%d" % number for number in range(50)] == later  # written once: no connection could be opened before


async def test_what_is_lost_and_what_is_unknown_is_told_when_a_broker_stays_away(make_world: Any) -> None:
    """Sent is in the log once; not in doubt is not in the log; in doubt may be."""
    async with make_world(partitions=1, session_timeout_ms=REGISTERED_MS) as world:
        async with world.producing(FAIL, delivery_timeout_s=1.5, request_timeout_s=1) as producer:
            await producer.send("t", b"warm-up", partition=ONE)
            names = [b"%d" % number for number in range(40)]
            deliveries = [await producer.enqueue("t", name, partition=ONE) for name in names[:20]]
            await world.cluster.kill_broker(1)
            deliveries += [await producer.enqueue("t", name, partition=ONE) for name in names[20:]]
            outcomes = dict(zip(names, await settle(deliveries), strict=True))
        await world.cluster.start_broker(1)
        values = values_of((await world.read())["1-0"])
    sent = [name for name, outcome in outcomes.items() if isinstance(outcome, RecordMetadata)]
    errors = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, ProduceError)}
    unsent = [name for name, error in errors.items() if not error.in_doubt]
    assert len(values) == len(set(values))
    assert set(sent) <= set(values)
    assert not set(unsent) & set(values)
    assert unsent
    assert all(isinstance(errors[name], DeliveryTimedOut) and "not sent" in str(errors[name]) for name in unsent)


@pytest.mark.parametrize("policy", UnknownOutcome)
async def test_a_connection_that_ends_after_the_write_leaves_the_outcome_unknown(
    policy: UnknownOutcome, make_world: Any
) -> None:
    """The broker has stored the records, and the producer cannot know: by policy they are sent again, or fail."""
    async with make_world(1, partitions=1) as world:
        async with world.producing(LegacyProducerSettings(on_unknown=policy)) as producer:
            await producer.send("t", b"warm-up")
            world.cluster.brokers[0].faults.close_at(ApiKey.FETCH, 0)
            (outcome,) = await settle([await producer.enqueue("t", b"x")])
            await producer.send("t", b"last")
        values = values_of((await world.read())["0-0"])
    if policy is UnknownOutcome.RESEND:
        assert isinstance(outcome, RecordMetadata)
        assert [b"warm-up", b"x", b"x", b"last"] == values
    else:
        assert isinstance(outcome, DeliveryUnknown)
        assert outcome.in_doubt
        assert [b"warm-up", b"x", b"last"] == values


async def test_a_broker_of_0_6_takes_magic_0_and_refuses_magic_1(make_world: Any) -> None:
    """It closes the connection, and the error says what that can mean."""
    async with make_world(1, partitions=1, magic=0) as world:
        async with world.producing(LegacyProducerSettings(magic=0)) as producer:
            await producer.send("t", b"of 0.6")
        async with world.producing(request_timeout_s=0.5, delivery_timeout_s=1) as producer:
            (error,) = await settle([await producer.enqueue("t", b"of 0.7")])
        assert isinstance(error, DeliveryTimedOut)
        assert "t/0-0: 1 record not acknowledged" in str(error)
        assert "Kafka 0.6: magic 1" in str(error)
        assert [b"of 0.6"] == await world.values()


async def test_with_acks_0_all_is_sent_before_the_end(make_world: Any) -> None:
    """Closing waits until the brokers have worked on everything."""
    async with make_world() as world:
        async with world.producing(acks=0) as producer:
            for number in range(200):
                await producer.enqueue("t", b"%d" % number)
        assert sorted(b"%d" % number for number in range(200)) == await world.values()


async def test_a_message_above_the_brokers_limit_counts_as_sent_though_it_is_dropped(make_world: Any) -> None:
    """It cannot be known: this is why the limit is a setting of the producer."""
    async with make_world(1, partitions=1, max_message_bytes=1000) as world:
        async with world.producing() as producer:
            await producer.send("t", b"small")
            assert (await producer.send("t", b"x" * 1001)).offset is None
            await producer.send("t", b"small")
        assert [b"small"] * 2 == await world.values()


async def test_a_broker_that_comes_back_at_another_address_is_found(make_world: Any, tmp_path: Path) -> None:
    """Its registration in ZooKeeper has the new one."""
    async with make_world(1, partitions=1) as world:
        async with world.producing(delivery_timeout_s=20, request_timeout_s=2) as producer:
            await producer.send("t", b"before")
            before = world.cluster.brokers[0].port
            await world.cluster.stop_broker(0)
            world.cluster._settings[0] = replace(world.cluster._settings[0], port=0)
            await world.cluster.start_broker(0)
            assert before != world.cluster.brokers[0].port
            await producer.send("t", b"after", partition=ZERO)
        assert [b"before", b"after"] == values_of((await world.read())["0-0"])


async def test_producers_beside_each_other_lose_nothing(make_world: Any) -> None:
    """The first records of a new topic, from three producers at once."""
    async with make_world() as world:

        async def produce(name: int) -> None:
            async with world.producing() as producer:
                for number in range(50):
                    await producer.enqueue("t", b"%d/%d" % (name, number))

        async with asyncio.TaskGroup() as group:
            for name in range(3):
                group.create_task(produce(name))
        assert sorted(b"%d/%d" % (name, number) for name in range(3) for number in range(50)) == await world.values()


async def test_the_command_s_options_reach_the_producer(make_world: Any) -> None:
    """``consumerd produce`` chooses this producer by the layout of the cluster; keys are hashed as text."""
    parsed = make_parser().parse_args
    async with make_world(1, magic=0) as world, make_client(world.cluster.zookeeper) as zk, legacy_pool() as pool:
        await zk.wait_connected()
        args = parsed(["produce", "t", "-z", "zk:1", "--magic", "0", "--unknown", "fail", "--partition", "0-0"])
        tally = Tally(lambda: None)
        async with open_legacy_producer(args, zk, pool, ProducerSettings(), tally) as producer:
            await producer.enqueue("t", b"first", partition=args.partition)
        await until(partial(is_spread, world))
        async with open_legacy_producer(args, zk, pool, ProducerSettings(), tally) as producer:
            metadata = await producer.send("t", b"keyed", key=b"k1")
        assert hash_java("k1", b"") % 3 == metadata.partition
        assert (2, True, 0) == (tally.acknowledged, tally.sent_only, tally.failed)
        assert [b"first", b"keyed"] == await world.values()
        for option in (["--header", "a=b"], ["--null-value", "-"], ["--codec", "lz4"], ["--codec", "gzip"]):
            args = parsed(["produce", "t", "-z", "zk:1", "--magic", "0", *option])
            settings = ProducerSettings(codec=Codec[args.codec.upper()])
            with pytest.raises(ConfigError):
                await open_legacy_producer(args, zk, pool, settings, tally).__aenter__()


async def is_spread(world: World) -> bool:
    """Return True if the topic's three partitions are registered."""
    return len(await list_legacy_partitions(world.zk, "t")) == 3
