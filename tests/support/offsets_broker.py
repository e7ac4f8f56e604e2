# SPDX-License-Identifier: Apache-2.0
"""A broker by script that coordinates groups: FindCoordinator, OffsetFetch and OffsetCommit, with errors that a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from consumerd.cluster.view import Broker
from consumerd.model import TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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
from consumerd.wire.schema import Request
from tests.support.scripted_broker import Reaction, ScriptedBroker

NEWEST: Mapping[ApiKey, tuple[int, int]] = {
    ApiKey.FIND_COORDINATOR: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 3),
    ApiKey.OFFSET_COMMIT: (0, 3),
    ApiKey.FETCH: (0, 7),
}


class OffsetsBroker(ScriptedBroker):
    """Names ``coordinator`` and answers with ``offsets``; its lists of codes are used up first to last."""

    def __init__(self, coordinator: Broker, *, newest: Mapping[ApiKey, tuple[int, int]] = NEWEST) -> None:
        answers: dict[type[Request[Any]], Callable[[Any, int], object]] = {
            FindCoordinatorRequest: self.find_coordinator,
            OffsetFetchRequest: self.fetch,
            OffsetCommitRequest: self.commit,
        }
        super().__init__(answers, ranges=newest)
        self.coordinator = coordinator
        self.offsets: dict[TopicPartition, int] = {}
        self.finding_codes: list[int] = []
        self.answer_codes: list[int] = []
        """Codes of whole answers: from version 2 on for the answer, before that for each partition."""
        self.metadata: dict[TopicPartition, str] = {}
        """Texts that were committed; others are ``by us``."""
        self.commit_codes: dict[TopicPartition, list[int]] = {}
        self.partition_codes: dict[TopicPartition, int] = {}
        self.left_out: set[TopicPartition] = set()
        self.silent = False

    def find_coordinator(self, _request: FindCoordinatorRequest, _version: int) -> object:
        """Name the coordinator."""
        if self.silent:
            return Reaction.SILENT
        if self.finding_codes:
            return FindCoordinatorResponse(error_code=self.finding_codes.pop(0), node_id=-1, host="", port=-1)
        at = self.coordinator
        return FindCoordinatorResponse(node_id=at.id, host=at.host, port=at.port)

    def fetch(self, request: OffsetFetchRequest, version: int) -> object:
        """Answer with offsets, -1 for a partition without one."""
        if self.silent:
            return Reaction.SILENT
        code = self.answer_codes.pop(0) if self.answer_codes else 0
        if code and version >= 2:
            return OffsetFetchResponse(error_code=code, topics=())
        if request.topics is None:
            asked = sorted(self.offsets)
        else:
            asked = [TopicPartition.modern(one.topic, number) for one in request.topics for number in one.partitions]
        by_topic: dict[str, list[KeptPartition]] = {}
        for partition in asked:
            if partition not in self.left_out:
                by_topic.setdefault(partition.topic, []).append(self._keep(partition, code))
        return OffsetFetchResponse(
            topics=tuple(KeptTopic(topic=topic, partitions=tuple(kept)) for topic, kept in by_topic.items())
        )

    def _keep(self, partition: TopicPartition, code: int) -> KeptPartition:
        code = code or self.partition_codes.get(partition, 0)
        offset = NO_OFFSET if code else self.offsets.get(partition, NO_OFFSET)
        metadata = self.metadata.get(partition, "by us") if offset > NO_OFFSET else ""
        return KeptPartition(partition=partition.partition.number, offset=offset, metadata=metadata, error_code=code)

    def commit(self, request: OffsetCommitRequest, _version: int) -> object:
        """Keep offsets, but for partitions with a code."""
        if self.silent:
            return Reaction.SILENT
        topics = []
        for topic in request.topics:
            answered = []
            for one in topic.partitions:
                partition = TopicPartition.modern(topic.topic, one.partition)
                codes = self.commit_codes.get(partition)
                code = codes.pop(0) if codes else 0
                if not code:
                    self.offsets[partition], self.metadata[partition] = one.offset, one.metadata or ""
                if partition not in self.left_out:
                    answered.append(CommittedPartition(partition=one.partition, error_code=code))
            topics.append(CommittedTopic(topic=topic.topic, partitions=tuple(answered)))
        return OffsetCommitResponse(topics=tuple(topics))
