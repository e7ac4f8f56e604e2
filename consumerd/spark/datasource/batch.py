# SPDX-License-Identifier: Apache-2.0
"""The batch reader that Spark calls: plans on the driver, reads on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from consumerd.spark.datasource.options import Edge, ReadOptions
from consumerd.spark.datasource.planning import OffsetRange, divide_ranges, fit_ranges, plan_ranges
from consumerd.spark.datasource.pruning import Wanted, begin_later, find_wanted
from consumerd.spark.datasource.reading import ReadTask, read_range, report_lost
from consumerd.spark.datasource.worker import log_warnings, prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from consumerd.spark.datasource.lookup import ClusterLookup


class RangePartition(InputPartition):
    """Spark partition of a batch or a stream: one range of offsets.

    Its value is the work of one Spark task. None is a task that reads nothing.
    """

    def __init__(self, task: ReadTask | None) -> None:
        super().__init__(task)
        self.task = task


class BatchReader(DataSourceReader):
    """Batch reader of the format ``consumerd``: records between two bounds.

    The bounds are resolved to offsets when the query is planned.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = Wanted()

    # Spark calls this only if spark.sql.python.filterPushdown.enabled is true, and refuses a reader that has it
    # otherwise; consumerd.spark.register sets it.
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep a query's filters for planning; return them all, so that Spark applies them."""
        self._wanted = find_wanted(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of offsets to read, as Spark partitions.

        Raises ConfigError, NotFound, OffsetError, OffsetOutOfRange, ConnectionLost, CoordinationError.
        """
        from consumerd.spark.datasource.lookup import ClusterLookup  # here, so that executors need not load it

        log_warnings()
        options = self._options
        with ClusterLookup(options.cluster, read_committed=options.fetch.read_committed) as lookup:
            return list(make_partitions(_plan(options, self._wanted, lookup), options, lookup))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range of offsets; runs on an executor.

        Raises OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge, CorruptMessageError, RequestTimedOut.
        """
        return read_partition(partition)


def make_partitions(ranges: Sequence[OffsetRange], options: ReadOptions, lookup: ClusterLookup) -> list[RangePartition]:
    """Divide ranges as the options say, and return them as Spark partitions.

    There is at least one partition; without ranges it reads nothing. Raises ConfigError, ConnectionLost,
    CoordinationError.

    Args:
        lookup: finds addresses of brokers for executors, which do not ask ZooKeeper.
    """
    partitions = [one.partition for one in ranges]
    is_divided = options.min_partitions is not None or options.max_records_per_partition is not None
    divided = divide_ranges(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        segments=lookup.find_segments(partitions) if is_divided else {},
    )
    brokers = lookup.find_brokers(partitions)
    cluster = replace(options.cluster.without_zookeeper(lookup.bootstrap()), identities=None)
    tasks = [
        ReadTask(
            range=one,
            cluster=cluster,
            fetch=options.fetch,
            broker=brokers.get(one.partition),
            fail_on_data_loss=options.fail_on_data_loss,
            columns=options.columns,
        )
        for one in divided
    ]
    return [RangePartition(task) for task in tasks] or [RangePartition(None)]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Spark partition; runs on an executor.

    Raises OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge, CorruptMessageError, RequestTimedOut.
    """
    prepare_worker()
    assert isinstance(partition, RangePartition)
    if partition.task is not None:
        yield from read_range(partition.task)


def _plan(options: ReadOptions, wanted: Wanted, lookup: ClusterLookup) -> list[OffsetRange]:
    """Return the ranges to read.

    Offsets that were asked for and are not in the log are an error, or reported, depending on ``failOnDataLoss``.
    """
    partitions = lookup.find_partitions(options.selection)
    starts = lookup.resolve_start(options, partitions)
    ranges = wanted.clip(plan_ranges(starts, lookup.resolve_end(options, partitions)))
    held = lookup.log_ranges([one.partition for one in ranges])
    if options.starting is Edge.EARLIEST:
        # retention may have deleted records since the start was resolved; the earliest offset is then a later one
        ranges = [replace(one, start=min(max(one.start, held[one.partition].earliest), one.end)) for one in ranges]
    kept, lost = fit_ranges(ranges, held, fail_on_data_loss=options.fail_on_data_loss)
    for one in lost:
        report_lost(one)
    if wanted.first_ms is None:
        return kept
    return begin_later(kept, lookup.first_offsets([one.partition for one in kept], wanted.first_ms))
