# SPDX-License-Identifier: Apache-2.0
"""SIGKILL in jobs that remove rows or files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Final

import pytest

from consumerd import failpoints
from consumerd.failpoints import TABLE_POINTS
from consumerd.spark.retention import remove_days
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.restore import restore
from consumerd.spark.table.transaction import Table, open_table
from consumerd.spark.table.vacuum import vacuum
from tests.support.faulty_files import RecordingFileSystem
from tests.support.tables import append, make_rows, make_table, plain_offsets, read_offsets, stage

pytestmark = pytest.mark.records

ROOT: Final = Path(__file__).parents[4]
PROGRAM: Final = """
import sys
from pathlib import Path
from tests.unit.spark.table.test_killed_jobs import JOBS

JOBS[sys.argv[1]](Path(sys.argv[2]))
"""
DYING_VACUUM: Final = """
import os, signal, sys
from pathlib import Path
from consumerd.spark.table.transaction import open_table
from tests.support.faulty_files import RecordingFileSystem
from tests.unit.spark.table.test_killed_jobs import remove_all_that_is_old

left = int(sys.argv[2])

def die(operation, name):
    global left
    left -= operation in ("unlink", "remove_tree")
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

remove_all_that_is_old(open_table(Path(sys.argv[1]), files=RecordingFileSystem(die)))
"""
OLD_DAY: Final = "2026-11-20"


def retain(path: Path) -> None:
    remove_days(open_table(path), date(2026, 11, 21), name="rows")


def go_back(path: Path) -> None:
    restore(open_table(path), 2)


def compact(path: Path) -> None:
    exchange(path, Operation.COMPACT, shift=0)


def refresh_latest(path: Path) -> None:
    exchange(path, Operation.REPLACE, shift=100)


def exchange(path: Path, operation: Operation, *, shift: int) -> None:
    """Put other files in place of all, in two days."""
    table = open_table(path)
    rows = read_offsets(table)
    if rows[0] > 100:
        return  # done before
    with table.begin(plan=f"{operation} of {table.snapshot().version}", job="test", operation=operation) as transaction:
        stage(transaction, [make_rows([rows[0] + shift], day=OLD_DAY), make_rows([one + shift for one in rows[1:]])])
        transaction.remove(list(transaction.base.files))
        transaction.commit()


JOBS: Final[Mapping[str, Callable[[Path], None]]] = {
    "retention": retain,
    "restore": go_back,
    "compact": compact,
    "latest": refresh_latest,
}
BEFORE: Final = [10, 11]
AFTER: Final[Mapping[str, list[int]]] = {
    "retention": [11],
    "restore": [1, 2, 10, 11],
    "compact": [10, 11],
    "latest": [110, 111],
}
STAGES: Final = {"restore": TABLE_POINTS[2:], "retention": ("before_table_commit", "after_table_commit")}
"""Points that a job comes to, if not all: restore links files that are there, and retention adds none."""
KILLS: Final = [(job, point) for job in JOBS for point in STAGES.get(job, TABLE_POINTS)]


def make_history(path: Path) -> Table:
    """Make a table of two days, from which the first version's rows have been removed."""
    table = make_table(path)
    append(table, make_rows([1, 2]), plan="first")
    append(table, make_rows([10], day=OLD_DAY), make_rows([11]), plan="second")
    with table.begin(plan="removal", job="test", operation=Operation.DELETE) as transaction:
        transaction.remove([path for path, file in table.snapshot().files.items() if file.rows == 2])
        transaction.commit()
    assert read_offsets(table) == BEFORE
    return table


def remove_all_that_is_old(table: Table) -> None:
    vacuum(table, keep_ms=0, keep_log_ms=0, now_ms=2**50)


def run(program: str, *arguments: object, points: str = "") -> int:
    environment = {**os.environ, failpoints.VARIABLE: points}
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(words, env=environment, cwd=ROOT, check=False).returncode


@pytest.mark.parametrize(("job", "point"), KILLS)
def test_job_killed_and_run_again_has_done_its_work_once(tmp_path: Path, job: str, point: str) -> None:
    """No row is lost or doubled, and a vacuum leaves nothing else."""
    table = make_history(tmp_path / "table")

    assert run(PROGRAM, job, table.path, points=f"{point}=kill") == -signal.SIGKILL
    assert read_offsets(table) == (AFTER[job] if point == "after_table_commit" else BEFORE)
    JOBS[job](table.path)
    assert read_offsets(table) == AFTER[job]
    remove_all_that_is_old(table)
    assert read_offsets(table) == plain_offsets(table) == AFTER[job]
    assert list((table.path / "_staging").iterdir()) == []


def test_vacuum_killed_at_any_removal_costs_no_row(tmp_path: Path) -> None:
    """Old versions may have lost files; the newest one is whole."""
    model = make_history(tmp_path / "model")
    run(PROGRAM, "compact", model.path, points="before_table_commit=kill")  # what a dead job leaves is removed, too
    removals = RecordingFileSystem()
    copies = iter(range(100))

    def copy() -> Path:
        path = tmp_path / f"table-{next(copies)}"
        subprocess.run(["cp", "-a", model.path, path], check=True)
        return path

    remove_all_that_is_old(open_table(copy(), files=removals))
    steps = sum(operation in ("unlink", "remove_tree") for operation, _ in removals.calls)
    assert steps >= 4
    for step in range(steps):
        table = open_table(copy())
        assert run(DYING_VACUUM, table.path, step) == -signal.SIGKILL
        assert read_offsets(table) == BEFORE
        append(table, make_rows([12]))
        remove_all_that_is_old(table)
        assert read_offsets(table) == plain_offsets(table) == [*BEFORE, 12]
        assert list((table.path / "_staging").iterdir()) == []
