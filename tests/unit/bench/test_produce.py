# SPDX-License-Identifier: Apache-2.0
"""The order of contestants beside each other, and how producers are judged."""

from __future__ import annotations

import pytest

from bench.produce import Rates, in_turn, payloads, row_of
from bench.producers import Who


def test_each_contestant_begins_as_often_as_any() -> None:
    """Whoever always begins finds a rested broker and an empty page cache."""
    assert ["ab", "ba", "ab", "ba"] == ["".join(in_turn("ab", turn)) for turn in range(4)]
    assert ["abc", "bca", "cab"] == ["".join(in_turn("abc", turn)) for turn in range(3)]


def test_values_are_lines_of_a_hundred_bytes() -> None:
    """Java's producer reads them from a file of lines."""
    values = payloads(1000)
    assert {100} == {len(value) for value in values}
    assert not any(b"\n" in value for value in values)


@pytest.mark.parametrize(
    ("codec", "peer", "met"), [("lz4", Who.JAVA, False), ("lz4", Who.LIBRDKAFKA, True), ("none", Who.JAVA, None)]
)
def test_a_producer_is_judged_by_the_clock(codec: str, peer: Who, met: bool | None) -> None:
    """Its CPU time is only told: broker and producer share the cores."""
    rates: dict[Who, list[Rates]] = {Who.OURS: [(0.9e6, 2e6), (0.9e6, 2e6)], peer: [(1e6, 1e6), (1e6, 1e6)]}

    row = row_of("4.3.1", codec, peer, rates)

    assert met == row.met
    assert row.figure == "**0.90** (0.90 to 0.90): 0.90 M and 1.00 M; 2.00 by CPU time"
