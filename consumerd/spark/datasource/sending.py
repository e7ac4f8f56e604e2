# SPDX-License-Identifier: Apache-2.0
"""Writes a task's rows to brokers, on an executor, through the producer.

A task succeeds when all its records are acknowledged, and fails at the first record that is not. Records that were
acknowledged before stay in the log; Spark repeats the task, and it writes all its rows again. So rows are written at
least once. Within a partition, a task's records are in the order of its rows.

Example: a task writes 1,000 rows, and the broker fails after 600. The second attempt writes all 1,000, so the topic has
1,600 records of this task.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
from consumerd.wire.records import NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

_SESSION_S: Final = 10.0
"""Longest wait for ZooKeeper, in seconds."""


class _FirstFailure(ProducerHooks):
    """Keeps the first failure of a batch."""

    def __init__(self) -> None:
        self.failure: ConsumerdError | None = None

    def after_sending(  # a hook gets more than is needed here
        self,
        partition: TopicPartition,  # noqa: ARG002
        records: Sequence[NewRecord],  # noqa: ARG002
        outcome: Written | ConsumerdError,
    ) -> None:
        """Keep a failure."""
        if self.failure is None and isinstance(outcome, ConsumerdError):
            self.failure = outcome

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self.failure is not None:
            raise self.failure


def send_batches(batches: Iterator[pa.RecordBatch], columns: OutgoingColumns, options: WriteOptions) -> None:
    """Write all rows to the brokers, and return when they are acknowledged.

    The producer's time-outs limit the time for each batch. ``options.cluster`` must have addresses of brokers. Raises
    ProduceError, whose message names the writer's options; exceptions of ``batches``.
    """
    hooks = _FirstFailure()
    rows = 0
    try:
        with LoopThread(_open_producer(options, hooks), name="consumerd producer") as thread:
            producer = thread.resource
            try:
                for batch in batches:
                    thread.call(_enqueue(producer, columns.records(batch, first_row=rows), rows, hooks))
                    rows += batch.num_rows
                thread.call(producer.flush())
                hooks.check()
            except BaseException:
                # the task fails and will be repeated, so records that are not sent yet are dropped
                thread.call(producer.close(timeout_s=0))
                raise
    except ProduceError as error:
        raise ProduceError(in_options(str(error)), partition=error.partition) from error


async def _enqueue(producer: Producer, records: Iterator[OutgoingRecord], first_row: int, hooks: _FirstFailure) -> None:
    row = first_row
    try:
        # row is used in the errors below
        for row, (topic, key, value, partition, timestamp_ms, headers) in enumerate(records, first_row):  # noqa: B007
            hooks.check()
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
    """Return the brokers in ``address``; if none of them answers, those registered in ZooKeeper.

    The driver has looked up the former when the query began, so they may be gone by now. The connections' time-outs
    limit the wait. Raises ProduceError if ZooKeeper does not answer either.
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
