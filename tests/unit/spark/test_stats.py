# SPDX-License-Identifier: Apache-2.0
"""Files of bronze that stats reads to count hours again. Without Spark."""

from __future__ import annotations

import pytest

from consumerd.spark.stats import _may_have
from consumerd.spark.table.commit import Bounds, DataFile

HOUR_S = 3600
HOUR_US = HOUR_S * 1_000_000


def hours(first: int, last: int) -> Bounds:
    """Return the bounds of times within these hours, the last one to its end."""
    return Bounds(low=first * HOUR_US, high=(last + 1) * HOUR_US - 1)


@pytest.mark.parametrize(
    ("topic", "bounds", "expected"),
    [
        ("orders", {"timestamp": hours(22, 22), "landed": hours(23, 23)}, {22, 23}),
        ("orders", {"timestamp": hours(20, 21), "landed": hours(30, 30)}, {20, 21, 30}),
        ("orders", {"landed": hours(23, 23)}, {20, 21, 22, 23, 24, 30}),
        ("orders", {}, {20, 21, 22, 23, 24, 30}),
        ("payments", {"timestamp": hours(22, 22), "landed": hours(23, 23)}, set()),
    ],
)
def test_a_file_may_have_an_hour_by_its_records_times_or_by_its_landing(
    topic: str, bounds: dict[str, Bounds], expected: set[int]
) -> None:
    """Records without a time share a day's file with others; a file without bounds may have any hour."""
    file = DataFile(path="a.parquet", size=1, rows=1, values=(topic, "2026-11-22"), bounds=bounds)
    asked = {20, 21, 22, 23, 24, 30}

    assert {hour for hour in asked if _may_have(file, [("orders", hour * HOUR_S)])} == expected
