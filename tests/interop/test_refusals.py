# SPDX-License-Identifier: Apache-2.0
"""Refusals of real brokers, as the producer, the commands and the daemon tell them: codes 7, 19, 20, 29 and 30.

``test_error_codes.py`` has the codes themselves, and ``test_lasting_faults.py`` a topic that may not be read any more.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumerd.cli.main import DONE, FAILED, main
from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import BrokerError, DeliveryTimedOut, TopicMissing, WriteRefused
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.interop.conftest import MAIN_RELEASE, require
from tests.support.broker_script import Asker, records
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.drawn]

LAG_S: Final = 4.0
"""How long a follower may say nothing before it is no longer in sync."""
TOLD_S: Final = 60.0
ANONYMOUS: Final = "User:ANONYMOUS"

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command; returns its exit code and what it printed."""

    def run(cluster: Cluster, command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*command.split(), "-z", cluster.zookeeper, "--timeout", "30", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


# -- replicas: codes 7, 19 and 20


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two brokers; one that says nothing is soon out of sync, and keeps its session."""
    require(MAIN_RELEASE)
    properties = {"replica.lag.time.max.ms": str(round(LAG_S * 1000)), "zookeeper.session.timeout.ms": "60000"}
    with Cluster(MAIN_RELEASE, 2, properties=properties) as cluster:
        yield cluster


def find_leader(ask: Ask, cluster: Cluster, topic: str) -> int:
    (row,) = map(json.loads, ask(cluster, f"topics --partitions {topic} --json")[1].splitlines())
    return int(row["leader"])


def test_replicas_that_do_not_follow_are_told_by_the_producer(pair: Cluster, ask: Ask) -> None:
    """Codes 7, 20 and 19: what has happened to the records, and what to do."""
    topic = "replicated"
    pair.create_topic(topic, 1, 2, min_insync_replicas="2")
    leader = find_leader(ask, pair, topic)
    follower = pair.processes[f"broker-{1 - leader}"]
    address = f"127.0.0.1:{pair.ports[leader]}"

    async def send(delivery_s: float, request_s: float, backoff_s: float = 0.1) -> DeliveryTimedOut:
        settings = ProducerSettings(
            delivery_timeout_s=delivery_s,
            request_timeout_s=request_s,
            retry_backoff_s=backoff_s,
            retry_backoff_max_s=backoff_s,
            max_block_s=20.0,
        )
        async with open_producer(address, settings=settings) as producer:
            with pytest.raises(DeliveryTimedOut) as refused:
                await producer.send(topic, b"refused")
        return refused.value

    async def send_one() -> None:
        async with open_producer(address) as producer:
            await producer.send(topic, b"taken")

    asyncio.run(send_one())
    follower.send_signal(signal.SIGSTOP)
    try:
        late = asyncio.run(send(1.0, 0.4))
        # the follower leaves the ISR while the request waits for it, and there is no second one
        after = asyncio.run(send(14.0, 14.0, backoff_s=60.0))
        before = asyncio.run(send(2.0, 5.0))
    finally:
        follower.send_signal(signal.SIGCONT)

    for told, expected, advice in (
        (
            late,
            ErrorCode.REQUEST_TIMED_OUT,
            "Replicas of replicated have not followed in time: the leader has appended",
        ),
        (
            after,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "the leader has appended the records, and each further try",
        ),
        (before, ErrorCode.NOT_ENOUGH_REPLICAS, "min.insync.replicas of replicated asks for, so nothing was appended"),
    ):
        cause = told.__cause__
        assert isinstance(cause, BrokerError)
        assert (expected, True) == (cause.code, cause.retriable)
        assert "replicated/0: 1 record not acknowledged within " in str(told)
        assert expected.name in str(told)
        assert advice in str(told)


# -- rights: codes 29 and 30


class Guarded:
    """A broker with an authorizer, which lets everybody do what no rule is about."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @contextmanager
    def denied(self, operation: str, kind: str, name: str) -> Iterator[None]:
        """Deny us an operation on a Topic or a Group, and allow all others, while the block runs."""
        denied = {"principal": ANONYMOUS, "permissionType": "Deny", "operation": operation, "host": "*"}
        others = {"principal": "User:*", "permissionType": "Allow", "operation": "All", "host": "*"}
        self._set_rules(kind, name, [denied, others])
        try:
            wait_until(lambda: self._is_refused(operation, kind, name), "the broker has seen the rule", TOLD_S)
            yield
        finally:
            self._set_rules(kind, name, [])
            wait_until(lambda: not self._is_refused(operation, kind, name), "the rule is gone", TOLD_S)

    def _set_rules(self, kind: str, name: str, rules: list[dict[str, str]]) -> None:
        """Write the authorizer's nodes as AclCommand does, which takes a JVM for each rule."""
        with open_registry(self.cluster.zookeeper) as registry:
            path = f"/kafka-acl/{kind}/{name}"
            registry.client.ensure_path(path)
            registry.client.set(path, json.dumps({"version": 1, "acls": rules}).encode())
            changed = f"{kind}:{name}".encode()
            registry.client.create("/kafka-acl-changes/acl_changes_", changed, sequence=True)

    def _is_refused(self, operation: str, kind: str, name: str) -> bool:
        """Return True if the broker refuses a request that takes the operation."""
        asker = Asker(self.cluster.bootstrap)
        try:
            if kind == "Group":
                one = CommitPartition(partition=0, offset=0, metadata="")
                commit = OffsetCommitRequest(
                    group_id=name, topics=(CommitTopic(topic="no-such-topic", partitions=(one,)),)
                )
                code = asker.ask(commit, 3)["topics"][0]["partitions"][0]["error_code"]
            elif operation == "Describe":
                code = asker.ask(MetadataRequest(topics=(name,)), 1)["topics"][0]["error_code"]
            elif operation == "Write":
                sent = ProducePartition(partition=0, record_set=records(2, size=10))
                request = ProduceRequest(
                    acks=1, timeout_ms=5000, topics=(ProduceTopic(topic=name, partitions=(sent,)),)
                )
                code = asker.ask(request, 3)["topics"][0]["partitions"][0]["error_code"]
            else:
                part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
                fetch = FetchRequest(max_wait_ms=1, min_bytes=1, topics=(FetchTopic(topic=name, partitions=(part,)),))
                code = asker.ask(fetch, 5)["topics"][0]["partitions"][0]["error_code"]
        finally:
            asker.close()
        return code in {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED}

    def commit(self, group: str, topic: str, position: int) -> None:
        """Commit without being a member."""
        consumer = Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
        )
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, position)], asynchronous=False)
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """One broker for the tests about rights."""
    require(MAIN_RELEASE)
    properties = {
        "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Cluster(MAIN_RELEASE, properties=properties) as cluster:
        yield Guarded(cluster)


def produce(cluster: Cluster, topic: str, count: int) -> None:
    cluster.produce(topic, b"".join(b"k\tv%d\n" % number for number in range(count)))


async def test_a_topic_that_may_not_be_written_is_told_by_the_producer(guarded: Guarded) -> None:
    """Code 29: at once, with the right that is missing."""
    guarded.cluster.create_topic("unwritten")
    with guarded.denied("Write", "Topic", "unwritten"):
        async with open_producer(guarded.cluster.bootstrap) as producer:
            with pytest.raises(WriteRefused, match=r"TOPIC_AUTHORIZATION_FAILED.*allow `Write` on `Topic:unwritten`"):
                await producer.send("unwritten", b"refused")
    with guarded.denied("Describe", "Topic", "unwritten"):
        async with open_producer(guarded.cluster.bootstrap) as producer:
            # what the producer needs next is named: allowed alone, `Describe` would be followed by the refusal above
            with pytest.raises(
                TopicMissing,
                match=r"TOPIC_AUTHORIZATION_FAILED.*implies `Describe`.*allow `Write` on `Topic:unwritten`",
            ):
                await producer.send("unwritten", b"refused")


def test_a_topic_that_may_not_be_read_is_told_by_the_commands(guarded: Guarded, ask: Ask) -> None:
    """Code 29 of Fetch, and of Metadata and ListOffsets."""
    cluster, topic = guarded.cluster, "unread"
    cluster.create_topic(topic)
    produce(cluster, topic, 10)
    with open_registry(cluster.zookeeper) as registry:
        registry.client.create(f"/consumers/reader/offsets/{topic}/0", b"4", makepath=True)
    with guarded.denied("Read", "Topic", topic):
        code, out, err = ask(cluster, f"tail {topic}", "--timeout", "5")
        assert (FAILED, "") == (code, out)
        assert "TOPIC_AUTHORIZATION_FAILED (29)" in err
        assert f"allow `Read` on `Topic:{topic}`" in err
        (row,) = map(json.loads, ask(cluster, "lag -g reader --json")[1].splitlines())
        assert (6, None) == (row["lag"], row["seconds"])
    with guarded.denied("Describe", "Topic", topic):
        code, out, err = ask(cluster, "lag -g reader --json")
        row = json.loads(out)
        assert (DONE, None) == (code, row["lag"]), err
        assert "TOPIC_AUTHORIZATION_FAILED" in row["note"]
        assert f"allow `Describe` on `Topic:{topic}`" in row["note"]
        (row,) = [
            one for one in map(json.loads, ask(cluster, "groups --json")[1].splitlines()) if one["group"] == "reader"
        ]
        assert (None, ["unread"]) == (row["lag"], row["topics"])
        code, out, err = ask(cluster, f"tail {topic}", "--timeout", "5")
        assert (FAILED, "") == (code, out)
        assert "TOPIC_AUTHORIZATION_FAILED" in err


@pytest.mark.parametrize("kind", ["group", "topic"])
def test_positions_that_may_not_be_read_are_unknown_to_the_commands(guarded: Guarded, ask: Ask, kind: str) -> None:
    """Codes 30 and 29 of FindCoordinator, OffsetFetch and OffsetCommit: neither "no position", nor moved."""
    cluster, topic, group = guarded.cluster, f"kept-{kind}", f"kept-{kind}"
    cluster.create_topic(topic)
    produce(cluster, topic, 10)
    with open_registry(cluster.zookeeper) as registry:
        registry.client.create(f"/consumers/{group}/offsets/{topic}/0", b"2", makepath=True)
    guarded.commit(group, topic, 6)
    options = ("--set", "offsets.storage=kafka", "--set", "offsets.dual_commit=false", "-g", group)
    expected = {
        "group": f"GROUP_AUTHORIZATION_FAILED): allow `Read` on `Group:{group}` for User:ANONYMOUS",
        "topic": f"TOPIC_AUTHORIZATION_FAILED): allow `Read` on `Topic:{topic}` for User:ANONYMOUS",
    }[kind]
    refused = ("All", "Topic", topic) if kind == "topic" else ("All", "Group", group)
    with guarded.denied(*refused):
        code, out, err = ask(cluster, "lag --json", *options)
        (row,) = map(json.loads, out.splitlines())
        assert (DONE, None, None) == (code, row["lag"], row["kafka"])
        assert expected in err
        code, out, err = ask(cluster, "offsets show --json", *options)
        assert expected in err
        code, out, err = ask(cluster, "offsets export", *options)
        assert (2, "", True) == (code, out, expected in err)
        code, out, err = ask(cluster, f"offsets set {topic}/0=1 --yes --force", *options)
        assert (FAILED, "", True) == (code, out, expected in err)
        row = next(
            one for one in map(json.loads, ask(cluster, "groups --json")[1].splitlines()) if one["group"] == group
        )
        assert "zookeeper" == row["positions"]
        assert f"`Group:{group}`" in row["note"] or f"`Describe` on `Topic:{topic}`" in row["note"]
    (row,) = map(json.loads, ask(cluster, "offsets show --json", *options)[1].splitlines())
    assert (2, 6) == (row["position"], row["kafka"])


@pytest.mark.parametrize(
    "dual", [pytest.param(True, id="both", marks=pytest.mark.full), pytest.param(False, id="kafka alone")]
)
def test_a_member_keeps_its_positions_while_the_group_is_refused(
    guarded: Guarded, tmp_path: Path, ask: Ask, dual: bool
) -> None:
    """Code 30 of OffsetCommit, then of FindCoordinator at a start: told, retried, and no record twice or never."""
    cluster = guarded.cluster
    name = f"denied-{'both' if dual else 'kafka'}"
    cluster.create_topic(name)
    produce(cluster, name, 100)
    offsets = {"storage": "kafka", "dual_commit": dual, "commit_interval_ms": 200}
    settings = settings_for(cluster.zookeeper, name, topics=(name,), offsets=offsets)
    reason = f"GROUP_AUTHORIZATION_FAILED): allow `Read` on `Group:{name}` for User:ANONYMOUS"

    def partition(daemon: Daemon) -> dict[str, object]:
        return dict(daemon.status()["partitions"][0])

    with Daemon(tmp_path, "running", settings) as daemon:
        daemon.wait(lambda: len(daemon.deliveries) == 100, "all is delivered", TOLD_S)
        daemon.wait(lambda: partition(daemon)["committed"] == 100, "all is committed", TOLD_S)
        with guarded.denied("Read", "Group", name):
            produce(cluster, name, 50)
            daemon.wait(lambda: len(daemon.deliveries) == 150, "more is delivered", TOLD_S)
            daemon.wait(lambda: reason in str(partition(daemon)["reason"]), "the status says why", TOLD_S)
            daemon.wait(
                lambda: reason in daemon.get("/")[1],
                "the page",
                TOLD_S,
            )
            daemon.wait(lambda: f"{name}/0" in daemon.get("/readyz")[1], "the probe names it", TOLD_S)
            assert 200 == daemon.get("/readyz")[0]
            assert "consumerd_failing_partitions 1.0" in daemon.get("/metrics")[1]
        daemon.wait(lambda: partition(daemon)["committed"] == 150, "commits go on", TOLD_S)
        daemon.wait(lambda: daemon.get("/readyz") == (200, "ok\n"), "well again", TOLD_S)
        assert 0 == daemon.terminate()
    with guarded.denied("All", "Group", name), Daemon(tmp_path, "starting", settings) as daemon:
        daemon.wait(lambda: reason in daemon.log(), "the log says why", TOLD_S)
        if dual:
            daemon.wait(lambda: reason in str(daemon.status()["partitions"]), "the status says why", TOLD_S)
            shown = partition(daemon)
            assert ("failing", None, 200) == (shown["state"], shown["committed"], daemon.get("/readyz")[0])
        else:  # nothing is claimed before both places were compared
            unready = "comparing the group's positions in ZooKeeper with those in Kafka"
            daemon.wait(lambda: (503, f"{unready}\n") == daemon.get("/readyz"), "the probe says why", TOLD_S)
            assert reason in str([one["what"] for one in daemon.status()["events"]])
        assert [] == daemon.deliveries
    produce(cluster, name, 10)
    with Daemon(tmp_path, "after", settings) as daemon:
        daemon.wait(lambda: len(daemon.deliveries) >= 10, "the rest is delivered", TOLD_S)
        assert list(range(150, 160)) == [one.offset for one in daemon.deliveries]
        assert 0 == daemon.terminate()
    wait_until(
        lambda: '"kafka": 160' in ask(cluster, "offsets show --json", "-g", name)[1], "its position is in Kafka", TOLD_S
    )
