# SPDX-License-Identifier: Apache-2.0
"""What the demo makes of what its pipeline prints."""

from __future__ import annotations

import json
from pathlib import Path

from consumerd.config.pipeline import Pipeline
from consumerd.demo.lake import describe_line, parse_lake, pipeline_settings
from consumerd.demo.stream import TOPICS

LINES = [
    json.dumps({"job": "audit", "status": "ok", "seconds": 0.25, "findings": [], "notes": []}),
    json.dumps({"job": "bronze", "status": "found", "seconds": 4.0, "findings": ["a file is damaged"], "notes": []}),
    json.dumps({"tables": {"bronze": {"rows": {"orders": 1000, "clicks": 5}, "heads": ["offset"], "first": [["0"]]}}}),
]


def test_lines_are_told_in_words() -> None:
    """While it runs, one line a job."""
    assert [
        "audit: 0 findings (0.2 s)",
        "bronze: 1 finding (4.0 s)",
        "tables: bronze 1,005 rows",
    ] == [describe_line(line) for line in LINES]
    assert "silver: no room (1.0 s)" == describe_line('{"job": "silver", "seconds": 1.0, "error": "no room"}')


def test_all_that_is_printed_is_read() -> None:
    """And a process that dies in between has not got to its end."""
    lake = parse_lake(LINES, Path("worker.yaml"))

    assert lake.complete
    assert 1005 == lake.tables["bronze"].total
    assert ("bronze: a file is damaged",) == lake.findings
    assert not parse_lake(LINES[:2], Path("worker.yaml")).complete
    failed = parse_lake([*LINES[:1], '{"job": "bronze", "seconds": 1.0, "error": "no room"}'], Path("worker.yaml"))
    assert failed.complete
    assert ("bronze: no room",) == failed.findings


def test_silver_and_quarantine_together_hold_what_has_landed() -> None:
    """Neither alone does, where a value cannot be decoded."""
    tables = {
        name: {"rows": {"orders": rows}, "heads": [], "first": []}
        for name, rows in (("bronze", 10), ("silver/orders", 8), ("quarantine", 2))
    }
    lake = parse_lake([json.dumps({"tables": tables})], Path("worker.yaml"))

    assert () == lake.disagreements({"orders": 10})
    assert ("orders: 11 landed, 10 in bronze", "orders: 11 landed, 10 in silver and quarantine") == lake.disagreements(
        {"orders": 11}
    )


def test_the_settings_are_settings(tmp_path: Path) -> None:
    """They go into the members' files, which refuse what they do not know."""
    settings = Pipeline.model_validate(pipeline_settings(tmp_path / "lake"))

    assert set(TOPICS) == set(settings.silver.topics)
