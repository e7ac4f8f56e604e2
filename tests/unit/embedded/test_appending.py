# SPDX-License-Identifier: Apache-2.0
"""Changes of logs: in order, one at a time for each partition, whoever is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.embedded.appending import Appender
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from tests.support.broker_script import records

A, B = (TopicPartition.modern("t", number) for number in range(2))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """Return an empty log."""
    log = PartitionLog.open(tmp_path, A, settings=LogSettings(), files=OsLogFiles(), now_ms=lambda: 1_600_000_000_000)
    yield log
    log.close()


async def test_work_on_a_partition_is_done_in_order_and_never_at_once() -> None:
    """Offsets follow the order of requests; a log takes one writer."""
    done: list[int] = []
    inside = threading.Semaphore(1)

    def work(number: int) -> int:
        assert inside.acquire(blocking=False)
        done.append(number)
        inside.release()
        return number

    async with Appender() as appender:
        results = await asyncio.gather(*[appender.run(A, lambda number=number: work(number)) for number in range(200)])
    assert list(range(200)) == results == done


async def test_partitions_do_not_wait_for_each_other() -> None:
    """A slow disk under one log is no reason to stop another."""
    go_on = threading.Event()
    async with Appender(threads=2) as appender, asyncio.TaskGroup() as group:
        slow = group.create_task(appender.run(A, go_on.wait))
        await appender.run(B, lambda: None)
        assert not slow.done()
        go_on.set()


async def test_who_waits_is_told_how_much_a_log_has_grown(log: PartitionLog) -> None:
    """Refused appends and other work are no growth."""
    told: list[tuple[TopicPartition, int]] = []
    record_set = records(2)
    async with Appender() as appender:
        unsubscribe = appender.subscribe(lambda partition, size: told.append((partition, size)))
        appended = await appender.append(A, log, record_set)
        with pytest.raises(CorruptMessageError):
            await appender.append(A, log, record_set[:-1] + b"?")
        await appender.run(A, log.flush)
        unsubscribe()
        await appender.append(A, log, record_set)
    assert [(A, len(record_set))] == told
    assert (0, 2, 6) == (appended.base_offset, appended.last_offset, log.end_offset)


async def test_growth_is_what_was_written_not_what_was_sent(tmp_path: Path) -> None:
    """A fetch that waits for so many bytes would be woken too late by a log of another format, or never."""
    log = PartitionLog.open(
        tmp_path, A, settings=LogSettings(message_format=0), files=OsLogFiles(), now_ms=lambda: 1_600_000_000_000
    )
    told: list[int] = []
    async with Appender() as appender:
        appender.subscribe(lambda _partition, size: told.append(size))
        await appender.append(A, log, records(2))
        (file,) = log.folder.glob("*.log")
        assert told == [log.size_bytes] == [file.stat().st_size] != [len(records(2))]
        unwanted = appender.start_append(A, log, records(2))
        unwanted.cancel()
    log.close()
    assert log.end_offset == 3 * len(told)


async def test_cancelled_append_takes_place_or_not_and_the_order_holds(log: PartitionLog) -> None:
    """What is behind it is not held up, and nobody reports a failure that nobody awaits."""
    go_on = threading.Event()
    async with Appender() as appender, asyncio.TaskGroup() as group:
        first = appender.start_append(A, log, records(2))
        group.create_task(appender.run(A, go_on.wait))
        await asyncio.sleep(0)
        waiting = appender.start_append(A, log, b"nonsense, which would be refused")
        last = appender.start_append(A, log, records(2))
        waiting.cancel()
        go_on.set()
        assert (0, 3) == ((await first).base_offset, (await last).base_offset)


async def test_append_that_did_not_take_place_is_no_growth(log: PartitionLog) -> None:
    """Whoever waits for bytes is not woken by those of a client that gave up before they were written."""
    told: list[int] = []
    go_on = threading.Event()
    async with Appender() as appender, asyncio.TaskGroup() as group:
        appender.subscribe(lambda _, size: told.append(size))
        group.create_task(appender.run(A, go_on.wait))
        await asyncio.sleep(0)
        appender.start_append(A, log, records(2)).cancel()
        go_on.set()
    assert ([], 0) == (told, log.end_offset)


async def test_leaving_waits_for_what_was_begun(log: PartitionLog) -> None:
    """A broker that stops has written what it was asked to write, before it closes the logs."""
    async with Appender() as appender:
        for _ in range(50):
            appender.start_append(A, log, records(2))
    assert 150 == log.end_offset
