# SPDX-License-Identifier: Apache-2.0
"""Error responses: one error code for all parts of a refused request.

They are sent if a handler fails (UNKNOWN_SERVER_ERROR), and if a test injects an error. Their other fields are those of
``getErrorResponse`` in Kafka's request classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.api_versions import ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.modern.fetch import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from consumerd.wire.modern.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from consumerd.wire.modern.list_offsets import (
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListTopic,
)
from consumerd.wire.modern.metadata import MetadataRequest, MetadataResponse, MetadataTopic
from consumerd.wire.modern.offset_commit import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from consumerd.wire.modern.offset_fetch import (
    NO_OFFSET,
    KeptPartition,
    KeptTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from consumerd.wire.modern.produce import ProducedPartition, ProducedTopic, ProduceRequest, ProduceResponse
from consumerd.wire.modern.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from consumerd.wire.modern.topic_administration import (
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
    ExtendedTopic,
)
from consumerd.wire.modern.transactions import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AddedPartition,
    AddedTopic,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnCommittedPartition,
    TxnCommittedTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from consumerd.wire.schema import Request

_NOWHERE: Final = -1
_FIRST_WITH_ONE_ERROR: Final = 2
"""The version from which OffsetFetch has one error for the whole response."""


def refuse(request: Request[Any], code: ErrorCode, version: int) -> object:
    """Return the response to ``request`` in which every part has the error ``code``.

    Parts are topics, partitions or groups. ``version`` is that of the request. Raises KeyError for a request that this
    broker does not serve.
    """
    if isinstance(request, OffsetFetchRequest) and version >= _FIRST_WITH_ONE_ERROR:
        return OffsetFetchResponse(error_code=code, topics=())
    return _REFUSALS[type(request)](request, code)


def refused_fetch(number: int, code: int) -> FetchedPartition:
    """Return the part of a Fetch response for partition ``number``, with error ``code``."""
    return FetchedPartition(partition=number, error_code=code, high_watermark=-1, record_set=b"")


def refused_produce(number: int, code: int) -> ProducedPartition:
    """Return the part of a Produce response for partition ``number``, with error ``code``."""
    return ProducedPartition(partition=number, error_code=code, base_offset=-1)


def _refuse_produce(request: ProduceRequest, code: int) -> ProduceResponse:
    return ProduceResponse(
        topics=tuple(
            ProducedTopic(
                topic=topic.topic, partitions=tuple(refused_produce(one.partition, code) for one in topic.partitions)
            )
            for topic in request.topics
        )
    )


def _refuse_fetch(request: FetchRequest, code: int) -> FetchResponse:
    return FetchResponse(
        topics=tuple(
            FetchedTopic(
                topic=topic.topic, partitions=tuple(refused_fetch(one.partition, code) for one in topic.partitions)
            )
            for topic in request.topics
        )
    )


def _refuse_list_offsets(request: ListOffsetsRequest, code: int) -> ListOffsetsResponse:
    def refused(topic: ListTopic) -> Iterable[ListedPartition]:
        return (ListedPartition(partition=one.partition, error_code=code) for one in topic.partitions)

    return ListOffsetsResponse(
        topics=tuple(ListedTopic(topic=topic.topic, partitions=tuple(refused(topic))) for topic in request.topics)
    )


def _refuse_metadata(request: MetadataRequest, code: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=(),
        topics=tuple(MetadataTopic(error_code=code, topic=name, partitions=()) for name in request.topics or ()),
    )


def _refuse_offset_commit(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=tuple(
            CommittedTopic(
                topic=topic.topic,
                partitions=tuple(
                    CommittedPartition(partition=one.partition, error_code=code) for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _refuse_offset_fetch(request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        topics=tuple(
            KeptTopic(
                topic=topic.topic,
                partitions=tuple(
                    KeptPartition(partition=number, offset=NO_OFFSET, metadata="", error_code=code)
                    for number in topic.partitions
                ),
            )
            for topic in request.topics or ()
        )
    )


def _refuse_join(_request: JoinGroupRequest, code: int) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, generation_id=-1, protocol_name="", leader="", member_id="", members=())


def _refuse_describe(request: DescribeGroupsRequest, code: int) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=tuple(
            DescribedGroup(error_code=code, group_id=group, state="", protocol_type="", protocol="", members=())
            for group in request.groups
        )
    )


def _refuse_add_partitions(request: AddPartitionsToTxnRequest, code: int) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        topics=tuple(
            AddedTopic(
                topic=topic.topic,
                partitions=tuple(AddedPartition(partition=one, error_code=code) for one in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _refuse_txn_offset_commit(request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnCommittedTopic(
                topic=topic.topic,
                partitions=tuple(
                    TxnCommittedPartition(partition=one.partition, error_code=code) for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _refuse_create_topics(request: CreateTopicsRequest, code: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=tuple(CreatedTopic(topic=one.topic, error_code=code) for one in request.topics))


def _refuse_create_partitions(request: CreatePartitionsRequest, code: int) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        topics=tuple(ExtendedTopic(topic=one.topic, error_code=code, error_message=None) for one in request.topics)
    )


def _refuse_describe_configs(request: DescribeConfigsRequest, code: int) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        resources=tuple(
            DescribedConfigs(
                error_code=code,
                error_message=None,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                entries=(),
            )
            for one in request.resources
        )
    )


_REFUSALS: Final[dict[type[Request[Any]], Callable[[Any, int], object]]] = {
    ProduceRequest: _refuse_produce,
    FetchRequest: _refuse_fetch,
    ListOffsetsRequest: _refuse_list_offsets,
    MetadataRequest: _refuse_metadata,
    OffsetCommitRequest: _refuse_offset_commit,
    OffsetFetchRequest: _refuse_offset_fetch,
    FindCoordinatorRequest: lambda _request, code: FindCoordinatorResponse(
        error_code=code, node_id=_NOWHERE, host="", port=_NOWHERE
    ),
    JoinGroupRequest: _refuse_join,
    SyncGroupRequest: lambda _request, code: SyncGroupResponse(error_code=code, assignment=b""),
    HeartbeatRequest: lambda _request, code: HeartbeatResponse(error_code=code),
    LeaveGroupRequest: lambda _request, code: LeaveGroupResponse(error_code=code),
    DescribeGroupsRequest: _refuse_describe,
    ListGroupsRequest: lambda _request, code: ListGroupsResponse(error_code=code, groups=()),
    InitProducerIdRequest: lambda _request, code: InitProducerIdResponse(
        error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    ),
    AddPartitionsToTxnRequest: _refuse_add_partitions,
    AddOffsetsToTxnRequest: lambda _request, code: AddOffsetsToTxnResponse(error_code=code),
    EndTxnRequest: lambda _request, code: EndTxnResponse(error_code=code),
    TxnOffsetCommitRequest: _refuse_txn_offset_commit,
    CreateTopicsRequest: _refuse_create_topics,
    CreatePartitionsRequest: _refuse_create_partitions,
    DescribeConfigsRequest: _refuse_describe_configs,
    SaslHandshakeRequest: lambda _request, code: SaslHandshakeResponse(error_code=code, mechanisms=()),
    SaslAuthenticateRequest: lambda _request, code: SaslAuthenticateResponse(error_code=code),
    ApiVersionsRequest: lambda _request, code: ApiVersionsResponse(error_code=code, api_versions=()),
}

REQUESTS: Final = {request.api: request for request in _REFUSALS}
"""The request classes that this broker serves, by API key."""
