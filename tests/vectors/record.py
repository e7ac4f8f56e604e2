# SPDX-License-Identifier: Apache-2.0
"""Records frames between our own encoder and real brokers: what no Java client of the recorded releases ever asked.

    python -m tests.vectors.record 1.1.1        # rewrites tests/vectors/modern/recorded-kafka-1.1.1*.json

Needs Java, and maven on first use (``tests.support.kafka``). Offsets, errors and record values come out the same every
time; ports, timestamps, cluster and session ids do not.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import SIZE_BYTES, decode_frame_size, encode_frame
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.consumer_protocol import (
    PROTOCOL_TYPE,
    AssignedTopic,
    Assignment,
    ConsumerSubscription,
    encode_assignment,
    encode_subscription,
)
from consumerd.wire.modern.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from consumerd.wire.modern.find_coordinator import TRANSACTION, FindCoordinatorRequest
from consumerd.wire.modern.groups import (
    NO_MEMBER_ID,
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsRequest,
    ListPartition,
    ListTopic,
)
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from consumerd.wire.modern.produce import ACKS_ALL, ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.modern.topic_administration import (
    TOPIC_RESOURCE,
    ConfigResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    ExtendableTopic,
    ReplicaAssignment,
    TopicConfig,
)
from consumerd.wire.modern.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TransactionTopic,
    TxnCommitPartition,
    TxnCommitTopic,
    TxnOffsetCommitRequest,
)
from consumerd.wire.records import NewRecord
from consumerd.wire.schema import Request
from consumerd.wire.session import CORRELATION_BYTES, HEADER_CODEC, RequestHeader, encode_request
from tests.support.frames import VECTORS
from tests.support.kafka import Cluster

CLIENT_ID: Final = "recorder"
TOPIC: Final = "t"
LINES: Final = b"".join(b"key-%d\tvalue-%d\n" % (number, number) for number in range(4))
FAR_FUTURE_MS: Final = 4_000_000_000_000

R = TypeVar("R")


class Recorder:
    """Asks brokers of one cluster, and keeps every frame of it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.frames: list[dict[str, Any]] = []

    def ask(self, note: str, request: Request[R], version: int, *, broker: int = 0) -> R:
        """Send one request, on a connection of its own, and return what the broker answered."""
        asked = encode_request(request, version, correlation_id=len(self.frames), client_id=CLIENT_ID)
        answered = self._exchange(asked, broker)
        self._keep(note, request.api, version, asked, answered)
        return request.decode_response(version, memoryview(answered)[SIZE_BYTES + CORRELATION_BYTES :])

    def ask_unsupported(self, version: int) -> None:
        """Ask which requests a broker knows in a version that it does not; it answers in the form of version 0.

        Newer versions than 2 end their header with tagged fields, of which there are none.
        """
        header = RequestHeader(
            api_key=ApiKey.API_VERSIONS, api_version=version, correlation_id=len(self.frames), client_id=CLIENT_ID
        )
        asked = encode_frame(HEADER_CODEC.encode(header) + b"\0")
        note = "a version that it does not know"
        self._keep(note, ApiKey.API_VERSIONS, version, asked, self._exchange(asked, broker=0), response_version=0)

    def _exchange(self, asked: bytes, broker: int) -> bytes:
        with socket.create_connection(("127.0.0.1", self.cluster.ports[broker]), 10.0) as sock:
            sock.sendall(asked)
            stream = sock.makefile("rb")
            prefix = stream.read(SIZE_BYTES)
            if len(prefix) < SIZE_BYTES:
                raise RuntimeError(f"broker {broker} closed the connection instead of answering {asked.hex()}")
            return prefix + stream.read(decode_frame_size(prefix, 1 << 20))

    def _keep(self, note: str, api: ApiKey, version: int, asked: bytes, answered: bytes, **more: int) -> None:
        self.frames.append(
            {
                "asked_by": "consumerd",
                "note": note,
                "api": api.name,
                "api_key": api,
                "api_version": version,
                **more,
                "request_hex": asked.hex(),
                "response_hex": answered.hex(),
            }
        )

    def leaders(self, topic: str) -> dict[int, int]:
        """Return partition to leading broker, as broker 0 knows it; not recorded."""
        kept = len(self.frames)
        answer = self.ask("", MetadataRequest(topics=(topic,)), 0)
        del self.frames[kept:]
        return {one.partition: one.leader for one in answer.topics[0].partitions}


def fetch(topic: str = TOPIC, *, offset: int = 0, partition: int = 0, epoch: int = -1, **fields: Any) -> FetchRequest:
    """Return a request for one partition that the broker does not hold back for long."""
    asked = FetchPartition(
        partition=partition, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 16
    )
    topics = (FetchTopic(topic=topic, partitions=(asked,)),)
    return FetchRequest(**{"max_wait_ms": 100, "min_bytes": 1, "topics": topics, **fields})


def list_offsets(
    timestamp: int, topic: str = TOPIC, *, partition: int = 0, max_num_offsets: int = 1, isolation_level: int = 0
) -> ListOffsetsRequest:
    """Return a lookup in one partition."""
    asked = ListPartition(partition=partition, timestamp=timestamp, max_num_offsets=max_num_offsets)
    return ListOffsetsRequest(isolation_level=isolation_level, topics=(ListTopic(topic=topic, partitions=(asked,)),))


# -- what is asked of each release


def record_0_8(recorder: Recorder) -> None:
    """Version 0 of everything, with its errors."""
    recorder.ask("all topics", MetadataRequest(topics=None), 0)
    recorder.ask("unknown topic", MetadataRequest(topics=("absent",)), 0)
    recorder.ask("from the start", fetch(), 0)
    recorder.ask("at the end", fetch(offset=4), 0)
    recorder.ask("beyond the end", fetch(offset=99), 0)
    recorder.ask("unknown partition", fetch(partition=7), 0)
    recorder.ask("latest", list_offsets(LATEST_TIMESTAMP, max_num_offsets=5), 0)
    recorder.ask("earliest", list_offsets(EARLIEST_TIMESTAMP, max_num_offsets=5), 0)
    recorder.ask("unknown partition", list_offsets(LATEST_TIMESTAMP, partition=7), 0)


def record_0_10(recorder: Recorder) -> None:
    """Messages of magic 1, offsets by time, null topics."""
    recorder.ask("what it knows", ApiVersionsRequest(), 0)
    recorder.ask_unsupported(9)
    recorder.ask("all topics", MetadataRequest(topics=None), 1)
    recorder.ask("no topics", MetadataRequest(topics=()), 1)
    recorder.ask("unknown topic", MetadataRequest(topics=(TOPIC, "absent")), 1)
    recorder.ask("from the start", fetch(), 2)
    recorder.ask("limited as a whole", fetch(offset=2, max_bytes=1), 3)
    for note, timestamp in {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "by time": 1}.items():
        recorder.ask(note, list_offsets(timestamp), 1)
    recorder.ask("beyond the last time", list_offsets(FAR_FUTURE_MS), 1)


def record_1_1(recorder: Recorder) -> None:
    """Record batches, transactions, fetch sessions."""
    cluster = recorder.cluster
    cluster.create_topic("tx")
    source = Path(__file__).with_name("TransactionProducer.java")
    cluster.run_tool(str(source), cluster.bootstrap, "tx")

    recorder.ask_unsupported(9)
    recorder.ask("all topics", MetadataRequest(topics=None), 3)
    recorder.ask(
        "unknown topic, not to be created", MetadataRequest(topics=("absent",), allow_auto_topic_creation=False), 4
    )
    recorder.ask("named", MetadataRequest(topics=(TOPIC,), allow_auto_topic_creation=False), 5)
    recorder.ask("from the start", fetch(), 4)
    recorder.ask("read committed", fetch("tx", isolation_level=READ_COMMITTED), 4)
    recorder.ask("read uncommitted", fetch("tx"), 5)
    recorder.ask("from the start", fetch(), 6)
    recorder.ask("beyond the end", fetch(offset=99), 6)
    recorder.ask(
        "latest, read committed", list_offsets(LATEST_TIMESTAMP, topic="tx", isolation_level=READ_COMMITTED), 2
    )
    recorder.ask("latest, read uncommitted", list_offsets(LATEST_TIMESTAMP, topic="tx"), 2)
    _record_session(recorder)


def _record_session(recorder: Recorder) -> None:
    """Take a fetch session through its life."""
    begun = fetch(session_id=NO_SESSION_ID, session_epoch=INITIAL_SESSION_EPOCH)
    session_id = recorder.ask("new session", begun, 7).session_id
    moved = fetch(offset=4, session_id=session_id, session_epoch=1)
    recorder.ask("session goes on", moved, 7)
    quiet = fetch(session_id=session_id, session_epoch=2, topics=())
    recorder.ask("session without news", quiet, 7)
    forgotten = (ForgottenTopic(topic=TOPIC, partitions=(0,)),)
    left = fetch("tx", session_id=session_id, session_epoch=3, forgotten_topics=forgotten)
    recorder.ask("session forgets", left, 7)
    recorder.ask("wrong session epoch", fetch(session_id=session_id, session_epoch=9), 7)
    recorder.ask("unknown session", fetch(session_id=session_id ^ 1, session_epoch=1), 7)
    recorder.ask("session ends", fetch(session_id=session_id, session_epoch=FINAL_SESSION_EPOCH), 7)


def record_2_8(recorder: Recorder) -> None:
    """Leader epochs, zstd, fetching from followers; at last a broker stops."""
    cluster = recorder.cluster
    cluster.create_topic("zstd", compression_type="zstd")
    cluster.produce("zstd", LINES)
    zstd_leader = recorder.leaders("zstd")[0]
    cluster.create_topic("producers-zstd")
    cluster.produce("producers-zstd", LINES, codec="zstd")
    producers_leader = recorder.leaders("producers-zstd")[0]
    led_by = {broker: partition for partition, broker in recorder.leaders(TOPIC).items()}

    recorder.ask("what it knows", ApiVersionsRequest(), 0)
    recorder.ask_unsupported(9)
    recorder.ask("from the start", fetch(partition=led_by[0]), 8)
    recorder.ask("right leader epoch", fetch(partition=led_by[0], epoch=0), 9)
    recorder.ask("unknown leader epoch", fetch(partition=led_by[0], epoch=9), 9)
    recorder.ask("topic's zstd before its version", fetch("zstd"), 9, broker=zstd_leader)
    recorder.ask("producer's zstd before its version", fetch("producers-zstd"), 9, broker=producers_leader)
    recorder.ask("zstd", fetch("zstd"), 10, broker=zstd_leader)
    recorder.ask("in the leader's rack", fetch(partition=led_by[0], rack_id="rack-0"), 11)
    recorder.ask("in the follower's rack", fetch(partition=led_by[0], rack_id="rack-1"), 11)
    recorder.ask("from the follower", fetch(partition=led_by[0], rack_id="rack-1"), 11, broker=1)
    named = MetadataRequest(topics=(TOPIC,), allow_auto_topic_creation=False)
    recorder.ask("racks", named, 5)

    cluster.stop("broker-1")
    deadline = time.monotonic() + 30.0
    while set(recorder.leaders(TOPIC).values()) != {0}:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{TOPIC} still has other leaders than 0: {recorder.leaders(TOPIC)}")
        time.sleep(0.1)
    recorder.ask("offline replica", named, 5)
    recorder.ask("fenced leader epoch", fetch(partition=led_by[1], epoch=0), 9)


# -- groups and offsets


GROUP: Final = "group"
OFFSETS_TOPIC: Final = "__consumer_offsets"
SUBSCRIPTION: Final = encode_subscription(ConsumerSubscription(topics=(TOPIC,)))
ASSIGNMENT: Final = encode_assignment(Assignment(topics=(AssignedTopic(topic=TOPIC, partitions=(0,)),)))


def commit(offset: int, metadata: str | None, *, topic: str = TOPIC, **fields: Any) -> OffsetCommitRequest:
    """Return a commit for one partition."""
    partition = CommitPartition(partition=0, offset=offset, metadata=metadata)
    return OffsetCommitRequest(group_id=GROUP, topics=(CommitTopic(topic=topic, partitions=(partition,)),), **fields)


def committed(group: str = GROUP, *, topic: str = TOPIC) -> OffsetFetchRequest:
    """Return a question for what was committed for one partition."""
    return OffsetFetchRequest(group_id=group, topics=(OffsetFetchTopic(topic=topic, partitions=(0,)),))


def join(member_id: str = NO_MEMBER_ID, **fields: Any) -> JoinGroupRequest:
    """Return a request to join the group."""
    protocols = (GroupProtocol(name="range", metadata=SUBSCRIPTION),)
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        member_id=member_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        **fields,
    )


def find_coordinator(recorder: Recorder, version: int) -> None:
    """Ask until there is a coordinator, which the first who asks brings into being."""
    deadline = time.monotonic() + 30.0
    while True:
        kept = len(recorder.frames)
        answer = recorder.ask("a group's", FindCoordinatorRequest(key=GROUP), version)
        if not answer.error_code and not _loads(recorder, kept):
            return
        del recorder.frames[kept:]
        if time.monotonic() > deadline:
            raise RuntimeError(f"no coordinator: error {answer.error_code}")
        time.sleep(0.1)


def _loads(recorder: Recorder, kept: int) -> bool:
    """Tell whether the coordinator still reads its partition; not recorded."""
    (topic,) = recorder.ask("", committed(), 1).topics
    del recorder.frames[kept + 1 :]
    return bool(topic.partitions[0].error_code)


def record_offsets_0_8(recorder: Recorder) -> None:
    """Offsets in ZooKeeper and in the broker."""
    find_coordinator(recorder, 0)
    recorder.ask("nothing kept", committed("nobody"), 0)
    recorder.ask("unknown topic", commit(3, "m", topic="absent"), 0)
    recorder.ask("into ZooKeeper", commit(3, "in ZooKeeper"), 0)
    recorder.ask("from ZooKeeper", committed(), 0)
    recorder.ask("nothing kept", committed(), 1)
    recorder.ask("into the topic", commit(2, "in Kafka"), 1)
    recorder.ask("too much metadata", commit(2, "x" * 5000), 1)
    recorder.ask("from the topic", committed(), 1)
    recorder.ask("the offsets topic", fetch(OFFSETS_TOPIC), 0)


def record_groups(recorder: Recorder, newest: int) -> None:
    """A group of one member through its life, with requests of version ``newest``; JoinGroup's are one ahead."""
    commit_version = newest + 2
    fetch_version = 3 if newest == 0 else 5
    find_coordinator(recorder, newest)
    recorder.ask("no groups", ListGroupsRequest(), newest)
    recorder.ask("unknown group", DescribeGroupsRequest(groups=("absent",)), newest)
    recorder.ask("unknown member", join("nobody", rebalance_timeout_ms=5000), newest + 1)
    recorder.ask("into ZooKeeper", commit(3, "in ZooKeeper"), 0)
    recorder.ask("from ZooKeeper", committed(), 0)
    recorder.ask("nothing kept", committed("nobody"), 0)
    recorder.ask("nothing kept", committed("nobody"), 1)
    joined = recorder.ask("first member", join(rebalance_timeout_ms=5000), newest + 1)
    member: dict[str, Any] = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
    assignments = (MemberAssignment(member_id=joined.member_id, assignment=ASSIGNMENT),)
    recorder.ask("before the assignment", HeartbeatRequest(**member), newest)
    recorder.ask("leader", SyncGroupRequest(**member, assignments=assignments), newest)
    recorder.ask("in time", HeartbeatRequest(**member), newest)
    recorder.ask("old generation", HeartbeatRequest(**(member | {"generation_id": 0})), newest)
    of_member: dict[str, Any] = {key: member[key] for key in ("generation_id", "member_id")}
    recorder.ask("of a member", commit(1, "of a member", **of_member), commit_version)
    recorder.ask("kept for a day", commit(4, None, retention_time_ms=86_400_000, **of_member), commit_version)
    recorder.ask("old generation", commit(2, "m", **(of_member | {"generation_id": 0})), commit_version)
    recorder.ask("unknown topic", commit(2, "m", topic="absent", **of_member), commit_version)
    recorder.ask("too much metadata", commit(2, "x" * 5000, **of_member), commit_version)
    recorder.ask("of the group", committed(), newest + 2)
    recorder.ask("all of the group's", OffsetFetchRequest(group_id=GROUP, topics=None), newest + 2)
    recorder.ask("a stable group", DescribeGroupsRequest(groups=(GROUP,)), newest)
    recorder.ask("a group", ListGroupsRequest(), newest)
    recorder.ask("member", LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id), newest)
    recorder.ask("unknown member", LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id), newest)
    recorder.ask("an empty group", DescribeGroupsRequest(groups=(GROUP,)), newest)
    recorder.ask("the offsets topic", fetch(OFFSETS_TOPIC), fetch_version)


# -- producing


def record_produced(recorder: Recorder, versions: dict[int, tuple[int, ...]]) -> None:
    """A batch in each version, with these codecs; what is refused, too."""
    for version, codecs in versions.items():
        for codec in codecs:
            records = [NewRecord(key=b"key", value=b"value %d" % number, timestamp=1000) for number in range(3)]
            partition = ProducePartition(partition=0, record_set=build_record_set(records, magic=2, codec=codec))
            topics = (ProduceTopic(topic="produced", partitions=(partition,)),)
            request = ProduceRequest(acks=ACKS_ALL, timeout_ms=5000, topics=topics)
            recorder.ask(f"a batch of codec {codec}", request, version, broker=recorder.leaders("produced")[0])


def record_produced_1_1(recorder: Recorder) -> None:
    """The versions between those of the Java clients."""
    recorder.cluster.create_topic("produced")
    record_produced(recorder, {4: (0,), 5: (3,)})


def record_produced_2_8(recorder: Recorder) -> None:
    """With zstd, which a broker takes from version 7 on."""
    recorder.cluster.create_topic("produced")
    record_produced(recorder, {6: (1, 4), 7: (0, 4)})


# -- transactions and topics


TRANSACTIONAL_ID: Final = "mirror-t-0"


def write_in_transaction(producer: tuple[int, int, int], *, transactional: bool = True) -> ProduceRequest:
    """Return a request of a producer with an id to write three records; ``producer`` is id, epoch and base sequence."""
    records = [NewRecord(key=b"key", value=b"value %d" % number, timestamp=1000) for number in range(3)]
    record_set = build_record_set(records, magic=2, producer=producer, transactional=transactional)
    topics = (ProduceTopic(topic=TOPIC, partitions=(ProducePartition(partition=0, record_set=record_set),)),)
    return ProduceRequest(
        transactional_id=TRANSACTIONAL_ID if transactional else None, acks=ACKS_ALL, timeout_ms=5000, topics=topics
    )


def _ask_until(recorder: Recorder, note: str, request: Request[Any], version: int, passing: set[int]) -> Any:
    """Ask until the answer has another error code than these, and keep only that answer."""
    deadline = time.monotonic() + 30.0
    while True:
        kept = len(recorder.frames)
        answer = recorder.ask(note, request, version)
        code = answer.error_code if hasattr(answer, "error_code") else answer.topics[0].partitions[0].error_code
        if code not in passing:
            return answer
        del recorder.frames[kept:]
        if time.monotonic() > deadline:
            raise RuntimeError(f"{note}: still error {code}")
        time.sleep(0.1)


def record_transactions_1_1(recorder: Recorder) -> None:
    """A transaction through its life, and what is refused."""
    loading, absent, concurrent = 14, 15, 51
    find = FindCoordinatorRequest(key=TRANSACTIONAL_ID, key_type=TRANSACTION)
    _ask_until(recorder, "a transactional id's", find, 1, {absent})
    alone = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    idempotent = recorder.ask("idempotent only", alone, 0)
    sequence = idempotent.producer_id, idempotent.producer_epoch
    recorder.ask("first batch", write_in_transaction((*sequence, 0), transactional=False), 3)
    recorder.ask("the same batch again", write_in_transaction((*sequence, 0), transactional=False), 3)
    recorder.ask("a gap in the sequence", write_in_transaction((*sequence, 4), transactional=False), 3)
    begin = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000)
    timeout = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=1 << 30)
    first = _ask_until(recorder, "first of its id", begin, 0, {loading, absent, concurrent})
    recorder.ask("timeout too long", timeout, 0)
    producer = first.producer_id, first.producer_epoch
    names = {"transactional_id": TRANSACTIONAL_ID, "producer_id": producer[0], "producer_epoch": producer[1]}
    recorder.ask("without its partition", write_in_transaction((*producer, 0)), 3)
    add = AddPartitionsToTxnRequest(**names, topics=(TransactionTopic(topic=TOPIC, partitions=(0,)),))
    absent_too = AddPartitionsToTxnRequest(
        **names,
        topics=(
            TransactionTopic(topic=TOPIC, partitions=(0,)),
            TransactionTopic(topic="absent", partitions=(0,)),
        ),
    )
    recorder.ask("a topic that is not there", absent_too, 0)
    recorder.ask("a partition", add, 0)
    recorder.ask("in a transaction", write_in_transaction((*producer, 0)), 3)
    recorder.ask("a group", AddOffsetsToTxnRequest(**names, group_id=GROUP), 0)
    find_coordinator(recorder, 1)
    offsets = (TxnCommitTopic(topic=TOPIC, partitions=(TxnCommitPartition(partition=0, offset=3, metadata="m"),)),)
    recorder.ask("a group's offset", TxnOffsetCommitRequest(**names, group_id=GROUP, topics=offsets), 0)
    recorder.ask("before the commit", committed(), 3)
    recorder.ask("read committed, open", fetch(isolation_level=READ_COMMITTED), 4)
    recorder.ask("commit", EndTxnRequest(**names, committed=True), 0)
    recorder.ask("commit again", EndTxnRequest(**names, committed=True), 0)
    recorder.ask("abort of a committed one", EndTxnRequest(**names, committed=False), 0)
    _ask_until(recorder, "next transaction", add, 0, {concurrent})
    recorder.ask("after the commit", committed(), 3)
    recorder.ask("in the next one", write_in_transaction((*producer, 3)), 3)
    second = _ask_until(recorder, "second of its id", begin, 0, {concurrent})
    recorder.ask("fenced", add, 0)
    recorder.ask("fenced", EndTxnRequest(**names, committed=True), 0)
    recorder.ask("fenced", write_in_transaction((*producer, 6)), 3)
    assert second.producer_epoch > producer[1]
    wrong = names | {"producer_id": producer[0] + 1000}
    recorder.ask("another producer id", EndTxnRequest(**wrong, committed=True), 0)
    recorder.ask("read committed, aborted", fetch(isolation_level=READ_COMMITTED), 4)


def record_topics_1_1(recorder: Recorder) -> None:
    """Topics created and extended, and their configuration."""

    def creatable(topic: str, partitions: int = 3, replicas: int = 1, **configs: str) -> CreatableTopic:
        settings = tuple(TopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items())
        return CreatableTopic(
            topic=topic, partition_count=partitions, replication_factor=replicas, assignments=(), configs=settings
        )

    def create(*topics: CreatableTopic, **more: Any) -> CreateTopicsRequest:
        return CreateTopicsRequest(topics=topics, timeout_ms=10_000, **more)

    recorder.ask("a topic", create(creatable("made", cleanup_policy="compact")), 0)
    recorder.ask("a topic that is there", create(creatable("made")), 1)
    recorder.ask("validated only", create(creatable("unmade"), validate_only=True), 1)
    refused = [
        creatable("no such setting", cleanup_policy="wrong"),
        creatable("wrong", cleanup_policy="wrong"),
        creatable("unknown", no_such_config="1"),
        creatable("replicas", replicas=7),
        creatable("none", partitions=0),
    ]
    recorder.ask("refused", create(*refused), 2)
    placed = CreatableTopic(
        topic="placed",
        partition_count=-1,
        replication_factor=-1,
        assignments=(ReplicaAssignment(partition=0, replicas=(0,)), ReplicaAssignment(partition=1, replicas=(0,))),
        configs=(),
    )
    recorder.ask("placed", create(placed), 2)
    for note, topic, count in (
        ("more", "made", 5),
        ("fewer", "made", 4),
        ("as many", "made", 5),
        ("a topic that is not there", "absent", 2),
    ):
        extended = (ExtendableTopic(topic=topic, count=count, assignments=None),)
        recorder.ask(note, CreatePartitionsRequest(topics=extended, timeout_ms=10_000, validate_only=False), 0)
    for version in (0, 1):
        for note, topic, names in (
            ("some of a topic", "made", ("cleanup.policy", "retention.ms", "max.message.bytes", "no.such.config")),
            ("a topic that is not there", "absent", ("cleanup.policy",)),
        ):
            resource = ConfigResource(resource_type=TOPIC_RESOURCE, resource_name=topic, names=names)
            recorder.ask(note, DescribeConfigsRequest(resources=(resource,)), version)


# -- clusters


class RackCluster(Cluster):
    """Brokers in racks of their own, ``rack-0`` and so on, which let a consumer read from its own rack (KIP-392)."""

    def start_broker(self, index: int, *, wait: bool = True) -> None:
        """Start broker ``index`` in its rack."""
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        self.properties = {"broker.rack": f"rack-{index}", "replica.selector.class": selector}
        super().start_broker(index, wait=wait)


RELEASES: Final[dict[str, dict[str, Callable[[Recorder], None]]]] = {
    "0.8.2.2": {"": record_0_8, "-groups": record_offsets_0_8},
    "0.10.2.2": {"": record_0_10, "-groups": lambda recorder: record_groups(recorder, 0)},
    "1.1.1": {
        "": record_1_1,
        "-groups": lambda recorder: record_groups(recorder, 1),
        "-produced": record_produced_1_1,
        "-topics": record_topics_1_1,
        "-transactions": record_transactions_1_1,
    },
    "2.8.2": {"": record_2_8, "-produced": record_produced_2_8},
}
"""What is asked of each release, by the ending of the file's name."""


def record(release: str, ending: str) -> Path:
    """Ask a fresh cluster of ``release`` everything that is recorded of it under ``ending``, and write the file."""
    racks = release == "2.8.2"
    one_partition = {"offsets.topic.num.partitions": "1"}
    with RackCluster(release, brokers=2) if racks else Cluster(release, properties=one_partition) as cluster:
        cluster.create_topic(TOPIC, partitions=2 if racks else 1, replication=cluster.brokers)
        cluster.produce(TOPIC, LINES)
        recorder = Recorder(cluster)
        RELEASES[release][ending](recorder)
    path = VECTORS / f"recorded-kafka-{release}{ending}.json"
    head = {"release": release, "recorded": str(datetime.now(UTC).date()), "how": "tests/vectors/record.py"}
    lines = ",\n".join(json.dumps(frame) for frame in recorder.frames)
    path.write_text(f'{json.dumps(head)[:-1]}, "frames": [\n{lines}\n]}}\n')
    return path


def main() -> None:
    """Record the releases named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="+", choices=RELEASES)
    parser.add_argument("--only", metavar="ENDING", help="of a file's name, such as -groups")
    arguments = parser.parse_args()
    for release in arguments.release:
        for ending in RELEASES[release]:
            if arguments.only in (None, ending):
                print(record(release, ending))  # noqa: T201 - the command's output


if __name__ == "__main__":
    main()
