# SPDX-License-Identifier: Apache-2.0
"""The frames under ``tests/vectors/modern``: what real clients and brokers said to each other."""

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
from consumerd.wire.schema import Request
from consumerd.wire.session import HEADER_CODEC, RequestHeader

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "modern"

REQUESTS: Final[dict[ApiKey, type[Request[Any]]]] = {
    request.api: request
    for request in (
        ApiVersionsRequest,
        DescribeGroupsRequest,
        FetchRequest,
        FindCoordinatorRequest,
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        ListGroupsRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        ProduceRequest,
        SyncGroupRequest,
    )
}
"""Every request that is declared."""

VERSIONS: Final = [(request, version) for request in REQUESTS.values() for version in request.versions]


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


@cache
def load_frames() -> tuple[RecordedFrame, ...]:
    """Read all frames, in the order of their files."""
    return tuple(frame for path in sorted(VECTORS.glob("*kafka-*.json")) for frame in read_frames(path))


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
    return header, bytes(data[at:])
