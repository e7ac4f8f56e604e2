# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md lists every series that there is, and no other; series behave as it says."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.telemetry.metrics import GaugeSpec, MetricsHooks, Reading, make_registry, write_metrics
from tests.support.metrics_page import PAGE, write_tables


def test_the_page_is_written_from_the_code() -> None:
    """An alert on a series that does not exist never fires."""
    page = PAGE.read_text()
    assert write_tables(page) == page, "run: make metrics"


def test_label_sets_go_when_the_partition_goes() -> None:
    """A process that has seen many partitions must not report them for ever."""
    registry = CollectorRegistry()
    hooks = MetricsHooks(registry)
    partition = TopicPartition.modern("orders", 3)
    hooks.batch_delivered(partition, records=5, size=10, position=5)
    hooks.fetch_error(partition, "NOT_LEADER")
    hooks.gap_recorded(partition, Gap(0, 4, GapReason.RETENTION), requested=False)
    labels = {"topic": "orders", "partition": "3"}
    before = registry.get_sample_value("consumerd_records_delivered_total", labels)
    gap = registry.get_sample_value("consumerd_gap_offsets_total", {**labels, "reason": "retention"})

    hooks.partition_released(partition)

    assert (before, gap) == (5.0, 4.0)
    assert registry.get_sample_value("consumerd_records_delivered_total", labels) is None
    assert registry.get_sample_value("consumerd_gap_offsets_total", {**labels, "reason": "retention"}) is None


def test_a_gap_that_an_operator_asked_for_has_a_reason_of_its_own() -> None:
    """`consumerd offsets set` past damage must not page as a policy's reset does."""
    registry = CollectorRegistry()
    hooks = MetricsHooks(registry)
    partition = TopicPartition.modern("orders", 3)
    hooks.gap_recorded(partition, Gap(0, 4, GapReason.RESET), requested=True)
    hooks.gap_recorded(partition, Gap(4, 5, GapReason.RESET), requested=False)

    labels = {"topic": "orders", "partition": "3"}
    counted = {
        reason: registry.get_sample_value("consumerd_gap_offsets_total", {**labels, "reason": reason})
        for reason in ("request", "reset")
    }
    assert counted == {"request": 4.0, "reset": 1.0}


def test_gauges_are_read_at_the_scrape() -> None:
    """A gauge cannot outlive what it measures."""
    registry = CollectorRegistry()
    lag = GaugeSpec("consumerd_lag_records", "Lag.", ("topic", "partition"))
    unknown = Reading(lag, float("nan"), ("orders", "3"))

    assert b'consumerd_lag_records{partition="3",topic="orders"} NaN' in write_metrics(registry, [unknown])
    assert write_metrics(registry, []) == b""


def test_a_scrape_tells_of_the_process() -> None:
    """Memory and descriptors are what a daemon runs out of."""
    scrape = write_metrics(make_registry(), []).decode()
    values = dict(line.split() for line in scrape.splitlines() if not line.startswith("#"))

    assert float(values["process_resident_memory_bytes"]) > 1e6
    assert 0 < float(values["process_open_fds"]) < float(values["process_max_fds"])
    assert {"process_cpu_seconds_total", "process_start_time_seconds"} <= values.keys()


def test_a_scrape_has_no_created_series() -> None:
    """They double the series of each counter and histogram, and say nothing of consumerd."""
    registry = make_registry()
    hooks = MetricsHooks(registry)
    hooks.batch_delivered(TopicPartition.modern("orders", 3), records=5, size=10, position=5)
    hooks.request_finished(None, "Fetch", 0.5)

    scrape = write_metrics(registry, []).decode()

    assert "consumerd_records_delivered_total{" in scrape
    assert 'consumerd_broker_request_seconds_count{api="Fetch"} 1.0' in scrape
    assert "_created" not in scrape


def test_the_landing_delay_goes_by_the_clock_that_is_passed_in() -> None:
    """A producer's clock ahead of ours gives no negative delay."""
    registry = make_registry()
    hooks = MetricsHooks(registry, wall=lambda: 100.0)
    hooks.batches_landed("lake", [40_000, 99_000, 160_000])

    value = registry.get_sample_value
    assert value("consumerd_landing_delay_seconds_sum", {"sink": "lake"}) == 61.0
    assert value("consumerd_landing_delay_seconds_bucket", {"sink": "lake", "le": "0.1"}) == 1.0
    assert value("consumerd_landing_delay_seconds_bucket", {"sink": "lake", "le": "1.0"}) == 2.0
