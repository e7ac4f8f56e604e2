# SPDX-License-Identifier: Apache-2.0
"""The Spark session that the tests here share, one in each process: each takes five seconds and a gigabyte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.spark.session import local_session
from tests.support.landing_zone import LandingZone

HERE = Path(__file__).parent
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs the session may be the test that starts it, on a busy machine."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
            # a job takes seconds whatever it does
            item.add_marker(pytest.mark.drawn(parts=3))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores. Tests change no settings of it that they do not put back."""
    session = local_session(
        "tests",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.streaming.stopTimeout": "30s",
            # tests look at what is left on disk
            "spark.cleaner.referenceTracking.cleanCheckpoints": "false",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    """An empty landing zone of Parquet files, below the test's folder."""
    return LandingZone(tmp_path / "landing")
