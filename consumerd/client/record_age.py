# SPDX-License-Identifier: Apache-2.0
"""Lag in seconds: the age of the oldest record that is not acknowledged. One definition for daemon and commands.

Example: records were appended at 12:00:00 and 12:00:30, none is acknowledged, and it is 12:01:00: the lag is 60 s. After
the first is acknowledged it is 30 s, after both it is 0.

The age goes by the record's own timestamp: the producer's clock (CreateTime) or the broker's (LogAppendTime). A clock
ahead of ours gives 0, never a negative age. Records are taken in the order of their offsets, not of their timestamps.

Pure.
"""

from __future__ import annotations

from consumerd.wire.records import NO_TIMESTAMP


def lag_seconds(*, lag: int | None, oldest_ms: int | None, now_ms: float) -> float | None:
    """Return the age of the oldest record that is not acknowledged; 0 when caught up, None when unknown.

    Args:
        lag: Records between the position and the end of the log; None while unknown.
        oldest_ms: The oldest record's timestamp, ``NO_TIMESTAMP`` for a record without one (magic 0 has none); None
            where no such record was read.
        now_ms: The calendar time, in ms since the epoch.
    """
    if oldest_ms is None:
        return 0.0 if lag == 0 else None
    if oldest_ms <= NO_TIMESTAMP:
        return None
    return max(0.0, (now_ms - oldest_ms) / 1000)
