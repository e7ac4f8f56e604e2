# SPDX-License-Identifier: Apache-2.0
"""Lag in seconds, as the daemon and ``consumerd lag`` define it."""

from __future__ import annotations

import pytest

from consumerd.client.record_age import lag_seconds


@pytest.mark.parametrize(
    ("lag", "oldest_ms", "expected"),
    [
        (0, None, 0.0),  # caught up
        (5, None, None),  # behind, and the record was not read
        (None, None, None),  # nothing is known
        (5, 40_000, 60.0),
        (0, 40_000, 60.0),  # read to the end of the log, and not safe at the sink yet
        (None, 40_000, 60.0),  # the broker is away, the record is here
        (5, -1, None),  # a format or a producer without timestamps
        (0, -1, None),
        (5, 0, 100.0),  # 1970 is a time
        (5, 160_000, 0.0),  # the producer's clock is ahead
    ],
)
def test_the_lag_is_the_age_of_the_oldest_record(
    lag: int | None, oldest_ms: int | None, expected: float | None
) -> None:
    """An unknown age is neither 0 nor negative."""
    assert lag_seconds(lag=lag, oldest_ms=oldest_ms, now_ms=100_000) == expected
