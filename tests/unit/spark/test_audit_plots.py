# SPDX-License-Identifier: Apache-2.0
"""Plots stay small and readable, however large the zone is."""

from __future__ import annotations

import re

import pytest

from consumerd.landing.ranges import RangeSet
from consumerd.landing.report import Arrival, LogReport
from consumerd.landing.values import LogId
from consumerd.model import GapReason, Incarnation, PartitionKey
from consumerd.spark.audit_plots import draw_arrival, draw_coverage, draw_delay, largest_topics

HOUR_MS = 3_600_000


def log(topic: str = "orders", *, arrivals: tuple[Arrival, ...] = (), holes: int = 0, end: int = 1000) -> LogReport:
    gaps = RangeSet.of((place * 2, place * 2 + 1) for place in range(holes))
    return LogReport(
        log=LogId(topic, PartitionKey(0), Incarnation(7)),
        start=0,
        end=end,
        landed=RangeSet.of([(0, end)]) - gaps,
        gaps={GapReason.COMPACTION: gaps} if gaps else {},
        records=sum(arrival.records for arrival in arrivals),
        arrivals=arrivals,
    )


def arrival(at_ms: int, delay_ms: int = 1000, records: int = 10) -> Arrival:
    return Arrival(landed_ms=at_ms, records=records, max_timestamp=at_ms - delay_ms)


def test_coverage_is_drawn_by_the_pixel() -> None:
    """A compacted log with a million gaps takes no more room than one with a thousand."""
    few, many = draw_coverage([log(holes=500)]), draw_coverage([log(holes=200_000, end=1_000_000)])

    assert len(many) < 2 * len(few) < 200_000


def test_what_is_small_can_be_seen() -> None:
    """One missing offset of a billion is a pixel wide."""
    report = LogReport(
        log=LogId("orders", PartitionKey(0), Incarnation(7)),
        start=0,
        end=10**9,
        landed=RangeSet.of([(0, 10**9 - 1)]),
        missing=RangeSet.of([(10**9 - 1, 10**9)]),
        committed=2 * 10**9,
    )

    drawn = draw_coverage([report])

    [width] = re.findall(r'class="missing" x="\d+" y="\d+" width="(\d+)"', drawn)
    assert 1 == int(width)
    assert 'class="mark"' in drawn


def test_arrival_of_very_many_files() -> None:
    """Files are drawn by the time in which they landed."""
    arrivals = tuple(arrival(second * 1000) for second in range(10_000))

    drawn = draw_arrival([log(arrivals=arrivals)], ["orders"])

    assert 96 >= drawn.count("<rect") > 80
    assert "records" in drawn


def test_nothing_to_draw() -> None:
    """By names alone no times are known."""
    assert "" == draw_arrival([log()], []) == draw_delay([log()])


def test_single_file() -> None:
    """A zone with one file has a plot, too."""
    [only] = [log(arrivals=(arrival(HOUR_MS),))]

    assert "<rect" in draw_arrival([only], ["orders"])
    assert "<circle" in draw_delay([only])


@pytest.mark.parametrize(
    ("delay_ms", "top"),
    [(0, "0.1 s"), (1500, "2 s"), (45_000, "1 min"), (130_000, "4 min"), (5 * HOUR_MS, "12 h"), (60 * HOUR_MS, "5 d")],
)
def test_delays_have_round_scales(delay_ms: int, top: str) -> None:
    """Seconds, minutes, hours and days, each round."""
    drawn = draw_delay([log(arrivals=(arrival(100 * HOUR_MS, delay_ms), arrival(101 * HOUR_MS, 0)))])

    assert f">{top}</text>" in drawn


def test_topics_beyond_the_colours_are_one() -> None:
    """Six colours can be told apart; what is left shares the last."""
    logs = [log(f"t{place}", arrivals=(arrival(0, records=place),)) for place in range(1, 9)]

    assert ["t8", "t7", "t6", "t5", "t4"] == largest_topics(logs)
    assert "others, 1970-01-01 00:00:00: 6 records" in draw_arrival(logs, largest_topics(logs))
    assert 3 == len(largest_topics(logs[:3]))
