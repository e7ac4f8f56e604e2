# SPDX-License-Identifier: Apache-2.0
"""Metrics of jobs, as a real node_exporter and a real Pushgateway show them."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumerd.config.job import JobSettings
from consumerd.spark.job import JobName, Summary
from consumerd.spark.job_metrics import JobEnd, report_metrics
from tests.support.kafka import free_port
from tests.support.tools import require_tool
from tests.support.waiting import wait_until

OK = Summary(numbers={"rows": 7})


def report(code: int, summary: Summary | None, at_s: float, job: str = "bronze", **metrics: str) -> None:
    settings = JobSettings.model_validate({"group": {"id": "lake"}, "pipeline": {"metrics": metrics}})
    report_metrics(settings, JobEnd(job=JobName(job), exit_code=code, seconds=1, at_s=at_s, summary=summary))


def scrape(port: int) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return set(answer.read().decode().splitlines())


@contextmanager
def serving(program: str, port: int, *options: str) -> Iterator[None]:
    process = subprocess.Popen(
        [program, f"--web.listen-address=127.0.0.1:{port}", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        try:
            return bool(scrape(port))
        except OSError:
            return False

    try:
        wait_until(answers, "it answers")
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def port() -> int:
    return free_port()


def test_node_exporter_shows_the_files_of_all_jobs(tmp_path: Path, port: int) -> None:
    """Beside each other, and each as its job has left it."""
    program = require_tool("prometheus-node-exporter", "prometheus-node-exporter")
    report(0, OK, 1000.0, folder=str(tmp_path))
    report(1, None, 2000.0, folder=str(tmp_path))
    report(0, OK, 3000.0, job="stats", folder=str(tmp_path))
    only = ("--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={tmp_path}")
    with serving(program, port, *only):
        shown = scrape(port)

    assert "node_textfile_scrape_error 0" in shown
    assert 'consumerd_job_last_success_timestamp_seconds{group="lake",job_name="bronze"} 1000' in shown
    assert 'consumerd_job_last_run_timestamp_seconds{group="lake",job_name="bronze"} 2000' in shown
    assert 'consumerd_job_result{group="lake",job_name="stats",key="rows"} 7' in shown


def test_a_pushgateway_keeps_the_last_success_of_a_job_that_fails(port: int) -> None:
    """What a failed run does not push stays."""
    program = require_tool("prometheus-pushgateway", "prometheus-pushgateway")
    with serving(program, port):
        url = f"http://127.0.0.1:{port}"
        report(0, OK, 1000.0, push_gateway=url)
        report(2, None, 2000.0, push_gateway=url)
        shown = scrape(port)

    labels = '{group="lake",instance="",job="consumerd-spark",job_name="bronze"}'
    assert f"consumerd_job_last_success_timestamp_seconds{labels} 1000" in shown
    assert f"consumerd_job_last_run_timestamp_seconds{labels} 2000" in shown
    assert f"consumerd_job_exit_code{labels} 2" in shown
