# SPDX-License-Identifier: Apache-2.0
"""Kafka's own classes read what we write, see the same values in it, and write the same bytes.

The classes of kafka-clients 2.8.2 are generated from Kafka's message definitions and know all the versions that are
declared here, but for :data:`LATER`; so this compares every field and its versions with those definitions.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import uuid
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from consumerd.wire.declaration import NO_UUID, declaration_of
from consumerd.wire.modern.api_versions import ApiVersionsResponse
from consumerd.wire.modern.fetch import FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.groups import DescribedGroup, DescribedMember
from consumerd.wire.modern.list_offsets import ListedPartition, ListedTopic, ListPartition, ListTopic
from consumerd.wire.modern.metadata import FIRST_WITH_TOPIC_IDS, MetadataPartition, MetadataRequest, MetadataTopic
from consumerd.wire.modern.offset_commit import CommitPartition, CommittedPartition, CommittedTopic, CommitTopic
from consumerd.wire.modern.offset_fetch import KeptPartition, KeptTopic, OffsetFetchTopic
from consumerd.wire.modern.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from consumerd.wire.modern.topic_administration import (
    ConfigEntry,
    ConfigResource,
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsResponse,
    DescribeConfigsResponse,
    DescribedConfigs,
    ExtendableTopic,
    ExtendedTopic,
    PartitionReplicas,
    ReplicaAssignment,
)
from consumerd.wire.modern.transactions import (
    AddedPartition,
    AddedTopic,
    AddPartitionsToTxnResponse,
    TransactionTopic,
    TxnCommitPartition,
    TxnCommittedPartition,
    TxnCommittedTopic,
    TxnCommitTopic,
)
from consumerd.wire.schema import compile_codec
from tests.interop.conftest import require
from tests.support.frames import VERSIONS
from tests.support.kafka import java_command
from tests.support.messages import messages

RELEASE: Final = "2.8.2"
EXAMPLES: Final = 25
LATER: Final = {(MetadataRequest, 12)}
"""Versions that came after that release."""

NAMES: Final[dict[tuple[type, str], str]] = {
    (AddPartitionsToTxnResponse, "topics"): "results",
    (AddedPartition, "partition"): "partitionIndex",
    (AddedTopic, "partitions"): "results",
    (AddedTopic, "topic"): "name",
    (ApiVersionsResponse, "api_versions"): "apiKeys",
    (CommitPartition, "metadata"): "committedMetadata",
    (CommitPartition, "offset"): "committedOffset",
    (CommitPartition, "partition"): "partitionIndex",
    (CommitPartition, "timestamp"): "commitTimestamp",
    (CommitTopic, "topic"): "name",
    (CommittedPartition, "partition"): "partitionIndex",
    (CommittedTopic, "topic"): "name",
    (ConfigEntry, "source"): "configSource",
    (ConfigResource, "names"): "configurationKeys",
    (CreatableTopic, "partition_count"): "numPartitions",
    (CreatableTopic, "topic"): "name",
    (CreatePartitionsResponse, "topics"): "results",
    (CreatedTopic, "topic"): "name",
    (DescribeConfigsResponse, "resources"): "results",
    (DescribedConfigs, "entries"): "configs",
    (DescribedGroup, "protocol"): "protocolData",
    (DescribedGroup, "state"): "groupState",
    (DescribedMember, "assignment"): "memberAssignment",
    (DescribedMember, "metadata"): "memberMetadata",
    (ExtendableTopic, "topic"): "name",
    (ExtendedTopic, "topic"): "name",
    (FetchRequest, "forgotten_topics"): "forgottenTopicsData",
    (FetchResponse, "topics"): "responses",
    (FetchedTopic, "partitions"): "partitionResponses",
    (KeptPartition, "offset"): "committedOffset",
    (KeptPartition, "partition"): "partitionIndex",
    (KeptTopic, "topic"): "name",
    (ListPartition, "partition"): "partitionIndex",
    (ListTopic, "topic"): "name",
    (ListedPartition, "offsets"): "oldStyleOffsets",
    (ListedPartition, "partition"): "partitionIndex",
    (ListedTopic, "topic"): "name",
    (MetadataPartition, "isr"): "isrNodes",
    (MetadataPartition, "leader"): "leaderId",
    (MetadataPartition, "partition"): "partitionIndex",
    (MetadataPartition, "replicas"): "replicaNodes",
    (MetadataTopic, "topic"): "name",
    (OffsetFetchTopic, "partitions"): "partitionIndexes",
    (OffsetFetchTopic, "topic"): "name",
    (ProducePartition, "partition"): "index",
    (ProducePartition, "record_set"): "records",
    (ProduceRequest, "topics"): "topicData",
    (ProduceResponse, "topics"): "responses",
    (ProduceTopic, "partitions"): "partitionData",
    (ProduceTopic, "topic"): "name",
    (ProducedPartition, "partition"): "index",
    (ProducedTopic, "partitions"): "partitionResponses",
    (ProducedTopic, "topic"): "name",
    (PartitionReplicas, "replicas"): "brokerIds",
    (ReplicaAssignment, "partition"): "partitionIndex",
    (ReplicaAssignment, "replicas"): "brokerIds",
    (TransactionTopic, "topic"): "name",
    (TxnCommitPartition, "leader_epoch"): "committedLeaderEpoch",
    (TxnCommitPartition, "metadata"): "committedMetadata",
    (TxnCommitPartition, "offset"): "committedOffset",
    (TxnCommitPartition, "partition"): "partitionIndex",
    (TxnCommitTopic, "topic"): "name",
    (TxnCommittedPartition, "partition"): "partitionIndex",
    (TxnCommittedTopic, "topic"): "name",
}
"""Where Kafka 2.8 calls a field something else than its protocol guide of 1.1 or this package does."""


def in_java(value: Any, version: int) -> Any:
    """Return a message as Kafka's JSON converter shows it."""
    if isinstance(value, tuple):
        return [in_java(one, version) for one in value]
    if isinstance(value, uuid.UUID):
        return urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if not dataclasses.is_dataclass(value):
        return value
    shown = {}
    for one in dataclasses.fields(value):
        if version in declaration_of(one).versions:
            camel = re.sub(r"_(.)", lambda match: match[1].upper(), one.name)
            shown[NAMES.get((type(value), one.name), camel)] = in_java(_field(value, one.name, version), version)
    return shown


def _field(message: Any, name: str, version: int) -> Any:
    value = getattr(message, name)
    if name == "record_set":
        return None if value is None else ""  # the converter leaves records out: the bytes written again have them
    if isinstance(message, MetadataRequest) and name == "topics":
        if value is None:
            return () if version == 0 else None
        identified = {"topicId": in_java(NO_UUID, version)} if version >= FIRST_WITH_TOPIC_IDS else {}
        return tuple({**identified, "name": topic} for topic in value)
    return value


def examples(cls: type, version: int) -> list[Any]:
    """Return values that Hypothesis drew."""
    drawn: list[Any] = []

    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(messages(cls, version))
    def collect(value: Any) -> None:
        drawn.append(value)

    collect()
    return drawn


def ask_java(questions: list[str]) -> list[str]:
    """Return the oracle's answers."""
    source = Path(__file__).with_name("MessageOracle.java")
    done = subprocess.run(
        java_command(RELEASE, str(source)),
        input="\n".join(questions),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.removesuffix("\n").split("\n")


@pytest.mark.timeout(180)
def test_java_reads_the_same_values_and_writes_the_same_bytes() -> None:
    """An oracle that shares no line with us, over every version and drawn values."""
    require(RELEASE)
    asked: list[tuple[Any, int]] = []
    questions: list[str] = []
    for request, version in (one for one in VERSIONS if one not in LATER):
        for kind, cls in (("request", request), ("response", request.response)):
            for value in examples(cls, version):
                encoded = compile_codec(cls, version).encode(value)
                asked.append((value, version))
                questions.append(f"{request.api.value} {kind} {version} {encoded.hex()}")

    answers = ask_java(questions)

    assert len(questions) == len(answers)
    for question, (value, version), answer in zip(questions, asked, answers, strict=True):
        encoded, _, shown = answer.partition(" ")
        assert encoded == question.rpartition(" ")[2], (question, answer)
        assert json.loads(shown) == in_java(value, version), question
