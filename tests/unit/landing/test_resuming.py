# SPDX-License-Identifier: Apache-2.0
"""The comparison of a committed position with the end of the landed files."""

from __future__ import annotations

import pytest

from consumerd.landing.ranges import Span
from consumerd.landing.resuming import LandedComparison


@pytest.mark.parametrize(
    ("committed", "position", "not_landed", "not_committed"),
    [
        (None, 150, None, None),
        (150, 150, None, None),
        (120, 150, None, Span(120, 150)),
        (200, 200, Span(150, 200), None),
    ],
)
def test_the_larger_position_counts_and_the_difference_is_told(
    committed: int | None, position: int, not_landed: Span | None, not_committed: Span | None
) -> None:
    """Delivery, doctor and audit decide by this alone."""
    compared = LandedComparison(committed, 150)
    assert (position, not_landed, not_committed) == (compared.position, compared.not_landed, compared.not_committed)
