# SPDX-License-Identifier: Apache-2.0
"""A log on a real disk, whose process is killed under load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.records

KILLS = 20


def test_twenty_kills_under_load_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A process may die at any instruction: what it had acknowledged is read back, and its successor goes on behind it."""
    command = [sys.executable, "-m", "tests.support.log_process", str(tmp_path), str(KILLS), "2026"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert len(result["ends"]) == KILLS
    assert result["ends"] == sorted(set(result["ends"])), "each round appends"
    names = {path.suffix for path in (tmp_path / "orders-0").iterdir()}
    assert names <= {".log", ".index", ".timeindex"}
