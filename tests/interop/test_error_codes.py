# SPDX-License-Identifier: Apache-2.0
"""Error codes of real brokers: a cluster in trouble, an authorizer, a wrong question."""

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
from consumerd.wire.modern.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.groups import DescribeGroupsRequest, HeartbeatRequest, ListGroupsRequest
from consumerd.wire.modern.list_offsets import LATEST_TIMESTAMP, ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.primitives import MAX_INT32
from tests.interop.conftest import MAIN_RELEASE, ClusterFactory, require
from tests.support.broker_script import Asker, records
from tests.support.kafka import Cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(150), pytest.mark.drawn]

LAG_S = 3.0
"""How long a follower may say nothing before it is no longer in sync."""


@contextlib.contextmanager
def asking(bootstrap: str) -> Iterator[Asker]:
    asker = Asker(bootstrap)
    try:
        yield asker
    finally:
        asker.close()


def produce(topic: str, *, timeout_ms: int = 5000, acks: int = -1, size: int = 20) -> ProduceRequest:
    one = ProducePartition(partition=0, record_set=records(2, size=size))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topics=(ProduceTopic(topic=topic, partitions=(one,)),))


def fetch(topic: str, session_id: int = NO_SESSION_ID, session_epoch: int = FINAL_SESSION_EPOCH) -> FetchRequest:
    one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = (FetchTopic(topic=topic, partitions=(one,)),)
    return FetchRequest(max_wait_ms=100, min_bytes=1, session_id=session_id, session_epoch=session_epoch, topics=topics)


def latest(topic: str) -> ListOffsetsRequest:
    one = ListPartition(partition=0, timestamp=LATEST_TIMESTAMP)
    return ListOffsetsRequest(topics=(ListTopic(topic=topic, partitions=(one,)),))


def commit(group: str, topic: str, metadata: str) -> OffsetCommitRequest:
    one = CommitPartition(partition=0, offset=0, metadata=metadata)
    return OffsetCommitRequest(group_id=group, topics=(CommitTopic(topic=topic, partitions=(one,)),))


def partition_code(answer: Any) -> ErrorCode:
    """Return the code of the only partition in an answer."""
    return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])


def leader_of(cluster: Cluster, topic: str) -> int:
    """Return the index of the broker that leads partition 0."""
    with asking(f"127.0.0.1:{cluster.ports[0]}") as asker:
        answer = asker.ask(MetadataRequest(topics=(topic,)), 1)
    return int(answer["topics"][0]["partitions"][0]["leader"])


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Start two brokers.

    One that says nothing is soon out of sync, and keeps its session. Topics are made on demand.
    """
    require(MAIN_RELEASE)
    properties = {
        "replica.lag.time.max.ms": str(round(LAG_S * 1000)),
        "zookeeper.session.timeout.ms": "60000",
        "auto.create.topics.enable": "true",
        "offsets.topic.segment.bytes": "1000",
    }
    with Cluster(MAIN_RELEASE, 2, properties=properties) as cluster:
        yield cluster


async def test_codes_of_replicas_that_do_not_follow(pair: Cluster) -> None:
    """Codes 7, 20 and 19: late replicas, too few after appending, too few before.

    Each may pass, so the producer tries again.
    """
    pair.create_topic("replicated", 1, 2, min_insync_replicas="2")
    leader = leader_of(pair, "replicated")
    follower = pair.processes[f"broker-{1 - leader}"]
    address = f"127.0.0.1:{pair.ports[leader]}"
    with asking(address) as asker:
        assert ErrorCode.NONE is partition_code(asker.ask(produce("replicated", timeout_ms=20_000), 3))
        follower.send_signal(signal.SIGSTOP)
        try:
            found = [
                partition_code(asker.ask(produce("replicated", timeout_ms=timeout_ms), 3))
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


async def test_codes_of_a_broker_that_does_not_lead(pair: Cluster) -> None:
    """Code 6: the partition is led elsewhere, so new metadata are asked for."""
    pair.create_topic("led", 1, 2)
    with asking(f"127.0.0.1:{pair.ports[1 - leader_of(pair, 'led')]}") as follower:
        found = [
            partition_code(follower.ask(request, version))
            for request, version in ((produce("led"), 3), (fetch("led"), 5), (latest("led"), 2))
        ]

    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3 == found
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.refresh


async def test_codes_of_topics_that_are_made_or_refused(pair: Cluster) -> None:
    """Codes 5, 17 and 18: no leader yet, invalid name, larger than a segment."""
    pair.create_topic("short", 1, 1, segment_bytes="300")
    with asking(f"127.0.0.1:{pair.ports[0]}") as asker:
        topics = asker.ask(MetadataRequest(topics=("a b", "on-demand")), 4)["topics"]
    with asking(f"127.0.0.1:{pair.ports[leader_of(pair, 'short')]}") as asker:
        refused = partition_code(asker.ask(produce("short", size=200), 3))

    expected = {"a b": ErrorCode.INVALID_TOPIC_EXCEPTION, "on-demand": ErrorCode.LEADER_NOT_AVAILABLE}
    assert expected == {one["topic"]: one["error_code"] for one in topics}
    assert ErrorCode.RECORD_LIST_TOO_LARGE is refused


async def test_codes_of_coordinators(pair: Cluster) -> None:
    """Codes 15, 16 and 28: none yet, another one, more than a segment holds."""
    pair.create_topic("read")
    found: list[Any] = []
    with asking(f"127.0.0.1:{pair.ports[0]}") as asker:

        def is_found() -> bool:
            found.append(asker.ask(FindCoordinatorRequest(key="group"), 1))
            return not found[-1]["error_code"]

        wait_until(is_found, "the group has a coordinator")
    coordinator = found[-1]["node_id"]
    with asking(f"127.0.0.1:{pair.ports[1 - coordinator]}") as other:
        beat = other.ask(HeartbeatRequest(group_id="group", generation_id=1, member_id="member"), 1)
        elsewhere = other.ask(commit("group", "read", ""), 3)
    with asking(f"127.0.0.1:{pair.ports[coordinator]}") as asker:
        wait_until(
            lambda: partition_code(asker.ask(commit("group", "read", ""), 3)) is ErrorCode.NONE, "commits are taken"
        )
        large = asker.ask(commit("group", "read", "x" * 2000), 3)

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == found[0]["error_code"]
    assert ErrorCode.NOT_COORDINATOR == beat["error_code"]
    assert ErrorCode.NOT_COORDINATOR is partition_code(elsewhere)
    assert ErrorCode.INVALID_COMMIT_OFFSET_SIZE is partition_code(large)


async def test_codes_of_fetch_sessions(pair: Cluster) -> None:
    """Codes 70 and 71: no such session, another epoch."""
    pair.create_topic("fetched")
    with asking(f"127.0.0.1:{pair.ports[leader_of(pair, 'fetched')]}") as asker:
        opened = asker.ask(fetch("fetched", session_epoch=INITIAL_SESSION_EPOCH), 7)
        session_id = opened["session_id"]
        unknown = asker.ask(fetch("fetched", session_id=session_id % MAX_INT32 + 1, session_epoch=1), 7)
        skipped = asker.ask(fetch("fetched", session_id=session_id, session_epoch=7), 7)

    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == unknown["error_code"]
    assert ErrorCode.INVALID_FETCH_SESSION_EPOCH == skipped["error_code"]


async def test_codes_of_a_broker_that_is_gone(own_cluster: ClusterFactory) -> None:
    """Codes 5 and 9: the only replica is away, one of two is away."""
    cluster = own_cluster(MAIN_RELEASE, 2)
    cluster.create_topic("single", 2)
    cluster.create_topic("double", 1, 2)
    cluster.kill_broker(1)
    expected = {
        ("single", ErrorCode.NONE),
        ("single", ErrorCode.LEADER_NOT_AVAILABLE),
        ("double", ErrorCode.REPLICA_NOT_AVAILABLE),
    }
    with asking(f"127.0.0.1:{cluster.ports[0]}") as asker:

        def codes() -> set[tuple[str, int]]:
            topics = asker.ask(MetadataRequest(topics=("single", "double")), 0)["topics"]
            return {(one["topic"], part["error_code"]) for one in topics for part in one["partitions"]}

        wait_until(lambda: expected == codes(), "the controller has elected another leader, and says who is gone")

    assert ErrorCode.LEADER_NOT_AVAILABLE.refresh
    assert ErrorCode.REPLICA_NOT_AVAILABLE.refresh


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """Start a broker with an authorizer, whose rules are for another user."""
    require(MAIN_RELEASE)
    properties = {
        "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Cluster(MAIN_RELEASE, properties=properties) as cluster:
        for topic in ("open", "secret"):
            cluster.create_topic(topic)
        # who may not name brokers' own requests to each other would cut off this one
        brokers = ("--allow-principal", "User:ANONYMOUS", "--operation", "ClusterAction", "--cluster")
        another = ("--allow-principal", "User:another")
        for rule in ((*another, "--topic", "secret"), (*another, "--group", "secret"), brokers):
            cluster.run_tool(
                "kafka.admin.AclCommand", "--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}",
                "--add", *rule,
            )  # fmt: skip
        yield cluster


async def test_codes_of_an_authorizer(guarded: Cluster) -> None:
    """Codes 29, 30 and 31: topic, group, cluster. None is retriable."""
    with asking(guarded.bootstrap) as asker:
        answers = {
            "produce": partition_code(asker.ask(produce("secret"), 3)),
            "fetch": partition_code(asker.ask(fetch("secret"), 5)),
            "log ends": partition_code(asker.ask(latest("secret"), 2)),
            "metadata": asker.ask(MetadataRequest(topics=("secret",)), 1)["topics"][0]["error_code"],
            "coordinator": asker.ask(FindCoordinatorRequest(key="secret"), 1)["error_code"],
            "positions": asker.ask(OffsetFetchRequest(group_id="secret", topics=None), 2)["error_code"],
            "group": asker.ask(DescribeGroupsRequest(groups=("secret",)), 1)["groups"][0]["error_code"],
            "groups": asker.ask(ListGroupsRequest(), 1)["error_code"],
            "another topic": partition_code(asker.ask(produce("open"), 3)),
        }
    with pytest.raises(ProduceError, match="TOPIC_AUTHORIZATION_FAILED"):
        async with open_producer(guarded.bootstrap) as producer:
            await producer.send("secret", b"refused")

    topic, group = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
    cluster = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    expected = {
        "produce": topic,
        "fetch": topic,
        "log ends": topic,
        "metadata": topic,
        "coordinator": group,
        "positions": group,
        "group": group,
        "groups": cluster,
        "another topic": ErrorCode.NONE,
    }
    assert expected == answers
    assert not any(code.retriable for code in (topic, group, cluster))
