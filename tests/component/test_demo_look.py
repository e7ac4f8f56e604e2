# SPDX-License-Identifier: Apache-2.0
"""The line that the demo prints to look at its files; it needs pandas, which unit tests do without."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.cli.demo import look_lines


@pytest.mark.parametrize("name", ["plain", "with space", "it's", 'a "quote" \\ and $HOME'])
def test_the_line_to_look_at_the_files_works_wherever_they_are(tmp_path: Path, name: str) -> None:
    """It is there to be copied."""
    folder = tmp_path / name / "topic=orders" / "partition=0"
    folder.mkdir(parents=True)
    values = [b'{"channel": "web", "total_cents": 5}', None, b'{"channel": "web", "total_cents": 6}']
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), folder / "a.parquet")

    (line,) = look_lines(tmp_path / name)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[-3:] == ["web", "2", "11"]
