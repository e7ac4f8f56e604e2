"""The batch reader that Spark sees: plans on the driver, reads on executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from consumerd.spark.datasource.options import ReadOptions
from consumerd.spark.datasource.reading import ReadTask, read_range

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """A Spark partition, of a batch as of a trigger: one range of offsets, or nothing to read for None."""

    def __init__(self, task: ReadTask | None) -> None:
        super().__init__(task)
        self.task = task


class BatchReader(DataSourceReader):
    """Reads what there is between two bounds at the moment of planning."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan. Raises ConfigError, NotFound, OffsetOutOfRange, ConnectionLost and their kin."""
        raise NotImplementedError

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; see :func:`~consumerd.spark.datasource.reading.read_range`."""
        assert isinstance(partition, RangePartition)
        if partition.task is not None:
            yield from read_range(partition.task)
