# SPDX-License-Identifier: Apache-2.0
"""Whatever brokers do to a producer: its buffer stays within its bound, order is kept, every record is answered once."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.client.accumulator import RECORD_OVERHEAD_BYTES, Accumulator, Batch, PartitionQueue, Written
from consumerd.client.delivery import Delivery
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ConnectionLost, ConsumerdError, ProduceError, WriteRefused
from consumerd.model import TopicPartition
from consumerd.wire.records import NewRecord
from tests.support.producing import (
    NOT_AUTHORIZED,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    TOO_LARGE,
    ProduceCluster,
    produce_to,
)
from tests.support.scripted_broker import Reaction

pytestmark = pytest.mark.records

PARTITIONS = 3
ANSWERS = (0, 0, 0, NOT_LEADER, NOT_ENOUGH_REPLICAS, TOO_LARGE, NOT_AUTHORIZED, Reaction.CLOSE, Reaction.SILENT)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, PARTITIONS - 1), st.integers(0, 2_000)),
        st.tuples(st.just("answer"), st.integers(0, PARTITIONS - 1), st.sampled_from(ANSWERS)),
        st.tuples(st.just("move"), st.integers(0, PARTITIONS - 1), st.sampled_from([None, 1, 2])),
        st.tuples(st.just("wait"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("cut"), st.integers(1, 2), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, linger_s=st.sampled_from([0.0, 0.2]), newest=st.sampled_from([1, 2, 3]))
def test_order_and_answers_survive_any_failures(
    steps: list[tuple[str, int, object]], linger_s: float, newest: int
) -> None:
    """Leaders move and vanish, answers are lost, errors come and go; some records fail for good, none is told wrongly."""
    cluster = ProduceCluster(2, newest=newest)
    cluster.topic("t", 1, 2, 1)
    bound = 12_000
    options = ProducerSettings(
        linger_s=linger_s, batch_bytes=3_000, max_request_bytes=4_000, buffer_bytes=bound,
        request_timeout_s=1, delivery_timeout_s=20, max_block_s=600,
    )  # fmt: skip
    sent: dict[int, list[tuple[bytes, Delivery]]] = defaultdict(list)

    async def scenario(producer: Producer) -> None:
        for number, (what, one, other) in enumerate(steps):
            partition = TopicPartition.modern("t", one)
            if what == "send":
                assert isinstance(other, int)
                value = b"%d " % number + b"x" * other
                sent[one].append((value, await producer.enqueue("t", value, partition=one)))
            elif what == "answer":
                cluster.answers[partition].append(other)  # type: ignore[arg-type]  # a code or a reaction
            elif what == "move":
                cluster.leaders["t"][one] = other  # type: ignore[call-overload]  # a number or None
            elif what == "cut":
                for stream in cluster.network.streams:
                    if stream.address == cluster.brokers[one].address:
                        stream.end(ConnectionLost("cut"))
            else:
                await asyncio.sleep(0.1 * one)
            assert producer.counts().open_bytes <= bound
        cluster.answers.clear()
        cluster.topic("t", 1, 2, 1)
        await producer.flush()
        assert 0 == producer.counts().open_bytes
        for deliveries in sent.values():
            assert all(delivery.done for _, delivery in deliveries)

    produce_to(cluster, scenario, settings=options)
    for number, deliveries in sent.items():
        check_partition(cluster, number, deliveries)


def check_partition(cluster: ProduceCluster, number: int, deliveries: list[tuple[bytes, Delivery]]) -> None:
    """Acknowledged records are where they are said to be, and nothing stands in the log before what was sent earlier."""
    log = cluster.values("t", number)
    acknowledged = []
    for value, delivery in deliveries:
        try:
            offset = delivery.result().offset
        except ProduceError:
            continue
        assert offset is not None
        assert value == log[offset]
        acknowledged.append((offset, value))
    assert sorted(acknowledged) == acknowledged, "offsets follow the order of the calls"
    once = list(dict.fromkeys(log))
    order = [value for value, _ in deliveries]
    assert [value for value in order if value in set(once)] == once, "records may repeat, and never pass each other"


class Model:
    """What an accumulator should hold, kept apart from it."""

    def __init__(self) -> None:
        self.accumulator = Accumulator(batch_bytes=1_000, linger_s=1.0, buffer_bytes=8_000)
        self.queues = [PartitionQueue(TopicPartition.modern("t", number)) for number in range(PARTITIONS)]
        self.appended: list[list[NewRecord]] = [[] for _ in self.queues]
        self.finished: list[list[NewRecord]] = [[] for _ in self.queues]
        self.taken: dict[int, Batch] = {}
        self.charged = 0
        self.sizes: dict[int, int] = {}

    def append(self, number: int, size: int) -> None:
        if not self.accumulator.reserve(size):
            assert self.charged + size + RECORD_OVERHEAD_BYTES > 8_000, "there was room"
            return
        record = NewRecord(value=b"")
        batch = self.accumulator.append(self.queues[number], record, size, lambda: 0.0)
        assert record is batch.records[-1]
        assert batch.size_bytes <= 1_000 or [record] == batch.records
        self.appended[number].append(record)
        self.charged += size + RECORD_OVERHEAD_BYTES
        self.sizes[id(record)] = size

    def take(self, number: int) -> None:
        for batch in list(self.accumulator.waiting()):
            if batch.queue is self.queues[number]:
                assert number not in self.taken, "one in flight"
                self.accumulator.take(batch)
                self.taken[number] = batch

    def put_back(self, number: int) -> None:
        if (batch := self.taken.pop(number, None)) is not None:
            self.accumulator.put_back(batch, ConnectionLost("again"), 5.0)
            assert batch is self.queues[number].batches[0], "it stays the first"

    def split(self, number: int) -> None:
        batch = self.taken.get(number)
        if batch is not None and len(batch.to_send) > 1:
            del self.taken[number]
            self.accumulator.split(batch, 0.0)

    def finish(self, number: int, outcome: Written | ConsumerdError) -> None:
        if (batch := self.taken.pop(number, None)) is not None:
            self.finished[number] += batch.records
            self.accumulator.finish(batch, outcome)
            assert outcome is batch.outcome
            assert not batch.records, "who keeps a delivery keeps no payload"

    def check(self) -> None:
        held = self.accumulator.used_bytes
        assert 0 <= held <= 8_000
        waiting = [record for batch in self.accumulator.unfinished() for record in batch.records]
        least = sum(self.sizes[id(record)] + RECORD_OVERHEAD_BYTES for record in waiting)
        assert least <= held, "what is on its way is paid for"
        for appended, finished, queue in zip(self.appended, self.finished, self.queues, strict=True):
            rest = [record for batch in queue.batches for record in batch.records]
            assert list(map(id, appended)) == [*map(id, finished), *map(id, rest)], "in order, none lost, none twice"
        self.charged = held


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "append",
                    "append",
                    "append",
                    "take",
                    "take",
                    "put_back",
                    "split",
                    "split",
                    "written",
                    "refused",
                    "seal",
                ]
            ),
            st.integers(0, PARTITIONS - 1),
            st.one_of(st.integers(1, 300), st.integers(1, 1_500)),
        ),
        max_size=120,
    )
)
def test_the_accumulator_keeps_its_bound_and_its_order(steps: list[tuple[str, int, int]]) -> None:
    """Any calls in any order; at the end all room is given back."""
    model = Model()
    for what, number, size in steps:
        if what == "append":
            model.append(number, size)
        elif what == "written":
            model.finish(number, Written(base_offset=0))
        elif what == "refused":
            model.finish(number, WriteRefused("no"))
        elif what == "seal":
            model.accumulator.seal_all()
        else:
            getattr(model, what)(number)
        model.check()
    for _ in range(len(steps)):
        for number in range(PARTITIONS):
            model.take(number)
            model.finish(number, Written(base_offset=0))
        model.check()
    assert not model.accumulator.unfinished()
    assert 0 == model.accumulator.used_bytes
