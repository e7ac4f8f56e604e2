# SPDX-License-Identifier: Apache-2.0
"""The stream reader that Spark calls on the driver while a query runs.

Spark asks for the end of each trigger (:meth:`ConsumerdStreamReader.latestOffset`), writes it into its checkpoint, and
asks for the ranges between two ends. ``offsets`` describes what a checkpoint holds, and ``triggers`` which offsets lie
between two ends. A query's first trigger has no rows: it only fixes where the query begins. So Spark's deprecated
trigger ``once`` reads nothing the first time; ``availableNow`` reads everything.

Example: a query starts at the earliest offsets of ``orders``, with ``maxOffsetsPerTrigger`` 100. Partition 0 holds
offsets 20 to 299.

1. The checkpoint is empty. The first trigger ends at ``{"orders": {"0": 20}}`` and has no rows.
2. The second ends at ``{"orders": {"0": 120}}``: rows 20 to 119.
3. The driver dies. A new one finds 120 in the checkpoint, and its first trigger ends at 220.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from consumerd.errors import NotFound, OffsetError
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.spark.datasource.batch import make_partitions, read_partition
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.offsets import JsonOffsets, PartitionOffsets, read_checkpoint, to_json
from consumerd.spark.datasource.options import Assign, Edge, ReadOptions, Subscribe, SubscribePattern
from consumerd.spark.datasource.triggers import TriggerPlan, plan_trigger, ranges_between
from consumerd.spark.datasource.worker import log_warnings

if TYPE_CHECKING:
    import pyarrow as pa

_LOOKS: Final = 3
"""Number of consecutive reads of the log ranges that must agree before records count as lost.

A partition may be missing in metadata because the broker that answers has just started. A log may end below our
position because a new leader learns its high watermark a moment late.
"""
_LOOK_AGAIN_S: Final = 1.0
"""Pause between two of these reads, in seconds."""

_MOST_DELAY_MS: Final = 15 * 60_000
"""Longest time that ``minOffsetsPerTrigger`` delays a trigger by default, in ms; as in Spark's source."""


def connect_lookup(options: ReadOptions) -> ClusterLookup:
    """Return the client that looks up partitions and offsets; its ``with`` block connects."""
    return ClusterLookup(options.cluster, read_committed=options.fetch.read_committed)


class ConsumerdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of the format ``consumerd``, used by Spark's driver.

    It connects at the first call that needs the cluster, and stays connected until :meth:`stop`.

    Args:
        connect: returns the client that looks up partitions and offsets.
        now: monotonic clock, in seconds.
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
        self._away: frozenset[TopicPartition] = frozenset()

    # -- offsets

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's name
        """Return an empty mapping of offsets: the first trigger fixes where the query begins."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of offsets per trigger that the options set."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the present ends of the logs, at which the query stops."""
        self._target = _ends(self._look())

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802 - Spark's name
        """Return the offsets at which the next trigger ends.

        They are ``start`` if there is nothing to read. Raises OffsetError for lost records and NotFound for a broker of
        Kafka 0.6 or 0.7 that is away (``failOnDataLoss``); NotFound, ConnectionLost, CoordinationError.
        """
        position, known = read_checkpoint(start)
        if not position and not known:
            begun = self._begin()
            return to_json(begun, self._find_incarnations(begun, {}))
        logs = self._look(position)
        self._latest = _ends(logs)
        found = self._find_incarnations([*position, *logs], known)
        remade = {topic for topic, made in known.items() if self._is_recreated(topic, made, found[topic])}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        plan = plan_trigger(position, logs, most=most, target=self._target, remade=remade)
        self._report_away(plan.away)
        self._report(plan)
        if not remade and (not plan.end or self._waits_for_more(plan)):
            return start
        cuts = [(one, plan.end[one.partition]) for one in plan.cuts]
        moved = self._connected().find_ends(cuts) if cuts else {}
        end = to_json({**plan.end, **moved}, found)
        if end == start:
            return start
        if plan.taken:
            self._last_taken = self._now()
        return end

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802 - Spark's name
        """Return the log end offsets that were seen last; None before the first."""
        return None if self._latest is None else to_json(self._latest)

    # -- reading

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """Return the ranges of offsets between the ends of two triggers, as Spark partitions.

        Ranges are divided among tasks as ``minPartitions`` and ``maxRecordsPerPartition`` say.
        """
        ranges = ranges_between(read_checkpoint(start)[0], read_checkpoint(end)[0])
        if not ranges:
            return []
        return list(make_partitions(ranges, self._options, self._connected()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range of offsets; runs on an executor.

        Raises OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge, CorruptMessageError, RequestTimedOut.
        """
        return read_partition(partition)

    def stop(self) -> None:
        """Close the connections to the cluster."""
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
        """Return the offsets at which the query begins, empty if there is no partition yet."""
        lookup, options = self._connected(), self._options
        partitions = lookup.find_partitions(options.selection)
        starts = lookup.resolve_start(options, partitions)
        if options.fail_on_data_loss and not isinstance(options.starting, Edge):
            # before anything is in the checkpoint: afterwards the user could not change startingOffsets any more
            self._report(plan_trigger(starts, lookup.log_ranges(partitions)))
        return starts

    def _find_incarnations(self, partitions: Iterable[TopicPartition], known: Mapping[str, str]) -> Mapping[str, str]:
        """Return each topic's incarnation now, else the known one."""
        topics = sorted({one.topic for one in partitions} | known.keys())
        return {**known, **self._connected().find_incarnations(topics)}

    def _is_recreated(self, topic: str, known: str, found: str) -> bool:
        made = (Incarnation.parse_topic(text) for text in (known, found))
        return self._connected().identities.is_recreated(topic, *made)

    def _look(self, known: PartitionOffsets | None = None) -> Mapping[TopicPartition, LogRange]:
        """Return the log ranges of the selected partitions.

        Looks up to ``_LOOKS`` times, until the logs reach the offsets in ``known``.
        """
        lookup = self._connected()
        looks = 1
        # a partition of Kafka 0.6 or 0.7 that is missing is away with its broker, and not lost
        strict = self._options.fail_on_data_loss and not any(one.is_legacy for one in known or ())
        expected = {one: offset for one, offset in (known or {}).items() if one not in self._away}
        while True:
            last = known is None or looks == _LOOKS
            try:
                logs = lookup.log_ranges(sorted(self._find(lookup, strict=strict)))
            except NotFound:
                if last:
                    raise
            else:
                if last or _reach(logs, expected):
                    return logs
            looks += 1
            self._sleep(_LOOK_AGAIN_S)

    def _find(self, lookup: ClusterLookup, *, strict: bool) -> Iterator[TopicPartition]:
        """Yield the selected partitions.

        If not ``strict``, topics and partitions that do not exist any more are left out. Raises NotFound otherwise.
        """
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

    # -- losses, and the least size of a trigger

    def _report(self, plan: TriggerPlan) -> None:
        """Log a plan's losses. Raises OffsetError instead with ``failOnDataLoss``."""
        if plan.losses and self._options.fail_on_data_loss:
            more = f" (and {len(plan.losses) - 1} more)" if len(plan.losses) > 1 else ""
            raise OffsetError(
                f"{plan.losses[0]}{more}. To go on without these records set the option failOnDataLoss to false"
            ) from plan.losses[0]
        log = structlog.get_logger(__name__)
        for loss in plan.losses:
            log.warning("records_lost", reason=str(loss))

    def _report_away(self, away: Collection[TopicPartition]) -> None:
        """Log partitions whose brokers are away. Raises NotFound instead with ``failOnDataLoss``."""
        if away and self._options.fail_on_data_loss:
            more = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
            first, reason = next(iter(self._connected().explain_away(away).items()))
            raise NotFound(
                f"{first}: {reason}{more}. Start the query again then; to read the other partitions meanwhile, set the "
                "option failOnDataLoss to false"
            )
        log = structlog.get_logger(__name__)
        for one in sorted(self._away.symmetric_difference(away)):
            # the partition stays at its offset, and is read from there when the broker is back
            event = "broker_away" if one in away else "broker_back"
            log.warning(event, topic=one.topic, partition=str(one.partition), broker=one.partition.broker)
        self._away = frozenset(away)

    def _waits_for_more(self, plan: TriggerPlan) -> bool:
        """Return True if the trigger is to wait for ``minOffsetsPerTrigger`` offsets."""
        least = self._options.min_offsets_per_trigger
        if least is None or plan.available >= least or not plan.available or self._target is not None:
            return False
        most_delay_ms = self._options.max_trigger_delay_ms
        delay_s = (_MOST_DELAY_MS if most_delay_ms is None else most_delay_ms) / 1000
        return self._last_taken is not None and self._now() - self._last_taken < delay_s


def _reach(logs: Mapping[TopicPartition, LogRange], known: PartitionOffsets) -> bool:
    """Return True if each log exists and ends at or above the offset already read."""
    return all(one in logs and position <= logs[one].latest for one, position in known.items())


def _ends(logs: Mapping[TopicPartition, LogRange]) -> dict[TopicPartition, int]:
    return {partition: log.latest for partition, log in logs.items()}
