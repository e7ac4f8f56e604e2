# SPDX-License-Identifier: Apache-2.0
"""Two executors, processes of their own, give what one process gives, and need nothing of the driver's memory and disk.

``local-cluster[2,1,1024]`` in a process of its own, since a process has but one session. Python on the executors is refused
whatever is in the driver's folder: where it works, its temporary files, its settings (``tests/support/executor_guard``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from consumerd.spark.session import launch_environment
from consumerd.spark.table.transaction import open_table
from tests.support.embedded import EmbeddedProcess
from tests.support.landing_zone import Identity, LandingZone
from tests.support.spark_reads import EXECUTOR, REFUSED, SparkJob, SparkRead, run_reads

GUARD: Final = Path(__file__).resolve().parents[1] / "support" / "executor_guard"
MASTER: Final = "local-cluster[2,1,1024]"
PARTITIONS: Final = 4
RECORDS: Final = 4000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedProcess]:
    with EmbeddedProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Make the driver's own folder."""
    folder = tmp_path / "driver"
    (folder / "tmp").mkdir(parents=True)
    return folder


@pytest.fixture
def settings(tmp_path: Path, driver: Path) -> Mapping[str, str]:
    """What such a session is given: executors' own environment, and both of them there before the first task."""
    scratch = tmp_path / "executors"
    scratch.mkdir()
    return {
        "spark.executorEnv.PYTHONPATH": str(GUARD),
        "spark.executorEnv.CONSUMERD_DRIVERS_OWN": str(driver),
        "spark.executorEnv.TMPDIR": str(scratch),
        "spark.executor.memory": "512m",
        # two JVMs more that live for half a minute
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }


def environment(driver: Path, tmp_path: Path) -> dict[str, str]:
    """Return the driver's environment. Spark's workers work below SPARK_HOME, which is not to be the package's folder."""
    import pyspark

    home = tmp_path / "spark-home"
    home.mkdir()
    for part in ("bin", "jars", "python"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    own = {"SPARK_HOME": str(home), "TMPDIR": str(driver / "tmp")}
    return {**os.environ, **own}


def test_a_topic_read_by_two_executors_is_what_was_produced(
    broker: EmbeddedProcess, driver: Path, tmp_path: Path, settings: Mapping[str, str]
) -> None:
    """Batch and stream; both executors have had a share of it."""
    broker.create_topic("read", PARTITIONS)
    lines = [b"k%d\tv%d" % (number % 97, number) for number in range(RECORDS)]
    broker.produce("read", b"\n".join(lines))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "read", "startingOffsets": "earliest"}
    batch = SparkRead(format="consumerd", options=options, to=str(tmp_path / "batch"), marked=True)
    limited = {**options, "maxOffsetsPerTrigger": "2500"}
    stream = SparkRead(format="consumerd", options=limited, to=str(tmp_path / "stream"), streaming=True)
    job = SparkJob(reads=[batch, stream], master=MASTER, settings=settings)

    run_reads(job, driver, environment=environment(driver, tmp_path), timeout_s=500)

    found = pq.read_table(batch.to)
    assert Counter(tuple(line.split(b"\t")) for line in lines) == Counter(
        zip(*_columns(found, "key", "value"), strict=True)
    )
    assert {(number, offset) for number in range(PARTITIONS) for offset in range(_count(found, number))} == set(
        zip(*_columns(found, "partition", "offset"), strict=True)
    )
    assert len(set(found[EXECUTOR].to_pylist())) == 2
    # else the guard is not at work, and neither test could fail by it
    assert set(found[REFUSED].to_pylist()) == {True}
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert found.drop_columns([EXECUTOR, REFUSED]).sort_by(order).equals(pq.read_table(stream.to).sort_by(order))


def test_bronze_made_by_two_executors_holds_each_record_once(
    driver: Path, tmp_path: Path, settings: Mapping[str, str]
) -> None:
    """Overlaps and all; the settings file is where no executor can read it."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 1000, files=4)
    zone.land("orders", 1, 0, 700, files=3)
    zone.land("orders", 0, 600, 900, request="again")
    file = driver / "consumerd.yaml"
    spark = {"master": MASTER, "settings": dict(settings)}
    pipeline = {"path": str(tmp_path / "tables"), "landing": {"roots": [str(zone.path)]}, "spark": spark}
    file.write_text(yaml.safe_dump({"pipeline": pipeline}))

    done = subprocess.run(
        [sys.executable, "-m", "consumerd.spark", "bronze", "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=driver,
        env=environment(driver, tmp_path),
    )

    assert done.returncode == 0, done.stderr[-3000:]
    table = open_table(tmp_path / "tables" / "bronze")
    rows = [
        Identity("orders", *row)
        for path in table.snapshot().files
        for row in _identities(pq.read_table(table.path / path, partitioning=None))
    ]
    assert len(rows) == 1700
    assert set(zone.expected) == set(rows)


def _columns(table: pa.Table, *names: str) -> list[list[object]]:
    return [table[name].to_pylist() for name in names]


def _count(table: pa.Table, partition: int) -> int:
    return table["partition"].to_pylist().count(partition)


def _identities(table: pa.Table) -> Iterator[tuple[str, str, int, int]]:
    for incarnation, partition, offset, index in zip(
        *_columns(table, "incarnation", "partition", "offset", "index"), strict=True
    ):
        yield str(incarnation), str(partition), int(str(offset)), int(str(index))


def test_the_shipped_script_submits_a_job_to_executors_with_an_environment_of_their_own(
    driver: Path, tmp_path: Path, settings: Mapping[str, str]
) -> None:
    """The archive is unpacked by executors alone: the driver has its own Python."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 500, files=4)
    archive = tmp_path / "environment.tar.gz"
    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/sh\nexport SHIPPED=yes\nexec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(launcher, "bin/python")
    given = environment(driver, tmp_path)
    script = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "spark-submit.sh"
    confs = {**settings, "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    launch = launch_environment(MASTER)
    submitted = subprocess.run(
        [script, "standalone", "bronze", "--landing", zone.path, "--path", tmp_path / "lake", "--json"],
        cwd=driver,
        env={
            **given,
            **launch,
            "MASTER": "local-cluster[1,1,1024]",
            "ENVIRONMENT": str(archive),
            "DRIVER_PYTHON": sys.executable,
            "EXECUTOR_MEMORY": "512m",
            "EXECUTOR_CORES": "1",
            "PYSPARK_SUBMIT_ARGS": "",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": " ".join(f"-D{key}={value}" for key, value in confs.items() if " " not in value),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == submitted.returncode, submitted.stderr[-3000:]
    assert 500 in json.loads(submitted.stdout.splitlines()[-1]).values()
