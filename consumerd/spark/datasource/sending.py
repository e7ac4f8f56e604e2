# SPDX-License-Identifier: Apache-2.0
"""Writes a task's rows to brokers, on an executor, through the producer.

A call returns when all its records are acknowledged; the first one that is not ends it, and the task fails. What was
acknowledged before stays written: Spark runs a failed task again, which writes its rows once more, so that a table is
written at least once. A partition's records stand in the log in the order of the task's rows.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import Brokers, ask_brokers, open_cluster
from consumerd.aio.clock import monotonic
from consumerd.client.accumulator import Written
from consumerd.client.opening import run_producer
from consumerd.client.partitioner import PARTITIONERS
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import ProducerHooks
from consumerd.errors import (
    ConnectionLost,
    ConsumerdError,
    OversizedRecord,
    ProduceError,
    TopicMissing,
)
from consumerd.model import TopicPartition
from consumerd.net.pool import ConnectionPool, Purpose
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.spark.datasource.outgoing import OutgoingColumns, OutgoingRecord
from consumerd.spark.datasource.write_options import WriteOptions, in_options
from consumerd.wire.modern.building import NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

_SESSION_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCounts:
    """What a task has written: records and bytes of keys and values, and records by topic."""

    records: int = 0
    payload_bytes: int = 0
    topics: tuple[tuple[str, int], ...] = ()


class _Tally(ProducerHooks):
    """What became of records, and the first failure."""

    def __init__(self) -> None:
        self.topics: Counter[str] = Counter()
        self.payload_bytes = 0
        self.failure: ConsumerdError | None = None

    def after_sending(
        self, partition: TopicPartition, records: Sequence[NewRecord], outcome: Written | ConsumerdError
    ) -> None:
        """Count a batch."""
        if isinstance(outcome, Written):
            self.topics[partition.topic] += len(records)
            self.payload_bytes += sum(len(one.key or b"") + len(one.value or b"") for one in records)
        elif self.failure is None:
            self.failure = outcome

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self.failure is not None:
            raise self.failure

    def counts(self) -> SentCounts:
        """Return what was acknowledged."""
        return SentCounts(
            records=self.topics.total(), payload_bytes=self.payload_bytes, topics=tuple(sorted(self.topics.items()))
        )


def send_batches(batches: Iterator[pa.RecordBatch], columns: OutgoingColumns, options: WriteOptions) -> SentCounts:
    """Write all rows and return once they are acknowledged; ``options.cluster.bootstrap`` is set.

    Bounded, a batch, by the producer's times. Raises ProduceError, in whose message settings have the names of options,
    and what ``batches`` raises.
    """
    tally = _Tally()
    rows = 0
    try:
        with LoopThread(_open_producer(options, tally), name="consumerd producer") as thread:
            producer = thread.resource
            try:
                for batch in batches:
                    thread.call(_enqueue(producer, columns.records(batch, first_row=rows), rows, tally))
                    rows += batch.num_rows
                thread.call(producer.flush())
                tally.check()
            except BaseException:
                # the task fails: what is not sent yet would only stand in the log once more
                thread.call(producer.close(timeout_s=0))
                raise
    except ProduceError as error:
        raise ProduceError(in_options(str(error)), partition=error.partition) from error
    return tally.counts()


async def _enqueue(producer: Producer, records: Iterator[OutgoingRecord], first_row: int, tally: _Tally) -> None:
    row = first_row
    try:
        for row, (topic, key, value, partition, timestamp_ms, headers) in enumerate(records, first_row):  # noqa: B007 - in messages
            if tally.failure is not None:
                raise tally.failure
            await producer.enqueue(
                topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
    except (OversizedRecord, TopicMissing) as error:
        raise ProduceError(f"row {row} of the task: {error}", partition=error.partition) from error
    except ValueError as error:
        raise ProduceError(f"row {row} of the task: {error}") from error


@asynccontextmanager
async def _open_producer(options: WriteOptions, hooks: ProducerHooks) -> AsyncIterator[Producer]:
    async with open_cluster(replace(options.cluster, zookeeper=None), wait_s=None) as cluster:
        brokers = await find_brokers(cluster.pool, options.cluster)
        async with run_producer(
            cluster.pool,
            lambda: brokers,
            settings=options.settings,
            partitioner=PARTITIONERS[options.partitioner](random.random, monotonic),
            hooks=hooks,
        ) as producer:
            yield producer


async def find_brokers(pool: ConnectionPool, address: ClusterAddress) -> Brokers:
    """Return the brokers whose addresses are given; if none of them answers, those registered in ZooKeeper.

    The driver looks addresses up once, when a query begins. Bounded by the connections' time-outs. Raises ProduceError if
    ZooKeeper cannot be asked either.
    """
    brokers = address.first_brokers()
    if address.zookeeper is None:
        return brokers

    async def connect(brokers: Brokers) -> Brokers:
        for broker in brokers:
            with contextlib.suppress(ConnectionLost):
                await pool.get(broker, Purpose.PRODUCE)
                return brokers
        raise ConnectionLost(f"none of {','.join(str(one.address) for one in brokers)} answers")

    async def look_up() -> Brokers:
        async with open_cluster(address, wait_s=_SESSION_S) as cluster:
            return await cluster.find_registered()

    try:
        return await ask_brokers(brokers, connect, look_up)
    except ConnectionLost as error:
        raise ProduceError(f"{error}; start the query again, so that the driver finds the brokers") from error
