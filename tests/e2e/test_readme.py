# SPDX-License-Identifier: Apache-2.0
"""README's five minutes by hand, as they stand there: a cluster, records, a group, a reset."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import wait_until
from tests.support.documents import README, TOP, Block, find_blocks
from tests.support.embedded import EmbeddedThread

pytestmark = pytest.mark.records

HERE = "tests/e2e/test_readme.py"


@pytest.fixture
def own_cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[EmbeddedThread]:
    """A broker of its own, as the README's user has: topic and groups have the README's names."""
    with EmbeddedThread(tmp_path / "cluster", f"{zookeeper.connect_string}/readme") as broker:
        yield broker


@pytest.fixture
def shell(own_cluster: EmbeddedThread, tmp_path: Path) -> Mapping[str, str]:
    """An environment in which the commands of the README are those of this checkout, with the README's addresses."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "consumerd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m consumerd "$@"\n')
    program.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CONSUMERD_")}
    return clean | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(TOP),
        "bootstrap": own_cluster.bootstrap,
        "zookeeper": own_cluster.zookeeper,
        # another process may have the port that the README's user has free
        "CONSUMERD_HTTP__LISTEN": "127.0.0.1:0",
    }


def commands(block: Block) -> list[str]:
    """Return a block's commands, without what sets the addresses and the environment."""
    lines = [line.split("  #")[0].strip() for line in block.text.splitlines()]
    return [line for line in lines if line and not line.startswith((". ", "bootstrap="))]


def run(command: str, environment: Mapping[str, str], folder: Path) -> str:
    """Run a command to its end, and return what it printed."""
    done = subprocess.run(
        ["sh", "-c", command], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def run_until(
    command: str, environment: Mapping[str, str], folder: Path, is_done: Callable[[Path], bool], what: str
) -> str:
    """Run a command until something is so, interrupt it as Ctrl-C does, and return what it printed."""
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


@pytest.mark.timeout(180)
def test_five_minutes_by_hand_go_as_written(
    own_cluster: EmbeddedThread, shell: Mapping[str, str], tmp_path: Path
) -> None:
    """The first commands that anybody types of ours."""
    own_cluster.create_topic("greetings", 4)
    first, second = find_blocks(README, "sh", HERE)
    produce, consume, lag = commands(first)
    land, reset, land_again = commands(second)

    run(produce, shell, tmp_path)
    printed = run_until(consume, shell, tmp_path, has_printed_all, "1,000 lines")
    behind = run(lag, shell, tmp_path)

    assert {json.loads(line)["value"] for line in printed.splitlines()} == {str(number) for number in range(1, 1_001)}
    assert re.search(r"total lag\D*0\b", behind), behind

    run_until(land, shell, tmp_path, has_taken_all, "all is taken")
    run(reset, shell, tmp_path)
    run_until(land_again, shell, tmp_path, has_taken_all, "all is taken again")

    rows = {
        chain: sum(pq.read_metadata(file).num_rows for file in tmp_path.glob(f"landed/*/*/chain={chain}/*.parquet"))
        for chain in (1, 2)
    }
    assert rows == {1: 1_000, 2: 1_000}


def has_printed_all(folder: Path) -> bool:
    return (folder / "out").read_bytes().count(b"\n") == 1_000


def has_taken_all(folder: Path) -> bool:
    """Whether the daemon's sink has been given all records, as its status says."""
    started = re.search(r'"url": "(http://[^"]+)"', (folder / "err").read_text())
    if started is None:
        return False
    with urllib.request.urlopen(f"{started[1]}/api/v1/status", timeout=5) as answer:
        status = json.load(answer)
    positions = [one["position"] or 0 for one in status["partitions"]]
    return len(positions) == 4 and sum(positions) == 1_000 and not status["requests"]
