# SPDX-License-Identifier: Apache-2.0
"""README's five minutes by hand, as they stand there: a cluster, records, a group, a reset."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.documented import commands, make_shell, run, run_until
from tests.support.documents import README, find_blocks
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
    return make_shell(tmp_path / "bin", bootstrap=own_cluster.bootstrap, zookeeper=own_cluster.zookeeper)


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
