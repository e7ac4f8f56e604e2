# SPDX-License-Identifier: Apache-2.0
"""Delivery as the status shows it: partitions, sinks, and the partitions in trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from consumerd.client.record_age import lag_seconds
from consumerd.daemon.status import PartitionReport, RecentEvents, SinkStatus
from consumerd.delivery.status import DeliveryState
from consumerd.delivery.status import PartitionStatus as DeliveryStatus
from consumerd.fetch.buffer import MemoryBudget
from consumerd.telemetry.wording import join_shown

PROBLEM_AFTER_S: Final = 30.0
"""How long a partition may be failing before it counts as a problem, in seconds: retries often succeed earlier."""
_NAMED: Final = 8
"""Partitions that a reason names; there may be thousands."""


def describe_partition(one: DeliveryStatus, recent: RecentEvents, *, now_ms: float) -> PartitionReport:
    """Return one partition's status; ``now_ms`` is the calendar's time, which the age of records is counted by."""
    return PartitionReport(
        topic=one.partition.topic,
        partition=str(one.partition.partition),
        sink=one.sink,
        state=one.state.value,
        reason=one.reason,
        since=recent.describe_time(one.since),
        position=one.position,
        acknowledged=one.acknowledged,
        committed=one.committed,
        high_watermark=one.high_watermark,
        lag=one.lag,
        lag_seconds=lag_seconds(lag=one.lag, oldest_ms=one.oldest_ms, now_ms=now_ms),
        records_per_second=recent.rate(one.partition),
        last_progress=recent.last_progress(one.partition),
        last_commit=recent.last_commit(one.partition),
    )


def describe_sinks(
    budgets: Mapping[str, MemoryBudget],
    held_up: Collection[str],
    partitions: Iterable[PartitionReport],
    recent: RecentEvents,
) -> tuple[SinkStatus, ...]:
    """Return each of the sinks that have a memory account, with what its partitions here have not landed."""
    counts: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for one in partitions:
        counts[one.sink] += 1
        if one.position is not None and one.acknowledged is not None:
            waiting[one.sink] += one.position - one.acknowledged
    return tuple(
        recent.describe_sink(
            name,
            partitions=counts[name],
            unacknowledged=waiting[name],
            buffered_bytes=budget.held_bytes,
            memory_budget_bytes=budget.limit_bytes,
            held_up=name in held_up,
        )
        for name, budget in sorted(budgets.items())
    )


def explain_problems(partitions: Iterable[PartitionReport]) -> Iterator[str]:
    """Yield the partitions that are stopped or failing, with the reason; those that fail for one reason share a line."""
    failing: dict[str, list[PartitionReport]] = {}
    for one in partitions:
        if one.state == DeliveryState.STOPPED:
            yield f"{one.topic}/{one.partition} is stopped: {one.reason}"
        elif one.state == DeliveryState.FAILING and one.since.ago_s >= PROBLEM_AFTER_S:
            failing.setdefault(one.reason or "", []).append(one)
    for reason, some in failing.items():
        names = join_shown((f"{one.topic}/{one.partition}" for one in some), _NAMED)
        longest_s = max(one.since.ago_s for one in some)
        yield f"{names} failing for {longest_s:.0f} s: {reason}"
