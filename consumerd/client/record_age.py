# SPDX-License-Identifier: Apache-2.0
"""Lag of a partition in seconds: the age of its oldest unacknowledged record.

Daemon and commands show the same value.

Example: records were appended at 12:00:00 and 12:00:30, none is acknowledged, and it is 12:01:00: the lag is 60 s.
After the first one is acknowledged it is 30 s, after both it is 0.

The age is based on the record's timestamp: the producer's clock (CreateTime) or the broker's (LogAppendTime). If that
clock is ahead of ours, the age is 0 and not negative. The oldest record is the one with the lowest offset, even if
others have earlier timestamps.
"""

from __future__ import annotations

from consumerd.wire.record_fields import NO_TIMESTAMP


def lag_seconds(*, lag: int | None, oldest_ms: int | None, now_ms: float) -> float | None:
    """Return the age of a partition's oldest unacknowledged record, in seconds.

    0 if there is no such record, None if the age is unknown.

    Args:
        lag: Number of records between the position and the log end offset; None if unknown.
        oldest_ms: Timestamp of the oldest unacknowledged record, in ms since the epoch. ``NO_TIMESTAMP`` if the record
            has none (as in magic 0); None if no unacknowledged record was read.
        now_ms: Present time, in ms since the epoch.
    """
    if oldest_ms is None:
        return 0.0 if lag == 0 else None
    if oldest_ms <= NO_TIMESTAMP:
        return None
    return max(0.0, (now_ms - oldest_ms) / 1000)
