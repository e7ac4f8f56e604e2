# SPDX-License-Identifier: Apache-2.0
"""What ``consumerd tail`` reads of a cluster in memory, in virtual time: ranges, gaps, faults, and an output that is slow."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from consumerd.admin.tail import Tail
from consumerd.admin.tail_partition import TailOutcome, TailSource
from consumerd.admin.tail_range import AtOffset, AtTime, LastRecords, LogEdge, Start, TailRequest
from consumerd.aio.timeouts import timeout
from consumerd.errors import CorruptMessageError, RequestTimedOut
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import RecordBatch
from tests.support.fake_broker import FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.record_sets import TRANSACTIONAL, RecordSpec, batch, marker, message
from tests.support.virtual_time import run
from tests.support.waiting import until

P0, P1 = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)
KIB = 1024


class TimedCluster(FakeCluster):
    """A cluster that finds times in ``times``, by partition."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.times: dict[TopicPartition, int | None] = {}
        self.coarse = False

    async def offset_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        return {one: self.times.get(one) for one in partitions}

    async def is_coarse(self, partitions: Collection[TopicPartition]) -> bool:
        return self.coarse


@dataclass
class Seen:
    """What a tail has printed and told."""

    records: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of each record."""
    values: list[bytes | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcome: TailOutcome = field(default_factory=TailOutcome)

    def offsets(self, partition: TopicPartition = P0) -> list[int]:
        return [offset for number, offset in self.records if number == partition.partition.number]


class World:
    """A cluster, and tails over it."""

    def __init__(self, *, brokers: int = 1, version: int = 11, budget: int = 16 << 20, **settings: Any) -> None:
        self.cluster = TimedCluster(brokers=brokers, version=version)
        self.cluster.lead(P0, 0)
        self.budget = MemoryBudget(budget)
        self.settings = FetchSettings(**{"native_thread_bytes": 1 << 30, "max_wait_ms": 100, **settings})
        self.before_write: Callable[[RecordBatch], Awaitable[None]] | None = None

    @asynccontextmanager
    async def reading(self, partitions: Collection[TopicPartition] = (P0,)) -> AsyncIterator[TailSource]:
        """Fetch while the block runs."""
        async with fetching_from(self.cluster, self.budget, self.settings) as fetcher:
            yield TailSource(partitions=list(partitions), directory=self.cluster, ranges=self.cluster, fetcher=fetcher)

    @asynccontextmanager
    async def tailing(
        self, start: Start, *, partitions: Collection[TopicPartition] = (P0,), patience_s: float = 15.0, **request: Any
    ) -> AsyncIterator[tuple[Seen, asyncio.Task[None]]]:
        """Run a tail as a task; it is cancelled at the end."""
        seen = Seen()

        async def write(got: RecordBatch) -> None:
            if self.before_write is not None:
                await self.before_write(got)
            seen.records += [(got.partition.partition.number, one) for one in got.offsets]
            seen.values += got.values()

        async with self.reading(partitions) as source, asyncio.TaskGroup() as tasks:
            asked = TailRequest(topics=["t"], start=start, patience_s=patience_s, **request)
            task = tasks.create_task(Tail(source, asked, seen.outcome, write=write, tell=seen.notes.append).run())
            yield seen, task
            task.cancel()

    async def tail(self, start: Start, **request: Any) -> Seen:
        """Run a tail to its end."""
        async with self.tailing(start, **request) as (seen, task), timeout(300):
            await task
        assert self.budget.held_bytes == 0
        return seen


def compacted(world: World, step: int, end: int, *, partition: TopicPartition = P0) -> None:
    """Fill a log in which only each ``step``-th offset is left."""
    log = world.cluster.logs[partition]
    for at in range(0, end, step):
        log.append(batch(at, [RecordSpec(delta=0, value=b"%d" % at)], last_delta=step - 1), step)


# -- ranges


def test_a_range_is_read_from_its_start_to_the_end_that_the_log_had() -> None:
    """Records that come during the reading are not the command's any more, without ``--follow``."""

    async def scenario() -> None:
        world = World()
        world.cluster.produce(P0, *[b"v"] * 50)

        async def produce(_: RecordBatch) -> None:
            world.cluster.produce(P0, *[b"later"] * 10)

        world.before_write = produce
        assert list(range(13, 50)) == (await world.tail(AtOffset(13))).offsets()

    run(scenario())


@pytest.mark.parametrize(
    ("start", "end", "first", "stop"),
    [
        (LogEdge.EARLIEST, None, 20, 100),
        (LogEdge.LATEST, None, 100, 100),
        (AtOffset(20), AtOffset(25), 20, 25),
        (AtOffset(100), None, 100, 100),
        (LastRecords(7), None, 93, 100),
        (LastRecords(1000), None, 20, 100),
        (LastRecords(5), AtOffset(50), 45, 50),
        (LastRecords(5), AtOffset(10), 20, 20),
        (LogEdge.EARLIEST, AtOffset(500), 20, 100),
        (AtOffset(60), AtOffset(30), 60, 60),
    ],
)
def test_starts_and_ends_are_those_that_were_asked_for(
    start: Start, end: AtOffset | None, first: int, stop: int
) -> None:
    """Of a log that holds [20, 100)."""

    async def scenario() -> None:
        world = World()
        for _ in range(10):
            world.cluster.produce(P0, *[b"v"] * 10)
        world.cluster.logs[P0].log_start = 20
        seen = await world.tail(start, end=end)
        assert list(range(first, stop)) == seen.offsets()
        assert (seen.outcome.failures, seen.outcome.damaged) == ([], 0)

    run(scenario())


@pytest.mark.parametrize("step", [1, 20, 37])
def test_the_last_records_are_counted_as_records_not_as_offsets(step: int) -> None:
    """After a compaction the last ten offsets may hold no record at all."""

    async def scenario() -> None:
        world = World()
        compacted(world, step, 300)
        assert list(range(0, 300, step))[-8:] == (await world.tail(LastRecords(8))).offsets()

    run(scenario())


def test_times_are_looked_up_and_coarse_ones_are_told_once() -> None:
    """From a time to a time; a partition without a record that new has nothing to show."""

    async def scenario() -> None:
        world = World()
        world.cluster.lead(P1, 0)
        for partition in (P0, P1):
            world.cluster.produce(partition, *[b"v"] * 30)
        world.cluster.times = {P0: 12, P1: None}
        world.cluster.coarse = True
        seen = await world.tail(AtTime(1), partitions=(P0, P1))
        assert seen.records == [(0, offset) for offset in range(12, 30)]
        assert [note for note in seen.notes if "one time for each log segment" in note] == seen.notes
        assert len(seen.notes) == 1

    run(scenario())


def test_a_time_at_which_to_end_that_has_not_come_yet_ends_a_tail_that_follows() -> None:
    """The broker cannot know the offset; the records tell."""

    async def scenario() -> None:
        world = World()
        log = world.cluster.logs[P0]
        log.append(batch(0, [RecordSpec(delta=at, value=b"v", timestamp_delta=at) for at in range(5)]), 5)
        async with world.tailing(LogEdge.EARLIEST, end=AtTime(8), follow=True) as (seen, task):
            await until(lambda: len(seen.records) == 5)
            log.append(batch(5, [RecordSpec(delta=at, value=b"v", timestamp_delta=5 + at) for at in range(5)]), 5)
            world.cluster.stir()
            await task
        assert list(range(8)) == seen.offsets()

    run(scenario())


def test_a_count_is_of_all_partitions_together() -> None:
    """No record more, whichever partition it comes from, and no gap behind the last one."""

    async def scenario() -> None:
        world = World()
        world.cluster.lead(P1, 0)
        for partition in (P0, P1):
            compacted(world, 10, 300, partition=partition)
        for wanted in (1, 7, 45, 60, 100):
            seen = await world.tail(LogEdge.EARLIEST, partitions=(P0, P1), count=wanted)
            assert len(seen.records) == seen.outcome.shown == min(wanted, 60)

    run(scenario())


@pytest.mark.parametrize(("offset", "held"), [(5, (20, 60)), (61, (20, 60))])
def test_an_offset_outside_the_log_is_told_with_the_range(offset: int, held: tuple[int, int]) -> None:
    """And is one partition's failure: another one that holds it is shown."""

    async def scenario() -> None:
        world = World()
        world.cluster.lead(P1, 0)
        world.cluster.produce(P0, *[b"v"] * held[1])
        world.cluster.logs[P0].log_start = held[0]
        world.cluster.produce(P1, *[b"v"] * 62)
        seen = await world.tail(AtOffset(offset), partitions=(P0, P1))
        assert list(range(offset, 62)) == seen.offsets(P1)
        assert seen.offsets(P0) == []
        (note,) = seen.notes
        assert note.startswith(f"t/0: offset {offset} is outside the log: log_start_offset is 20, log_end_offset is 60")
        assert "--from 20" in note
        assert len(seen.outcome.failures) == 1

    run(scenario())


def test_an_empty_topic_and_an_empty_range_are_told_apart() -> None:
    """Nothing on the screen may mean either, or that nothing was read."""

    async def scenario() -> None:
        world = World()
        assert (await world.tail(LastRecords(10))).notes == ["t is empty: 1 partition without a record"]
        world.cluster.produce(P0, *[b"v"] * 10)
        assert (await world.tail(LogEdge.LATEST)).notes == ["no record in the range; the logs are: t/0 [0, 10)"]

    run(scenario())


# -- following


def test_following_goes_on_with_new_records() -> None:
    """From the last records on, without one twice."""

    async def scenario() -> None:
        world = World()
        world.cluster.produce(P0, *[b"v"] * 20)
        async with world.tailing(LastRecords(3), follow=True) as (seen, task):
            for end in (23, 26):
                await until(lambda end=end: len(seen.records) == end - 20)
                world.cluster.produce(P0, *[b"v"] * 3)
            await until(lambda: len(seen.records) == 9)
            assert not task.done()
        assert list(range(17, 26)) == seen.offsets()
        assert seen.notes == []

    run(scenario())


def test_a_leader_that_moves_is_followed_and_one_that_is_missing_is_waited_for() -> None:
    """The reason is told once, and that it is over."""

    async def scenario() -> None:
        world = World(brokers=2)
        world.cluster.produce(P0, *[b"v"] * 10)
        async with world.tailing(LogEdge.EARLIEST, follow=True) as (seen, _task):
            await until(lambda: len(seen.records) == 10)
            world.cluster.lead(P0, 1)
            world.cluster.produce(P0, *[b"v"] * 10)
            await until(lambda: len(seen.records) == 20)
            assert seen.notes == []
            world.cluster.lead(P0, None)
            await until(lambda: seen.notes)
            await asyncio.sleep(30)
            world.cluster.lead(P0, 1)
            world.cluster.produce(P0, *[b"v"] * 10)
            await until(lambda: len(seen.records) == 30)
        assert list(range(30)) == seen.offsets()
        assert seen.notes[-1] == "t/0: goes on"
        assert all("waiting: " in note for note in seen.notes[:-1])
        assert "the partition has no leader: are the brokers of its replicas up?" in seen.notes[-2]

    run(scenario())


def test_a_partition_without_a_leader_fails_alone_after_the_time_limit() -> None:
    """The others are shown at once; a script gets an end."""

    async def scenario() -> None:
        world = World()
        world.cluster.lead(P1, None)
        world.cluster.produce(P0, *[b"v"] * 10)
        world.cluster.produce(P1, *[b"v"] * 10)
        seen = await world.tail(LogEdge.EARLIEST, partitions=(P0, P1))
        assert list(range(10)) == seen.offsets(P0)
        (failure,) = seen.outcome.failures
        assert isinstance(failure, RequestTimedOut)
        assert seen.notes[-1].startswith("t/1: nothing came from offset 0 on within 15 s: ")
        assert "no leader" in seen.notes[-1]
        assert 15 <= asyncio.get_running_loop().time() < 20

    run(scenario())


def test_partitions_that_wait_for_the_same_reason_are_not_all_named() -> None:
    """A broker that is away may lead hundreds."""

    async def scenario() -> None:
        world = World()
        every = [TopicPartition.modern("t", number) for number in range(9)]
        for partition in every:
            world.cluster.lead(partition, 0)
            world.cluster.produce(partition, b"v")
        async with world.tailing(LogEdge.EARLIEST, partitions=every, follow=True) as (seen, _task):
            await until(lambda: len(seen.records) == 9)
            for partition in every:
                world.cluster.lead(partition, None)
            world.cluster.brokers[BrokerId(0)].kill()
            await asyncio.sleep(30)
            reasons = Counter(note.partition("wait")[2] for note in seen.notes)
            assert all(count <= 4 for count in reasons.values())
            world.cluster.brokers[BrokerId(0)].start()
            for partition in every:
                world.cluster.lead(partition, 0)
                world.cluster.produce(partition, b"v")
            await until(lambda: len(seen.records) == 18)
        assert sum(note.startswith("more partitions are waited for: ") for note in seen.notes) >= 1
        assert {note for note in seen.notes if note.endswith("goes on")} <= {f"{one}: goes on" for one in every}

    run(scenario())


# -- what is not shown


def test_gaps_of_a_compacted_log_are_told_and_then_summed_up() -> None:
    """A line for each of thousands would hide the records."""

    async def scenario() -> None:
        world = World()
        compacted(world, 10, 100)
        seen = await world.tail(LogEdge.EARLIEST)
        assert list(range(0, 100, 10)) == seen.offsets()
        assert seen.notes == [
            "t/0: offsets 1 to 9: no record in the log: compacted, or never assigned",
            "t/0: offsets 11 to 19: no record in the log: compacted, or never assigned",
            "t/0: offsets 21 to 29: no record in the log: compacted, or never assigned",
            "t/0: 63 more offsets: no record in the log: compacted, or never assigned",
        ]
        assert seen.outcome.damaged == 0

    run(scenario())


@pytest.mark.parametrize("read_committed", [True, False])
def test_aborted_transactions_are_left_out_under_read_committed(read_committed: bool) -> None:
    """And told; markers are summed up."""

    async def scenario() -> None:
        world = World(read_committed=read_committed)
        log = world.cluster.logs[P0]
        log.append(transactional(0, b"aborted", 7))
        log.append(marker(1, 7, abort=True))
        log.append(transactional(2, b"committed", 7))
        log.append(marker(3, 7, abort=False))
        log.aborted = [(AbortedTransaction(producer_id=7, first_offset=0), 1)]
        seen = await world.tail(LogEdge.EARLIEST)
        aborted = ["t/0: offset 0: records of aborted transactions"] if read_committed else []
        assert seen.values == ([b"committed"] if read_committed else [b"aborted", b"committed"])
        assert seen.notes == [*aborted, "t/0: 2 offsets: transaction markers"]

    run(scenario())


def transactional(offset: int, value: bytes, producer_id: int) -> bytes:
    return batch(offset, [RecordSpec(delta=0, value=value)], attributes=TRANSACTIONAL, producer_id=producer_id)


@pytest.mark.parametrize("version", [2, 11])
def test_a_damaged_unit_is_left_out_by_its_offsets(version: int) -> None:
    """What is around it is shown; a command that left something out has failed."""

    async def scenario() -> None:
        world = World(version=version)
        log = world.cluster.logs[P0]
        world.cluster.produce(P0, *[b"v"] * 10)
        if version == 11:
            log.append(batch(10, [RecordSpec(delta=at, value=b"bad") for at in range(5)], crc=1), 5)
        else:
            for at in range(10, 15):
                entry = bytearray(message(at, b"bad" * 10))
                entry[-1] ^= 1
                log.append(bytes(entry))
        world.cluster.produce(P0, *[b"v"] * 10)
        seen = await world.tail(LogEdge.EARLIEST)
        assert [*range(10), *range(15, 25)] == seen.offsets()
        left_out = [note for note in seen.notes if "left out: " in note]
        assert left_out[0].startswith("t/0: offsets 10 to 14: left out: " if version == 11 else "t/0: offset 10: left")
        assert seen.outcome.damaged == (1 if version == 11 else 5)
        assert seen.outcome.failures == []

    run(scenario())


def test_a_disk_full_of_damage_is_summed_up() -> None:
    """A line for each of thousands of batches would hide the records."""

    async def scenario() -> None:
        world = World()
        for _ in range(20):
            log = world.cluster.logs[P0]
            log.append(batch(log.end, [RecordSpec(delta=at, value=b"bad") for at in range(5)], crc=1), 5)
            world.cluster.produce(P0, b"v")
        seen = await world.tail(LogEdge.EARLIEST)
        assert list(range(5, 120, 6)) == seen.offsets()
        assert [note.partition(": left out: ")[0] for note in seen.notes] == [
            "t/0: offsets 0 to 4",
            "t/0: offsets 6 to 10",
            "t/0: offsets 12 to 16",
            "t/0: 85 more offsets",
        ]
        assert seen.notes[-1] == "t/0: 85 more offsets: left out: damaged"
        assert seen.outcome.damaged == 20

    run(scenario())


def test_the_last_records_are_found_around_damage() -> None:
    """Damage is told once, although the records are counted before they are shown."""

    async def scenario() -> None:
        world = World()
        world.cluster.produce(P0, *[b"v"] * 10)
        world.cluster.logs[P0].append(batch(10, [RecordSpec(delta=at, value=b"bad") for at in range(5)], crc=1), 5)
        world.cluster.produce(P0, *[b"v"] * 3)
        seen = await world.tail(LastRecords(5))
        assert [8, 9, 15, 16, 17] == seen.offsets()
        assert len(seen.notes) == seen.outcome.damaged == 1

    run(scenario())


def test_a_message_above_the_limit_is_left_out_with_the_setting_that_raises_it() -> None:
    """One record of 100 MB must not end the look at a topic."""

    async def scenario() -> None:
        world = World(max_message_bytes=8 * KIB, max_partition_bytes=4 * KIB)
        world.cluster.produce(P0, b"small")
        world.cluster.produce(P0, b"x" * 20 * KIB)
        world.cluster.produce(P0, b"small")
        seen = await world.tail(LogEdge.EARLIEST)
        assert [0, 2] == seen.offsets()
        (note,) = seen.notes
        assert note.startswith("t/0: offset 1: left out: the message at offset 1 has 20")
        assert note.endswith("the limit is 8192; give --set fetch.max_message_bytes=SIZE")
        assert seen.outcome.damaged == 1

    run(scenario())


def test_a_record_with_unreadable_headers_is_left_out_alone() -> None:
    """The format that shows no headers would show it."""

    async def scenario() -> None:
        seen = Seen()

        async def write(got: RecordBatch) -> None:
            if got.find_unreadable() is not None:
                raise CorruptMessageError("no header can be read")
            seen.records += [(0, offset) for offset in got.offsets]

        asked = TailRequest(topics=["t"], start=LogEdge.EARLIEST, patience_s=1)
        specs = [RecordSpec(delta=at, value=b"v", headers=[(b"h", b"x")]) for at in range(3)]
        good = decode_record_set(batch(0, specs), partition=P0, start=0)
        ends = array("q", [good.header_ends[0], good.header_ends[1] - 1, good.header_ends[2]])
        async with World().reading() as source:
            tail = Tail(source, asked, seen.outcome, write=write, tell=seen.notes.append)
            await tail.show(replace(good, header_ends=ends))
        assert [0, 2] == seen.offsets()
        assert seen.notes == ["t/0: offset 1: left out: no header can be read"]
        assert (seen.outcome.shown, seen.outcome.damaged) == (2, 1)

    run(scenario())


def test_records_that_are_deleted_during_the_reading_are_told() -> None:
    """Retention goes on; the reading goes on where the log begins now."""

    async def scenario() -> None:
        world = World(max_partition_bytes=4 * KIB)
        for _ in range(100):
            world.cluster.produce(P0, *[b"v" * 200] * 10)

        async def expire(_: RecordBatch) -> None:
            world.cluster.logs[P0].log_start = 700

        world.before_write = expire
        seen = await world.tail(LogEdge.EARLIEST)
        shown = [offset for offset in seen.offsets() if offset < 700]
        assert [*range(len(shown)), *range(700, 1000)] == seen.offsets()
        assert (
            f"t/0: offsets {len(shown)} to 699: deleted before they were read; log_start_offset is 700 now"
            in seen.notes
        )
        assert seen.outcome.failures == []

    run(scenario())


@pytest.mark.parametrize("follow", [True, False])
def test_a_log_that_loses_its_end_is_told(follow: bool) -> None:
    """An unclean leader election: what was to be read is gone, and a tail that follows goes on at the new end."""

    async def scenario() -> None:
        world = World(max_partition_bytes=4 * KIB)
        for _ in range(20):
            world.cluster.produce(P0, *[b"v" * 200] * 10)

        async def cut(got: RecordBatch) -> None:
            if got.start >= 50:
                world.before_write = None
                del world.cluster.logs[P0].units[1:]

        world.before_write = cut
        async with world.tailing(LogEdge.EARLIEST, follow=follow) as (seen, task):
            await until(lambda: any("the log has lost its end" in note for note in seen.notes))
            if follow:
                world.cluster.produce(P0, b"new")
                await until(lambda: seen.values[-1] == b"new")
                assert seen.offsets()[-1] == 10
            else:
                await task
        assert seen.outcome.damaged == 1
        assert any(note.startswith("t/0: log_end_offset is 10 now, and offset ") for note in seen.notes)

    run(scenario())


# -- memory


@pytest.mark.parametrize("partitions", [2, 12])
def test_an_output_that_takes_nothing_stops_the_fetching(partitions: int) -> None:
    """A pipe to a stopped pager: memory stays within the budget, and nothing is lost when it goes on.

    With many partitions some have got no memory, which is not their brokers' fault.
    """

    async def scenario() -> None:
        world = World(budget=128 * KIB, max_partition_bytes=16 * KIB, max_message_bytes=64 * KIB)
        every = [TopicPartition.modern("t", number) for number in range(partitions)]
        for partition in every:
            world.cluster.lead(partition, 0)
            for _ in range(120 // partitions):
                world.cluster.produce(partition, *[b"v" * 1000] * 10)
        pager = asyncio.Event()

        async def wait(_: RecordBatch) -> None:
            await pager.wait()

        world.before_write = wait
        async with world.tailing(LogEdge.EARLIEST, partitions=every) as (seen, task):
            await asyncio.sleep(5)
            asked = len(world.cluster.fetches())
            await asyncio.sleep(60)
            assert asked == len(world.cluster.fetches())
            assert world.budget.held_bytes <= 128 * KIB
            assert seen.records == []
            pager.set()
            await task
        assert seen.outcome.failures == []
        for partition in every:
            assert list(range(1200 // partitions)) == seen.offsets(partition)

    run(scenario())
