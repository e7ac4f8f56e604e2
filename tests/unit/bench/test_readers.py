# SPDX-License-Identifier: Apache-2.0
"""How far a reader is, from what it prints."""

from __future__ import annotations

import pytest

from bench.readers.java import parse_report
from bench.readers.telling import Teller, parse_told

OLD = "2026-11-21 22:55:01:123, 0, 152.5879, 1525.8789, 1600000, 16000000.0000"
NEW = "2026-11-21 22:55:01:223, 0, 171.6614, 1907.3486, 1800000, 2000000.0000, 0, 100, 1907.3, 2000000.0"


def test_reports_of_consumer_performance() -> None:
    """Of releases with and without the columns about rebalances."""
    first, second = parse_report(OLD), parse_report(NEW)
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == (1_600_000, 1_800_000)
    assert second[0] - first[0] == pytest.approx(0.1, abs=1e-5)


@pytest.mark.parametrize(
    "line", ["", "WARNING: exiting", "start.time, end.time, data, MB.sec, nMsg, nMsg.sec", "a,b,c,d,e,f"]
)
def test_other_lines_say_nothing(line: str) -> None:
    """Headers and warnings are passed over."""
    assert parse_report(line) is None


def test_what_our_loops_print_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The first count at once, and those within a moment of it not at all."""
    teller = Teller()
    teller.add(5)
    teller.add(7)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    told = parse_told(lines[0])
    assert told is not None
    assert told[0] > 0
    assert told[1] == 5
