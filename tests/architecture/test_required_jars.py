# SPDX-License-Identifier: Apache-2.0
"""Jars that are missing: tests skip and say which command fetches them, and fail in CI; `make full` runs Delta."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import jafka, kafka
from tests.support.spark_delta import spark_with_delta
from tests.support.spark_kafka import RELEASE, spark_with_kafka
from tests.support.tools import require_jars

TOP = Path(__file__).resolve().parents[2]


def delta_without_jars() -> object:
    """Look for Delta where Spark is, and Delta is not."""
    home = kafka.cache_folder() / f"spark-{RELEASE}"
    for folder in ("jars", "packages"):
        (home / folder).mkdir(parents=True)
    return spark_with_delta()


NEEDED = [
    pytest.param(lambda: kafka.jars("1.1.1"), "python -m tests.support.kafka fetch 1.1.1", id="Kafka"),
    pytest.param(jafka.jars, "python -m tests.support.jafka", id="Jafka"),
    pytest.param(spark_with_kafka, "python -m tests.support.spark_kafka", id="Spark's source"),
    pytest.param(delta_without_jars, "python -m tests.support.spark_delta", id="Delta"),
]


@pytest.fixture(autouse=True)
def _nothing_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No jars in the cache, and no maven on the path."""
    monkeypatch.setenv("CONSUMERD_KAFKA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(("need", "command"), NEEDED)
def test_missing_jars_skip_with_the_command(
    monkeypatch: pytest.MonkeyPatch, need: Callable[[], object], command: str
) -> None:
    """A reason without a way out of it leaves the test skipped for ever."""
    monkeypatch.delenv("CONSUMERD_REQUIRE_KAFKA", raising=False)

    with pytest.raises(pytest.skip.Exception) as skipped, require_jars():
        need()

    assert f"with Java and maven installed, `{command}` provides them" in str(skipped.value)


@pytest.mark.parametrize(("need", "command"), NEEDED)
def test_missing_jars_fail_in_ci(monkeypatch: pytest.MonkeyPatch, need: Callable[[], object], command: str) -> None:
    """Else CI is green without having run them."""
    monkeypatch.setenv("CONSUMERD_REQUIRE_KAFKA", "1")

    with pytest.raises(pytest.fail.Exception) as failed, require_jars():
        need()

    assert command in str(failed.value)


def test_full_runs_delta() -> None:
    """``make full`` runs ``tests/interop/test_spark_*.py``, without the tests that only the full matrix runs."""
    script = (TOP / ".ci" / "full").read_text()
    variables = {name: value for name, value in os.environ.items() if name != "CONSUMERD_FULL_MATRIX"}
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/interop/test_spark_delta.py"],
        cwd=TOP,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert "with_spark=(tests/interop/test_spark_*.py)" in script
    assert "export CONSUMERD_REQUIRE_KAFKA=1" in script
    assert "test_spark_delta.py::test_delta_reads_every_table_at_every_version" in collected
