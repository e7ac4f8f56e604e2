# SPDX-License-Identifier: Apache-2.0
"""Commands of the documents, run as a reader types them, with this checkout's program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.documents import TOP, Block
from tests.support.waiting import wait_until


def make_shell(programs: Path, **variables: str) -> Mapping[str, str]:
    """Return an environment in which ``consumerd`` is that of this checkout.

    Args:
        programs: a folder for the program, which is made.
        variables: on top of the environment of the tests, of which variables of ours are left out.
    """
    programs.mkdir()
    program = programs / "consumerd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m consumerd "$@"\n')
    program.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CONSUMERD_")}
    return clean | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(TOP),
        # another process may have the port that a reader has free
        "CONSUMERD_HTTP__LISTEN": "127.0.0.1:0",
        **variables,
    }


def commands(block: Block) -> list[str]:
    """Return a block's commands, without comments and without what sets the addresses and the environment."""
    lines = [line.split("  #")[0].strip() for line in block.text.splitlines()]
    return [line for line in lines if line and not line.startswith((". ", "bootstrap=", "#"))]


def as_typed(command: str) -> str:
    """Return a command with one space where the document lines up columns."""
    return re.sub(r" +", " ", command)


def run(command: str, environment: Mapping[str, str], folder: Path) -> str:
    """Run a command to its end, and return what it printed, on stdout and then on stderr. Raises AssertionError if it fails."""
    done = subprocess.run(
        ["sh", "-c", command], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def run_until(
    command: str, environment: Mapping[str, str], folder: Path, is_done: Callable[[Path], bool], what: str
) -> str:
    """Run a command until something is so, interrupt it as Ctrl-C does, and return what it printed.

    ``is_done`` is given the folder, in which ``out`` and ``err`` are what the command has printed so far.
    """
    with (folder / "out").open("wb") as stdout, (folder / "err").open("wb") as stderr:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], env=environment, cwd=folder, stdout=stdout, stderr=stderr
        )
        try:
            wait_until(lambda: is_done(folder) or process.poll() is not None, what, timeout_s=60)
            process.send_signal(signal.SIGINT)
            assert process.wait(40) == 0, (folder / "err").read_text()[-2000:]
        finally:
            process.kill()
            process.wait()
    return (folder / "out").read_text()
