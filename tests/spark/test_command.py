# SPDX-License-Identifier: Apache-2.0
"""``consumerd-spark`` as a process: what a scheduler starts, and what Ctrl-C and SIGTERM leave."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.spark.session import launch_environment
from tests.support.landing_zone import LandingZone
from tests.support.processes import pids_in, wait_gone

ROOT = Path(__file__).parents[2]

ENDLESS = """
import sys, types

def run(spark, settings, progress):
    session = spark()
    progress.step("running")
    session.sparkContext.parallelize([0], 1).foreach(lambda _: __import__("time").sleep(600))

sys.modules["consumerd.spark.stats"] = types.SimpleNamespace(run=run)
from consumerd.spark.__main__ import main
sys.argv = ["consumerd-spark", "stats", "--master", "local[1]", "--json"]
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_running_job_and_all_that_it_has_started(tmp_path: Path, number: signal.Signals) -> None:
    """Whoever has seen enough gets the prompt back, not a JVM that works on."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        while "running" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
        out, err = process.communicate()
    finally:
        process.kill()
        wait_gone(tmp_path)

    assert 128 + number == process.returncode
    assert "failed" == json.loads(out)["status"]
    assert "Traceback" not in err
    assert "interrupted" in err
    assert set() == pids_in(tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_the_jobs_run_one_after_the_other_on_one_settings_file(tmp_path: Path) -> None:
    """As a scheduler runs them: settings in one file, a JSON object on stdout, an exit code."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 100, files=2)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"sinks: {{lake: {{type: parquet, path: {zone.path}}}}}\npipeline: {{path: {tmp_path / 'lake'}}}\n"
    )

    def run(*arguments: str) -> tuple[int, dict[str, object], str]:
        ended = subprocess.run(
            [sys.executable, "-m", "consumerd.spark", *arguments, "--config", config, "--json", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, json.loads(ended.stdout), ended.stderr

    code, bronze, err = run("bronze", "--master", "local[1]")
    assert (0, "ok", "") == (code, bronze["status"], err)
    assert 100 in bronze.values()

    code, again, err = run("bronze")
    assert (0, "ok", "") == (code, again["status"], err)
    assert 100 not in again.values(), "what is there is not taken again"


def test_spark_submit_says_where_spark_is(tmp_path: Path) -> None:
    """The same jobs on a cluster: its master and settings are not overruled by ours."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    home = Path(next(iter(importlib.util.find_spec("pyspark").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    submitted = subprocess.run(
        [home / "bin" / "spark-submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1",
         ROOT / "deploy" / "spark" / "consumerd_job.py",
         "bronze", "--landing", zone.path, "--path", tmp_path / "lake", "--json"],
        cwd=tmp_path, env={**os.environ, **launch_environment("local[1]"), "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == submitted.returncode, submitted.stderr
    assert 10 in json.loads(submitted.stdout.splitlines()[-1]).values()


HOG = """
import signal, sys
from consumerd.spark import cli, job
from consumerd.spark.job import Summary

def run(spark, settings, progress):
    spark().range(1).selectExpr("length(repeat(cast(id as string), 600000000))").collect()
    return Summary(numbers={})

cli.load_job = lambda name: run
sys.exit(cli.main(["bronze", "--config", sys.argv[1], "--json", "--quiet"]))
"""


def test_a_jvm_that_runs_out_of_memory_is_told_as_that(tmp_path: Path) -> None:
    """Not as a connection that is refused; with the setting that helps."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"sinks: {{lake: {{type: parquet, path: {tmp_path / 'landing'}}}}}\n"
        f"pipeline: {{path: {tmp_path / 'lake'}, spark: {{driver_memory: 512m, master: 'local[1]'}}}}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", HOG, config], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    summary = json.loads(ended.stdout)
    assert (1, "failed") == (ended.returncode, summary["status"]), ended.stderr[-2000:]
    assert "Spark's JVM has run out of memory: give it more than 512m with pipeline.spark.driver_memory" in str(summary)
    assert "stop-spark" not in ended.stderr
