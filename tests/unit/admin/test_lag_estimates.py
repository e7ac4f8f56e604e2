# SPDX-License-Identifier: Apache-2.0
"""Estimates of ``lag --watch`` for records without timestamps."""

from __future__ import annotations

from dataclasses import replace

from consumerd.admin.lag import LagEstimator, LagRow

ROW = LagRow(
    topic="t", partition="0", owner=None, position=100, earliest=0, latest=300, lag=200, seconds=None, deleted=False,
    note="",
)  # fmt: skip


def test_an_estimate_is_a_note_and_no_age() -> None:
    """``seconds`` has one definition everywhere: the age of a record, unknown without its timestamp."""
    clock = [0.0]
    estimator = LagEstimator(lambda: clock[0])
    assert estimator.estimate([ROW]) == [ROW], "nothing is known at the first look"
    clock[0] = 10.0
    (row,) = estimator.estimate([replace(ROW, position=200, lag=100, note="no owner")])

    assert row.seconds is None
    assert row.note == "no owner; no timestamps; about 10 s behind at the present rate"


def test_an_age_needs_no_estimate() -> None:
    """A record that has a timestamp says itself how old it is."""
    clock = [0.0]
    estimator = LagEstimator(lambda: clock[0])
    aged = replace(ROW, seconds=3.0)
    estimator.estimate([aged])
    clock[0] = 10.0

    assert estimator.estimate([replace(aged, position=200)]) == [replace(aged, position=200)]
