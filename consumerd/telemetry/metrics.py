# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics, fed by the hooks, in a registry of the process's own.

The registry is created here and passed on; the library's global one is not used. Hooks increment counters and
histograms. Gauges are not stored: each scrape reads them from a status snapshot, so none can outlive its partition
(``daemon.readings``). ``docs/metrics.md`` lists every series; ``make metrics`` writes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from consumerd.model import BrokerId, Gap, SessionEpoch, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble, find_landing_delay

_PARTITION: Final = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class GaugeSpec:
    """A Prometheus gauge: its name, help text and label names."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of one gauge at the time of a scrape; NaN if unknown.

    ``labels`` has the values of the gauge's labels, in order.
    """

    gauge: GaugeSpec
    value: float
    labels: tuple[str, ...] = ()


class _Readings(Collector):
    """Converts readings into gauges, for one scrape."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return every gauge that has readings."""
        families: dict[str, GaugeMetricFamily] = {}
        for reading in self._readings:
            gauge = reading.gauge
            family = families.get(gauge.name)
            if family is None:
                family = families[gauge.name] = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            family.add_metric(reading.labels, reading.value)
        return families.values()


class _WithoutCreated(Collector):
    """The families of a registry without their ``_created`` samples, for one scrape.

    The library adds the creation time of each counter and histogram, which doubles the number of series. Its own switch
    is a global variable, so the samples are left out here instead.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the registry's metric families, without the samples of creation times."""
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


def make_registry() -> CollectorRegistry:
    """Return a new registry with the ``process_*`` series: memory, CPU, descriptors, start time."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def write_metrics(registry: CollectorRegistry, readings: Iterable[Reading]) -> bytes:
    """Return the text of a Prometheus scrape: the registry's series and these gauges.

    May be called in a thread while the event loop counts events.
    """
    scrape = CollectorRegistry(auto_describe=False)
    scrape.register(_WithoutCreated(registry))
    scrape.register(_Readings(readings))
    return generate_latest(scrape)


_REQUESTED: Final = "request"
"""Label of a gap that an operator asked for, as in ``consumerd_position_resets_total``."""
_UNKNOWN: Final = "UNKNOWN"
_UNKNOWN_CODE: Final = re.compile(r"UNKNOWN_-?[0-9]+")
"""Name of an error code that is missing in the table of codes."""


def _by_partition(partition: TopicPartition) -> tuple[str, str]:
    return partition.topic, str(partition.partition)


class MetricsHooks(Hooks):
    """Hooks that count the reported events in Prometheus metrics.

    Args:
        wall: Returns calendar time in seconds since the epoch. It is compared with the timestamps of records, for their
            delay.
    """

    def __init__(self, registry: CollectorRegistry, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._delivered = Counter(
            "consumerd_records_delivered_total",
            "Records taken by the sink; again, where a failure had them fetched again.",
            _PARTITION,
            registry=registry,
        )
        self._delivered_bytes = Counter(
            "consumerd_delivered_bytes_total", "Bytes of the batches taken by the sink.", _PARTITION, registry=registry
        )
        self._fetched = Counter("consumerd_records_fetched_total", "Records decoded.", _PARTITION, registry=registry)
        self._gaps = Counter(
            "consumerd_gap_offsets_total",
            "Offsets passed over that hold no delivered record, by reason; request: an operator asked for it.",
            (*_PARTITION, "reason"),
            registry=registry,
        )
        self._units = Counter(
            "consumerd_units_passed_total",
            "Messages, batches or records that a policy passed over, by cause and by what became of them.",
            (*_PARTITION, "cause", "action"),
            registry=registry,
        )
        self._resets = Counter(
            "consumerd_position_resets_total",
            "Positions moved: by a policy since the broker did not hold them, by an operator's request, "
            "or since the topic was made again.",
            (*_PARTITION, "reason"),
            registry=registry,
        )
        self._behind = Counter(
            "consumerd_committed_behind_total",
            "Claims that found the committed position below what has landed.",
            registry=registry,
        )
        self._fetch_errors = Counter(
            "consumerd_fetch_errors_total",
            "Partition errors of fetches; `UNKNOWN` for codes without a name.",
            (*_PARTITION, "error"),
            registry=registry,
        )
        self._sink_errors = Counter(
            "consumerd_sink_errors_total",
            "Writes or flushes that a sink refused.",
            ("sink", "retriable"),
            registry=registry,
        )
        self._files = Counter(
            "consumerd_files_published_total", "Files linked to their final name.", ("sink",), registry=registry
        )
        self._file_bytes = Counter(
            "consumerd_published_bytes_total", "Bytes of those files.", ("sink",), registry=registry
        )
        self._landing_delay = Histogram(
            "consumerd_landing_delay_seconds",
            "Time from a record's timestamp to its acknowledgement by the sink; of the first record of each batch.",
            ("sink",),
            buckets=(0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 900, 3600, 21600, 86400),
            registry=registry,
        )
        self._relieved = Counter(
            "consumerd_sink_relieved_total",
            "Row groups written, files ended and requests sent early for want of memory.",
            ("sink", "action"),
            registry=registry,
        )
        self._sink_requests = Histogram(
            "consumerd_sink_request_seconds",
            "Time from a request of the sink http to the end of its response, by the class of its status code; none: "
            "no response, abandoned: cancelled.",
            ("sink", "result"),
            buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self._sink_retries = Counter(
            "consumerd_sink_request_retries_total",
            "Requests of the sink http with records that were sent before.",
            ("sink",),
            registry=registry,
        )
        self._transactions = Histogram(
            "consumerd_mirror_transaction_seconds",
            "Time from the first record of a transaction of the sink kafka to its end, by result: committed or "
            "aborted.",
            ("sink", "result"),
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self._fenced = Counter(
            "consumerd_mirror_fenced_total",
            "Times that another daemon took over the transactional id of a partition that was claimed here.",
            _PARTITION,
            registry=registry,
        )
        self._commits = Counter("consumerd_commits_total", "Positions written to the offset store.", registry=registry)
        self._commit_failures = Counter(
            "consumerd_commit_failures_total", "Commits that were not written and are tried again.", registry=registry
        )
        self._foreign = Counter(
            "consumerd_foreign_commits_total",
            "Positions that somebody else wrote for a partition owned here.",
            registry=registry,
        )
        self._rebalances = Counter(
            "consumerd_rebalances_total", "Rebalance passes, by cause.", ("cause",), registry=registry
        )
        self._rebalance_seconds = Histogram(
            "consumerd_rebalance_seconds",
            "Duration of a rebalance pass, by phase (and the whole as phase total).",
            ("phase",),
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 60),
            registry=registry,
        )
        self._conflicts = Counter(
            "consumerd_claim_conflicts_total", "Claims that found another owner.", ("topic",), registry=registry
        )
        self._lost = Counter("consumerd_ownership_lost_total", "Claims that ended against our wish.", registry=registry)
        self._phases = Counter(
            "consumerd_session_phase_total",
            "Entries into a phase of the lease: of the ZooKeeper session, and of a group that brokers coordinate.",
            ("phase",),
            registry=registry,
        )
        self._requests = Histogram(
            "consumerd_broker_request_seconds",
            "Time from sending a request to its answer.",
            ("api",),
            buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30),
            registry=registry,
        )
        self._request_failures = Counter(
            "consumerd_broker_request_failures_total",
            "Requests that ended without an answer.",
            ("api", "error"),
            registry=registry,
        )
        self._throttled = Counter(
            "consumerd_throttled_seconds_total", "Time for which brokers asked us to wait.", registry=registry
        )
        self._metadata = Counter(
            "consumerd_metadata_refreshes_total",
            "Reads of the cluster's view.",
            ("source", "result"),
            registry=registry,
        )
        self._troubles = Counter(
            "consumerd_troubles_total",
            "Warnings and errors that no other series counts, by the name of their log event.",
            ("kind",),
            registry=registry,
        )
        self._labelled: Final = (self._fetched, self._delivered, self._delivered_bytes)
        # cached, since a look-up takes as long as an increment
        self._by_batch: dict[TopicPartition, tuple[Counter, Counter, Counter]] = {}
        self._by_api: dict[str, Histogram] = {}
        self._by_sink: dict[str, Histogram] = {}
        self._seen_extra: dict[tuple[str, str], set[tuple[MetricWrapperBase, tuple[str, ...]]]] = {}

    def _count_batches(self, partition: TopicPartition) -> tuple[Counter, Counter, Counter]:
        """Return the partition's counters of fetched records, delivered records and bytes."""
        found = self._by_batch.get(partition)
        if found is None:
            fetched, delivered, delivered_bytes = self._labelled
            key = _by_partition(partition)
            found = fetched.labels(*key), delivered.labels(*key), delivered_bytes.labels(*key)
            self._by_batch[partition] = found
        return found

    def _count_extra(self, counter: Counter, partition: TopicPartition, *labels: str, amount: float = 1) -> None:
        key = _by_partition(partition)
        counter.labels(*key, *labels).inc(amount)
        self._seen_extra.setdefault(key, set()).add((counter, labels))

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        self._troubles.labels(kind.value).inc()

    def session_changed(self, epoch: SessionEpoch, phase: str) -> None:
        self._phases.labels(phase).inc()

    def group_lease_changed(self, generation: int, phase: str) -> None:
        self._phases.labels(phase).inc()

    def rebalance_finished(
        self, *, cause: str, seconds: float, phases: dict[str, float], gained: int, lost: int
    ) -> None:
        self._rebalances.labels(cause).inc()
        self._rebalance_seconds.labels("total").observe(seconds)
        for phase, duration in phases.items():
            self._rebalance_seconds.labels(phase).observe(duration)

    def claim_conflicted(self, partition: TopicPartition, holder: str) -> None:
        self._conflicts.labels(partition.topic).inc()

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        self._lost.inc()

    def request_finished(self, broker: BrokerId | None, api: str, seconds: float) -> None:
        histogram = self._by_api.get(api)
        if histogram is None:
            histogram = self._by_api[api] = self._requests.labels(api)
        histogram.observe(seconds)

    def request_failed(self, broker: BrokerId | None, api: str, error: str) -> None:
        self._request_failures.labels(api, error).inc()

    def broker_throttled(self, broker: BrokerId | None, seconds: float) -> None:
        self._throttled.inc(seconds)

    def metadata_refreshed(self, source: str, *, failed: bool) -> None:
        self._metadata.labels(source, "failed" if failed else "ok").inc()

    def batch_fetched(self, partition: TopicPartition, *, records: int, size: int, high_watermark: int | None) -> None:
        fetched, _, _ = self._count_batches(partition)
        fetched.inc(records)

    def fetch_error(self, partition: TopicPartition, error: str) -> None:
        # a broker may return any of 65,536 codes; those without a name share one series
        known = _UNKNOWN_CODE.fullmatch(error) is None
        self._count_extra(self._fetch_errors, partition, error if known else _UNKNOWN)

    def batch_delivered(self, partition: TopicPartition, *, records: int, size: int, position: int) -> None:
        _, delivered, delivered_bytes = self._count_batches(partition)
        delivered.inc(records)
        delivered_bytes.inc(size)

    def batches_landed(self, sink: str, timestamps_ms: Sequence[int]) -> None:
        histogram = self._by_sink.get(sink)
        if histogram is None:
            histogram = self._by_sink[sink] = self._landing_delay.labels(sink)
        now = self._wall()
        for timestamp_ms in timestamps_ms:
            histogram.observe(find_landing_delay(timestamp_ms, now))

    def gap_recorded(self, partition: TopicPartition, gap: Gap, *, requested: bool) -> None:
        # an operator's own act must not page as a policy's reset does
        reason = _REQUESTED if requested else gap.reason.value
        self._count_extra(self._gaps, partition, reason, amount=gap.end - gap.start)

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        self._count_extra(self._units, partition, cause, "quarantined" if kept else "skipped")

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        self._count_extra(self._resets, partition, reason)

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        self._behind.inc()

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        self._sink_errors.labels(sink, str(retriable).lower()).inc()

    def file_published(self, sink: str, *, name: str, records: int, size: int) -> None:
        self._files.labels(sink).inc()
        self._file_bytes.labels(sink).inc(size)

    def sink_relieved(self, sink: str, action: str) -> None:
        self._relieved.labels(sink, action).inc()

    def sink_request_finished(self, sink: str, *, result: str, seconds: float, is_retry: bool) -> None:
        self._sink_requests.labels(sink, result).observe(seconds)
        if is_retry:
            self._sink_retries.labels(sink).inc()

    def mirror_transaction_finished(self, sink: str, *, committed: bool, seconds: float) -> None:
        self._transactions.labels(sink, "committed" if committed else "aborted").observe(seconds)

    def mirror_fenced(self, partition: TopicPartition) -> None:
        self._count_extra(self._fenced, partition)

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        self._commits.inc()

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        self._commit_failures.inc()

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        self._foreign.inc()

    def partition_released(self, partition: TopicPartition) -> None:
        """Drop the partition's label sets, so that they do not accumulate."""
        key = _by_partition(partition)
        if self._by_batch.pop(partition, None) is not None:
            for counter in self._labelled:
                counter.remove(*key)
        for metric, labels in self._seen_extra.pop(key, ()):
            metric.remove(*key, *labels)
