# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory that answers Fetch as brokers do: sizes, long polls, sessions, and every way to fail.

For virtual time. :class:`FakeCluster` is what a fetcher needs of the world: who leads what, connections, log ranges.
Requests and answers pass through the real codecs of their version; records are stored bytes, cut off where a broker of
that version cuts them off.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout_at
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId, LogRange, PartitionKey, TopicPartition
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.modern.fetch import (
    READ_COMMITTED,
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
)
from consumerd.wire.schema import compile_codec
from tests.support.record_sets import RecordSpec, batch, message

T = TypeVar("T")

NOT_LEADER = 6
OUT_OF_RANGE = 1
SESSION_NOT_FOUND = 70
WRONG_SESSION_EPOCH = 71


@dataclass(frozen=True)
class Unit:
    """One stored unit: offsets ``[first, end)``."""

    first: int
    end: int
    data: bytes


@dataclass
class FakeLog:
    """One partition's log, on whoever leads it."""

    units: list[Unit] = field(default_factory=list)
    log_start: int = 0
    aborted: list[tuple[AbortedTransaction, int]] = field(default_factory=list)
    """Aborted transactions with the offset of their marker."""
    last_stable_offset: int | None = None

    @property
    def end(self) -> int:
        """The next offset."""
        return self.units[-1].end if self.units else self.log_start

    def append(self, data: bytes, count: int = 1) -> None:
        """Add a unit of ``count`` offsets, already encoded for :attr:`end`."""
        self.units.append(Unit(self.end, self.end + count, data))

    def read(self, offset: int, limit: int, *, whole: bool, at_least_one: bool) -> bytes:
        """Return stored bytes from the unit that holds ``offset``; cut off at ``limit`` unless ``whole``."""
        found = [unit for unit in self.units if unit.end > offset and unit.first >= self.log_start]
        if not whole:
            data = b""
            for unit in found:
                data += unit.data
                if len(data) >= limit:
                    return data[:limit]
            return data
        kept: list[bytes] = []
        size = 0
        for unit in found:
            if size + len(unit.data) > limit and not (at_least_one and not kept):
                break
            kept.append(unit.data)
            size += len(unit.data)
        return b"".join(kept)


@dataclass
class _Session:
    epoch: int
    partitions: dict[tuple[str, int], tuple[int, int]]
    said: dict[tuple[str, int], int] = field(default_factory=dict)
    """The high watermarks of its last answers: what has not changed is left out."""


class FakeBroker:
    """One broker: answers for the partitions that it leads."""

    def __init__(self, cluster: FakeCluster, broker: Broker, version: int) -> None:
        self.broker = broker
        self.version = version
        self.latency_s = 0.001
        self.up = True
        self.silent = False
        self.hanging = False
        """Connections are taken, and nothing is answered on them."""
        self.sessions_allowed = True
        self.requests: list[tuple[float, FetchRequest]] = []
        self.errors: dict[TopicPartition, list[int]] = defaultdict(list)
        """Codes to answer with, first to last, before the partition works again."""
        self.response_errors: list[int] = []
        self.mangle: Callable[[TopicPartition, bytes], bytes] = lambda _partition, data: data
        """What the network does to record sets."""
        self.unframeable: set[TopicPartition] = set()
        """Partitions whose records do not fit into any frame that the client accepts."""
        self._unframeable = False
        self._cluster = cluster
        self._sessions: dict[int, _Session] = {}
        self._died = asyncio.Event()

    def kill(self) -> None:
        """Break every connection, and refuse new ones."""
        self.up = False
        self._died.set()
        self._died = asyncio.Event()
        self._sessions.clear()

    def start(self) -> None:
        """Accept connections again; sessions are gone."""
        self.up = True

    def drop_sessions(self) -> None:
        """Evict every session."""
        self._sessions.clear()

    def version_of(self, request: type[FetchRequest]) -> int:
        """Return the broker's newest version."""
        return self.version

    async def request(self, request: FetchRequest, *, timeout_s: float, version: int | None = None) -> FetchResponse:
        """Answer as the broker does, over the real codecs."""
        assert version == self.version
        request = _through_codec(FetchRequest, version, request)
        loop = asyncio.get_running_loop()
        self.requests.append((loop.time(), request))
        if not self.up:
            raise ConnectionLost(f"{self.broker}: refused")
        async with asyncio.TaskGroup() as group:
            died = group.create_task(self._died.wait())
            work = group.create_task(self._answer(request, version))
            done, _ = await asyncio.wait([died, work], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            work.cancel()
        if work in done and self._unframeable:
            self._unframeable = False
            fault = RemoteProtocolError("frame above the limit")
            raise ConnectionLost(str(fault)) from fault
        if work in done:
            return _through_codec(FetchResponse, version, work.result())
        if died in done:
            raise ConnectionLost(f"{self.broker}: reset")
        raise RequestTimedOut(f"{self.broker}: silent")

    async def _answer(self, request: FetchRequest, version: int) -> FetchResponse:
        await asyncio.sleep(self.latency_s)
        if self.silent:
            await asyncio.Event().wait()
        if self.response_errors:
            return FetchResponse(error_code=self.response_errors.pop(0), topics=())
        session_id, wanted, refusal = self._open_session(request, version)
        if refusal:
            return FetchResponse(error_code=refusal, topics=())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        while True:
            grown = self._cluster.grown
            answers, size = self._read_all(request, wanted, version)
            if size >= request.min_bytes or any(answer.error_code for _, answer in answers):
                break
            if loop.time() >= deadline:
                break
            try:
                async with timeout_at(deadline):
                    await grown.wait()
            except TimeoutError:
                break
        if session_id:
            said = self._sessions[session_id].said if session_id in self._sessions else {}
            answers = [
                (topic, one)
                for topic, one in answers
                if one.error_code or one.record_set or said.get((topic, one.partition)) != one.high_watermark
            ]
            said.update({(topic, one.partition): one.high_watermark for topic, one in answers})
        return FetchResponse(session_id=session_id, topics=_by_topic(answers))

    def _open_session(
        self, request: FetchRequest, version: int
    ) -> tuple[int, dict[tuple[str, int], tuple[int, int]], int]:
        asked = {
            (topic.topic, one.partition): (one.fetch_offset, one.partition_max_bytes)
            for topic in request.topics
            for one in topic.partitions
        }
        if version < 7 or request.session_epoch == -1:
            return 0, asked, 0
        if request.session_epoch == 0:
            self._sessions.pop(request.session_id, None)
            if not self.sessions_allowed:
                return 0, asked, 0
            session_id = max(self._cluster.session_ids)
            self._cluster.session_ids.add(session_id + 1)
            self._sessions[session_id] = _Session(1, dict(asked))
            return session_id, asked, 0
        session = self._sessions.get(request.session_id)
        if session is None:
            return 0, {}, SESSION_NOT_FOUND
        if session.epoch != request.session_epoch:
            return 0, {}, WRONG_SESSION_EPOCH
        session.epoch += 1
        session.partitions.update(asked)
        for topic in request.forgotten_topics:
            for number in topic.partitions:
                session.partitions.pop((topic.topic, number), None)
                session.said.pop((topic.topic, number), None)
        return request.session_id, dict(session.partitions), 0

    def _read_all(
        self, request: FetchRequest, wanted: Mapping[tuple[str, int], tuple[int, int]], version: int
    ) -> tuple[list[tuple[str, FetchedPartition]], int]:
        answers: list[tuple[str, FetchedPartition]] = []
        size = 0
        for (topic, number), (offset, limit) in wanted.items():
            partition = TopicPartition.modern(topic, number)
            room = min(limit, request.max_bytes - size) if version >= 3 else limit
            answer = self._read(partition, offset, room, request, version, first=size == 0)
            size += len(answer.record_set or b"")
            answers.append((topic, answer))
        return answers, size

    def _read(
        self,
        partition: TopicPartition,
        offset: int,
        limit: int,
        request: FetchRequest,
        version: int,
        *,
        first: bool,
    ) -> FetchedPartition:
        number = partition.partition.number
        errors = self.errors[partition]
        code = errors.pop(0) if errors else 0
        log = self._cluster.logs[partition]
        if not code and self._cluster.leaders.get(partition) != self.broker.id:
            code = NOT_LEADER
        if not code and not log.log_start <= offset <= log.end:
            code = OUT_OF_RANGE
        if code:
            return FetchedPartition(partition=number, error_code=code, high_watermark=-1, record_set=b"")
        data = log.read(offset, max(0, limit), whole=version >= 3, at_least_one=first)
        self._unframeable |= bool(data) and partition in self.unframeable
        aborted = None
        if version >= 4 and request.isolation_level == READ_COMMITTED:
            aborted = tuple(one for one, marker in log.aborted if marker >= offset)
        stable = log.end if log.last_stable_offset is None else log.last_stable_offset
        return FetchedPartition(
            partition=number,
            high_watermark=log.end,
            last_stable_offset=stable if version >= 4 else -1,
            log_start_offset=log.log_start if version >= 5 else -1,
            aborted_transactions=aborted,
            record_set=self.mangle(partition, data) if data else b"",
        )


class FakeCluster:
    """Brokers, logs and leaders; a directory, a connection pool and a log range reader to the fetcher."""

    def __init__(self, *, brokers: int = 1, version: int = 11) -> None:
        self.logs: dict[TopicPartition, FakeLog] = defaultdict(FakeLog)
        self.leaders: dict[TopicPartition, BrokerId | None] = {}
        self.session_ids = {100}
        self.grown = asyncio.Event()
        self.refreshes: list[str] = []
        self.range_readings: list[TopicPartition] = []
        self.range_failures: list[ConsumerdError] = []
        self.high_watermark: int | None = None
        """Where an open transaction keeps the ends of ranges below it."""
        self._ranges: dict[TopicPartition, LogRange] = {}
        self.range_overrides: list[LogRange] = []
        self.logs_are_replicated = True
        self.brokers = {
            BrokerId(number): FakeBroker(self, Broker(id=BrokerId(number), host="fake", port=9000 + number), version)
            for number in range(brokers)
        }
        self.views: Cell[ClusterView] = Cell(ClusterView())
        self.magic = 2 if version >= 4 else 1

    # -- steering

    def lead(self, partition: TopicPartition, broker: int | None, *, known: bool = True) -> None:
        """Make a broker lead a partition; ``known`` false: nobody is told."""
        self.leaders[partition] = None if broker is None else BrokerId(broker)
        if known:
            self.announce()

    def announce(self) -> None:
        """Tell everybody who leads what."""
        topics: dict[str, dict[PartitionKey, PartitionView]] = defaultdict(dict)
        for partition, leader in self.leaders.items():
            topics[partition.topic][partition.partition] = PartitionView(leader=leader)
        self.views.set(
            ClusterView(
                brokers={number: one.broker for number, one in self.brokers.items()},
                topics={name: TopicView(name=name, partitions=views) for name, views in topics.items()},
            )
        )

    def produce(self, partition: TopicPartition, *values: bytes, codec: int = 0) -> None:
        """Append values: one batch, or a message each where the release has no batches."""
        log = self.logs[partition]
        if self.magic == 2:
            specs = [RecordSpec(delta=index, value=value) for index, value in enumerate(values)]
            log.append(batch(log.end, specs, codec=codec), len(values))
        else:
            for value in values:
                log.append(message(log.end, value, magic=self.magic))
        self.stir()

    def stir(self) -> None:
        """Wake long polls."""
        self.grown.set()
        self.grown = asyncio.Event()

    def fetches(self, broker: int = 0) -> list[FetchRequest]:
        """Return the requests that a broker has got."""
        return [request for _, request in self.brokers[BrokerId(broker)].requests]

    # -- LeaderDirectory

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the leader as announced."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:
        """Note the wish."""
        self.refreshes.append(reason)

    # -- FetchConnections

    async def get(self, broker: PooledBroker, purpose: Purpose) -> FakeBroker:
        """Return the broker itself as its connection."""
        assert purpose is Purpose.FETCH
        found = self.brokers[broker.id]
        if found.hanging:
            await asyncio.sleep(10)
            raise RequestTimedOut(f"{broker}: says nothing of its versions")
        if not found.up:
            await asyncio.sleep(found.latency_s)
            raise ConnectionLost(f"{broker}: refused")
        return found

    # -- LogRanges

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return what the logs hold, or the next scripted failure or range."""
        await asyncio.sleep(0.001)
        self.range_readings += partitions
        if self.range_failures:
            raise self.range_failures.pop(0)
        if self.range_overrides:
            self._ranges = dict.fromkeys(partitions, self.range_overrides.pop(0))
        else:
            self._ranges = {one: LogRange(self.logs[one].log_start, self.logs[one].end) for one in partitions}
        return self._ranges

    async def high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the ends of the ranges that were read last, or those that open transactions hold back."""
        await asyncio.sleep(0.001)
        return {one: self.high_watermark or self._ranges[one].latest for one in partitions}


def _by_topic(answers: Sequence[tuple[str, FetchedPartition]]) -> tuple[FetchedTopic, ...]:
    topics: dict[str, list[FetchedPartition]] = defaultdict(list)
    for topic, answer in answers:
        topics[topic].append(answer)
    return tuple(FetchedTopic(topic=topic, partitions=tuple(some)) for topic, some in topics.items())


def _through_codec(kind: type[T], version: int, value: T) -> T:
    codec = compile_codec(kind, version)
    return codec.decode(memoryview(codec.encode(value)))
