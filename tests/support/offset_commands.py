# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets`` as a process of its own, and what comes of it in the files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.landing_reader import LandedPartition, read_landing


def offsets(zookeeper: str, group: str, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the commands, such as ``show`` or ``migrate plan``, to its end."""
    command = [sys.executable, "-m", "consumerd", "offsets", *verb.split(), "-z", zookeeper, "-g", group, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return what it says of each partition, with ``--json``. Raises AssertionError if it has failed."""
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_landed(folder: Path, topic: str, partition: int) -> LandedPartition:
    """Read one partition's files. Raises AssertionError unless the whole folder holds together."""
    landing = read_landing(folder)
    if landing.problems:
        raise AssertionError("\n".join(landing.problems))
    return landing.partitions[topic, str(partition)]
