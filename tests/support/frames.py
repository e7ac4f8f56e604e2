# SPDX-License-Identifier: Apache-2.0
"""The frames under ``tests/vectors``: what real clients and brokers said to each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.fetch import FetchRequest
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from consumerd.wire.modern.produce import ProduceRequest
from consumerd.wire.modern.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from consumerd.wire.modern.topic_administration import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
)
from consumerd.wire.modern.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.session import CORRELATION_BYTES, HEADER_CODEC, RequestHeader

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "modern"
SASL_VECTORS: Final = VECTORS.parent / "sasl"
KRAFT_VECTORS: Final = VECTORS.parent / "kraft"

REQUESTS: Final[dict[ApiKey, type[Request[Any]]]] = {
    request.api: request
    for request in (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        ApiVersionsRequest,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        EndTxnRequest,
        FetchRequest,
        FindCoordinatorRequest,
        HeartbeatRequest,
        InitProducerIdRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        ListGroupsRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        ProduceRequest,
        SaslAuthenticateRequest,
        SaslHandshakeRequest,
        SyncGroupRequest,
        TxnOffsetCommitRequest,
    )
}
"""Every request that is declared."""

VERSIONS: Final = [(request, version) for request in REQUESTS.values() for version in request.versions]


_RECORDED_LATER: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)
"""Requests whose frames from brokers without ZooKeeper are needed, since they have versions that others lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFrame:
    """A request and its answer, whole frames with their sizes; ``response`` is None where none was waited for.

    ``response_version`` differs from the request's where a broker could not answer in that. ``note`` says what a recorded question was about; frames of Java clients have none.
    """

    release: str
    asked_by: str
    note: str
    api: ApiKey
    version: int
    response_version: int
    request: bytes
    response: bytes | None

    def __str__(self) -> str:
        return f"{self.release}-{self.api.name}-v{self.version}-{self.note or self.asked_by}"

    @property
    def request_class(self) -> type[Request[Any]]:
        """The declared class of the request."""
        return REQUESTS[self.api]

    @property
    def response_body(self) -> bytes:
        """The response without its size and its header."""
        assert self.response is not None
        codec = compile_codec(self.request_class.response, self.response_version)
        return bytes(codec.skip_header_tags(memoryview(self.response)[SIZE_BYTES + CORRELATION_BYTES :]))


@cache
def load_frames() -> tuple[RecordedFrame, ...]:
    """Read all frames, in the order of their files."""
    modern = [frame for path in sorted(VECTORS.glob("*kafka-*.json")) for frame in read_frames(path)]
    # the other requests of later brokers have been recorded from older ones, too
    later = [one for one in load_kraft_frames() if one.api in _RECORDED_LATER]
    known = (frame for frame in later if frame.version in frame.request_class.versions)
    return (*modern, *known, *load_sasl_frames())


@cache
def load_sasl_frames() -> tuple[RecordedFrame, ...]:
    """Read the requests of authentications; tokens in frames of their own are no requests."""
    found = []
    for path in sorted(SASL_VECTORS.glob("kafka-*.json")):
        document = json.loads(path.read_text())
        found += [
            RecordedFrame(
                release=document["release"],
                asked_by="consumerd",
                note=one["client"],
                api=ApiKey(one["api_key"]),
                version=one["api_version"],
                response_version=one["api_version"],
                request=bytes.fromhex(one["request_hex"]),
                response=None if one["response_hex"] is None else bytes.fromhex(one["response_hex"]),
            )
            for one in document["frames"]
            if one.get("api_key") in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        ]
    return tuple(found)


@cache
def load_kraft_frames() -> tuple[RecordedFrame, ...]:
    """Read the frames of brokers without ZooKeeper, those of undeclared versions too."""
    return tuple(
        RecordedFrame(
            release=one["release"],
            asked_by="consumerd",
            note=one["note"],
            api=ApiKey(one["api_key"]),
            version=one["api_version"],
            response_version=one["api_version"],
            request=bytes.fromhex(one["request_hex"]),
            response=None if one["response_hex"] is None else bytes.fromhex(one["response_hex"]),
        )
        for one in load_kraft_documents()
    )


@cache
def load_kraft_documents() -> tuple[dict[str, Any], ...]:
    """Read the same frames as they are stored: with what they mean."""
    lines = (line for path in sorted(KRAFT_VECTORS.glob("*.jsonl")) for line in path.read_text().splitlines())
    return tuple(map(json.loads, lines))


def read_frames(path: Path) -> list[RecordedFrame]:
    """Read the frames of one file."""
    document = json.loads(path.read_text())
    return [
        RecordedFrame(
            release=document["release"],
            asked_by=one["asked_by"],
            note=one.get("note", ""),
            api=ApiKey(one["api_key"]),
            version=one["api_version"],
            response_version=one.get("response_version", one["api_version"]),
            request=bytes.fromhex(one["request_hex"]),
            response=None if one["response_hex"] is None else bytes.fromhex(one["response_hex"]),
        )
        for one in document["frames"]
    ]


def split_request(frame: RecordedFrame) -> tuple[RequestHeader, bytes]:
    """Part a request frame into its header and its body."""
    data = memoryview(frame.request)[SIZE_BYTES:]
    header, at = HEADER_CODEC.read(data, 0, len(data))
    codec = compile_codec(frame.request_class, frame.version)
    return header, bytes(codec.skip_header_tags(data[at:]))
