# SPDX-License-Identifier: Apache-2.0
"""Embedded brokers without ZooKeeper: topic ids, the version ranges of 4.0, and metadata that outlive the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.errors import ConfigError
from consumerd.model import TopicPartition
from consumerd.net.versions import RELEASES
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import NO_UUID
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.list_offsets import LATEST_TIMESTAMP, ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from tests.support.broker_script import CLOSED, Asker, records
from tests.support.embedded import EmbeddedThread
from tests.support.foreign.aiokafka_client import AiokafkaMember
from tests.support.foreign.kafka_python import KafkaPython
from tests.support.foreign.librdkafka import LibrdkafkaMember
from tests.support.foreign.membership import PARTITIONS, ROUND, Driven
from tests.support.raw_client import fetch, produce, raw_client
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)
QUICK = partial(BrokerSettings, as_release="4.0", session_timeout_ms=1000)


@asynccontextmanager
async def served(directory: Path | None = None, nodes: int = 1) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(
        directory, without_zookeeper=True, nodes=nodes, make_broker=QUICK, topics={"t": 1}
    ) as cluster:
        yield cluster


async def describe(cluster: EmbeddedCluster, version: int = 12) -> Any:
    async with raw_client(cluster.broker.port) as client:
        return await client.ask(MetadataRequest(topics=("t",)), version)


async def test_topics_have_ids_and_a_new_one_when_they_are_made_again(tmp_path: Path) -> None:
    """The only way to tell a re-created topic from the one before it; over a restart the id is the same."""
    async with served(tmp_path) as cluster:
        first = await describe(cluster)
        with pytest.raises(RuntimeError):
            _ = cluster.zookeeper
        async with raw_client(cluster.broker.port) as client:
            await client.ask(produce("t", records(2)), 3)
    async with served(tmp_path) as cluster:
        again = await describe(cluster)
        async with raw_client(cluster.broker.port) as client:
            kept = await client.ask(fetch("t"), 5)
        await cluster.broker.topics.delete("t")
        await cluster.broker.create_topic("t")
        made_again, without_ids = await describe(cluster), await describe(cluster, 9)
        async with raw_client(cluster.broker.port) as client:
            emptied = await client.ask(fetch("t"), 5)

    ids = [answer.topics[0].topic_id for answer in (first, again, made_again, without_ids)]
    assert ids[0] == ids[1] != ids[2]
    assert ids[3] == NO_UUID not in ids[:3]
    assert first.cluster_id == made_again.cluster_id
    assert 22 == len(first.cluster_id)
    assert 0 == first.topics[0].partitions[0].leader_epoch
    assert (3, 0) == tuple(one.topics[0].partitions[0].high_watermark for one in (kept, emptied))
    assert ["logs", "metadata"] == sorted(path.name for path in tmp_path.iterdir())


async def test_versions_are_those_of_40_with_their_minima() -> None:
    """Produce is listed from 0 on, as a courtesy, and closed without an answer below 3 all the same."""
    async with served() as cluster, raw_client(cluster.broker.port) as client:
        answer = await client.ask(ApiVersionsRequest(), 0)
        listed = {one.api_key: (one.min_version, one.max_version) for one in answer.api_versions}
        asker = Asker(cluster.bootstrap)
        one = ListPartition(partition=0, timestamp=LATEST_TIMESTAMP)
        topics = (CommitTopic(topic="t", partitions=(CommitPartition(partition=0, offset=0, metadata=""),)),)
        below = [
            (produce("t", records(1)), 2),
            (fetch("t"), 3),
            (ListOffsetsRequest(topics=(ListTopic(topic="t", partitions=(one,)),)), 0),
            (OffsetCommitRequest(group_id="g", topics=topics), 1),
            (OffsetFetchRequest(group_id="g", topics=()), 0),
        ]
        answers = []
        for request, version in below:
            async with raw_client(cluster.broker.port) as other:
                other.send_request(request, version, correlation_id=1)
                answers.append(await other.receive_rest())
        asker.close()

    assert [b""] * len(below) == answers, CLOSED
    assert (0, 3) == listed[ApiKey.PRODUCE]
    for api, versions in RELEASES[4, 0].items():
        # brokers list PRODUCE from 0, and the embedded broker has no SASL
        if api not in (ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            assert versions.first == listed[api][0], api
            assert listed[api][1] <= versions.last, api
    assert 12 == listed[ApiKey.METADATA][1]


async def test_leaders_move_without_zookeeper_too(tmp_path: Path) -> None:
    """A broker that stops hands over; one that is killed leads until its session expires."""
    async with served(tmp_path, nodes=2) as cluster:
        async with raw_client(cluster.brokers[0].port) as client:
            await client.ask(produce("t", records(2), acks=-1), 3)
        await cluster.kill_broker(0)
        named = [(one.leader, one.error_code) for one in (await describe(cluster)).topics[0].partitions]

        async def moved() -> bool:
            return bool((await describe(cluster)).topics[0].partitions[0].leader == 1)

        await until(moved)
        async with raw_client(cluster.brokers[1].port) as client:
            kept = await client.ask(fetch("t"), 5)
        await cluster.start_broker(0)
        async with raw_client(cluster.brokers[0].port) as client:
            other = await client.ask(fetch("t"), 5)
        await cluster.stop_broker(1)
        last = await describe(cluster)

    assert [(0, 0)] == named
    assert 3 == kept.topics[0].partitions[0].high_watermark
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == other.topics[0].partitions[0].error_code
    (partition,) = last.topics[0].partitions
    assert (0, 2, [0]) == (partition.leader, partition.leader_epoch, list(partition.isr))


@pytest.mark.parametrize(
    ("release", "without_zookeeper"), [("4.0", False), ("1.1", True)], ids=["4.0 with", "1.1 without"]
)
async def test_a_release_that_does_not_fit_is_refused(release: str, without_zookeeper: bool) -> None:
    """Before anything is started that would pass for what it is not."""
    make = partial(BrokerSettings, as_release=release)
    with pytest.raises(ConfigError, match=release):
        async with EmbeddedCluster(without_zookeeper=without_zookeeper, make_broker=make):
            pass


@pytest.mark.timeout(120)
@pytest.mark.parametrize("client", [AiokafkaMember, LibrdkafkaMember])
def test_members_go_on_when_their_coordinator_goes(client: Any, tmp_path: Path) -> None:
    """Clients that are not ours find the next coordinator, and their positions with it."""
    with EmbeddedThread(tmp_path, None, nodes=2) as cluster:
        cluster.create_topic("t", PARTITIONS)
        member = Driven(partial(client, cluster.bootstrap, "g", "t", "member"))
        try:
            read: set[int] = set()
            for number in range(3):
                numbers = range(number * ROUND, (number + 1) * ROUND)
                values = [b"%d" % one for one in numbers]
                KafkaPython(cluster.bootstrap).write_values("t", values, PARTITIONS)
                read |= set(numbers)
                member.wait(lambda: set(member.numbers) >= read, "the round is read")  # noqa: B023
                member.commit()
                if number == 2:
                    break
                coordinator = cluster.find_coordinator("g")
                assert coordinator is not None
                cluster.stop_node(coordinator)
                cluster.start_node(coordinator)
        finally:
            member.leave()

    assert sorted(member.numbers) == sorted(read)
