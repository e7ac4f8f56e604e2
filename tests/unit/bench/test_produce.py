# SPDX-License-Identifier: Apache-2.0
"""The order of contestants beside each other."""

from __future__ import annotations

from bench.produce import in_turn


def test_each_contestant_begins_as_often_as_any() -> None:
    """Whoever always begins finds a rested broker and an empty page cache."""
    assert ["ab", "ba", "ab", "ba"] == ["".join(in_turn("ab", turn)) for turn in range(4)]
    assert ["abc", "bca", "cab"] == ["".join(in_turn("abc", turn)) for turn in range(3)]
