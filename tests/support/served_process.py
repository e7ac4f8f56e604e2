# SPDX-License-Identifier: Apache-2.0
"""The end of a process that answers on its stdout what it reads on its stdin. Imports nothing of consumerd's."""

from __future__ import annotations

import contextlib
import subprocess


def end_served(process: subprocess.Popen[str], timeout_s: float = 30.0) -> None:
    """Close the process's stdin, wait for its end, and kill it after ``timeout_s`` seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
