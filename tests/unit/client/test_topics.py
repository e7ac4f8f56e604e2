# SPDX-License-Identifier: Apache-2.0
"""Directory of leaders that asks the brokers alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import wraps
from typing import Any

import pytest

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import ConnectionLost
from consumerd.model import BrokerId
from tests.support import virtual_time


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(scenario)
    def run() -> None:
        virtual_time.run(scenario())

    return run


FIRST = Broker(id=BrokerId(-1), host="first", port=9092)
FOUND = Broker(id=BrokerId(1), host="found", port=9092)


class Source:
    """Answers after a second, or fails; keeps which brokers and topics it was asked."""

    def __init__(self, known: Callable[[], Collection[Broker]]) -> None:
        self._known = known
        self.asked: list[tuple[list[str], Collection[str] | None]] = []
        self.silent = False

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        self.asked.append(([one.host for one in self._known()], topics))
        await asyncio.sleep(1)
        if self.silent:
            raise ConnectionLost("nobody answers")
        return ClusterView(brokers={FOUND.id: FOUND}, topics={})


def make(topics: Collection[str] = ()) -> tuple[MetadataDirectory, Source]:
    sources: list[Source] = []

    def keep(known: Callable[[], Collection[Broker]]) -> Source:
        sources.append(Source(known))
        return sources[0]

    directory = MetadataDirectory(keep, lambda: [FIRST], random=lambda: 0.5, topics=topics)
    return directory, sources[0]


@in_virtual_time
async def test_a_refresh_reads_without_run_and_says_why_it_failed() -> None:
    """A question that is asked once needs no task; a failure leaves the view alone."""
    directory, source = make(["orders"])

    view = await directory.refresh("asked")
    source.silent = True

    assert {FOUND.id: FOUND} == view.brokers
    assert view == await directory.refresh("asked")
    assert isinstance(directory.failure, ConnectionLost)
    await directory.refresh("asked")
    assert [["first"], ["found"], ["found", "first"]] == [brokers for brokers, _ in source.asked]
    assert {frozenset({"orders"})} == {topics for _, topics in source.asked if isinstance(topics, frozenset)}


@in_virtual_time
async def test_refreshes_at_one_time_share_a_reading_that_begins_after_them() -> None:
    """A reading under way may be older than what its caller has seen; a hundred callers need one more, not a hundred."""
    directory, source = make()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(directory.refresh("first"))
        await asyncio.sleep(0.5)
        for _ in range(100):
            tasks.create_task(directory.refresh("meanwhile"))

    assert 2 == len(source.asked)


@in_virtual_time
async def test_a_refresh_that_is_cancelled_leaves_the_next_one_to_read() -> None:
    """A time-out of one caller must not make the following ones believe that their reading has happened."""
    directory, source = make()
    with pytest.raises(TimeoutError):
        async with timeout(0.5):
            await directory.refresh("impatient")

    assert {FOUND.id: FOUND} == (await directory.refresh("patient")).brokers
    assert 2 == len(source.asked)


@in_virtual_time
async def test_a_missing_topic_is_asked_for_again_and_again() -> None:
    """With a backoff; a topic that is not followed any more is not asked for."""
    directory, source = make(["orders"])
    async with alongside(directory.run(), name="directory"):
        await asyncio.sleep(60)
        directory.follow([])
        await asyncio.sleep(10)
        settled = len(source.asked)
        await asyncio.sleep(100)

    assert 15 < settled < 60
    assert settled == len(source.asked)
