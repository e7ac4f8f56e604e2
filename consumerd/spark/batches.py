# SPDX-License-Identifier: Apache-2.0
"""Appends a stream's micro-batches to a table exactly once: a function for ``foreachBatch``.

The table's progress (numbers that its log stores with each commit) has the last batch number of each query. A commit
changes rows and progress together.

Example: batch 7 of a query is committed, and the driver dies before Spark writes its own checkpoint. The restarted
query runs batch 7 again, with the same rows. The progress says 7, so nothing is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from consumerd.errors import ConfigError
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.snapshot import STREAM
from consumerd.spark.table.transaction import create_table

JOB: Final = "stream"
"""Name of the job in the table's commits."""
_QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the query's id. The query's checkpoint keeps the id over restarts."""


def append_batches(
    path: str | Path, *, name: str, partition_by: Sequence[str] = (), bounds: Sequence[str] = ()
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that appends micro-batches to a table exactly once.

    It is also ``consumerd.spark.append_batches``, which describes the arguments.
    """

    def append(batch: DataFrame, batch_id: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise ConfigError("append_batches is for foreachBatch: a batch is told apart by its query's id and number")
        source = f"{STREAM}{query}"
        table = create_table(path, name=name, schema=_order(batch.schema, partition_by), partition_by=partition_by)
        with table.begin(plan=f"{source}:{batch_id}", job=JOB, operation=Operation.APPEND) as transaction:
            # The number is compared with the table's progress, which never expires. A commit's plan name would identify
            # the batch too, but plans are forgotten when old commits expire.
            if transaction.base.progress.get(source, -1) < batch_id:
                transaction.add(write_frame(transaction, batch, bounds=bounds))
                transaction.commit(progress={source: batch_id})

    return append


def _order(schema: StructType, partition_by: Sequence[str]) -> str:
    """Return the stream's columns (Spark's JSON) with the partition columns last."""
    missing = [name for name in partition_by if name not in schema.names]
    if missing:
        raise ConfigError(f"partition_by: the stream has no column {missing[0]!r}; it has {', '.join(schema.names)}")
    names = [*(name for name in schema.names if name not in partition_by), *partition_by]
    return StructType([schema[name] for name in names]).json()
