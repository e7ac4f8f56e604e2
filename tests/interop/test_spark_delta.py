"""Bronze as a Delta table, with the releases of Spark and Delta that work together: each record once, whoever dies when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from consumerd import failpoints
from tests.support.landing_zone import LandingZone
from tests.support.spark_delta import SparkWithDelta, spark_with_delta
from tests.support.spark_reads import SparkJob, SparkRead, run_reads
from tests.support.tools import require_jars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.records]

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def delta() -> SparkWithDelta:
    """Skip, or fail where CI requires what is fetched, unless Delta is or can be had."""
    with require_jars():
        return spark_with_delta()


def run_job(delta: SparkWithDelta, zone: LandingZone, place: Path, points: str | None = None) -> Any:
    """Run the job in a process; return its summary, or None where it was killed."""
    config = place.with_name("config.yaml")
    settings = {
        "pipeline": {
            "landing": {"roots": [str(zone.path)]},
            "bronze": {"path": str(place), "format": "delta"},
            "spark": {"master": "local[2]", "settings": delta.settings},
        }
    }
    config.write_text(json.dumps(settings))
    environment = delta.pyspark.environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(_ROOT)])
    if points is not None:
        environment[failpoints.VARIABLE] = points
    done = subprocess.run(
        [sys.executable, "-m", "consumerd.spark", "bronze", "--config", str(config), "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=place.parent,
    )
    if points is not None:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read(delta: SparkWithDelta, place: Path) -> list[tuple[int, bytes | None]]:
    """Return the table's offsets and values, in order."""
    folder = place.with_name("read")
    to = folder / f"rows-{len(list(folder.glob('rows-*')))}"
    reads = [SparkRead(format="delta", options={"path": str(place)}, to=str(to))]
    run_reads(SparkJob(reads=reads, settings=delta.settings), folder, environment=delta.pyspark.environment())
    rows = pq.read_table(to, columns=["offset", "value"])
    return sorted(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))


def expected(zone: LandingZone) -> list[tuple[int, bytes | None]]:
    return sorted((identity.offset, record.value) for identity, record in zone.expected.items())


@pytest.mark.parametrize(
    "points",
    [
        pytest.param("after_table_commit=kill", marks=pytest.mark.full),  # it is in the outbox, and not in Delta
        "before_table_commit=kill@2",  # it is in Delta, and in the outbox still: only Delta's own record of it helps
        pytest.param("after_table_commit=kill@2", marks=pytest.mark.full),
    ],
)
def test_job_killed_and_run_again_has_each_record_once(delta: SparkWithDelta, tmp_path: Path, points: str) -> None:
    """Delta's commit and ours are two, and between two a process can die."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 300, files=3)
    zone.land("orders", 0, 200, 400, request="again")
    place = tmp_path / "delta"
    run_job(delta, zone, place, points)
    run_job(delta, zone, place)
    assert expected(zone) == read(delta, place)

    zone.land("orders", 0, 400, 500)
    summary = run_job(delta, zone, place)
    assert expected(zone) == read(delta, place)
    assert summary["rows"] == 100
    assert not list((place / "_outbox").glob("topic=*/day=*/*.parquet"))
