# SPDX-License-Identifier: Apache-2.0
"""The whole pipeline on a real broker, with daemons and jobs killed at each of their steps.

Files are read by pyarrow, none of our code but the tables' logs, and compared with the producer's own ledger.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from consumerd import failpoints
from consumerd.failpoints import TABLE_POINTS, TablePoint
from consumerd.spark.table.transaction import open_table
from tests.interop.conftest import FULL, MAIN_RELEASE, ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Sent
from tests.support.landing_check import log_ends
from tests.support.load import SteadyLoad
from tests.support.processes import end_all_in
from tests.support.registry import open_registry
from tests.support.seeds import draw_seed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.records]

PARTITIONS = 4
PER_PARTITION = 25
SESSION_MS = 3000
LANDING_POINTS = ("before_fsync", "before_link", "after_link", "before_commit", "after_commit")
TASK_POINTS = ("before_table_file", "after_table_file")
"""Those are a task's, whose death fails the job; at the others it is the job itself that dies."""
DEATHS: list[tuple[TablePoint, TablePoint]] = (
    list(itertools.product(TABLE_POINTS, TABLE_POINTS)) if FULL else [("before_table_commit", "after_table_commit")]
)
"""Where bronze dies in a round, and where silver does."""

Row = tuple[bytes | None, bytes | None]


def make_value(number: int) -> bytes:
    """Return a JSON document, or, every seventh time, what is none."""
    return b"{" if number % 7 == 0 else json.dumps({"n": number}).encode()


@dataclass(frozen=True, slots=True)
class Jobs:
    """``consumerd-spark`` on one settings file."""

    folder: Path
    config: Path

    def run(self, job: str, *, fail_points: str = "") -> subprocess.CompletedProcess[str]:
        """Run a job and return how it ended."""
        command = [sys.executable, "-m", "consumerd.spark", job, "--config", str(self.config), "--json"]
        if job != "audit":
            command += ["--master", "local[1]"]
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, failpoints.VARIABLE: fail_points, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )

    def finish(self, job: str, *, code: int = 0) -> dict[str, Any]:
        """Run a job, require its exit code, and return its summary."""
        ended = self.run(job)
        assert ended.returncode == code, ended.stderr + ended.stdout
        summary: dict[str, Any] = json.loads(ended.stdout)
        return summary

    def die(self, job: str, point: TablePoint) -> None:
        """Run a job that is killed at a point."""
        ended = self.run(job, fail_points=f"{point}=kill")
        expected = 1 if point in TASK_POINTS else -signal.SIGKILL
        assert (ended.returncode, "fail_point_reached" in ended.stderr) == (expected, True), (point, ended.stderr)


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


def read_rows(path: Path) -> list[tuple[tuple[int, int], Row]]:
    """Return the rows of a table's newest version: (partition, offset), (key, value)."""
    table = open_table(path)
    rows = []
    for file in table.snapshot().files:
        found = pq.read_table(path / file, columns=["partition", "offset", "key", "value"], partitioning=None)
        rows += [((int(one["partition"]), one["offset"]), (one["key"], one["value"])) for one in found.to_pylist()]
    return sorted(rows)


@pytest.mark.usefixtures("_all_gone")
def test_bronze_is_what_was_produced_and_silver_what_is_in_bronze_whoever_dies(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """In each round a daemon, bronze and silver are killed, each at one of its steps."""
    cluster = shared_clusters(MAIN_RELEASE)
    topic = unique("pipeline")
    cluster.create_topic(topic, PARTITIONS)
    lake = tmp_path / "lake"
    settings = settings_for(
        cluster.zookeeper,
        topic,
        topics=(topic,),
        sink={"type": "parquet", "path": str(tmp_path / "landing"), "roll_ms": 400},
        group={"session_timeout_ms": SESSION_MS},
        offsets={"commit_interval_ms": 300},
        log={"level": "info"},
    )
    silver = {"topics": {topic: {"key": "utf8", "value": {"format": "json", "fields": {"n": "bigint not null"}}}}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**settings, "pipeline": {"path": str(lake), "silver": silver}}))
    jobs = Jobs(tmp_path, config)
    dice = random.Random(draw_seed("kills of the pipeline"))
    producer = cluster.ledger_producer(linger_ms="5")
    with open_registry(cluster.zookeeper) as registry, Daemon(tmp_path, "steady", settings) as steady:
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=PER_PARTITION, make_value=make_value):
            steady.wait(lambda: bool(registry.offsets(topic, topic)), "the first commits", 60)
            for number, (bronze_dies_at, silver_dies_at) in enumerate(DEATHS):
                point = f"{dice.choice(LANDING_POINTS)}=kill@{dice.randint(1, 6)}"
                with Daemon(tmp_path, f"victim-{number}", settings, fail_points=point) as victim:
                    jobs.die("bronze", bronze_dies_at)
                    victim.wait_killed(60)
                jobs.finish("bronze")
                jobs.die("silver", silver_dies_at)
        ledger = producer.finish()
        ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
        wait_until(lambda: registry.offsets(topic, topic) == ends, "everything consumed and committed", 60, 0.2)
        assert steady.terminate() == 0, steady.log()[-3000:]

    audit = jobs.finish("audit")
    jobs.finish("bronze")
    bronze = read_rows(lake / "bronze")
    assert bronze == sorted(((one[1], one[2]), (sent.key, sent.value)) for one, sent in ledger.items())
    jobs.finish("silver", code=1)  # it has found what is no JSON
    judge_silver(lake, topic, ledger)
    jobs.finish("compact")
    assert read_rows(lake / "bronze") == bronze
    assert audit["findings"] == []


def judge_silver(lake: Path, topic: str, ledger: dict[tuple[str, int, int], Sent]) -> None:
    """Each record is in silver or in quarantine, once, as its value says."""
    good = {one[1:]: json.loads(sent.value)["n"] for one, sent in ledger.items() if sent.value not in (None, b"{")}
    bad = sorted(one[1:] for one, sent in ledger.items() if sent.value == b"{")
    assert [place for place, _ in read_rows(lake / "quarantine")] == bad
    rows = read_rows(lake / "silver" / topic)
    assert len(rows) == len(good)
    assert {place: value["n"] for place, (_, value) in rows} == good  # type: ignore[call-overload, index]
