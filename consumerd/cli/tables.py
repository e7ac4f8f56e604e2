"""Tables for people and JSON for programs, on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def print_rows(rows: Sequence[DataclassInstance], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print dataclass values: one JSON object a line, or a table of ``columns`` (field names; ``_`` shows as a space)."""
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(asdict(row), default=str) + "\n")
        return
    if not rows:
        sys.stdout.write(f"{empty}\n")
        return
    known = {field.name for field in fields(rows[0])}
    assert known.issuperset(columns), f"no such column: {set(columns) - known}"
    sys.stdout.write(
        render_table(
            [name.replace("_", " ") for name in columns], [[getattr(row, name) for name in columns] for row in rows]
        )
    )


def render_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an aligned table; numbers to the right, None as a dash."""
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
    return str(value)
