# SPDX-License-Identifier: Apache-2.0
"""Comparison of what a group has read from two clusters with what was produced."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.cli.demo import render_mirror
from consumerd.demo.audit import Landed
from consumerd.demo.ledger import RecordPlace, digest
from consumerd.demo.mirror import MirrorOutcome, find_faults
from consumerd.model import PartitionKey

LEDGER = {RecordPlace("orders", PartitionKey(0), offset): digest(b"k", b"%d" % offset) for offset in range(6)}


def landed(*values: int, first: int = 0) -> list[Landed]:
    """Return records with these values, at offsets that go on from ``first``."""
    return [
        Landed(place=RecordPlace("orders", PartitionKey(0), offset), digest=digest(b"k", b"%d" % value))
        for offset, value in enumerate(values, first)
    ]


def test_group_that_goes_on_with_the_next_record_is_sound() -> None:
    """Offsets of the new cluster are others."""
    assert [] == find_faults(LEDGER, landed(0, 1, 2), landed(3, 4, 5, first=7))
    assert [] == find_faults(LEDGER, landed(0, 1, 2, 3, 4, 5), [])


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ((0, 1, 2), (4, 5), 3),
        ((0, 1, 2), (2, 3, 4, 5), 3),
        ((0, 1, 2), (3, 5, 4), 4),
        ((0, 1, 2), (3, 4), 5),
        ((0, 1, 2), (3, 4, 5, 6), 6),
        ((1, 2), (3, 4, 5), 0),
    ],
)
def test_missing_doubled_and_moved_records_are_found(old: tuple[int, ...], new: tuple[int, ...], number: int) -> None:
    """With the place of the first one."""
    (fault,) = find_faults(LEDGER, landed(*old), landed(*new, first=20))
    assert fault.startswith("orders/0: 6 records produced")
    assert fault.endswith(f"the first that differs is number {number}")


def test_records_that_nobody_produced_are_found() -> None:
    place = RecordPlace("clicks", PartitionKey(1), 5)
    assert ["clicks/1: 0 records produced, 1 landed; the first that differs is number 0"] == find_faults(
        LEDGER, [*landed(*range(6)), Landed(place=place, digest=b"x")], []
    )


def test_report_has_figures_and_verdict() -> None:
    outcome = MirrorOutcome(produced=6000, old=4000, new=2000, findings=(), folder=Path("/data"), seconds=21.6)
    assert outcome.sound
    text = render_mirror(outcome)
    assert "from the old cluster     4000\n" in text
    assert "of 6,000 records the group has read each once and in order" in text
    faulty = MirrorOutcome(produced=6000, old=4000, new=2000, findings=("x: y",), folder=Path("/data"), seconds=1)
    assert not faulty.sound
    assert "  x: y\n" in render_mirror(faulty)
    assert "THE AUDIT HAS FOUND FAULTS" in render_mirror(faulty)
    short = MirrorOutcome(produced=6000, old=4000, new=1999, findings=(), folder=Path("/data"), seconds=1)
    assert not short.sound
