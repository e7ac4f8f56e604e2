# SPDX-License-Identifier: Apache-2.0
"""Several embedded brokers: leaders and coordinators move as with real ones, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumerd.client.opening import open_producer
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.coordinator.journal import partition_of
from consumerd.embedded.topics import OFFSETS_TOPIC
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from tests.support import node_script
from tests.support.broker_script import records
from tests.support.embedded import EmbeddedPair, EmbeddedThread
from tests.support.raw_client import fetch, produce, raw_client
from tests.support.waiting import until

P0, P1 = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)
QUICK = partial(BrokerSettings, session_timeout_ms=1000)


@asynccontextmanager
async def pair(zookeeper: str, directory: Path | None = None) -> AsyncIterator[EmbeddedCluster]:
    """Two brokers with a topic of two partitions; each leads one."""
    async with EmbeddedCluster(directory, zookeeper=zookeeper, nodes=2, make_broker=QUICK, topics={"t": 2}) as cluster:
        yield cluster


def leader(cluster: EmbeddedCluster, partition: TopicPartition) -> int | None:
    state = cluster.broker.topics.find_state(partition)
    return None if state is None else state.leader


async def ask(cluster: EmbeddedCluster, node: int, request: Any, version: int) -> Any:
    async with raw_client(cluster.brokers[node].port) as client:
        return await client.ask(request, version)


async def code_of_fetch(cluster: EmbeddedCluster, node: int, partition: int = 0) -> int:
    answer = await ask(cluster, node, fetch("t", partition=partition), 5)
    return int(answer.topics[0].partitions[0].error_code)


def commit(group: str, offset: int) -> OffsetCommitRequest:
    one = CommitPartition(partition=0, offset=offset, metadata="")
    return OffsetCommitRequest(group_id=group, topics=(CommitTopic(topic="t", partitions=(one,)),))


async def find_coordinator(cluster: EmbeddedCluster, node: int, group: str) -> int:
    """Return the coordinator when a broker knows one, and that has loaded the group."""
    found: list[int] = []

    async def known() -> bool:
        answer = await ask(cluster, node, FindCoordinatorRequest(key=group), 1)
        found[:] = [answer.node_id]
        return not answer.error_code and not (await positions(cluster, answer.node_id, group)).error_code

    await until(known)
    return found[0]


async def positions(cluster: EmbeddedCluster, node: int, group: str) -> Any:
    topics = (OffsetFetchTopic(topic="t", partitions=(0,)),)
    return await ask(cluster, node, OffsetFetchRequest(group_id=group, topics=topics), 2)


async def test_each_broker_is_in_zookeeper_and_in_metadata_and_serves_what_it_leads(zookeeper: str) -> None:
    """Error 6 from the other one; clients find out from any of them who leads."""
    async with pair(zookeeper) as cluster:
        for node in (0, 1):
            answer = await ask(cluster, node, MetadataRequest(topics=("t",)), 1)
            named = {one.node_id: one.port for one in answer.brokers}
            assert {0: cluster.brokers[0].port, 1: cluster.brokers[1].port} == named
            assert 0 == answer.controller_id
            led = {one.partition: (one.leader, set(one.isr)) for one in answer.topics[0].partitions}
            assert {0: (0, {0, 1}), 1: (1, {0, 1})} == led
        found = [[await code_of_fetch(cluster, node, number) for number in (0, 1)] for node in (0, 1)]
        refused = await ask(cluster, 1, produce("t", records(2)), 3)

    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [[0, not_leader], [not_leader, 0]] == found
    assert not_leader == refused.topics[0].partitions[0].error_code


async def test_what_was_acknowledged_outlives_its_leader(zookeeper: str) -> None:
    """A broker that stops hands over first; the records are read from the one that leads next."""
    async with pair(zookeeper) as cluster:
        await ask(cluster, 0, produce("t", records(2)), 3)
        await cluster.stop_broker(0)
        assert (1, 1) == (leader(cluster, P0), leader(cluster, P1))
        answer = await ask(cluster, 1, fetch("t"), 5)
        assert 3 == answer.topics[0].partitions[0].high_watermark
        await ask(cluster, 1, produce("t", records(2)), 3)
        await cluster.start_broker(0)
        assert ErrorCode.NOT_LEADER_OR_FOLLOWER == await code_of_fetch(cluster, 0)
        await cluster.elect_preferred_leaders()
        assert (0, 1) == (leader(cluster, P0), leader(cluster, P1))
        answer = await ask(cluster, 0, fetch("t"), 5)

    assert 6 == answer.topics[0].partitions[0].high_watermark


async def test_a_killed_broker_leads_until_its_session_expires(zookeeper: str) -> None:
    """As with Kafka there is a time in which Metadata names a broker that is gone; the controller goes with it."""
    async with pair(zookeeper) as cluster:
        await cluster.kill_broker(0)
        before = leader(cluster, P0)
        await until(lambda: leader(cluster, P0) == 1)
        answer = await ask(cluster, 1, MetadataRequest(topics=("t",)), 5)
        state = cluster.broker.topics.find_state(P0)
        await cluster.start_broker(0)
        again = cluster.broker.topics.find_state(P0)

    assert 0 == before
    assert state is not None
    assert again is not None
    assert ((1,), 1, 2) == (state.isr, state.leader_epoch, state.controller_epoch)
    assert ((1, 0), 1) == (again.isr, again.leader_epoch)
    assert [1] == [one.node_id for one in answer.brokers]
    assert (1, (0,)) == (answer.controller_id, answer.topics[0].partitions[0].offline_replicas)


async def test_a_fetch_that_waits_hears_that_the_leader_has_moved(zookeeper: str) -> None:
    """A consumer would otherwise wait for records that are written elsewhere."""
    async with pair(zookeeper) as cluster:
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        async with raw_client(cluster.brokers[1].port) as client:
            client.send_request(fetch("t", wait_ms=3_600_000), 5, correlation_id=4)
            await ask(cluster, 1, MetadataRequest(topics=("t",)), 1)
            await cluster.elect_preferred_leaders()
            _, body = await client.receive()
        (one,) = fetch("t").decode_response(5, memoryview(body)).topics[0].partitions

    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == one.error_code


async def test_too_few_replicas_refuse_records_that_want_all(zookeeper: str) -> None:
    """Error 19, for acks -1 alone; with both in sync again they are taken."""
    async with pair(zookeeper) as cluster:
        await cluster.broker.create_topic("safe", 1, min_insync_replicas="2")
        await cluster.stop_broker(1)
        refused, taken = [(await ask(cluster, 0, produce("safe", records(2), acks=acks), 3)) for acks in (-1, 1)]
        await cluster.start_broker(1)
        after = await ask(cluster, 0, produce("safe", records(2), acks=-1), 3)

    codes = [one.topics[0].partitions[0].error_code for one in (refused, taken, after)]
    assert [ErrorCode.NOT_ENOUGH_REPLICAS, 0, 0] == codes


async def test_positions_move_with_their_coordinator(zookeeper: str) -> None:
    """The hash of the group chooses the partition, its leader coordinates; the other one says 16."""
    groups = [f"group-{number}" for number in range(8)]
    async with pair(zookeeper) as cluster:
        homes = [await find_coordinator(cluster, number % 2, group) for number, group in enumerate(groups)]
        expected = [partition_of(group, 4) % 2 for group in groups]
        for number, (group, home) in enumerate(zip(groups, homes, strict=True)):
            done = await ask(cluster, home, commit(group, number), 2)
            elsewhere = await ask(cluster, 1 - home, commit(group, 77), 2)
            assert 0 == done.topics[0].partitions[0].error_code
            assert ErrorCode.NOT_COORDINATOR == elsewhere.topics[0].partitions[0].error_code
        await cluster.stop_broker(1)
        kept = []
        for group in groups:
            assert 0 == await find_coordinator(cluster, 0, group)
            kept.append((await positions(cluster, 0, group)).topics[0].partitions[0].offset)

    assert {0, 1} == set(expected)
    assert expected == homes
    assert list(range(8)) == kept


async def test_no_acknowledged_commit_is_missed_by_the_next_coordinator(zookeeper: str) -> None:
    """Commits go on while the coordinator moves to and fro: what was answered with 0 is what the next one has."""
    group = "g"
    async with pair(zookeeper) as cluster:
        await find_coordinator(cluster, 0, group)
        newest, moving = -1, True
        partition = TopicPartition.modern(OFFSETS_TOPIC, partition_of(group, 4))

        async def commit_on() -> None:
            nonlocal newest
            offset = 0
            while moving:
                for node in tuple(cluster.brokers):
                    async with raw_client(cluster.brokers[node].port) as client:
                        answer = await client.ask(commit(group, offset), 2)
                    if not answer.topics[0].partitions[0].error_code:
                        newest = offset
                        offset += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commit_on())
            for number in range(10):
                await cluster.move_leader(partition, number % 2)
                before = newest
                await until(lambda: newest > before)  # noqa: B023
            moving = False
        home = await find_coordinator(cluster, 0, group)
        kept = (await positions(cluster, home, group)).topics[0].partitions[0].offset
        state = cluster.broker.topics.find_state(partition)

    assert newest == kept
    assert state is not None
    assert state.leader_epoch >= 9


async def test_a_cluster_comes_back_with_its_leaders(zookeeper: str, tmp_path: Path) -> None:
    """What the last run left in ZooKeeper counts; records and leaders are where they were."""
    async with pair(zookeeper, tmp_path) as cluster:
        await ask(cluster, 1, produce("t", records(2), partition=1), 3)
        await cluster.stop_broker(0)
    async with pair(zookeeper, tmp_path) as cluster:
        states = [cluster.broker.topics.find_state(one) for one in (P0, P1)]
        answer = await ask(cluster, 1, fetch("t", partition=1), 5)

    assert [(1, {0, 1})] * 2 == [(one.leader, set(one.isr)) for one in states if one is not None]
    assert 3 == answer.topics[0].partitions[0].high_watermark


async def test_our_producer_follows_the_leader(zookeeper: str) -> None:
    """Each record is answered once, and is where the answer says."""
    async with pair(zookeeper) as cluster, open_producer(cluster.bootstrap) as producer:
        found = []
        for number in range(3):
            found.append((await producer.send("t", b"%d" % number, partition=0)).offset)
            await cluster.stop_broker(number % 2)
            found.append((await producer.send("t", b"%d" % number, partition=0)).offset)
            await cluster.start_broker(number % 2)

    assert list(range(6)) == found


@pytest.mark.timeout(120)
def test_two_brokers_answer_as_two_real_ones(zookeeper: str, tmp_path: Path) -> None:
    """Every answer and state node of the script: leaders, epochs, ISR, error codes, generations and positions."""
    with EmbeddedThread(tmp_path, zookeeper, nodes=2, session_timeout_ms=2000) as cluster:
        ours = node_script.run(EmbeddedPair(cluster))

    found = differences(node_script.recorded(), ours)
    assert found == [], "\n".join(found)


def differences(real: list[tuple[str, Any]], ours: list[tuple[str, Any]]) -> list[str]:
    """Return what is not the same, a line each."""
    named = dict(ours)
    lines = [
        f"{what}: real {json.dumps(answer)}, ours {json.dumps(named.get(what))}"
        for what, answer in real
        if named.get(what) != answer
    ]
    return lines + [f"{what}: only ours" for what in named if what not in dict(real)]
