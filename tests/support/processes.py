# SPDX-License-Identifier: Apache-2.0
"""Which processes work in a folder: none may be left when a test's commands have ended."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.support.waiting import wait_until


def pids_in(folder: Path) -> set[int]:
    """Return the processes that work in a folder or below, or whose command names it."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            # one that ends meanwhile is none
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink().is_relative_to(folder) or os.fsencode(folder) in (
                    entry / "cmdline"
                ).read_bytes():
                    found.add(int(entry.name))
    return found


def end_all_in(folder: Path) -> None:
    """Kill whatever still works in a folder, and wait until it is gone. Raises TimeoutError."""
    for pid in pids_in(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_gone(folder)


def wait_gone(folder: Path) -> None:
    """Wait until no process works in a folder any more. Raises TimeoutError."""
    wait_until(lambda: not pids_in(folder), f"no process works in {folder} any more", 10)
