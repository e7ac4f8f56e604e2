# SPDX-License-Identifier: Apache-2.0
"""What offsets a partition's log holds: its first, its next one, and the first from a time on.

Asks each partition's leader (ListOffsets v0 to v2), all partitions of a leader in one request, all leaders at once. Calls
that come while a leader's answer is awaited have the next request of it together, so that thousands of partitions that
start by themselves, each with a call of its own, cost few.

Partitions whose leader has moved, is not there yet, or does not answer are asked again after the cluster was read anew,
until the time is over.

Version 0 (before 0.10.1) knows times only as exactly as log segments are modified: :meth:`LogRangeReader.offset_for_time`
then gives an offset at or before the one wanted, never one after it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.aio.backoff import Backoff
from consumerd.aio.sharing import SharedBatches
from consumerd.aio.timeouts import timeout
from consumerd.client.leaders import Connections, Leaders
from consumerd.cluster.view import Broker
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
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListedPartition,
    ListOffsetsRequest,
    ListPartition,
    ListTopic,
)

_FIRST_WITH_ONE_OFFSET: Final = 1
_FIRST_WITH_ISOLATION: Final = 2
_NO_OFFSET: Final = -1
_BEFORE_FIRST: Final = -2
"""Version 0 about a time: no log segment is that old, so that the first offset is meant."""
_INEXACT: Final = -3
"""Version 0 about the time of a record: it knows only when segments were modified."""


_Outcome = int | ConsumerdError | None
"""What became of a question: an offset (None: no record is that new), or why there is none."""


@dataclass(frozen=True, slots=True)
class _Question:
    """One partition, the time to look up (in ms, or one of ListOffsets' two special ones), and the isolation level."""

    partition: TopicPartition
    timestamp: int
    isolation: int
    exact: bool = False
    """Whether the times of records count, and those of segments do not."""


@dataclass(slots=True)
class _Answers:
    """What has become of the questions so far; of the failures of each the last."""

    offsets: dict[_Question, int | None] = field(default_factory=dict)
    failures: dict[_Question, ConsumerdError] = field(default_factory=dict)

    def take(self, question: _Question, outcome: _Outcome) -> None:
        if isinstance(outcome, ConsumerdError):
            self.failures[question] = outcome
        else:
            self.failures.pop(question, None)
            self.offsets[question] = outcome


class LogRanges(Protocol):
    """Asks brokers what they hold."""

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the ranges of those that could be asked for. Raises BrokerError, ConnectionLost, ProtocolError."""

    async def high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the logs' ends; under read_committed an open transaction holds back ``latest`` alone.

        Raises BrokerError, ConnectionLost, ProtocolError.
        """


class LogRangeReader:
    """Reads offsets of logs. ``read_committed`` makes ``latest`` the last stable offset where the broker knows one.

    Each call takes ``timeout_s`` at most, each request in it ``request_timeout_s``.
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
    ) -> None:
        self._connections = connections
        self._leaders = leaders
        self._random = random
        self._isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s
        self._ask_together = SharedBatches(self._ask)

    async def read(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the range of every partition given.

        Raises BrokerError, ConnectionLost or ProtocolError for the first partition that could not be read; RequestTimedOut
        when its leader was not found.
        """
        answers = await self._look_up(self._ends_of(partitions))
        _raise_first(answers)
        return self._ranges(partitions, answers)

    async def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log whatever the isolation level: an open transaction holds back ``latest`` alone.

        Raises as :meth:`read` does.
        """
        answers = await self._look_up([_Question(one, LATEST_TIMESTAMP, READ_UNCOMMITTED) for one in partitions])
        _raise_first(answers)
        return {question.partition: offset for question, offset in answers.offsets.items() if offset is not None}

    async def find(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the ranges that could be had; a partition that could not be read is left out."""
        return self._ranges(partitions, await self._look_up(self._ends_of(partitions)))

    async def offset_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return each partition's first offset whose record is of ``timestamp_ms`` or later; None where none is.

        Raises as :meth:`read` does.
        """
        answers = await self._look_up([_Question(partition, timestamp_ms, self._isolation) for partition in partitions])
        _raise_first(answers)
        found = {question.partition: offset for question, offset in answers.offsets.items()}
        if before_first := [partition for partition, offset in found.items() if offset == _BEFORE_FIRST]:
            answers = await self._look_up(
                [_Question(partition, EARLIEST_TIMESTAMP, self._isolation) for partition in before_first]
            )
            _raise_first(answers)
            found |= {question.partition: offset for question, offset in answers.offsets.items()}
        return found

    async def first_offset_of_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return each partition's first offset whose record is of ``timestamp_ms`` or later; None where none is.

        Unlike :meth:`offset_for_time`, it leaves partitions out whose broker does not know the times of records (before 0.10.1).
        Raises as :meth:`read` does.
        """
        questions = [_Question(partition, timestamp_ms, self._isolation, exact=True) for partition in partitions]
        answers = await self._look_up(questions)
        _raise_first(answers)
        return {question.partition: offset for question, offset in answers.offsets.items() if offset != _INEXACT}

    # -- asking until all is answered

    async def _look_up(self, questions: Iterable[_Question]) -> _Answers:
        """Ask, and ask again what may still be answered. Bounded by ``timeout_s``. Raises nothing but LocalProtocolError."""
        answers = _Answers()
        pending = dict.fromkeys(questions)
        backoff = Backoff(initial_s=0.05, maximum_s=2.0, random=self._random)
        try:
            async with timeout(self._timeout_s):
                while pending:
                    await self._ask_leaders(pending, answers)
                    again = [one for one in pending if (cause := answers.failures.get(one)) and _may_pass(cause)]
                    pending = dict.fromkeys(again)
                    if pending:
                        await self._leaders.refresh(f"ListOffsets: {answers.failures[again[0]]}")
                        await asyncio.sleep(backoff.next())
        except TimeoutError:
            late = f"no offsets within {self._timeout_s:g} s"
            for one in pending:
                if one not in answers.offsets:
                    answers.failures.setdefault(one, RequestTimedOut(f"{one.partition}: {late}"))
        return answers

    async def _ask_leaders(self, questions: Iterable[_Question], answers: _Answers) -> None:
        """Ask every leader once, each in a task of its own."""
        by_leader: dict[Broker, dict[tuple[int, int, bool], list[_Question]]] = defaultdict(lambda: defaultdict(list))
        for question in questions:
            leader = self._leaders.find_leader(question.partition)
            if leader is None:
                answers.take(question, RequestTimedOut(f"{question.partition}: no leader is known"))
            else:
                # a partition may stand in a request only once: one request for each time
                by_leader[leader][question.timestamp, question.isolation, question.exact].append(question)
        async with asyncio.TaskGroup() as tasks:
            for leader, by_time in by_leader.items():
                for (time, isolation, exact), batch in by_time.items():
                    asking = self._ask_leader((leader, time, isolation, exact), batch, answers)
                    tasks.create_task(asking, name=f"list offsets at broker {leader.id}")

    async def _ask_leader(
        self, asked: tuple[Broker, int, int, bool], questions: list[_Question], answers: _Answers
    ) -> None:
        outcomes = await self._ask_together(asked, [one.partition for one in questions])
        for question in questions:
            answers.take(question, outcomes[question.partition])

    async def _ask(
        self, asked: tuple[Broker, int, int, bool], partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, _Outcome]:
        """Look one time up in all these partitions of one leader."""
        leader, time, isolation, exact = asked
        context = f"ListOffsets at broker {leader}"
        try:
            connection = await self._connections.get(leader, Purpose.CONTROL)
            version = connection.version_of(ListOffsetsRequest)
            if exact and version < _FIRST_WITH_ONE_OFFSET:
                return dict.fromkeys(partitions, _INEXACT)
            request = plan_request(partitions, time, version, isolation)
            response = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
        except (ConnectionLost, ProtocolError) as error:
            return dict.fromkeys(partitions, error)
        listed = {
            TopicPartition.modern(topic.topic, one.partition): one
            for topic in response.topics
            for one in topic.partitions
        }
        return {
            partition: _read_answer(_Question(partition, time, isolation), listed.get(partition), version, context)
            for partition in partitions
        }

    # -- both ends of a log

    def _ends_of(self, partitions: Iterable[TopicPartition]) -> list[_Question]:
        times = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        return [_Question(one, time, self._isolation) for one in partitions for time in times]

    def _ranges(self, partitions: Iterable[TopicPartition], answers: _Answers) -> dict[TopicPartition, LogRange]:
        found = {}
        for partition in partitions:
            earliest = answers.offsets.get(_Question(partition, EARLIEST_TIMESTAMP, self._isolation))
            latest = answers.offsets.get(_Question(partition, LATEST_TIMESTAMP, self._isolation))
            if earliest is not None and latest is not None:
                # two requests: retention may have moved the start past an end that was read before
                found[partition] = LogRange(earliest, max(earliest, latest))
        return found


def _read_answer(question: _Question, answer: ListedPartition | None, version: int, context: str) -> _Outcome:
    if answer is None:
        return ConnectionLost(f"{context}: {question.partition} is missing from the answer")
    if answer.error_code:
        return broker_error(answer.error_code, f"{context} for {question.partition}")
    offsets = (answer.offset,) if version >= _FIRST_WITH_ONE_OFFSET else answer.offsets
    offset = offsets[0] if offsets else None
    if offset is not None and offset >= 0:
        return offset
    if question.timestamp not in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):  # every log has both ends
        if offset is None:
            return _BEFORE_FIRST
        if offset == _NO_OFFSET and version >= _FIRST_WITH_ONE_OFFSET:
            return None
    found = "none" if offset is None else offset
    return RemoteProtocolError(f"{context} for {question.partition}: expected an offset, got {found}")


def plan_request(
    partitions: Iterable[TopicPartition], timestamp: int, version: int, isolation: int = READ_UNCOMMITTED
) -> ListOffsetsRequest:
    """Return the request that looks one time up in all these partitions; each may stand there once."""
    by_topic: dict[str, list[ListPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        by_topic[partition.topic].append(ListPartition(partition=partition.partition.number, timestamp=timestamp))
    topics = tuple(ListTopic(topic=topic, partitions=tuple(listed)) for topic, listed in by_topic.items())
    if version < _FIRST_WITH_ISOLATION:
        return ListOffsetsRequest(topics=topics)
    return ListOffsetsRequest(topics=topics, isolation_level=isolation)


def _may_pass(failure: ConsumerdError) -> bool:
    """Whether asking again can help."""
    return isinstance(failure, ConnectionLost) or (isinstance(failure, BrokerError) and failure.retriable)


def _raise_first(answers: _Answers) -> None:
    if answers.failures:
        # callers may share it: it would grow by the stack of each
        raise next(iter(answers.failures.values())).with_traceback(None)
