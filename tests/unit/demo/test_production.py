# SPDX-License-Identifier: Apache-2.0
"""The stream goes out at its pace and no further than it may, and the ledger knows what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from consumerd.client.delivery import RecordMetadata
from consumerd.demo.ledger import Ledger, RecordPlace, digest
from consumerd.demo.production import Production
from consumerd.demo.stream import SERVICES, Event, make_stream
from consumerd.model import PartitionKey
from tests.support import virtual_time

STREAM = list(make_stream(Random(3), count=1000, start_ms=0))


class Log:
    """A cluster of one partition a topic: the n-th record of a topic is at offset n."""

    def __init__(self, acknowledge_after_s: float = 0.01) -> None:
        self.records: dict[str, list[tuple[bytes | None, bytes | None]]] = {"orders": [], "clicks": []}
        self.taken_at: list[float] = []
        self.acknowledge_after_s = acknowledge_after_s


@dataclass(frozen=True)
class Acknowledgement:
    """Like a ``Delivery``: may be awaited, or never."""

    metadata: RecordMetadata
    after_s: float
    failing: bool

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from asyncio.sleep(self.after_s).__await__()
        if self.failing:
            raise ConnectionError("the broker has gone")
        return self.metadata


class FakeOutlet:
    """Appends at once, and acknowledges later; fails for the record that it is told to fail for."""

    def __init__(self, log: Log, failing: Event | None = None) -> None:
        self._log = log
        self._failing = failing
        self.flushed = False

    async def enqueue(
        self, topic: str, value: object, *, key: object = None, timestamp_ms: int | None = None
    ) -> Awaitable[RecordMetadata]:
        assert value is None or isinstance(value, bytes)
        assert key is None or isinstance(key, bytes)
        here = self._log.records[topic]
        here.append((key, value))
        self._log.taken_at.append(asyncio.get_running_loop().time())
        metadata = RecordMetadata(topic=topic, partition=0, offset=len(here) - 1, timestamp_ms=timestamp_ms)
        failing = self._failing is not None and value == self._failing.value
        return Acknowledgement(metadata, self._log.acknowledge_after_s, failing)

    async def flush(self) -> None:
        self.flushed = True


def make(log: Log, ledger: Ledger, *, per_second: float = 1000, failing: Event | None = None) -> Production:
    outlets = {service: FakeOutlet(log, failing) for service in SERVICES}
    return Production(STREAM, outlets, ledger, per_second=per_second, now=lambda: asyncio.get_running_loop().time())


def test_everything_is_sent_and_entered_where_it_was_acknowledged() -> None:
    """The audit believes the ledger alone."""
    log, ledger = Log(acknowledge_after_s=0.0001), Ledger()

    async def main() -> None:
        production = make(log, ledger)
        production.allow(1)
        await production.run()

    virtual_time.run(main())

    expected = {
        RecordPlace(topic, PartitionKey(0), offset): digest(key, value)
        for topic, records in log.records.items()
        for offset, (key, value) in enumerate(records)
    }
    assert len(expected) == len(STREAM)
    assert expected == ledger.digests


def test_it_keeps_its_pace() -> None:
    """A stream that is over before the group is disturbed would show nothing."""
    log = Log()

    async def main() -> None:
        production = make(log, Ledger(), per_second=200)
        production.allow(1)
        await production.run()

    virtual_time.run(main())

    assert log.taken_at[-1] - log.taken_at[0] == pytest.approx(5.0, abs=0.1)


def test_it_goes_no_further_than_allowed_and_does_not_make_up_for_the_time() -> None:
    """What must happen while records flow happens before they have all gone, however slow the machine is."""
    log, counts = Log(), list[int]()

    async def main() -> None:
        production = make(log, Ledger())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(production.run())
            await asyncio.sleep(1)
            counts.append(len(log.taken_at))
            production.allow(0.25)
            await asyncio.sleep(60)
            counts.append(len(log.taken_at))
            production.allow(0.1)
            await asyncio.sleep(1)
            counts.append(len(log.taken_at))
            production.allow(1)
            await asyncio.sleep(0.1)
            counts.append(len(log.taken_at))

    virtual_time.run(main())

    assert counts[:3] == [0, 250, 250]
    assert 300 < counts[3] < 400
    assert len(log.taken_at) == len(STREAM)


def test_a_record_that_is_not_written_ends_it() -> None:
    """A demo whose producer fails must not say that all is well."""

    async def main() -> None:
        production = make(Log(), Ledger(), failing=next(event for event in STREAM if event.value is not None))
        production.allow(1)
        await production.run()

    with pytest.raises(ExceptionGroup) as failure:
        virtual_time.run(main())
    assert failure.value.subgroup(ConnectionError) is not None
