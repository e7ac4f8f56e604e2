# SPDX-License-Identifier: Apache-2.0
"""Output of rows on stdout: as a table for people, or as JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from consumerd.telemetry.text_tables import render_table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def print_rows(rows: Sequence[DataclassInstance], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print rows as a table, or as one JSON object per line.

    Args:
        rows: Dataclass instances.
        columns: Field names that the table shows; ``_`` is printed as a space.
        as_json: True for JSON, with all fields.
        empty: Text in place of a table without rows.
    """
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(asdict(row), default=str) + "\n")
        return
    if not rows:
        sys.stdout.write(f"{empty}\n")
        return
    sys.stdout.write(
        render_table(
            [name.replace("_", " ") for name in columns], [[getattr(row, name) for name in columns] for row in rows]
        )
    )
