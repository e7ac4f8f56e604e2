# SPDX-License-Identifier: Apache-2.0
"""The batch reader that Spark sees: plans on the driver, reads on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from consumerd.spark.datasource.options import Edge, ReadOptions
from consumerd.spark.datasource.planning import OffsetRange, divide_ranges, fit_ranges, plan_ranges
from consumerd.spark.datasource.pruning import Wanted, begin_later, find_wanted
from consumerd.spark.datasource.reading import ReadTask, read_range, report_lost
from consumerd.spark.datasource.worker_logs import log_warnings
from consumerd.spark.datasource.worker_memory import spare_loaded_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from consumerd.spark.datasource.lookup import ClusterLookup


class RangePartition(InputPartition):
    """A Spark partition, of a batch as of a trigger: one range of offsets, or nothing to read for None."""

    def __init__(self, task: ReadTask | None) -> None:
        super().__init__(task)
        self.task = task


class BatchReader(DataSourceReader):
    """Reads what there is between two bounds at the moment of planning.

    Spark calls ``pushFilters`` only where ``spark.sql.python.filterPushdown.enabled`` is true, and refuses a reader that
    has it where it is false: ``register`` sets it.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep which partitions and offsets the filters leave out; returns all filters, which Spark evaluates itself."""
        self._wanted = find_wanted(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Plan. Raises ConfigError, NotFound, OffsetError, OffsetOutOfRange, ConnectionLost, CoordinationError."""
        from consumerd.spark.datasource.lookup import ClusterLookup  # executors do without

        log_warnings()
        options = self._options
        with ClusterLookup(options.cluster, read_committed=options.fetch.read_committed) as lookup:
            ranges = _plan(options, self._wanted, lookup)
            return list(make_partitions(ranges, options, bootstrap=lookup.bootstrap()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; see :func:`~consumerd.spark.datasource.reading.read_range`."""
        return read_partition(partition)


def make_partitions(ranges: Sequence[OffsetRange], options: ReadOptions, *, bootstrap: str) -> list[RangePartition]:
    """Return Spark partitions for ranges, divided as the options say; one of nothing where there are none.

    ``bootstrap`` are the addresses by which executors find the cluster.
    """
    divided = divide_ranges(
        ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    cluster = replace(options.cluster, bootstrap=bootstrap, zookeeper=None, zookeeper_auth=None)
    tasks = [
        ReadTask(
            range=one,
            cluster=cluster,
            fetch=options.fetch,
            fail_on_data_loss=options.fail_on_data_loss,
            include_headers=options.include_headers,
        )
        for one in divided
    ]
    return [RangePartition(task) for task in tasks] or [RangePartition(None)]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Spark partition of :func:`make_partitions`; runs on an executor. Raises as :func:`read_range`."""
    log_warnings()
    spare_loaded_modules()
    assert isinstance(partition, RangePartition)
    if partition.task is not None:
        yield from read_range(partition.task)


def _plan(options: ReadOptions, wanted: Wanted, lookup: ClusterLookup) -> list[OffsetRange]:
    """Find out what there is to read; what is missing of it is an error, or reported."""
    partitions = lookup.find_partitions(options.selection)
    starts = lookup.resolve_start(options, partitions)
    ranges = wanted.clip(plan_ranges(starts, lookup.resolve_end(options, partitions)))
    held = lookup.log_ranges([one.partition for one in ranges])
    if options.starting is Edge.EARLIEST:
        # whatever it is by now
        ranges = [replace(one, start=min(max(one.start, held[one.partition].earliest), one.end)) for one in ranges]
    kept, lost = fit_ranges(ranges, held, fail_on_data_loss=options.fail_on_data_loss)
    for one in lost:
        report_lost(one)
    if wanted.first_ms is None:
        return kept
    return begin_later(kept, lookup.first_offsets([one.partition for one in kept], wanted.first_ms))
