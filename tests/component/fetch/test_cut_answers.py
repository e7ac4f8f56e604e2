# SPDX-License-Identifier: Apache-2.0
"""A broker whose answers end in the middle, over real sockets: whatever was cut is asked for again, and comes once."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.faults import ArmedFault
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import get_imitation
from consumerd.errors import OffsetOutOfRange
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.list_offsets import LATEST_TIMESTAMP, ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.schema import Request
from tests.support.fetching import fetching
from tests.support.raw_client import fetch, raw_client
from tests.support.record_sets import RecordSpec, batch, message
from tests.support.served_logs import ServedLogs, served_logs

PARTITION: Final = TopicPartition.modern("t", 0)
COUNT: Final = 4
"""So many records are in the log, two to a set."""
AT_ONCE: Final = 16
SETTINGS: Final = FetchSettings(confirm_delay_s=0.01, backoff_initial_s=0.01, max_wait_ms=100)
ASKED: Final[Mapping[ApiKey, Request[Any]]] = {
    ApiKey.API_VERSIONS: ApiVersionsRequest(),
    ApiKey.METADATA: MetadataRequest(topics=("t",)),
    ApiKey.LIST_OFFSETS: ListOffsetsRequest(
        topics=(ListTopic(topic="t", partitions=(ListPartition(partition=0, timestamp=LATEST_TIMESTAMP),)),)
    ),
    ApiKey.FETCH: fetch("t"),
}
"""What the answers answer, to know how long they are."""


class Failures(Hooks):
    """Counts the requests that failed, and how."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        self.requests[api, error] += 1


@asynccontextmanager
async def serving(folder: Path, release: str) -> AsyncIterator[ServedLogs]:
    """Serve the log as that release does."""
    settings = LogSettings(message_format=get_imitation(release).message_format)
    async with served_logs(folder, as_release=release, settings=settings) as broker:
        broker.topics.add("t")
        for first in range(0, COUNT, 2):
            broker.log("t").append(records(range(first, first + 2), settings.message_format))
        yield broker


def records(offsets: range, magic: int) -> bytes:
    if magic == 2:
        return batch(0, [RecordSpec(delta=at, value=b"value %d" % one) for at, one in enumerate(offsets)])
    return b"".join(message(at, b"value %d" % one, magic=magic) for at, one in enumerate(offsets))


EXPECTED: Final = [(offset, b"value %d" % offset) for offset in range(COUNT)]
Seen = list[tuple[int, bytes | None] | OffsetOutOfRange]


async def read_all(broker: ServedLogs, start: int) -> tuple[Seen, Failures]:
    """Return what a fetcher gets from ``start`` on, and which requests failed on the way."""
    failures = Failures()
    seen: Seen = []
    async with timeout(30), fetching(broker.bootstrap, ["t"], settings=SETTINGS, hooks=failures) as running:
        feed = running.fetcher.feed(PARTITION, start)
        position = start
        try:
            while position != COUNT:
                got = await feed.next()
                assert got.start == position
                seen += [(one.offset, one.value) for one in got.records()]
                position = got.next_offset
                feed.done(got)
        except OffsetOutOfRange as judged:
            seen.append(judged)
        feed.close()
    return seen, failures


async def cut_everywhere(
    folder: Path, release: str, api: ApiKey, scenario: Callable[[ServedLogs, ArmedFault | None], Awaitable[None]]
) -> None:
    """Run a scenario with nothing cut, then once for each byte of an answer as long as the first one of ``api``."""
    async with serving(folder / "whole", release) as broker:
        await scenario(broker, None)
        whole = await frame_bytes(broker, release, api)
    turns = asyncio.Semaphore(AT_ONCE)

    async def cut_at(size: int) -> None:
        # each has a broker of its own: long polls of others would meet the fault, too
        async with turns, serving(folder / str(size), release) as broker:
            fault = broker.faults.close_at(api, size)
            await scenario(broker, fault)
            assert fault.hits == 1

    async with asyncio.TaskGroup() as tasks:
        for size in range(whole):
            tasks.create_task(cut_at(size))


async def frame_bytes(broker: ServedLogs, release: str, api: ApiKey) -> int:
    """Return the size of an answer's frame, in the newest version that both speak."""
    async with raw_client(broker.port) as client:
        client.send_request(ASKED[api], get_imitation(release).ranges[api].last)
        (size,) = struct.unpack(">i", await client.receive_bytes(4))
    return 4 + int(size)


@pytest.mark.parametrize(
    ("release", "api"),
    [
        ("1.1", ApiKey.API_VERSIONS),
        *((release, api) for release in ("0.8.2", "1.1") for api in (ApiKey.METADATA, ApiKey.FETCH)),
    ],
)
async def test_every_record_comes_once_wherever_an_answer_was_cut(release: str, api: ApiKey, tmp_path: Path) -> None:
    """Each byte of the first answer in turn."""

    async def scenario(broker: ServedLogs, fault: ArmedFault | None) -> None:
        records, failures = await read_all(broker, 0)
        assert records == EXPECTED
        if fault is not None:
            assert failures.requests[api.name, "ConnectionLost"] >= 1
            assert {error for _, error in failures.requests} == {"ConnectionLost"}

    await cut_everywhere(tmp_path, release, api, scenario)


async def test_a_position_is_judged_once_wherever_the_answer_about_the_log_was_cut(tmp_path: Path) -> None:
    """Out of range is confirmed by ListOffsets: half an answer must neither confirm it nor be taken for another range."""

    async def scenario(broker: ServedLogs, _fault: ArmedFault | None) -> None:
        seen, _ = await read_all(broker, COUNT + 2)
        assert [(one.earliest, one.latest) for one in seen if isinstance(one, OffsetOutOfRange)] == [(0, COUNT)]
        assert len(seen) == 1

    await cut_everywhere(tmp_path, "1.1", ApiKey.LIST_OFFSETS, scenario)
