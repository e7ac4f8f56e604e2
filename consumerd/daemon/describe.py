# SPDX-License-Identifier: Apache-2.0
"""Functions that make parts of the daemon's status: partitions, sinks and problems.

A problem is a line of text for operators about partitions that are stopped or failing.
"""

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
"""Time, in seconds, after which a partition whose delivery fails is shown as a problem.

Retries often succeed earlier.
"""
_NAMED: Final = 8
"""Limit of partitions that a problem names; there may be thousands."""


def describe_partition(one: DeliveryStatus, recent: RecentEvents, *, now_ms: float) -> PartitionReport:
    """Return the report about one partition that this process delivers.

    Args:
        one: the partition's status as delivery knows it.
        recent: source of the partition's rate, and of the times of its last progress and commit.
        now_ms: the wall clock, in ms since the Unix epoch; the age of the oldest record is computed from it.
    """
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
        mirrored=recent.find_mirrored(one.partition),
    )


def describe_sinks(
    budgets: Mapping[str, MemoryBudget],
    held_up: Collection[str],
    partitions: Iterable[PartitionReport],
    recent: RecentEvents,
) -> tuple[SinkStatus, ...]:
    """Return the status of each sink of this process, sorted by name.

    Args:
        budgets: the memory accounts of the sinks, by name.
        held_up: names of sinks because of which fetching waits for memory.
        partitions: reports about all partitions that this member owns.
        recent: source of the files that each sink has published.
    """
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
    """Yield lines for operators about stopped and failing partitions.

    There is one line per stopped partition, and one per reason for all partitions that have been failing for some time
    (``PROBLEM_AFTER_S``) for that reason.
    """
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
