# SPDX-License-Identifier: Apache-2.0
"""The newest landed file is removed under a whole daemon, while it runs and while it is stopped."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.offset_commands import read_landed
from tests.support.registry import open_registry


def newest_file(folder: Path) -> Path:
    """Return the newest data file of the only partition."""
    found = folder.glob("topic=*/partition=0/chain=*/[0-9]*.parquet")
    return max(found, key=lambda path: (int(path.parent.name.removeprefix("chain=")), path.name))


def count_missing(daemon: Daemon) -> float:
    """Return the offsets that the metric for the alert counts as those of missing files."""
    told = re.findall(
        r'^consumerd_gap_offsets_total\{.*reason="missing file".*\} (\S+)$', daemon.get("/metrics")[1], re.MULTILINE
    )
    return sum(map(float, told))


@pytest.mark.records
@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while it is stopped"])
def test_removed_newest_file_is_told_as_missing(
    running: bool, cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The next claim tells of it: an error of the log, counted for the critical alert. What follows it is landed."""
    topic, group, folder = unique("removed"), unique("lake"), tmp_path / "landed"
    settings = settings_for(
        cluster.zookeeper,
        group,
        topics=(topic,),
        sink={"type": "parquet", "path": str(folder), "roll_ms": 200},
        offsets={"commit_interval_ms": 100},
    )
    cluster.create_topic(topic)

    def land(daemon: Daemon, upto: int) -> None:
        cluster.produce(topic, b"k\tv\n" * 10)
        with open_registry(cluster.zookeeper) as registry:
            daemon.wait(lambda: registry.offsets(group, topic) == {0: upto}, f"{upto} are landed and committed")

    with Daemon(tmp_path, "one", settings) as daemon:
        land(daemon, 10)
        land(daemon, 20)
        if running:
            newest_file(folder).unlink()
            land(daemon, 30)
            newest_file(folder).unlink()
        assert daemon.terminate() == 0
    if not running:
        newest_file(folder).unlink()
    with Daemon(tmp_path, "two", settings) as daemon:
        land(daemon, 40 if running else 30)
        (told,) = daemon.events("range_skipped")
        counted = count_missing(daemon)
        assert daemon.terminate() == 0
    first, end = 10, 30 if running else 20
    assert ("error", "missing file", first, end) == (told["level"], told["reason"], told["start"], told["end"])
    assert counted == end - first
    landed = read_landed(folder, topic, 0)
    assert [(gap["reason"], gap["start"], gap["end"]) for gap in landed.gaps] == [("missing file", first, end)]
    assert landed.find_lost([*range(first), *range(end, end + 10)]) == []
