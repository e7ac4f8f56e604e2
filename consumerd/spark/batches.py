# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of a stream into a table, each once: a function for Spark's ``foreachBatch``."""

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
_QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the id of the query, which its checkpoint keeps over restarts."""


def append_batches(
    path: str | Path, *, name: str, partition_by: Sequence[str] = (), bounds: Sequence[str] = ()
) -> Callable[[DataFrame, int], None]:
    """See :func:`consumerd.spark.append_batches`."""

    def append(batch: DataFrame, batch_id: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise ConfigError("append_batches is for foreachBatch: a batch is told apart by its query's id and number")
        source = f"{STREAM}{query}"
        table = create_table(path, name=name, schema=_order(batch.schema, partition_by), partition_by=partition_by)
        with table.begin(plan=f"{source}:{batch_id}", job=JOB, operation=Operation.APPEND) as transaction:
            # Spark repeats a batch whose end it has not noted, with the same number and rows. The number is kept in the
            # table's progress, which never expires, unlike the plans of old commits.
            if transaction.base.progress.get(source, -1) < batch_id:
                transaction.add(write_frame(transaction, batch, bounds=bounds))
                transaction.commit(progress={source: batch_id})

    return append


def _order(schema: StructType, partition_by: Sequence[str]) -> str:
    """Return the columns as a table has them, the partition columns last."""
    missing = [name for name in partition_by if name not in schema.names]
    if missing:
        raise ConfigError(f"partition_by: the stream has no column {missing[0]!r}; it has {', '.join(schema.names)}")
    names = [*(name for name in schema.names if name not in partition_by), *partition_by]
    return StructType([schema[name] for name in names]).json()
