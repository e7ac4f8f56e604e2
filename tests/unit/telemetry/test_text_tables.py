# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal."""

from __future__ import annotations

import pytest

from consumerd.telemetry.text_tables import escape_unprintable, render_table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders/0 übrig", "orders/0 übrig"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb\rc\x9b", r"a\nb\rc\x9b"),
        ("\ud800", r"\ud800"),
        ("\u202e", r"\u202e"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    """A member that registers under a name with sequences in it must not clear whose screen shows it."""
    assert shown == escape_unprintable(text)
    assert f"NAME\n{shown}\n" == render_table(["name"], [[text]])
