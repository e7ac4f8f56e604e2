# SPDX-License-Identifier: Apache-2.0
"""A task that dies unseen fails the run, in one process and under xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.support import unseen

def pytest_configure(config):
    config.pluginmanager.register(unseen)
"""

DIES = """
import asyncio

def test_that_passes():
    async def fail():
        raise ValueError("nobody awaits this")

    async def main():
        task = asyncio.ensure_future(fail())
        circle = [task]
        circle.append(circle)  # so that only the collection of garbage ends it, after the last test
        await asyncio.sleep(0)

    asyncio.run(main())
"""

LIVES = "def test_that_passes():\n    pass\n"


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2", "--dist", "loadfile")], ids=["alone", "xdist"])
@pytest.mark.parametrize(("code", "exit_code"), [(DIES, 1), (LIVES, 0)], ids=["dies", "lives"])
def test_a_task_that_dies_unseen_fails_the_run(
    tmp_path: Path, code: str, exit_code: int, workers: tuple[str, ...]
) -> None:
    """Workers' exit codes are ignored: their failures would only stand in a log that nobody reads."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *workers, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert exit_code == done.returncode, done.stdout + done.stderr
    assert ("nobody heard of this in the last tests" in done.stdout) is bool(exit_code)
    assert ("nobody awaits this" in done.stdout) is bool(exit_code)
