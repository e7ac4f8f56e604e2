# SPDX-License-Identifier: Apache-2.0
"""What a Python worker of Spark keeps: told of a process of its own, as a worker is one."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

_WORKER = """
import gc
from consumerd.spark.datasource.batch import RangePartition, read_partition

def left():
    gc.collect()
    return len(gc.get_objects())

assert left() > 10_000
for _ in range(3):
    assert list(read_partition(RangePartition(None))) == []
    kept = gc.get_freeze_count()
    print(left(), kept)
"""


def test_collections_between_tasks_do_not_go_through_what_is_loaded() -> None:
    """pyspark collects garbage after each task, which takes longer than a task of a few megabytes."""
    done = subprocess.run([sys.executable, "-c", _WORKER], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    assert len(lines) == 3
    assert all(objects < 1_000 for objects, _ in lines), lines
    assert len({kept for _, kept in lines}) == 1, "it keeps once, not more with every task"
