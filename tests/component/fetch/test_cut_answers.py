"""A broker whose answers end in the middle, over real sockets: whatever was cut is asked for again, and comes once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import OffsetOutOfRange
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.modern.fetch import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from consumerd.wire.schema import Request
from tests.support.fetching import fetching
from tests.support.record_sets import RecordSpec, batch, message
from tests.support.scripted_broker import Answer, Cut, Late, ScriptedBroker, ScriptedServer, encode_response, listing

PARTITION: Final = TopicPartition.modern("t", 0)
FIRST, COUNT = 5, 4
"""The log: so many records from there on, two to each answer."""
RANGES: Final = {
    ApiKey.METADATA: (0, 5),
    ApiKey.LIST_OFFSETS: (0, 2),
    ApiKey.FETCH: (0, 7),
    ApiKey.API_VERSIONS: (0, 1),
}
SETTINGS: Final = FetchSettings(confirm_delay_s=0.01, backoff_initial_s=0.01, max_wait_ms=100)
AT_ONCE: Final = 32


class Failures(Hooks):
    """Counts the requests that failed, and how."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        self.requests[api, error] += 1


class Log:
    """One partition's leader; the first answer to ``kind`` ends after ``size`` bytes (None: none does)."""

    def __init__(self, kind: type[Request[Any]], size: int | None, *, modern: bool) -> None:
        self._kind = kind
        self._size = size
        self.frame_bytes = 0
        self.port = 0
        handlers = {
            ApiVersionsRequest: self._versions,
            MetadataRequest: self._metadata,
            ListOffsetsRequest: self._offsets,
            FetchRequest: self._fetch,
        }
        if not modern:
            del handlers[ApiVersionsRequest]
        self.broker = ScriptedBroker({kind: self._cutting(kind, answer) for kind, answer in handlers.items()})

    @property
    def whole(self) -> bool:
        """Whether no answer will be cut (any more)."""
        return self._size is None

    def _cutting(self, kind: type[Request[Any]], answer: Callable[[Any, int], Answer]) -> Callable[[Any, int], Answer]:
        def handle(request: Any, version: int) -> Answer:
            whole = answer(request, version)
            if kind is not self._kind or isinstance(whole, Late):
                return whole
            if not self.frame_bytes:
                self.frame_bytes = len(encode_response(0, request, version, whole))
            if self._size is None:
                return whole
            size, self._size = self._size, None
            return Cut(whole, size)

        return handle

    def _versions(self, _request: ApiVersionsRequest, _version: int) -> ApiVersionsResponse:
        return listing(RANGES)

    def _metadata(self, _request: MetadataRequest, _version: int) -> MetadataResponse:
        partition = MetadataPartition(partition=0, leader=1, replicas=(1,), isr=(1,))
        return MetadataResponse(
            brokers=(MetadataBroker(node_id=1, host="127.0.0.1", port=self.port),),
            topics=(MetadataTopic(topic="t", partitions=(partition,)),),
        )

    def _offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            offset = FIRST if topic.partitions[0].timestamp == EARLIEST_TIMESTAMP else FIRST + COUNT
            listed = (
                ListedPartition(partition=0, offset=offset)
                if version
                else ListedPartition(partition=0, offsets=(offset,))
            )
            topics.append(ListedTopic(topic=topic.topic, partitions=(listed,)))
        return ListOffsetsResponse(topics=tuple(topics))

    def _fetch(self, request: FetchRequest, version: int) -> Answer:
        if not request.topics:
            return Late(FetchResponse(session_id=7 if version >= 7 else 0, topics=()), request.max_wait_ms / 1000)
        offset = request.topics[0].partitions[0].fetch_offset
        if not FIRST <= offset <= FIRST + COUNT:
            partition = FetchedPartition(partition=0, error_code=1, high_watermark=-1, record_set=None)
        else:
            partition = FetchedPartition(
                partition=0, high_watermark=FIRST + COUNT, record_set=_records(offset, version)
            )
        answer = FetchResponse(topics=(FetchedTopic(topic="t", partitions=(partition,)),))
        return Late(answer, request.max_wait_ms / 1000) if offset == FIRST + COUNT else answer


def _records(offset: int, version: int) -> bytes:
    offsets = range(offset, min(offset + 2, FIRST + COUNT))
    if version >= 4 and offsets:
        return batch(offset, [RecordSpec(delta=one - offset, value=b"value %d" % one) for one in offsets])
    return b"".join(message(one, b"value %d" % one, magic=0) for one in offsets)


Seen = list[tuple[int, bytes | None] | OffsetOutOfRange]


async def read_all(log: Log, start: int) -> tuple[Seen, Failures]:
    """Return what a fetcher gets from ``start`` on, and which requests failed on the way."""
    failures = Failures()
    records: Seen = []
    async with timeout(30), ScriptedServer(log.broker) as server:
        log.port = server.port
        async with fetching(f"127.0.0.1:{server.port}", ["t"], settings=SETTINGS, hooks=failures) as running:
            feed = running.fetcher.feed(PARTITION, start)
            position = start
            try:
                while position < FIRST + COUNT:
                    got = await feed.next()
                    assert got.start == position
                    records += [(one.offset, one.value) for one in got.records()]
                    position = got.next_offset
                    feed.done(got)
            except OffsetOutOfRange as judged:
                records.append(judged)
            feed.close()
    return records, failures


EXPECTED: Final = [(offset, b"value %d" % offset) for offset in range(FIRST, FIRST + COUNT)]


async def cut_everywhere(kind: type[Request[Any]], scenario: Callable[[Log], Awaitable[None]], *, modern: bool) -> None:
    """Run a scenario once whole, then once for each byte of the first answer to ``kind``."""
    whole = Log(kind, None, modern=modern)
    await scenario(whole)
    assert whole.frame_bytes > 0
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(size: int) -> None:
        async with turns:
            await scenario(Log(kind, size, modern=modern))

    async with asyncio.TaskGroup() as tasks:
        for size in range(whole.frame_bytes):
            tasks.create_task(one(size))


@pytest.mark.parametrize(
    ("kind", "modern"),
    [
        (ApiVersionsRequest, True),
        (MetadataRequest, True),
        (MetadataRequest, False),
        (FetchRequest, True),
        (FetchRequest, False),
    ],
)
async def test_every_record_comes_once_wherever_an_answer_was_cut(kind: type[Request[Any]], modern: bool) -> None:
    """Each byte of the first answer in turn, to a broker of 1.1 and to one of 0.8."""

    async def scenario(log: Log) -> None:
        whole = log.whole
        records, failures = await read_all(log, FIRST)
        assert records == EXPECTED
        if not whole:
            assert failures.requests[kind.api.name, "ConnectionLost"] >= 1
            assert {error for _, error in failures.requests} == {"ConnectionLost"}
            assert len(log.broker.asked(kind)) > 1

    await cut_everywhere(kind, scenario, modern=modern)


async def test_a_position_is_judged_once_wherever_the_answer_about_the_log_was_cut() -> None:
    """Out of range is confirmed by ListOffsets: half an answer must neither confirm it nor be taken for another range."""

    async def scenario(log: Log) -> None:
        whole = log.whole
        seen, _ = await read_all(log, FIRST - 2)
        assert [(one.earliest, one.latest) for one in seen if isinstance(one, OffsetOutOfRange)] == [
            (FIRST, FIRST + COUNT)
        ]
        assert len(seen) == 1
        assert whole or len(log.broker.asked(ListOffsetsRequest)) > 2

    await cut_everywhere(ListOffsetsRequest, scenario, modern=True)
