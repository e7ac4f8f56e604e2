# SPDX-License-Identifier: Apache-2.0
"""Positions of a group in Kafka, committed to the group's coordinator (OffsetCommit v1 to v3).

**Members that ZooKeeper coordinates** name no generation in their commits. The broker accepts such a commit from any
client, and compares nothing. So it is weaker than a commit to ZooKeeper:

=========================================  =====================================================================
in ZooKeeper                               in Kafka
=========================================  =====================================================================
a commit of a lost claim is refused        the claim is checked right before each request is sent, and a request is
                                           given up after half a session timeout; what is on its way then can
                                           still arrive, and may move the position back until the next commit
a commit of another client is noticed      it is overwritten unnoticed
a request of an operator is deleted with   the position is committed first, and the request is deleted after that;
the commit that carries it out             after a crash in between it is carried out again, to the same position
=========================================  =====================================================================

**Members that a broker coordinates** name the group's generation and their member id (:class:`MemberGeneration`). The
coordinator refuses a commit of a member that it has removed (UNKNOWN_MEMBER_ID) and one of an earlier generation
(ILLEGAL_GENERATION), so a late commit moves nothing. Such a claim counts as lost.

**Age.** Kafka keeps no identity of the topic beside a position. Ours have it in their metadata, the text that is
committed with an offset::

    consumerd czxid=4294967337 id=6f0c9a1e

``czxid`` is the topic's incarnation (``topic_id`` in a cluster without ZooKeeper), and ``id`` is different for each
request, which tells two commits of one offset apart. :mod:`consumerd.offsets.commit_metadata` has the form. The age of
a position that another client committed is unknown. consumerd uses such a position: brokers delete the positions of a
deleted topic, from 0.9 on.

**Expiry.** Brokers forget positions that were not committed for ``offsets.retention.minutes``, which is a day by
default before 2.0. So the positions of idle partitions are committed again every :data:`REWRITE_S`.

Sources: Kafka protocol guide (OffsetCommitRequest); ``GroupCoordinator`` and ``GroupMetadataManager`` of 0.9 to 3.9,
``OffsetManager`` of 0.8.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from consumerd import failpoints
from consumerd.access.principal import OUR_PRINCIPAL, Principal, Resource
from consumerd.aio.sharing import SharedBatches
from consumerd.client.coordinator import CoordinatorFinder
from consumerd.cluster.topics import TopicRegistry
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    ProtocolError,
)
from consumerd.model import Claim, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.offsets.commit_metadata import CommitMetadata, format_metadata
from consumerd.offsets.kafka import KafkaPositions
from consumerd.offsets.kafka_errors import OF_ANOTHER_GROUP, explain_kafka_error
from consumerd.offsets.kafka_writer import PARTITIONS_PER_REQUEST, commit_offsets, plan_commit
from consumerd.offsets.positions import parse_kafka_offset
from consumerd.offsets.remade import find_remade
from consumerd.offsets.store import (
    Commit,
    CommitOutcome,
    LostEnd,
    MemberRequests,
    OffsetRequest,
    StoredOffset,
    find_refusal,
)
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.offset_commit import NO_GENERATION, CommitTopic

REWRITE_S: Final = 600.0
"""Time, in seconds, after which the position of an idle partition is committed again."""
_NO_METADATA: Final = (
    "the cluster allows too little text with a position, and nothing else keeps truncations without ZooKeeper: raise "
    "offset.metadata.max.bytes of the brokers"
)
_OF_COORDINATOR: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Codes that pass, or that another coordinator does not have."""

_log = structlog.get_logger(__name__)


class MemberGeneration:
    """Generation and member id that a coordinated member's commits of positions must name.

    The membership sets both at each rebalance; the store of positions reads both right before each request.
    """

    def __init__(self) -> None:
        self.number = NO_GENERATION
        self.member_id = ""
        self.refused: Callable[[int, BrokerError], None] = _ignore
        """Called with a generation and the error with which the coordinator refused its commit."""

    def set(self, number: int, member_id: str) -> None:
        """Let commits name this generation number and member id from now on."""
        self.number, self.member_id = number, member_id

    def clear(self) -> None:
        """Let no commit be sent from now on: the member belongs to no generation."""
        self.set(NO_GENERATION, "")


@dataclass(frozen=True, slots=True)
class _Note:
    """A note about a truncation, committed with a position."""

    claim: Claim
    position: int
    metadata: CommitMetadata

    def is_about(self, commit: Commit) -> bool:
        """Return True if the commit repeats the position that has the note."""
        lost: LostEnd | None = self.metadata.lost_end
        is_decided = lost is not None and commit.truncation >= lost.number
        return self.claim is commit.claim and self.position == commit.position and not is_decided


def _ignore(_generation: int, _error: BrokerError) -> None:
    """Ignore a refusal: no membership runs yet."""


class KafkaOffsetStore:
    """Store of one group's positions in Kafka. Calls of :meth:`commit` wait for each other.

    Args:
        topics: Read for the present identities of topics.
        positions: Reads positions in Kafka.
        request_timeout_s: Time limit of each request, in seconds: half a session timeout at most.
        new_id: Returns a text of hexadecimal digits, another one with each call.
        requests: Operators' requests. A request that a commit carries out is deleted after the commit.
        denied: Called with each topic for which the coordinator refuses commits for lack of permission.
        generation: The member's generation in the group, if brokers coordinate it; None if ZooKeeper does.
        keeps_truncations: True if the metadata of commits has the truncations of logs, too, because no ZooKeeper does.
        principal: Our identity at brokers, for advice.
    """

    rewrite_s: float | None = REWRITE_S

    def __init__(
        self,
        topics: TopicRegistry,
        coordinator: CoordinatorFinder,
        positions: KafkaPositions,
        group: str,
        *,
        request_timeout_s: float,
        new_id: Callable[[], str],
        requests: MemberRequests,
        denied: Callable[[str], None] = lambda _topic: None,
        generation: MemberGeneration | None = None,
        keeps_truncations: bool = False,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._generation = generation
        self._topics = topics
        self._keeps_truncations = keeps_truncations
        self._turn = asyncio.Lock()
        self._noted: dict[TopicPartition, _Note] = {}
        self._coordinator = coordinator
        self._group = group
        self._request_timeout_s = request_timeout_s
        self._new_id = new_id
        self._requests = requests
        self._denied = denied
        self._sends_metadata = True
        self._failing = False
        self._refusals: dict[TopicPartition, str] = {}
        self._fulfilled: dict[TopicPartition, str] = {}
        """Requests whose positions are committed, and whose nodes may still be there."""
        self._positions = positions
        # partitions that start at the same time share a request
        self._read_together = SharedBatches[None, TopicPartition, StoredOffset | CoordinationError | None](self._read)

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        """Read the positions of these partitions from the coordinator; None for one without a position.

        Raises CoordinationError.
        """
        answers = await self._read_together(None, partitions)
        found: dict[TopicPartition, StoredOffset | None] = {}
        for partition in partitions:
            answer = answers[partition]
            if isinstance(answer, CoordinationError):
                raise answer.with_traceback(None)
            found[partition] = answer
        return found

    async def _read(
        self, _key: None, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, StoredOffset | CoordinationError | None]:
        try:
            found = await self._positions.find(partitions)
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            raise CoordinationError(explain_kafka_error(error, self._group, self._principal)) from error
        failures = {
            partition: CoordinationError(explain_kafka_error(error, self._group, self._principal, partition.topic))
            for partition, error in found.failures.items()
        }
        stored = {partition: parse_kafka_offset(offset) for partition, offset in found.offsets.items()}
        return {partition: failures.get(partition) or stored.get(partition) for partition in partitions}

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        """Write positions to Kafka, each only if its claim is valid right before. Raises nothing.

        Returns the outcome of every given position. Waits for the commits that are under way.
        """
        async with self._turn:
            return await self._commit(commits)

    async def write_note(self, claim: Claim, position: int, metadata: CommitMetadata) -> None:
        """Commit a position with a note about a truncation of its log. Raises CoordinationError.

        The note stays until another position is committed, or one in the log after the truncation.
        """
        partition = claim.partition
        async with self._turn:
            if not self._sends_metadata:
                raise CoordinationError(f"{partition}: {_NO_METADATA}")
            former = self._noted.get(partition)
            self._noted[partition] = _Note(claim, position, metadata)
            outcomes = await self._commit([Commit(claim, position, truncation=metadata.incarnation.truncation)])
            if outcomes[partition] is CommitOutcome.WRITTEN:
                return
            del self._noted[partition]
            if former is not None:
                self._noted[partition] = former  # else the position that has it would be committed without it
        refused = self.explain_refusal(partition)
        raise CoordinationError(
            f"{partition}: the truncation of its log could not be noted with its position: {refused or 'not committed'}"
        )

    def keep_note(self, claim: Claim, position: int, metadata: CommitMetadata) -> None:
        """Remember a note, so that its position is committed with it again."""
        self._noted[claim.partition] = _Note(claim, position, metadata)

    async def _commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        outcomes: dict[TopicPartition, CommitOutcome] = {}
        failure: ConsumerdError | None = None
        try:
            pending = await self._find_current(commits, outcomes)
            for begin in range(0, len(pending), PARTITIONS_PER_REQUEST):
                await self._commit_some(pending[begin : begin + PARTITIONS_PER_REQUEST], outcomes)
        except (BrokerError, ConnectionLost, ProtocolError, CoordinationError) as error:
            failure = error
        for commit in commits:
            outcomes.setdefault(commit.claim.partition, CommitOutcome.FAILED)
        self._note_health(failure, outcomes)
        return outcomes

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        """Return why the coordinator refuses this partition's commits, None if it does not."""
        return self._refusals.get(partition)

    # -- before a request

    async def _find_current(
        self, commits: Sequence[Commit], outcomes: dict[TopicPartition, CommitOutcome]
    ) -> list[Commit]:
        """Return the commits whose topics and requests are still those of the claims. Raises CoordinationError."""
        found = await find_remade(self._topics, [commit.claim for commit in commits if not commit.is_of_topic])
        kept = []
        for commit in commits:
            partition = commit.claim.partition
            if partition in found.remade:
                outcomes[partition] = CommitOutcome.NOT_OWNER
            elif partition in found.unnamed:
                right = self._principal.advise("Describe", Resource.TOPIC, partition.topic)
                reason = f"a broker names no topic id of {partition.topic}: it is tried again; if it lasts, {right}"
                self._refuse(partition, reason, outcomes)
            elif self._is_outdated(commit):
                self._refuse(partition, "its log was truncated, and delivery begins again", outcomes)
            elif not await self._is_standing(commit):
                outcomes[partition] = CommitOutcome.REQUEST_CHANGED
            else:
                kept.append(commit)
        return kept

    def _is_outdated(self, commit: Commit) -> bool:
        """Return True for a position from before a truncation noted under this claim."""
        note = self._noted.get(commit.claim.partition)
        if note is None or note.claim is not commit.claim:
            return False
        return commit.truncation < note.metadata.incarnation.truncation

    async def _is_standing(self, commit: Commit) -> bool:
        if commit.fulfils is None:
            return True
        found = await self._requests.find(commit.claim.partition)
        if found is None:  # our own deletion may have been carried out without an answer
            return self._fulfilled.get(commit.claim.partition) == commit.fulfils.id
        return found.id == commit.fulfils.id

    def _find_usable(self, commits: Iterable[Commit], outcomes: dict[TopicPartition, CommitOutcome]) -> list[Commit]:
        """Return the commits without an outcome whose claims can be used at this moment."""
        usable = []
        for commit in commits:
            if commit.claim.partition in outcomes:
                continue
            refusal = find_refusal(commit.claim)
            if refusal is None and self._generation is not None and commit.claim.epoch != self._generation.number:
                refusal = CommitOutcome.NOT_OWNER  # of an earlier generation; without one it would not be fenced at all
            if refusal is None:
                usable.append(commit)
            else:
                outcomes[commit.claim.partition] = refusal
        return usable

    # -- requests

    async def _commit_some(self, commits: Sequence[Commit], outcomes: dict[TopicPartition, CommitOutcome]) -> None:
        """Commit until each position is taken or refused, or its claim cannot be used.

        Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
        """

        async def send(connection: BrokerConnection) -> None:
            # again for those whose metadata was refused; nothing is awaited between this check and the request
            while usable := self._find_usable(commits, outcomes):
                await self._send(connection, usable, outcomes)

        await self._coordinator.ask(send)
        for commit in commits:
            if commit.fulfils is not None and outcomes.get(commit.claim.partition) is CommitOutcome.WRITTEN:
                await self._end_request(commit.claim.partition, commit.fulfils, outcomes)

    async def _end_request(
        self, partition: TopicPartition, request: OffsetRequest, outcomes: dict[TopicPartition, CommitOutcome]
    ) -> None:
        """Delete a request whose position is committed.

        Until that is done, the commit counts as failed.
        """
        self._fulfilled[partition] = request.id
        try:
            await self._requests.remove(request)
        except CoordinationError as error:
            self._refuse(partition, f"its position is committed, and the request is not deleted yet: {error}", outcomes)

    async def _send(
        self, connection: BrokerConnection, commits: Sequence[Commit], outcomes: dict[TopicPartition, CommitOutcome]
    ) -> None:
        topics = self._plan_topics(commits)
        if failpoints.ENABLED:
            failpoints.reach("before_commit")
        generation, member_id = (
            (NO_GENERATION, "") if self._generation is None else (self._generation.number, self._generation.member_id)
        )
        codes = await commit_offsets(
            connection,
            self._group,
            topics,
            timeout_s=self._request_timeout_s,
            generation=generation,
            member_id=member_id,
        )
        if failpoints.ENABLED:
            failpoints.reach("after_commit")
        passing: BrokerError | None = None
        for commit in commits:
            partition = commit.claim.partition
            context = f"OffsetCommit of group {self._group!r} at {connection.address} for {partition}"
            code = codes.get(partition)
            if code == ErrorCode.NONE:
                outcomes[partition] = CommitOutcome.WRITTEN
                self._refusals.pop(partition, None)
            elif code is None:
                self._refuse(partition, f"{context}: the partition is missing in the answer", outcomes)
            elif code in _OF_COORDINATOR:
                passing = broker_error(code, context)
            elif code in OF_ANOTHER_GROUP and self._generation is not None:
                self._refuse_member(partition, generation, broker_error(code, context), outcomes)
            elif code == ErrorCode.OFFSET_METADATA_TOO_LARGE and self._find_note(commit) is not None:
                # without its text, the position would be valid in the log before the truncation
                self._refuse(partition, _NO_METADATA, outcomes)
            elif code == ErrorCode.OFFSET_METADATA_TOO_LARGE and self._sends_metadata:
                self._sends_metadata = False  # the cluster allows less than 60 bytes; positions are then of unknown age
                _log.info("offset_metadata_refused", group=self._group, broker=str(connection.address))
            else:
                self._refuse(
                    partition,
                    explain_kafka_error(broker_error(code, context), self._group, self._principal, partition.topic),
                    outcomes,
                )
                if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    self._denied(partition.topic)
        if passing is not None:
            raise passing

    def _plan_topics(self, commits: Sequence[Commit]) -> tuple[CommitTopic, ...]:
        request_id = self._new_id()
        made = {}
        for commit in commits:
            text = self._describe(commit, request_id) if self._sends_metadata else ""
            made[commit.claim.partition] = (commit.position, text)
        return plan_commit(made)

    def _describe(self, commit: Commit, request_id: str) -> str:
        topic = commit.claim.incarnation
        if not self._keeps_truncations:
            return format_metadata(topic, request_id)
        if commit.claim.partition in self._noted and commit.fulfils is not None:
            # the request is carried out by this commit, and is not to be written again with the same position
            made = CommitMetadata(incarnation=topic.truncated(commit.truncation))
            self._noted[commit.claim.partition] = _Note(commit.claim, commit.position, made)
        elif (note := self._find_note(commit)) is not None:
            return note.metadata.encode(request_id)
        return format_metadata(topic.truncated(commit.truncation), request_id)

    def _find_note(self, commit: Commit) -> _Note | None:
        """Return the note that is committed with this position, or None."""
        note = self._noted.get(commit.claim.partition)
        return note if note is not None and commit.fulfils is None and note.is_about(commit) else None

    # -- failures

    def _refuse_member(
        self,
        partition: TopicPartition,
        generation: int,
        error: BrokerError,
        outcomes: dict[TopicPartition, CommitOutcome],
    ) -> None:
        """Note that the coordinator does not take commits of our generation, and tell the membership.

        While the group rebalances, the position is kept: the membership drains or drops the partition.
        """
        assert self._generation is not None  # only a coordinated member names a generation
        if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._refuse(partition, str(error), outcomes)
        else:
            outcomes[partition] = CommitOutcome.NOT_OWNER
        self._generation.refused(generation, error)

    def _refuse(self, partition: TopicPartition, reason: str, outcomes: dict[TopicPartition, CommitOutcome]) -> None:
        self._refusals[partition] = reason
        outcomes[partition] = CommitOutcome.FAILED

    def _note_health(self, failure: ConsumerdError | None, outcomes: Mapping[TopicPartition, CommitOutcome]) -> None:
        failed = [partition for partition, outcome in outcomes.items() if outcome is CommitOutcome.FAILED]
        if failed and not self._failing:
            self._failing = True
            reason = (
                explain_kafka_error(failure, self._group, self._principal)
                if failure is not None
                else self._refusals.get(failed[0], "claims pause")
            )
            _log.warning("offsets_commit_failed", group=self._group, error=reason)
        elif outcomes and not failed and self._failing:
            self._failing = False
            _log.info("offsets_commit_recovered", group=self._group)
