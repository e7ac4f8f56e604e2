# SPDX-License-Identifier: Apache-2.0
"""The streaming writer that Spark sees: each trigger's rows are appended to topics, at least once.

A trigger that is run again, since the query died before Spark had noted its end, writes its rows once more. The output
modes ``update`` and ``complete`` append what they give, as Spark's own Kafka sink does: with keys, the last record of a
key is its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from consumerd.spark.datasource.writer import WritePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class ConsumerdStreamWriter(DataSourceStreamArrowWriter):
    """Appends each trigger's rows to topics; there is nothing to commit, and nothing that an abort could undo."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:  # noqa: ARG002
        self._plan = WritePlan.make(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, and return when they are acknowledged. Raises ProduceError."""
        return self._plan.send(iterator)
