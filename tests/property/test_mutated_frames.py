# SPDX-License-Identifier: Apache-2.0
"""Some thousands of the mutated frames of ``tests/fuzz/frames.py``; ``make fuzz-frames`` reads a million.

A slice that meets every decoder, each with and without an error, and no more: what takes minutes is a step of its own.
"""

from __future__ import annotations

import pytest

from tests.fuzz import frames
from tests.support.seeds import draw_seed

pytestmark = pytest.mark.records

FRAMES = 18000


def test_mutated_frames_give_records_or_more_or_a_named_error() -> None:
    """Every version of every answer, every magic and codec, and sets that decompress to more than is allowed."""
    report = frames.run(20120801, range(FRAMES))

    assert frames.missed(report) == []


def test_frames_that_nobody_has_seen_before_do_as_well() -> None:
    """Another seed in each run; a failure names it, and the frame."""
    frames.run(draw_seed("mutated frames"), range(FRAMES // 3))
