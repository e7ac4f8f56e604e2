# SPDX-License-Identifier: Apache-2.0
"""The batch writer that Spark calls: writes rows on executors, at least once.

Records that a task has written stay in the log even if the job fails. So there is nothing to commit or to abort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from consumerd.errors import ConfigError
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.outgoing import OutgoingColumns, plan_columns
from consumerd.spark.datasource.sending import send_batches
from consumerd.spark.datasource.worker import log_warnings, prepare_worker
from consumerd.spark.datasource.write_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Options and columns of a writer, for batches and streams. Pickled for executors."""

    options: WriteOptions
    columns: OutgoingColumns

    @classmethod
    def make(cls, options: Mapping[str, str], schema: StructType) -> WritePlan:
        """Return the parsed options and columns of a writer, without asking the cluster.

        Raises ConfigError.
        """
        asked = parse_write_options(options)
        columns = plan_columns(schema, topic=asked.topic, keep_timestamps=asked.keep_timestamps)
        return cls(asked, columns)

    def __reduce__(self) -> tuple[object, ...]:
        # executors need not reach ZooKeeper, because the driver adds the brokers' addresses when it pickles the plan
        return WritePlan, (_addressed(self.options), self.columns)

    def send(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to the brokers; return when they are acknowledged.

        Raises ProduceError, whose message names the writer's options.
        """
        prepare_worker()
        send_batches(batches, self.columns, self.options)
        return WriterCommitMessage()


class ConsumerdWriter(DataSourceArrowWriter):
    """Batch writer of the format ``consumerd``: appends a DataFrame's rows to topics."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a topic cannot be overwritten, only appended to; write with mode('append')")
        self._plan = WritePlan.make(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, and return when they are acknowledged. Raises ProduceError."""
        return self._plan.send(iterator)


class ConsumerdStreamWriter(DataSourceStreamArrowWriter):
    """Stream writer of the format ``consumerd``: appends each trigger's rows, at least once.

    There is nothing to commit or to abort. If the query dies before Spark has recorded the end of a trigger, Spark
    repeats the trigger, and its rows are written twice. The output modes ``update`` and ``complete`` append their rows,
    as in Spark's own Kafka sink: with keys, the last record of a key is its result.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:  # noqa: ARG002
        self._plan = WritePlan.make(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, and return when they are acknowledged. Raises ProduceError."""
        return self._plan.send(iterator)


def _addressed(options: WriteOptions) -> WriteOptions:
    """Return options with addresses of brokers, which are looked up if they are missing.

    Raises ConfigError, ConnectionLost, CoordinationError, BrokerError.
    """
    if options.cluster.bootstrap is not None:
        return options
    log_warnings()
    with ClusterLookup(options.cluster) as lookup:
        if lookup.is_legacy:
            raise ConfigError(
                "zookeeper: its brokers are of Kafka 0.6 or 0.7, whose topics can be read and not written"
            )
        return replace(options, cluster=replace(options.cluster, bootstrap=lookup.bootstrap()))
