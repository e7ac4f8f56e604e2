# SPDX-License-Identifier: Apache-2.0
"""The stream reader that Spark sees: one process of the driver asks it for offsets as long as a query runs.

What a checkpoint holds is what Spark's own Kafka source writes, ``{"topic": {"0": 5}}``, and where ZooKeeper is known
which making of a topic that is (``offsets``); ``triggers`` says what lies between two of them. A query's first trigger
has no rows: it notes where the query begins. (So the deprecated trigger ``once`` reads nothing the first time;
``availableNow`` reads all there is.)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from consumerd.errors import NotFound, OffsetError
from consumerd.model import LogRange, TopicPartition
from consumerd.spark.datasource.batch import make_partitions, read_partition
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.offsets import JsonOffsets, PartitionOffsets, read_checkpoint, to_json
from consumerd.spark.datasource.options import Assign, Edge, ReadOptions, Subscribe, SubscribePattern
from consumerd.spark.datasource.triggers import TriggerPlan, plan_trigger, ranges_between
from consumerd.spark.datasource.worker_logs import log_warnings

if TYPE_CHECKING:
    import pyarrow as pa

_LOOKS: Final = 3
"""How often a partition must be missing, one after the other, to be gone: a broker that has just started knows few of them. So
often must a log end below a position, too, for its end to be lost: a new leader hears moments late of what it may show."""
_LOOK_AGAIN_S: Final = 1.0

_MOST_DELAY_MS: Final = 15 * 60_000
"""For how long ``minOffsetsPerTrigger`` holds a trigger back, as in Spark's source."""


def connect_lookup(options: ReadOptions) -> ClusterLookup:
    """Make the lookup of a reader; it connects when it is entered."""
    return ClusterLookup(options.cluster, read_committed=options.fetch.read_committed)


class ConsumerdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. Connects with the first call that needs the cluster, and stays connected until :meth:`stop`.

    ``connect`` makes the lookup, ``now`` is a monotonic clock in seconds.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        connect: Callable[[ReadOptions], ClusterLookup] = connect_lookup,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._connect = connect
        self._now = now
        self._sleep = sleep
        self._lookup: ClusterLookup | None = None
        self._target: PartitionOffsets | None = None
        self._latest: PartitionOffsets | None = None
        self._last_taken: float | None = None

    # -- offsets

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's name
        """Return no offsets: the first trigger notes where the query begins."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much a trigger takes."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the ends of the logs: nothing behind them is read from now on."""
        self._target = _ends(self._look())

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802 - Spark's name
        """Return where the next trigger ends; ``start`` itself if there is nothing to do.

        Raises OffsetError for offsets that are lost (``failOnDataLoss``), NotFound, ConnectionLost and their kin.
        """
        position, known = read_checkpoint(start)
        if not position and not known:
            begun = self._begin()
            return to_json(begun, self._find_czxids(begun, {}))
        logs = self._look(position)
        self._latest = _ends(logs)
        czxids = self._find_czxids([*position, *logs], known)
        remade = {topic for topic, czxid in known.items() if czxids.get(topic, czxid) != czxid}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        plan = plan_trigger(position, logs, most=most, target=self._target, remade=remade)
        self._report(plan)
        if not remade and (not plan.end or self._waits_for_more(plan)):
            return start
        end = to_json(plan.end, czxids)
        if end == start:
            return start
        if plan.taken:
            self._last_taken = self._now()
        return end

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802 - Spark's name
        """Return the ends of the logs as they were last seen."""
        return None if self._latest is None else to_json(self._latest)

    # -- reading

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """Return the ranges between two offsets, divided as the options say."""
        ranges = ranges_between(read_checkpoint(start)[0], read_checkpoint(end)[0])
        if not ranges:
            return []
        return list(make_partitions(ranges, self._options, bootstrap=self._connected().bootstrap()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range on an executor; see :func:`~consumerd.spark.datasource.reading.read_range`."""
        return read_partition(partition)

    def stop(self) -> None:
        """Disconnect."""
        if self._lookup is not None:
            self._lookup.__exit__(None, None, None)
            self._lookup = None

    # -- the cluster

    def _connected(self) -> ClusterLookup:
        if self._lookup is None:
            log_warnings()
            self._lookup = self._connect(self._options).__enter__()
        return self._lookup

    def _begin(self) -> PartitionOffsets:
        """Return where the query begins; nothing as long as there is no partition."""
        lookup, options = self._connected(), self._options
        partitions = lookup.find_partitions(options.selection)
        starts = lookup.resolve_start(options, partitions)
        if options.fail_on_data_loss and not isinstance(options.starting, Edge):
            # while nothing is in the checkpoint: from then on no other startingOffsets would count
            self._report(plan_trigger(starts, lookup.log_ranges(partitions)))
        return starts

    def _find_czxids(self, partitions: Iterable[TopicPartition], known: Mapping[str, int]) -> Mapping[str, int]:
        """Return which makings of the topics these are: as ZooKeeper says, else as it was known."""
        topics = sorted({one.topic for one in partitions} | known.keys())
        return {**known, **self._connected().czxids(topics)}

    def _look(self, known: PartitionOffsets | None = None) -> Mapping[TopicPartition, LogRange]:
        """Return the logs of what is selected. What is ``known`` is lost only if it is not there several times."""
        lookup = self._connected()
        looks = 1
        while True:
            last = known is None or looks == _LOOKS
            try:
                logs = lookup.log_ranges(sorted(self._find(lookup, strict=self._options.fail_on_data_loss)))
            except NotFound:
                if last:
                    raise
            else:
                if last or known is None or _reach(logs, known):
                    return logs
            looks += 1
            self._sleep(_LOOK_AGAIN_S)

    def _find(self, lookup: ClusterLookup, *, strict: bool) -> Iterator[TopicPartition]:
        """Find what is selected. Unless it is ``strict`` topics and partitions that are not there any more are left out."""
        selection = self._options.selection
        if strict or isinstance(selection, SubscribePattern):
            yield from lookup.find_partitions(selection)
            return
        assigned = set(selection.partitions) if isinstance(selection, Assign) else None
        topics = selection.topics if isinstance(selection, Subscribe) else sorted({one.topic for one in assigned or ()})
        for topic in topics:
            with contextlib.suppress(NotFound):
                found = lookup.find_partitions(Subscribe((topic,)))
                yield from (one for one in found if assigned is None or one in assigned)

    # -- what is lost, and what is too little

    def _report(self, plan: TriggerPlan) -> None:
        """Refuse losses, or log them. Raises OffsetError."""
        if plan.losses and self._options.fail_on_data_loss:
            more = f" (and {len(plan.losses) - 1} more)" if len(plan.losses) > 1 else ""
            raise OffsetError(
                f"{plan.losses[0]}{more}. To go on without these records set the option failOnDataLoss to false"
            ) from plan.losses[0]
        log = structlog.get_logger(__name__)
        for loss in plan.losses:
            log.warning("records_lost", reason=str(loss))

    def _waits_for_more(self, plan: TriggerPlan) -> bool:
        """Whether there is less than ``minOffsetsPerTrigger``, and the last trigger is not long ago."""
        least = self._options.min_offsets_per_trigger
        if least is None or plan.available >= least or not plan.available or self._target is not None:
            return False
        most_delay_ms = self._options.max_trigger_delay_ms
        delay_s = (_MOST_DELAY_MS if most_delay_ms is None else most_delay_ms) / 1000
        return self._last_taken is not None and self._now() - self._last_taken < delay_s


def _reach(logs: Mapping[TopicPartition, LogRange], known: PartitionOffsets) -> bool:
    """Whether the logs are there, and end nowhere below what has been read of them."""
    return all(one in logs and position <= logs[one].latest for one, position in known.items())


def _ends(logs: Mapping[TopicPartition, LogRange]) -> dict[TopicPartition, int]:
    return {partition: log.latest for partition, log in logs.items()}
