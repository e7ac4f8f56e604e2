# SPDX-License-Identifier: Apache-2.0
"""Draws an audit's plots as inline SVG; the page's style sheet has the colours. Pure.

The size of a plot does not grow with the landing zone: coverage is drawn per pixel, arrival in ``_BUCKETS`` intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from consumerd.landing.ranges import RangeSet, union
from consumerd.landing.report import Arrival, LogReport
from consumerd.model import GapReason

WIDTH: Final = 1000
LOGS_DRAWN: Final = 300
"""Largest number of partitions that get a bar in the coverage plot."""
LOST: Final = frozenset(
    {GapReason.RETENTION, GapReason.CORRUPT, GapReason.SKIPPED, GapReason.RESET, GapReason.MISSING_FILE}
)
"""Reasons of recorded gaps whose records were lost.

Other gaps had no records, or another consumer has them.
"""

_LABEL: Final = 210
_RIGHT: Final = 100
_BAR: Final = WIDTH - _LABEL - _RIGHT
_ROW: Final = 24
_BUCKETS: Final = 96
_COLOURS: Final = 6
_LEFT: Final = 60
_HEIGHT: Final = 190
_BOTTOM: Final = 24
_LONGEST_NAME: Final = 30
_SCALES_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14_400, 43_200, 86_400)
"""End values of the delay axis, in seconds.

Half of each is a round time too, for the label in the middle.
"""


def draw_coverage(logs: Sequence[LogReport]) -> str:
    """Return an SVG with one bar per partition: landed, skipped, missing and repeated offsets.

    A line in the bar marks the committed position.
    """
    height = _ROW * len(logs) + 4
    rows = "".join("".join(_coverage_row(log, place * _ROW + 4)) for place, log in enumerate(logs))
    return _svg(height, rows, "offsets by partition")


def _coverage_row(log: LogReport, top: int) -> Iterator[str]:
    name = str(log.log)
    shown = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    yield f"<g><title>{escape(_describe(log))}</title>"
    yield f'<text class="name" x="0" y="{top + 13}">{escape(shown)}</text>'
    yield f'<rect class="bed" x="{_LABEL}" y="{top}" width="{_BAR}" height="17" rx="2"/>'
    span = max(1, log.end - log.start)

    def place(offset: int) -> float:
        return (offset - log.start) / span * _BAR

    quiet = union(ranges for reason, ranges in log.gaps.items() if reason not in LOST)
    lost = union(ranges for reason, ranges in log.gaps.items() if reason in LOST)
    for style, ranges, y, size in (
        ("landed", log.landed, 0, 17),
        ("quiet", quiet, 0, 17),
        ("lost", lost, 0, 17),
        ("missing", log.missing | log.jumped, 0, 17),
        ("again", log.repeated, 12, 5),
    ):
        pixels = _to_pixels(ranges, log.start, span)
        for left, right in pixels:
            yield f'<rect class="{style}" x="{_LABEL + left}" y="{top + y}" width="{right - left}" height="{size}"/>'
    if log.committed is not None:
        at = _LABEL + min(max(place(log.committed), 0), _BAR)
        yield f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 2}" y2="{top + 19}"/>'
    yield f'<text x="{_LABEL + _BAR + 8}" y="{top + 13}">{log.end:,}</text></g>'


def _describe(log: LogReport) -> str:
    parts = [f"{log.log}: {log.start:,} to {log.end:,}", f"{log.landed.size:,} landed"]
    parts += [f"{ranges.size:,} {reason}" for reason, ranges in sorted(log.gaps.items())]
    if log.missing or log.jumped:
        parts.append(f"{log.missing.size + log.jumped.size:,} missing")
    if log.repeated:
        parts.append(f"{log.repeated.size:,} in several chains")
    if log.committed is not None:
        parts.append(f"committed {log.committed:,}")
    return ", ".join(parts)


def _to_pixels(ranges: RangeSet, start: int, span: int) -> Iterator[tuple[int, int]]:
    """Yield pixel ranges ``[left, right)`` that hold any of the offsets, merged.

    A range is at least one pixel wide, so that a single missing offset is visible.
    """
    pixels = ((int((low - start) * _BAR / span), math.ceil((high - start) * _BAR / span)) for low, high in ranges)
    for left, right in RangeSet.of((left, max(left + 1, right)) for left, right in pixels):
        yield left, min(right, _BAR)


def draw_arrival(logs: Sequence[LogReport], topics: Sequence[str]) -> str:
    """Return an SVG plot of the records landed over time, by topic.

    Args:
        topics: topics with a colour of their own; all other topics share one colour.
    """
    landed = [(log.log.topic, arrival) for log in logs for arrival in log.arrivals]
    if not landed:
        return ""
    first, step = _bucket([arrival for _, arrival in landed])
    counts: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for topic, arrival in landed:
        colour = topics.index(topic) if topic in topics else _COLOURS - 1
        counts[(arrival.landed_ms - first) // step][colour] += arrival.records
    top = max(sum(by_colour.values()) for by_colour in counts.values())
    scale = _nice(top)
    bars = []
    for bucket, by_colour in sorted(counts.items()):
        base = 0
        for colour, count in sorted(by_colour.items()):
            y0, y1 = _y(base + count, scale), _y(base, scale)
            x0, x1 = _x(bucket), _x(bucket + 1)
            when = _clock(first + bucket * step)
            name = topics[colour] if colour < len(topics) else "others"
            bars.append(
                f'<rect class="t{colour}" x="{x0:.1f}" y="{y0:.1f}" '
                f'width="{max(1, x1 - x0 - 1):.1f}" height="{max(0.5, y1 - y0):.1f}">'
                f"<title>{escape(name)}, {when}: {count:,} records</title></rect>"
            )
            base += count
    return _svg(_HEIGHT, _axes(scale, first, step, _count) + "".join(bars), "records landed over time")


def draw_delay(logs: Sequence[LogReport]) -> str:
    """Return an SVG plot of the time between a record's timestamp and its landing.

    Each file counts with its newest record. A line shows the median of each interval of time, a band its smallest and
    largest value.
    """
    landed = [one for log in logs for one in log.arrivals if one.max_timestamp is not None]
    if not landed:
        return ""
    first, step = _bucket(landed)
    delays: defaultdict[int, list[float]] = defaultdict(list)
    for one in landed:
        if one.max_timestamp is not None:
            delays[(one.landed_ms - first) // step].append(max(0.0, (one.landed_ms - one.max_timestamp) / 1000))
    scale = _nice_seconds(max(max(found) for found in delays.values()))
    points = [(_x(bucket + 0.5), sorted(found)) for bucket, found in sorted(delays.items())]
    upper = [f"{x:.1f},{_y(found[-1], scale):.1f}" for x, found in points]
    lower = [f"{x:.1f},{_y(found[0], scale):.1f}" for x, found in reversed(points)]
    middle = [f"{x:.1f},{_y(found[len(found) // 2], scale):.1f}" for x, found in points]
    drawn = f'<polygon class="band" points="{" ".join(upper + lower)}"/>'
    if len(points) == 1:
        x, y = middle[0].split(",")
        drawn += f'<circle class="landed" cx="{x}" cy="{y}" r="3"/>'
    else:
        drawn += f'<polyline class="middle" points="{" ".join(middle)}"/>'
    return _svg(_HEIGHT, _axes(scale, first, step, _seconds) + drawn, "delay over time")


def largest_topics(logs: Sequence[LogReport]) -> list[str]:
    """Return the topics that get a colour of their own in plots, most records first."""
    records: defaultdict[str, int] = defaultdict(int)
    for log in logs:
        records[log.log.topic] += log.records or 0
    ordered = sorted(records, key=lambda topic: (-records[topic], topic))
    return ordered if len(ordered) <= _COLOURS else ordered[: _COLOURS - 1]


# -- axes


def _bucket(landed: Sequence[Arrival]) -> tuple[int, int]:
    """Return the beginning of the first interval and the length of each, in ms."""
    first = min(arrival.landed_ms for arrival in landed)
    last = max(arrival.landed_ms for arrival in landed)
    return first, max(1, math.ceil((last - first + 1) / _BUCKETS))


def _x(bucket: float) -> float:
    return _LEFT + bucket / _BUCKETS * (WIDTH - _LEFT)


def _y(value: float, scale: float) -> float:
    return 8 + (1 - value / scale) * (_HEIGHT - _BOTTOM - 8)


def _axes(scale: float, first: int, step: int, write: Callable[[float], str]) -> str:
    parts = []
    for part in range(3):
        value = scale * part / 2
        y = _y(value, scale)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{write(value)}</text>')
    long = step * _BUCKETS > 86_400_000
    for bucket, anchor in ((0, "start"), (_BUCKETS // 2, "middle"), (_BUCKETS, "end")):
        label = _clock(first + bucket * step, day=long or bucket == 0)
        parts.append(f'<text x="{_x(bucket):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{label}</text>')
    return "".join(parts)


def _nice(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value)


def _nice_seconds(value: float) -> float:
    """Round a time in seconds up to a round one."""
    return next(scale for scale in (*_SCALES_S, 86_400 * _nice(value / 86_400)) if scale >= value)


def _clock(at_ms: int, *, day: bool = True) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S")


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _seconds(value: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} s"


def _svg(height: int, inner: str, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{inner}</svg>'


def join_keys(keys: Iterable[tuple[str, str]]) -> str:
    """Return the legend of a plot as HTML.

    Args:
        keys: CSS class and label of each entry.
    """
    return "".join(f'<span class="key"><i class="{style}"></i>{escape(what)}</span>' for style, what in keys)
