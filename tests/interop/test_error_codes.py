# SPDX-License-Identifier: Apache-2.0
"""Error codes that only a cluster in trouble or behind an authorizer gives, from real brokers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import DeliveryTimedOut, ProduceError
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.interop.conftest import MAIN_RELEASE, require
from tests.support.broker_script import Asker, records
from tests.support.kafka import Cluster

LAG_S = 3.0
"""How long a follower may say nothing before it is no longer in sync."""


@contextlib.contextmanager
def asking(bootstrap: str) -> Iterator[Asker]:
    asker = Asker(bootstrap)
    try:
        yield asker
    finally:
        asker.close()


def produce(topic: str, *, timeout_ms: int, acks: int = -1) -> ProduceRequest:
    one = ProducePartition(partition=0, record_set=records(2))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topics=(ProduceTopic(topic=topic, partitions=(one,)),))


def produce_code(answer: Any) -> ErrorCode:
    return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])


def leader_of(cluster: Cluster, topic: str) -> int:
    """Return the index of the broker that leads partition 0."""
    with asking(f"127.0.0.1:{cluster.ports[0]}") as asker:
        answer = asker.ask(MetadataRequest(topics=(topic,)), 1)
    return int(answer["topics"][0]["partitions"][0]["leader"])


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two brokers; one that says nothing is soon out of sync, and keeps its session."""
    require(MAIN_RELEASE)
    properties = {"replica.lag.time.max.ms": str(round(LAG_S * 1000)), "zookeeper.session.timeout.ms": "60000"}
    with Cluster(MAIN_RELEASE, 2, properties=properties) as cluster:
        yield cluster


async def test_codes_of_replicas_that_do_not_follow(pair: Cluster) -> None:
    """7: not in time; 20: too few were left when it was replicated; 19: too few before. Each may pass: it is tried again."""
    pair.create_topic("replicated", 1, 2, min_insync_replicas="2")
    leader = leader_of(pair, "replicated")
    follower = pair.processes[f"broker-{1 - leader}"]
    address = f"127.0.0.1:{pair.ports[leader]}"
    with asking(address) as asker:
        assert ErrorCode.NONE is produce_code(asker.ask(produce("replicated", timeout_ms=20_000), 3))
        follower.send_signal(signal.SIGSTOP)
        try:
            found = [
                produce_code(asker.ask(produce("replicated", timeout_ms=timeout_ms), 3))
                for timeout_ms in (100, 20_000, 20_000)
            ]
            settings = ProducerSettings(delivery_timeout_s=8.0, request_timeout_s=2.0, max_block_s=8.0)
            with pytest.raises(DeliveryTimedOut, match="NOT_ENOUGH_REPLICAS"):
                async with open_producer(address, settings=settings) as producer:
                    await producer.send("replicated", b"refused")
        finally:
            follower.send_signal(signal.SIGCONT)

    expected = [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ]
    assert expected == found
    assert all(code.retriable for code in found)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A broker whose authorizer lets everybody do what no rule is about; the rules let another one alone."""
    require(MAIN_RELEASE)
    properties = {
        "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Cluster(MAIN_RELEASE, properties=properties) as cluster:
        for topic in ("open", "secret"):
            cluster.create_topic(topic)
        for what in (("--topic", "secret"), ("--group", "secret")):
            cluster.run_tool(
                "kafka.admin.AclCommand", "--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}",
                "--add", "--allow-principal", "User:another", *what,
            )  # fmt: skip
        yield cluster


async def test_codes_of_an_authorizer(guarded: Cluster) -> None:
    """29: the topic, in every request; 30: the group. Neither passes by itself: they are told at once."""
    with asking(guarded.bootstrap) as asker:
        fetch = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            topics=(
                FetchTopic(
                    topic="secret",
                    partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),),
                ),
            ),
        )
        answers = {
            "produce": produce_code(asker.ask(produce("secret", timeout_ms=5000), 3)),
            "fetch": asker.ask(fetch, 5)["topics"][0]["partitions"][0]["error_code"],
            "metadata": asker.ask(MetadataRequest(topics=("secret",)), 1)["topics"][0]["error_code"],
            "coordinator": asker.ask(FindCoordinatorRequest(key="secret"), 1)["error_code"],
            "positions": asker.ask(OffsetFetchRequest(group_id="secret", topics=None), 2)["error_code"],
            "another topic": produce_code(asker.ask(produce("open", timeout_ms=5000), 3)),
        }
    with pytest.raises(ProduceError, match="TOPIC_AUTHORIZATION_FAILED"):
        async with open_producer(guarded.bootstrap) as producer:
            await producer.send("secret", b"refused")

    topic, group = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
    expected = {
        "produce": topic,
        "fetch": topic,
        "metadata": topic,
        "coordinator": group,
        "positions": group,
        "another topic": ErrorCode.NONE,
    }
    assert expected == answers
    assert not topic.retriable
    assert not group.retriable
