# SPDX-License-Identifier: Apache-2.0
"""Handlers of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit.

They convert between the wire's values and the coordinators'. As Kafka's ``KafkaApis.scala`` of 1.1; newer versions
answer PRODUCER_FENCED (90) where older ones answer INVALID_PRODUCER_EPOCH (47).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.positions import CoordinatedPosition
from consumerd.embedded.coordinator.transactions import TransactionCoordinator
from consumerd.embedded.handlers.context import Handler, RequestContext
from consumerd.embedded.topics import Topics
from consumerd.model import TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern import transactions as wire

_FIRST_WITH_FENCED: Final = 2
"""First version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn with error 90."""
_FIRST_INIT_WITH_FENCED: Final = 4


def transaction_handlers(
    coordinator: TransactionCoordinator,
    groups: GroupCoordinator,
    *,
    topics: Topics,
    now_ms: Callable[[], int],
) -> Mapping[ApiKey, Handler]:
    """Return the handlers of transactional producers' requests, by API.

    Args:
        coordinator: Transactions of transactional ids.
        groups: Takes the offsets of groups.
        topics: The existing topics: others cannot be in a transaction.
        now_ms: Calendar time in ms since the Unix epoch.
    """
    requests = TransactionHandlers(coordinator, groups, topics, now_ms)
    return {
        ApiKey.INIT_PRODUCER_ID: requests.init,
        ApiKey.ADD_PARTITIONS_TO_TXN: requests.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: requests.add_offsets,
        ApiKey.END_TXN: requests.end,
        ApiKey.TXN_OFFSET_COMMIT: requests.commit_offsets,
    }


class TransactionHandlers:
    """Handlers of the requests of idempotent and transactional producers."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        topics: Topics,
        now_ms: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._topics = topics
        self._now_ms = now_ms

    async def init(self, request: wire.InitProducerIdRequest, context: RequestContext) -> wire.InitProducerIdResponse:
        """Return a producer id and epoch."""
        present = None
        if request.producer_id != wire.NO_PRODUCER_ID:
            present = (request.producer_id, request.producer_epoch)
        found = await self._coordinator.init(request.transactional_id, request.transaction_timeout_ms, present)
        error = found.error
        if error is ErrorCode.PRODUCER_FENCED and context.version < _FIRST_INIT_WITH_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        return wire.InitProducerIdResponse(error_code=error, producer_id=found.producer_id, producer_epoch=found.epoch)

    async def add_partitions(
        self, request: wire.AddPartitionsToTxnRequest, context: RequestContext
    ) -> wire.AddPartitionsToTxnResponse:
        """Add partitions to the transaction, all of them or none."""
        wanted = [TopicPartition.modern(topic.topic, one) for topic in request.topics for one in topic.partitions]
        unknown = {one for one in wanted if not self._exists(one)}
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
        if not unknown:
            error = await self._coordinator.add(
                request.transactional_id, request.producer_id, request.producer_epoch, wanted
            )
            error = _by_version(error, context)

        def code(topic: str, number: int) -> ErrorCode:
            is_unknown = TopicPartition.modern(topic, number) in unknown
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else error

        return wire.AddPartitionsToTxnResponse(
            topics=tuple(
                wire.AddedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        wire.AddedPartition(partition=one, error_code=code(topic.topic, one))
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def add_offsets(
        self, request: wire.AddOffsetsToTxnRequest, context: RequestContext
    ) -> wire.AddOffsetsToTxnResponse:
        """Add the partition of a group's offsets to the transaction."""
        error = await self._coordinator.add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [self._groups.partition_of_offsets(request.group_id)],
        )
        return wire.AddOffsetsToTxnResponse(error_code=_by_version(error, context))

    async def end(self, request: wire.EndTxnRequest, context: RequestContext) -> wire.EndTxnResponse:
        """Commit or abort the transaction."""
        error = await self._coordinator.end(
            request.transactional_id, request.producer_id, request.producer_epoch, commit=request.committed
        )
        return wire.EndTxnResponse(error_code=_by_version(error, context))

    async def commit_offsets(
        self, request: wire.TxnOffsetCommitRequest, _: RequestContext
    ) -> wire.TxnOffsetCommitResponse:
        """Store a group's offsets, which count from the commit of the transaction on."""
        asked = {
            TopicPartition.modern(topic.topic, one.partition): one
            for topic in request.topics
            for one in topic.partitions
        }
        now_ms = self._now_ms()
        expire_ms = now_ms + self._groups.settings.offsets_retention_ms
        errors = dict.fromkeys(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        positions = {
            partition: CoordinatedPosition(
                offset=one.offset, metadata=one.metadata or "", commit_ms=now_ms, expire_ms=expire_ms
            )
            for partition, one in asked.items()
            if self._exists(partition)
        }
        if positions:
            errors.update(
                await self._groups.commit_in_transaction(
                    request.group_id,
                    producer_id=request.producer_id,
                    epoch=request.producer_epoch,
                    member_id=request.member_id,
                    generation=request.generation_id,
                    positions=positions,
                )
            )
        return wire.TxnOffsetCommitResponse(
            topics=tuple(
                wire.TxnCommittedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        wire.TxnCommittedPartition(
                            partition=one.partition,
                            error_code=errors[TopicPartition.modern(topic.topic, one.partition)],
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._topics.find(partition.topic)
        return topic is not None and partition.partition.number in topic.replicas


def _by_version(error: ErrorCode, context: RequestContext) -> ErrorCode:
    if error is ErrorCode.INVALID_PRODUCER_EPOCH and context.version >= _FIRST_WITH_FENCED:
        return ErrorCode.PRODUCER_FENCED
    return error
