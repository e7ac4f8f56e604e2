# SPDX-License-Identifier: Apache-2.0
"""Tables for people and JSON for programs, on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from consumerd.telemetry.text_tables import render_table

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
