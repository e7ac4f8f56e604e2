# SPDX-License-Identifier: Apache-2.0
"""The batch writer that Spark sees: checks on the driver, writes on executors, at least once.

What a task has written is in the log whether or not the job succeeds: Kafka takes nothing back. So there is nothing to
commit, and nothing that an abort could undo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from consumerd.errors import ConfigError
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.outgoing import OutgoingColumns, plan_columns
from consumerd.spark.datasource.sending import SentCounts, send_batches
from consumerd.spark.datasource.worker_logs import log_warnings
from consumerd.spark.datasource.worker_memory import spare_loaded_modules
from consumerd.spark.datasource.write_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """What one task has written."""

    counts: SentCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What writers of batches and of streams share: what was asked for, and where the columns stand."""

    options: WriteOptions
    columns: OutgoingColumns

    @classmethod
    def make(cls, options: Mapping[str, str], schema: StructType) -> WritePlan:
        """Check options and columns against each other; asks no cluster. Raises ConfigError."""
        asked = parse_write_options(options)
        columns = plan_columns(schema, topic=asked.topic, keep_timestamps=asked.keep_timestamps)
        return cls(options=asked, columns=columns)

    def __reduce__(self) -> tuple[object, ...]:
        # executors need not reach ZooKeeper: what leaves the driver knows the brokers' addresses
        return _restore, (_addressed(self.options), self.columns)

    def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Write a task's rows; see :func:`~consumerd.spark.datasource.sending.send_batches`."""
        log_warnings()
        spare_loaded_modules()
        return Sent(send_batches(batches, self.columns, self.options))


class ConsumerdWriter(DataSourceArrowWriter):
    """Appends a DataFrame's rows to topics."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a topic cannot be overwritten, only appended to; write with mode('append')")
        self._plan = WritePlan.make(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, and return when they are acknowledged. Raises ProduceError."""
        return self._plan.send(iterator)


def _addressed(options: WriteOptions) -> WriteOptions:
    """Return options with the addresses of brokers. Raises as :class:`ClusterLookup` does."""
    if options.cluster.bootstrap is not None:
        return options
    log_warnings()
    with ClusterLookup(options.cluster) as lookup:
        return replace(options, cluster=replace(options.cluster, bootstrap=lookup.bootstrap()))


def _restore(options: WriteOptions, columns: OutgoingColumns) -> WritePlan:
    return WritePlan(options=options, columns=columns)
