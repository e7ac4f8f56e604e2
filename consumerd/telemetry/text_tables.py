# SPDX-License-Identifier: Apache-2.0
"""Text tables for terminals. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def render_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows as an aligned text table; numbers are right-aligned, None is a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(head), *(len(row[at]) for row in cells)) if cells else len(head) for at, head in enumerate(heads)]
    right = [all(isinstance(row[at], (int, float, type(None))) for row in rows) for at in range(len(heads))]
    lines = [_line([head.upper() for head in heads], widths, right)]
    lines += [_line(row, widths, right) for row in cells]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    return "  ".join(
        cell.rjust(width) if numeric else cell.ljust(width)
        for cell, width, numeric in zip(cells, widths, right, strict=True)
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return escape_unprintable(str(value))


def escape_unprintable(text: str) -> str:
    """Return a text on one line, with control characters escaped as in Python.

    Names come from registries and brokers, and a terminal would obey escape sequences in them.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == " " else one.encode("unicode_escape").decode() for one in text)
