# SPDX-License-Identifier: Apache-2.0
"""Numbers, lists and times as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 member``, ``2 members``.

    The plural is formed with an s.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_time(time_ms: int) -> str:
    """Return a time in ms since the epoch as ISO 8601, in UTC.

    Rounded down to seconds: ``2026-11-22T10:00:00+00:00``. A time outside the calendar (from a damaged record) is
    returned as a number with its unit.
    """
    try:
        return _format_second(time_ms // 1000)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"


def format_time_ms(time_ms: int) -> str:
    """Return a time in ms since the epoch as ISO 8601 with milliseconds, in UTC.

    Example: ``2026-11-22T10:00:00.250+00:00``. A time outside the calendar is returned as by :func:`format_time`.
    """
    seconds = format_time(time_ms)
    second, plus, zone = seconds.partition("+")
    return f"{second}.{time_ms % 1000:03d}+{zone}" if plus else seconds


@lru_cache(maxsize=4096)  # partitions that start or commit together share their second: a scrape formats thousands
def _format_second(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def join_shown(items: Iterable[object], at_most: int) -> str:
    """Return the first ``at_most`` items as text, followed by the number of those left out."""
    every = [str(item) for item in items]
    more = len(every) - at_most
    return ", ".join(every[:at_most]) + (f" and {more} more" if more > 0 else "")
