# SPDX-License-Identifier: Apache-2.0
"""Lookup of the start and end offsets of logs, and of offsets by time.

Requests go to the leaders of the partitions (ListOffsets v0 to v2): one request per leader for all of its partitions,
all leaders at once. Calls made while a leader's response is outstanding share the next request to it. So thousands of
partitions that start one by one cost few requests. Leaders of Kafka 0.6 and 0.7 are asked by another implementation of
:mod:`consumerd.client.offset_lookup`.

If a leader has moved, is unknown, or does not respond, the cluster view is refreshed and its partitions are retried
until the timeout.

Example: 1,000 partitions on 3 brokers start, each with a call of its own. The first call sends a request for one
partition. The other calls to the same broker share one request when the response has come.

Version 0 (before 0.10.1) knows only the modification times of log segments, as Kafka 0.6 and 0.7 do. With them,
:meth:`LogRangeReader.offset_for_time` may return an offset before the exact one, but never one after it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.backoff import Backoff
from consumerd.aio.sharing import SharedBatches
from consumerd.aio.timeouts import timeout
from consumerd.client.leaders import Connections, Leaders
from consumerd.client.offset_lookup import (
    BEFORE_FIRST,
    EARLIEST_TIME,
    INEXACT,
    LATEST_TIME,
    OffsetLookup,
    OffsetOutcome,
    OffsetQuestion,
)
from consumerd.client.remedies import DESCRIBE, advise_lookup, explain_no_leader
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimedOut,
)
from consumerd.model import LogRange, TopicPartition
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.modern.fetch import READ_COMMITTED, READ_UNCOMMITTED
from consumerd.wire.modern.list_offsets import ListedPartition, ListOffsetsRequest, ListPartition, ListTopic

_LIST_OF_OFFSETS: Final = 0
"""The one version of ListOffsets that returns several offsets."""
_FIRST_WITH_ONE_OFFSET: Final = 1
_FIRST_WITH_ISOLATION: Final = 2
_NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class _Question:
    """The time to look up in one partition; the fields are as in :class:`OffsetQuestion`."""

    partition: TopicPartition
    time: int
    read_committed: bool
    exact: bool = False


@dataclass(slots=True)
class _Answers:
    """Results so far, and the last error of each lookup that failed."""

    offsets: dict[_Question, int | None] = field(default_factory=dict)
    failures: dict[_Question, ConsumerdError] = field(default_factory=dict)

    def take(self, question: _Question, outcome: OffsetOutcome) -> None:
        if isinstance(outcome, ConsumerdError):
            self.failures[question] = outcome
        else:
            self.failures.pop(question, None)
            self.offsets[question] = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRanges:
    """Start and end offsets of partition logs, and errors of the other partitions."""

    ranges: Mapping[TopicPartition, LogRange]
    failures: Mapping[TopicPartition, ConsumerdError]


NO_RANGES: Final = FoundRanges(ranges={}, failures={})


class LogRanges(Protocol):
    """Lookup of the start and end offsets of partition logs, such as :class:`LogRangeReader`."""

    @property
    def logs_are_replicated(self) -> bool:
        """True if logs have replicas (Kafka 0.8 and later).

        With replicas, the end may be reported too low for a moment, since the high watermark of a new leader lags. A
        log that was truncated keeps the records below its end. Without, an end below a consumed position has one cause:
        the broker was wiped, and began another log at 0. It may grow beyond the position, so the first such answer is
        final.
        """

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the start and end offset of each partition's log.

        Raises BrokerError, ConnectionLost, ProtocolError.
        """

    async def high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return each partition's high watermark, also if the reader uses ``read_committed``.

        Raises BrokerError, ConnectionLost, ProtocolError.
        """


class LogRangeReader:
    """Looks up start offsets, end offsets and offsets by time, at the partitions' leaders.

    Args:
        random: Returns floats in [0, 1), for backoffs.
        read_committed: True to return the last stable offset as a log's end, if the broker supports it, instead of the
            high watermark.
        timeout_s: Time limit of each call, in seconds.
        request_timeout_s: Time limit of each request, in seconds.
        lookup: Lookup at single brokers; None for :class:`ModernOffsetLookup` on ``connections``.
        principal: Our identity at brokers, for advice.
        right: Right to advise where one is missing: ``Describe``, or ``Read`` for a reader of records.
    """

    def __init__(
        self,
        connections: Connections,
        leaders: Leaders,
        *,
        random: Callable[[], float],
        read_committed: bool = False,
        timeout_s: float = 30.0,
        request_timeout_s: float = 10.0,
        lookup: OffsetLookup | None = None,
        principal: Principal = OUR_PRINCIPAL,
        right: str = DESCRIBE,
    ) -> None:
        self._right = right
        self._principal = principal
        self._lookup = lookup or ModernOffsetLookup(connections, request_timeout_s=request_timeout_s)
        self._leaders = leaders
        self._random = random
        self._read_committed = read_committed
        self._timeout_s = timeout_s
        self._ask_together = SharedBatches(self._lookup.ask)

    @property
    def logs_are_replicated(self) -> bool:
        """True if logs have replicas; False for Kafka 0.6 and 0.7."""
        return self._lookup.logs_are_replicated

    async def read(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the start and end offset of each partition's log.

        Raises BrokerError, ConnectionLost or ProtocolError for the first partition that could not be read;
        RequestTimedOut if its leader was not found.
        """
        return self._ranges(partitions, await self._look_up_all(self._ends_of(partitions)))

    async def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return each partition's high watermark, also if the reader uses ``read_committed``.

        With ``read_committed``, :meth:`read` returns the last stable offset instead, which an open transaction holds
        back. Raises BrokerError, ConnectionLost or ProtocolError for the first partition that could not be read.
        """
        answers = await self._look_up_all([_Question(one, LATEST_TIME, read_committed=False) for one in partitions])
        return {question.partition: offset for question, offset in answers.offsets.items() if offset is not None}

    async def find(
        self, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
    ) -> Mapping[TopicPartition, LogRange]:
        """Return the start and end offset of those partition logs that could be read.

        The other partitions are missing in the result. Raises nothing for them.

        Args:
            timeout_s: Time limit of this call, in seconds; None for the reader's ``timeout_s``.
        """
        return (await self.find_or_explain(partitions, timeout_s=timeout_s)).ranges

    async def find_or_explain(
        self, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
    ) -> FoundRanges:
        """Return the start and end offset of partition logs, and the errors of other partitions.

        Each partition has either a range or an error.

        Args:
            timeout_s: Time limit of this call, in seconds; None for the reader's ``timeout_s``.
        """
        answers = await self._look_up(self._ends_of(partitions), timeout_s)
        failures = {question.partition: error for question, error in answers.failures.items()}
        ranges = self._ranges(partitions, answers)
        return FoundRanges(ranges=ranges, failures={one: failures[one] for one in failures if one not in ranges})

    async def offset_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of each partition's first record with this timestamp or a later one.

        The value is None for a partition without such a record. A broker before 0.10.1 may return an earlier offset,
        the start of a log segment.

        Args:
            timestamp_ms: In ms since the epoch.

        Raises BrokerError, ConnectionLost or ProtocolError for the first partition that could not be read.
        """
        answers = await self._look_up_all(
            [_Question(partition, timestamp_ms, self._read_committed) for partition in partitions]
        )
        found = {question.partition: offset for question, offset in answers.offsets.items()}
        if before_first := [partition for partition, offset in found.items() if offset == BEFORE_FIRST]:
            answers = await self._look_up_all(
                [_Question(partition, EARLIEST_TIME, self._read_committed) for partition in before_first]
            )
            found |= {question.partition: offset for question, offset in answers.offsets.items()}
        return found

    async def first_offset_of_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of each partition's first record with this timestamp or later, if exact.

        The value is None for a partition without such a record. Partitions are left out if their broker does not know
        the timestamps of records (before 0.10.1): it finds only the start of a log segment.

        Args:
            timestamp_ms: In ms since the epoch.

        Raises BrokerError, ConnectionLost or ProtocolError for the first partition that could not be read.
        """
        questions = [_Question(partition, timestamp_ms, self._read_committed, exact=True) for partition in partitions]
        answers = await self._look_up_all(questions)
        return {question.partition: offset for question, offset in answers.offsets.items() if offset != INEXACT}

    async def is_coarse(self, partitions: Collection[TopicPartition]) -> bool:
        """Return True if a leader finds offsets by time only by log segment (before 0.10.1).

        Raises ConnectionLost, ProtocolError.
        """
        leaders = {leader for one in partitions if (leader := self._leaders.find_leader(one)) is not None}
        for leader in leaders:
            if await self._lookup.is_coarse(leader):
                return True
        return False

    # -- asking until all is answered

    async def _look_up_all(self, questions: Iterable[_Question]) -> _Answers:
        """Look up as :meth:`_look_up`; raises the first failure that is left."""
        answers = await self._look_up(questions)
        if answers.failures:
            # several callers may raise the same exception, and each would append to its traceback
            raise next(iter(answers.failures.values())).with_traceback(None)
        return answers

    async def _look_up(self, questions: Iterable[_Question], timeout_s: float | None = None) -> _Answers:
        """Perform all lookups, with retries until the timeout. Raises nothing but LocalProtocolError."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        answers = _Answers()
        pending = dict.fromkeys(questions)
        backoff = Backoff(initial_s=0.05, maximum_s=2.0, random=self._random)
        try:
            async with timeout(timeout_s):
                while pending:
                    await self._ask_leaders(pending, answers)
                    again = [one for one in pending if (cause := answers.failures.get(one)) and _may_pass(cause)]
                    pending = dict.fromkeys(again)
                    if pending:
                        view = await self._leaders.refresh(f"ListOffsets: {answers.failures[again[0]]}")
                        self._explain_leaderless(again, view, answers)
                        await asyncio.sleep(backoff.next())
        except TimeoutError:
            late = f"no offsets within {timeout_s:g} s"
            for one in pending:
                if one not in answers.offsets:
                    answers.failures.setdefault(one, RequestTimedOut(f"{one.partition}: {late}"))
        return answers

    def _explain_leaderless(self, questions: Iterable[_Question], view: ClusterView, answers: _Answers) -> None:
        """Note why partitions have no leader, as errors for when the time is over."""
        for one in questions:
            if view.find_leader(one.partition) is None and isinstance(answers.failures.get(one), ConnectionLost):
                reason = explain_no_leader(one.partition, view, self._principal, right=self._right)
                answers.failures[one] = RequestTimedOut(f"{one.partition}: {reason}")

    async def _ask_leaders(self, questions: Iterable[_Question], answers: _Answers) -> None:
        """Send the lookups to the leaders once, to all at the same time."""
        batches: dict[OffsetQuestion, list[_Question]] = defaultdict(list)
        for question in questions:
            leader = self._leaders.find_leader(question.partition)
            if leader is None:
                answers.take(question, RequestTimedOut(f"{question.partition}: no leader is known"))
            else:
                # a request may contain a partition only once: one request for each time
                asked = OffsetQuestion(leader, question.time, question.read_committed, question.exact)
                batches[asked].append(question)
        async with asyncio.TaskGroup() as tasks:
            for asked, batch in batches.items():
                asking = self._ask_leader(asked, batch, answers)
                tasks.create_task(asking, name=f"list offsets at broker {asked.leader.id}")

    async def _ask_leader(self, asked: OffsetQuestion, questions: list[_Question], answers: _Answers) -> None:
        outcomes = await self._ask_together(asked, [one.partition for one in questions])
        for question in questions:
            outcome = outcomes[question.partition]
            if isinstance(outcome, ConsumerdError):
                outcome = advise_lookup(outcome, question.partition.topic, self._principal, right=self._right)
            answers.take(question, outcome)

    # -- both ends of a log

    def _ends_of(self, partitions: Iterable[TopicPartition]) -> list[_Question]:
        times = (EARLIEST_TIME, LATEST_TIME)
        return [_Question(one, time, self._read_committed) for one in partitions for time in times]

    def _ranges(self, partitions: Iterable[TopicPartition], answers: _Answers) -> dict[TopicPartition, LogRange]:
        found = {}
        for partition in partitions:
            earliest = answers.offsets.get(_Question(partition, EARLIEST_TIME, self._read_committed))
            latest = answers.offsets.get(_Question(partition, LATEST_TIME, self._read_committed))
            if earliest is not None and latest is not None:
                # They come from two requests. Retention may have moved the start past the end between them.
                found[partition] = LogRange(earliest, max(earliest, latest))
        return found


def _may_pass(failure: ConsumerdError) -> bool:
    """Return whether a retry can help."""
    return isinstance(failure, ConnectionLost) or (isinstance(failure, BrokerError) and failure.retriable)


# -- brokers of 0.8 and later


class ModernOffsetLookup:
    """Looks up offsets at single brokers of Kafka 0.8 and later.

    Args:
        request_timeout_s: Time limit of each request, in seconds.
    """

    def __init__(self, connections: Connections, *, request_timeout_s: float = 10.0) -> None:
        self._connections = connections
        self._request_timeout_s = request_timeout_s

    @property
    def logs_are_replicated(self) -> bool:
        """True, also for topics with one replica."""
        return True

    async def ask(
        self, question: OffsetQuestion, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetOutcome]:
        """Look up one time in partitions of one leader; return an outcome for each."""
        context = f"ListOffsets at broker {question.leader}"
        isolation = READ_COMMITTED if question.read_committed else READ_UNCOMMITTED
        try:
            connection = await self._connections.get(question.leader, Purpose.CONTROL)
            version = connection.version_of(ListOffsetsRequest)
            if question.exact and version < _FIRST_WITH_ONE_OFFSET:
                return dict.fromkeys(partitions, INEXACT)
            request = plan_request(partitions, question.time, version, isolation)
            response = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
        except (ConnectionLost, ProtocolError) as error:
            return dict.fromkeys(partitions, error)
        listed = {
            TopicPartition.modern(topic.topic, one.partition): one
            for topic in response.topics
            for one in topic.partitions
        }
        return {
            partition: _read_answer(partition, question.time, listed.get(partition), version, context)
            for partition in partitions
        }

    async def list_before(self, leader: Broker, partition: TopicPartition, time: int, most: int) -> list[int]:
        """Return start offsets of log segments last written before a time, in descending order.

        It is version 0 of ListOffsets, the only one that returns several offsets. Raises BrokerError, ConnectionLost,
        ProtocolError, which is UnsupportedVersion for brokers from 4.0 on.

        Args:
            time: ms since the epoch, or LATEST_TIME, or EARLIEST_TIME.
            most: Largest number of offsets to return.
        """
        connection = await self._connections.get(leader, Purpose.CONTROL)
        version = connection.version_of(ListOffsetsRequest, at_most=_LIST_OF_OFFSETS)
        listed = ListPartition(partition=partition.partition.number, timestamp=time, max_num_offsets=most)
        request = ListOffsetsRequest(topics=(ListTopic(topic=partition.topic, partitions=(listed,)),))
        response = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
        context = f"ListOffsets at broker {leader} for {partition}"
        for topic in response.topics:
            for one in topic.partitions:
                if one.error_code:
                    raise broker_error(one.error_code, context)
                return list(one.offsets)
        raise ConnectionLost(f"{context}: the partition is missing from the answer")

    async def is_coarse(self, leader: Broker) -> bool:
        """Return True if a broker finds offsets by time only by log segment (before 0.10.1).

        Raises ConnectionLost, ProtocolError.
        """
        connection = await self._connections.get(leader, Purpose.CONTROL)
        return connection.version_of(ListOffsetsRequest) < _FIRST_WITH_ONE_OFFSET


def _read_answer(
    partition: TopicPartition, time: int, answer: ListedPartition | None, version: int, context: str
) -> OffsetOutcome:
    if answer is None:
        return ConnectionLost(f"{context}: {partition} is missing from the answer")
    if answer.error_code:
        return broker_error(answer.error_code, f"{context} for {partition}")
    offsets = (answer.offset,) if version >= _FIRST_WITH_ONE_OFFSET else answer.offsets
    offset = offsets[0] if offsets else None
    if offset is not None and offset >= 0:
        return offset
    if time not in (EARLIEST_TIME, LATEST_TIME):  # only a time may have no offset
        if offset is None:
            return BEFORE_FIRST
        if offset == _NO_OFFSET and version >= _FIRST_WITH_ONE_OFFSET:
            return None
    found = "none" if offset is None else offset
    return RemoteProtocolError(f"{context} for {partition}: expected an offset, got {found}")


def plan_request(
    partitions: Iterable[TopicPartition], timestamp: int, version: int, isolation: int = READ_UNCOMMITTED
) -> ListOffsetsRequest:
    """Return a ListOffsets request for one time in several partitions, which must be distinct.

    Args:
        timestamp: In ms since the epoch, or -1 for the end and -2 for the start of the log.
        version: Version of ListOffsets that is sent.
        isolation: Isolation level; versions before 2 do not have the field.
    """
    by_topic: dict[str, list[ListPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        by_topic[partition.topic].append(ListPartition(partition=partition.partition.number, timestamp=timestamp))
    topics = tuple(ListTopic(topic=topic, partitions=tuple(listed)) for topic, listed in by_topic.items())
    is_isolated = version >= _FIRST_WITH_ISOLATION
    return ListOffsetsRequest(topics=topics, isolation_level=isolation if is_isolated else READ_UNCOMMITTED)
