# SPDX-License-Identifier: Apache-2.0
"""Streams of a connector: when a record is finished, and what the release of a partition leaves."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from consumerd.client.consumer_records import make_records
from consumerd.connector.streams import (
    EvenStreams,
    MessageStream,
    OfferQueue,
    StreamSink,
    StreamsOfThreads,
    StreamWriter,
)
from consumerd.errors import CorruptMessageError, OffsetError
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.sinks.base import AdvancingWriter, Start
from consumerd.wire.records import empty_batch
from tests.support import virtual_time
from tests.support.delivery import FakeClaim, make_batch, make_wrapped_batch

T0, T1 = (TopicPartition.modern("orders", number) for number in range(2))


class Scene:
    """One stream, and writers of partitions that write into it."""

    def __init__(self) -> None:
        self.offers = OfferQueue()
        self.stream = MessageStream(self.offers)
        self.sink = StreamSink(StreamsOfThreads(lambda _: [self.offers]))
        self.claims: dict[TopicPartition, FakeClaim] = {}

    async def open(self, partition: TopicPartition, position: int = 0) -> StreamWriter:
        claim = self.claims[partition] = FakeClaim(partition)
        writer = await self.sink.open(claim)
        assert isinstance(writer, StreamWriter)
        await writer.start(Start(position=position, reason="committed"))
        return writer


def play(scenario: Callable[[Scene, asyncio.TaskGroup], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            await scenario(Scene(), tasks)

    virtual_time.run(run())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_record_is_finished_when_the_next_one_is_asked_for() -> None:
    """A commit in the middle of the work on a record must not cover it: a crash would lose it."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0, 100)
        writing = tasks.create_task(writer.write(make_batch(T0, 100, 103)))

        assert (await anext(scene.stream)).offset == 100
        assert writer.finished_position == 100
        assert (await anext(scene.stream)).offset == 101
        assert writer.finished_position == 101
        assert (await anext(scene.stream)).offset == 102
        await settle()
        assert (writer.finished_position, writing.done()) == (102, False)
        asking = tasks.create_task(anext(scene.stream))
        assert await writing == 103
        asking.cancel()

    play(scenario)


def test_a_commit_by_the_task_that_has_the_record_finishes_it() -> None:
    """It has done its work on it, in the order of the program; another task's record stays unfinished."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0)
        tasks.create_task(writer.write(make_batch(T0, 0, 2)))
        await anext(scene.stream)

        async def elsewhere() -> None:
            scene.offers.finish_own()

        await tasks.create_task(elsewhere())
        assert writer.finished_position == 0
        scene.offers.finish_own()
        assert writer.finished_position == 1
        await anext(scene.stream)
        assert writer.finished_position == 1
        scene.offers.finish_own()
        assert writer.finished_position == 2
        scene.sink.stop([T0])

    play(scenario)


def test_a_batch_is_finished_as_a_whole() -> None:
    """Nobody knows how far in it the program is."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0)
        tasks.create_task(writer.write(make_batch(T0, 0, 10)))
        assert [(await anext(scene.stream)).offset for _ in range(3)] == [0, 1, 2]

        batches = scene.stream.batches()
        rest = await anext(batches)

        assert list(rest.offsets) == list(range(3, 10))
        assert writer.finished_position == 3
        scene.offers.finish_own()
        assert writer.finished_position == 10
        scene.sink.stop([T0])

    play(scenario)


def test_a_released_partition_waits_for_the_record_in_hand_and_gives_no_further_one() -> None:
    """The position after it is committed, so that the next owner does not repeat it."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer, other = await scene.open(T0), await scene.open(T1)
        writing = tasks.create_task(writer.write(make_batch(T0, 0, 1000)))
        await settle()
        tasks.create_task(other.write(make_batch(T1, 0, 1)))
        for _ in range(3):
            await anext(scene.stream)

        scene.sink.stop([T0])
        await settle()
        assert not writing.done()
        record = await anext(scene.stream)

        assert (record.partition, record.offset) == (1, 0)
        assert await writing == 3
        assert await writer.flush() == 3
        assert await writer.write(make_batch(T0, 1000, 1001)) == 3  # what comes too late is not handed out
        scene.offers.finish_own()
        scene.sink.stop([T1])

    play(scenario)


def test_a_partition_is_released_at_once_if_nothing_of_it_is_in_hand() -> None:
    """Also a batch that waits in the stream, and one whose task has ended."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0)
        writing = tasks.create_task(writer.write(make_batch(T0, 0, 5)))
        await settle()
        scene.sink.stop([T0])
        assert await writing == 0

        again = await scene.open(T0)
        writing = tasks.create_task(again.write(make_batch(T0, 0, 5)))

        async def take() -> None:
            await anext(scene.stream)

        await tasks.create_task(take())
        await settle()
        scene.sink.stop([T0])
        assert await writing == 0

    play(scenario)


def test_a_write_that_is_cancelled_leaves_nothing_in_the_stream() -> None:
    """The claim is lost: its records must not be handed out any more."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer, other = await scene.open(T0), await scene.open(T1)
        writing = tasks.create_task(writer.write(make_batch(T0, 0, 5)))
        await anext(scene.stream)
        writing.cancel()
        await settle()
        tasks.create_task(other.write(make_batch(T1, 7, 8)))

        assert (await anext(scene.stream)).offset == 7
        assert writer.finished_position == 0
        scene.offers.finish_own()
        scene.sink.stop([T1])

    play(scenario)


def test_records_of_a_lost_claim_are_not_handed_out() -> None:
    """After SIGSTOP, the stream finds the claim lost before any task of ours runs."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer, other = await scene.open(T0), await scene.open(T1)
        writing = tasks.create_task(writer.write(make_batch(T0, 0, 5)))
        await settle()
        tasks.create_task(other.write(make_batch(T1, 7, 8)))
        await settle()
        scene.claims[T0].lease.set("lost")

        assert (await anext(scene.stream)).offset == 7
        assert await writing == 0
        scene.offers.finish_own()
        scene.sink.stop([T1])

    play(scenario)


def test_a_paused_lease_pauses_the_stream() -> None:
    """Until ZooKeeper answers again, nobody knows who the owner is."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0)
        tasks.create_task(writer.write(make_batch(T0, 0, 5)))
        await settle()
        scene.claims[T0].lease.set("paused")
        asking = tasks.create_task(anext(scene.stream))
        await settle()
        assert not asking.done()
        scene.claims[T0].lease.set("fresh")
        assert (await asking).offset == 0
        scene.sink.stop([T0])

    play(scenario)


def test_gaps_move_the_position_without_a_record() -> None:
    """A batch of control records has nothing for the program."""

    async def scenario(scene: Scene, _: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0, 5)
        assert await writer.write(empty_batch(T0, 5, 9)) == 9

    play(scenario)


def test_unreadable_headers_are_told_before_any_record_is_offered() -> None:
    """The policy for corrupt records applies: the batch comes again without the record."""

    async def scenario(scene: Scene, _: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0)
        with pytest.raises(CorruptMessageError, match="orders/0: the headers of the record at offset 3"):
            await writer.write(make_batch(T0, 0, 5, bad_headers=[3]))
        assert writer.finished_position == 0

    play(scenario)


def test_an_error_ends_the_stream_once() -> None:
    """The program sees its name; who goes on iterating sees the end."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        asking = tasks.create_task(_catch(scene.stream))
        await settle()
        scene.offers.fail(OffsetError("stopped"))
        scene.offers.fail(OffsetError("again"))
        assert str(await asking) == "stopped"
        assert [record async for record in scene.stream] == []
        assert [batch async for batch in scene.stream.batches()] == []

    play(scenario)


async def _catch(stream: MessageStream) -> Exception | None:
    try:
        await anext(stream)
    except OffsetError as error:
        return error
    return None


def test_a_program_that_never_waits_lets_the_event_loop_run() -> None:
    """Heartbeats and fetches need it, however many records there are."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(T0)
        tasks.create_task(writer.write(make_batch(T0, 0, 5000)))
        ran = 0

        async def tick() -> None:
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        ticking = tasks.create_task(tick())
        async for record in scene.stream:
            if record.offset == 4999:
                break
        assert ran >= 10
        ticking.cancel()
        scene.offers.finish_own()
        scene.sink.stop([T0])

    play(scenario)


def test_a_time_limit_on_the_next_record_loses_none() -> None:
    """``asyncio.timeout`` around ``anext`` is how a program does something else in between."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        asking = tasks.create_task(anext(scene.stream))
        await settle()
        asking.cancel()
        writer = await scene.open(T0)
        tasks.create_task(writer.write(make_batch(T0, 0, 1)))
        assert (await anext(scene.stream)).offset == 0
        scene.offers.finish_own()
        scene.sink.stop([T0])

    play(scenario)


def test_the_writer_is_one_whose_position_advances() -> None:
    """Otherwise commits would wait for the end of each batch."""

    async def scenario(scene: Scene, _: asyncio.TaskGroup) -> None:
        assert isinstance(await scene.open(T0), AdvancingWriter)

    play(scenario)


def test_partitions_that_a_broker_assigns_are_shared_evenly_among_streams() -> None:
    """A round-robin share of two members has even numbers only; of streams by number, one would stay empty."""
    queues = [OfferQueue(), OfferQueue()]
    streams = EvenStreams(lambda _: queues)
    claims = {number: FakeClaim(TopicPartition.modern("orders", number)) for number in (0, 2, 4, 6)}

    def number_of(partition: int) -> int:
        return queues.index(streams.choose(claims[partition]))

    assert [0, 1, 0] == [number_of(one) for one in (0, 2, 4)]
    assert [0, 1, 0] == [number_of(one) for one in (0, 2, 4)]  # a partition stays in its stream
    streams.release([TopicPartition.modern("orders", number) for number in (0, 4)])
    assert [1, 0, 0] == [number_of(one) for one in (2, 6, 6)]


def test_streams_of_several_topics_are_shared_apart() -> None:
    """Each topic has streams of its own number."""
    queues = {"orders": [OfferQueue()], "clicks": [OfferQueue(), OfferQueue()]}
    streams = EvenStreams(queues.__getitem__)
    found = {
        partition: streams.choose(FakeClaim(partition))
        for partition in (T0, T1, *(TopicPartition.modern("clicks", number) for number in range(2)))
    }

    assert [queues["orders"][0], queues["orders"][0], *queues["clicks"]] == list(found.values())


# -- records that share an offset: a compressed message of Kafka 0.7

LEGACY = TopicPartition("orders", PartitionKey.parse("2-1"))


def test_a_position_is_never_after_a_message_with_unfinished_records() -> None:
    """A crash in the middle of a compressed message must give all of its records again, as no position is in it."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(LEGACY, 1000)
        writing = tasks.create_task(writer.write(make_wrapped_batch(LEGACY)))
        positions = []
        for _ in range(6):
            await anext(scene.stream)
            positions.append(writer.finished_position)
        assert [1000, 1010, 1010, 1010, 1010, 1010] == positions
        scene.offers.finish_own()
        assert 1100 == writer.finished_position
        asking = tasks.create_task(anext(scene.stream))
        assert 1100 == await writing
        asking.cancel()

    play(scenario)


def test_a_partition_released_within_a_compressed_message_is_left_before_it() -> None:
    """The next owner gets the whole message again."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(LEGACY, 1000)
        writing = tasks.create_task(writer.write(make_wrapped_batch(LEGACY)))
        for _ in range(3):
            await anext(scene.stream)
        scene.sink.stop([LEGACY])
        scene.offers.finish_own()
        assert 1010 == await writing

    play(scenario)


def test_the_rest_of_a_batch_begins_after_the_records_taken_singly() -> None:
    """Also within a compressed message, whose records have one offset."""

    async def scenario(scene: Scene, tasks: asyncio.TaskGroup) -> None:
        writer = await scene.open(LEGACY, 1000)
        tasks.create_task(writer.write(make_wrapped_batch(LEGACY)))
        singles = [(await anext(scene.stream)).value for _ in range(3)]
        rest = await anext(scene.stream.batches())
        assert [b"a", b"b", b"c"] == singles
        assert [b"d", b"e", b"f"] == rest.values()
        assert [2, 3, 4] == list(rest.indexes)
        assert (1010, 1100) == (rest.start, rest.next_offset)
        assert 1010 == writer.finished_position
        scene.offers.finish_own()
        assert 1100 == writer.finished_position
        scene.sink.stop([LEGACY])

    play(scenario)


def test_a_record_says_which_broker_it_is_of_and_where_in_its_message() -> None:
    """Topic, broker, partition, offset and index identify a record of Kafka 0.7; the first and third alone do not."""
    records = make_records(make_wrapped_batch(LEGACY, plain=2, inner=2))
    assert [(1000, 0), (1010, 0), (1020, 0), (1020, 1)] == [(one.offset, one.index) for one in records]
    assert {("orders", BrokerId(2), 1)} == {(one.topic, one.broker, one.partition) for one in records}
    plain = replace(make_wrapped_batch(LEGACY, plain=2, inner=0), indexes=array("q"))
    assert [(BrokerId(2), 0)] * 2 == [(one.broker, one.index) for one in make_records(plain)]
    modern = make_records(make_batch(T1, 5, 7))
    assert [(None, 1, 0)] * 2 == [(one.broker, one.partition, one.index) for one in modern]
